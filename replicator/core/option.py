"""The declaration of options, each once: a field of a class of options has its values, its description, and its form on
the command line. `replicator/cli/options.py` derives click's options from it, `verb` Python's `help()`.

    @dataclass(frozen=True, kw_only=True)
    class DumpOptions(Options):
        out: Annotated[str, opt("The dump's directory, new or empty.", metavar="PLACE")]

The values are checked for every caller, with the messages of the command line. Also parses recovery points: `4711` (an
event id), `@812` (a position of the log), a time in ISO 8601, or a time before now, `-90m`, `-1d`, `yesterday`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import time
import time as clocks
from collections.abc import Hashable, Sequence
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from replicator.core.connections import MetastoreConfig
from replicator.core.text import LEAST_RATE, parse_duration
from replicator.errors import UsageError

# ---- recovery points -------------------------------------------------------------------------------------------------


_POSITION = re.compile(r"@([0-9]{1,18})", re.ASCII)
_EVENT = re.compile(r"[0-9]{1,18}", re.ASCII)
EXAMPLES = "4711 (an event), @812 (a position), 2026-03-01T12:00:00Z, -1d or yesterday"


@dataclass(frozen=True)
class LogMoment:
    """A recovery point of a captured log: an event id, a time in seconds since the epoch, or a position; exactly one is
    set."""

    event: int | None = None
    time: int | None = None
    position: int | None = None

    def not_after(self, position: int, event: int, time: int) -> bool:
        """Returns True if the recovery point is not after a record."""
        mine = ((self.event, event), (self.time, time), (self.position, position))
        return all(limit is None or limit <= value for limit, value in mine)

    def not_before(self, position: int, event: int, time: int) -> bool:
        """Returns True if the recovery point is not before a record."""
        mine = ((self.event, event), (self.time, time), (self.position, position))
        return all(limit is None or value <= limit for limit, value in mine)


def parse_moment(text: str, option: str, *, dump: bool = False) -> LogMoment:
    """Parses a recovery point. Times without a zone are UTC. dump: the option also takes a dump, which is not parsed
    here. Raises UsageError, with the name of the option, for any other text."""
    if match := _POSITION.fullmatch(text):
        return LogMoment(position=int(match[1]))
    if _EVENT.fullmatch(text):
        return LogMoment(event=int(text))
    try:
        return LogMoment(time=int(_seconds(absolute_moment(text, clocks.time()))))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text!r} is neither an event id, nor a time, nor a position{', nor a finished dump' * dump}",
            hint=f"e.g. {EXAMPLES}{', or the directory of an earlier dump' * dump}",
        ) from None


def parse_time(text: str, option: str, now: float | None = None) -> float:
    """Parses a recovery point that must be a time. now: the time from which `-1d` counts back; None: the present.
    Returns seconds since the epoch. Raises UsageError, with the name of the option, for any other text."""
    hint = "write a time such as 2026-03-01, 2026-03-01T12:00:00Z, -1d or yesterday"
    if _POSITION.fullmatch(text) or _EVENT.fullmatch(text):
        kind = "a position of the captured log" if text.startswith("@") else "an event id"
        raise UsageError(f"{option} {text!r} is {kind}, not a time", hint=hint)
    try:
        return _seconds(absolute_moment(text, clocks.time() if now is None else now))
    except UsageError as error:
        raise UsageError(f"{option} {error.message}", hint=error.hint) from None
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text!r} is not a time", hint=hint) from None


def absolute_moment(text: str, now: float) -> str:
    """Returns an ISO 8601 time (UTC) for a text relative to now (seconds since the epoch), `-90m`, `-1d` or
    `yesterday`; any other text is returned unchanged. Raises UsageError for an invalid duration."""
    back = "-1d" if text == "yesterday" else text
    if not back.startswith("-"):
        return text
    if back[1:].replace(".", "", 1).isdigit():
        raise UsageError(f"{text!r} has no unit", hint=f"e.g. {text}s, {text}m, {text}d: a time back from now")
    try:
        moment = datetime.fromtimestamp(now - parse_duration(back[1:]).total_seconds(), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r}: {error}", hint="e.g. -1d, -90m, yesterday") from None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _seconds(moment: str) -> float:
    """Returns seconds since 1970, as `cmroot.pins.seconds`, which the command line is too light to import."""
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# ---- declarations ----------------------------------------------------------------------------------------------------


OWN: Any = object()
"""A default of the command line that is the field's own."""


@dataclass(frozen=True)
class Option:
    """The form of a field on the command line, in docs/cli.md and in Python's `help()`.

    help: its description. flags: of the command line; none: `--name`, or `--no-name` if the field is True by default.
    default: of the command line, if it is not the field's. required: None: if the field has no default. multiple:
    False: given once, although the field takes several values. envvar: the end of its variable's name, if it is not the
    field's name. exists: a file that must exist. positional: an argument. python_only: not on the command line.
    explicit: a policy that must be given, even if only one is configured.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    default: Any = OWN
    required: bool | None = None
    multiple: bool = True
    envvar: str | None = None
    exists: bool = False
    positional: bool = False
    python_only: bool = False
    explicit: bool = False


def opt(help: str, *flags: str, **form: Any) -> Option:
    """Declares an option of the command line."""
    return Option(help, flags, **form)


def arg(help: str, metavar: str | None = None, **form: Any) -> Option:
    """Declares an argument of the command line."""
    return Option(help, (), metavar, positional=True, **form)


def python_only(help: str) -> Option:
    """Declares a field that only Python's functions have."""
    return Option(help, python_only=True)


