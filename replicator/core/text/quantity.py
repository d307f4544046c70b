"""Durations and sizes as people write them: `10s`, `5m`, `7d`; `500MB`, `10GiB`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_UNIT = {unit.lower(): factor for unit, factor in _BYTES.items()}


def parse_duration(text: str) -> timedelta:
    """`500ms`, `10s`, `5m`, `1.5h`, `7d`; a bare number is seconds. Raises ValueError with a text for a person."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip(), re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 10s, 5m or 1h")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration that can be counted") from None


def parse_size(text: str) -> int:
    """Bytes of `500MB` (10^6), `10GiB` (2^30); a bare number is bytes. Raises ValueError with a text for a person."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    factor = _UNIT.get((match[2] or "B").lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size such as 500MB or 10GiB")
    return int(float(match[1]) * factor)


LEAST_RATE = 100_000


def parse_rate(text: str) -> int:
    """Bytes a second of `50MB`, `50MB/s`. Raises ValueError with a text for a person, also for less than LEAST_RATE."""
    rate = parse_size(text.strip().removesuffix("/s"))
    if rate < LEAST_RATE:
        raise ValueError(f"{text!r} is less than 100kB a second")
    return rate


def duration_text(seconds: float) -> str:
    """For a person: `45 s`, `12 min`, `5.5 h`, `3.2 d`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def size_text(size: int) -> str:
    """Bytes for a person, in binary units: `512 B`, `1.5 GiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = min(max(size, 1).bit_length() - 1, 59) // 10
    return f"{size} B" if step == 0 else f"{size / 1024**step:.1f} {units[step]}"


def count_text(number: int, noun: str) -> str:
    """For a person: `1 file`, `12,345 files`, `2 entries`, `2 classes`. Of several words the last is counted."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def time_text(seconds: float | None) -> str | None:
    """Seconds since the epoch as UTC, ISO 8601."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
