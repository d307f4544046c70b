"""Questions to the ingestion store. Changes nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, exists, func, or_, select, text

from replicator.errors import ObjectNotFound
from replicator.ingestion.fairness import Candidate
from replicator.ingestion.ingestion_job import LEFT, UNPUBLISHED_STEPS, IngestionJob, JobChange, JobDetail, JobFilter
from replicator.ingestion.ingestion_request import Asset, Request, is_text
from replicator.ingestion.job_rows import places_of, to_asset, to_job
from replicator.ingestion.schema import OPEN, asset, change, job

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
    then it goes on at once."""
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
