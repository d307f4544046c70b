"""`replicator metastore`: a real Hive metastore in a directory, started, asked after and stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from replicator.cli.options import Duration, Session, json_option, pass_session, settings_option
from replicator.cli.output import emit
from replicator.commands.metastore import metastore_start, metastore_status, metastore_stop
from replicator.metastore.embedded.distributions import VERSIONS

directory_option = click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the warehouse, the database and the log.",
)


@click.group()
def metastore() -> None:
    """Run a real Hive metastore: 2.3 out of PySpark's own jars, 3.1 to 4.2 fetched once from a Maven repository.

    \b
    Example: replicator metastore start --dir /tmp/source
    """


@metastore.command()
@directory_option
@click.option("--port", type=click.IntRange(1, 65535), help="The port; default: the previous one, else a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on, 0.0.0.0 for all interfaces. Every client that can connect has full access to the data.",
)
@click.option(
    "--hive",
    type=click.Choice(list(VERSIONS)),
    help="The version of Hive; default: the directory's, and 2.3 for a new one.",
)
@settings_option(
    "--set",
    "hive_settings",
    envvar="REPLICATOR_METASTORE_START_SETTINGS",
    help="A Hive setting for this start. A password is given as env:NAME, file:PATH or command:PROGRAM.",
)
@click.option("--timeout", type=Duration(), default="90s", show_default=True, help="Time limit for the first answer.")
@json_option
@pass_session
def start(session: Session, /, as_json: bool, **given: Any) -> int:
    """Start the metastore of a directory. Uses its existing data, and returns when it answers.

    \b
    Examples:
      replicator metastore start --dir /tmp/source --port 9083
      replicator metastore start --dir /tmp/newer --hive 4.2
    """
    emit(session.call(metastore_start, **given), as_json)
    return 0


@metastore.command()
@directory_option
@json_option
@pass_session
def stop(session: Session, /, as_json: bool, **given: Any) -> int:
    """Stop the metastore of a directory; its data is kept.

    \b
    Example: replicator metastore stop --dir /tmp/source
    """
    emit(session.call(metastore_stop, **given), as_json)
    return 0


@metastore.command()
@directory_option
@json_option
@pass_session
def status(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show whether the metastore of a directory is running.

    \b
    Example: replicator metastore status --dir /tmp/source
    """
    emit(session.call(metastore_status, **given), as_json)
    return 0
