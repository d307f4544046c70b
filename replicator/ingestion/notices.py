"""The outbox of notifications in the ingestion store: any controller delivers them.

Each change of a job is a row of the store, written in the same transaction. Messages are derived from these rows, in
the transaction that records up to which row a receiver has its messages. So no message is lost if a process is killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, update

from cmroot.store.place import parent
from cmroot.text import shown
from replicator.core.connections import read_secret
from replicator.core.model import Value
from replicator.core.sending import PATIENCE, KafkaTopic, call, failure_of, post
from replicator.core.service_config import CHANNELS, LINEAGE, LineageConfig, NotifyConfig, WebhookConfig
from replicator.core.text import without_credentials
from replicator.ingestion import job_queries as queries
from replicator.ingestion.ingestion_request import Asset, JobChange, Request
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.landing_schema import LOAD
from replicator.ingestion.schema import change, message, receiver, turn
from replicator.policies.lineage import PRODUCER, datasets, send

# ---- notice ----------------------------------------------------------------------------------------------------------
# Content of notifications: which changes of jobs are reported, and how. Pure.


OFTEN, AGAIN = 4, 24
"""Failures of a job, of a kind that is retried, after which the first notification is sent, and the interval to each
further one: by then the quick retries are exhausted, and then a day of hourly ones."""

DATASET_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/DatasetEvent"
FACETS = "https://openlineage.io/spec/facets"


class Notice(Value, frozen=True, omit_defaults=False):
    """A notification about a job. key: the same for each delivery. state: done: readers see the data; failed_user,
    failed_type: it waits for another request; failed, published: it failed repeatedly, before or after publication, and
    is retried; expired: it is abandoned. at: ISO 8601."""

    key: str
    job: int
    attempt: int
    asset: str
    source: str
    target: str
    mode: str
    state: str
    step: str
    requested_by: str
    event_id: int | None
    rows: int | None
    bytes: int | None
    files: int | None
    erased_rows: int | None
    consistent: bool | None
    schema_hash: str | None
    error_kind: str
    error_text: str
    at: str


class TableSchema(Value, frozen=True, omit_defaults=False):
    """The schema of a landing table. columns, partitioned_by: name and type of each. location: the directory of the
    table, which contains its versions."""

    asset: str
    table: str
    columns: tuple[tuple[str, str], ...]
    partitioned_by: tuple[tuple[str, str], ...]
    schema_hash: str
    owner: str
    classification: str
    location: str


class Message(Value, frozen=True, omit_defaults=False):
    """A message. about: the key, or a topic of which only the newest message counts. at: seconds since 1970."""

    about: str
    key: str
    job: int
    at: float
    body: str


def is_told(channel: str, change: JobChange, failures: int) -> bool:
    """Returns True if a channel is notified of a change. failures: of its job, including this one."""
    if channel != "failures":
        return change.state == "done"
    if change.state in ("failed_user", "failed_type", "expired"):
        return True
    is_often = failures >= OFTEN and (failures - OFTEN) % AGAIN == 0
    return bool(change.error_kind) and change.state in ("failed", "published") and is_often


def notice_of(change: JobChange) -> Message:
    key = f"{change.job}-{change.attempt}-{change.state}"
    same = {name: getattr(change, name) for name in Notice.__struct_fields__ if hasattr(change, name)}
    told = {**same, "requested_by": change.requester, "at": datetime.fromtimestamp(change.at, UTC).isoformat()}
    body = msgspec.json.encode(Notice(key=key, **told)).decode()
    return Message(about=key, key=key, job=change.job, at=change.at, body=body)


def schemas_of(change: JobChange, asset: Asset, request: Request, facts: Mapping[str, Any]) -> Iterator[Message]:
    """Yields the schemas of a job's table and of those into which its rows were flattened; none if nothing was
    published."""
    parts = {f"{request.table}__{name}".lower(): part for name, part in facts.get("parts", {}).items()}
    for table, found in {request.table.lower(): facts, **parts}.items():
        if not found.get("schema_hash") or not found.get("location"):
            continue
        key_column = ("day", "date") if "days" in found else (LOAD.name, LOAD.type)
        made = TableSchema(
            asset=asset.name,
            table=f"{request.target[0]}.{table}",
            columns=tuple((name, kind) for name, kind in found["columns"]),
            partitioned_by=(key_column,) if request.mode == "append" else (),
            schema_hash=found["schema_hash"],
            owner=asset.owner,
            classification=asset.classification,
            location=parent(found["location"]),
        )
        body, key = msgspec.json.encode(made).decode(), f"{change.job}-{change.attempt}-{made.table}"
        yield Message(about=made.table, key=key, job=change.job, at=change.at, body=body)


def dataset_event(message: Message, uri: str) -> bytes:
    """Returns a table's schema as an OpenLineage event. uri: of the metastore."""
    told = msgspec.json.decode(message.body, type=TableSchema)
    db, _, name = told.table.partition(".")
    fields = [{"name": column, "type": kind} for column, kind in (*told.columns, *told.partitioned_by)]
    facets = {
        "schema": {"fields": fields, **_facet("1-1-1", "SchemaDatasetFacet")},
        "ownership": {"owners": [{"name": told.owner}], **_facet("1-0-1", "OwnershipDatasetFacet")},
    }
    event = {
        "eventTime": datetime.fromtimestamp(message.at, UTC).isoformat(),
        "dataset": {**datasets(uri, [(db, name)])[0], "facets": facets},
        "producer": PRODUCER,
        "schemaURL": DATASET_SCHEMA,
    }
    return msgspec.json.encode(event)


