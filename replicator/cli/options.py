"""Click's options, derived from the declarations of `core/option.py`, and the session of a command: configuration,
metastores, engines, progress."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import MISSING, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from replicator.cli.output import EVERY, lines_on_stdout, note
from replicator.core.config import Config, parse_settings
from replicator.core.logging import VARIABLE, ProgressFile, Watch, now_about, step
from replicator.core.option import OWN, Between, ByteCount, ByteRate, Declared, declared_fields
from replicator.core.runtime import Bars, Progress, Silent
from replicator.core.text import parse_duration, parse_rate, parse_size
from replicator.errors import UsageError

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
        """Calls a verb with the values of the command line: each option sets the field of its name, `--no-x` the field
        `x`."""
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
    """Returns the receiver of a command's progress: the service's file, the terminal, or none."""
    file = os.environ.get(VARIABLE)
    if file:
        return ProgressFile(Path(file))
    return Bars() if bars and sys.stderr.isatty() else Silent()


JSON_LINES = "replicator.json_lines"
"""Key in a context: the command has --json-lines."""

KNOWN = {"source", "target", "metastore", "keeper", "formats", "grants", "principals", "warehouse", "external_base"}
KNOWN |= {"cmroot", "source_cmroot", "target_cmroot"}
"""Options for which a policy's value precedes that of [defaults]."""


def is_policy(parameter: click.Parameter) -> bool:
    """Returns True if it is a policy of the configuration."""
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
# Not from the environment: the error report must know it before anything is parsed.
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
    help="Print one JSON object per line while running (steps, progress, events, warnings), and that of --json last.",
)


def json_options(command: F) -> F:
    """`--json` and `--json-lines`, of commands that may take long."""
    return json_option(_json_lines_option(command))


# ---- options of a verb ----------------------------------------------------------------------------------------------


def options_of(
    verb: Verb[..., Any, Any], *, engine: bool = False, positional: bool = True, without: Collection[str] = ()
) -> Callable[[F], F]:
    """Gives a command the options and arguments that the fields of a verb's options declare.

    engine: with --engine, --master and --spark-conf, too. positional: the policy is an argument where it is the only
    one, else the option --policy. without: fields that the command declares itself.
    """
    left_out = {*without, *(() if engine else ENGINE_FIELDS)}
    fields = [each for each in declared_fields(verb.options) if each.name not in left_out]
    others = [each for each in fields if each.option.positional and each.option.metavar != POLICY_ARGUMENT]

    former: dict[str, list[str]] = defaultdict(list)
    for old, new in verb.options.renamed.items():
        former[new].append(f"--{old.replace('_', '-')}")

    def decorate(command: F) -> F:
        for field in reversed(fields):
            if not field.option.python_only:
                command = _parameter(
                    field, former[field.name], positional=(positional and not others) or field in others
                )(command)
        return command

    return decorate


