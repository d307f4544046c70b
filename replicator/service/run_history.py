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
# Runs of the service as values: their state, their end, and filters.


SCHEDULE = "schedule"
"""`asked_by` of runs that the schedule starts."""

TELLING = ("done", "partial", "differs", "failed", "lost")
"""States of a run that show the state of its job; a cancelled run does not, unless it exceeded its timeout."""

TOO_LONG = "took longer than its timeout"
"""Prefix of the message of a run that was cancelled by its timeout."""

RunState = Literal["queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True)
class ServiceRun:
    """A run of a job. Times are seconds since 1970. asked_by: "schedule", or the user who requested it. missed: times
    of the schedule that it makes up for, in addition to its own. state: "partial" and "differs" stand for the exit
    codes 3 and 4, "lost" for a server that died. exit_code, message, hint: of its end, as the command line reports
    them. server, epoch: of the server that ran it."""

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
    """A filter of runs; empty fields match all. since, until: seconds since 1970 between which they were queued."""

    jobs: Sequence[str] = ()
    policy: str = ""
    states: Sequence[str] = ()
    since: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The end of a run. error: its class; said: its complete report, for the counters. again: it neither failed by
    itself nor was cancelled by a user: if a schedule started it, it becomes due again."""

    state: RunState
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    error: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


def run_of(row: Row[Any]) -> ServiceRun:
    """Returns the run in a row of the store."""
    fields = {name: value for name, value in row._mapping.items() if name != "active"}
    return ServiceRun(**{**fields, "arguments": tuple(json.loads(fields["arguments"]))})


# ---- run history -----------------------------------------------------------------------------------------------------


class RunHistory(Database):
    """Queries of runs. Raises as Database."""

    def run(self, id: str) -> ServiceRun:
        """Returns a run. Raises ObjectNotFound."""
        found = self._runs(run.c.id == id)
        if not found:
            raise ObjectNotFound(f"there is no run {id!r}", hint="runs that ended are forgotten after service.keep")
        return found[0]

    def runs_of(self, ids: Sequence[str]) -> list[ServiceRun]:
        """Returns the runs that are still stored, oldest first."""
        return self._runs(run.c.id.in_(ids), order=(run.c.id,))

    def open_runs(self) -> list[ServiceRun]:
        """Returns the runs that are queued or running, oldest first."""
        return self._runs(run.c.active.is_not(None), order=(run.c.queued, run.c.id))

    def runs(
        self, *, job_name: str = "", states: Sequence[str] = (), before: str = "", limit: int = 50
    ) -> list[ServiceRun]:
        """Returns runs, newest first. before: an id; only runs that were queued earlier."""
        where = [run.c.job == job_name] if job_name else []
        where += [run.c.state.in_(states)] if states else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def runs_where(self, wanted: RunFilter, *, before: str = "", limit: int = 50) -> list[ServiceRun]:
        """Returns runs, newest first. before: an id; only runs that were queued earlier."""
        where: list[Any] = [run.c.job.in_(wanted.jobs)] if wanted.jobs else []
        where += [run.c.policy == wanted.policy] if wanted.policy else []
        where += [run.c.state.in_(wanted.states)] if wanted.states else []
        where += [run.c.id >= f"{int(wanted.since * 1000):013d}"] if wanted.since > 0 else []
        where += [run.c.id < f"{int(wanted.until * 1000) + 1:013d}"] if wanted.until > 0 else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def newest(self) -> dict[str, ServiceRun]:
        """Returns the newest run of each job that was ever planned: one index lookup each."""
        other = run.alias("other")
        newest = select(func.max(other.c.id)).where(other.c.job == job.c.name).scalar_subquery()
        last = select(newest).select_from(job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def newest_ended(self, names: Sequence[str]) -> dict[str, ServiceRun]:
        """Returns, for a few jobs, the newest run that shows the job's state: one index lookup each."""
        late = and_(run.c.state == "cancelled", run.c.message.startswith(TOO_LONG))
        tells = or_(run.c.state.in_(TELLING), late)
        newest = select(run).where(run.c.job == bindparam("name"), tells).order_by(run.c.id.desc()).limit(1)
        with self.transaction() as connection:
            rows = [connection.execute(newest, {"name": each}).first() for each in names]
        return {row.job: run_of(row) for row in rows if row is not None}

    def newest_ad_hoc_runs(self, names: Sequence[str], states: Sequence[str]) -> dict[str, ServiceRun]:
        """Returns the newest run of each name that ended in one of the states. One query, which reads all runs of these
        names: for ad-hoc runs, of which there are few per name."""
        last = select(func.max(run.c.id)).where(run.c.job.in_(names), run.c.state.in_(states)).group_by(run.c.job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def successes(self) -> dict[str, float]:
        """Returns when each job that was ever planned last succeeded, without those that never did."""
        done = select(func.max(run.c.ended)).where(run.c.job == job.c.name, run.c.state == "done").scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, done.label("ended")))
            return {str(row.name): float(row.ended) for row in found if row.ended is not None}

    def first_runs(self) -> dict[str, float]:
        """Returns when the oldest stored run of each job that was ever planned was queued, which is the prefix of its
        id: one index lookup each."""
        oldest = select(func.min(run.c.id)).where(run.c.job == job.c.name).scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, oldest.label("id")))
            return {str(row.name): int(row.id[:13]) / 1000 for row in found if row.id is not None}

    def counts(self) -> dict[tuple[str, str], int]:
        """Returns the number of stored runs by job and state."""
        with self.transaction() as connection:
            query = select(run.c.job, run.c.state, func.count()).group_by(run.c.job, run.c.state)
            return {(str(name), str(state)): int(number) for name, state, number in connection.execute(query)}

    def known(self, ids: Sequence[str]) -> set[str]:
        """Returns the ids that are stored."""
        with self.transaction() as connection:
            return {str(id) for id in connection.execute(select(run.c.id).where(run.c.id.in_(ids))).scalars()}

    def _runs(self, *where: Any, order: Sequence[Any] = (), limit: int = 1000) -> list[ServiceRun]:
        with self.transaction() as connection:
            return [run_of(row) for row in connection.execute(select(run).where(*where).order_by(*order).limit(limit))]


# ---- times -----------------------------------------------------------------------------------------------------------
# Timestamps of the service as text.


def iso(moment: float | None) -> str | None:
    """Formats seconds since 1970 as ISO 8601."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
