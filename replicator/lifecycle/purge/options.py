"""Settings of a purge: its options, the white list of tables, and the descriptor in a table's properties.

Names and grammar are those of Gobblin compliance, so existing job properties, table properties and lists work unchanged
(docs/migrating.md). Gobblin's job properties are the defaults of the options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.store.acid import State
from replicator.core.formats import format_of, is_transactional
from replicator.core.formats.interface import FULL
from replicator.core.model import Column, Table
from replicator.core.text import decode_properties, property_entries, quoted_name
from replicator.errors import UsageError
from replicator.lifecycle.purge.matching import (
    FIELD_PATH,
    column_named,
    former_columns,
    is_matched,
    match_rules,
    names_in,
    no_persons,
    type_at,
)
from replicator.lifecycle.purge.transactional_files import ROW, why_refused
from replicator.lifecycle.removal.removal import Limits

# ---- options ---------------------------------------------------------------------------------------------------------


PREFIX = "gobblin.compliance."

ALIASES = {"complianceIdTable": "purger.complianceIdTable", "complianceId": "purger.complianceId"}
"""Property names in the old user guide, without the prefix."""


@dataclass(frozen=True)
class PurgeOptions:
    """The options of a purge. ids: "db.table:column". whitelist: in Gobblin's grammar. field_path: path to the column's
    name in a descriptor. attempts: the maximum number of attempts for a partition that changes concurrently. grace: how
    old files of the log of a Delta table must be before they are removed."""

    ids: str
    whitelist: str = ""
    field_path: str = ""
    attempts: int = 3
    grace: timedelta = timedelta(hours=2)

    @classmethod
    def given(
        cls,
        ids: str | None,
        whitelist: str | None,
        field_path: str | None,
        properties: Mapping[str, str],
        attempts: int = 3,
        grace: timedelta = timedelta(hours=2),
    ) -> PurgeOptions:
        """Combines arguments and properties. Raises UsageError if no table of ids is specified."""
        if ids is None and "purger.complianceIdTable" in properties:
            ids = f"{properties['purger.complianceIdTable']}:{properties.get('purger.complianceId', '')}"
        if not ids:
            raise UsageError("no table of ids is given", hint="give --ids db.table:column")
        return cls(
            ids,
            whitelist or properties.get("dataset.whitelist") or "",
            field_path or properties.get("dataset.descriptor.fieldPath") or "",
            attempts,
            grace,
        )

    def request(self, metastore: str) -> dict[str, Any]:
        """Returns the values that identify a request; they are equal for runs that do the same work."""
        return {"metastore": metastore, "ids": self.ids, "whitelist": self.whitelist, "field_path": self.field_path}


@dataclass(frozen=True)
class RetainOptions:
    """Retention of backups: the newest `versions` of each partition, none older than `days`. Backups younger than
    `readers` are always retained, because queries that began before the swap read them."""

    versions: int = 1
    days: timedelta = timedelta(days=7)
    readers: timedelta = timedelta(hours=2)
    trash: timedelta = timedelta(days=7)

    @classmethod
    def given(
        cls,
        versions: int | None,
        days: timedelta | None,
        readers: timedelta,
        trash: timedelta | None,
        properties: Mapping[str, str],
    ) -> RetainOptions:
        """Combines arguments and properties. Raises UsageError for a property that is not a number of days."""
        return cls(
            versions if versions is not None else int(properties.get("cleaner.backup.retention.versions", "1")),
            days if days is not None else _days(properties, "cleaner.backup.retention.days"),
            readers,
            trash if trash is not None else _days(properties, "cleaner.trash.retention.days"),
        )


@dataclass(frozen=True)
class BackupRestoreSettings:
    """Selection of a backup: the newest of a partition ("" for an unpartitioned table), or the newest that was swapped
    out at or before `moment` (ISO 8601, or a run's id). undo: selects the directory that the last restore replaced."""

    table: str
    partition: str = ""
    moment: str | None = None
    undo: bool = False


@dataclass(frozen=True)
class CertifyOptions:
    """Options of a certification. roots: `$cmroot`s of replicas without a policy. run: certifies the ids and tables of
    this purge, or of the "latest". expedited: recycles backups and expires entries first, but no backup younger than
    `readers`, and within the limits. allow_gaps: gaps in the search do not prevent certification."""

    roots: Sequence[str] = ()
    run: str | None = None
    expedited: bool = False
    allow_gaps: bool = False
    readers: timedelta = timedelta(hours=2)
    limits: Limits = field(default_factory=Limits)


def gobblin(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the stripped properties of Gobblin compliance, without their prefix, under the newer of two names."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        name = key if key == FIELD_PATH_ALIASES[1] else key.removeprefix(PREFIX) if key.startswith(PREFIX) else ""
        if name:
            found.setdefault(ALIASES.get(name, name), value.strip())
    return found


def read_properties(path: str | os.PathLike[str] | None) -> dict[str, str]:
    """Reads a job's properties file as `gobblin` does; None: {}. Raises UsageError if it cannot be read."""
    if path is None:
        return {}
    try:
        return gobblin({key: value for key, value, _ in property_entries(decode_properties(Path(path).read_bytes()))})
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="check --properties") from error


def _days(properties: Mapping[str, str], key: str) -> timedelta:
    text = properties.get(key, "7")
    if not text.isdecimal():
        raise UsageError(f"{key} = {text!r} is not a number of days", hint="check --properties")
    return timedelta(days=int(text))


# ---- white list and descriptors --------------------------------------------------------------------------------------


DESCRIPTOR = "dataset.descriptor"
FIELD_PATH_ALIASES = (FIELD_PATH, "dataset.descriptor.fieldPath")


@dataclass(frozen=True)
class WhiteList:
    """A list of tables, `db.table1|table2,db2`: commas between entries, bars between tables, `*` for any text; the rest
    is a regular expression. Matches entire names, case-insensitively. An empty list matches every table."""

    entries: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> WhiteList:
        """Parses a list. Raises UsageError that names the invalid entry."""
        found = []
        for entry in filter(None, (part.strip() for part in text.split(","))):
            db, dot, tables = entry.partition(".")
            if "." in tables.replace(".*", ""):
                raise UsageError(
                    f"{entry!r}: more than one dot", hint="write db.table1|table2,db2; `*` matches any text"
                )
            try:
                names = [_pattern(name) for name in tables.split("|")] if dot else [".*"]
                found.append((_compiled(_pattern(db)), _compiled("|".join(names))))
            except re.error as error:
                raise UsageError(
                    f"{entry!r}: {error}", hint="write db.table1|table2,db2; `*` matches any text"
                ) from error
        return cls(tuple(found))

    def has(self, db: str, table: str) -> bool:
        return not self.entries or any(d.fullmatch(db) and t.fullmatch(table) for d, t in self.entries)

    def has_database(self, db: str) -> bool:
        """Returns True if the list may match a table of this database."""
        return not self.entries or any(d.fullmatch(db) for d, _ in self.entries)


def _pattern(text: str) -> str:
    return ".*".join(text.strip().split("*"))


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?:{pattern})", re.IGNORECASE)