class VerbOption(click.Option):
    """An option of a verb. old: its former names, which work and warn, on the command line and in the environment.
    suffix: the end of its variable's name, if it is not the option's."""

    def __init__(self, *names: Any, old: Sequence[str] = (), suffix: str | None = None, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.old, self.suffix = tuple(old), suffix

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        named = self.suffix and ctx.auto_envvar_prefix
        given = os.environ.get(f"{ctx.auto_envvar_prefix}_{self.suffix}") if named else None
        return given or super().resolve_envvar_value(ctx)

    def _twins(self) -> list[click.Option]:
        """The option under each old name, where the parser and the environment put its value."""
        twins: list[click.Option] = []
        for name in self.old:
            twin = copy(self)
            twin.suffix = None
            twin.name, twin.opts, twin.secondary_opts = name.removeprefix("--").replace("-", "_"), [name], []
            twins.append(twin)
        return twins

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for twin in self._twins():
            click.Option.add_to_parser(twin, parser, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        for twin in self._twins():
            old, new = twin.opts[0], self.opts[0]
            if twin.name in opts:
                if source is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"{old} is the former name of {new}; give one of them", ctx=ctx)
                value, source = opts[twin.name], ParameterSource.COMMANDLINE
            elif source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
                continue
            elif (found := click.Option.value_from_envvar(twin, ctx)) is not None:
                value, source = found, ParameterSource.ENVIRONMENT
                old, new = (f"{ctx.auto_envvar_prefix}_{(each.name or '').upper()}" for each in (twin, self))
            else:
                continue
            if not ctx.resilient_parsing:
                note(f"warning: {old} of `{ctx.command_path}` is now {new}")
        return value, source


class PolicyArgument(click.Argument):
    """The argument of a command that needs a policy: without it, the only one that is configured. explicit: it must be
    given."""

    def __init__(self, *names: Any, explicit: bool = False, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.explicit = explicit

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        session = ctx.find_object(Session)
        if self.value_is_missing(value) and session is not None and not ctx.resilient_parsing:
            policies = session.config.policies
            if len(policies) != 1 or self.explicit:
                known = ", ".join(sorted(policies)) or "(none is configured)"
                raise UsageError("Missing argument 'POLICY'.", hint=f"policies of {session.config.looked_for}: {known}")
            value = next(iter(policies))
        return super().process_value(ctx, value)


def _parameter(field: Declared, old: Sequence[str], *, positional: bool) -> Callable[[F], F]:
    """Returns the decorator that adds a field's option or argument."""
    option, name = field.option, field.name
    required = field.default is MISSING if option.required is None else option.required
    several = any(get_origin(each) is Sequence for each in field.values)
    if option.positional and positional:
        more: dict[str, Any] = {"nargs": -1} if several else {} if required else {"default": field.default}
        if required and option.metavar == "POLICY":
            more |= {"cls": PolicyArgument, "explicit": option.explicit}
        return click.argument(name, metavar=option.metavar, required=required, type=_type(field), **more)
    flags = option.flags or (f"--{'no-' if field.default is True else ''}{name.replace('_', '-')}",)
    form: dict[str, Any] = {
        "help": option.help,
        "cls": VerbOption,
        "old": old,
        "suffix": option.envvar,
        "required": required,
    }
    if field.values == (bool,):
        negated = field.default is True and "/" not in flags[0]
        if "/" in flags[0]:
            form["default"] = field.default
        return click.option(*flags, f"no_{name}" if negated else name, is_flag=True, **form)
    default = field.default if option.default is OWN else option.default
    if default is not MISSING and default not in (None, (), {}):
        form |= {"default": _as_text(default), "show_default": default not in ("", 0)}
    metavar = "POLICY" if option.metavar == POLICY_ARGUMENT else option.metavar
    if len(field.values) == 1 and get_origin(field.values[0]) is Mapping:
        return settings_option(flags[0], name, **form)
    multiple = several and option.multiple
    return click.option(*flags, name, metavar=metavar, type=_type(field), multiple=multiple, **form)


def _as_text(default: Any) -> Any:
    """A default as the command line shows it: `10m`."""
    if not isinstance(default, timedelta):
        return list(default) if isinstance(default, tuple) else default
    seconds = int(default.total_seconds())
    unit, size = next((each for each in (("d", 86_400), ("h", 3600), ("m", 60)) if seconds % each[1] == 0), ("s", 1))
    return f"{seconds // size}{unit}"


def _type(field: Declared) -> click.ParamType | type | None:  # type: ignore[type-arg]  # not generic in click 8.2
    """Returns click's type of a field's values."""
    for each in field.values:
        kind = get_args(each)[0] if get_origin(each) is Sequence else each
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind), case_sensitive=False)
        if kind is timedelta:
            return Duration()
        if get_origin(kind) is Annotated:
            of, values = get_args(kind)
            if isinstance(values, ByteRate):
                return Rate()
            if isinstance(values, ByteCount):
                return Size()
            if isinstance(values, Between):
                least, most = values.least, values.most
                return click.IntRange(least, most) if of is int else click.FloatRange(least, most)  # type: ignore[arg-type]
        if kind is int and len(field.values) == 1:
            return click.INT
        if get_origin(kind) is os.PathLike:
            is_file = field.option.metavar == "FILE"
            return click.Path(exists=field.option.exists, file_okay=is_file, dir_okay=not is_file, path_type=Path)
    return None


POLICY_ARGUMENT = "[POLICY]"
ENGINE_FIELDS = ("engine", "master", "spark_conf")
"""Fields of every verb that are options only for verbs that may run on Spark."""
