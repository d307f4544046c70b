"""Statistics of a copy: rows, values and sums of its columns, at the source and in the written files. pyarrow reads the
files that Spark wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Context, Decimal
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from cmroot.store.blocks import Unsupported
from cmroot.store.place import join, located
from replicator.core.engine import Engine
from replicator.core.model import Value
from replicator.errors import FormatError, SourceRefused, TypeRefused
from replicator.ingestion.reading.source_errors import Control, Patience
from replicator.ingestion.reading.source_table import HASHES, Snapshot, SourceColumn, SourceTable
from replicator.lifecycle.purge.rewrite.orc_footer import (
    STATISTICS,
    TIMES,
    all_of,
    dict_of,
    kinds,
    read_message,
    read_tail,
)

# ---- dialects --------------------------------------------------------------------------------------------------------
# The SQL of a kind of database that reading requires. Names in it are quoted, values are literals.


SAMPLE = 10_000
"""Rows of a sample: with 16 readers, a range's share is then known to within a twentieth."""

TEXT = 64
"""Characters of a text by which rows are sorted."""

MASK = HASHES - 1

Another = Callable[[], AbstractContextManager[Control]]


class Dialect(Protocol):
    """The SQL dialect of a kind of database."""

    def properties(self, patience: Patience, url: str) -> dict[str, str]:
        """Returns properties of each connection, as the driver names them."""
        ...

    def begin(self, patience: Patience) -> str:
        """Returns a statement that initialises the control connection."""
        ...

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        """Returns one or more statements that initialise a reader."""
        ...

    def name(self, *parts: str) -> str:
        """Returns the quoted name, parts separated by dots."""
        ...

    def literal(self, compared: str, value: str) -> str:
        """Returns a value of a sample, encoded as in the sample, as a literal of the type `compared`."""
        ...

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        """Returns the table; None if it does not exist. Raises TypeRefused."""
        ...

    def sample(self, table: SourceTable, column: SourceColumn, where: str, *, whole: bool) -> str:
        """Returns a query for one text: `HEX:ROWS,...` of the values of a sample, ascending, `!` for NULL. whole:
        samples all pages, regardless of their number."""
        ...

    def hashed(self, table: SourceTable) -> str:
        """Returns SQL for a hash of a row, in 0 ... `MASK`."""
        ...

    def as_text(self, expression: str) -> str: ...

    def counted(self, column: SourceColumn) -> str:
        """Returns SQL that is NULL where the landed value is; cheaper than the value itself where possible."""
        ...

    def greatest(self, column: SourceColumn) -> str:
        """Returns SQL for the greatest value as text."""
        ...

    def text_of(self, column: SourceColumn) -> str:
        """Returns SQL for the landed value of a column, other than of bytes, as a text."""
        ...

    def text_literal(self, text: str) -> str:
        """Returns a text as a literal, whatever it contains."""
        ...

    def sha256(self, text: str) -> str:
        """Returns SQL for the SHA-256 of a text's UTF-8 bytes, in lower-case hexadecimal digits."""
        ...

    def nothing(self, column: SourceColumn) -> str:
        """Returns SQL for NULL, of a type that is read as the column's."""
        ...

    def after(self, column: SourceColumn, text: str, *, same: bool = False) -> str:
        """Returns a condition: greater than this result of `greatest`. same: or equal to it."""
        ...

    def snapshot(self, control: Control, another: Another, schema: str, name: str) -> AbstractContextManager[Snapshot]:
        """Yields a snapshot for reading one table. another: opens a second control connection."""
        ...


_PLAIN = re.compile(r"[\w:+. -]*", re.ASCII)


def plain(text: str) -> bool:
    """Returns True if a text can be quoted without escaping by any rules: numbers, times, UUIDs."""
    return _PLAIN.fullmatch(text) is not None


def alike(columns: tuple[SourceColumn, ...]) -> str:
    """Returns why columns cannot be in one table of the warehouse, where names are case-insensitive; "" if they can."""
    seen: dict[str, str] = {}
    for column in columns:
        if (other := seen.setdefault(column.name.lower(), column.name)) != column.name:
            return f"columns {other} and {column.name} have the same name in the warehouse"
    return ""


