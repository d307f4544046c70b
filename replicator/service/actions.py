"""Actions over HTTP: who did what, from where and why; and what a request was answered that is sent again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, insert, select, update

from replicator.service.schema import action
from replicator.service.store import Beside, ServiceStore


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
