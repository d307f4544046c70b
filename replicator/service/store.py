"""The service's store: the lease, jobs, runs and actions. Several servers use it concurrently."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, and_, case, delete, func, insert, literal, or_, select, update

from replicator.errors import Refused
from replicator.service.runs import SCHEDULE, Ended, RunHistory, ServiceRun
from replicator.service.schema import REVISIONS, action, add, counts_of, job, lease, run

if TYPE_CHECKING:
    from replicator.service.jobs import Job


# ---- ad hoc runs -----------------------------------------------------------------------------------------------------
# Runs that a user requested, independent of all jobs.


@dataclass(frozen=True)
class AdHocRun:
    """A run that a user requested, independent of all jobs. name: its command and subject, `verify:west`; only one of a
    name at a time. arguments: "@RUN/FILE" is a file in the output of a run, "@/FILE" one in its own."""

    name: str
    arguments: tuple[str, ...]
    policy: str = ""


def is_ad_hoc(name: str) -> bool:
    """Returns True for the name of an ad-hoc run: a job's name has no colon."""
    return ":" in name


def placed(argument: str, id: str, outputs: Path) -> str:
    """Returns an argument of an ad-hoc run with its path resolved. outputs: the directory of the outputs of runs."""
    if not argument.startswith("@"):
        return argument
    run, _, file = argument[1:].partition("/")
    return str(outputs / (run or id) / file)


# ---- store -----------------------------------------------------------------------------------------------------------


REVISION = "0006"
"""The newest migration that this release knows."""

CONNECTIONS = 8
"""Connections that remain open: requests, the scheduler and the watches query concurrently."""

ALL = "*"
"""In place of a job: all of them are paused."""

Also = Callable[[Connection, str, bool], object]
"""Writes more in the transaction that queues a run: receives the run's id, and whether it is new."""


@dataclass(frozen=True)
class JobState:
    """The stored state of a job. due: the next time, in seconds since 1970."""

    name: str
    schedule: str
    due: float
    paused: bool = False
    paused_by: str = ""
    reason: str = ""


