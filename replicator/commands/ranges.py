"""The values that fields of options may have: checked for every caller, in the words of the command line."""

from __future__ import annotations

import functools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from replicator.core.text import LEAST_RATE, absolute_moment
from replicator.errors import UsageError


@dataclass(frozen=True)
class Between:
    """Both ends included; None: no end."""

    least: float
    most: float | None = None

    def __str__(self) -> str:
        return f"x>={self.least}" if self.most is None else f"{self.least}<=x<={self.most}"

    def complaint(self, value: Any, kind: type) -> str:
        if not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
            return f"{value!r} is not a valid {'integer' if kind is int else 'float'} range."
        fits = self.least <= value and (self.most is None or value <= self.most)
        return "" if fits else f"{kind(value)} is not in the range {self}."


Natural = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]
Jobs = Annotated[int, Between(1, 64)]
Port = Annotated[int, Between(1, 65535)]
Rows = Annotated[int, Between(0, 1_000_000)]
Bandwidth = Annotated[int, Between(LEAST_RATE)]
Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class Back:
    """A moment: an event id or time, or back from now, which `settled` makes a time."""

    def complaint(self, value: Any, kind: type) -> str:
        if not isinstance(value, str):
            return f"{value!r} is not a moment such as 2026-03-01T12:00:00Z or -1d"
        try:
            absolute_moment(value, time.time())
        except UsageError as error:
            return error.message
        return ""


Moment = Annotated[str, Back()]


def settled(options: Any) -> dict[str, str]:
    """Fields that are moments back from now, as times."""
    hints, now = _hints(cast(Hashable, type(options))), time.time()
    given = {name: getattr(options, name, None) for name, hint in hints.items() if Moment in _members(hint)}
    return {name: absolute_moment(text, now) for name, text in given.items() if isinstance(text, str)}


def check(options: Any) -> None:
    """Raises UsageError for a field whose annotation is a range, a choice (`Literal`), several of them, a duration or a
    moment, and whose value is none of these."""
    for name, hint in _hints(cast(Hashable, type(options))).items():
        value = getattr(options, name, None)
        complaint = "" if value is None else _complaint(value, hint)
        if complaint:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"Invalid value for '{option}': {complaint}", hint="see the command's --help")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if any(map(_restricts, _members(hint)))}


def _restricts(hint: Any) -> bool:
    of_restricted = get_origin(hint) is Sequence and any(map(_restricts, get_args(hint)))
    return get_origin(hint) in (Annotated, Literal) or hint is timedelta or of_restricted


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _complaint(value: Any, hint: Any) -> str:
    """What is wrong with a value; nothing where one member of a union takes it."""
    complaint = ""
    for each in _members(hint):
        if get_origin(each) is Literal:
            choices = ", ".join(map(repr, get_args(each)))
            found = "" if value in get_args(each) else f"{value!r} is not one of {choices}."
        elif get_origin(each) is Annotated:
            kind, between = get_args(each)
            found = between.complaint(value, kind)
        elif get_origin(each) is Sequence:
            items, (kind,) = [value] if isinstance(value, str) else value, get_args(each)
            found = next((wrong for item in items if (wrong := _complaint(item, kind))), "")
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
