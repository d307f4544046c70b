"""Actions over HTTP: who did what, from where and why; and what a request was answered that is sent again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, select

from replicator.service.schema import action
from replicator.service.store import ServiceStore


@dataclass(frozen=True)
class Action:
    """at: seconds since 1970 by the store's clock. subject: a job, a run, or "*" for all. key: of the request; None: it
    had none. answer: what it was answered, as JSON."""

    id: int
    at: float
    who: str
    address: str
    action: str
    subject: str
    reason: str
    key: str | None
    answer: Any


def record_action(store: ServiceStore, done: Action) -> None:
    """Its id and time are the store's. Raises Error for a second one of a person's key."""
    values: dict[str, Any] = {name: getattr(done, name) for name in ("who", "address", "action", "subject", "reason")}
    values |= {"at": store.now(), "request_key": done.key, "answer": json.dumps(done.answer)}
    with store.transaction() as connection:
        connection.execute(insert(action).values(**values))


def action_of(store: ServiceStore, who: str, key: str) -> Action | None:
    """What a request with this key did; None: there was none."""
    found = _actions(store, action.c.who == who, action.c.request_key == key, limit=1)
    return found[0] if found else None


def actions(store: ServiceStore, *, before: int = 0, limit: int = 50) -> list[Action]:
    """Newest first. before: an id: older ones only."""
    return _actions(store, *([action.c.id < before] if before else []), limit=limit)


def _actions(store: ServiceStore, *where: Any, limit: int) -> list[Action]:
    with store.transaction() as connection:
        rows = connection.execute(select(action).where(*where).order_by(action.c.id.desc()).limit(limit)).all()
    return [_to_action(row) for row in rows]


def _to_action(row: Row[Any]) -> Action:
    """Its columns are called as the fields, but for the key."""
    fields: dict[str, Any] = dict(row._mapping)
    return Action(key=fields.pop("request_key"), answer=json.loads(fields.pop("answer")), **fields)
