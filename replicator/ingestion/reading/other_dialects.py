"""Dialects of databases that export no snapshots: catalog, types and samples of MariaDB and MySQL, and what standard
SQL and its driver tell of any other database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from replicator.errors import SourceRefused, TypeRefused
from replicator.ingestion.reading.figures import MASK, SAMPLE, TEXT, Another, comparable, plain
from replicator.ingestion.reading.source_errors import Control, Patience, Row
from replicator.ingestion.reading.source_table import ForeignKey, Snapshot, SourceColumn, SourceTable, described

# ---- MariaDB and MySQL -----------------------------------------------------------------------------------------------


_MYSQL_TABLE = """SELECT TABLE_TYPE, TABLE_ROWS FROM information_schema.TABLES
WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND BINARY TABLE_NAME = ?"""

_MYSQL_COLUMNS = """SELECT COLUMN_NAME, IS_NULLABLE, COLUMN_TYPE, DATA_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE,
  COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND BINARY TABLE_NAME = ?
ORDER BY ORDINAL_POSITION"""

_MYSQL_KEYS = """SELECT c.CONSTRAINT_NAME, c.CONSTRAINT_TYPE, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA,
  k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME
FROM information_schema.TABLE_CONSTRAINTS c JOIN information_schema.KEY_COLUMN_USAGE k
  ON k.CONSTRAINT_SCHEMA = c.CONSTRAINT_SCHEMA AND k.CONSTRAINT_NAME = c.CONSTRAINT_NAME
  AND k.TABLE_SCHEMA = c.TABLE_SCHEMA AND k.TABLE_NAME = c.TABLE_NAME
WHERE c.TABLE_SCHEMA = ? AND c.TABLE_NAME = ? AND BINARY c.TABLE_NAME = ?
  AND c.CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')
