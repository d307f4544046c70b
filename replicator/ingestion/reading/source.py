"""An open source: its tables, a snapshot, ranges for parallel readers, the rows as a Spark DataFrame, statistics.

The caller provides the Spark session; nothing here imports Spark.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from replicator.core.source_config import SourceConfig
from replicator.core.text import quoted_name
from replicator.errors import ConfigError, SourceMissing, SourceRefused, SourceUnreachable
from replicator.ingestion.ingestion_request import Request, Split
from replicator.ingestion.reading.dialects import PostgresDialect
from replicator.ingestion.reading.figures import Dialect, Figures, alike, comparable, source_figures
from replicator.ingestion.reading.other_dialects import NO_RANGES, GenericDialect, MySqlDialect
from replicator.ingestion.reading.request_selection import written
from replicator.ingestion.reading.source_errors import Control, Patience, connect, driver_class, source_error, spark_url
from replicator.ingestion.reading.source_table import (
    ONE,
    Piece,
    Ranges,
    Snapshot,
    SourceColumn,
    SourceTable,
    plan_readers,
)

FEW = 1000
"""Maximum rows that a single reader reads: for fewer, planning takes longer than it saves."""

SMALL = 100
"""Maximum pages of a table whose rows a dry run counts, and maximum thousands of rows."""

PATIENT = Patience()

VALUE, HASH = "s", "h"
"""Names of the values that predicates compare, in addition to the columns."""

_DIALECTS: dict[str, type[PostgresDialect] | type[MySqlDialect] | type[GenericDialect]] = {
    "jdbc": GenericDialect,
    "postgresql": PostgresDialect,
    "mariadb": MySqlDialect,
    "mysql": MySqlDialect,
}


@dataclass(frozen=True, repr=False)
class SourceDatabase:
    """An open source, for one thread at a time. only: a condition that all rows meet which are read; "": all rows.
    Raises SourceUnreachable, SourceLocked, SourceRefused."""

    session: Any
    name: str
    source: SourceConfig
    control: Control
    dialect: Dialect
    patience: Patience
    only: str = ""

    def of_request(self, request: Request) -> tuple[SourceDatabase, SourceTable]:
        """Returns the source with the rows of a request only, and the request's table, with all its columns. Raises as
        `table`, and SourceMissing for a column of the request's condition that does not exist."""
        table = self.table(request.schema, request.table)
        if request.where is None:
            return self, table
        return replace(self, only=written(self.dialect, table, request.where)), table

    def table(self, schema: str, name: str) -> SourceTable:
        """Returns a table's description. Raises SourceMissing, and TypeRefused for a column that cannot be landed."""
        found = self.dialect.describe(self.control, schema, name)
        if found is None:
            near = difflib.get_close_matches(name, self.table_names(schema), 1)
            raise SourceMissing(
                f"source {self.name} has no table {schema}.{name}, or hides it from its user",
                hint=f"did you mean {near[0]}?" if near else "check the name, including its case",
            )
        if why := alike(found.columns):
            raise SourceRefused(f"{schema}.{name}: {why}", hint="land a view that renames them")
        return found

    def table_names(self, schema: str) -> list[str]:
        """Returns the tables and views of a schema that the source shows to its user, by name."""
        if self.source.kind == "jdbc":
            return self.control.table_names(schema)
        found = self.control.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = ?", schema)
        return sorted(row[0] or "" for row in found)

    def estimated_rows(self, table: SourceTable, where: str = "") -> tuple[int | None, bool]:
        """Returns the number of rows that meet a condition, and True if they were counted, as those of small tables
        are. Otherwise it is the source's own estimate; None: it has none."""
        if self.source.kind == "postgresql":
            if table.kind == "table" and table.pages <= SMALL:
                return self.count(table, where), True
            place = self._place(table, where)
            plan = json.loads(self.control.rows(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {place}")[0][0] or "[]")
            return int(plan[0]["Plan"]["Plan Rows"]), False
        if self.source.kind == "jdbc":
            return self.count(table, where), True
        asked = "SELECT table_rows FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"
        rows = self.control.rows(asked, table.schema, table.name)[0][0]
        if rows is not None and (int(rows) <= FEW * SMALL or where or self.only):
            return self.count(table, where), True
        return None if rows is None else int(rows), False

    def snapshot(self, schema: str, name: str) -> AbstractContextManager[Snapshot]:
        """A snapshot of a table: if it is consistent, all readers within it see the same state."""
        another = partial(_connected, self.session, self.name, self.source, self.patience)
        return self.dialect.snapshot(self.control, another, schema, name)

    def ranges(
        self, table: SourceTable, split: Split, readers: int, where: str = "", landed: SourceTable | None = None
    ) -> Ranges:
        """Returns ranges for at most `readers` readers. landed: the table as it lands: values of columns that it lacks
        or masks are not sampled. Raises SourceRefused if the column of `split` is one of these, or has no order."""
        named = split.column or (next(iter(table.primary_key), None) if table.kind == "table" else None)
        count = min(split.readers or readers, readers)
        if self.source.kind == "jdbc":
            if split.column or split.readers:
                raise SourceRefused(f"{table.schema}.{table.name}: {NO_RANGES}", hint="omit split column and readers")
            return ONE
        if named is None or count < 2:
            return ONE
        column = table.column(named)
        if column.name not in {each.name for each in (landed or table).columns if not each.mask}:
            if split.column is None:
                return ONE
            told = f"{table.schema}.{table.name}: split column {column.name} is masked, or not selected"
            raise SourceRefused(told, hint="split by another column, or omit it")
        if not column.compared and split.column is None:
            return ONE
        values, nulls = self._sample(table, comparable(column), where)
        if nulls + sum(rows for _, rows in values) < FEW:
            return ONE
        planned = plan_readers(values, nulls, count, nullable=column.nullable or column.split != self._own(column))
        if len(planned) < 2:
            return ONE
        hashed = any(piece.hashes for reader in planned for piece in reader.pieces)
        if hashed and table.kind == "view":
            return ONE  # a view may return different rows to each reader, as with now()
        return Ranges(
            column.name,
            tuple(" OR ".join(self._condition(column, piece) for piece in reader.pieces) for reader in planned),
            "quantiles+hash" if hashed else "quantiles",
            tuple(reader.share for reader in planned),
            ((VALUE, column.split), *(((HASH, self.dialect.hashed(table)),) if hashed else ())),
        )

    def frame(self, table: SourceTable, ranges: Ranges, snapshot: Snapshot | None, where: str = "") -> Any:
        """Returns a DataFrame with the table's columns, by their names and types in the warehouse; a partition per
        range."""
        given = {
            **self._properties(),
            "driver": driver_class(self.source),
            "fetchsize": str(self.source.fetch),
            "queryTimeout": str(self.patience.answer),
        }
        if begins := self.dialect.begin_reader(self.patience, snapshot):
            given["sessionInitStatement"] = begins
        columns = [(f"c{number}", column) for number, column in enumerate(table.columns)]
        selected = [
            *((column.expression, alias) for alias, column in columns),
            *((sql, name) for name, sql in ranges.hidden),
        ]
        asked = ", ".join(f"{sql} AS {self.dialect.name(alias)}" for sql, alias in selected)
        place = self._place(table, where)
        try:
            read = self.session.read.jdbc(
                spark_url(self.source),
                f"(SELECT {asked} FROM {place}) t",
                predicates=list(ranges.predicates),
                properties=given,
            )
            return read.selectExpr(
                *(f"{_landed(alias, column)} AS {quoted_name(column.name)}" for alias, column in columns)
            )
        except Exception as error:
            raise source_error(error, self.name, self._secret()) from None

    def figures(self, table: SourceTable, snapshot: Snapshot | None = None, where: str = "") -> Figures:
        """Returns statistics, within `snapshot` while its block lasts. Raises TypeRefused for values that do not
        fit."""
        return source_figures(self.control, self.dialect, table, self._all(where))

    def counted(
        self, table: SourceTable, snapshot: Snapshot, where: str, write: Callable[[], None]
    ) -> tuple[Figures, Figures]:
        """Returns the statistics before and after `write`, which copies the rows with Spark in this thread. In a
        consistent snapshot they are computed once, concurrently; if they refuse a column, the copy is cancelled."""
        if not snapshot.consistent:
            before = self.figures(table, snapshot, where)
            write()
            return before, self.figures(table, snapshot, where)
        context, group = self.session.sparkContext, f"reading {uuid.uuid4()}"
        context.setJobGroup(group, f"{self.name}:{table.schema}.{table.name}")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.figures, table, snapshot, where)
            asked.add_done_callback(lambda asked: asked.exception() and context.cancelJobGroup(group))
            try:
                write()
            finally:
                context._jsc.clearJobGroup()
                found = asked.result()
        return found, found

    def greatest(self, table: SourceTable, column: str, where: str = "") -> str | None:
        """Returns the greatest value of a column as a text for `after`; None if there is no value."""
        place = self._place(table, where)
        return self.control.rows(f"SELECT {self.dialect.greatest(table.column(column))} FROM {place}")[0][0]

    def nulls(self, table: SourceTable, column: str) -> int:
        """Returns the number of rows of the entire table without a value in a column."""
        return self.count(table, f"{self.dialect.name(table.column(column).name)} IS NULL")

    def count(self, table: SourceTable, where: str = "") -> int:
        """Returns the number of rows that meet a condition; of all rows without one."""
        place = self._place(table, where)
        return int(self.control.rows(f"SELECT count(*) FROM {place}")[0][0] or 0)

    def after(self, table: SourceTable, column: str, value: str, *, same: bool = False) -> str:
        """Returns a condition for `where`: rows whose column is greater than `value`. same: or equal to it."""
        return self.dialect.after(table.column(column), value, same=same)

    def _all(self, where: str) -> str:
        return " AND ".join(f"({each})" for each in (self.only, where) if each)

    def _place(self, table: SourceTable, where: str) -> str:
        found = self._all(where)
        return self.dialect.name(table.schema, table.name) + (f" WHERE {found}" if found else "")

    def _sample(self, table: SourceTable, column: SourceColumn, where: str) -> tuple[list[tuple[str, int]], int]:
        where = self._all(where)
        values, nulls = _read_sample(self.control.rows(self.dialect.sample(table, column, where, whole=False))[0][0])
        if nulls + sum(rows for _, rows in values) < FEW and where and table.pages:
            return _read_sample(self.control.rows(self.dialect.sample(table, column, where, whole=True))[0][0])
        return values, nulls

    def _condition(self, column: SourceColumn, piece: Piece) -> str:
        own, hashed = self.dialect.name(VALUE), self.dialect.name(HASH)
        parts = []
        if piece.null:
            parts.append(f"{own} IS NULL")
        if piece.value is not None:
            parts.append(f"{own} = {self.dialect.literal(column.compared, piece.value)}")
        if piece.lower is not None:
            sign = ">=" if piece.from_lower else ">"
            parts.append(f"{own} {sign} {self.dialect.literal(column.compared, piece.lower)}")
        if piece.upper is not None:
            parts.append(f"{own} < {self.dialect.literal(column.compared, piece.upper)}")
        if piece.hashes:
            parts.append(f"{hashed} >= {piece.hashes[0]} AND {hashed} < {piece.hashes[1]}")
        return f"({' AND '.join(parts or [f'{own} IS NOT NULL'])})"

    def _own(self, column: SourceColumn) -> str:
        return self.dialect.name(column.name)

    def _secret(self) -> str:
        return self.source.secret(self.name)

    def _properties(self) -> dict[str, str]:
        given = {"user": self.source.user, "password": self._secret()}
        return self.dialect.properties(self.patience, self.source.url) | {
            key: each for key, each in given.items() if each
        }


@contextmanager
def opened(session: Any, name: str, source: SourceConfig, patience: Patience = PATIENT) -> Iterator[SourceDatabase]:
    """Yields an open source. session: a SparkSession with the driver of `source` (see `driver_jars`). name: as in
    `[ingestion.sources]`. The secret is read now, and again by each frame."""
    with _connected(session, name, source, patience) as control:
        yield SourceDatabase(session, name, source, control, _DIALECTS[source.kind](), patience)


@contextmanager
def _connected(session: Any, name: str, source: SourceConfig, patience: Patience) -> Iterator[Control]:
    dialect: Dialect = _DIALECTS[source.kind]()
    try:
        given = {"user": source.user, "password": source.secret(name)}
    except ConfigError as error:  # it may be being replaced
        raise SourceUnreachable(f"source {name}: {error.message}", hint=f"{error.hint}; this is retried") from error
    properties = dialect.properties(patience, source.url) | {key: each for key, each in given.items() if each}
    control = connect(session, driver_class(source), spark_url(source), properties, name, patience)
    try:
        if begins := dialect.begin(patience):
            control.run(begins)
        yield control
    finally:
        control.close()


def _landed(alias: str, column: SourceColumn) -> str:
    return (column.cast or f"CAST({{}} AS {column.type})").format(alias)


def _read_sample(text: str | None) -> tuple[list[tuple[str, int]], int]:
    """Returns values with their numbers of rows, and the number of rows without a value."""
    values, nulls = [], 0
    for each in text.split(",") if text else ():
        value, _, rows = each.partition(":")
        if value == "!":
            nulls += int(rows)
        else:
            values.append((value, int(rows)))
    return values, nulls
