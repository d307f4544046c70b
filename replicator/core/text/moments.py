"""Moments as people write them: a time, or back from now, `-90m`, `-1d`, `yesterday`."""

from __future__ import annotations

from datetime import UTC, datetime

from replicator.core.text.quantity import parse_duration
from replicator.errors import UsageError


def absolute_moment(text: str, now: float) -> str:
    """An ISO 8601 time (UTC) for a moment that counts back from now (seconds since the epoch), `-90m`, `-1d` or
    `yesterday`; any other text as it is. Raises UsageError for a duration that is none."""
    back = "-1d" if text == "yesterday" else text
    if not back.startswith("-"):
        return text
    try:
        moment = datetime.fromtimestamp(now - parse_duration(back[1:]).total_seconds(), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r}: {error}", hint="e.g. -1d, -90m, yesterday") from None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