class PurgeGap(msgspec.Struct, frozen=True):
    """A white-listed table that no purge reaches, and why: its data remain. `invalid`: its descriptor is invalid."""

    table: str
    reason: str
    invalid: bool = False


@dataclass(frozen=True)
class Onboarded:
    """A table to purge. field: the path to the field with ids, beginning with a column; type: the field's Hive type.
    former: names that the column had earlier, in lower case; None if the descriptor does not say. match: the rules by
    which values equal ids; () for exactly. homes: the locations of its database and of the warehouse. is_key: the field
    is a partition key; partitions whose value is an id are dropped. state: the write ids of a transactional table."""

    table: Table
    field: tuple[str, ...]
    type: str
    former: tuple[str, ...] | None = None
    match: tuple[str, ...] = ()
    homes: tuple[str | None, ...] = ()
    is_key: bool = False
    state: State | None = None

    @property
    def name(self) -> str:
        return f"{self.table.db}.{self.table.name}"

    @property
    def in_files(self) -> tuple[str, ...]:
        """The path to the field in files, where the columns of a row with an id are in another."""
        return (ROW, *self.field) if is_transactional(self.table) == FULL else self.field


class WithoutPersons(msgspec.Struct, frozen=True):
    """A white-listed table that holds no persons, according to its descriptor. by: who stated it, and the reason."""

    table: str
    by: str
    reason: str


