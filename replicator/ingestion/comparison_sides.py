"""The two sides of a comparison of a landing table with its source. A value has the same text on both sides, and the
checksum of a row is made of these texts; the source computes it in SQL, and Spark for the landing table.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Protocol

from replicator.core.text import quoted_name, quoted_text
from replicator.ingestion.reading.figures import plain
from replicator.ingestion.reading.source import SourceDatabase
from replicator.ingestion.reading.source_table import SourceColumn

RANGES = 64
"""Parts into which a range is cut, about."""

FEW = 1000
"""Rows of a range whose keys are compared one by one."""

SAMPLE = 4000
"""Landed rows whose values cut a range."""

EXACT = Context(prec=100)

TOGETHER = 100
"""Keys of one query."""

Key = tuple[str | None, ...]


@dataclass(frozen=True)
class Range:
    """begin: None: the first value, and NULL. end: None: no end."""

    begin: str | None = None
    end: str | None = None


class Side(Protocol):
    """One side of a comparison."""

    def totals(self, ranges: Sequence[Range]) -> dict[int, tuple[int, str]]:
        """Returns rows and checksum of each range, by its index; without ranges that have no rows."""
        ...

    def keyed(self, of: Range) -> Mapping[Key, Sequence[str]]:
        """Returns the checksums of the rows of a range, by key."""
        ...

    def values(self, of: Range) -> list[str]:
        """Returns values by which a range is cut, ascending; may be empty."""
        ...


# ---- values as texts -------------------------------------------------------------------------------------------------
# A value has the same text on both sides; a row's checksum is made of these texts.


@dataclass(frozen=True)
class ComparedColumn:
    """A compared column: SQL for its text at the source and in Spark, and for its value there, by which it is ordered.
    ordered: False: its values have no order that both sides share."""

    name: str
    type: str
    theirs: str
    ours: str
    their_value: str
    our_value: str
    ordered: bool

    @property
    def summed(self) -> bool:
        return _INTEGER.fullmatch(self.type) is not None


_INTEGER = re.compile(r"tinyint|smallint|int|bigint|decimal.*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_MOMENT = "yyyy-MM-dd HH:mm:ss.SSSSSS"


def described(database: SourceDatabase, column: SourceColumn) -> ComparedColumn | None:
    """Returns how a column is compared; None: its values have no common text."""
    name, own = quoted_name(column.name.lower()), database.dialect.name(column.name)
    make = {"postgresql": _of_postgres, "jdbc": _of_another}.get(database.source.kind, _of_mysql)
    found = make(column, own) if column.mask != "null" else ("NULL", own)
    if found is None:
        return None
    theirs, their_value = found
    ours, ordered = f"CAST({name} AS string)", True
    if column.type == "boolean":
        ours, ordered = f"CAST(CAST({name} AS int) AS string)", False
    elif column.type == "binary":
        ours, ordered = f"lower(hex({name}))", False
    elif column.type == "date":
        ours = f"trim(LEADING '+' FROM CAST({name} AS string))"
    elif column.type == "timestamp":
        ours = _bounded(name, f"date_format({name}, '{_MOMENT}')", "CAST('{}' AS timestamp)")
    elif column.type in ("float", "double"):
        bits = f"java_method('java.lang.Double', 'doubleToLongBits', CAST({name} AS double))"
        ours, ordered = f"CASE WHEN {name} IS NOT NULL THEN {bits} END", False
    if database.source.kind == "jdbc" and column.type == "string":
        ordered = False  # its collation is not known
    return ComparedColumn(column.name.lower(), column.type, theirs, ours, their_value, name, ordered)


def _bounded(own: str, text: str, literal: str) -> str:
    """Returns SQL for the text of a time; of those at the ends of the calendar, such as infinity, for that end."""
    first, last = literal.format("0001-01-02"), literal.format("9999-12-31")
    ends = f"WHEN {own} >= {last} THEN '9999-12-31' WHEN {own} < {first} THEN '0001-01-01'"
    return f"CASE {ends} ELSE {text} END"


def _of_postgres(column: SourceColumn, own: str) -> tuple[str, str] | None:
    if column.type == "boolean":
        return f"{own}::int::text", own
    if column.type == "binary":
        return f"encode({own}, 'hex')", own
    if column.type == "date":
        ends = f"WHEN {own} = 'infinity' THEN '9999-12-31' WHEN {own} = '-infinity' THEN '0001-01-01'"
        return f"CASE {ends} ELSE to_char({own}, 'YYYY-MM-DD') END", own
    if column.type == "timestamp":
        moment = f"to_char({own} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
        if not column.source_type.endswith("with time zone"):
            moment = f"to_char({own}, 'YYYY-MM-DD HH24:MI:SS.US')"
        return _bounded(own, moment, "'{}'"), own
    if column.type in ("float", "double"):
        bits = f"('x' || encode(float8send({own}::float8), 'hex'))::bit(64)::bigint::text"
        return f"CASE WHEN {own} = 'NaN' THEN '9221120237041090560' ELSE {bits} END", own
    if column.type.startswith("decimal"):
        return f"CAST({own} AS numeric{column.type.removeprefix('decimal')})::text", f"{own}::numeric"
    if _INTEGER.fullmatch(column.type):
        return f"{own}::bigint::text", own
    return column.expression, f'({column.expression}) COLLATE "C"'


def _of_mysql(column: SourceColumn, own: str) -> tuple[str, str] | None:
    if column.type in ("float", "double"):
        return None  # its text has other digits than that of Java
    if column.type == "binary":
        return f"LOWER(HEX({own}))", own
    if column.type in ("date", "timestamp"):
        is_day = f"MONTH({own}) > 0 AND DAY({own}) > 0"
        text = f"DATE_FORMAT({own}, '{'%Y-%m-%d' if column.type == 'date' else '%Y-%m-%d %H:%i:%s.%f'}')"
        if column.type == "timestamp":
            text = _bounded(own, text, "'{}'")
        return f"CASE WHEN {is_day} THEN {text} END", f"CASE WHEN {is_day} THEN {own} END"
    if column.type == "boolean" or _INTEGER.fullmatch(column.type):
        return f"CAST({own} + 0 AS CHAR)", f"({own} + 0)"
    text = f"CONVERT({column.expression} USING utf8mb4)"
    return text, f"CAST({text} AS BINARY)"


def _of_another(column: SourceColumn, own: str) -> tuple[str, str] | None:
    if column.type in ("string", "date") or _INTEGER.fullmatch(column.type):
        return column.expression, own
    return None  # drivers write other values differently


# ---- the source ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedColumns:
    """all: compared. key: those that identify a row; may be empty. by: the one whose ranges are compared; None: all
    rows are one range."""

    all: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]
    by: ComparedColumn | None


@dataclass(frozen=True)
class SourceRows:
    """The source's rows. beyond: a condition for those that need not have landed yet; person: SQL for the id of a
    person; each may be empty."""

    database: SourceDatabase
    place: str
    columns: ComparedColumns
    beyond: str
    person: str


class AtSource:
    """The source's side, by SQL."""

    def __init__(self, rows: SourceRows) -> None:
        self._rows, self._control = rows, rows.database.control
        self._mysql = rows.database.source.kind != "postgresql"

    def totals(self, ranges: Sequence[Range]) -> dict[int, tuple[int, str]]:
        cases = " ".join(f"WHEN {self._in(each)} THEN {index}" for index, each in enumerate(ranges))
        inner = (
            f"SELECT CASE {cases} END AS b, {self._number()} AS n FROM {self._rows.place}{self._filter(self._bound())}"
        )
        total = "CAST(SUM(n) AS CHAR)" if self._mysql else "sum(n)::text"
        found = self._control.rows(f"SELECT b, COUNT(*), {total} FROM ({inner}) t WHERE b IS NOT NULL GROUP BY b")
        return {int(index or 0): (int(rows or 0), sums or "") for index, rows, sums in found}

    def keyed(self, of: Range) -> Mapping[Key, Sequence[str]]:
        found = defaultdict[Key, list[str]](list)
        for *values, checksum in self._keys(of, self._bound(), self._checksum()):
            found[tuple(values)].append(checksum or "")
        return found

    def waiting(self, of: Range, keys: Sequence[Key]) -> set[Key]:
        """Returns those keys of rows that the next landing reads."""
        found = set[Key]()
        for at in range(0, len(keys) if self._rows.beyond else 0, TOGETHER):
            same = " OR ".join(f"({self._is(key)})" for key in keys[at : at + TOGETHER])
            where = f"({self._rows.beyond}) AND ({same})"
            found |= {tuple(values) for *values, _ in self._keys(of, where, "NULL")}
        return found

    def people(self, of: Range) -> dict[Key, str]:
        """Returns ids of people by key."""
        if not self._rows.person:
            return {}
        found = self._keys(of, self._bound(), self._rows.person)
        return {tuple(values): person for *values, person in found if person is not None}

    def _keys(self, of: Range, where: str, more: str) -> list[Key]:
        asked = ", ".join([*(each.theirs for each in self._rows.columns.key), more])
        return self._control.rows(f"SELECT {asked} FROM {self._rows.place}{self._filter(where, self._in(of))}")

    def _is(self, key: Key) -> str:
        texts = zip(self._rows.columns.key, key, strict=True)
        return " AND ".join(f"{each.theirs} {self._equal(each, text)}" for each, text in texts)

    def _equal(self, column: ComparedColumn, text: str | None) -> str:
        if text is None:
            return "IS NULL"
        data = text.encode().hex()
        return (
            f"= CONVERT(x'{data}' USING utf8mb4)" if self._mysql else f"= convert_from(decode('{data}', 'hex'), 'UTF8')"
        )

    def values(self, of: Range) -> list[str]:
        """Returns the value that ends the first rows of the range."""
        column = self._rows.columns.by
        if column is None or not column.ordered:
            return []
        place = f"{self._rows.place}{self._filter(self._bound(), self._in(of), f'{column.their_value} IS NOT NULL')}"
        found = self._control.first_rows(f"SELECT {column.theirs} FROM {place} ORDER BY {column.their_value}", FEW)
        return [text for (text,) in found[-1:] if text is not None]

    def _bound(self) -> str:
        beyond = f"NOT ({self._rows.beyond})" if self._rows.beyond else ""
        return " AND ".join(f"({each})" for each in (self._rows.database.only, beyond) if each)

    def _filter(self, *conditions: str) -> str:
        given = " AND ".join(f"({each})" for each in conditions if each)
        return f" WHERE {given}" if given else ""

    def _in(self, of: Range) -> str:
        column = self._rows.columns.by
        return _within(of, column.their_value, self._literal) if column is not None else "1 = 1"

    def _literal(self, text: str) -> str:
        assert self._rows.columns.by is not None
        type_ = self._rows.columns.by.type
        if _INTEGER.fullmatch(type_) and _NUMBER.fullmatch(text):
            return text
        if type_ in ("date", "timestamp") and plain(text):
            return f"'{text}'"
        data = text.encode().hex()
        return f"x'{data}'" if self._mysql else f"convert_from(decode('{data}', 'hex'), 'UTF8')"

    def _checksum(self) -> str:
        texts = [
            f"COALESCE({self._digest(each.theirs) if each.type == 'string' else each.theirs}, '-')"
            for each in self._rows.columns.all
        ]
        joined = f"CONCAT_WS(',', {', '.join(texts)})" if self._mysql else " || ',' || ".join(texts)
        return self._digest(joined)

    def _digest(self, text: str) -> str:
        return f"MD5({text})" if self._mysql else f"md5(convert_to({text}, 'UTF8'))"

    def _number(self) -> str:
        if self._mysql:
            return f"CAST(CONV(LEFT({self._checksum()}, 15), 16, 10) AS DECIMAL(20, 0))"
        return f"('x' || substr({self._checksum()}, 1, 15))::bit(60)::bigint"


