"""Options that several commands share, and the session they lead to: configuration, metastores, engines, progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from replicator.cli.logs import EVERY, lines_on_stdout
from replicator.core.config import Config, parse_settings
from replicator.core.logging import VARIABLE, ProgressFile, Watch, now_about, step
from replicator.core.runtime import JOBS, Bars, Progress, Silent
from replicator.core.text import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from replicator.commands.base import Verb

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


@dataclass(frozen=True)
class Session:
    """One run of the program: its configuration, and how it shows its work."""

    config: Config
    verbose: bool = False
    began: float = 0.0  # of the monotonic clock: when the program was started

    def call(self, verb: Verb[..., Any, R], **given: Any) -> R:
        """A verb with what the command line gave: each option is the field of its name, `--no-x` the field `x`."""
        if given.get("policy") is not None and any(map(is_policy, click.get_current_context().command.params)):
            given = {name: value for name, value in given.items() if name not in KNOWN or _is_given(name)}
        values = {
            name.removeprefix("no_"): not value if name.startswith("no_") else value for name, value in given.items()
        }
        context, policy = click.get_current_context(), given.get("policy")
        command, lines = context.command_path.partition(" ")[2], JSON_LINES in context.meta
        shown = _shown(bars=not lines)
        progress = Watch(shown, every=EVERY) if lines else Watch(shown)
        now_about(command=command, policy=policy)  # the line of its error has it, too
        with lines_on_stdout() if lines else nullcontext(), step(command):
            return verb(config=self.config, progress=progress, **values)


def _shown(*, bars: bool) -> Progress:
    """Where a command's progress goes: to the file of who looks on, to the terminal, or nowhere."""
    file = os.environ.get(VARIABLE)
    if file:
        return ProgressFile(Path(file))
    return Bars() if bars and sys.stderr.isatty() else Silent()


JSON_LINES = "replicator.json_lines"
"""In a context: its command was given --json-lines."""

KNOWN = {"source", "target", "metastore", "keeper", "formats", "warehouse", "external_base"}
KNOWN |= {"cmroot", "source_cmroot", "target_cmroot"}
"""What a policy says before [defaults] does."""


