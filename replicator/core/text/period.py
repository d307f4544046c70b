"""Periods: ISO 8601 as java.time reads it (`P3D`, `P2W`, `P1Y2M3DT4H5M6S`, `PT36H`), and what they add to a time. Pure.

Any letter case, signs, years and months before days before the time of day. Years, months and days are those of the
calendar, in the zone of the time that they are added to: the end of a month clamps (31 January + P1M = 28 February), a
day across the change to summer time has 23 hours.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_NUMBER = r"([-+]?[0-9]{1,9})"
_PERIOD = re.compile(
    rf"([-+]?)P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:(T)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}(?:[.,][0-9]{{0,9}})?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_FIRST, _LAST = 0, 253_402_300_799  # 1970, and the end of the year 9999


@dataclass(frozen=True)
class Period:
    """Months, days and seconds, added in this order. `text`: as it was written. Fractions of a second are cut off."""

    text: str
    months: int = 0
    days: int = 0
    seconds: int = 0

    @property
    def fixed(self) -> int | None:
        """Its length in seconds; None when it depends on the calendar."""
        return None if self.months else self.days * 86_400 + self.seconds

    @property
    def is_positive(self) -> bool:
        return self.end(0) > 0

    def after(self, moment: datetime) -> datetime:
        """`moment` (with a zone) and this much more. Beyond the calendar it is its last moment, or its first."""
        try:
            year, month = divmod(moment.year * 12 + moment.month - 1 + self.months, 12)
            day = min(moment.day, calendar.monthrange(year, month + 1)[1])
            local = moment.replace(year=year, month=month + 1, day=day) + timedelta(days=self.days)
            return (local.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(moment.tzinfo)
        except (ValueError, OverflowError, IndexError):
            forward = self.months * 31 + self.days + self.seconds // 86_400 > 0
            return (datetime.max if forward else datetime.min).replace(tzinfo=UTC)

    def end(self, moment: int) -> int:
        """The end of one that begins at a moment, in UTC; both in seconds since 1970, and none before that."""
        later = self.after(datetime.fromtimestamp(min(moment, _LAST), UTC))
        return min(max(int(later.timestamp()), _FIRST), _LAST)


def parse_period(text: str) -> Period:
    """Raises ValueError, with a text for a person, for all but an ISO 8601 period; blanks are not cut off."""
    match = _PERIOD.fullmatch(text)
    if match:
        sign, years, months, weeks, days, timed, hours, minutes, seconds = match.groups()
        date, time = (years, months, weeks, days), (hours, minutes, seconds)
        if any(date + time) and (not timed or any(time)):
            factor = -1 if sign == "-" else 1
            return Period(
                text,
                factor * (int(years or 0) * 12 + int(months or 0)),
                factor * (int(weeks or 0) * 7 + int(days or 0)),
                factor * (int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)),
            )
    raise ValueError(f"{text!r} is not an ISO 8601 period such as P3D, P2W or PT36H")