def onboard(table: Table, field_path: str = "") -> Onboarded | PurgeGap | WithoutPersons:
    """Returns how a purge takes a white-listed table. field_path: path to the column's name in the descriptor, unless
    the table's properties define it; with neither, the descriptor's only text is the name."""
    name = f"{table.db}.{table.name}"
    if table.is_view:
        return PurgeGap(name, "a view: it has no data of its own")
    if table.has_query:
        return PurgeGap(name, "a materialized view: rebuild it after the tables that it reads are purged")
    text = table.parameters.get(DESCRIPTOR)
    if text is None:
        return PurgeGap(name, f"not onboarded: its properties have no {DESCRIPTOR}")
    own = next((table.parameters[key] for key in FIELD_PATH_ALIASES if table.parameters.get(key)), "")
    if stated := _without_persons(table, text, own or field_path):
        return stated
    if why := _foreign(table):
        return PurgeGap(name, why)
    try:
        field = column_named(text, own or field_path)
    except ValueError as error:
        return PurgeGap(name, f"{DESCRIPTOR} is invalid: {error}", invalid=True)
    parts = tuple(names_in(field.lower()))
    for key in table.partition_keys:
        if parts[:1] == (key.name.lower(),):
            return _by_key(table, key, parts, text)
    try:
        columns = {column.name.lower(): column.type for column in data_columns(table)}
    except ValueError as error:
        return PurgeGap(name, str(error), invalid=True)
    if not parts or parts[0] not in columns:
        return PurgeGap(name, f"{DESCRIPTOR} names {field!r}, and the table has no such column", invalid=True)
    try:
        former = former_columns(text)
        nested = len(parts) > 1 or is_transactional(table)
        if former and (nested or set(former) & set(columns)):
            why = "ids in a struct or a transactional table have none" if nested else "the table has such a column"
            return PurgeGap(name, f"{DESCRIPTOR} names {', '.join(former)} as former: {why}", invalid=True)
        if collation := collation_of(table, parts):
            return PurgeGap(name, f"{field} has the collation {collation}; ids are compared exactly: use UTF8_BINARY")
        type_, match_ = type_at(columns[parts[0]], parts[1:]), match_rules(text)
        if match_ and not is_matched(type_):
            raise ValueError(f"ids.match compares texts and numbers, and {field} is a {type_}")
        return Onboarded(table, parts, type_, former, match_)
    except ValueError as error:
        return PurgeGap(name, f"{DESCRIPTOR} names {field!r}: {error}", invalid=True)


def _by_key(table: Table, key: Column, parts: tuple[str, ...], text: str) -> Onboarded | PurgeGap:
    """Returns a table whose partitions have the ids as values of a partition key."""
    name, field = f"{table.db}.{table.name}", ".".join(parts)
    try:
        if is_transactional(table):
            return PurgeGap(name, f"a transactional table with ids in a partition key: drop partitions of {field}")
        if former_columns(text) or len(parts) > 1:
            raise ValueError("a partition key has no former columns and no fields")
        type_, match_ = type_at(key.type, ()), match_rules(text)
        if match_ and not is_matched(type_):
            raise ValueError(f"ids.match compares texts and numbers, and {field} is a {type_}")
        return Onboarded(table, parts, type_, match=match_, is_key=True)
    except ValueError as error:
        return PurgeGap(name, f"{DESCRIPTOR} names {field!r}: {error}", invalid=True)


def _without_persons(table: Table, text: str, path: str) -> WithoutPersons | PurgeGap | None:
    """Returns a table whose descriptor states that it holds no persons, or why this does not count; None without such a
    statement."""
    name = f"{table.db}.{table.name}"
    try:
        stated = no_persons(text)
        if stated is None:
            return None
        columns = {each.name: each.type for each in (*data_columns(table), *table.partition_keys)}
    except msgspec.DecodeError:
        return None
    except ValueError as error:
        return PurgeGap(name, f"{DESCRIPTOR} is invalid: {error}", invalid=True)
    if (rules := format_of(table)).own_columns:
        return PurgeGap(name, f"{rules.said}: its own log has its columns, so no statement about them is checked")
    if _has_avro_schema(table):
        return PurgeGap(name, "its Avro schema has its columns, so no statement about them is checked")
    if path and _has_value(text, path):
        return PurgeGap(name, f'{DESCRIPTOR} is invalid: "persons": "none", and a column at {path}', invalid=True)
    if new := stated.not_covered(columns):
        why = f"{DESCRIPTOR} states that it holds no persons (by {stated.by}), but not of {', '.join(new[:10])}"
        more = f" and {len(new) - 10:,} more" if len(new) > 10 else ""
        return PurgeGap(name, f"{why}{more}: the statement is void until its `columns` name them")
    return WithoutPersons(name, stated.by, stated.reason)