def _facet(version: str, name: str) -> dict[str, str]:
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{version}/{name}.json#/$defs/{name}"}


# ---- outbox ----------------------------------------------------------------------------------------------------------


BATCH = 1000
"""Maximum number of changes that are processed in one transaction."""

SENDING = 60.0
"""Seconds for which a receiver is reserved for one controller; then another one sends the same message again."""

FIRST, LONGEST = 10.0, 300.0
"""Seconds from a failure to a receiver's next attempt: the first and the longest delay, doubled each time."""

ERROR = 300
"""Maximum number of characters of an error that are stored."""


class Undelivered(Value, frozen=True, omit_defaults=False):
    """A message that a receiver has not got. receiver: CHANNEL.KIND.NAME. at: time of the reported change, in seconds
    since 1970. tries: so far; error: of the last one."""

    receiver: str
    key: str
    job: int
    at: float
    tries: int
    error: str


class Outbox:
    """The outbox of one store. Raises as `Database`."""

    def __init__(self, store: IngestionStore) -> None:
        self._store = store

    def address(self, names: Sequence[str]) -> None:
        """Creates the messages of new changes. A new receiver is notified only of changes from now on."""
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
        connection.execute(mine.values(seen=now))  # before its messages, in the order of senders: no deadlock
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
        """Reserves and returns a receiver's next message: the caller must report the outcome within `SENDING` seconds.
        None: there is none, or the receiver waits, or another controller sends to it."""
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
        """Records the delivery of a message. May run twice."""
        with self._store.writing() as connection:
            now = self._store.now()
            connection.execute(update(receiver).where(receiver.c.name == name).values(due=0.0, failures=0))
            if name.startswith("schemas."):
                connection.execute(update(message).where(*_this(name, sent)).values(delivered=now))
            else:
                connection.execute(delete(message).where(*_this(name, sent)))

    def failed(self, name: str, sent: Message, error: str) -> float:
        """Records a failed delivery; returns the seconds until the next attempt. Messages with fewer attempts are sent
        first: a message that is never accepted does not block others."""
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
        """Returns undelivered messages, oldest first. job: only those of this job, including those not created yet."""
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
        """Deletes receivers that were in no controller's configuration for `seconds`, with their messages; returns
        their names. names: configured receivers."""
        with self._turn() as connection:
            gone = (receiver.c.name.not_in(names), receiver.c.seen < self._store.now() - seconds)
            found = [str(name) for name in connection.execute(select(receiver.c.name).where(*gone)).scalars()]
            connection.execute(delete(receiver).where(receiver.c.name.in_(found)))
            connection.execute(delete(message).where(message.c.receiver.in_(found)))
        return found

    @contextmanager
    def _turn(self) -> Iterator[Connection]:
        """A transaction that is serialised with changes of jobs."""
        with self._store.writing() as connection:
            connection.execute(update(turn).values(fence=turn.c.fence))
            yield connection


def _this(name: str, sent: Message) -> Sequence[ColumnElement[bool]]:
    """Returns a condition for exactly this message of a receiver, not for one that has replaced it since: SQLite reuses
    the id of a deleted message."""
    return message.c.receiver == name, message.c.about == sent.about, message.c.key == sent.key


def _newest(connection: Connection) -> int:
    return int(connection.execute(select(func.max(change.c.id))).scalar() or 0)


