"""ISO 8601 periods as table properties give them: `P3D`, `P2W`, `P1Y2M3DT4H5M6S`, `PT36H`. Pure.

The grammar and the arithmetic are those of java.time, which owners of tables know from Beekeeper: any letter case,
signs, years and months before days before the time of day; the end of a month clamps (31 January + P1M = 28 February).
All times are UTC.
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
_LAST = 253_402_300_799  # the end of the year 9999


@dataclass(frozen=True)
class Period:
    """A calendar period and a duration, added in this order. `text`: as it was written. Fractions of a second are cut
    off: times here are whole seconds."""

    text: str
    months: int
    days: int
    seconds: int

    @property
    def fixed(self) -> int | None:
        """Its length in seconds; None when it depends on the calendar."""
        return None if self.months else self.days * 86_400 + self.seconds

    def after(self, moment: int) -> int:
        """The moment this much later; both in seconds since 1970. What lies after the year 9999 is its end."""
        try:
            start = datetime.fromtimestamp(moment, UTC)
            month = start.year * 12 + start.month - 1 + self.months
            year, month = divmod(month, 12)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            moved = start.replace(year=year, month=month + 1, day=day)
            return int((moved + timedelta(days=self.days, seconds=self.seconds)).timestamp())
        except (ValueError, OverflowError, calendar.IllegalMonthError):
            return _LAST if self.months * 31 + self.days + self.seconds // 86_400 > 0 else 0

    @property
    def is_positive(self) -> bool:
        return self.after(0) > 0


def parse_period(text: str) -> Period:
    """Raises ValueError, with a text for a person, for all but an ISO 8601 period; blanks are not cut off."""
    match = _PERIOD.fullmatch(text)
    if match:
        sign, years, months, weeks, days, timed, hours, minutes, seconds = match.groups()
        date, time = (years, months, weeks, days), (hours, minutes, seconds)
        if any(date + time) and (not timed or any(time)):
            factor = -1 if sign == "-" else 1
            return Period(
                text, factor * (int(years or 0) * 12 + int(months or 0)),
                factor * (int(weeks or 0) * 7 + int(days or 0)),
                factor * (int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)),
            )  # fmt: skip
    raise ValueError(f"{text!r} is not an ISO 8601 period such as P3D, P2W or PT36H")
