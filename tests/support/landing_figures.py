"""Figures of ingestion, counted once more from jobs and their changes: without SQL, and without the product's code."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from replicator.ingestion.job_store import IngestionStore

CURRENT = ("queued", "running", "failed", "failed_user", "failed_type", "published")
OVER = ("cancelled", "done", "expired", "superseded")


def said(figures: Any) -> Any:
    """As JSON has them."""
    return msgspec.json.decode(msgspec.json.encode(figures))


def counted_landed(store: IngestionStore, since: float) -> dict[str, Any]:
    """As `IngestionStore.landed` says them."""
    changes = store.changes_after(0, 1_000_000)
    first: dict[int, Any] = {}
    for each in changes:
        if each.state == "published":
            first.setdefault(each.job, each)
    landed = [each for each in first.values() if each.at >= since]
    asked = _asked(store, changes)
    seconds = sorted(each.at - asked[each.job] for each in landed)
    days: dict[str, Counter[str]] = {}
    for each in landed:
        day = days.setdefault(datetime.fromtimestamp(each.at, UTC).date().isoformat(), Counter())
        day.update(jobs=1, rows=each.rows or 0, bytes=each.bytes or 0)
    over = Counter(each.state for each in changes if each.at >= since)
    number = len(seconds)
    return {
        "since": since,
        "published": number,
        "soon": sum(each <= 15 * 60 for each in seconds) / number if number else None,
        "late": sum(each <= 2.5 * 3600 for each in seconds) / number if number else None,
        **{f"p{each}": seconds[math.ceil(number * each / 100) - 1] if number else None for each in (50, 94, 99)},
        "ended": {state: over[state] for state in OVER if over[state]},
        "days": [{"day": day, **days[day]} for day in sorted(days, reverse=True)],
    }


def _asked(store: IngestionStore, changes: list[Any]) -> dict[int, float]:
    """When the first request was made that each job answers: its own, or of jobs whose place it took."""
    asked, state, waiting = dict[int, float](), dict[int, str](), dict[str, int]()
    left: tuple[str, float] | None = None  # of the job that a request has just taken the place of
    for each in changes:
        before = state.get(each.job, "")
        if each.state == "superseded" and before == "running":  # it failed while another one waited
            if each.error_kind in ("component", "lock"):
                asked[waiting[each.target]] = asked[each.job]
        elif each.state == "superseded":
            left = (each.target, asked[each.job]) if before in ("queued", "failed") else None
        elif each.state == "queued":
            own = store.job(each.job).queued
            asked[each.job] = left[1] if left and left[0] == each.target else own
            waiting[each.target], left = each.job, None
        state[each.job] = each.state
    return asked


def counted_queue(store: IngestionStore, now: float) -> dict[str, Any]:
    """As `IngestionStore.queue` says them."""
    jobs = [one for one in store.jobs(limit=10_000) if one.state not in OVER]
    assets = []
    for name in {one.asset for one in jobs if one.due is not None}:
        mine = [one for one in jobs if one.asset == name and one.due is not None]
        held = {one.target for one in mine if one.holder}
        free = [(one.target, one.due) for one in mine if not one.holder]
        waits = [now - due for target, due in free if due <= now and target not in held]
        assets.append(
            {
                "asset": name,
                "at_work": len(held),
                "waiting": len(waits),
                "waits_seconds": max(waits, default=None),
                "later": len(free) - len(waits),
            }
        )
    states = Counter(one.state for one in jobs)
    return {
        "states": {state: states[state] for state in CURRENT},
        "failing": dict(Counter(one.error_kind for one in jobs if one.error_kind)),
        "assets": sorted(assets, key=lambda one: (-(one["waits_seconds"] or 0), one["asset"])),
    }
