"""Figures of the ingestion store: who waits for a slot and for how long, how soon requests are published, what landed.

What is asked of all jobs is asked of the open ones, by their indexes. What is asked of a time is asked of its changes,
whose first one is found by halving: no query reads more than the jobs that are open, or the changes of that time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, and_, case, cast, exists, func, select

from replicator.core.model import Value
from replicator.ingestion.ingestion_job import following
from replicator.ingestion.job_queries import IS_FOLLOWING, IS_OPEN
from replicator.ingestion.schema import change, job

CURRENT = ("queued", "running", "failed", "failed_user", "failed_type", "published")
"""States of jobs that are not over."""

OVER = ("done", "superseded", "cancelled", "expired")

SOON, LATE = 900.0, 9000.0
"""Seconds from a request to readers: 94 of 100 shall come within the first, 99 within the second."""

PERCENTILES = (50, 94, 99)
DAY = 86_400.0


class AssetQueue(Value, frozen=True, omit_defaults=False):
    """Open jobs of an asset. at_work: that have a slot. waiting: that are due and have none, though they could;
    waits_seconds: since the one that waits longest is due, or the first whose place it took; None: none waits. later:
    that are due later, after a failure or when the job at work on the same table is over."""

    asset: str
    at_work: int
    waiting: int
    waits_seconds: float | None
    later: int


class QueueFigures(Value, frozen=True, omit_defaults=False):
    """states: jobs that are not over, by state, each with its number. failing: of them those with an error, by its
    kind. assets: that have open jobs; who waits longest first."""

    states: dict[str, int]
    failing: dict[str, int]
    assets: tuple[AssetQueue, ...]

    @property
    def at_work(self) -> int:
        return sum(each.at_work for each in self.assets)

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self.assets)

    @property
    def waits_seconds(self) -> float | None:
        """Of the job that waits longest for a slot."""
        return max((each.waits_seconds for each in self.assets if each.waits_seconds is not None), default=None)


class LandedDay(Value, frozen=True, omit_defaults=False):
    """What was published on a day in UTC, "2026-11-25"."""

    day: str
    jobs: int
    rows: int
    bytes: int


class LandingFigures(Value, frozen=True, omit_defaults=False):
    """Jobs that were published since a time, in seconds since 1970. soon, late: which share of them within 15 minutes,
    and within 2.5 hours of their request, or of the first one whose place it took. p50, p94, p99: seconds within which
    so many of 100 were (the nearest rank). None: none was published. ended: jobs that ended meanwhile, by state. days:
    newest first, without empty ones."""

    since: float
    published: int
    soon: float | None
    late: float | None
    p50: float | None
    p94: float | None
    p99: float | None
    ended: dict[str, int]
    days: tuple[LandedDay, ...]


def find_queue(connection: Connection, now: float) -> QueueFigures:
    """Jobs that are not over, as they are now."""
    states = _numbers(connection, job.c.state, job.c.state.in_(CURRENT))
    failed = (job.c.state.in_(CURRENT), job.c.error_kind != "")
    failing = _numbers(connection, job.c.error_kind, *failed)
    held = job.c.holder != ""
    waits = and_(~held, job.c.due <= now, ~IS_FOLLOWING)
    per_asset = select(
        job.c.asset, _sum(held), _sum(waits), now - func.min(case((waits, job.c.due))), _sum(and_(~held, ~waits))
    )
    rows = connection.execute(per_asset.where(IS_OPEN).group_by(job.c.asset))
    assets = sorted((AssetQueue(*row) for row in rows), key=lambda one: (-(one.waits_seconds or 0), one.asset))
    return QueueFigures({state: states.get(state, 0) for state in CURRENT}, failing, tuple(assets))


def find_landed(connection: Connection, since: float) -> LandingFigures:
    """What was published and ended since a time, of all changes that are there when it begins: so its numbers are of
    one moment, whatever the database's isolation is."""
    last = int(connection.execute(select(func.max(change.c.id))).scalar() or 0)
    meanwhile = change.c.id.between(_first_change(connection, since, last), last) & (change.c.at >= since)
    landed = _landed(meanwhile).subquery("landed")
    rank = func.row_number().over(order_by=landed.c.seconds)
    one = select(landed.c.seconds, rank.label("rank"), func.count().over().label("n")).subquery("ranked")
    ranks = [(one.c.n * each + 99) // 100 for each in PERCENTILES]
    found = select(one.c.rank, one.c.n, one.c.seconds).where(one.c.rank.in_(ranks))
    by_rank = {rank: (n, seconds) for rank, n, seconds in connection.execute(found)}
    published = next((int(n) for n, _ in by_rank.values()), 0)
    p50, p94, p99 = (by_rank[(published * each + 99) // 100][1] if published else None for each in PERCENTILES)
    counted = select(_sum(landed.c.seconds <= SOON), _sum(landed.c.seconds <= LATE))
    soon, late = (number / published if published else None for number in connection.execute(counted).one())
    ended = _numbers(connection, change.c.state, meanwhile, change.c.state.in_(OVER))
    return LandingFigures(since, published, soon, late, p50, p94, p99, ended, _days(connection, landed))


def _landed(meanwhile: ColumnElement[bool]) -> Select[Any]:
    """Of each job that was published by one of these changes, the change that made it so: one that is tried again
    afterwards has more changes in that state."""
    earlier = change.alias("earlier")
    same = (earlier.c.job == change.c.job, earlier.c.id < change.c.id, earlier.c.state == "published")
    made = (change.c.state == "published", change.c.step == following("publish"), ~exists().where(*same))
    took = (change.c.at - func.coalesce(job.c.waits_since, job.c.queued)).label("seconds")
    found = select(change.c.at, change.c.rows, change.c.bytes, took).join(job, job.c.id == change.c.job)
    return found.where(meanwhile, *made)


def _days(connection: Connection, landed: Any) -> tuple[LandedDay, ...]:
    whole = cast(landed.c.at / DAY, BigInteger)  # SQLite cuts off, PostgreSQL rounds
    day = case((whole > landed.c.at / DAY, whole - 1), else_=whole).label("day")
    summed = [func.coalesce(func.sum(column), 0) for column in (landed.c.rows, landed.c.bytes)]
    query = select(day, func.count(), *summed).group_by(day).order_by(day.desc())
    return tuple(
        LandedDay(datetime.fromtimestamp(number * DAY, UTC).date().isoformat(), jobs, int(rows), int(size))
        for number, jobs, rows, size in connection.execute(query)
    )


def _first_change(connection: Connection, since: float, last: int) -> int:
    """A change before which none was made since then: changes are numbered in the order in which they are made. A clock
    that was set back may leave out some, never add one."""
    low, high = 0, last + 1
    while low < high:
        middle = (low + high) // 2
        query = select(change.c.id, change.c.at).where(change.c.id >= middle).order_by(change.c.id).limit(1)
        found = connection.execute(query).first()
        if found is None or found.at >= since:
            high = middle
        else:
            low = int(found.id) + 1
    return low


def _numbers(connection: Connection, by: ColumnElement[str], *where: ColumnElement[bool]) -> dict[str, int]:
    query = select(by, func.count()).where(*where).group_by(by).order_by(by)
    return {str(name): int(number) for name, number in connection.execute(query)}


def _sum(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)
