"""What the tool asks of a metastore: a reading side, and a writing side that adds to it. Drivers: `thrift.py`.

Every method may be called from any thread: a driver holds one connection per thread.
Reads are retried while the server is away and then raise MetastoreUnreachable; changes are never repeated blindly:
a connection that dies inside a change raises CommitOutcomeUnknown. Other server errors raise MetastoreError,
ObjectNotFound or ObjectExists with the server's (shortened) message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, cast

from replicator.core.connections import MetastoreConfig
from replicator.core.model import Constraint, Database, Function, NotificationEvent, Partition, Statistics, Table
from replicator.errors import MetastoreError
from replicator.metastore.traffic import Traffic

PARTITION_BATCH = 1000  # names or objects per call: the best rate measured on Derby, near it on PostgreSQL
EVENT_BATCH = 10_000  # 2.3 reads its whole log on every call and cuts afterwards: small pages are quadratic
MAY_REFUSE = 100  # tables that a server may refuse to give before it is taken to refuse everything


def answer_about_one(error: MetastoreError, refused: Collection[str]) -> str:
    """What a server answered that refuses one table. Raises the error itself where the server is away, or has refused
    too many already."""
    if error.transient or len(refused) >= MAY_REFUSE:
        raise error
    return error.message


class MetastoreReader(Protocol):
    """The reading side; code that only reads asks for this type."""

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
        """Identity and transport, for a person; nothing for a plain connection without an identity."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Limits and measurements that all clients of this metastore in this process share; for `side_by_side`."""
        ...

    def current_event_id(self) -> int:
        """The id of the newest event; 0 for an empty log. Raises NotificationLogOff when the server keeps no log."""
        ...

    def next_events(self, after: int, limit: int = EVENT_BATCH, skip: Collection[str] = ()) -> list[NotificationEvent]:
        """Events with id > after, in the server's order, at most `limit`. Checks nothing: the caller looks for gaps.
        skip: kinds that Hive 4 leaves out, and with them their ids; older servers send them."""
        ...

    def setting(self, key: str) -> str:
        """A setting of the server; "" when it has none of this name. Servers tell those that begin with `hive`."""
        ...

    def readers(self, db: str, table: str) -> frozenset[tuple[str, str]]:
        """Who was granted SELECT on a table, as pairs of USER, ROLE or GROUP and a name."""
        ...

    @property
    def bound_catalog(self) -> str | None:
        """The catalog that was asked for; None: the server's default one."""
        ...

    @property
    def catalog(self) -> str:
        """The one whose databases are meant."""
        ...

    @property
    def default_catalog(self) -> str:
        """The server's, of calls that name none; "hive" of a server without catalogs."""
        ...

    def everywhere(self) -> MetastoreReader:
        """The same metastore with the databases of all catalogs, those of others as `@catalog#database`."""
        ...

    def database_names(self) -> list[str]: ...

    def database(self, name: str) -> Database:
        """Raises ObjectNotFound."""
        ...

    def data_connectors(self) -> list[str]:
        """Names of the data connectors, which are in no database and no catalog; none before Hive 4."""
        ...

    def table_names(self, db: str) -> list[str]:
        """Tables and views of a database, sorted. Raises ObjectNotFound when the database does not exist."""
        ...

    def table(self, db: str, name: str) -> Table:
        """Raises ObjectNotFound."""
        ...

    def tables(self, db: str, names: Sequence[str], refused: dict[str, str] | None = None) -> list[Table]:
        """Tables by name, fetched in batches; names that are gone are left out. refused: gets those that the server
        does not give, with its answer; without it the first of them raises MetastoreError."""
        ...

    def partition_names(self, db: str, table: str) -> list[str]:
        """Escaped partition names (`k=v/...`). Raises ObjectNotFound when the table does not exist."""
        ...

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        """Partitions by name in batches of PARTITION_BATCH, read ahead side by side, in the order of `names` per
        batch as the server answers; names that are gone are left out."""
        ...

    def all_partitions(self, db: str, table: str) -> Iterator[list[Partition]]:
        """Every partition of a table, in batches of about PARTITION_BATCH; one call for those that fit one batch.
        Raises ObjectNotFound when the table does not exist, also when it goes away meanwhile."""
        ...

    def few_partitions(self, db: str, table: str) -> list[Partition] | None:
        """Every partition of a table, in one call; None when there are more than PARTITION_BATCH, or the server does
        not answer for all at once. Raises ObjectNotFound when the table does not exist."""
        ...

    def function_names(self, db: str) -> list[str]: ...

    def functions(self, db: str) -> list[Function]:
        """All permanent functions of a database."""
        ...

    def statistics_engines(self) -> tuple[str, ...]:
        """Whose column statistics are read and can be set: before Hive 4 those of `hive` alone."""
        ...

    def announces_statistics(self) -> bool:
        """Whether its log tells every change of column statistics."""
        ...

    def table_statistics(self, db: str, table: str, columns: Sequence[str]) -> Statistics | None:
        """Column statistics of a table; None when the metastore has none."""
        ...

    def partition_statistics(
        self, db: str, table: str, columns: Sequence[str], names: Sequence[str]
    ) -> list[Statistics]:
        """Column statistics of partitions, batched; partitions without any are left out."""
        ...

    def constraint_kinds(self) -> frozenset[str]:
        """The kinds of constraints that the server has."""
        ...

    def announces_constraints(self) -> bool:
        """Whether its log tells every change of constraints."""
        ...

    def constraints(self, db: str, tables: Sequence[str]) -> dict[str, tuple[Constraint, ...]]:
        """Constraints of some tables, ordered; tables without any, or that are gone, are left out."""
        ...

    def foreign_keys(self, db: str) -> dict[str, tuple[Constraint, ...]]:
        """Those of all tables of a database, in one call."""
        ...

    def unknown_fields(self) -> dict[str, list[int]]:
        """Fields the server sent that the bindings do not know, by struct name; empty when nothing would be lost."""
        ...

    def close(self) -> None: ...


