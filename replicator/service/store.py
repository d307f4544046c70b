"""The service's store: who schedules, which jobs are paused, what ran. Several servers use one at a time."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Row, and_, bindparam, case, delete, func, insert, literal, or_, select, update

from replicator.database import Database
from replicator.errors import ObjectNotFound, Refused
from replicator.service.errands import Errand
from replicator.service.measuring.counters import add
from replicator.service.measuring.tally import counts_of
from replicator.service.schema import REVISIONS, job, lease, run

if TYPE_CHECKING:  # it needs the extra `server`, which reading does not
    from replicator.service.jobs import Job

REVISION = "0005"
"""The newest migration that this release knows."""

CONNECTIONS = 8
"""That stay open: requests, the scheduler and the watches ask at the same time."""

ALL = "*"
"""In the place of a job: all of them are paused."""

SCHEDULE = "schedule"
"""Who asks for the runs that begin by themselves."""

TELLING = ("done", "partial", "differs", "failed", "lost")
"""States of a run that say how its job is; a cancelled one does not, unless it took too long."""

TOO_LONG = "took longer than its timeout"
"""How the message of a run begins that was cancelled by its timeout."""

RunState = Literal["queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost"]


Beside = Callable[[Connection, str, bool], object]
"""What is written together with a run: given the run's id, and whether it is new."""


@dataclass(frozen=True)
class JobState:
    """What is remembered of a job. due: the next time, in seconds since 1970."""

    name: str
    schedule: str
    due: float
    paused: bool = False
    paused_by: str = ""
    reason: str = ""


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