@dataclass(frozen=True)
class Declared:
    """A field of a class of options. values: the members of its type, without None; default: MISSING if it has none."""

    name: str
    option: Option
    values: tuple[Any, ...]
    default: Any


def declared_fields(kind: type[Any]) -> tuple[Declared, ...]:
    """Returns the fields of a class of options: those of the class itself first, then those of its bases."""
    return _declared_fields(cast(Hashable, kind))


@functools.cache
def _declared_fields(kind: Any) -> tuple[Declared, ...]:
    hints, fields = get_type_hints(kind, include_extras=True), {each.name: each for each in dataclasses.fields(kind)}
    order = dict.fromkeys(name for one in kind.__mro__ for name in inspect.get_annotations(one))
    return tuple(_declared(fields[name], hints[name]) for name in order if name in fields)


def _declared(field: dataclasses.Field[Any], hint: Any) -> Declared:
    option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), Option(""))
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Declared(field.name, option, tuple(each for each in members(hint) if each is not NoneType), default)


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type itself; without its declaration as an option."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        kept = tuple(each for each in extras if not isinstance(each, Option))
        if len(kept) < len(extras):
            return members(Annotated[(kind, *kept)] if kept else kind)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


# ---- values ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """Numbers; both ends included; None: no end."""

    least: float
    most: float | None = None

    def __str__(self) -> str:
        return f"x>={self.least}" if self.most is None else f"{self.least}<=x<={self.most}"

    def complaint(self, value: Any, kind: type) -> str:
        """Returns what is wrong with a value, or ""."""
        if not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
            return f"{value!r} is not a valid {'integer' if kind is int else 'float'} range."
        fits = self.least <= value and (self.most is None or value <= self.most)
        return "" if fits else f"{kind(value)} is not in the range {self}."


@dataclass(frozen=True)
class ByteCount(Between):
    """A number of bytes; on the command line `10GiB`, too."""


@dataclass(frozen=True)
class ByteRate(Between):
    """A number of bytes a second; on the command line `50MB/s`, too."""


@dataclass(frozen=True)
class Back:
    """A recovery point: an event id, `@POSITION`, a time, or a duration before now, which `settled` resolves. timed:
    only a time."""

    timed: bool = False

    def complaint(self, value: Any, kind: type) -> str:
        if not isinstance(value, str):
            return f"{value!r} is not a time such as 2026-03-01T12:00:00Z or -1d"
        try:
            if self.timed:
                parse_time(value, "")
            elif value.startswith("@"):
                parse_moment(value, "")
            absolute_moment(value, time.time())
        except UsageError as error:
            return error.message.strip()
        return ""


Natural = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]
Jobs = Annotated[int, Between(1, 64)]
Port = Annotated[int, Between(1, 65535)]
Rows = Annotated[int, Between(0, 1_000_000)]
Bytes = Annotated[int, ByteCount(0)]
Bandwidth = Annotated[int, ByteRate(LEAST_RATE)]
Share = Annotated[float, Between(0, 1)]
Moment = Annotated[str, Back()]
Time = Annotated[str, Back(timed=True)]


def settled(options: Any) -> dict[str, str]:
    """Returns the fields that are durations back from now, as times."""
    moments, now = [each.name for each in _restricted_fields(options) if {Moment, Time} & {*each.values}], time.time()
    given = {name: getattr(options, name) for name in moments}
    return {name: absolute_moment(text, now) for name, text in given.items() if isinstance(text, str)}


def check(options: Any) -> None:
    """Raises UsageError for a field whose value does not fit its annotation: a range, a choice (`Literal`), several of
    them, a duration or a recovery point."""
    for field in _restricted_fields(options):
        value = getattr(options, field.name)
        complaint = "" if value is None else _complaint(value, field.values)
        if complaint:
            option = f"--{field.name.replace('_', '-')}"
            raise UsageError(f"Invalid value for '{option}': {complaint}", hint="see the command's --help")


def _restricted_fields(options: Any) -> tuple[Declared, ...]:
    """Returns the fields of options whose types restrict their values."""
    return _restricted(cast(Hashable, type(options)))


@functools.cache
def _restricted(kind: Any) -> tuple[Declared, ...]:
    return tuple(each for each in declared_fields(kind) if any(map(_restricts, each.values)))


def _restricts(hint: Any) -> bool:
    of_restricted = get_origin(hint) is Sequence and any(map(_restricts, get_args(hint)))
    return get_origin(hint) in (Annotated, Literal) or hint is timedelta or of_restricted


def _complaint(value: Any, kinds: Sequence[Any]) -> str:
    """Returns what is wrong with a value; "" if one of the types takes it."""
    complaint = ""
    for each in kinds:
        if get_origin(each) is Literal:
            choices = ", ".join(map(repr, get_args(each)))
            found = "" if value in get_args(each) else f"{value!r} is not one of {choices}."
        elif get_origin(each) is Annotated:
            kind, values = get_args(each)
            found = values.complaint(value, kind)
        elif get_origin(each) is Sequence:
            items = [value] if isinstance(value, str) else value
            found = next((wrong for item in items if (wrong := _complaint(item, members(get_args(each)[0])))), "")
        elif each is timedelta:
            fits = isinstance(value, timedelta) and value >= timedelta(0)
            found = "" if fits else f"{str(value)!r} is not a duration such as 10s, 5m or 1h"
        elif isinstance(each, type) and isinstance(value, each):
            return ""
        else:
            continue
        if not found:
            return ""
        complaint = complaint or found
    return complaint


Where = str | MetastoreConfig
"""A metastore: its name in the configuration, its URI, or a value of its own."""
