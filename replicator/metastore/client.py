"""Interface of a metastore client: a reading side, and a writing side that extends it. Drivers: `thrift.py`.

Every method may be called from any thread: a driver holds one connection per thread. Reads are retried while the server
is away and then raise MetastoreUnreachable; changes are never repeated blindly: a connection that dies during a change
raises CommitOutcomeUnknown. Other server errors raise MetastoreError, ObjectNotFound or ObjectExists with the server's
(shortened) message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from replicator.core.connections import MetastoreConfig
from replicator.core.model import (
    Constraint,
    Database,
    Function,
    Grant,
    Member,
    Name,
    NotificationEvent,
    Part,
    Partition,
    RoleMembers,
    Statistics,
    Table,
    WriteIds,
)
from replicator.core.roles import RoleMark, mark_of, may_dump_from
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.traffic import Traffic

if TYPE_CHECKING:
    from replicator.metastore.grants import Granted, On

PARTITION_BATCH = 1000  # names or objects per call: the best rate measured on Derby, near it on PostgreSQL
EVENT_BATCH = 10_000  # 2.3 reads its entire log on every call and truncates afterwards: small pages are quadratic
MAY_REFUSE = 100  # tables that a server may refuse to return before it is assumed to refuse all


ObjectKind = Literal["data connector", "resource plan", "stored procedure", "package"]
PROCEDURE: ObjectKind = "stored procedure"
PACKAGE: ObjectKind = "package"


class ServerObject(NamedTuple):
    """An object of a metastore that is neither a table nor a function. `db`: its database; empty for one of the server.
    `refusal`: set if the server does not list the objects of this kind, with its answer; then `name` is empty."""

    kind: ObjectKind
    name: str
    db: str = ""
    refusal: str = ""


def answer_about_one(error: MetastoreError, refused: Collection[str]) -> str:
    """Returns the message of a server that refuses one table. Raises the error itself if the server is away, or has
    refused too many tables already."""
    if error.transient or len(refused) >= MAY_REFUSE:
        raise error
    return error.message


class MetastoreReader(Protocol):
    """The reading side, for code that only reads."""

    @property
    def uri(self) -> str:
        """thrift://host:port[,thrift://host:port...] as configured."""
        ...

    @property
    def config(self) -> MetastoreConfig:
        """Its connection settings."""
        ...

    @property
    def connection(self) -> str:
        """Identity and transport, for messages; empty for a plain connection without an identity."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Limits and measurements that all clients of this metastore in this process share; for `side_by_side`."""
        ...

    def current_event_id(self) -> int:
        """Returns the id of the newest event; 0 for an empty log. Raises NotificationLogOff if there is no log."""
        ...

    def next_events(self, after: int, limit: int = EVENT_BATCH, skip: Collection[str] = ()) -> list[NotificationEvent]:
        """Returns events with id > after, in the server's order, at most `limit`. Checks nothing: the caller detects
        gaps. skip: types that Hive 4 omits, including their ids; older servers send them."""
        ...

    def setting(self, key: str) -> str:
        """Returns a setting of the server; "" if it has none of this name. Servers return those beginning with
        `hive`."""
        ...

    def readers(self, db: str, table: str) -> frozenset[tuple[str, str]]:
        """Returns the principals with SELECT on a table, as pairs of USER, ROLE or GROUP and a name."""
        ...

    @property
    def bound_catalog(self) -> str | None:
        """The configured catalog; None: the server's default."""
        ...

    @property
    def catalog(self) -> str:
        """The name of the catalog whose databases are accessed."""
        ...

    @property
    def default_catalog(self) -> str:
        """The server's catalog for calls that name none; "hive" for a server without catalogs."""
        ...

    def everywhere(self) -> MetastoreReader:
        """Returns the same metastore with the databases of all catalogs, those of others as `@catalog#database`."""
        ...

    def database_names(self) -> list[str]: ...

    def database(self, name: str) -> Database:
        """Returns a database. Raises ObjectNotFound."""
        ...

    def server_objects(self, databases: Collection[str]) -> list[ServerObject]:
        """Returns objects that are not in any table of the catalog: those of the server, and those of `databases`. Four
        calls since Hive 4, one to Hive 3, none to older servers; where procedures or packages exist, one more for each
        database until all have been found."""
        ...

    def table_names(self, db: str) -> list[str]:
        """Returns tables and views of a database, sorted. Raises ObjectNotFound if the database does not exist."""
        ...

    def table(self, db: str, name: str) -> Table:
        """Returns a table. Raises ObjectNotFound."""
        ...

    def tables(self, db: str, names: Sequence[str], refused: dict[str, str] | None = None) -> list[Table]:
        """Returns tables by name, fetched in batches; names that no longer exist are omitted. refused: receives the
        tables that the server refuses, with its message; without it the first of them raises MetastoreError."""
        ...

    def partition_names(self, db: str, table: str) -> list[str]:
        """Returns escaped partition names (`k=v/...`). Raises ObjectNotFound if the table does not exist."""
        ...

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        """Yields partitions by name in batches of PARTITION_BATCH, read ahead concurrently, in the order of `names` per
        batch as the server answers; names that no longer exist are omitted."""
        ...

    def all_partitions(self, db: str, table: str) -> Iterator[list[Partition]]:
        """Yields every partition of a table, in batches of about PARTITION_BATCH; one call if they fit one batch.
        Raises ObjectNotFound if the table does not exist, also if it is dropped concurrently."""
        ...

    def few_partitions(self, db: str, table: str) -> list[Partition] | None:
        """Returns every partition of a table, in one call; None if there are more than PARTITION_BATCH, or the server
        does not return all at once. Raises ObjectNotFound if the table does not exist."""
        ...

    def function_names(self, db: str) -> list[str]: ...

    def functions(self, db: str) -> list[Function]:
        """Returns all permanent functions of a database."""
        ...

    def outside_directories(self) -> Sequence[str]:
        """Returns the configured directories in which Iceberg tables may have files outside of their locations."""
        ...

    def statistics_engines(self) -> tuple[str, ...]:
        """Returns the engines whose column statistics are read and can be set: before Hive 4 only `hive`."""
        ...

    def announces_statistics(self) -> bool:
        """Returns True if the server's log contains every change of column statistics."""
        ...

    def table_statistics(self, db: str, table: str, columns: Sequence[str]) -> Statistics | None:
        """Returns column statistics of a table; None if the metastore has none."""
        ...

    def partition_statistics(
        self, db: str, table: str, columns: Sequence[str], names: Sequence[str]
    ) -> list[Statistics]:
        """Returns column statistics of partitions, batched; partitions without any are omitted."""
        ...

    def constraint_kinds(self) -> frozenset[str]:
        """Returns the kinds of constraints that the server supports."""
        ...

    def announces_constraints(self) -> bool:
        """Returns True if the server's log contains every change of constraints."""
        ...

    def constraints(self, db: str, tables: Sequence[str]) -> dict[str, tuple[Constraint, ...]]:
        """Returns constraints of some tables, ordered; tables without any, or that no longer exist, are omitted."""
        ...

    def foreign_keys(self, db: str) -> dict[str, tuple[Constraint, ...]]:
        """Returns the foreign keys of all tables of a database, in one call."""
        ...

    def keeps_grants(self) -> bool:
        """Returns True if the server has calls for grants and roles."""
        ...

    def keeps_transactions(self) -> bool:
        """Returns True if the server has write ids of transactional tables: since Hive 3, in its default catalog."""
        ...

    def snapshot(self) -> str:
        """Returns the transactions that a reader sees now, in Hive's form."""
        ...

    def write_ids(self, tables: Sequence[tuple[str, str]], snapshot: str) -> dict[tuple[str, str], WriteIds]:
        """Returns the write ids of transactional tables as of a snapshot, also of an earlier one."""
        ...

    def readers_open(self) -> frozenset[int]:
        """Returns the open transactions of the server's own clients: each query of Hive has one."""
        ...

    def compacting(self, db: str, table: str) -> frozenset[str]:
        """Returns the partitions of a table whose compaction is queued or running; "" for an unpartitioned one."""
        ...

    def grants(self, databases: Collection[str]) -> Granted:
        """Returns the grants on databases and on their tables, columns and partitions, by one call for each type."""
        ...

    def all_grants(self, databases: Collection[str]) -> Granted:
        """Returns the same as `grants`, by another call, which returns the objects of all types at once."""
        ...

    def roles(self, names: Iterable[str]) -> dict[str, RoleMembers]:
        """Returns roles with members, and the roles among these in turn; without missing and built-in ones."""
        ...

    def added_members(self, role: str) -> frozenset[Member]:
        """Returns the members of a role that `grant_role` added."""
        ...

    def unknown_fields(self) -> dict[str, list[int]]:
        """Returns sent fields that the bindings do not know, by struct name; empty if nothing would be lost."""
        ...

    def close(self) -> None: ...


