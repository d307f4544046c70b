"""Tables of a source as values: their catalog entries, how each column is landed, and which values of a sorted sample
each of several readers reads. Pure; generates no SQL.

All rows are on a line, NULL first. The line is cut into equal lengths. A cut within a value with few rows moves to its
nearer end; a cut within a value with many rows divides it by a hash of the row. So each reader has one interval of
values, and at most a part of the value at either end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from replicator.core.model import Value
from replicator.errors import SourceMissing, TypeRefused
from replicator.ingestion.reading.source_errors import Row


class SourceColumn(Value, frozen=True, omit_defaults=True):
    """name: as at the source. source_type: as declared there. type: in the warehouse, as written in Hive and Spark.
    expression: SQL of the source for the landed value. cast: Spark SQL that converts the read value (`{}`) to the
    landed one. unfit: SQL of the source for rows whose value does not fit `type`. split: SQL by which rows are sorted,
    and `compared` the type of its literals; both empty if a column has no order. summed: True if sums are compared.
    collation: by which texts may be equal that differ in their bytes; empty: they are compared by bytes. mask: the rule
    by which `expression` hides the value."""

    name: str
    source_type: str
    type: str
    nullable: bool
    expression: str
    cast: str = ""
    unfit: str = ""
    split: str = ""
    compared: str = ""
    summed: bool = False
    collation: str = ""
    mask: str = ""


def described(describe: Callable[[Row], SourceColumn], rows: Iterable[Row]) -> tuple[SourceColumn, ...]:
    """Returns the columns of a table, from rows of its source's catalog. Raises TypeRefused, naming all columns that
    have no type in the warehouse."""
    found, refused = list[SourceColumn](), list[TypeRefused]()
    for row in rows:
        try:
            found.append(describe(row))
        except TypeRefused as error:
            refused.append(error)
    if refused:
        raise TypeRefused("; ".join(each.message for each in refused[:10]), hint=refused[0].hint)
    return tuple(found)


class ForeignKey(Value, frozen=True):
    """columns refer to `references` of the table `schema`.`table`."""

    name: str
    columns: tuple[str, ...]
    schema: str
    table: str
    references: tuple[str, ...]


class SourceTable(Value, frozen=True, omit_defaults=True):
    """kind: table or view (whose rows have no address). pages: of the table, if the source provides it. unique: sets of
    columns, except for the primary key. is_foreign: the rows are those of another server."""

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    kind: str = "table"
    pages: int = 0
    is_foreign: bool = False

    def column(self, name: str) -> SourceColumn:
        """Returns a column by its name, or by a unique case-insensitive match. Raises SourceMissing."""
        same = [each for each in self.columns if each.name == name]
        alike = [each for each in self.columns if each.name.lower() == name.lower()]
        found = same or alike
        if len(found) != 1:
            names = ", ".join(each.name for each in self.columns[:20])
            raise SourceMissing(f"{self.schema}.{self.name} has no column {name}", hint=f"it has {names}")
        return found[0]


@dataclass(frozen=True)
class Snapshot:
    """name: by which other connections see the same rows; empty if they cannot. consistent: True if all readers and all
    statistics see the same rows."""

    name: str
    consistent: bool


@dataclass(frozen=True)
class Ranges:
    """How a table is read. column: None: not by a column. predicates: SQL of the source, one for each reader; each row
    meets exactly one. method: one, quantiles, or quantiles+hash. shares: estimated fraction of the rows for each
    reader. hidden: names that predicates use in addition to the table's columns, with their SQL."""

    column: str | None
    predicates: tuple[str, ...]
    method: str
    shares: tuple[float, ...]
    hidden: tuple[tuple[str, str], ...] = ()


ONE = Ranges(None, ("1 = 1",), "one", (1.0,))
"""All rows by one reader."""


# ---- parallel readers ------------------------------------------------------------------------------------------------


HASHES = 1024
"""Number of hash values that divide the rows of one value: 0 to `HASHES` - 1."""

HEAVY = 0.25
"""Fraction of a reader's share: a value with more rows may be cut. Each end of a range is off by at most half of it."""