def is_policy(parameter: click.Parameter) -> bool:
    """Whether it is a policy of the configuration."""
    return (parameter.metavar or "").strip("[]") == "POLICY"


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.2
    """`10s`, `500ms`, `5m`, `1h`; a bare number is seconds."""

    name = "duration"

    def convert(
        self, value: str | timedelta, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class Size(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.2
    """`500MB`, `10GiB`; a bare number is bytes."""

    name = "size"

    def convert(self, value: str | int, parameter: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class Rate(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.2
    """`50MB` or `50MB/s`; a bare number is bytes."""

    name = "rate"

    def convert(self, value: str | int, parameter: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return parse_rate(str(value))
        except ValueError as error:
            self.fail(str(error), parameter, context)


def settings_option(name: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """A repeatable option of KEY=VALUE texts, which arrive as a mapping."""

    def settings(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        return parse_settings(texts, name)

    return click.option(name, *names, multiple=True, metavar="KEY=VALUE", callback=settings, **attributes)


pass_session = click.make_pass_decorator(Session)
# Not from the environment: what prints errors must know it before anything is parsed.
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    allow_from_autoenv=False,
    callback=lambda context, parameter, given: given or JSON_LINES in context.meta,
    help="Print exactly one JSON object.",
)


def _with_lines(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        context.meta[JSON_LINES] = True


_json_lines_option = click.option(
    "--json-lines",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_with_lines,
    help="Print a JSON object a line while running (steps, progress, events, warnings), and the one of --json last.",
)


def json_options(command: F) -> F:
    """`--json` and `--json-lines`, of commands that may take long."""
    return json_option(_json_lines_option(command))


key_file_option = click.option(
    "--key-file",
    metavar="FILE",
    help="File of signing keys, one per line: the first key signs dumps; dumps that "
    "none of the keys has signed are refused. Default: key_file of [dumps]; without keys, dumps are neither signed "
    "nor checked.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")

bandwidth_option = click.option(
    "--bandwidth",
    type=Rate(),
    help="Copy at most so many bytes a second, such as 50MB, all tasks together; default: that of the policy, else no "
    "limit.",
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=JOBS,
    show_default=True,
    help="Most tables committed concurrently; as many are as make it faster.",
)
policy_argument = click.argument("policy", metavar="POLICY")
of_policy_argument = click.argument("policy", metavar="[POLICY]", required=False)
of_policy_option = click.option(
    "--policy", metavar="POLICY", help="Policy that provides all metastores, roots and databases not given as options."
)
METASTORE = "thrift://host:port, several separated by commas for failover, or a name of the configuration file."
catalog_option = click.option("--catalog", metavar="NAME", help="The source's catalog (Hive 3 and newer).")
own_catalog_option = click.option("--catalog", metavar="NAME", help="The metastore's catalog (Hive 3 and newer).")
target_catalog_option = click.option(
    "--target-catalog", metavar="NAME", help="The target's catalog (Hive 3 and newer)."
)
source_option = click.option("--source", metavar="METASTORE", help=f"The source: {METASTORE}")
target_option = click.option("--target", metavar="METASTORE", help=f"The target: {METASTORE}")
cmroot_option = click.option("--cmroot", metavar="PLACE", help="The source's change-management root.")
root_option = click.option("--cmroot", metavar="PLACE", help="The change-management root.")
include_option = click.option(
    "--include", multiple=True, metavar="REGEX", help="Only tables whose full name matches; repeatable."
)
exclude_option = click.option(
    "--exclude", multiple=True, metavar="REGEX", help="Omit tables whose full name matches; repeatable."
)
rename_option = click.option(
    "--rename-db", multiple=True, metavar="A=B", help="Replicate source database A as B; repeatable."
)
map_option = click.option(
    "--map-location",
    multiple=True,
    metavar="A=B",
    help="Map paths below A at the source to B on the target; repeatable.",
)
db_option = click.option(
    "--db",
    multiple=True,
    metavar="NAME",
    help="Capture this database from now on; repeatable. Default: the "
    "databases that the root captures already; for a new root, all.",
)
all_databases_option = click.option(
    "--all-databases", is_flag=True, help="Capture every present database of the metastore from now on."
)
formats_option = click.option(
    "--formats",
    type=click.Choice(["supported", "as-they-are"]),
    default="supported",
    show_default=True,
    help="as-they-are: include tables in formats whose metadata names files by absolute path. Correct only if both "
    "sides have the same paths.",
)
keeper_option = click.option(
    "--keeper",
    type=click.Choice(["auto", "link", "version", "snapshot", "native", "copy", "none"]),
    default="auto",
    show_default=True,
    help="Method of keeping bytes; auto: for each store the first that works of link, version, snapshot (HDFS), copy. "
    "native: the metastore's own change manager keeps what it drops (HDFS).",
)
no_scan_option = click.option(
    "--no-scan", is_flag=True, help="Skip the scan for changes without an event (most of Spark's writes)."
)
scan_time_option = click.option(
    "--scan-time",
    type=Duration(),
    help="Time for that scan, such as 1s: of very many tables it looks at some, and the next one at those after them. "
    "New and dropped tables are always found. Default: all.",
)
empty_option = click.option(
    "--empty",
    multiple=True,
    metavar="OBJECT",
    help="Declare a table (db.table) or partition (db.table/day=1) "
    "without a directory empty; repeatable. Otherwise its files stay on replicas.",
)
deep_option = click.option(
    "--deep", is_flag=True, help="Also compare each partition, and all constraints, with the metastore."
)


master_option = click.option(
    "--master", metavar="URL", help="Spark master; default: Spark's configuration, or local[*]."
)
spark_conf_option = settings_option("--spark-conf", help="Spark setting; repeatable.")


def engine_options(command: F) -> F:
    """`--engine`, `--master` and `--spark-conf`: fields of every `Options`."""
    engine_option = click.option(
        "--engine",
        type=click.Choice(["auto", "local", "spark"]),
        default="auto",
        show_default=True,
        help="Executor of listing, hashing and copying: local threads, Spark, or (auto) either by the amount of work.",
    )
    return engine_option(master_option(spark_conf_option(command)))