def comparable(column: SourceColumn) -> SourceColumn:
    """Returns the column. Raises SourceRefused if its values have no order."""
    if not column.compared:
        raise SourceRefused(
            f"column {column.name} ({column.source_type}) has no order by which rows could be distinguished",
            hint="choose a number, a date, a time or a text",
        )
    return column


# ---- figures ---------------------------------------------------------------------------------------------------------


TOGETHER = 300
"""Columns of one query: PostgreSQL's results have 1,664 at most."""

_HIDDEN = ("_", ".")
EXACT = Context(prec=400)
"""Python's default context has 28 digits."""


class Figures(Value, frozen=True):
    """Statistics of a table. rows; by column: counts of its values that are not NULL; sums of integers and decimals, as
    exact texts (missing if there is no value)."""

    rows: int
    counts: dict[str, int]
    sums: dict[str, str]


def source_figures(control: Control, dialect: Dialect, table: SourceTable, where: str) -> Figures:
    """Returns the statistics at the source. Raises TypeRefused, naming the column, for values that do not fit its
    type."""
    rows, counts, sums = 0, {}, {}
    place = dialect.name(table.schema, table.name) + (f" WHERE ({where})" if where else "")
    for at in range(0, max(1, len(table.columns)), TOGETHER):
        some = table.columns[at : at + TOGETHER]
        asked = ["count(*)", *(part for column in some for part in _asked(dialect, column))]
        answer = iter(control.rows(f"SELECT {', '.join(asked)} FROM {place}")[0])
        rows = int(next(answer) or 0)
        for column in some:
            counts[column.name] = int(next(answer) or 0)
            if column.unfit and int(next(answer) or 0):
                raise _unfit(control, dialect, table, column, where)
            if column.summed and (total := next(answer)) is not None:
                sums[column.name] = exact_text(Decimal(total))
    return Figures(rows, counts, sums)


def _asked(dialect: Dialect, column: SourceColumn) -> Iterator[str]:
    yield f"count({column.expression if column.mask else dialect.counted(column)})"
    fits = column.expression
    if column.unfit:
        yield f"sum(CASE WHEN {column.unfit} THEN 1 ELSE 0 END)"
        fits = f"CASE WHEN {column.unfit} THEN NULL ELSE {column.expression} END"
    if column.summed:
        yield dialect.as_text(f"sum({fits})")


def _unfit(control: Control, dialect: Dialect, table: SourceTable, column: SourceColumn, where: str) -> TypeRefused:
    condition = f"({where}) AND ({column.unfit})" if where else column.unfit
    place = dialect.name(table.schema, table.name)
    value = dialect.as_text(dialect.name(column.name))
    found = control.rows(f"SELECT {value} FROM {place} WHERE {condition} LIMIT 1")
    example = f", such as {(found[0][0] or '')[:60]}" if found else ""
    return TypeRefused(
        f"column {column.name} ({column.source_type}) has values that do not fit {column.type}{example}",
        hint="correct them, or land a view that casts the column to another type",
    )


class FiguresTask(msgspec.Struct, frozen=True):
    """Each `of`th file of a directory, starting at the `number`th. columns: names, and whether they are summed."""

    directory: str
    format: str
    columns: tuple[tuple[str, bool], ...]
    number: int
    of: int


def landed_figures(
    engine: Engine, directory: str, columns: Sequence[SourceColumn], format_: str = "parquet", tasks: int = 0
) -> Figures:
    """Returns the statistics of all files below `directory`. Raises FormatError for a file that cannot be read."""
    wanted = tuple((column.name, column.summed) for column in columns)
    count = tasks or engine.parallelism
    rows, counts, totals = 0, dict.fromkeys((column.name for column in columns), 0), dict[str, Decimal]()
    for found in engine.run(
        figures_of_files, (FiguresTask(directory, format_, wanted, number, count) for number in range(count))
    ):
        rows += found.rows
        for name, number in found.counts.items():
            counts[name] += number
        for name, total in found.sums.items():
            totals[name] = EXACT.add(totals.get(name, Decimal(0)), Decimal(total))
    return Figures(rows, counts, {name: exact_text(total) for name, total in totals.items()})


