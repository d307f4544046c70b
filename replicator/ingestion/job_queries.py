"""Questions to the ingestion store. Changes nothing."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Connection, Select, and_, case, cast, exists, func, or_, select, text

from replicator.core.model import Value
from replicator.errors import ObjectNotFound
from replicator.ingestion.ingestion_request import (
    LEFT,
    UNPUBLISHED_STEPS,
    Asset,
    IngestionJob,
    JobChange,
    JobDetail,
    JobFilter,
    Request,
    following,
    is_text,
)
from replicator.ingestion.job_rows import places_of, to_asset, to_job
from replicator.ingestion.schema import OPEN, asset, change, job

# ---- fairness --------------------------------------------------------------------------------------------------------
# Which job is next: first come, first served, and no asset has more than its share. Pure.


@dataclass(frozen=True)
class Candidate:
    """A job that is due and that nobody works on. place: in the queue. held: it still has a slot, of a holder whose
    lease has ended."""

    job: int
    place: int
    asset: str
    held: bool = False


def most(slots: int, share: float) -> int:
    """Jobs at a time that one asset may have, also when it is alone."""
    return max(1, math.floor(slots * share + 1e-9))  # 100 * 0.29 is a little less than 29


def pick(candidates: Iterable[Candidate], at_work: Mapping[str, int], slots: int, share: float) -> Candidate | None:
    """The candidate to begin with now. at_work: jobs that have a slot, by asset, with those whose lease has ended.

    Slots whose holder is gone are taken over first: they are used already, so nothing waits longer for it. No job waits
    for ever: only those with an earlier place, of which there are finitely many, and jobs at work go before it."""
    total, limit = sum(at_work.values()), most(slots, share)

    def fits(one: Candidate) -> bool:
        return total - one.held < slots and at_work.get(one.asset, 0) - one.held < limit

    return min(filter(fits, candidates), key=lambda one: (not one.held, one.place), default=None)


# ---- job queries -----------------------------------------------------------------------------------------------------


IS_OPEN = text(f"ingestion_job.{OPEN}")
OTHER_IS_OPEN = text(f"other.{OPEN}")
"""Written out, so that SQLite sees that an index has all such jobs."""

_other = job.alias("other")
IS_FOLLOWING = exists().where(OTHER_IS_OPEN, _other.c.identity == job.c.identity, _other.c.holder != "")
"""Whether one of the same identity has a slot."""


def find_asset(connection: Connection, name: str) -> Asset:
    """Raises ObjectNotFound, whose hint has names like it."""
    found = select(asset).where(asset.c.name == name)
    row = connection.execute(found).mappings().first() if is_text(name) else None
    if row is not None:
        return to_asset(dict(row))
    names = [str(each) for each in connection.execute(select(asset.c.name)).scalars()]
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`replicator asset ls` lists assets"
    raise ObjectNotFound(f"there is no asset {name!r}", hint=hint)


def find_row(connection: Connection, id: int) -> dict[str, Any]:
    """Raises ObjectNotFound."""
    row = connection.execute(select(job).where(job.c.id == id)).mappings().first()
    if row is None:
        raise ObjectNotFound(f"there is no job {id}", hint="`replicator ingest ls` lists jobs")
    return dict(row)


def find_by(connection: Connection, condition: ColumnElement[bool]) -> dict[str, Any] | None:
    """The one job that a unique column tells."""
    row = connection.execute(select(job).where(condition)).mappings().first()
    return None if row is None else dict(row)


def find_jobs(connection: Connection, wanted: JobFilter, before: int, limit: int) -> list[IngestionJob]:
    """Newest first. before: a job: those that are older; 0: all."""
    if not all(map(is_text, (wanted.asset, wanted.source, wanted.target, wanted.requester))):
        return []
    query = select(job).order_by(job.c.id.desc()).limit(limit)
    if wanted.asset:
        query = query.where(job.c.asset == wanted.asset)
    if wanted.source:
        query = query.where(job.c.source.startswith(f"{wanted.source}:", autoescape=True))
    if wanted.target:
        query = query.where(job.c.target == wanted.target.lower())
    if wanted.requester:
        query = query.where(job.c.requester == wanted.requester)
    if wanted.states:
        query = query.where(job.c.state.in_(wanted.states))
    if before:
        query = query.where(job.c.id < before)
    return [to_job(dict(row)) for row in connection.execute(query).mappings()]


def find_facts(connection: Connection, target: str, identity: str) -> dict[str, Any]:
    """Of the newest job that was published, and its number as `job`; empty without one."""
    mine = (job.c.target == target, job.c.identity == identity, job.c.event_id.is_not(None))
    row = connection.execute(select(job.c.id, job.c.facts).where(*mine).order_by(job.c.id.desc()).limit(1)).first()
    return {**msgspec.json.decode(row.facts), "job": row.id} if row else {}


def find_published(connection: Connection, after: str, limit: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each target the newest published job, with its facts, in the order of targets. after: a target."""
    newest = select(func.max(job.c.id)).where(job.c.event_id.is_not(None), job.c.target > after).group_by(job.c.target)
    ids = connection.execute(newest.order_by(job.c.target).limit(limit)).scalars().all()
    query = select(job).where(job.c.id.in_(ids)).order_by(job.c.target)
    return [(dict(row), msgspec.json.decode(row["facts"])) for row in connection.execute(query).mappings()]


