"""What receivers have not got yet, in the ingestion store: any controller delivers it.

Each change of a job is a row of the store, written with it: messages are made of these rows, in the transaction that
notes up to which one a receiver has its messages. So whoever is killed, and wherever, none is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, update

from cmroot.text import shown
from replicator.core.model import Value
from replicator.core.text.credentials import without_credentials
from replicator.ingestion import job_queries as queries
from replicator.ingestion.ingestion_job import JobChange
from replicator.ingestion.ingestion_request import Request
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.notices.notice import Message, is_told, notice_of, schemas_of
from replicator.ingestion.schema import change, message, receiver, turn

BATCH = 1000
"""Changes that are looked at together."""

SENDING = 60.0
"""Seconds for which a receiver is one controller's; then another one sends the same message again."""

FIRST, LONGEST = 10.0, 300.0
"""Seconds to a receiver's next try after a failure: doubled each time."""

ERROR = 300
"""Characters of an error that are kept."""


class Undelivered(Value, frozen=True, omit_defaults=False):
    """A message that a receiver has not got. receiver: CHANNEL.KIND.NAME. at: of what it tells, in seconds since 1970.
    tries: so far; error: of the last one."""

    receiver: str
    key: str
    job: int
    at: float
    tries: int
    error: str


class Outbox:
    """Of one store. Raises as `Database`."""

    def __init__(self, store: IngestionStore) -> None:
        self._store = store

    def address(self, names: Sequence[str]) -> None:
        """Makes the messages of what has changed. A receiver that is new hears of what comes from now on."""
        with self._store.transaction() as connection:
            newest = _newest(connection)
            told = _told(connection)
        while any(told.get(name, -1) < newest for name in names):
            with self._turn() as connection:
                told = self._address(connection, names, _newest(connection))

    def _address(self, connection: Connection, names: Sequence[str], newest: int) -> dict[str, int]:
        now = self._store.now()
        told = _told(connection)
        for name in (each for each in names if each not in told):
            connection.execute(insert(receiver).values(name=name, told=newest, due=0.0, failures=0, seen=now))
            told[name] = newest
        mine = update(receiver).where(receiver.c.name.in_(names))
        connection.execute(mine.values(seen=now))  # before its messages, as whoever sends one does: nobody deadlocks
        found = queries.find_changes(connection, min(told[name] for name in names), BATCH)
        for each in found:
            for name in names:
                if told[name] < each.id:
                    self._add(connection, name, each)
        until = found[-1].id if found else newest
        told |= {name: max(told[name], until) for name in names}
        for name in names:
            connection.execute(update(receiver).where(receiver.c.name == name).values(told=told[name]))
        return told

    def _add(self, connection: Connection, name: str, each: JobChange) -> None:
        for made in _messages(connection, name, each):
            mine = (message.c.receiver == name, message.c.about == made.about)
            before = connection.execute(select(message.c.body, message.c.delivered).where(*mine)).first()
            if before is not None and before.delivered is not None and before.body == made.body:
                continue
            connection.execute(delete(message).where(*mine))
            values = {name: getattr(made, name) for name in Message.__struct_fields__}
            connection.execute(insert(message).values(receiver=name, tries=0, error="", delivered=None, **values))

    def take(self, name: str) -> Message | None:
        """A receiver's next message: who takes it says within `SENDING` seconds what became of it. None: there is none,
        or the receiver waits, or another controller sends to it."""
        waits = and_(message.c.receiver == name, message.c.delivered.is_(None))
        with self._store.writing() as connection:
            now = self._store.now()
            free = (receiver.c.name == name, receiver.c.due <= now, exists().where(waits))
            if not connection.execute(update(receiver).where(*free).values(due=now + SENDING, seen=now)).rowcount:
                return None
            query = select(message).where(waits).order_by(message.c.tries, message.c.id).limit(1)
            row = connection.execute(query).mappings().one()
        return Message(**{name: row[name] for name in Message.__struct_fields__})

    def delivered(self, name: str, sent: Message) -> None:
        """A receiver has its message. May run twice."""
        with self._store.writing() as connection:
            now = self._store.now()
            connection.execute(update(receiver).where(receiver.c.name == name).values(due=0.0, failures=0))
            if name.startswith("schemas."):
                connection.execute(update(message).where(*_this(name, sent)).values(delivered=now))
            else:
                connection.execute(delete(message).where(*_this(name, sent)))

    def failed(self, name: str, sent: Message, error: str) -> float:
        """A receiver has not got its message; seconds until it is tried again. Those that were tried less come first:
        one that nobody takes holds up no other."""
        with self._store.writing() as connection:
            mine, kept = receiver.c.name == name, without_credentials(shown(error)).replace("\0", "")[:ERROR]
            connection.execute(update(receiver).where(mine).values(failures=receiver.c.failures + 1))
            failures = int(connection.execute(select(receiver.c.failures).where(mine)).scalar_one())
            wait = min(FIRST * 2.0 ** min(failures - 1, 10), LONGEST)
            connection.execute(update(receiver).where(mine).values(due=self._store.now() + wait))
            tried = {"tries": message.c.tries + 1, "error": kept}
            connection.execute(update(message).where(*_this(name, sent)).values(**tried))
        return wait

    def undelivered(self, job: int | None = None) -> list[Undelivered]:
        """What receivers have not got, oldest first, also what no controller has addressed to them yet. job: only of
        it."""
        with self._store.transaction() as connection:
            query = select(message).where(message.c.delivered.is_(None)).order_by(message.c.id)
            if job is not None:
                query = query.where(message.c.job == job)
            rows = connection.execute(query).mappings().all()
            found = [Undelivered(**{name: row[name] for name in Undelivered.__struct_fields__}) for row in rows]
            if job is not None:
                found += _unaddressed(connection, job)
        return found

    def forget(self, names: Sequence[str], seconds: float) -> list[str]:
        """Receivers that no controller has had in its configuration for so long are forgotten, with their messages;
        their names. names: those that are there."""
        with self._turn() as connection:
            gone = (receiver.c.name.not_in(names), receiver.c.seen < self._store.now() - seconds)
            found = [str(name) for name in connection.execute(select(receiver.c.name).where(*gone)).scalars()]
            connection.execute(delete(receiver).where(receiver.c.name.in_(found)))
            connection.execute(delete(message).where(message.c.receiver.in_(found)))
        return found

    @contextmanager
    def _turn(self) -> Iterator[Connection]:
        """As changes of jobs are made: one at a time."""
        with self._store.writing() as connection:
            connection.execute(update(turn).values(fence=turn.c.fence))
            yield connection


