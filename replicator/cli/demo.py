"""`replicator demo`: the whole story on two embedded metastores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from replicator.cli.options import Session, json_option, pass_session
from replicator.cli.output import emit
from replicator.commands.demo import demo as run


@click.command()
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Run in this directory, new or empty, and keep it.",
)
@click.option("--ingest", is_flag=True, help="Land a table of a PostgreSQL instead, which this starts and ends.")
@json_option
@pass_session
def demo(session: Session, /, as_json: bool, **given: Any) -> int:
    """Demonstrate replication on two real Hive metastores with real Spark tables, in about a minute.

    Runs a bootstrap, changes of every kind, an incremental dump, the rubber-banding case, and a verification of every
    byte. With --ingest: a table of a PostgreSQL is landed by request, changed and landed again, replicated, landed
    without an erased person, and restored as it was. Needs no Java, needs a network only for its set-up, and changes
    nothing outside its directory.

    \b
    Example:
      replicator demo
      replicator demo --keep /tmp/shop     then look at its dumps with `replicator show`
      replicator demo --ingest             a table landed, replicated, a person erased, an earlier moment restored
    """
    stream = sys.stderr if as_json else sys.stdout

    def say(line: str) -> None:
        print(line, file=stream, flush=True)

    reported = session.call(run, say=say, **given)
    emit(reported, as_json, ())
    return 0