class ServiceStore(RunHistory):
    """The store of the lease, jobs and runs. Raises as Database."""

    def __init__(self, url: str) -> None:
        """Sends nothing before the first query. Raises ConfigError for a URL that names no known database."""
        super().__init__(url, "service store", "service.store", connections=CONNECTIONS)

    def prepare(self) -> None:
        """Creates or migrates the tables. May run twice, and on several servers: one of them waits, or fails and
        retries."""
        if self.file is not None and not self.file.exists():
            with contextlib.suppress(OSError):  # the first transaction reports it
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if self.revision(REVISIONS, REVISION) != REVISION:
            self.migrate(Path(__file__).parent / "migrations", REVISIONS)

    def now(self) -> float:
        """Returns the time of the store's clock."""
        with self.transaction() as connection:
            return self._now(connection)

    def clock(self, connection: Connection) -> float:
        """Returns the same within a transaction."""
        return self._now(connection)

    def check_writable(self) -> None:
        """Writes, without a change: a store that only answers cannot record a run."""
        with self.writing(), self.uncounted() as connection:
            connection.execute(update(lease).values(expires=lease.c.expires))

    # ---- the scheduler's lease ------------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        """Acquires or renews the lease for `seconds`. Returns its epoch; None: another server has it."""
        with self.uncounted() as connection:
            now = self._now(connection)
            mine, free = lease.c.holder == holder, lease.c.expires <= now
            ahead = lease.c.expires > now + 2 * seconds  # by a clock set back since: its holder may be gone
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
        """Releases the lease, so that another server may schedule immediately. May run twice."""
        with self.transaction() as connection:
            connection.execute(update(lease).where(lease.c.holder == holder).values(expires=0.0))

    def leader(self) -> tuple[str, int, bool]:
        """Returns the last holder of the lease, its epoch, and whether it has it now."""
        with self.transaction() as connection:
            row = connection.execute(select(lease)).one()
            return str(row.holder), int(row.epoch), float(row.expires) > self._now(connection)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, JobState]:
        """Returns jobs by name, including those no longer configured."""
        with self.transaction() as connection:
            return {str(row.name): JobState(*row) for row in connection.execute(select(job))}

    def plan(self, name: str, schedule: str, due: float) -> None:
        """Sets when a job is due next."""
        with self.transaction() as connection:
            self._upsert(connection, name, schedule=schedule, due=due)

    def pause(self, name: str, by: str, reason: str) -> None:
        """Stops scheduled runs of the job until `resume`. May run twice."""
        with self.transaction() as connection:
            self._upsert(connection, name, paused=True, paused_by=by, reason=reason)

    def resume(self, name: str) -> None:
        """Allows scheduled runs of the job again. May run twice."""
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
        also: Also = lambda *_: None,
    ) -> tuple[str, bool]:
        """Queues a run, unless one of this name has not ended. Returns the id of either, and whether it is new. A
        scheduled run that still waits is assigned to the user who requests it, so that no pause stops it. also:
        called with both in the same transaction. Raises Refused if an ad-hoc run of the same name is queued or running
        with other arguments."""
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
            also(connection, found, found == id)
        return found, found == id

    def enqueue_due(self, wanted: Job, due: float, missed: int, following: float) -> None:
        """Queues a scheduled run and sets when the next one is due, in one transaction: a killed server leaves both or
        neither. If a requested run exists already, the time remains due."""

        def planned(connection: Connection, _: str, new: bool) -> None:
            if new:
                self._upsert(connection, wanted.name, schedule=wanted.schedule.text, due=following)

        self.enqueue(wanted, due, by=SCHEDULE, missed=missed, also=planned)

    def _refuse_another(self, connection: Connection, found: str, wanted: AdHocRun) -> None:
        there = connection.execute(select(run.c.arguments, run.c.state).where(run.c.id == found)).one()
        if tuple(json.loads(there.arguments)) != wanted.arguments:
            is_so = "is queued" if there.state == "queued" else "is running"
            raise Refused(f"{wanted.name} {is_so} with other options: run {found}", hint="wait for it, or cancel it")

    def begin(self, id: str, server: str, epoch: int) -> bool:
        """Claims a run for this server. Returns True if it was queued, and the server still has the lease of that
        epoch."""
        with self.transaction() as connection:
            leads = select(lease.c.id).where(lease.c.holder == server, lease.c.epoch == epoch).exists()
            begun = connection.execute(
                update(run)
                .where(run.c.id == id, run.c.state == "queued", leads)
                .values(state="running", begun=self._now(connection), server=server, epoch=epoch)
            )
            return bool(begun.rowcount)

    def end(self, id: str, how: Ended) -> None:
        """Ends a run. May run twice; the first end is retained and counted. A run that is to run again becomes due in
        the same transaction."""
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
        """Ends the runs of servers that had the lease before this epoch. Returns their ids."""
        with self.transaction() as connection:
            former = and_(run.c.state == "running", run.c.epoch < epoch)
            found = [str(id) for id in connection.execute(select(run.c.id).where(former)).scalars()]
        for id in found:
            hint = "its lease expires by itself; the next run continues from the current state"
            self.end(id, Ended("lost", message="its server disappeared", hint=hint, again=True))
        return found

    def cancel(self, id: str, by: str) -> ServiceRun:
        """Requests the end of a run; a queued run ends immediately. May run twice. Raises ObjectNotFound."""
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
        """Deletes runs that ended more than `seconds` ago, at most 10,000 at a time. Returns their ids."""
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
        """Returns the store's time. SQLite uses this machine's clock, as its file is local."""
        if self.file is not None:
            return time.time()
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def _upsert(self, connection: Connection, name: str, **values: Any) -> None:
        if not connection.execute(update(job).where(job.c.name == name).values(**values)).rowcount:
            empty = {"schedule": "", "due": 0.0, "paused": False, "paused_by": "", "reason": ""}
            connection.execute(insert(job).values(name=name, **{**empty, **values}))


# ---- actions ---------------------------------------------------------------------------------------------------------
# Actions over HTTP: who did what, from where and why; and the response for a request that is sent again.