@dataclass(frozen=True)
class Piece:
    """Rows of an interval of values, or of one value. lower, upper: None: unbounded; `lower` itself is included if
    `from_lower`, `upper` never is. null: the rows without a value. value, hashes: rows of one value (None with `null`)
    whose hash is in [from, to)."""

    lower: str | None = None
    from_lower: bool = True
    upper: str | None = None
    null: bool = False
    value: str | None = None
    hashes: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reader:
    """A reader of the rows in any of its pieces. share: estimated fraction of all rows."""

    pieces: tuple[Piece, ...]
    share: float


Cut = tuple[int, int]
"""Before the value of this index, but after its rows with a smaller hash."""

FIRST: Cut = (1, 0)
"""After NULL, before all values."""


def plan_readers(values: Sequence[tuple[str, int]], nulls: int, readers: int, *, nullable: bool) -> list[Reader]:
    """Plans at most `readers`; each row, regardless of its value, is in exactly one piece. values: of a sample,
    ascending in the source's order, each with its number of rows; nulls: rows without one. nullable: True if such rows
    may exist."""
    masses = [nulls, *(count for _, count in values)]  # 0 is NULL, value k is at k + 1
    total = sum(masses)
    if total == 0 or readers < 2:
        return [Reader((Piece(), Piece(null=True)) if nullable else (Piece(),), 1.0)]
    cuts = _cuts(masses, total, readers)
    names = ["", *(value for value, _ in values)]
    planned = []
    for begin, end in pairwise(cuts):
        pieces = tuple(piece for piece in _pieces(names, begin, end) if nullable or not piece.null)
        if pieces:
            planned.append(Reader(pieces, _mass(masses, begin, end) / total))
    return planned


def _cuts(masses: Sequence[int], total: int, readers: int) -> list[Cut]:
    """Returns cuts, ascending and distinct, from the start of the line to its end."""
    ideal = total / readers
    cuts: list[Cut] = [(0, 0)]
    index, before = 0, 0
    for number in range(1, readers):
        wanted = number * ideal
        while index < len(masses) - 1 and before + masses[index] <= wanted:
            before += masses[index]
            index += 1
        inside = wanted - before
        if masses[index] > HEAVY * ideal:
            part = round(inside / masses[index] * HASHES)
            cut = (index + 1, 0) if part == HASHES else (index, part)
        else:
            cut = (index, 0) if inside * 2 < masses[index] else (index + 1, 0)
        if cuts[-1] < cut < (len(masses), 0):
            cuts.append(cut)
    return [*cuts, (len(masses), 0)]


def _pieces(names: Sequence[str], begin: Cut, end: Cut) -> list[Piece]:
    """Returns the pieces of the line between two cuts. Values outside the sample are between sampled ones: those below
    the first one belong to the piece after NULL."""
    (first, skipped), (last, taken) = begin, end
    pieces = []
    if first == 0 and (skipped or last == 0):
        pieces.append(_part(names, 0, skipped, taken if last == 0 else HASHES))
    elif first == 0:
        pieces.append(Piece(null=True))
    elif skipped:
        pieces.append(_part(names, first, skipped, taken if last == first else HASHES))
    if end > FIRST or last == len(names):
        upper = names[last] if last < len(names) else None
        if begin <= FIRST:
            pieces.append(Piece(upper=upper))
        elif last > first:
            pieces.append(Piece(names[first], from_lower=not skipped, upper=upper))
        if taken and (last > first or not skipped):
            pieces.append(_part(names, last, 0, taken))
    return pieces


def _part(names: Sequence[str], index: int, begin: int, end: int) -> Piece:
    return Piece(null=index == 0, value=names[index] if index else None, hashes=(begin, end))


def _mass(masses: Sequence[int], begin: Cut, end: Cut) -> float:
    return _before(masses, end) - _before(masses, begin)


def _before(masses: Sequence[int], cut: Cut) -> float:
    index, part = cut
    return sum(masses[:index]) + (masses[index] * part / HASHES if part else 0)
