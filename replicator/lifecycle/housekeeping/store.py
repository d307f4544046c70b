"""The housekeeping store: items in SQLite beside the log, or in PostgreSQL by URL. Opening, migrating, reading.

What changes items is `writing`. One run at a time writes (the run's lease); anybody may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Text, func, select, text, tuple_

from cmroot.store.place import is_local, join, local_path
from replicator.core.database import Database
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.items import Item
from replicator.lifecycle.housekeeping.schema import ACTIVE_ONLY, HEAD, item, state, to_item
from replicator.lifecycle.housekeeping.settings import EXPIRED

if TYPE_CHECKING:
    from cmroot.root import ChangeRoot

REVISION = "0002"
"""The newest migration that this release knows."""

FILE = "housekeeping.sqlite"
PAGE = 5000
"""Items that are decided together: each page asks the metastore what is new, which takes a 2.3 server 0.1 s."""


def store_url(root: str, url: str | None) -> str:
    """Where a root's items are: `url`, or an SQLite file in a local root. Raises UsageError where neither can be."""
    if url:
        return url
    if not is_local(root):
        raise UsageError(
            f"{root}: items cannot be kept on an object store",
            hint="give --store postgresql://user@host/db, or sqlite:////path/file",
        )
    return f"sqlite:///{join(local_path(root), FILE)}"


