"""Lookbacks as policies write them (`7d`, `1y2M`, `P30D`), and what they add to a time. Pure.

Years, months and days are those of the calendar, in the version's own zone: a day across the change to summer time has
23 hours, and 31 January with a month more is the last of February.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_SHORT = re.compile(r"(?:(\d+)y)?(?:(\d+)M)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?", re.ASCII)
_ISO = re.compile(r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.ASCII)
_LONGEST = 10_000 * 12  # months: what a date can hold


@dataclass(frozen=True)
class Lookback:
    """A positive length of time. `text`: as it was written."""

    text: str
    months: int = 0
    days: int = 0
    seconds: int = 0

    @property
    def is_zero(self) -> bool:
        return not (self.months or self.days or self.seconds)

    def after(self, moment: datetime) -> datetime:
        """`moment` (with a zone) and this much more; the last moment there is when that is beyond it."""
        try:
            year, month = divmod(moment.year * 12 + moment.month - 1 + self.months, 12)
            day = min(moment.day, calendar.monthrange(year, month + 1)[1])
            local = moment.replace(year=year, month=month + 1, day=day) + timedelta(days=self.days)
            return (local.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(moment.tzinfo)
        except (ValueError, OverflowError, IndexError):
            return datetime.max.replace(tzinfo=UTC)


def parse_lookback(text: str) -> Lookback:
    """`<n>y<n>M<n>d<n>h`, in this order, `D`, `H` and `Y` too; or ISO 8601 (`P7D`, `PT90M`). Raises ValueError, with a
    text for a person, for anything else, also for zero, nothing and less: each would select all there is."""
    found = _iso(text) if text.startswith("P") else _short(text)
    if found.is_zero:
        raise ValueError(f"{text!r} is no time at all, and everything would be older")
    if found.months > _LONGEST or found.days > _LONGEST * 31 or found.seconds > _LONGEST * 31 * 86400:
        raise ValueError(f"{text!r} is longer than any time that can be counted")
    return found


def _short(text: str) -> Lookback:
    spelled = text.replace("Y", "y").replace("D", "d").replace("H", "h")
    match = _SHORT.fullmatch(spelled) if spelled else None
    if match is None:
        raise ValueError(f"{text!r} is not a lookback such as 7d, 12h, 3M or 1y6M")
    if match[5]:
        raise ValueError(
            f"{text!r}: m is minutes to some releases and months to others: write PT{match[5]}M or {match[5]}M"
        )
    years, months, days, hours = (int(group or 0) for group in match.groups()[:4])
    return Lookback(text, years * 12 + months, days, hours * 3600)


def _iso(text: str) -> Lookback:
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as P7D or PT12H")
    years, months, weeks, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return Lookback(text, years * 12 + months, weeks * 7 + days, hours * 3600 + minutes * 60 + seconds)


def fixed(lookback: Lookback) -> Lookback:
    """Months and years as the length they have from 1970-01-01 on, as the older policies count: P2M is 59 days."""
    start = datetime(1970, 1, 1, tzinfo=UTC)
    length = Lookback("", lookback.months).after(start) - start
    return Lookback(lookback.text, 0, 0, int(length.total_seconds()) + lookback.days * 86400 + lookback.seconds)