class AtAnotherSource(AtSource):
    """The side of a database that has no known hash: ranges are compared by counts, sums, least and greatest values,
    and the rows of a range that differs by their values."""

    def totals(self, ranges: Sequence[Range]) -> dict[int, tuple[int, str]]:
        cases = " ".join(f"WHEN {self._in(each)} THEN {index}" for index, each in enumerate(ranges))
        figures = figures_of(self._rows.columns)
        values = ", ".join(f"{each.theirs} AS {each.alias}" for each in figures)
        inner = f"SELECT CASE {cases} END AS b, {values} FROM {self._rows.place}{self._filter(self._bound())}"
        asked = ", ".join(f"{each.function.upper()}({each.alias})" for each in figures)
        found = self._control.rows(f"SELECT b, COUNT(*), {asked} FROM ({inner}) t WHERE b IS NOT NULL GROUP BY b")
        return {int(row[0] or 0): (int(row[1] or 0), figures_text(row[2:])) for row in found}

    def keyed(self, of: Range) -> Mapping[Key, Sequence[str]]:
        found, columns = defaultdict[Key, list[str]](list), self._rows.columns
        for row in self._keys(of, self._bound(), ", ".join(each.theirs for each in columns.all)):
            key, texts = row[: len(columns.key)], row[len(columns.key) :]
            given = zip(columns.all, texts, strict=True)
            parts = ["-" if text is None else _md5(text) if each.type == "string" else text for each, text in given]
            found[key].append(_md5(",".join(parts)))
        return found

    def _equal(self, column: ComparedColumn, text: str | None) -> str:
        if text is None:
            return "IS NULL"
        is_number = _INTEGER.fullmatch(column.type) and _NUMBER.fullmatch(text)
        return f"= {text}" if is_number else f"= {self._rows.database.dialect.text_literal(text)}"

    def _literal(self, text: str) -> str:
        assert self._rows.columns.by is not None
        return f"DATE '{text}'" if self._rows.columns.by.type == "date" and plain(text) else super()._literal(text)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class _Figure:
    """An aggregate of a column: count, sum, min or max of an SQL expression on either side."""

    alias: str
    function: str
    theirs: str
    ours: str


