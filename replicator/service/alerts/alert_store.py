"""Alerts in the service's store: those that were raised, and what each channel was told."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from replicator.service.schema import alert
from replicator.service.store import ServiceStore


@dataclass(frozen=True)
class OpenAlert:
    """One that was raised. told: channel -> what it was told last, and when. over: None: it is not. Times are seconds
    since 1970."""

    key: str
    id: str
    kind: str
    subject: str
    text: str
    hint: str
    since: float
    over: float | None
    told: dict[str, tuple[str, float]]


def open_alerts(store: ServiceStore) -> list[OpenAlert]:
    """Those that are not over, or of which not all channels know that, oldest first."""
    with store.transaction() as connection:
        rows = connection.execute(select(alert).order_by(alert.c.since, alert.c.key)).mappings().all()
    return [
        OpenAlert(**{**row, "told": {name: (each[0], each[1]) for name, each in json.loads(row["told"]).items()}})
        for row in rows
    ]


def record(store: ServiceStore, key: str, kind: str, subject: str, said: tuple[str, str], now: float) -> None:
    """Raises an alert, or goes on with it; said: its text and hint. May run twice."""
    text, hint = said
    with store.transaction() as connection:
        there = update(alert).where(alert.c.key == key).values(over=None, text=text, hint=hint)
        if not connection.execute(there).rowcount:
            values = {"id": uuid.uuid4().hex, "kind": kind, "subject": subject, "text": text, "hint": hint}
            connection.execute(insert(alert).values(key=key, since=now, over=None, told="{}", **values))


def finish(store: ServiceStore, key: str, now: float) -> None:
    """An alert is over. May run twice; the first time stays."""
    with store.transaction() as connection:
        connection.execute(update(alert).where(alert.c.key == key, alert.c.over.is_(None)).values(over=now))


def remember(store: ServiceStore, key: str, told: Mapping[str, tuple[str, float]]) -> None:
    """What channels were told."""
    with store.transaction() as connection:
        connection.execute(update(alert).where(alert.c.key == key).values(told=json.dumps(dict(told))))


def forget(store: ServiceStore, key: str) -> None:
    """An alert that is over, and of which all know. May run twice."""
    with store.transaction() as connection:
        connection.execute(delete(alert).where(alert.c.key == key, alert.c.over.is_not(None)))
