"""Moments as users write them: `4711` (an event id), `@812` (a position of the log), a time in ISO 8601, and times back
from now, `-90m`, `-1d`, `yesterday`. Commands, the API and pages parse them here."""

from __future__ import annotations

import re
import time as clocks
from dataclasses import dataclass
from datetime import UTC, datetime

from replicator.core.text import parse_duration
from replicator.errors import UsageError

_POSITION = re.compile(r"@([0-9]{1,18})", re.ASCII)
_EVENT = re.compile(r"[0-9]{1,18}", re.ASCII)
EXAMPLES = "4711 (an event), @812 (a position), 2026-03-01T12:00:00Z, -1d or yesterday"


@dataclass(frozen=True)
class LogMoment:
    """A moment of a captured log: an event id, a time in seconds since the epoch, or a position; exactly one is set."""

    event: int | None = None
    time: int | None = None
    position: int | None = None

    def not_after(self, position: int, event: int, time: int) -> bool:
        """Returns True if the moment is not after a record."""
        mine = ((self.event, event), (self.time, time), (self.position, position))
        return all(limit is None or limit <= value for limit, value in mine)

    def not_before(self, position: int, event: int, time: int) -> bool:
        """Returns True if the moment is not before a record."""
        mine = ((self.event, event), (self.time, time), (self.position, position))
        return all(limit is None or value <= limit for limit, value in mine)


def parse_moment(text: str, option: str, *, dump: bool = False) -> LogMoment:
    """Parses a moment. Times without a zone are UTC. dump: the option also takes a dump, which is not parsed here.
    Raises UsageError, with the name of the option, for any other text."""
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
    """Parses a moment that must be a time. now: the time from which `-1d` counts back; None: the present. Returns
    seconds since the epoch. Raises UsageError, with the name of the option, for any other text."""
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
