"""`demo`: the whole story on two embedded metastores."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from replicator.commands.base import Options, verb
from replicator.commands.demos.landing_story import LandingStory
from replicator.commands.demos.story import DemoReport, Story, tell
from replicator.commands.options import SandboxDirectory
from replicator.core.option import Port, opt, python_only
from replicator.errors import MetastoreStartError
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import PATIENCE, MetastoreState
from replicator.metastore.embedded.server_process import masked, resolved
from replicator.metastore.java import LOOPBACK


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    keep: Annotated[
        str | os.PathLike[str] | None, opt("Run in this directory, new or empty, and keep it.", metavar="DIR")
    ] = None
    say: Annotated[Callable[[str], object], python_only("Called with the story, line by line.")] = print
    ingest: Annotated[bool, opt("Instead land a table of a PostgreSQL server, which the demo starts and stops.")] = (
        False
    )


@verb(DemoOptions)
def demo(options: DemoOptions) -> DemoReport:
    """Shows what this tool does, on two real Hive metastores with real Spark tables, in about a minute: bootstrap,
    changes of every kind, an incremental dump, the rubber-banding case, a verification of every byte. It has a
    Spark of its own. May run twice.

        replicator.demo(keep="/tmp/shop")

    Raises UsageError for a directory with something in it, JavaError, ConfigError without a PostgreSQL for `ingest`,
    Error when a step does not end as it must."""
    story = LandingStory if options.ingest else Story
    return tell(None if options.keep is None else Path(options.keep), options.say, story)


# ---- metastore -------------------------------------------------------------------------------------------------------
# `metastore start`, `stop` and `status`: a real Hive metastore in a directory, of Hive 2.3 to 4.2.


@dataclass(frozen=True, kw_only=True)
class MetastoreStartOptions(Options):
    directory: SandboxDirectory = field(kw_only=False)
    port: Annotated[Port | None, opt("The port; default: the previous one, else a free one.")] = None
    host: Annotated[
        str,
        opt(
            "Address to listen on, 0.0.0.0 for all interfaces. Every client that can connect has "
            "full access to the data.",
            metavar="ADDRESS",
        ),
    ] = LOOPBACK
    hive: Annotated[
        Literal["2.3", "3.1", "4.0", "4.2"] | None,
        opt("The version of Hive; default: the directory's, and 2.3 for a new one."),
    ] = None
    hive_settings: Annotated[
        Mapping[str, str],
        opt(
            "A Hive setting for this start. A password is given as env:NAME, file:PATH or command:PROGRAM.",
            "--set",
            metavar="KEY=VALUE",
            envvar="SETTINGS",
        ),
    ] = field(default_factory=dict)
    timeout: Annotated[timedelta, opt("Time limit for the first answer.")] = PATIENCE


@verb(MetastoreStartOptions)
def metastore_start(options: MetastoreStartOptions) -> MetastoreState:
    """Starts the metastore of a directory, with the data it has, and returns when it answers. One that runs already is
    reported as it is, so it may run twice.

        uri = replicator.metastore_start("/tmp/source").uri

    Raises MetastoreStartError with the log's last lines, JavaError, ChecksumMismatch; then no process is left. Raises
    ConfigError for a reference that cannot be read."""
    directory, settings = Path(options.directory), resolved(options.hive_settings)
    try:
        running = embedded.start(
            directory,
            port=options.port,
            host=options.host,
            hive=options.hive,
            settings=settings,
            env=os.environ,
            timeout=options.timeout,
        )
    except MetastoreStartError as error:
        raise MetastoreStartError(masked(error.message, settings), hint=error.hint) from None
    return MetastoreState.of(directory, running)


@dataclass(frozen=True, kw_only=True)
class MetastoreStopOptions(Options):
    directory: SandboxDirectory = field(kw_only=False)


@verb(MetastoreStopOptions)
def metastore_stop(options: MetastoreStopOptions) -> MetastoreState:
    """Stops the metastore of a directory; its data stay. May run twice.

        replicator.metastore_stop("/tmp/source")

    Raises FormatError when its state cannot be read."""
    directory = Path(options.directory)
    return MetastoreState.of(directory, None, "stopped" if embedded.stop(directory) else "not running")


@dataclass(frozen=True, kw_only=True)
class MetastoreStatusOptions(Options):
    directory: SandboxDirectory = field(kw_only=False)


@verb(MetastoreStatusOptions)
def metastore_status(options: MetastoreStatusOptions) -> MetastoreState:
    """Says whether the metastore of a directory runs and answers. Changes nothing.

        replicator.metastore_status("/tmp/source").status

    Raises FormatError when its state cannot be read."""
    directory = Path(options.directory)
    return MetastoreState.of(directory, embedded.status(directory))
