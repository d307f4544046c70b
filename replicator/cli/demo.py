"""`replicator demo`: the whole story on two embedded metastores."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from replicator.cli.options import json_option
from replicator.cli.output import emit


@click.command()
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Run in this directory, new or empty, and keep it.")  # fmt: skip
@json_option
def demo(keep: Path | None, as_json: bool) -> int:
    """Demonstrate replication on two real Hive metastores with real Spark tables, in about a minute.

    Runs a bootstrap, changes of every kind, an incremental dump, the rubber-banding case, and a verification of every
    byte. Needs no Java, needs a network only for its set-up, and changes nothing outside its directory.

    \b
    Example:
      replicator demo
      replicator demo --keep /tmp/shop     then look at its dumps with `replicator show`
    """
    from replicator.demos.story import tell
    from replicator.errors import UsageError

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"--keep {keep}: is not empty", hint="name a new directory")
    directory = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="replicator-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    stream = sys.stderr if as_json else sys.stdout

    def say(line: str) -> None:
        print(line, file=stream, flush=True)

    told = tell(directory, say, keep=keep is not None)
    emit(told, as_json, ())
    return 0