def _told(connection: Connection) -> dict[str, int]:
    """Returns, by receiver, the last change for which its messages were created."""
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
    """Returns the number of retried failures of the change's job, up to this change."""
    tried = (change.c.job == each.job, change.c.id <= each.id, change.c.error_kind != "")
    states = change.c.state.in_(("failed", "published"))
    return int(connection.execute(select(func.count(change.c.id)).where(*tried, states)).scalar_one())


def _unaddressed(connection: Connection, job: int) -> Iterator[Undelivered]:
    changes = queries.find_detail(connection, job).changes
    for name, told in _told(connection).items():
        for each in changes:
            for made in _messages(connection, name, each) if each.id > told else ():
                yield Undelivered(receiver=name, key=made.key, job=job, at=made.at, tries=0, error="")


# ---- courier ---------------------------------------------------------------------------------------------------------
# Delivery of the outbox concurrently with the work of a controller: a receiver that is down or slow delays neither jobs
# nor other receivers.


log = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two polls for messages."""

LAST = 20.0
"""Seconds for which a controller that shuts down continues sending."""

KEY = "Idempotency-Key"

Send = Callable[[Message], None]
"""Raises an exception if the message was not delivered."""


def senders_of(notify: NotifyConfig, lineage: LineageConfig, uri: str) -> dict[str, Send]:
    """Returns senders by channel and receiver, CHANNEL.KIND.NAME. uri: of the metastore of landing tables. Raises
    ConfigError for a receiver whose library is not installed."""
    kinds: dict[str, Send] = {
        **{f"webhooks.{name}": partial(_post, name, each) for name, each in notify.webhooks.items()},
        **{f"commands.{name}": partial(_call, each.command) for name, each in notify.commands.items()},
        **{f"kafka.{name}": partial(_produce, KafkaTopic(name, each)) for name, each in notify.kafka.items()},
        LINEAGE: partial(_tell_lineage, lineage, uri),
    }
    return {f"{channel}.{name}": kinds[name] for channel in CHANNELS for name in getattr(notify, channel)}


def _post(name: str, hook: WebhookConfig, message: Message) -> None:
    secret = read_secret(hook.secret, f"ingestion.notify.webhooks.{name}.secret") if hook.secret else ""
    post(hook.url, message.body.encode(), {KEY: message.key}, secret)


def _call(command: tuple[str, ...], message: Message) -> None:
    call(command, message.body.encode())


def _produce(topic: KafkaTopic, message: Message) -> None:
    topic.send(message.key, message.body.encode())


def _tell_lineage(config: LineageConfig, uri: str, message: Message) -> None:
    send(config, dataset_event(message, uri), {KEY: message.key})


class Courier:
    """Delivery by a thread for each receiver, inside the block and up to `LAST` seconds after it for the last
    messages."""

    def __init__(self, store: IngestionStore, senders: Mapping[str, Send], forget_after: float) -> None:
        """forget_after: seconds after which a receiver that is in no configuration any more is deleted."""
        self.outbox, self._senders, self._forget_after = Outbox(store), senders, forget_after
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._deliver_all, args=(name, sender), name=f"to-{name}", daemon=True)
            for name, sender in senders.items()
        ]

    def __enter__(self) -> Self:
        if self._senders:
            self.outbox.address(list(self._senders))
        for name in self.outbox.forget(list(self._senders), self._forget_after):
            log.warning("%s is no longer configured: it is deleted with its undelivered messages", name)
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        until = time.monotonic() + LAST + 2 * PATIENCE
        for each in self._threads:
            each.join(max(0.0, until - time.monotonic()))

    def _deliver_all(self, name: str, sender: Send) -> None:
        ended = False
        while not ended:
            ended = self._over.wait(PERIOD)
            try:
                self._deliver(name, sender)
            except Exception as error:  # such as an unavailable store: it retains the messages
                log.warning("%s: delivery of messages failed: %s", name, error)

    def _deliver(self, name: str, sender: Send) -> None:
        self.outbox.address([name])
        until = time.monotonic() + LAST
        while (message := self.outbox.take(name)) is not None:
            if failure := failure_of(partial(sender, message)):
                wait = self.outbox.failed(name, message, failure)
                log.warning("%s: message %s was not delivered, retried in %.0f s: %s", name, message.key, wait, failure)
                return
            self.outbox.delivered(name, message)
            if self._over.is_set() and time.monotonic() > until:
                return