def _has_avro_schema(table: Table) -> bool:
    """Returns True for a table of Hive that is read by a schema of its own: the metastore's columns may be old ones."""
    serde = table.storage.serde if table.storage else None
    if serde is None or is_sparks(table) or not (serde.library or "").endswith("AvroSerDe"):
        return False
    keys = {key.lower() for key in (*table.parameters, *serde.parameters)}
    return not keys.isdisjoint(("avro.schema.literal", "avro.schema.url"))


def _has_value(text: str, path: str) -> bool:
    try:
        return bool(column_named(text, path))
    except ValueError:
        return False


def _foreign(table: Table) -> str:
    """Returns why only other tools may erase rows: another table format or system owns the files. Else ""."""
    handler = {key.lower(): value for key, value in table.parameters.items()}.get("storage_handler", "")
    refused = why_refused(table) if is_transactional(table) else ""
    return format_of(table).no_purge.format(handler=handler) or refused


def is_sparks(table: Table) -> bool:
    """Returns True if the table uses one of Spark's own data sources (`USING parquet`), not a Hive format."""
    return table.parameters.get("spark.sql.sources.provider", "hive").lower() != "hive"


def data_columns(table: Table) -> tuple[Column, ...]:
    """Returns a table's columns. Spark stores those of its own types in the properties; if Hive cannot read the files,
    the metastore's columns are meaningless. Raises ValueError for an invalid schema."""
    own = table.storage.columns if table.storage else ()
    if not is_sparks(table):
        return own
    text = _spark_schema(table.parameters)
    if not text:
        return own
    keys = {key.name.lower() for key in table.partition_keys}
    try:
        fields = msgspec.json.decode(text, type=_Schema).fields
        return tuple(Column(field.name, _hive_type(field.type)) for field in fields if field.name.lower() not in keys)
    except UNREADABLE as error:
        raise ValueError(f"spark.sql.sources.schema is invalid: {error}") from error


def _spark_schema(parameters: Mapping[str, str]) -> str:
    if whole := parameters.get("spark.sql.sources.schema"):
        return whole
    count = parameters.get("spark.sql.sources.schema.numParts", "0")
    if not count.isdecimal():
        raise ValueError(f"spark.sql.sources.schema.numParts is not a number: {count[:80]!r}")
    parts = []
    for number in range(int(count)):
        part = parameters.get(f"spark.sql.sources.schema.part.{number}")
        if part is None:
            raise ValueError(f"spark.sql.sources.schema has no part {number} of {count}")
        parts.append(part)
    return "".join(parts)


class _Field(msgspec.Struct):
    name: str
    type: Any
    metadata: dict[str, Any] = {}


class _Schema(msgspec.Struct):
    fields: list[_Field]


def collation_of(table: Table, path: tuple[str, ...]) -> str:
    """Returns the collation of a text column or field of Spark (lower case) that is not binary; else "". Raises
    ValueError for an invalid schema."""
    text = _spark_schema(table.parameters)
    if not text:
        return ""
    try:
        fields = msgspec.json.decode(text, type=_Schema).fields
    except UNREADABLE as error:
        raise ValueError(f"spark.sql.sources.schema is invalid: {error}") from error
    for each in fields:
        found = each.metadata.get("__COLLATIONS") if each.name.lower() == path[0] else None
        for name, collation in found.items() if isinstance(found, dict) else ():
            if name.lower() == ".".join(path):
                return str(collation).rpartition(".")[2]
    return ""


_BINARY = "string collate UTF8_BINARY"  # any other collation is in the metadata of the column
_SPARK_TYPES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", _BINARY: "string"}
_WORD = re.compile(r"[a-z][a-z0-9_ ]*(\([\w:, -]*\))?", re.ASCII)
_PLAIN = re.compile(r"\w+", re.ASCII)


def _hive_type(type_: Any) -> str:
    """Converts a Spark type to a Hive type. Puts names of struct fields with special characters in backticks."""
    match type_:
        case str() if type_ in _SPARK_TYPES or _WORD.fullmatch(type_):
            return _SPARK_TYPES.get(type_, type_)
        case {"type": "struct", "fields": list(fields)}:
            inner = msgspec.convert(fields, list[_Field])
            return f"struct<{','.join(f'{_field_name(field.name)}:{_hive_type(field.type)}' for field in inner)}>"
        case {"type": "array", "elementType": element}:
            return f"array<{_hive_type(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_hive_type(key)},{_hive_type(value)}>"
        case {"type": "udt"}:
            return "udt"
    raise ValueError(f"spark.sql.sources.schema has an invalid type: {str(type_)[:80]!r}")


def _field_name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted_name(name)
