"""A Hive metastore over thrift: the `Metastore` protocol as calls of the 2.3 interface, which newer servers support as
well.

Retries and errors are in `connection`, the conversion of structs to values in `codecs`, requests in `requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import methodcaller as call
from typing import Any, TypeVar

from replicator.core.connections import MetastoreConfig, checked
from replicator.core.formats import is_transactional
from replicator.core.grouping import batched
from replicator.core.model import Database, Function, NotificationEvent, Partition, Table, partition_name
from replicator.core.text import count_text
from replicator.errors import MetastoreError, NotificationLogOff, NotificationRefused, ObjectNotFound
from replicator.metastore import requests
from replicator.metastore import requests as convert
from replicator.metastore.client import (
    EVENT_BATCH,
    PACKAGE,
    PARTITION_BATCH,
    PROCEDURE,
    ObjectKind,
    ServerObject,
    answer_about_one,
)
from replicator.metastore.concurrency import side_by_side
from replicator.metastore.connection import Connections
from replicator.metastore.grants import GrantCalls
from replicator.metastore.newer_servers import DriftGuard, InCatalog, StatisticsCalls
from replicator.metastore.requests import ConstraintCalls, Send
from replicator.metastore.traffic import Traffic
from replicator.metastore.transactions import TransactionCalls

# ---- notifications ---------------------------------------------------------------------------------------------------
# Errors of a notification log that cannot be read: the metastore does not write one, or refuses this user.


LISTENERS = ("hive.metastore.transactional.event.listeners", "hive.metastore.event.listeners")
AUTH = "hive.metastore.event.db.notification.api.auth"
_SAYS = ("Internal error", "not authorized", "not allowed")  # servers hide the reason behind the first


def log_off(uri: str) -> NotificationLogOff:
    return NotificationLogOff(
        f"the metastore at {uri} keeps no notification log: no DbNotificationListener is configured",
        hint="in hive-site.xml set hive.metastore.transactional.event.listeners to "
        "org.apache.hive.hcatalog.listener.DbNotificationListener (or hive.metastore.event.listeners, where events "
        "are written after the change), and hive.metastore.event.db.listener.timetolive to the days you need; "
        "then restart the metastore",
    )


def is_refusal(error: MetastoreError, setting: Callable[[str], str]) -> bool:
    """Returns True if a call for events failed because the server requires a proxy user."""
    return any(each in error.message for each in _SAYS) and setting(AUTH).strip().lower() == "true"


def refused(config: MetastoreConfig, error: MetastoreError) -> NotificationRefused:
    user = (config.client_principal or config.user or "").partition("@")[0].partition("/")[0]
    whom = f"hadoop.proxyuser.{user or '<user>'}"
    who = "" if user else ", where <user> is the name by which the server knows this client (without Kerberos its own)"
    return NotificationRefused(
        f"the metastore at {config.uri} does not let this user read its notification log ({error.message})",
        hint=f"in the metastore's core-site.xml set {whom}.hosts and {whom}.groups to where this client runs, or to *"
        f"{who}; or set {AUTH} to false in its metastore-site.xml; then restart it",
    )


# ---- thrift ----------------------------------------------------------------------------------------------------------


TIMEOUT = 600.0  # seconds for one response, Hive's own default: dropping a large table takes minutes
RETRIES = 4  # retries of a read: 1.5 s of waiting in total
LIMITED = "exceeds limit"  # of servers that limit the partitions of a call; newer ones also count named partitions

T = TypeVar("T")


def connect(metastore: str | MetastoreConfig) -> ThriftMetastore:
    """Returns a metastore by its URI or configuration. Sends nothing before the first call."""
    return ThriftMetastore(metastore)


class ThriftMetastore(InCatalog, ConstraintCalls, StatisticsCalls, GrantCalls, TransactionCalls):
    """The implementation of `client.Metastore`; `timeout`: seconds for one response (None: as configured), `retries`:
    of a read."""

    def __init__(
        self, metastore: str | MetastoreConfig, *, timeout: float | None = None, retries: int = RETRIES
    ) -> None:
        self._config = checked(metastore)
        limit = self._config.seconds("answer_timeout", TIMEOUT) if timeout is None else timeout
        self._connections = Connections(self._config, timeout=limit, retries=retries)
        self._drift = DriftGuard(self._connections)
        self._logs_events = False
        self._in_catalog(self._config.catalog, timeout=timeout, retries=retries)
        self._answers_whole = True

    @property
    def traffic(self) -> Traffic:
        return self._connections.traffic

    @property
    def uri(self) -> str:
        return self._config.uri

    @property
    def config(self) -> MetastoreConfig:
        return self._config

    @property
    def connection(self) -> str:
        return self._config.described()

    def close(self) -> None:
        self._close_others()
        self._connections.close()

    def __enter__(self) -> ThriftMetastore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the notification log

    def current_event_id(self) -> int:
        newest: int = self._read_log("current event id", call("get_current_notificationEventId")).eventId
        if not self._logs_events:
            self._check_log(newest)
            self._logs_events = True
        return newest

    def _check_log(self, newest: int) -> None:
        """Checks that a listener is configured: a server without one returns 0, or the last id from when it had one."""
        named = ",".join(map(self.setting, LISTENERS))
        if not ("Notification" in named or (newest > 0 and named)):
            raise log_off(self.uri)

    def _read_log(self, what: str, send: Send) -> Any:
        """Runs a call for events. Raises NotificationRefused if the server allows it only for proxy users."""
        try:
            return self._read(what, send)
        except MetastoreError as error:
            if error.transient or not is_refusal(error, self.setting):
                raise
            raise refused(self._config, error) from error

    def setting(self, key: str) -> str:
        return self._read(f"setting {key}", call("get_config_value", key, "")) or ""

    def next_events(self, after: int, limit: int = EVENT_BATCH, skip: Collection[str] = ()) -> list[NotificationEvent]:
        answer = self._read_log(f"events after {after}", requests.next_events(after, limit, skip))
        return [convert.event_from_thrift(self._own(event)) for event in answer.events or ()]

    # --- databases

    def database_names(self) -> list[str]:
        return list(self._read("database names", call("get_all_databases")))

    def database(self, name: str) -> Database:
        return convert.database_from_thrift(self._seen("database", name, call("get_database", name)))

    def create_database(self, database: Database) -> None:
        thrift = convert.database_to_thrift(database)
        self._change(f"create database {database.name}", call("create_database", thrift))

    def alter_database(self, name: str, database: Database) -> None:
        thrift = convert.database_to_thrift(database)
        self.database(name)  # 2.3 reports no error for a missing database
        self._change(f"alter database {name}", call("alter_database", name, thrift))

    def drop_database(self, name: str) -> None:
        try:
            self._change(f"drop database {name}", call("drop_database", name, False, False))
        except MetastoreError as error:
            if not error.transient:
                self.database(name)  # 2.3 raises a NullPointerException if it does not exist
            raise

    def server_objects(self, databases: Collection[str]) -> list[ServerObject]:
        """Does not query older servers: they log an error for each unknown call."""
        if not self._newer_kinds:  # before Hive 3
            return []
        found = self._listed("resource plan", requests.resource_plans())
        if self.announces_constraints():  # since Hive 4
            found += self._listed("data connector", requests.data_connectors())
            found += self._in_databases(PROCEDURE, requests.stored_procedures, databases)
            found += self._in_databases(PACKAGE, requests.packages, databases)
        return found

    def _listed(self, kind: ObjectKind, send: Send, db: str = "") -> list[ServerObject]:
        try:
            return [ServerObject(kind, name, db) for name in self._read(f"{kind}s {db}".rstrip(), send)]
        except MetastoreError as error:
            if error.transient:
                raise
            return [ServerObject(kind, "", db, error.message)]

    def _in_databases(
        self, kind: ObjectKind, send: Callable[[str | None], Send], databases: Collection[str]
    ) -> list[ServerObject]:
        """Lists objects by database: a server that lists those of all databases does not name these."""
        everywhere = self._listed(kind, send(None))
        if not everywhere or everywhere[0].refusal:
            return everywhere
        found: list[ServerObject] = []
        for db in sorted(databases):
            found += self._listed(kind, send(db), db)
            if sum(not each.refusal for each in found) >= len(everywhere):
                break
        return found

    # --- tables

    def table_names(self, db: str) -> list[str]:
        found = sorted(self._read(f"table names of {db}", call("get_all_tables", db)))
        if not found:
            self.database(db)  # 2.3 returns no tables for a missing database as well
        return found

    def table(self, db: str, name: str) -> Table:
        return convert.table_from_thrift(self._seen("table", f"{db}.{name}", requests.table_by_name(db, name)))

    def tables(self, db: str, names: Sequence[str], refused: dict[str, str] | None = None) -> list[Table]:
        found: list[Table] = []
        for batch in batched(names, PARTITION_BATCH):
            found.extend(map(convert.table_from_thrift, self._some_tables(db, batch, refused)))
        if found:
            self._drift.saw("table", requests.table_by_name(db, found[0].name))
        return found

    def _some_tables(self, db: str, names: list[str], refused: dict[str, str] | None) -> list[Any]:
        """Returns tables of a batch. A server returns all of a batch or none: refused tables are found by bisection."""
        what = f"tables of {db}" if len(names) > 1 else f"table {db}.{names[0]}"
        try:
            return list(self._read(what, requests.tables_by_name(db, names)))
        except MetastoreError as error:
            if error.transient or isinstance(error, ObjectNotFound):
                raise
            if len(names) > 1:
                half = len(names) // 2
                return self._some_tables(db, names[:half], refused) + self._some_tables(db, names[half:], refused)
            if refused is None:
                raise
            refused[names[0]] = answer_about_one(error, refused)
            return []

    def create_table(self, table: Table) -> None:
        since_4 = is_transactional(table) and self.announces_constraints()
        create = requests.create_transactional if since_4 else requests.create_table
        self._change(f"create table {table.db}.{table.name}", create(table))

    def alter_table(self, db: str, name: str, table: Table, pointer: str = "") -> None:
        send = requests.alter_table(db, name, table, pointer)
        self._change_as_writer(f"alter table {db}.{name}", (db, name), send, lambda w: w.alter_table(db, name, table))

    def drop_table(self, db: str, name: str, *, with_data: bool = False) -> None:
        self._change(f"drop table {db}.{name}", call("drop_table", db, name, with_data))

    def readers(self, db: str, table: str) -> frozenset[tuple[str, str]]:
        return frozenset(self._read(f"readers of {db}.{table}", requests.readers(db, table)))

    def grant_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        self._change(f"grant SELECT on {db}.{table}", requests.grant_select(db, table, principals, by))

    def revoke_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        self._change(f"revoke SELECT on {db}.{table}", requests.revoke_select(db, table, principals, by))

    # --- partitions

    def partition_names(self, db: str, table: str) -> list[str]:
        found = list(self._of_table(db, table, "partitions", call("get_partition_names", db, table, -1)))
        if not found:
            self.table(db, table)
        return found

    def few_partitions(self, db: str, table: str) -> list[Partition] | None:
        found = self._first_partitions(db, table)
        return found if found is not None and len(found) <= PARTITION_BATCH else None

    def all_partitions(self, db: str, table: str) -> Iterator[list[Partition]]:
        first = self._first_partitions(db, table)
        if first is not None:
            yield first
            if len(first) <= PARTITION_BATCH:
                return
        names, seen = self.partition_names(db, table), {partition.values for partition in first or ()}
        if seen:
            keys = self.table(db, table).partition_keys
            known = {partition_name(keys, values) for values in seen}
            names = [name for name in names if name not in known]
        for batch in self.partitions(db, table, names):
            yield [partition for partition in batch if partition.values not in seen]

    def _first_partitions(self, db: str, table: str) -> list[Partition] | None:
        """Returns all partitions, or one more than a batch; None if the server does not return an entire table: it may
        limit the partitions of a call (hive.metastore.limit.partition.request)."""
        if not self._answers_whole:
            return None
        try:
            found = self._of_table(db, table, "partitions", call("get_partitions", db, table, PARTITION_BATCH + 1))
        except MetastoreError as error:
            if error.transient or isinstance(error, ObjectNotFound):
                raise
            self.partition_names(db, table)  # any other problem is raised by this call
            self._answers_whole = False
            return None
        if found:
            self._drift.saw("partition", call("get_partitions", db, table, 1))
        else:
            self.table(db, table)
        return _whole(found)

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        batches = batched(names, PARTITION_BATCH)
        if len(names) <= PARTITION_BATCH:
            yield from (self._partition_batch(db, table, batch) for batch in batches)
            return
        read = partial(self._partition_batch, db, table)
        yield from side_by_side(self.traffic, read, batches, weigh=len)

    def _partition_batch(self, db: str, table: str, names: list[str]) -> list[Partition]:
        try:
            found = self._of_table(db, table, "partitions", call("get_partitions_by_names", db, table, names))
        except MetastoreError as error:
            if LIMITED not in error.message or len(names) == 1:
                raise
            half = len(names) // 2
            return self._partition_batch(db, table, names[:half]) + self._partition_batch(db, table, names[half:])
        if found:
            self._drift.saw("partition", call("get_partitions_by_names", db, table, names[:1]))
        return _whole(found)

    def partitions_by_expression(self, db: str, table: str, expression: bytes) -> list[Partition]:
        """Returns the partitions that match an expression as serialized by Hive's clients. Raises MetastoreError if the
        server cannot evaluate it for some; it refuses such a drop as well."""
        what = f"partitions by an expression of {db}.{table}"
        answer = self._of_table(db, table, what, requests.partitions_by_expression(db, table, expression))
        if answer.hasUnknownPartitions:
            raise MetastoreError(f"{what}: the server cannot determine whether some match")
        return [convert.partition_from_thrift(partition) for partition in answer.partitions or ()]

    def add_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        if partitions:
            what = f"add {count_text(len(partitions), 'partition')} to {db}.{table}"
            self._change(what, requests.add_partitions(db, table, partitions))

    def alter_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        if partitions:
            what = f"alter {count_text(len(partitions), 'partition')} of {db}.{table}"
            send = requests.alter_partitions(db, table, partitions)
            self._change_as_writer(what, (db, table), send, lambda w: w.alter_partitions(db, table, partitions))

    def rename_partition(self, db: str, table: str, values: Sequence[str], partition: Partition) -> None:
        thrift = convert.partition_to_thrift(db, table, partition)
        self._change(
            f"rename partition {list(values)} of {db}.{table}",
            call("rename_partition", db, table, list(values), thrift),
        )

    def drop_partitions(self, db: str, table: str, names: Sequence[str]) -> None:
        for batch in batched(names, PARTITION_BATCH):
            what = f"drop {count_text(len(batch), 'partition')} of {db}.{table}"
            self._change(what, requests.drop_partitions(db, table, batch))

    # --- functions

    def function_names(self, db: str) -> list[str]:
        return list(self._read(f"function names of {db}", call("get_functions", db, "*")))

    def functions(self, db: str) -> list[Function]:
        found = []
        for name in self.function_names(db):
            with suppress(ObjectNotFound):  # dropped since it was listed
                answer = self._read(f"function {db}.{name}", call("get_function", db, name))
                found.append(convert.function_from_thrift(answer))
        return found

    def create_function(self, function: Function) -> None:
        thrift = convert.function_to_thrift(function)
        self._change(f"create function {function.db}.{function.name}", call("create_function", thrift))

    def alter_function(self, function: Function) -> None:
        db, name, thrift = function.db, function.name, convert.function_to_thrift(function)
        self._change(f"alter function {db}.{name}", call("alter_function", db, name, thrift))

    def drop_function(self, db: str, name: str) -> None:
        self._change(f"drop function {db}.{name}", call("drop_function", db, name))

    # --- below

    def unknown_fields(self) -> dict[str, list[int]]:
        return self._drift.unknown_fields()

    def _read(self, what: str, send: Send) -> Any:
        self._find_catalog()
        return self._connections.read(what, send)

    def _of_table(self, db: str, table: str, what: str, send: Send) -> Any:
        """Reads about a table. Raises ObjectNotFound if it does not exist, whatever error the server returns: 2.3 has
        an "Internal error", also if the table is dropped during the call. If it exists, the read is repeated once."""
        try:
            return self._read(f"{what} of {db}.{table}", send)
        except MetastoreError as error:
            if error.transient or isinstance(error, ObjectNotFound):
                raise
            self.table(db, table)
            return self._read(f"{what} of {db}.{table}", send)

    def _change(self, what: str, send: Send) -> Any:
        self._find_catalog()
        return self._connections.change(what, send)

    def _seen(self, kind: str, name: str, send: Send) -> Any:
        answer = self._read(f"{kind} {name}", send)
        self._drift.saw(kind, send)
        return answer


def _whole(found: Iterable[Any]) -> list[Partition]:
    """Converts partitions, without those that are being dropped: a server reads a partition by several queries, and the
    later ones find nothing of a dropped one."""
    return [convert.partition_from_thrift(each) for each in found if each.values]