@dataclass(frozen=True)
class Action:
    """An action over HTTP. at: when it was last started, seconds since 1970 by the store's clock. subject: a job, a
    run, or "*" for all. key: of the request; None: it had none. answer: the response, as JSON. digest: of the request's
    body; "": not known."""

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
    """A filter of actions; empty fields match all. since: seconds since 1970."""

    who: str = ""
    action: str = ""
    subject: str = ""
    since: float = 0.0


UNFINISHED = {"unfinished": True}
"""The response of an action that is running, or was running when its server died."""


def write_action(connection: Connection, at: float, done: Action, answer: Any) -> int:
    """Records an action within a transaction. Returns its id, which the store assigns. Raises Error if the user's key
    was used before."""
    values: dict[str, Any] = {name: getattr(done, name) for name in ("who", "address", "action", "subject", "reason")}
    values |= {"at": at, "request_key": done.key, "request_digest": done.digest or None, "answer": json.dumps(answer)}
    return int(connection.execute(insert(action).values(**values).returning(action.c.id)).scalar_one())


def recording(store: ServiceStore, done: Action) -> Also:
    """Returns a function that records an action in the transaction that queues its run."""

    def write(connection: Connection, run: str, new: bool) -> None:
        write_action(connection, store.clock(connection), done, {"run": run, "new": new})

    return write


def open_action(store: ServiceStore, begun: Action) -> int:
    """Records an action before it is done. Returns its id. Raises as `write_action`."""
    with store.transaction() as connection:
        return write_action(connection, store.clock(connection), begun, UNFINISHED)


def reopen_action(store: ServiceStore, before: Action) -> bool:
    """Restarts an open action if it is unchanged since it was read. Returns True for only one of several concurrent
    callers."""
    same = and_(action.c.id == before.id, action.c.at == before.at, action.c.answer == json.dumps(before.answer))
    with store.transaction() as connection:
        again = {"at": store.clock(connection), "answer": json.dumps(UNFINISHED)}
        return bool(connection.execute(update(action).where(same).values(**again)).rowcount)


def set_answer(store: ServiceStore, id: int, answer: Any) -> None:
    """Stores the response of an open action; {"failed": why} if it failed. May run twice."""
    with store.transaction() as connection:
        connection.execute(update(action).where(action.c.id == id).values(answer=json.dumps(answer)))


def is_open(done: Action) -> bool:
    """Returns True if the action may be done again: it failed, or its end is not known."""
    return done.answer == UNFINISHED or (isinstance(done.answer, dict) and set(done.answer) == {"failed"})


def actions_about(store: ServiceStore, subject: str, names: Sequence[str]) -> list[Action]:
    """Returns the actions of these names about a subject, oldest first; at most 1,000."""
    found = _actions(store, action.c.subject == subject, action.c.action.in_(names), limit=1000)
    return found[::-1]


def action_of(store: ServiceStore, who: str, key: str) -> Action | None:
    """Returns the action of a request with this key; None: there was none."""
    found = _actions(store, action.c.who == who, action.c.request_key == key, limit=1)
    return found[0] if found else None


def actions(
    store: ServiceStore, *, before: int = 0, limit: int = 50, wanted: ActionFilter = ActionFilter()
) -> list[Action]:
    """Returns actions, newest first. before: an id; only older ones."""
    where = [action.c.id < before] if before else []
    where += [action.c[name] == value for name in ("who", "action", "subject") if (value := getattr(wanted, name))]
    where += [action.c.at >= wanted.since] if wanted.since else []
    return _actions(store, *where, limit=limit)


def _actions(store: ServiceStore, *where: Any, limit: int) -> list[Action]:
    with store.transaction() as connection:
        rows = connection.execute(select(action).where(*where).order_by(action.c.id.desc()).limit(limit)).all()
    return [_to_action(row) for row in rows]


def _to_action(row: Row[Any]) -> Action:
    """Converts a row. Its columns are named like the fields, except those of the request."""
    fields: dict[str, Any] = dict(row._mapping)
    key, digest = fields.pop("request_key"), fields.pop("request_digest") or ""
    return Action(key=key, digest=digest, answer=json.loads(fields.pop("answer")), **fields)