def figures_of_files(task: FiguresTask) -> Figures:
    """Reads only."""
    tally = _Tally(task.columns)
    place = located(task.directory)
    names = sorted(name for name in place.find() if not name.rpartition("/")[2].startswith(_HIDDEN))
    for name in names[task.number :: task.of]:
        try:
            with located(join(str(place), name)).open_read() as file:
                if task.format == "orc":
                    tally.add_orc(file)
                else:  # Spark's INT96 times, in nanoseconds, would end in 2262
                    for batch in pq.ParquetFile(file, coerce_int96_timestamp_unit="us").iter_batches():
                        tally.rows += batch.num_rows
                        tally.add(batch)
        except (pa.ArrowException, Unsupported, OSError) as error:
            raise FormatError(f"{join(str(place), name)} cannot be read: {error}", hint="copy it again") from error
    return Figures(tally.rows, tally.counts, {name: str(total) for name, total in tally.totals.items()})


class _Tally:
    """Accumulated statistics. columns: names, and whether they are summed."""

    def __init__(self, columns: Sequence[tuple[str, bool]]) -> None:
        self.rows = 0
        self.counts = {name: 0 for name, _ in columns}
        self.totals: dict[str, Decimal] = {}
        self._columns = {name.lower(): (name, summed) for name, summed in columns}

    def add(self, batch: pa.RecordBatch) -> None:
        for found, values in zip(batch.schema.names, batch.columns, strict=True):
            column, summed = self._columns.get(found.lower(), ("", False))
            if column:
                self.counts[column] += len(values) - values.null_count
                if summed and len(values) > values.null_count:
                    self.totals[column] = EXACT.add(self.totals.get(column, Decimal(0)), _sum(values))

    def add_orc(self, file: BinaryIO) -> None:
        """Adds an ORC file. pyarrow reads no times after 2262, such as sentinels: they are counted from the footer."""
        tail, opened = read_tail(file), orc.ORCFile(file)
        self.rows += opened.nrows
        kinds_, statistics = kinds(tail.footer)[1:], all_of(tail.footer, STATISTICS)[1:]
        for name, kind, said in zip(opened.schema.names, kinds_, statistics, strict=True):
            if kind in TIMES and (column := self._columns.get(name.lower(), ("", False))[0]):
                self.counts[column] += dict_of(read_message(said)).get(1, 0)
        others = [number for number, kind in enumerate(kinds_) if kind not in TIMES]
        for stripe in range(opened.nstripes if others else 0):
            self.add(opened.read_stripe(stripe, columns=others))


def differences(one: Figures, other: Figures) -> list[str]:
    """Returns how a copy (`other`) differs from its source, each a sentence that names the column; may be empty."""
    found = [f"{one.rows:,} rows in the source, {other.rows:,} in the copy"] if one.rows != other.rows else []
    for name in sorted(one.counts.keys() | other.counts.keys()):
        before, after = one.counts.get(name), other.counts.get(name)
        if before != after:
            found.append(f"column {name}: {_number(before)} values in the source, {_number(after)} in the copy")
        elif one.sums.get(name) != other.sums.get(name):
            found.append(f"column {name}: sum {one.sums.get(name)} in the source, {other.sums.get(name)} in the copy")
    return found


def _number(count: int | None) -> str:
    return "no" if count is None else f"{count:,}"


def first_bytes(content: bytes) -> int:
    """Returns a number that distinguishes contents and can be summed."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _sum(values: pa.Array) -> Decimal:
    """Returns the exact sum; neither part overflows. For bytes, the sum of their `first_bytes`."""
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return Decimal(sum(first_bytes(each.as_py()) for each in values if each.is_valid))
    if pa.types.is_decimal(values.type):
        return Decimal(pc.sum(values.cast(pa.decimal256(76, values.type.scale))).as_py())
    wide = values.cast(pa.int64())
    high, low = pc.sum(pc.shift_right(wide, 32)).as_py(), pc.sum(pc.bit_wise_and(wide, 0xFFFFFFFF)).as_py()
    return Decimal((int(high) << 32) + int(low))


def exact_text(number: Decimal) -> str:
    """Formats a number without trailing zeros. (normalize() would round to the context's digits.)"""
    text = format(number, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
