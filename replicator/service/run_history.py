"""Queries of the run history in the service's store. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, or_, select

from replicator.core.database import Database
from replicator.errors import ObjectNotFound
from replicator.service.schema import job, run
from replicator.service.service_run import TELLING, TOO_LONG, RunFilter, ServiceRun, run_of


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