ORDER BY c.CONSTRAINT_NAME, k.ORDINAL_POSITION"""

_INTEGERS = {  # signed, unsigned
    "tinyint": ("tinyint", "smallint"),
    "smallint": ("smallint", "int"),
    "mediumint": ("int", "int"),
    "int": ("int", "bigint"),
    "bigint": ("bigint", "decimal(20,0)"),
}
_MYSQL_TEXTS = ("varchar", "tinytext", "text", "mediumtext", "longtext")
_PADDED = ("char", "enum", "set", "json", "time", "uuid", "inet4", "inet6")
"""Types that drivers report as CHAR: Spark would pad their values to the maximum length."""
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_MYSQL_MAX = 38
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)


class MySqlDialect:
    """The dialect of MariaDB and MySQL; see `Dialect`. A schema is a database."""

    def properties(self, patience: Patience, url: str) -> dict[str, str]:
        found = {
            "connectTimeout": str(patience.login * 1000),
            "socketTimeout": str((patience.answer + 60) * 1000),
            "tcpKeepAlive": "true",
            "allowLocalInfile": "false",
        }
        if "sessionVariables" not in url:  # in time for Spark's own query for the columns' types
            found["sessionVariables"] = _mysql_session(patience)
        return found

    def begin(self, patience: Patience) -> str:
        return f"SET SESSION {_mysql_session(patience)}, group_concat_max_len = {64 << 20}"

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        return f"SET SESSION {_mysql_session(patience)}"

    def name(self, *parts: str) -> str:
        return ".".join(f"`{part.replace('`', '``')}`" for part in parts)

    def literal(self, compared: str, value: str) -> str:
        data = bytes.fromhex(value)
        if compared == "bytes":
            return f"x'{data.hex()}'"
        text = data.decode()
        if not _NUMBER.fullmatch(text):
            raise SourceRefused(f"{text[:80]!r} is not a number of the source", hint="choose another column")
        return text

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        asked = (schema, name, name)
        found = control.rows(_MYSQL_TABLE, *asked)
        if not found:
            return None
        columns = described(self._column, control.rows(_MYSQL_COLUMNS, *asked))
        control.rows(f"SELECT * FROM {self.name(schema, name)} LIMIT 0")  # the catalog hides unreadable columns
        keys: dict[tuple[str, str], list[Row]] = {}
        for row in control.rows(_MYSQL_KEYS, *asked):
            keys.setdefault((row[0] or "", row[1] or ""), []).append(row)
        named = {key: tuple(row[2] or "" for row in rows) for key, rows in keys.items()}
        return SourceTable(
            schema,
            name,
            columns,
            primary_key=next((names for (_, kind), names in named.items() if kind == "PRIMARY KEY"), ()),
            unique=tuple(names for (_, kind), names in named.items() if kind == "UNIQUE"),
            foreign_keys=tuple(
                ForeignKey(key, named[key, kind], rows[0][3] or "", rows[0][4] or "", tuple(r[5] or "" for r in rows))
                for (key, kind), rows in keys.items()
                if kind == "FOREIGN KEY"
            ),
            kind="table" if found[0][0] == "BASE TABLE" else "view",
        )

    def _column(self, row: Row) -> SourceColumn:
        name, null, declared, base, digits, places, collation = (each or "" for each in row)
        own, nullable = self.name(name), null == "YES"
        if base in _INTEGERS:
            landed = _INTEGERS[base]["unsigned" in declared]
            value = f"CAST({own} AS {'DECIMAL(20, 0)' if landed.startswith('decimal') else 'SIGNED'})"
            return SourceColumn(name, declared, landed, nullable, value, split=own, compared="number", summed=True)
        if base == "decimal":
            if int(digits) > _MYSQL_MAX:
                hint = f"land a view that casts it to decimal({_MYSQL_MAX}, {min(int(places), _MYSQL_MAX)}), or to char"
                raise TypeRefused(f"column {name} has the type {declared}: at most {_MYSQL_MAX} digits fit", hint=hint)
            landed = f"decimal({digits},{places})"
            return SourceColumn(name, declared, landed, nullable, own, split=own, compared="number", summed=True)
        if base in ("float", "double"):  # a float as text has six digits, as a double all of them
            value = f"({own} + 0e0)"
            return SourceColumn(name, declared, base, nullable, value, split=value, compared="number")
        if base in ("date", "datetime", "timestamp"):
            # 0000-00-00 and 2020-01-00 are not days, and not valid literals; as numbers (`+ 0`) all are ordered
            is_day = f"MONTH({own}) > 0 AND DAY({own}) > 0"
            value = f"CASE WHEN {is_day} THEN CAST({own} AS CHAR) END"
            first = f"CONCAT(LPAD(YEAR({own}), 4, '0'), '-', MONTH({own}), '-1')"
            unfit = f"{is_day} AND DAY({own}) > DAY(LAST_DAY({first}))"  # with ALLOW_INVALID_DATES
            landed, cast = ("date", "") if base == "date" else ("timestamp", "CAST({} || '+00:00' AS timestamp)")
            split = f"({own} + 0)"
            return SourceColumn(name, declared, landed, nullable, value, cast, unfit, split, compared="number")
        if base == "year":
            value = f"CAST({own} AS SIGNED)"
            return SourceColumn(name, declared, "int", nullable, value, split=own, compared="number", summed=True)
        if base == "bit":
            many = int(digits) == 64
            landed = "boolean" if int(digits) == 1 else "decimal(20,0)" if many else "bigint"
            value = f"CAST({own} + 0 AS {'DECIMAL(20, 0)' if many else 'SIGNED'})"
            return SourceColumn(
                name,
                declared,
                landed,
                nullable,
                value,
                split=f"({own} + 0)",
                compared="number",
                summed=landed != "boolean",
            )
        if base in _MYSQL_TEXTS or base in _PADDED:
            value = f"CAST({own} AS CHAR)" if base in _PADDED else own
            split = f"CAST(LEFT({value}, {TEXT}) AS BINARY)"
            text = SourceColumn(name, declared, "string", nullable, value, split=split, compared="bytes")
            return msgspec.structs.replace(text, collation=collation)
        if base in _BYTES:
            return SourceColumn(name, declared, "binary", nullable, own)
        raise TypeRefused(
            f"column {name} has the type {declared}, which has no equivalent in the warehouse",
            hint="land a view that converts it to a text or a number, such as ST_AsText(...)",
        )

    def sample(self, table: SourceTable, column: SourceColumn, where: str, *, whole: bool) -> str:
        condition = f" WHERE ({where})" if where else ""
        own = self.name(table.schema, table.name)
        some = f"SELECT {column.split} AS v FROM {own}{condition} ORDER BY RAND() LIMIT {SAMPLE}"
        value = "v" if column.compared == "bytes" else "CAST(v AS CHAR)"
        return (
            f"SELECT GROUP_CONCAT(COALESCE(HEX({value}), '!'), ':', n ORDER BY v SEPARATOR ',')"
            f" FROM (SELECT v, COUNT(*) AS n FROM ({some}) s GROUP BY v) g"
        )

    def hashed(self, table: SourceTable) -> str:
        names = table.primary_key or tuple(column.name for column in table.columns)
        parts = ", ".join(map(self.name, names))
        return f"(CAST(CONV(LEFT(MD5(CONCAT_WS(',', {parts})), 4), 16, 10) AS UNSIGNED) & {MASK})"

    def as_text(self, expression: str) -> str:
        return f"CAST({expression} AS CHAR)"

    def counted(self, column: SourceColumn) -> str:
        return column.expression if column.type in ("date", "timestamp") else self.name(column.name)

    def greatest(self, column: SourceColumn) -> str:
        own = self.name(comparable(column).name)
        value = f"({own} + 0e0)" if column.type == "float" else own  # MySQL converts a float to text with six digits
        return f"CAST(MAX({value}) AS CHAR)"

    def text_of(self, column: SourceColumn) -> str:
        return f"CONVERT({column.expression} USING utf8mb4)"

    def text_literal(self, text: str) -> str:
        return f"'{text}'" if plain(text) else f"_utf8mb4 x'{text.encode().hex()}'"

    def sha256(self, text: str) -> str:
        return f"SHA2({text}, 256)"

    def nothing(self, column: SourceColumn) -> str:
        return f"CASE WHEN 1 = 0 THEN {column.expression} END"

    def after(self, column: SourceColumn, text: str, *, same: bool = False) -> str:
        own = f"{self.name(comparable(column).name)} {'>=' if same else '>'}"
        if column.type in ("date", "timestamp") and plain(text):
            return f"{own} '{text}'"
        if column.compared == "bytes":
            return f"{own} _utf8mb4 x'{text.encode().hex()}'"  # a literal: it is compared by the column's collation
        return f"{own} {self.literal(column.compared, text.encode().hex())}"

    @contextmanager
    def snapshot(self, control: Control, another: Another, schema: str, name: str) -> Iterator[Snapshot]:
        yield Snapshot("", consistent=False)


def _mysql_session(patience: Patience) -> str:
    """Returns the session's variables. Times are in UTC, regardless of the server's zone."""
    waits = f"lock_wait_timeout={patience.lock},innodb_lock_wait_timeout={patience.lock}"
    return f"time_zone='+00:00',{waits}"


# ---- any other database ----------------------------------------------------------------------------------------------
# By the JDBC driver's own description of tables and by standard SQL. It is read by one connection, without a snapshot.


NO_RANGES = "one connection reads a database of this kind"

_BY_CODE = {  # of java.sql.Types
    -6: "smallint",  # TINYINT has a sign or none
    5: "smallint",
    4: "int",
    -5: "bigint",
    6: "double",
    7: "double",
    8: "double",
    16: "boolean",
    -2: "binary",
    -3: "binary",
    -4: "binary",
    2004: "binary",
    91: "date",
    93: "timestamp",
    2014: "timestamp",
}
_TEXT_CODES = (1, 12, -1, -15, -9, -16, 2005, 2011)
_FIXED = (1, -15)
_TIME_OF_DAY = 92
_NUMBERS = (2, 3)
_BIT = -7
_GENERIC_MAX = 38
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d{1,9})?)?)?", re.ASCII)


class GenericDialect:
    """The dialect of a database of which only the driver is known; see `Dialect`. Names are in double quotes."""

    def properties(self, patience: Patience, url: str) -> dict[str, str]:
        return {}

    def begin(self, patience: Patience) -> str:
        return ""

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        return ""

    def name(self, *parts: str) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in parts)

    def literal(self, compared: str, value: str) -> str:
        raise SourceRefused(NO_RANGES, hint="omit the split column")

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        columns = described(self._column, control.described(schema, name))
        if not columns:
            return None
        control.rows(f"SELECT * FROM {self.name(schema, name)} WHERE 1 = 0")  # it may describe what it does not show
        key = tuple(each for each in control.key(schema, name) if each)
        return SourceTable(schema, name, columns, primary_key=key, kind="view" if not key else "table")

    def _column(self, row: Row) -> SourceColumn:
        name, code, declared, digits, places, null = (each or "" for each in row)
        own, nullable, kind = self.name(name), null != "0", int(code)
        text = f"CAST({own} AS VARCHAR(64))"
        if kind in _TEXT_CODES or kind == _TIME_OF_DAY or declared.upper() == "UUID":
            fixed = kind in _FIXED and declared.upper() != "UUID"
            value = f"TRIM(TRAILING ' ' FROM {own})" if fixed else own if kind in _TEXT_CODES else text
            compared = "text" if kind in _TEXT_CODES else ""
            return SourceColumn(
                name, declared, "string", nullable, value, split=own, compared=compared, collation="not known"
            )
        if kind in _NUMBERS:
            return self._number(name, declared, int(digits or 0), int(places or 0), nullable=nullable)
        landed = "boolean" if kind == _BIT and digits in ("", "0", "1") else _BY_CODE.get(kind)
        if landed is None:
            hint = "land a view that converts it to a text or a number"
            raise TypeRefused(f"column {name} has the type {declared}, which the driver does not explain", hint=hint)
        if landed in ("date", "timestamp"):
            zone = "" if landed == "date" or kind != 93 else " || '+00:00'"
            cast = f"CAST({{}}{zone} AS {landed})"
            compared = "" if landed == "timestamp" and kind != 93 else landed
            return SourceColumn(name, declared, landed, nullable, text, cast, split=own, compared=compared)
        summed = landed in ("smallint", "int", "bigint")
        value = f"CAST({own} AS DECIMAL(31, 0))" if summed else own  # its sum does not overflow
        compared = "number" if summed or landed == "double" else ""
        return SourceColumn(name, declared, landed, nullable, value, split=own, compared=compared, summed=summed)

    def _number(self, name: str, declared: str, digits: int, places: int, *, nullable: bool) -> SourceColumn:
        if not 1 <= digits <= _GENERIC_MAX or not 0 <= places <= digits:
            raise TypeRefused(
                f"column {name} has the type {declared} of {digits} digits, {places} of them decimal places",
                hint=f"land a view that casts it to DECIMAL({_GENERIC_MAX}, ...), or to text",
            )
        landed, own = f"decimal({digits},{places})", self.name(name)
        return SourceColumn(name, declared, landed, nullable, own, split=own, compared="number", summed=True)

    def sample(self, table: SourceTable, column: SourceColumn, where: str, *, whole: bool) -> str:
        raise SourceRefused(NO_RANGES, hint="omit the split column")

    def hashed(self, table: SourceTable) -> str:
        raise SourceRefused(NO_RANGES, hint="omit the split column")

    def as_text(self, expression: str) -> str:
        return expression  # the driver converts it

    def counted(self, column: SourceColumn) -> str:
        return self.name(column.name)

    def greatest(self, column: SourceColumn) -> str:
        value = f"MAX({self.name(comparable(column).name)})"
        return f"CAST({value} AS VARCHAR(64))" if column.compared in ("date", "timestamp") else value

    def text_of(self, column: SourceColumn) -> str:
        texts = column.type in ("string", "date", "timestamp")
        return column.expression if texts else f"CAST({self.name(column.name)} AS VARCHAR(64))"

    def text_literal(self, text: str) -> str:
        if not text.isprintable() or "\\" in text:
            raise SourceRefused(
                f"{text[:60]!r} has characters that a database of this kind may read otherwise",
                hint="compare by another column, or land a view",
            )
        return "'" + text.replace("'", "''") + "'"

    def sha256(self, text: str) -> str:
        raise SourceRefused(
            "a database of this kind has no hash that is known",
            hint="mask by null, first:N or text:TEXT, or land a view",
        )

    def nothing(self, column: SourceColumn) -> str:
        return f"CASE WHEN 1 = 0 THEN {column.expression} END"

    def after(self, column: SourceColumn, text: str, *, same: bool = False) -> str:
        own = f"{self.name(comparable(column).name)} {'>=' if same else '>'}"
        if column.compared in ("date", "timestamp") and _MOMENT.fullmatch(text):
            return f"{own} {column.compared.upper()} '{text}'"
        if column.compared == "number" and _NUMBER.fullmatch(text.lower()):
            return f"{own} {text}"
        if column.compared == "text":
            return f"{own} {self.text_literal(text)}"
        raise SourceRefused(f"{text[:80]!r} is not a value of type {column.type}", hint="choose another column")

    @contextmanager
    def snapshot(self, control: Control, another: Another, schema: str, name: str) -> Iterator[Snapshot]:
        yield Snapshot("", consistent=False)
