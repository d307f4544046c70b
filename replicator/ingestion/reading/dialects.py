"""The dialect of PostgreSQL: its catalog, types, samples and snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from replicator.errors import TypeRefused
from replicator.ingestion.reading.figures import MASK, SAMPLE, TEXT, Another, comparable, plain
from replicator.ingestion.reading.source_errors import Control, Patience, Row
from replicator.ingestion.reading.source_table import ForeignKey, Snapshot, SourceColumn, SourceTable, described

# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


PAGES = 2000
"""Approximate number of pages in the sample of a larger table."""

_POSTGRES_TABLE = """SELECT c.oid, c.relkind,
  (c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid))::int
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ? AND c.relname = ? AND c.relkind IN ('r', 'p', 'm', 'v', 'f')"""

_PAGES = """WITH RECURSIVE tree AS (SELECT {oid}::oid AS oid
  UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid)
SELECT coalesce(sum(pg_catalog.pg_relation_size(oid)), 0)::bigint / current_setting('block_size')::bigint FROM tree"""

_POSTGRES_COLUMNS = """WITH RECURSIVE of AS (
  SELECT attnum, attname, attnotnull AS filled, format_type(atttypid, atttypmod) AS declared, atttypid AS type,
    atttypmod AS modifier, attcollation AS collated
  FROM pg_catalog.pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT attnum, attname, filled OR y.typnotnull, declared, y.typbasetype,
    CASE WHEN y.typtypmod = -1 THEN modifier ELSE y.typtypmod END, collated
  FROM of JOIN pg_catalog.pg_type y ON y.oid = of.type WHERE y.typtype = 'd')
SELECT attname, CASE WHEN filled THEN 'no' ELSE 'yes' END, declared, y.typname, y.typtype, y.typcategory, modifier,
  CASE y.typname WHEN 'citext' THEN 'citext' ELSE (SELECT l.collname::text FROM pg_catalog.pg_collation l
    WHERE l.oid = collated AND to_jsonb(l)->>'collisdeterministic' = 'false') END
FROM of JOIN pg_catalog.pg_type y ON y.oid = of.type WHERE y.typtype <> 'd' ORDER BY attnum"""
"""Domains are resolved recursively to their base types."""

_POSTGRES_KEYS = """SELECT conname, contype, n.nspname, f.relname,
  (SELECT json_agg(a.attname ORDER BY k.at) FROM unnest(conkey) WITH ORDINALITY k (number, at)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = conrelid AND a.attnum = k.number)::text,
  (SELECT json_agg(a.attname ORDER BY k.at) FROM unnest(confkey) WITH ORDINALITY k (number, at)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = confrelid AND a.attnum = k.number)::text