def figures_of(columns: ComparedColumns) -> list[_Figure]:
    """Returns the aggregates by which ranges are compared without a hash."""
    found = []
    for number, each in enumerate(columns.all):
        functions = ("count", "sum", "min", "max") if _INTEGER.fullmatch(each.type) else ("count",)
        found += [_Figure(f"{name}{number}", name, each.theirs, each.our_value) for name in functions]
    return found


def figures_text(values: Sequence[object]) -> str:
    """Returns aggregates as one text, numbers without needless zeros."""
    return ", ".join("-" if each is None else f"{Decimal(str(each)).normalize(EXACT):f}" for each in values)


def _within(of: Range, own: str, literal: Any) -> str:
    """Returns SQL that is true for the rows of a range; its first one has the rows without a value."""
    parts = [f"{own} >= {literal(of.begin)}"] if of.begin is not None else []
    if of.end is not None:
        null = f"{own} IS NULL OR " if of.begin is None else ""
        parts.append(f"({null}{own} < {literal(of.end)})")
    return " AND ".join(parts) or "1 = 1"


# ---- the landing table -----------------------------------------------------------------------------------------------


class AtLanding:
    """The landing table's side: Spark reads it by its name, as its readers do. hashed: False: ranges are compared by
    the aggregates of `figures_of`."""

    def __init__(self, table: Any, columns: ComparedColumns, *, hashed: bool = True) -> None:
        self._table, self._columns, self._hashed = table, columns, hashed

    def totals(self, ranges: Sequence[Range]) -> dict[int, tuple[int, str]]:
        cases = " ".join(f"WHEN {self._in(each)} THEN {index}" for index, each in enumerate(ranges))
        if not self._hashed:
            return self._figures(f"CASE {cases} END AS b")
        number = f"CAST(conv(substr({self._checksum()}, 1, 15), 16, 10) AS decimal(20, 0))"
        rows = self._table.selectExpr(f"CASE {cases} END AS b", f"{number} AS n").where("b IS NOT NULL")
        found = rows.groupBy("b").agg({"*": "count", "n": "sum"}).collect()
        return {each["b"]: (each["count(1)"], f"{each['sum(n)']:f}") for each in found}

    def _figures(self, by: str) -> dict[int, tuple[int, str]]:
        figures = figures_of(self._columns)
        values = (f"{each.ours} AS {each.alias}" for each in figures)
        rows = self._table.selectExpr(by, *values).where("b IS NOT NULL").groupBy("b")
        found = rows.agg({"*": "count", **{each.alias: each.function for each in figures}}).collect()
        names = [f"{each.function}({each.alias})" for each in figures]
        return {row["b"]: (row["count(1)"], figures_text([row[name] for name in names])) for row in found}

    def keyed(self, of: Range) -> Mapping[Key, Sequence[str]]:
        asked = [*(each.ours for each in self._columns.key), self._checksum()]
        found = defaultdict[Key, list[str]](list)
        for *values, checksum in self._table.where(self._in(of)).selectExpr(*asked).collect():
            found[tuple(values)].append(checksum)
        return found

    def values(self, of: Range) -> list[str]:
        """Returns values that cut the range into about equal parts, from a sample of its rows."""
        column = self._columns.by
        if column is None or not column.ordered:
            return []
        rows = self._table.where(self._in(of)).where(f"{column.our_value} IS NOT NULL")
        some = rows.selectExpr(f"{column.our_value} AS v", f"{column.ours} AS t", "rand() AS r").orderBy("r")
        texts = [each["t"] for each in some.limit(SAMPLE).orderBy("v").collect()]
        return texts[:: max(1, len(texts) // RANGES)]

    def _in(self, of: Range) -> str:
        column = self._columns.by
        if column is None:
            return "1 = 1"
        return _within(of, column.our_value, lambda text: f"CAST({quoted_text(text)} AS {column.type})")

    def _checksum(self) -> str:
        texts = [
            f"coalesce({f'md5({each.ours})' if each.type == 'string' else each.ours}, '-')"
            for each in self._columns.all
        ]
        return f"md5(concat_ws(',', {', '.join(texts)}))"
