"""Counters and samples in the service's store, as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from replicator.service.measuring.tally import Count
from replicator.service.schema import counter, sample


@dataclass(frozen=True)
class Sample:
    """What was measured of something at a time, in seconds since 1970 by the store's clock."""

    kind: str
    subject: str
    at: float
    value: Any


def add(connection: Connection, counts: Iterable[Count]) -> None:
    """Adds to counters, within a transaction that says once what is counted."""
    for name, labels, amount in sorted(counts):  # in one order, so that two transactions never wait for each other
        values = {"name": name, "labels": json.dumps(labels), "value": amount}
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        there = dialect.insert(counter).values(values)
        connection.execute(
            there.on_conflict_do_update(
                index_elements=[counter.c.name, counter.c.labels], set_={"value": counter.c.value + amount}
            )
        )


def counts(connection: Connection) -> list[Count]:
    """All counters, by name and labels."""
    rows = connection.execute(select(counter).order_by(counter.c.name, counter.c.labels))
    return [(row.name, tuple((key, value) for key, value in json.loads(row.labels)), row.value) for row in rows]


def remember(connection: Connection, given: Sample) -> None:
    """In the place of the former one of the same kind and subject."""
    values = {"at": given.at, "value": json.dumps(given.value)}
    of = (sample.c.kind == given.kind, sample.c.subject == given.subject)
    if not connection.execute(update(sample).where(*of).values(**values)).rowcount:
        connection.execute(insert(sample).values(kind=given.kind, subject=given.subject, **values))


def samples(connection: Connection, kind: str) -> dict[str, Sample]:
    """The newest one of each subject."""
    rows = connection.execute(select(sample).where(sample.c.kind == kind).order_by(sample.c.subject))
    return {row.subject: Sample(row.kind, row.subject, row.at, json.loads(row.value)) for row in rows}
