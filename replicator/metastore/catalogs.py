"""One catalog of a metastore as if it was the only one: what is sent names it, what is answered does not.

Hive 3 and newer have several catalogs. The rest of the code never sees one: a metastore's handle is bound to a catalog
(None: the server's default one), and values have none (see `values`). Only who removes looks further, by `everywhere`:
there a database of another catalog is called `@catalog#database`, as in Hive's own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec
from thrift.Thrift import TApplicationException

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.core.model import Database, Partition, Table
from replicator.errors import MetastoreError, ObjectNotFound, Refused
from replicator.metastore.client import MetastoreReader
from replicator.metastore.connection import Connections
from replicator.metastore.convert.catalog_client import qualified
from replicator.metastore.convert.methods import method
from replicator.metastore.requests import Send
from replicator.metastore.values import CATALOG


class InCatalog:
    """The part of a metastore's handle that knows its catalog, and opens others."""

    _connections: Connections
    _config: MetastoreConfig

    def _in_catalog(self, catalog: str | None, **options: Any) -> None:
        """options: of handles for other catalogs."""
        self._catalog, self._found, self._options = catalog, catalog is None, options
        self._others: dict[str, Any] = {}

    @property
    def bound_catalog(self) -> str | None:
        """The catalog that was asked for; None: the server's default one."""
        return self._catalog

    @cached_property
    def catalog(self) -> str:
        """The one whose databases this handle knows."""
        return self._catalog or self.default_catalog

    @cached_property
    def default_catalog(self) -> str:
        """See `client.MetastoreReader`."""
        return _default_catalog(self.setting)

    if TYPE_CHECKING:

        def setting(self, key: str) -> str: ...

    def everywhere(self) -> MetastoreReader:
        """See `client.MetastoreReader`."""
        self._find_catalog()
        others = [name for name in _catalog_names(self._connections.read) if name != self.catalog]
        for name in others:
            if name not in self._others:
                config = msgspec.structs.replace(self._config, catalog=name)
                self._others[name] = type(self)(config, **self._options)  # type: ignore[call-arg]
        found = Everywhere(cast(MetastoreReader, self), {name: self._others[name] for name in others})
        return cast(MetastoreReader, found)

    def _own(self, event: Any) -> Any:
        """A thrift event; one of this catalog names none."""
        if event.catName is not None and event.catName == self.catalog:
            event.catName = None
        return event

    def _find_catalog(self) -> None:
        """Before the first call. Raises ObjectNotFound where the server does not have the catalog: one before Hive 3
        would take its only one."""
        if self._found:
            return
        names = _catalog_names(self._connections.read)
        if self._catalog not in names:
            raise ObjectNotFound(
                f"the metastore at {self._config.uri} has no catalog {self._catalog}",
                hint=f"it has: {', '.join(names)}" if names else "servers before Hive 3 have none: leave it out",
            )
        self._found = True

    def _close_others(self) -> None:
        for each in self._others.values():
            each.close()


def refuse_for_spark(metastore: MetastoreReader) -> None:
    """Spark's Hive client sends no catalog: it would read a database of the same name in the default one. Raises
    Refused for another."""
    catalog = metastore.bound_catalog
    if catalog is not None and catalog != metastore.default_catalog:
        raise Refused(
            f"catalog {catalog} of {metastore.uri} cannot be read with Spark, which knows the server's default catalog "
            f"{metastore.default_catalog} only",
            hint="this needs a metastore server whose metastore.catalog.default is this catalog",
        )


class Everywhere:
    """A metastore with the databases of all its catalogs: its own by their names, others as `@catalog#database`.
    Reads only."""

    def __init__(self, own: MetastoreReader, others: dict[str, MetastoreReader]) -> None:
        self._own, self._others = own, others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def _at(self, db: str) -> tuple[MetastoreReader, str]:
        if not db.startswith("@"):
            return self._own, db
        catalog, _, name = db[1:].partition("#")
        if catalog not in self._others:
            raise ObjectNotFound(f"catalog {catalog} does not exist")
        return self._others[catalog], name

    def database_names(self) -> list[str]:
        others = [qualified(each, db) for each, metastore in self._others.items() for db in metastore.database_names()]
        return [*self._own.database_names(), *others]

    def database(self, name: str) -> Database:
        metastore, db = self._at(name)
        return msgspec.structs.replace(metastore.database(db), name=name)

    def table_names(self, db: str) -> list[str]:
        metastore, name = self._at(db)
        return metastore.table_names(name)

    def table(self, db: str, name: str) -> Table:
        metastore, own = self._at(db)
        return _renamed(metastore.table(own, name), db)

    def tables(self, db: str, names: Sequence[str], refused: dict[str, str] | None = None) -> list[Table]:
        metastore, own = self._at(db)
        return [_renamed(each, db) for each in metastore.tables(own, names, refused)]

    def partition_names(self, db: str, table: str) -> list[str]:
        metastore, own = self._at(db)
        return metastore.partition_names(own, table)

    def all_partitions(self, db: str, table: str) -> Iterator[list[Partition]]:
        metastore, own = self._at(db)
        return metastore.all_partitions(own, table)

    def few_partitions(self, db: str, table: str) -> list[Partition] | None:
        metastore, own = self._at(db)
        return metastore.few_partitions(own, table)

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        metastore, own = self._at(db)
        return metastore.partitions(own, table, names)


def _renamed(table: Table, db: str) -> Table:
    return msgspec.structs.replace(table, db=db) if db.startswith("@") else table


def _catalog_names(read: Callable[[str, Send], Any]) -> list[str]:
    """All that a server has; none of a server before Hive 3."""

    def ask(client: Any) -> Any:
        try:
            return method("get_catalogs")(client)
        except TApplicationException as error:
            if error.type != TApplicationException.UNKNOWN_METHOD:
                raise
            return None

    answer = read("catalogs", ask)
    return list(answer.names or ()) if answer else []


def _default_catalog(setting: Callable[[str], str]) -> str:
    """The one of calls that name none."""
    try:
        return setting("metastore.catalog.default").strip().lower() or CATALOG
    except MetastoreError as error:
        if error.transient:
            raise
        return CATALOG  # 2.3 has no catalogs, and does not tell this setting
