"""Queries of the ingestion store. Changes nothing."""

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
    places_of,
)
from replicator.ingestion.schema import OPEN, asset, change, job, to_asset, to_job

# ---- fairness --------------------------------------------------------------------------------------------------------
# Selection of the next job: first come, first served, and no asset exceeds its share of slots. Pure.


@dataclass(frozen=True)
class Candidate:
    """A job that may be claimed now. place: in the queue. held: it still occupies a slot; its holder's lease has
    expired."""

    job: int
    place: int
    asset: str
    held: bool = False


def most(slots: int, share: float) -> int:
    """Returns how many slots one asset may occupy at a time, even if no other asset has jobs."""
    return max(1, math.floor(slots * share + 1e-9))  # 100 * 0.29 is a little less than 29


def pick(candidates: Iterable[Candidate], at_work: Mapping[str, int], slots: int, share: float) -> Candidate | None:
    """Returns the candidate to start now, or None. at_work: jobs that occupy a slot, by asset, even if their lease has
    expired.

    Slots whose holder is gone are taken over first: they are occupied already, so no other job waits longer because of
    it. There is no starvation: only running jobs and the finitely many jobs with an earlier place precede a job."""
    total, limit = sum(at_work.values()), most(slots, share)

    def fits(one: Candidate) -> bool:
        return total - one.held < slots and at_work.get(one.asset, 0) - one.held < limit

    return min(filter(fits, candidates), key=lambda one: (not one.held, one.place), default=None)


# ---- job queries -----------------------------------------------------------------------------------------------------


IS_OPEN = text(f"ingestion_job.{OPEN}")
OTHER_IS_OPEN = text(f"other.{OPEN}")
"""Written as a literal condition, so that SQLite recognises that a partial index covers these jobs."""

_other = job.alias("other")
_runs = or_(_other.c.holder != "", and_(_other.c.state == "running", _other.c.id != job.c.id))
IS_FOLLOWING = exists().where(OTHER_IS_OPEN, _other.c.identity == job.c.identity, _runs)
"""True if a job of the same identity occupies a slot, or resumes before this one."""


def find_asset(connection: Connection, name: str) -> Asset:
    """Raises ObjectNotFound, whose hint suggests similar names."""
    found = select(asset).where(asset.c.name == name)
    row = connection.execute(found).mappings().first() if is_text(name) else None
    if row is not None:
        return to_asset(dict(row))
    names = [str(each) for each in connection.execute(select(asset.c.name)).scalars()]
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`replicator asset ls` lists assets"
    raise ObjectNotFound(f"asset {name!r} does not exist", hint=hint)


def find_row(connection: Connection, id: int) -> dict[str, Any]:
    """Raises ObjectNotFound."""
    row = connection.execute(select(job).where(job.c.id == id)).mappings().first()
    if row is None:
        raise ObjectNotFound(f"job {id} does not exist", hint="`replicator ingest ls` lists jobs")
    return dict(row)


def find_by(connection: Connection, condition: ColumnElement[bool]) -> dict[str, Any] | None:
    """Returns the only job that meets a condition on a unique column."""
    row = connection.execute(select(job).where(condition)).mappings().first()
    return None if row is None else dict(row)


def find_jobs(connection: Connection, wanted: JobFilter, before: int, limit: int) -> list[IngestionJob]:
    """Returns jobs, newest first. before: only jobs older than this one; 0: all."""
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
    """Returns the facts of the newest published job, and its number as `job`; empty if none exists."""
    mine = (job.c.target == target, job.c.identity == identity, job.c.event_id.is_not(None))
    row = connection.execute(select(job.c.id, job.c.facts).where(*mine).order_by(job.c.id.desc()).limit(1)).first()
    return {**msgspec.json.decode(row.facts), "job": row.id} if row else {}