class ServiceStore(Database):
    """Jobs and runs by what is asked; raises as Database."""

    def __init__(self, url: str) -> None:
        """Nothing is sent before the first question. Raises ConfigError for a URL that names no known database."""
        super().__init__(url, "service store", "service.store", connections=CONNECTIONS)

    def prepare(self) -> None:
        """Makes or migrates the tables. May run twice, and by several servers: one of them waits or fails, and tries
        again."""
        if self.revision(REVISIONS, REVISION) != REVISION:
            self.migrate(Path(__file__).parent / "migrations")

    def now(self) -> float:
        """The store's clock."""
        with self.transaction() as connection:
            return self._now(connection)

    def clock(self, connection: Connection) -> float:
        """The same, within a transaction."""
        return self._now(connection)

    # ---- who schedules --------------------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        """Takes the lease, or goes on with it, for so long; its epoch. None: another server has it."""
        with self.transaction() as connection:
            now = self._now(connection)
            mine, free = lease.c.holder == holder, lease.c.expires <= now
            ahead = lease.c.expires > now + 2 * seconds  # by a clock that was set back since: its holder may be gone
            connection.execute(update(lease).where(~mine, ahead).values(expires=now + seconds))
            taken = connection.execute(
                update(lease)
                .where(or_(mine, free))
                .values(holder=holder, expires=now + seconds, epoch=lease.c.epoch + case((mine, 0), else_=1))
            )
            if not taken.rowcount:
                return None
            return int(connection.execute(select(lease.c.epoch)).scalar_one())

    def resign(self, holder: str) -> None:
        """Lets another server schedule at once. May run twice."""
        with self.transaction() as connection:
            connection.execute(update(lease).where(lease.c.holder == holder).values(expires=0.0))

    def leader(self) -> tuple[str, int, bool]:
        """The server that had the lease last, its epoch, and whether it has it now."""
        with self.transaction() as connection:
            row = connection.execute(select(lease)).one()
            return str(row.holder), int(row.epoch), float(row.expires) > self._now(connection)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, JobState]:
        """By name, those that are configured no more too."""
        with self.transaction() as connection:
            return {str(row.name): JobState(*row) for row in connection.execute(select(job))}

    def plan(self, name: str, schedule: str, due: float) -> None:
        """Says when a job is due next."""
        with self.transaction() as connection:
            self._upsert(connection, name, schedule=schedule, due=due)

    def pause(self, name: str, by: str, reason: str) -> None:
        """Until `resume`, the job begins no run by its schedule. May run twice."""
        with self.transaction() as connection:
            self._upsert(connection, name, paused=True, paused_by=by, reason=reason)

    def resume(self, name: str) -> None:
        """May run twice."""
        with self.transaction() as connection:
            self._upsert(connection, name, paused=False, paused_by="", reason="")

    # ---- runs -----------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        wanted: Job | Errand,
        due: float,
        *,
        by: str,
        reason: str = "",
        missed: int = 0,
        beside: Beside = lambda *_: None,
    ) -> tuple[str, bool]:
        """A new run, or the one of this name that is not ended; its id, and whether it is new. One of the schedule that
        still waits becomes that of who asks, whom no pause holds. beside: called with both in the same transaction.
        Raises Refused where an errand of the same name is at work with other arguments."""
        with self.transaction() as connection:
            now = self._now(connection)
            id = f"{int(now * 1000):013d}-{uuid.uuid4().hex[:12]}"
            values = {
                "id": id,
                "job": wanted.name,
                "policy": wanted.policy,
                "arguments": json.dumps(wanted.arguments),
                "asked_by": by,
                "reason": reason,
                "missed": missed,
                "due": due,
                "queued": now,
                "state": "queued",
                "active": wanted.name,
                "cancelled_by": "",
                "message": "",
                "hint": "",
                "server": "",
                "epoch": 0,
            }
            there = select(run.c.id).where(run.c.active == wanted.name)
            columns = list(values)
            picked = select(*(literal(value, run.c[name].type) for name, value in values.items())).where(
                ~there.exists()
            )
            connection.execute(insert(run).from_select(columns, picked))
            found = str(connection.execute(there).scalar_one())
            if found != id and isinstance(wanted, Errand):
                self._refuse_another(connection, found, wanted)
            if found != id and by != SCHEDULE:
                waits = and_(run.c.id == found, run.c.state == "queued", run.c.asked_by == SCHEDULE)
                taken = {"asked_by": by, "reason": reason, "missed": run.c.missed + 1}
                connection.execute(update(run).where(waits).values(**taken))
            beside(connection, found, found == id)
        return found, found == id

    def enqueue_due(self, wanted: Job, due: float, missed: int, following: float) -> None:
        """A run of a job's schedule, and when the next one is due, together: a server that is killed leaves both, or
        neither. Where somebody has just asked for one, the time stays due."""

        def planned(connection: Connection, _: str, new: bool) -> None:
            if new:
                self._upsert(connection, wanted.name, schedule=wanted.schedule.text, due=following)

        self.enqueue(wanted, due, by=SCHEDULE, missed=missed, beside=planned)

    def _refuse_another(self, connection: Connection, found: str, wanted: Errand) -> None:
        arguments = connection.execute(select(run.c.arguments).where(run.c.id == found)).scalar_one()
        if tuple(json.loads(arguments)) != wanted.arguments:
            raise Refused(f"{wanted.name} is at work with other options: run {found}", hint="wait for it, or cancel it")

    def begin(self, id: str, server: str, epoch: int) -> bool:
        """Whether the run is this server's: it was queued, and the server still has the lease of that epoch."""
        with self.transaction() as connection:
            leads = select(lease.c.id).where(lease.c.holder == server, lease.c.epoch == epoch).exists()
            begun = connection.execute(
                update(run)
                .where(run.c.id == id, run.c.state == "queued", leads)
                .values(state="running", begun=self._now(connection), server=server, epoch=epoch)
            )
            return bool(begun.rowcount)

    def end(self, id: str, how: Ended) -> None:
        """May run twice; the first end stays, and is counted. What is to run again is due in the same transaction."""
        with self.transaction() as connection:
            ended = connection.execute(
                update(run)
                .where(run.c.id == id, run.c.active.is_not(None))
                .values(
                    state=how.state,
                    ended=self._now(connection),
                    active=None,
                    exit_code=how.exit_code,
                    message=how.message,
                    hint=how.hint,
                )
            )
            if ended.rowcount:
                row = self._count(connection, id, how)
                if how.again and (row.asked_by == SCHEDULE or row.missed) and not row.cancelled_by:
                    due = update(job).where(job.c.name == row.job, job.c.due > row.due)
                    connection.execute(due.values(due=row.due))

    def lose(self, epoch: int) -> list[str]:
        """Ends the runs of servers that had the lease before this epoch; their ids."""
        with self.transaction() as connection:
            former = and_(run.c.state == "running", run.c.epoch < epoch)
            found = [str(id) for id in connection.execute(select(run.c.id).where(former)).scalars()]
        for id in found:
            hint = "its lease ends by itself; the next run goes on from what is there"
            self.end(id, Ended("lost", message="its server went away", hint=hint, again=True))
        return found

    def cancel(self, id: str, by: str) -> ServiceRun:
        """Asks for a run's end; one that is queued ends at once. May run twice. Raises ObjectNotFound."""
        with self.transaction() as connection:
            connection.execute(
                update(run)
                .where(run.c.id == id, run.c.active.is_not(None), run.c.cancelled_by == "")
                .values(cancelled_by=by)
            )
            ended = connection.execute(
                update(run)
                .where(run.c.id == id, run.c.state == "queued")
                .values(state="cancelled", ended=self._now(connection), active=None, message=f"cancelled by {by}")
            )
            if ended.rowcount:
                self._count(connection, id, Ended("cancelled"))
        return self.run(id)

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
        return {row.job: _to_run(row) for row in rows if row is not None}

    def newest_errands(self, names: Sequence[str], states: Sequence[str]) -> dict[str, ServiceRun]:
        """Of names that have few runs, as errands do, the newest that ended in one of the states: one question for all,
        which reads all of them."""
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

    def forget(self, seconds: float) -> list[str]:
        """Removes runs that ended so long ago; their ids. The last 10,000 at a time."""
        with self.transaction() as connection:
            old = select(run.c.id).where(run.c.ended < self._now(connection) - seconds).limit(10_000)
            found = [str(id) for id in connection.execute(old).scalars()]
            connection.execute(delete(run).where(run.c.id.in_(found)))
        return found

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those that are remembered."""
        with self.transaction() as connection:
            return {str(id) for id in connection.execute(select(run.c.id).where(run.c.id.in_(ids))).scalars()}

    def _runs(self, *where: Any, order: Sequence[Any] = (), limit: int = 1000) -> list[ServiceRun]:
        with self.transaction() as connection:
            return [_to_run(row) for row in connection.execute(select(run).where(*where).order_by(*order).limit(limit))]

    def _count(self, connection: Connection, id: str, how: Ended) -> Row[Any]:
        row = connection.execute(select(run).where(run.c.id == id)).one()
        seconds = None if row.begun is None else row.ended - row.begun
        add(connection, counts_of(json.loads(row.arguments), row.policy, how.state, seconds, how.error, how.said))
        return row

    def _now(self, connection: Connection) -> float:
        """SQLite's is this machine's, as its file is."""
        if self.file is not None:
            return time.time()
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def _upsert(self, connection: Connection, name: str, **values: Any) -> None:
        if not connection.execute(update(job).where(job.c.name == name).values(**values)).rowcount:
            empty = {"schedule": "", "due": 0.0, "paused": False, "paused_by": "", "reason": ""}
            connection.execute(insert(job).values(name=name, **{**empty, **values}))


def _to_run(row: Row[Any]) -> ServiceRun:
    fields = {name: value for name, value in row._mapping.items() if name != "active"}
    return ServiceRun(**{**fields, "arguments": tuple(json.loads(fields["arguments"]))})
