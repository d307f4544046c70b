"""Times of the service, as texts."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(moment: float | None) -> str | None:
    """ISO 8601 of seconds since 1970."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