def _this(name: str, sent: Message) -> Sequence[ColumnElement[bool]]:
    """A receiver's message, whatever has taken its place meanwhile: SQLite gives a number again once its message is
    gone."""
    return message.c.receiver == name, message.c.about == sent.about, message.c.key == sent.key


def _newest(connection: Connection) -> int:
    return int(connection.execute(select(func.max(change.c.id))).scalar() or 0)


def _told(connection: Connection) -> dict[str, int]:
    """By receiver, the last change of which it has its messages."""
    return {str(name): int(told) for name, told in connection.execute(select(receiver.c.name, receiver.c.told))}


def _messages(connection: Connection, name: str, each: JobChange) -> Iterator[Message]:
    channel = name.partition(".")[0]
    if not each.error_kind and each.state not in ("done", "expired"):
        return
    if not is_told(channel, each, _failures(connection, each)):
        return
    if channel != "schemas":
        yield notice_of(each)
        return
    row: dict[str, Any] = queries.find_row(connection, each.job)
    request = msgspec.json.decode(row["request"], type=Request)
    facts = msgspec.json.decode(row["facts"])
    yield from schemas_of(each, queries.find_asset(connection, each.asset), request, facts)


def _failures(connection: Connection, each: JobChange) -> int:
    """Of its job, up to this change; those that are tried again."""
    tried = (change.c.job == each.job, change.c.id <= each.id, change.c.error_kind != "")
    states = change.c.state.in_(("failed", "published"))
    return int(connection.execute(select(func.count(change.c.id)).where(*tried, states)).scalar_one())


def _unaddressed(connection: Connection, job: int) -> Iterator[Undelivered]:
    changes = queries.find_detail(connection, job).changes
    for name, told in _told(connection).items():
        for each in changes:
            for made in _messages(connection, name, each) if each.id > told else ():
                yield Undelivered(receiver=name, key=made.key, job=job, at=made.at, tries=0, error="")
