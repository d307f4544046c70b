"""First steps: `init` writes a first `replicator.toml` with one policy once both metastores have answered, and checks
it; `demo` shows replication between two embedded metastores; `metastore` runs an embedded one.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from cmroot.store.place import as_written, join
from replicator.commands.base import Options, verb
from replicator.commands.demos.landing_story import LandingStory
from replicator.commands.demos.story import DemoReport, Story, tell
from replicator.commands.options import ReplaceFile, SandboxDirectory, SourceCatalog, TargetCatalog
from replicator.core.config import NAME, Config, parse_config
from replicator.core.connections import MetastoreConfig
from replicator.core.not_replicated import Report
from replicator.core.option import Port, Where, opt, python_only
from replicator.errors import MetastoreStartError, Refused, UsageError
from replicator.metastore.client import Metastore
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import PATIENCE, MetastoreState
from replicator.metastore.embedded.server_process import masked, resolved
from replicator.metastore.java import LOOPBACK
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.checks.check import PolicyChecked, check

# ---- init ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    renamed: ClassVar = {"force": "overwrite"}

    source: Annotated[
        Where,
        opt("The source's metastore: thrift://host:port. Prompted for if missing.", metavar="URI", required=False),
    ]
    target: Annotated[Where, opt("The target's metastore. Prompted for if missing.", metavar="URI", required=False)]
    catalog: SourceCatalog = None
    target_catalog: TargetCatalog = None
    policy: Annotated[str, opt("The policy's name.", metavar="NAME")] = "main"
    databases: Annotated[
        Sequence[str], opt("Databases of the source whose entire name matches; repeatable.", metavar="REGEX")
    ] = (".*",)
    cmroot: Annotated[str | None, opt("The source's $cmroot. Default: .cmroot in its warehouse.", metavar="PLACE")] = (
        None
    )
    target_cmroot: Annotated[
        str | None, opt("The target's $cmroot. Default: .cmroot in its warehouse.", metavar="PLACE")
    ] = None
    dumps: Annotated[
        str | None, opt("The directory of dumps. Default: .dumps in the target's warehouse.", metavar="PLACE")
    ] = None
    backups: Annotated[
        str | None,
        opt(
            "Also write two jobs: a nightly dump with data into this directory, complete once a week, and the "
            "expiry of these dumps.",
            metavar="PLACE",
        ),
    ] = None
    file: Annotated[str | os.PathLike[str], opt("The file to write.", metavar="FILE")] = NAME
    overwrite: ReplaceFile = False
    check: Annotated[bool, opt("Do not check the policy afterwards.")] = True


@dataclass
class Initialized(Report):
    """The report of `init`. file: the configuration that was written; check: of its policy, None if not requested."""

    file: str
    policy: str
    check: PolicyChecked | None = None
    status: str = "written"


@verb(InitOptions)
def init(options: InitOptions) -> Initialized:
    """Writes a configuration with two metastores and one policy between them, then checks the policy. Running it again
    is refused unless `overwrite` is given.

        replicator.init(source="thrift://a:9083", target="thrift://b:9083", databases=["sales"])

    Raises MetastoreUnreachable if one does not answer, Refused if the file exists, ConfigError for values that are not
    a valid policy; then nothing is written."""
    file = Path(options.file)
    if file.exists() and not options.overwrite:
        raise Refused(f"{file} already exists", hint="edit it, choose another --file, or give --overwrite")
    with options.connected(options.source) as source, options.connected(options.target) as target:
        text = _text(options, source, target)
    config = parse_config(tomllib.loads(text), str(file))
    _write(file, text, replace=options.overwrite)
    return Initialized(str(file), options.policy, _checked(config, options.policy) if options.check else None)


def _checked(config: Config, policy: str) -> PolicyChecked:
    return check(config.policy(policy), others=list(config.policies.values()))


def _text(options: InitOptions, source: ThriftMetastore, target: ThriftMetastore) -> str:
    cmroot = options.cmroot or join(_warehouse(source, "--cmroot"), ".cmroot")
    target_cmroot = options.target_cmroot or join(_warehouse(target, "--target-cmroot"), ".cmroot")
    dumps = options.dumps or join(_warehouse(target, "--dumps"), ".dumps")
    return f"""\
# Keys: docs/configuration.md, docs/policies.md

[metastores.source]
{_table(source.config)}

[metastores.target]
{_table(target.config)}

[policies.{_quoted(options.policy)}]
source = "source"
target = "target"
databases = {_quoted(list(options.databases))}
cmroot = {_quoted(cmroot)}
target_cmroot = {_quoted(target_cmroot)}
dumps = {_quoted(dumps)}
schedule = "5m"
# Each run compares both sides of the tables whose last comparison is the oldest, within this budget.
verify = {{ objects = 20, bytes = "10GiB" }}
# Of loaded dumps and of the history of runs. Removed and replaced files have another retention: --older-than, below.
retention = "7d"

