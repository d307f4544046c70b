"""`replicator metastore`: a real Hive metastore in a directory, started, asked after and stopped."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import click

from replicator.cli.options import json_option, parse_settings
from replicator.cli.output import emit

directory_option = click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the warehouse, the database and the log.",
)


@click.group()
def metastore() -> None:
    """Run a real Hive metastore out of PySpark's own jars.

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
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A Hive setting for this start.")
@click.option("--timeout", type=float, default=90, show_default=True, help="Seconds to wait for the first answer.")
@json_option
def start(
    directory: Path, port: int | None, host: str, settings: tuple[str, ...], timeout: float, as_json: bool
) -> None:  # fmt: skip
    """Start the metastore of a directory, with its existing data, and return when it answers.

    \b
    Example: replicator metastore start --dir /tmp/source --port 9083
    """
    from replicator.metastore.embedded import running as embedded

    running = embedded.start(
        directory, port=port, host=host, settings=parse_settings(settings), env=os.environ,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    emit({"status": "running", **running.as_json()}, as_json)


@metastore.command()
@directory_option
@json_option
def stop(directory: Path, as_json: bool) -> None:
    """Stop the metastore of a directory; its data is kept.

    \b
    Example: replicator metastore stop --dir /tmp/source
    """
    from replicator.metastore.embedded import running as embedded

    stopped = embedded.stop(directory)
    emit({"status": "stopped" if stopped else "not running", "directory": str(directory.absolute())}, as_json)


@metastore.command()
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show whether the metastore of a directory is running.

    \b
    Example: replicator metastore status --dir /tmp/source
    """
    from replicator.metastore.embedded import running as embedded

    running = embedded.status(directory)
    if running:
        emit({"status": "running", **running.as_json()}, as_json)
    else:
        emit({"status": "not running", "directory": str(directory.absolute())}, as_json)