class Metastore(MetastoreReader, Protocol):
    """The writing side. No method deletes data: every drop is metadata only, and the caller recycles the files."""

    def create_database(self, database: Database) -> None: ...

    def alter_database(self, name: str, database: Database) -> None: ...

    def drop_database(self, name: str) -> None:
        """Drops metadata only; the database must be empty. Raises ObjectNotFound if it does not exist."""
        ...

    def create_table(self, table: Table) -> None:
        """Creates with DO_NOT_UPDATE_STATS; EXTERNAL_TABLE is sent with EXTERNAL=TRUE (else HMS makes it managed)."""
        ...

    def alter_table(self, db: str, name: str, table: Table, pointer: str = "") -> None:
        """Alters a table with DO_NOT_UPDATE_STATS, no cascade. If a managed table is renamed and the location in
        `table` does not change, the server moves the directory and its partitions' locations. pointer: the metadata
        file that an Iceberg table must have; most servers refuse if it has another one by now (`MODIFIED`)."""
        ...

    def drop_table(self, db: str, name: str, *, with_data: bool = False) -> None:
        """Drops a table. with_data: the server deletes its directory, for good; only for one that is empty."""
        ...

    def add_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        """Adds partitions in one call of at most PARTITION_BATCH; existing ones are not changed (ifNotExists).
        Directories must already exist: the server is three times slower if it has to create them."""
        ...

    def alter_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        """Alters in one call, with DO_NOT_UPDATE_STATS. Raises MetastoreError and changes nothing if one is missing."""
        ...

    def rename_partition(self, db: str, table: str, values: Sequence[str], partition: Partition) -> None: ...

    def drop_partitions(self, db: str, table: str, names: Sequence[str]) -> None:
        """Drops partitions in batches; metadata only (explicit `deleteData`), missing ones are skipped."""
        ...

    def create_function(self, function: Function) -> None: ...

    def alter_function(self, function: Function) -> None: ...

    def drop_function(self, db: str, name: str) -> None: ...

    def grant_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        """Grants SELECT. principals: pairs of USER, ROLE or GROUP and a name. Raises MetastoreError if one has it."""
        ...

    def revoke_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        """Revokes SELECT. principals: as in `grant_select`. Raises MetastoreError if one does not have it."""
        ...

    def add_constraint(self, db: str, table: str, constraint: Constraint) -> None:
        """Adds a constraint. Raises MetastoreError if the table has one of this name, or the server refuses it."""
        ...

    def drop_constraint(self, db: str, table: str, name: str) -> None: ...

    def grant_privileges(self, some: Sequence[tuple[On, Grant]]) -> None:
        """Grants privileges in batches. Raises MetastoreError, and changes nothing of a batch, if one exists already or
        the server refuses it."""
        ...

    def revoke_privileges(self, some: Sequence[tuple[On, Grant]]) -> None:
        """Revokes privileges in batches. A server ignores the grantor: of several equal grants it revokes any. Raises
        MetastoreError, and changes nothing of a batch, if one does not exist."""
        ...

    def create_role(self, name: str) -> None:
        """Creates a role. Raises MetastoreError if it exists."""
        ...

    def grant_role(self, role: str, member: Member) -> None:
        """Gives a role to a principal, with replicator as the grantor. Raises MetastoreError if it has the role."""
        ...

    def revoke_role(self, role: str, member: Member) -> None:
        """Takes a role from a principal. Raises MetastoreError if it does not have the role."""
        ...

    def set_write_ids(self, db: str, table: str, high: int) -> None:
        """States that all write ids of a new table up to `high` are committed. Has no effect if it has any."""
        ...

    def open_replicated(self, policy: str, transactions: Sequence[int]) -> dict[int, int]:
        """Opens transactions that stand for the source's, by its ids, unless they are open. policy: a name of the
        replication. Returns the server's own ids, by the source's."""
        ...

    def allocate_write_ids(self, db: str, table: str, policy: str, ids: Sequence[tuple[int, int]]) -> None:
        """Gives replicated transactions write ids of a table: (transaction, id) pairs, which must begin with the
        table's next id and leave out none, with the server's own ids of the transactions in ascending order."""
        ...

    def end_replicated(self, policy: str, transaction: int, *, commit: bool) -> None:
        """Commits or aborts a replicated transaction. Has no effect on one that has ended, or is unknown."""
        ...

    def abort_replicated(self, database: str) -> int:
        """Aborts the open transactions that stand for a source's in a database. Returns their number."""
        ...

    def lock_parts(self, parts: Sequence[Part], holder: str) -> int | None:
        """Returns the id of an exclusive lock on all parts; None if anyone uses one of them. holder: any name."""
        ...

    def end_locks(self, holder: str, tables: Collection[Name]) -> None:
        """Ends a holder's locks on tables: those of a killed run."""
        ...

    def keep_lock(self, lock: int) -> None:
        """Sends a heartbeat: a server ends locks without one after 300 s. Raises MetastoreError if it has."""
        ...

    def unlock(self, lock: int) -> None: ...

    def set_table_statistics(self, statistics: Statistics) -> None: ...

    def set_partition_statistics(self, statistics: Sequence[Statistics]) -> None: ...

    def drop_statistics(self, db: str, table: str, partition: str, column: str, engine: str | None) -> None:
        """Drops the statistics of one column of a table, or of a partition by its name. engine: None for all engines.
        May run twice: missing statistics are not an error."""
        ...


