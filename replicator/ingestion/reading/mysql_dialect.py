"""MariaDB and MySQL: their catalog, types and samples. They export no snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from replicator.errors import SourceRefused, TypeRefused
from replicator.ingestion.reading.figures import MASK, SAMPLE, TEXT, Another, comparable, plain
from replicator.ingestion.reading.source_errors import Control, Patience, Row
from replicator.ingestion.reading.source_table import ForeignKey, Snapshot, SourceColumn, SourceTable

_TABLE = """SELECT TABLE_TYPE, TABLE_ROWS FROM information_schema.TABLES
WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND BINARY TABLE_NAME = ?"""

_COLUMNS = """SELECT COLUMN_NAME, IS_NULLABLE, COLUMN_TYPE, DATA_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND BINARY TABLE_NAME = ?
ORDER BY ORDINAL_POSITION"""

_KEYS = """SELECT c.CONSTRAINT_NAME, c.CONSTRAINT_TYPE, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA,
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
_TEXTS = ("varchar", "tinytext", "text", "mediumtext", "longtext")
_PADDED = ("char", "enum", "set", "json", "time", "uuid", "inet4", "inet6")
"""Types that drivers report as CHAR: Spark would pad their values to the maximum length."""
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_DIGITS = 38
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
            found["sessionVariables"] = _session(patience)
        return found

    def begin(self, patience: Patience) -> str:
        return f"SET SESSION {_session(patience)}, group_concat_max_len = {64 << 20}"

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        return f"SET SESSION {_session(patience)}"

    def name(self, *parts: str) -> str:
        return ".".join(f"`{part.replace('`', '``')}`" for part in parts)

    def literal(self, compared: str, value: str) -> str:
        data = bytes.fromhex(value)
        if compared == "bytes":
            return f"x'{data.hex()}'"
        text = data.decode()
        if not _NUMBER.fullmatch(text):
            raise SourceRefused(f"{text[:80]!r} is no number of the source", hint="choose another column")
        return text

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        asked = (schema, name, name)
        found = control.rows(_TABLE, *asked)
        if not found:
            return None
        columns = tuple(self._column(row) for row in control.rows(_COLUMNS, *asked))
        control.rows(f"SELECT * FROM {self.name(schema, name)} LIMIT 0")  # the catalog hides unreadable columns
        keys: dict[tuple[str, str], list[Row]] = {}
        for row in control.rows(_KEYS, *asked):
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
        name, null, declared, base, digits, places = (each or "" for each in row)
        own, nullable = self.name(name), null == "YES"
        if base in _INTEGERS:
            landed = _INTEGERS[base]["unsigned" in declared]
            value = f"CAST({own} AS {'DECIMAL(20, 0)' if landed.startswith('decimal') else 'SIGNED'})"
            return SourceColumn(name, declared, landed, nullable, value, split=own, compared="number", summed=True)
        if base == "decimal":
            if int(digits) > _DIGITS:
                hint = f"land a view that casts it to decimal({_DIGITS}, {min(int(places), _DIGITS)}), or to char"
                raise TypeRefused(f"column {name} has the type {declared}: at most {_DIGITS} digits fit", hint=hint)
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
        if base in _TEXTS or base in _PADDED:
            value = f"CAST({own} AS CHAR)" if base in _PADDED else own
            split = f"CAST(LEFT({value}, {TEXT}) AS BINARY)"
            return SourceColumn(name, declared, "string", nullable, value, split=split, compared="bytes")
        if base in _BYTES:
            return SourceColumn(name, declared, "binary", nullable, own)
        raise TypeRefused(
            f"column {name} has the type {declared}, which has no place in the warehouse",
            hint="land a view that makes a text or a number of it, such as ST_AsText(...)",
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


def _session(patience: Patience) -> str:
    """Returns the session's variables. Times are in UTC, regardless of the server's zone."""
    waits = f"lock_wait_timeout={patience.lock},innodb_lock_wait_timeout={patience.lock}"
    return f"time_zone='+00:00',{waits}"