class ItemStore(Database):
    """Items by what is asked. Raises StoreUnreachable (try again), NoSpace, or Error with the database's words."""

    def __init__(self, url: str, connections: int = 0) -> None:
        """Nothing is sent before the first query. connections: as `Database`. Raises ConfigError for a URL that
        names no known database."""
        super().__init__(url, "housekeeping store", "--store", connections)

    # ---- opening --------------------------------------------------------------------------------------------------

    def prepare(self, root: ChangeRoot) -> None:
        """Makes or migrates the tables; under the run's lease. Raises UsageError for the store of another root."""
        if self._revision() != REVISION:
            self._migrate()
        with self.transaction() as connection:
            known = _state(connection, "root")
            if known is None:
                connection.execute(state.insert().values(key="root", value=root.id))
            elif known != root.id:
                raise UsageError(
                    f"{self.url}: holds the items of another $cmroot ({known}), not those of {root.place}",
                    hint="give each $cmroot a store of its own",
                )

    def is_new(self) -> bool:
        """Whether no run has made the tables yet."""
        return self._revision() is None

    def check(self) -> None:
        """For those who only look, or change single items. Raises UsageError when no run has made the tables yet."""
        found = self._revision()
        if found is None:
            raise UsageError(f"{self.url}: no items yet", hint="`replicator housekeeping run` makes them")
        if found != REVISION:
            raise UsageError(f"{self.url}: of an older release", hint="`replicator housekeeping run` migrates it")

    def is_made(self) -> bool:
        """Whether a run has made the tables."""
        return self._revision() is not None

    def _revision(self) -> str | None:
        return self.revision("alembic_version", REVISION)

    def _migrate(self) -> None:
        self.migrate(Path(__file__).parent / "migrations")

    def copied(self, path: Path) -> ItemStore:
        """A copy in an SQLite file, for trying out; this store is only read."""
        copy = ItemStore(f"sqlite:///{path}")
        if self._revision() is None:
            return copy
        if self.file is not None:
            with self.transaction() as connection:
                connection.exec_driver_sql("COMMIT")  # VACUUM wants no transaction
                connection.exec_driver_sql("VACUUM INTO ?", (str(path),))
                connection.exec_driver_sql("BEGIN")
            return copy
        copy._migrate()
        with self.transaction() as source, copy.transaction() as target:
            for row in source.execute(select(state)):
                target.execute(state.insert().values(key=row.key, value=row.value))
            rows = source.execution_options(yield_per=PAGE).execute(select(item))
            for some in rows.mappings().partitions(PAGE):
                target.execute(item.insert(), [dict(row) for row in some])
        return copy

    # ---- reading --------------------------------------------------------------------------------------------------

    def position(self) -> int:
        """Of the captured log: everything up to it is scheduled."""
        return int(self.state("position") or 0)

    def state(self, key: str) -> str | None:
        """See `schema.state`."""
        with self.transaction() as connection:
            return _state(connection, key)

    def due(self, now: int, *, tables: bool, page: int = PAGE) -> Iterator[list[Item]]:
        """Active items whose time has come, in pages, earliest first. tables: the items of whole tables, else all
        others. What changes meanwhile is neither skipped nor given twice."""
        of_table = (item.c.lifecycle_type == EXPIRED) & (item.c.partition_name == "")
        query = (
            select(item)
            .where(ACTIVE_ONLY, item.c.cleanup_timestamp <= now, item.c.next_try <= now)
            .where(of_table if tables else ~of_table)
            .order_by(item.c.cleanup_timestamp, item.c.id)
            .limit(page)
        )
        after: tuple[int, int] | None = None
        while True:
            rows = self._items(query if after is None else query.where(tuple_(*_DUE_KEY) > tuple_(*after)))
            if not rows:
                return
            yield rows
            after = (rows[-1].cleanup, rows[-1].id)

    def find(self, *conditions: Any, offset: int = 0, limit: int = PAGE, order: Sequence[Any] = ()) -> list[Item]:
        """Items that meet all conditions (over `schema.item`), in an order, then by id."""
        return self._items(select(item).where(*conditions).order_by(*order, item.c.id).offset(offset).limit(limit))

    def count(self, *conditions: Any) -> int:
        with self.transaction() as connection:
            return int(connection.execute(select(func.count()).select_from(item).where(*conditions)).scalar_one())

    def places(self, *conditions: Any) -> Iterator[str]:
        """Of items, each place once."""
        query = select(item.c.place).where(*conditions).distinct()
        with self.transaction() as connection:
            for row in connection.execution_options(yield_per=PAGE).execute(query):
                yield str(row.place)

    def counts(self) -> dict[str, int]:
        """Items by state."""
        query = select(item.c.housekeeping_status, func.count()).group_by(item.c.housekeeping_status)
        with self.transaction() as connection:
            return {str(status): int(number) for status, number in connection.execute(query)}

    def waiting_below(self, items: Sequence[Item], now: int) -> dict[int, str]:
        """Of items, those below whose path another active one lies whose time has not come: id -> that path."""
        due, other = item.alias("due"), item.alias("other")
        beginning = func.substr(other.c.place, 1, func.length(due.c.place) + 1, type_=Text)
        first = (  # in the order of the index, so that a database takes that one
            select(other.c.path)
            .where(text(f"other.{ACTIVE_ONLY.text}"), beginning == due.c.place + "/")
            .where(other.c.cleanup_timestamp + 0 > now)
            .order_by(other.c.place_head)
            .limit(1)
        )
        head = func.substr(due.c.place, 1, HEAD - 1, type_=Text)
        below = first.where(other.c.place_head >= head + "/", other.c.place_head < head + "0")  # "0" follows "/"
        long = first.where(other.c.place_head == due.c.place_head)
        found: dict[int, str] = {}
        for query, chosen in (
            (below, [one.id for one in items if len(one.place) < HEAD]),
            (long, [one.id for one in items if len(one.place) >= HEAD]),
        ):
            if chosen:
                statement = select(due.c.id, query.scalar_subquery()).where(due.c.id.in_(chosen))
                with self.transaction() as connection:
                    found |= {int(row[0]): str(row[1]) for row in connection.execute(statement) if row[1] is not None}
        return found

    def _items(self, query: Select[Any]) -> list[Item]:
        with self.transaction() as connection:
            return [to_item(row) for row in connection.execute(query)]


_DUE_KEY = (item.c.cleanup_timestamp, item.c.id)


def _state(connection: Connection, key: str) -> str | None:
    value = connection.execute(select(state.c.value).where(state.c.key == key)).scalar()
    return None if value is None else str(value)