def warehouse_of(metastore: MetastoreReader) -> str | None:
    """Returns the warehouse directory, the location of the default database; None if the server does not return it."""
    try:
        return metastore.database("default").location
    except MetastoreError as error:
        if error.transient:
            raise
        return None


# ---- checked ---------------------------------------------------------------------------------------------------------
# A metastore with a check before each change: a writer that has lost its lease must not change anything more.


CHANGES = (
    *("create_", "alter_", "drop_", "add_", "rename_", "set_", "grant_", "revoke_"),
    *("open_", "allocate_", "end_", "abort_"),
)
"""Prefixes of the methods that change something."""


def checked(metastore: Metastore, check: Callable[[], None]) -> Metastore:
    """Returns the same metastore; `check` runs before each call that changes something, and may raise."""
    return cast(Metastore, _Checked(metastore, check))


class _Checked:
    def __init__(self, metastore: Metastore, check: Callable[[], None]) -> None:
        self._metastore, self._check = metastore, check

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._metastore, name)
        if not name.startswith(CHANGES):
            return found

        def changed(*arguments: Any, **named: Any) -> Any:
            self._check()
            return found(*arguments, **named)

        return changed


# ---- roles -----------------------------------------------------------------------------------------------------------
# The roles of databases, read. `replicator.core.roles` decides what they allow, `replicator.policies.roles` sets them.


def label(metastore: MetastoreReader, db: str) -> str:
    """Returns the name of a database for messages."""
    return f"database {db} of {metastore.uri}"


def read_role(metastore: MetastoreReader, db: str, *, repair: bool = False) -> RoleMark:
    """Returns the role. Raises ObjectNotFound if the database does not exist, FormatError for a role that cannot be
    parsed (with `repair` it counts as none)."""
    return mark_of(metastore.database(db).parameters, label(metastore, db), repair=repair)


def epochs_to_dump(
    source: MetastoreReader, databases: Sequence[str], *, allow_replica: bool = False, draining: bool = False
) -> dict[str, int]:
    """Returns the epochs of databases that are about to be dumped, by name; those that do not exist are skipped.

    Raises Refused as `may_dump_from` does."""
    epochs = {}
    for db in databases:
        mark = role_if_any(source, db)
        if mark is not None:
            may_dump_from(label(source, db), mark, allow_replica=allow_replica, draining=draining)
            epochs[db] = mark.epoch
    return epochs


def role_if_any(metastore: MetastoreReader, db: str) -> RoleMark | None:
    """Returns the role as `read_role`; None if the database does not exist."""
    try:
        return read_role(metastore, db)
    except ObjectNotFound:
        return None
