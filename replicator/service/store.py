"""The service's store: who schedules, which jobs are paused, what ran. Several servers use one at a time."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, and_, case, delete, func, insert, literal, or_, select, update

from replicator.errors import Refused
from replicator.service.ad_hoc_runs import AdHocRun
from replicator.service.measuring.counters import add
from replicator.service.measuring.tally import counts_of
from replicator.service.run_history import RunHistory
from replicator.service.schema import REVISIONS, job, lease, run
from replicator.service.service_run import SCHEDULE, Ended, ServiceRun

if TYPE_CHECKING:  # it needs the extra `server`, which reading does not
    from replicator.service.jobs import Job

REVISION = "0005"
"""The newest migration that this release knows."""

CONNECTIONS = 8
"""That stay open: requests, the scheduler and the watches ask at the same time."""

ALL = "*"
"""In the place of a job: all of them are paused."""

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


class ServiceStore(RunHistory):
    """The lease, jobs, and what happens to runs; raises as Database."""

    def __init__(self, url: str) -> None:
        """Nothing is sent before the first endpoint. Raises ConfigError for a URL that names no known database."""
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
        wanted: Job | AdHocRun,
        due: float,
        *,
        by: str,
        reason: str = "",
        missed: int = 0,
        beside: Beside = lambda *_: None,
    ) -> tuple[str, bool]:
        """A new run, or the one of this name that is not ended; its id, and whether it is new. One of the schedule that
        still waits becomes that of who asks, whom no pause holds. beside: called with both in the same transaction.
        Raises Refused where an ad-hoc run of the same name is at work with other arguments."""
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
            if found != id and isinstance(wanted, AdHocRun):
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

    def _refuse_another(self, connection: Connection, found: str, wanted: AdHocRun) -> None:
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

    def forget(self, seconds: float) -> list[str]:
        """Removes runs that ended so long ago; their ids. The last 10,000 at a time."""
        with self.transaction() as connection:
            old = select(run.c.id).where(run.c.ended < self._now(connection) - seconds).limit(10_000)
            found = [str(id) for id in connection.execute(old).scalars()]
            connection.execute(delete(run).where(run.c.id.in_(found)))
        return found

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