def find_published(
    connection: Connection, after: str, limit: int, asset: str = ""
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the newest published job of each target (of an asset), with its facts, in the order of targets. after: a
    target."""
    mine = (job.c.event_id.is_not(None), job.c.target > after, *([job.c.asset == asset] if asset else []))
    newest = select(func.max(job.c.id)).where(*mine).group_by(job.c.target)
    ids = connection.execute(newest.order_by(job.c.target).limit(limit)).scalars().all()
    query = select(job).where(job.c.id.in_(ids)).order_by(job.c.target)
    return [(dict(row), msgspec.json.decode(row["facts"])) for row in connection.execute(query).mappings()]


def find_published_of(connection: Connection, target: str, since: int) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """Yields published jobs of a landing table, from job `since` on, with the time of their end or begin, and their
    facts."""
    mine = (job.c.event_id.is_not(None), job.c.target == target, job.c.id >= since)
    at = func.coalesce(job.c.ended, job.c.begun, 0.0)
    for id, when, facts in connection.execute(select(job.c.id, at, job.c.facts).where(*mine).order_by(job.c.id)):
        yield id, when, msgspec.json.decode(facts)


def may_have_published(connection: Connection, target: str, after: int) -> bool:
    """See `JobAnswers.may_have_published`. A job at an earlier step has changed no table."""
    may = or_(job.c.event_id.is_not(None), job.c.step == "publish")
    return bool(connection.execute(select(exists().where(job.c.target == target, job.c.id > after, may))).scalar())


def changes_table(connection: Connection, target: str, after: int) -> int | None:
    """Returns a job that a controller works on, or that is later than `after` and may have published; None: none."""
    may = and_(job.c.id > after, or_(job.c.event_id.is_not(None), job.c.step == "publish"))
    query = select(job.c.id).where(job.c.target == target, or_(job.c.holder != "", job.c.state == "running", may))
    return connection.execute(query.order_by(job.c.id.desc()).limit(1)).scalar()


def find_kept(connection: Connection, id: int) -> frozenset[str] | None:
    """See `IngestionStore.kept`."""
    row = connection.execute(select(job.c.state, job.c.step, job.c.event_id, job.c.facts).where(job.c.id == id)).first()
    if row is not None and row.state in LEFT and row.step in UNPUBLISHED_STEPS and row.event_id is None:
        return frozenset()
    return frozenset(places_of(msgspec.json.decode(row.facts))) if row is not None and row.state == "done" else None


def is_in_doubt(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Returns True if a job may have been published unrecorded while another job waits to supersede it: it resumes at
    once."""
    waits = select(job.c.id).where(job.c.slot == f"{row['identity']}:waiting")
    return row["step"] == "publish" and connection.execute(waits).first() is not None


def find_changes(connection: Connection, after: int, limit: int) -> list[JobChange]:
    """Returns changes after an id, oldest first."""
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
    """Returns the number of waiting jobs up to a place in the queue."""
    ahead = (IS_OPEN, job.c.holder == "", job.c.state != "published", job.c.place <= place)
    return int(connection.execute(select(func.count(job.c.id)).where(*ahead)).scalar_one())


def taken_by_another(connection: Connection, target: str, identity: str) -> str | None:
    """Returns the source of a job of another identity with the same landing table; None if there is none."""
    gone = ("superseded", "cancelled", "expired")
    others = (job.c.target == target, job.c.identity != identity, job.c.state.not_in(gone))
    return connection.execute(select(job.c.source).where(*others).limit(1)).scalar()


def at_work(connection: Connection) -> dict[str, int]:
    """Returns the number of jobs that occupy a slot, by asset."""
    query = select(job.c.asset, func.count(job.c.id)).where(IS_OPEN, job.c.holder != "").group_by(job.c.asset)
    return {str(name): int(number) for name, number in connection.execute(query)}


def candidates(connection: Connection, now: float) -> Sequence[Candidate]:
    """Returns the first due job of each asset, unless its identity occupies a slot; and all jobs whose lease has
    expired."""
    lost = select(job.c.id, job.c.place, job.c.asset).where(IS_OPEN, job.c.holder != "", job.c.lease <= now)
    free = (IS_OPEN, job.c.holder == "", job.c.due <= now)
    heads = select(job.c.asset, func.min(job.c.place).label("place")).where(*free, ~IS_FOLLOWING).group_by(job.c.asset)
    first = heads.subquery("first")
    both = (job.c.asset == first.c.asset) & (job.c.place == first.c.place)
    query = select(job.c.id, job.c.place, job.c.asset).join(first, both).where(*free)
    found = [Candidate(*row, held=True) for row in connection.execute(lost)]
    return found + [Candidate(*row) for row in connection.execute(query)]


# ---- job figures -----------------------------------------------------------------------------------------------------
# Metrics of the ingestion store: waiting jobs and their waiting times, latency of publications, landed volume.
#
# Metrics of all jobs query only the open ones, by their indexes. Metrics of a period query its changes, whose first one
# is found by binary search: no query reads more than the open jobs, or the changes of that period.


CURRENT = ("queued", "running", "failed", "failed_user", "failed_type", "published")
"""States of jobs that are not over."""

OVER = ("done", "superseded", "cancelled", "expired")

SOON, LATE = 900.0, 9000.0
"""Service levels, in seconds from a request to its publication: 94 of 100 within the first, 99 within the second."""

PERCENTILES = (50, 94, 99)
DAY = 86_400.0


class AssetQueue(Value, frozen=True, omit_defaults=False):
    """Open jobs of an asset. at_work: jobs that occupy a slot. waiting: due jobs without a slot that could have one;
    waits_seconds: since the longest-waiting of them, or the first job that it replaced, became due; None: none waits.
    later: jobs due later, after a failure or when the running job on the same table is over."""

    asset: str
    at_work: int
    waiting: int
    waits_seconds: float | None
    later: int


class QueueFigures(Value, frozen=True, omit_defaults=False):
    """states: numbers of jobs that are not over, by state. failing: numbers of those with an error, by its kind.
    assets: those that have open jobs; longest-waiting first."""

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
        """The waiting time of the job that waits longest for a slot."""
        return max((each.waits_seconds for each in self.assets if each.waits_seconds is not None), default=None)


class LandedDay(Value, frozen=True, omit_defaults=False):
    """Publications of a day in UTC, "2026-11-25"."""

    day: str
    jobs: int
    rows: int
    bytes: int


class LandingFigures(Value, frozen=True, omit_defaults=False):
    """Jobs that were published since a time, in seconds since 1970. soon, late: the fraction published within 15
    minutes, and within 2.5 hours of their request, or of the first request that they replaced. p50, p94, p99:
    percentiles of that latency in seconds (nearest rank). None: nothing was published. ended: jobs that ended in the
    period, by state. days: newest first, without empty ones."""

    since: float
    published: int
    soon: float | None
    late: float | None
    p50: float | None
    p94: float | None
    p99: float | None
    ended: dict[str, int]
    days: tuple[LandedDay, ...]


def no_figures(since: float) -> tuple[QueueFigures, LandingFigures]:
    """Returns the metrics of a store without jobs. since: seconds since 1970."""
    queue = QueueFigures(dict.fromkeys(CURRENT, 0), {}, ())
    return queue, LandingFigures(since, 0, None, None, None, None, None, {}, ())


def find_queue(connection: Connection, now: float) -> QueueFigures:
    """Returns the metrics of jobs that are not over, as of now."""
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
    """Returns the metrics of publications and ended jobs since a time. Only changes that exist when it starts are
    counted, so that its numbers are consistent at any isolation level."""
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
    """Selects, for each job published within these changes, the change that published it: a job that is retried
    afterwards has further changes in that state."""
    earlier = change.alias("earlier")
    same = (earlier.c.job == change.c.job, earlier.c.id < change.c.id, earlier.c.state == "published")
    made = (change.c.state == "published", change.c.step == following("publish"), ~exists().where(*same))
    took = (change.c.at - func.coalesce(job.c.waits_since, job.c.queued)).label("seconds")
    found = select(change.c.at, change.c.rows, change.c.bytes, took).join(job, job.c.id == change.c.job)
    return found.where(meanwhile, *made)


def _days(connection: Connection, landed: Any) -> tuple[LandedDay, ...]:
    whole = cast(landed.c.at / DAY, BigInteger)  # SQLite truncates, PostgreSQL rounds
    day = case((whole > landed.c.at / DAY, whole - 1), else_=whole).label("day")
    summed = [func.coalesce(func.sum(column), 0) for column in (landed.c.rows, landed.c.bytes)]
    query = select(day, func.count(), *summed).group_by(day).order_by(day.desc())
    return tuple(
        LandedDay(datetime.fromtimestamp(number * DAY, UTC).date().isoformat(), jobs, int(rows), int(size))
        for number, jobs, rows, size in connection.execute(query)
    )


def _first_change(connection: Connection, since: float, last: int) -> int:
    """Returns an id below which no change is as recent as `since`: changes are numbered in the order in which they are
    made. A clock that was set back may omit some changes, but never adds any."""
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
