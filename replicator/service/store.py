"""The service's store: who schedules, which jobs are paused, what ran. Several servers use one at a time."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, and_, case, delete, func, insert, literal, or_, select, update

from replicator.errors import Refused
from replicator.service.measuring.families import add, counts_of
from replicator.service.run_history import SCHEDULE, Ended, RunHistory, ServiceRun
from replicator.service.schema import REVISIONS, action, job, lease, run

if TYPE_CHECKING:
    from replicator.service.jobs import Job


# ---- ad hoc runs -----------------------------------------------------------------------------------------------------
# Errands: runs that somebody asked for, beside all jobs.


@dataclass(frozen=True)
class AdHocRun:
    """A run that somebody asked for, beside all jobs. name: its command and what it is about, `verify:west`; only one
    of a name at a time. arguments: "@RUN/FILE" is a file in the output of a run, "@/FILE" one in its own."""

    name: str
    arguments: tuple[str, ...]
    policy: str = ""


def is_ad_hoc(name: str) -> bool:
    """Whether it is the name of an ad-hoc run: no job's has a colon."""
    return ":" in name


def placed(argument: str, id: str, outputs: Path) -> str:
    """An argument of an ad-hoc run's run. outputs: where the outputs of runs lie."""
    if not argument.startswith("@"):
        return argument
    run, _, file = argument[1:].partition("/")
    return str(outputs / (run or id) / file)


# ---- store -----------------------------------------------------------------------------------------------------------


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
        """Takes the lease, or continues with it, for so long; its epoch. None: another server has it."""
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
        Raises Refused where an ad-hoc run of the same name is running with other arguments."""
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
            raise Refused(f"{wanted.name} is running with other options: run {found}", hint="wait for it, or cancel it")

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
            hint = "its lease ends by itself; the next run continues from what is there"
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


# ---- actions ---------------------------------------------------------------------------------------------------------
# Actions over HTTP: who did what, from where and why; and what a request was answered that is sent again.


@dataclass(frozen=True)
class Action:
    """at: seconds since 1970 by the store's clock, when it was begun last. subject: a job, a run, or "*" for all. key:
    of the request; None: it had none. answer: what it was answered, as JSON. digest: of the request's body; "": not
    known."""

    id: int
    at: float
    who: str
    address: str
    action: str
    subject: str
    reason: str
    key: str | None
    answer: Any
    digest: str = ""


@dataclass(frozen=True)
class ActionFilter:
    """Which actions; what is empty filters nothing. since: seconds since 1970."""

    who: str = ""
    action: str = ""
    subject: str = ""
    since: float = 0.0


UNFINISHED = {"unfinished": True}
"""The answer of an action that is being done, or that was when its server went away."""


def write_action(connection: Connection, at: float, done: Action, answer: Any) -> int:
    """Records an action within a transaction; its id, which is the store's. Raises Error for a second one of a person's
    key."""
    values: dict[str, Any] = {name: getattr(done, name) for name in ("who", "address", "action", "subject", "reason")}
    values |= {"at": at, "request_key": done.key, "request_digest": done.digest or None, "answer": json.dumps(answer)}
    return int(connection.execute(insert(action).values(**values).returning(action.c.id)).scalar_one())


def recording(store: ServiceStore, done: Action) -> Beside:
    """Writes the record of an action beside the run that it queues."""

    def write(connection: Connection, run: str, new: bool) -> None:
        write_action(connection, store.clock(connection), done, {"run": run, "new": new})

    return write


def open_action(store: ServiceStore, begun: Action) -> int:
    """Records an action before it is done; its id. Raises as `write_action`."""
    with store.transaction() as connection:
        return write_action(connection, store.clock(connection), begun, UNFINISHED)


def reopen_action(store: ServiceStore, before: Action) -> bool:
    """Whether an open action, as it was read, is begun again by this caller: of several at once by one."""
    same = and_(action.c.id == before.id, action.c.at == before.at, action.c.answer == json.dumps(before.answer))
    with store.transaction() as connection:
        again = {"at": store.clock(connection), "answer": json.dumps(UNFINISHED)}
        return bool(connection.execute(update(action).where(same).values(**again)).rowcount)


def set_answer(store: ServiceStore, id: int, answer: Any) -> None:
    """What an open action was answered; {"failed": why} where it failed. May run twice."""
    with store.transaction() as connection:
        connection.execute(update(action).where(action.c.id == id).values(answer=json.dumps(answer)))


def is_open(done: Action) -> bool:
    """Whether it may be done again: it failed, or nobody knows its end."""
    return done.answer == UNFINISHED or (isinstance(done.answer, dict) and set(done.answer) == {"failed"})


def actions_about(store: ServiceStore, subject: str, names: Sequence[str]) -> list[Action]:
    """Those of some names about a subject, oldest first; at most 1,000."""
    found = _actions(store, action.c.subject == subject, action.c.action.in_(names), limit=1000)
    return found[::-1]


def action_of(store: ServiceStore, who: str, key: str) -> Action | None:
    """What a request with this key did; None: there was none."""
    found = _actions(store, action.c.who == who, action.c.request_key == key, limit=1)
    return found[0] if found else None


def actions(
    store: ServiceStore, *, before: int = 0, limit: int = 50, wanted: ActionFilter = ActionFilter()
) -> list[Action]:
    """Newest first. before: an id: older ones only."""
    where = [action.c.id < before] if before else []
    where += [action.c[name] == value for name in ("who", "action", "subject") if (value := getattr(wanted, name))]
    where += [action.c.at >= wanted.since] if wanted.since else []
    return _actions(store, *where, limit=limit)


def _actions(store: ServiceStore, *where: Any, limit: int) -> list[Action]:
    with store.transaction() as connection:
        rows = connection.execute(select(action).where(*where).order_by(action.c.id.desc()).limit(limit)).all()
    return [_to_action(row) for row in rows]


def _to_action(row: Row[Any]) -> Action:
    """Its columns are called as the fields, but for those of the request."""
    fields: dict[str, Any] = dict(row._mapping)
    key, digest = fields.pop("request_key"), fields.pop("request_digest") or ""
    return Action(key=key, digest=digest, answer=json.loads(fields.pop("answer")), **fields)