FROM pg_catalog.pg_constraint LEFT JOIN pg_catalog.pg_class f ON f.oid = confrelid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = f.relnamespace
WHERE conrelid = {oid} AND contype IN ('p', 'u', 'f') AND convalidated ORDER BY conname"""

_PLAIN_TYPES = {  # (in the warehouse, type of literals)
    "int2": ("smallint", "bigint"),
    "int4": ("int", "bigint"),
    "int8": ("bigint", "bigint"),
    "float4": ("float", "real"),
    "float8": ("double", "double precision"),
    "bool": ("boolean", ""),
    "bytea": ("binary", ""),
    "timestamptz": ("timestamp", "timestamptz"),
}
_AS_TEXT = {"uuid": "uuid", "time": "time", "timetz": "timetz"}
"""Types that are landed as text, but sorted by their own order."""

_POSTGRES_TEXTS = ("text", "varchar", "bpchar", "name", "citext", "char")
_PG_DIGITS, _PG_PLACES = 38, 18


class PostgresDialect:
    """The dialect of PostgreSQL; see `Dialect`."""

    def properties(self, patience: Patience, url: str) -> dict[str, str]:
        found = {
            "loginTimeout": str(patience.login),
            "connectTimeout": str(patience.login),
            "socketTimeout": str(patience.answer + 60),
            "tcpKeepAlive": "true",
            "ApplicationName": "replicator",
        }
        if "options=" not in url:  # in time for Spark's own query for the columns' types
            found["options"] = f"-c lock_timeout={patience.lock}s"
        return found

    def begin(self, patience: Patience) -> str:
        return f"SET idle_in_transaction_session_timeout = 0; {_postgres_session(patience)}"

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        if snapshot is None or not snapshot.name:
            return f"{_postgres_session(patience)}; {_SAME}"
        taken = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        return f"{taken}; SET TRANSACTION SNAPSHOT {_literal(snapshot.name)}; {_postgres_session(patience)}; {_SAME}"

    def name(self, *parts: str) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in parts)

    def literal(self, compared: str, value: str) -> str:
        return _literal(bytes.fromhex(value).decode(), compared)

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        found = control.rows(_POSTGRES_TABLE, schema, name)
        if not found:
            return None
        oid, kind, has_heirs = int(found[0][0] or 0), found[0][1], found[0][2] == "1"  # not covered by its keys
        columns = described(self._column, control.rows(_POSTGRES_COLUMNS.format(oid=oid)))
        table = kind in ("r", "p", "m")
        pages = control.rows(_PAGES.format(oid=oid))[0][0] if table else "0"
        primary: tuple[str, ...] = ()
        unique, foreign = [], []
        for named, of, other_schema, other, own, theirs in (
            control.rows(_POSTGRES_KEYS.format(oid=oid)) if not has_heirs else ()
        ):
            names = tuple(json.loads(own or "[]"))
            if of == "p":
                primary = names
            elif of == "u":
                unique.append(names)
            else:
                refers = tuple(json.loads(theirs or "[]"))
                foreign.append(ForeignKey(named or "", names, other_schema or "", other or "", refers))
        return SourceTable(
            schema,
            name,
            columns,
            primary_key=primary,
            unique=tuple(unique),
            foreign_keys=tuple(foreign),
            kind="table" if table else "view",
            pages=int(pages or 0),
            is_foreign=kind == "f",
        )

    def _column(self, row: Row) -> SourceColumn:
        name, null, declared, base, kind, category, modifier, collation = (each or "" for each in row)
        own, nullable = self.name(name), null == "yes"
        if kind == "b" and base in _PLAIN_TYPES:
            landed, compared = _PLAIN_TYPES[base]
            summed = compared == "bigint"
            return SourceColumn(
                name, declared, landed, nullable, own, split=own if compared else "", compared=compared, summed=summed
            )
        if base == "numeric":
            return _numeric(name, declared, own, int(modifier), nullable=nullable)
        if base == "money":
            value = f"{own}::numeric"
            landed = "decimal(19,2)"
            return SourceColumn(
                name,
                declared,
                landed,
                nullable,
                f"CAST({value} AS numeric(19, 2))",
                unfit=f"{value} <> round({value}, 2)",  # a currency with three decimal places
                split=value,
                compared="numeric",
                summed=True,
            )
        if base == "oid":
            value = f"{own}::bigint"
            return SourceColumn(name, declared, "bigint", nullable, value, split=value, compared="bigint", summed=True)
        if base in ("date", "timestamp"):
            value = own if base == "date" else f"({own} AT TIME ZONE 'UTC')"
            unfit = f"isfinite({own}) AND {own} < '0001-01-01'"
            return SourceColumn(name, declared, base, nullable, value, unfit=unfit, split=own, compared=base)
        if base in _POSTGRES_TEXTS or kind == "e":
            split = f'left({own}::text, {TEXT}) COLLATE "C"'
            text = SourceColumn(name, declared, "string", nullable, f"{own}::text", split=split, compared="text")
            return msgspec.structs.replace(text, collation=collation)
        if category == "A" or kind == "c":
            return SourceColumn(name, declared, "string", nullable, f"to_json({own})::text")
        compared = _AS_TEXT.get(base, "")
        split = own if compared else ""
        return SourceColumn(name, declared, "string", nullable, f"{own}::text", split=split, compared=compared)

    def sample(self, table: SourceTable, column: SourceColumn, where: str, *, whole: bool) -> str:
        part = ""
        if table.kind == "table" and table.pages > 2 * PAGES and not whole:
            part = f" TABLESAMPLE SYSTEM ({100 * PAGES / table.pages:.6f})"
        condition = f" WHERE ({where})" if where else ""
        some = (
            f"SELECT {column.split} AS v FROM {self.name(table.schema, table.name)}{part}{condition}"
            f" ORDER BY random() LIMIT {SAMPLE}"
        )
        text = "coalesce(encode(convert_to(v::text, 'UTF8'), 'hex'), '!')"
        return (
            f"SELECT string_agg({text} || ':' || n, ',' ORDER BY v)"
            f" FROM (SELECT v, count(*) AS n FROM ({some}) s GROUP BY v) g"
        )

    def hashed(self, table: SourceTable) -> str:
        if table.primary_key:
            parts = ", ".join(f"{self.name(each)}::text" for each in table.primary_key)
            text = f"concat_ws(',', {parts})"
        else:
            text = "ctid::text"  # views are not divided by hash
        return f'(hashtext({text} COLLATE "C") & {MASK})'

    def as_text(self, expression: str) -> str:
        return f"({expression})::text"

    def counted(self, column: SourceColumn) -> str:
        return self.name(column.name)

    def greatest(self, column: SourceColumn) -> str:
        return f"max({self.name(comparable(column).name)})::text"

    def text_of(self, column: SourceColumn) -> str:
        return f"({column.expression})::text"

    def text_literal(self, text: str) -> str:
        return _literal(text)

    def sha256(self, text: str) -> str:
        return f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"  # of PostgreSQL 11 and newer

    def nothing(self, column: SourceColumn) -> str:
        return f"CASE WHEN false THEN {column.expression} END"

    def after(self, column: SourceColumn, text: str, *, same: bool = False) -> str:
        sign = ">=" if same else ">"
        return f"{self.name(column.name)} {sign} {_literal(text, comparable(column).compared)}"

    @contextmanager
    def snapshot(self, control: Control, another: Another, schema: str, name: str) -> Iterator[Snapshot]:
        """Exports a snapshot, also on a standby; it lasts as long as the other connection's transaction. The table is
        locked first, and the snapshot is taken later: in an earlier one, a table that another transaction truncates,
        rewrites or replaces concurrently would have no rows. Rows of a foreign table are another server's, consistent
        per connection only."""
        with another() as holder, holder.transaction(), control.transaction():
            holder.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY")
            found = holder.rows(_POSTGRES_TABLE, schema, name)
            if found:  # else the query for its columns reports it missing
                holder.rows(f"SELECT 1 FROM {self.name(schema, name)} LIMIT 0")
            exported = holder.rows("SELECT pg_export_snapshot()")[0][0] or ""
            taken = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            control.run(f"{taken}; SET TRANSACTION SNAPSHOT {_literal(exported)}")
            yield Snapshot(exported, consistent=not found or found[0][1] != "f")


def _postgres_session(patience: Patience) -> str:
    """Returns the session's settings. Texts of times and intervals do not depend on the server's settings. A row
    security policy that hides rows from this user is an error."""
    return (
        f"SET lock_timeout = '{patience.lock}s'; SET TIME ZONE 'UTC'; SET intervalstyle = 'iso_8601'; "
        "SET row_security = off"
    )


_SAME = "SET synchronize_seqscans = off; SET max_parallel_workers_per_gather = 0"
"""Settings of readers: all that scan a table encounter its rows in the same order."""


def _literal(text: str, type_: str = "") -> str:
    """Returns a literal; without a type, the server infers it."""
    written = f"'{text}'" if plain(text) else f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"
    return f"CAST({written} AS {type_})" if type_ else written


def _numeric(name: str, declared: str, own: str, modifier: int, *, nullable: bool) -> SourceColumn:
    """Describes a numeric column. PostgreSQL's numbers have any number of digits, and may be NaN or infinite."""
    if modifier < 0:
        landed = f"decimal({_PG_DIGITS},{_PG_PLACES})"
        value = f"CAST({own} AS numeric({_PG_DIGITS}, {_PG_PLACES}))"
        unfit = f"abs({own}) >= 1e{_PG_DIGITS - _PG_PLACES} OR {own} <> round({own}, {_PG_PLACES})"
    else:
        digits, places = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
        digits, places = max(digits - min(places, 0), places), max(places, 0)
        if digits > _PG_DIGITS:
            raise TypeRefused(
                f"column {name} has the type {declared}: at most {_PG_DIGITS} digits fit",
                hint=f"land a view that casts it to numeric({_PG_DIGITS}, {min(places, _PG_PLACES)}), or to text",
            )
        landed, value = f"decimal({digits},{places})", f"CAST({own} AS numeric({digits}, {places}))"
        unfit = f"{own} = 'NaN'"
    return SourceColumn(
        name, declared, landed, nullable, value, unfit=unfit, split=own, compared="numeric", summed=True
    )