class Metastore(MetastoreReader, Protocol):
    """The writing side. Nothing here deletes data: every drop is metadata only, files are the caller's to recycle."""

    def create_database(self, database: Database) -> None: ...

    def alter_database(self, name: str, database: Database) -> None: ...

    def drop_database(self, name: str) -> None:
        """Metadata only; the database must be empty. A missing one raises ObjectNotFound."""
        ...

    def create_table(self, table: Table) -> None:
        """With DO_NOT_UPDATE_STATS; EXTERNAL_TABLE is always sent with EXTERNAL=TRUE (else HMS makes it managed)."""
        ...

    def alter_table(self, db: str, name: str, table: Table) -> None:
        """With DO_NOT_UPDATE_STATS, no cascade. A rename of a managed table whose location does not change in
        `table` lets the server move the directory and its partitions' locations."""
        ...

    def drop_table(self, db: str, name: str) -> None: ...

    def add_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        """One call of at most PARTITION_BATCH; those that exist are left as they are (ifNotExists).
        Directories must exist already: the server is three times slower when it has to create them."""
        ...

    def alter_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        """One call, with DO_NOT_UPDATE_STATS. Raises MetastoreError and changes nothing when one is missing."""
        ...

    def rename_partition(self, db: str, table: str, values: Sequence[str], partition: Partition) -> None: ...

    def drop_partitions(self, db: str, table: str, names: Sequence[str]) -> None:
        """In batches; metadata only (`deleteData` spelled out), missing ones are skipped."""
        ...

    def create_function(self, function: Function) -> None: ...

    def alter_function(self, function: Function) -> None: ...

    def drop_function(self, db: str, name: str) -> None: ...

    def grant_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        """principals: pairs of USER, ROLE or GROUP and a name. Raises MetastoreError where one has it already."""
        ...

    def revoke_select(self, db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> None:
        """principals: as of `grant_select`. Raises MetastoreError where one does not have it."""
        ...

    def add_constraint(self, db: str, table: str, constraint: Constraint) -> None:
        """Raises MetastoreError when the table has one of this name, or the server refuses it."""
        ...

    def drop_constraint(self, db: str, table: str, name: str) -> None: ...

    def set_table_statistics(self, statistics: Statistics) -> None: ...

    def set_partition_statistics(self, statistics: Sequence[Statistics]) -> None: ...

    def drop_statistics(self, db: str, table: str, partition: str, column: str, engine: str | None) -> None:
        """Of one column of a table, or of a partition by its name. engine: None for those of every engine. Safe to run
        twice: none is no error."""
        ...


# ---- checked ---------------------------------------------------------------------------------------------------------
# A metastore whose changes are asked about first: a writer that has lost its lease must not change anything more.


_CHANGES = ("create_", "alter_", "drop_", "add_", "rename_", "set_")


def checked(metastore: Metastore, check: Callable[[], None]) -> Metastore:
    """The same metastore; `check` runs before each call that changes something, and may raise."""
    return cast(Metastore, _Checked(metastore, check))


class _Checked:
    def __init__(self, metastore: Metastore, check: Callable[[], None]) -> None:
        self._metastore, self._check = metastore, check

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._metastore, name)
        if not name.startswith(_CHANGES):
            return found

        def changed(*arguments: Any, **named: Any) -> Any:
            self._check()
            return found(*arguments, **named)

        return changed