def find_published_of(connection: Connection, target: str, since: int) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """Published jobs of a landing table, from one on, with the time of their end or begin, and their facts."""
    mine = (job.c.event_id.is_not(None), job.c.target == target, job.c.id >= since)
    at = func.coalesce(job.c.ended, job.c.begun, 0.0)
    for id, when, facts in connection.execute(select(job.c.id, at, job.c.facts).where(*mine).order_by(job.c.id)):
        yield id, when, msgspec.json.decode(facts)


def may_have_published(connection: Connection, target: str, after: int) -> bool:
    """See `JobAnswers.may_have_published`. A job at an earlier step has changed no table."""
    may = or_(job.c.event_id.is_not(None), job.c.step == "publish")
    return bool(connection.execute(select(exists().where(job.c.target == target, job.c.id > after, may))).scalar())


def find_kept(connection: Connection, id: int) -> frozenset[str] | None:
    """See `IngestionStore.kept`."""
    row = connection.execute(select(job.c.state, job.c.step, job.c.event_id, job.c.facts).where(job.c.id == id)).first()
    if row is not None and row.state in LEFT and row.step in UNPUBLISHED_STEPS and row.event_id is None:
        return frozenset()
    return frozenset(places_of(msgspec.json.decode(row.facts))) if row is not None and row.state == "done" else None


def is_in_doubt(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Whether a job may have been published without a word of it, while another one waits, which would take its place:
    then it continues at once."""
    waits = select(job.c.id).where(job.c.slot == f"{row['identity']}:waiting")
    return row["step"] == "publish" and connection.execute(waits).first() is not None


def find_changes(connection: Connection, after: int, limit: int) -> list[JobChange]:
    """Oldest first."""
    query = select(change).where(change.c.id > after).order_by(change.c.id).limit(limit)
    return [JobChange(**row._mapping) for row in connection.execute(query)]


def find_detail(connection: Connection, id: int) -> JobDetail:
    """Raises ObjectNotFound."""
    row = find_row(connection, id)
    query = select(change).where(change.c.job == id).order_by(change.c.id)
    return JobDetail(
        job=to_job(row),
        request=msgspec.json.decode(row["request"], type=Request),
        facts=msgspec.json.decode(row["facts"]),
        error_detail=row["error_detail"],
        changes=tuple(JobChange(**each._mapping) for each in connection.execute(query)),
    )


def position(connection: Connection, place: int) -> int:
    """How many jobs are waiting up to a place in the queue."""
    ahead = (IS_OPEN, job.c.holder == "", job.c.state != "published", job.c.place <= place)
    return int(connection.execute(select(func.count(job.c.id)).where(*ahead)).scalar_one())


def taken_by_another(connection: Connection, target: str, identity: str) -> str | None:
    """The source of a job of another identity that has the same landing table."""
    gone = ("superseded", "cancelled", "expired")
    others = (job.c.target == target, job.c.identity != identity, job.c.state.not_in(gone))
    return connection.execute(select(job.c.source).where(*others).limit(1)).scalar()


def at_work(connection: Connection) -> dict[str, int]:
    """Jobs that have a slot, by asset."""
    query = select(job.c.asset, func.count(job.c.id)).where(IS_OPEN, job.c.holder != "").group_by(job.c.asset)
    return {str(name): int(number) for name, number in connection.execute(query)}


def candidates(connection: Connection, now: float) -> Sequence[Candidate]:
    """Of each asset the first job that is due, unless one of the same identity has a slot; and all whose lease has
    ended."""
    lost = select(job.c.id, job.c.place, job.c.asset).where(IS_OPEN, job.c.holder != "", job.c.lease <= now)
    free = (IS_OPEN, job.c.holder == "", job.c.due <= now)
    heads = select(job.c.asset, func.min(job.c.place).label("place")).where(*free, ~IS_FOLLOWING).group_by(job.c.asset)
    first = heads.subquery("first")
    both = (job.c.asset == first.c.asset) & (job.c.place == first.c.place)
    query = select(job.c.id, job.c.place, job.c.asset).join(first, both).where(*free)
    found = [Candidate(*row, held=True) for row in connection.execute(lost)]
    return found + [Candidate(*row) for row in connection.execute(query)]


# ---- job figures -----------------------------------------------------------------------------------------------------
# Figures of the ingestion store: who waits for a slot and for how long, how soon requests are published, what landed.
#
# What is asked of all jobs is asked of the open ones, by their indexes. What is asked of a time is asked of its
# changes, whose first one is found by halving: no query reads more than the jobs that are open, or the changes of that
# time.


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
