"""Periods as policies write them: `7d`, `1y2M`, or ISO 8601 (`P30D`). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from replicator.core.text.period import Period, parse_period

_SHORT = re.compile(r"(?:(\d+)y)?(?:(\d+)M)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?", re.ASCII)
_LONGEST = 10_000 * 12  # months: what a date can hold


def parse_lookback(text: str) -> Period:
    """`<n>y<n>M<n>d<n>h`, in this order, `D`, `H` and `Y` too; or ISO 8601 in capitals (`P7D`, `PT90M`). Raises
    ValueError, with a text for a person, for anything else, also for zero, nothing and less: each would select all
    there is."""
    found = parse_period(text) if text.startswith("P") and text.isupper() else _short(text)
    if min(found.months, found.days, found.seconds) < 0 or not (found.months or found.days or found.seconds):
        raise ValueError(f"{text!r} is no time at all, and everything would be older")
    if found.months > _LONGEST or found.days > _LONGEST * 31 or found.seconds > _LONGEST * 31 * 86400:
        raise ValueError(f"{text!r} is longer than any time that can be counted")
    return found


def _short(text: str) -> Period:
    spelled = text.replace("Y", "y").replace("D", "d").replace("H", "h")
    match = _SHORT.fullmatch(spelled) if spelled else None
    if match is None:
        raise ValueError(f"{text!r} is not a lookback such as 7d, 12h, 3M or 1y6M")
    if match[5]:
        raise ValueError(
            f"{text!r}: m is minutes to some releases and months to others: write PT{match[5]}M or {match[5]}M"
        )
    years, months, days, hours = (int(group or 0) for group in match.groups()[:4])
    return Period(text, years * 12 + months, days, hours * 3600)


def fixed(lookback: Period) -> Period:
    """Months and years as the length they have from 1970-01-01 on, as the older policies count: P2M is 59 days."""
    start = datetime(1970, 1, 1, tzinfo=UTC)
    length = Period("", lookback.months).after(start) - start
    return Period(lookback.text, 0, 0, int(length.total_seconds()) + lookback.days * 86400 + lookback.seconds)