# How long files that the source dropped or replaced can be restored, and those that loads replaced on the target.
# `replicator serve` runs these jobs.
[service.jobs.{_quoted(f"{options.policy}-expire-source")}]
command = {_quoted(["cm", "expire", "--cmroot", cmroot, "--older-than", "7d"])}
every = "1d"

[service.jobs.{_quoted(f"{options.policy}-expire-target")}]
command = {_quoted(["cm", "expire", "--cmroot", target_cmroot, "--older-than", "7d"])}
every = "1d"
{_backups(options.policy, options.backups) if options.backups else ""}"""


def _backups(policy: str, place: str) -> str:
    dump = ["dump", policy, "--with-data", "--into", place, "--complete-every", "7d"]
    expire = ["dumps", "expire", place, "--keep-daily", "7", "--keep-weekly", "4", "--keep-monthly", "12"]
    return f"""
# Dumps with the bytes, from which everything can be loaded when source and target are lost (docs/dumps.md).
[service.jobs.{_quoted(f"{policy}-backup")}]
command = {_quoted(dump)}
cron = "0 1 * * *"

[service.jobs.{_quoted(f"{policy}-expire-backups")}]
command = {_quoted(expire)}
cron = "0 5 * * *"
"""


def _warehouse(metastore: Metastore, option: str) -> str:
    """The place of the default database. Raises UsageError for a metastore that names none."""
    location = metastore.database("default").location
    if not location:
        raise UsageError("the metastore's default database has no location", hint=f"give the location with {option}")
    return location.removeprefix("file:")


def _table(config: MetastoreConfig) -> str:
    """Its keys that are not the defaults."""
    return "\n".join(
        f"{field.name} = {_inline(value) if isinstance(value, dict) else _quoted(value)}"
        for field in msgspec.structs.fields(config)
        if (value := getattr(config, field.name)) != field.default and value != {}
    )


def _inline(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_quoted(key)} = {_quoted(value)}" for key, value in values.items()) + "}"


def _quoted(value: Any) -> str:
    """Formats strings and lists of strings as TOML, which writes them as JSON does."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def _write(file: Path, text: str, *, replace: bool) -> None:
    """Writes the complete file or none, and never replaces one that was created concurrently. Raises Refused."""
    place = as_written(str(file))
    if replace:
        place.write_bytes(text.encode())
    elif not place.create_exclusive(text.encode()):
        raise Refused(f"{file} already exists", hint="edit it, or replace it with --overwrite")


# ---- demo and metastore ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    keep: Annotated[
        str | os.PathLike[str] | None,
        opt(
            "Run in this directory, new or empty, keep it, and serve a page at the end (not with --ingest or --json).",
            metavar="DIR",
        ),
    ] = None
    page: Annotated[bool, python_only("With `keep`: at the end, serve a page on both replicas until SIGINT.")] = False
    say: Annotated[Callable[[str], object], python_only("Called with the story, line by line.")] = print
    ingest: Annotated[bool, opt("Instead land a table of a PostgreSQL server, which the demo starts and stops.")] = (
        False
    )


@verb(DemoOptions)
def demo(options: DemoOptions) -> DemoReport:
    """Demonstrates replication on two real Hive metastores with real Spark tables, in about a minute and a half: a
    policy, its first run, changes without an event, the restore of a dropped partition, a verification of every byte.
    Starts two Sparks of its own. May run twice.

        replicator.demo(keep="/tmp/shop")

    Raises UsageError for a directory that is not empty, JavaError, ConfigError without a PostgreSQL for `ingest`, Error
    if a step does not give the expected result."""
    story = LandingStory if options.ingest else Story
    return tell(None if options.keep is None else Path(options.keep), options.say, story, options.page)


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
    """Starts the metastore of a directory, with its existing data, and returns when it answers. A running one is
    reported unchanged, so this may run twice.

        uri = replicator.metastore_start("/tmp/source").uri

    Raises MetastoreStartError with the log's last lines, JavaError, ChecksumMismatch; then no process remains. Raises
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
    """Stops the metastore of a directory; its data remains. May run twice.

        replicator.metastore_stop("/tmp/source")

    Raises FormatError if its state cannot be read."""
    directory = Path(options.directory)
    return MetastoreState.of(directory, None, "stopped" if embedded.stop(directory) else "not running")


@dataclass(frozen=True, kw_only=True)
class MetastoreStatusOptions(Options):
    directory: SandboxDirectory = field(kw_only=False)


@verb(MetastoreStatusOptions)
def metastore_status(options: MetastoreStatusOptions) -> MetastoreState:
    """Reports whether the metastore of a directory is running and answers. Changes nothing.

        replicator.metastore_status("/tmp/source").status

    Raises FormatError if its state cannot be read."""
    directory = Path(options.directory)
    return MetastoreState.of(directory, embedded.status(directory))
