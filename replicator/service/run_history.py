"""Queries of the run history in the service's store. Reads only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import and_, bindparam, func, or_, select

from replicator.core.database import Database
from replicator.errors import ObjectNotFound
from replicator.service.schema import job, run

if TYPE_CHECKING:
    from sqlalchemy import Row


# ---- service run -----------------------------------------------------------------------------------------------------
# Runs of the service as values: how they are, how they ended, and which are asked for.


SCHEDULE = "schedule"
"""Who asks for the runs that begin by themselves."""

TELLING = ("done", "partial", "differs", "failed", "lost")
"""States of a run that say how its job is; a cancelled one does not, unless it took too long."""

TOO_LONG = "took longer than its timeout"
"""How the message of a run begins that was cancelled by its timeout."""

RunState = Literal["queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True)
class ServiceRun:
    """A run of a job. Times are seconds since 1970. asked_by: "schedule", or who wanted it. missed: times of the
    schedule that it makes up for, beside its own. state: "partial" and "differs" stand for the exit codes 3 and 4,
    "lost" for a server that died. exit_code, message, hint: its end's, as the command line gives them. server, epoch:
    who ran it."""

    id: str
    job: str
    policy: str
    arguments: tuple[str, ...]
    asked_by: str
    reason: str
    missed: int
    due: float
    queued: float
    begun: float | None
    ended: float | None
    state: RunState
    cancelled_by: str
    exit_code: int | None
    message: str
    hint: str
    server: str
    epoch: int


@dataclass(frozen=True)
class RunFilter:
    """Which runs; what is empty filters nothing. since, until: seconds since 1970 between which they were queued."""

    jobs: Sequence[str] = ()
    policy: str = ""
    states: Sequence[str] = ()
    since: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a run ended. error: its class; said: its whole answer, which is counted. again: it was not its own fault, nor
    anybody's wish: where it was for a time of a schedule, that is due again."""

    state: RunState
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    error: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


def run_of(row: Row[Any]) -> ServiceRun:
    """Of a row of the store."""
    fields = {name: value for name, value in row._mapping.items() if name != "active"}
    return ServiceRun(**{**fields, "arguments": tuple(json.loads(fields["arguments"]))})


# ---- run history -----------------------------------------------------------------------------------------------------


class RunHistory(Database):
    """Runs by what is asked; raises as Database."""

    def run(self, id: str) -> ServiceRun:
        """Raises ObjectNotFound."""
        found = self._runs(run.c.id == id)
        if not found:
            raise ObjectNotFound(f"there is no run {id!r}", hint="runs that ended are forgotten after service.keep")
        return found[0]

    def runs_of(self, ids: Sequence[str]) -> list[ServiceRun]:
        """Those that are remembered, oldest first."""
        return self._runs(run.c.id.in_(ids), order=(run.c.id,))

    def open_runs(self) -> list[ServiceRun]:
        """Those that are queued or running, oldest first."""
        return self._runs(run.c.active.is_not(None), order=(run.c.queued, run.c.id))

    def runs(
        self, *, job_name: str = "", states: Sequence[str] = (), before: str = "", limit: int = 50
    ) -> list[ServiceRun]:
        """Newest first. before: an id: those that were queued earlier."""
        where = [run.c.job == job_name] if job_name else []
        where += [run.c.state.in_(states)] if states else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def runs_where(self, wanted: RunFilter, *, before: str = "", limit: int = 50) -> list[ServiceRun]:
        """Newest first. before: an id: those that were queued earlier."""
        where: list[Any] = [run.c.job.in_(wanted.jobs)] if wanted.jobs else []
        where += [run.c.policy == wanted.policy] if wanted.policy else []
        where += [run.c.state.in_(wanted.states)] if wanted.states else []
        where += [run.c.id >= f"{int(wanted.since * 1000):013d}"] if wanted.since > 0 else []
        where += [run.c.id < f"{int(wanted.until * 1000) + 1:013d}"] if wanted.until > 0 else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def newest(self) -> dict[str, ServiceRun]:
        """The newest run of each job that was ever planned: one look into the index for each."""
        other = run.alias("other")
        newest = select(func.max(other.c.id)).where(other.c.job == job.c.name).scalar_subquery()
        last = select(newest).select_from(job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def newest_ended(self, names: Sequence[str]) -> dict[str, ServiceRun]:
        """Of a few jobs, the newest run that says how the job is: one look into the index for each."""
        late = and_(run.c.state == "cancelled", run.c.message.startswith(TOO_LONG))
        tells = or_(run.c.state.in_(TELLING), late)
        newest = select(run).where(run.c.job == bindparam("name"), tells).order_by(run.c.id.desc()).limit(1)
        with self.transaction() as connection:
            rows = [connection.execute(newest, {"name": each}).first() for each in names]
        return {row.job: run_of(row) for row in rows if row is not None}

    def newest_ad_hoc_runs(self, names: Sequence[str], states: Sequence[str]) -> dict[str, ServiceRun]:
        """The newest run of each name that ended in one of the states. One query, which reads all runs of these names:
        for ad-hoc runs, of which a name has few."""
        last = select(func.max(run.c.id)).where(run.c.job.in_(names), run.c.state.in_(states)).group_by(run.c.job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def successes(self) -> dict[str, float]:
        """When each job that was ever planned was done last; without those that never were."""
        done = select(func.max(run.c.ended)).where(run.c.job == job.c.name, run.c.state == "done").scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, done.label("ended")))
            return {str(row.name): float(row.ended) for row in found if row.ended is not None}

    def first_runs(self) -> dict[str, float]:
        """When the oldest run that is remembered of each job that was ever planned was queued, which its id begins
        with: one look into the index for each."""
        oldest = select(func.min(run.c.id)).where(run.c.job == job.c.name).scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, oldest.label("id")))
            return {str(row.name): int(row.id[:13]) / 1000 for row in found if row.id is not None}

    def counts(self) -> dict[tuple[str, str], int]:
        """Runs that are remembered, by job and state."""
        with self.transaction() as connection:
            query = select(run.c.job, run.c.state, func.count()).group_by(run.c.job, run.c.state)
            return {(str(name), str(state)): int(number) for name, state, number in connection.execute(query)}

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those that are remembered."""
        with self.transaction() as connection:
            return {str(id) for id in connection.execute(select(run.c.id).where(run.c.id.in_(ids))).scalars()}

    def _runs(self, *where: Any, order: Sequence[Any] = (), limit: int = 1000) -> list[ServiceRun]:
        with self.transaction() as connection:
            return [run_of(row) for row in connection.execute(select(run).where(*where).order_by(*order).limit(limit))]


# ---- times -----------------------------------------------------------------------------------------------------------
# Times of the service, as texts.


def iso(moment: float | None) -> str | None:
    """ISO 8601 of seconds since 1970."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
