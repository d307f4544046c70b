"""Metadata objects of a metastore as values, independent of thrift and of the server's version.

Every class is immutable and complete when built. `extra` retains, by thrift field id, each field without a typed
attribute here (in thrift's TJSON form), so an object that is read from a newer server and written back loses nothing.
Times are seconds since the epoch, as the metastore sends them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from cmroot.errors import FormatError

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""Thrift's i32. Checked when a value is read from a file, because a larger number breaks the call that sends it."""


Name = tuple[str, str]
"""A table: (database, table)."""
Part = tuple[str, str, str]
"""(database, table, partition); without a partition, the table."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base class of the values below: immutable, compared by content, JSON without defaults."""


class Column(Value, frozen=True, omit_defaults=True):
    """A column or a partition key: name, Hive type string, comment (None when absent)."""

    name: str
    type: str
    comment: str | None = None


class Serde(Value, frozen=True, omit_defaults=True):
    """Row format: the serde class and its parameters."""

    name: str | None = None
    library: str | None = None
    parameters: dict[str, str] = {}
    extra: dict[str, Any] = {}


class Skew(Value, frozen=True, omit_defaults=True):
    """Skewed columns, their values, and the location of each combination of values (thrift SkewedInfo)."""

    columns: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()
    locations: tuple[tuple[tuple[str, ...], str], ...] = ()


class Storage(Value, frozen=True, omit_defaults=True):
    """Location and format of the data of a table or a partition (thrift StorageDescriptor)."""

    columns: tuple[Column, ...] = ()
    location: str | None = None
    input_format: str | None = None
    output_format: str | None = None
    compressed: bool = False
    buckets: Int32 = -1
    bucket_columns: tuple[str, ...] = ()
    sort_columns: tuple[tuple[str, Int32], ...] = ()  # (column, 1 ascending | 0 descending)
    serde: Serde = Serde()
    parameters: dict[str, str] = {}
    skew: Skew | None = None
    subdirectories: bool = False  # storedAsSubDirectories
    extra: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Returns True if all files of a table are the table's own, also those in the directories of its partitions:
        Hudi's, whose timeline defines which are valid."""
        return str(self.input_format).lower().startswith(WHOLE)


WHOLE = ("org.apache.hudi.", "com.uber.hoodie.")  # begins of the names of such readers, in lower case


class Database(Value, frozen=True, omit_defaults=True):
    """A database. `owner_type` is USER, ROLE or GROUP. `managed_location`: location of its managed tables, if other
    than `location`. `connector`: the data connector of a REMOTE database, whose tables belong to another system."""

    name: str
    description: str | None = None
    location: str | None = None
    parameters: dict[str, str] = {}
    owner: str | None = None
    owner_type: str | None = None
    managed_location: str | None = None
    connector: str | None = None
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Moves two fields out of `extra`, where logs and dumps of earlier releases have them."""
        for key, name in (("10", "managed_location"), ("12", "connector")):
            if key in self.extra and getattr(self, name) is None and list(self.extra[key]) == ["str"]:
                msgspec.structs.force_setattr(self, name, self.extra[key]["str"])
                rest = {id: value for id, value in self.extra.items() if id != key}
                msgspec.structs.force_setattr(self, "extra", rest)


MANAGED = "MANAGED_TABLE"
EXTERNAL = "EXTERNAL_TABLE"
TRANSLATED = "TRANSLATED_TO_EXTERNAL"  # parameter of a table that was created as a managed table
VIEW = "VIRTUAL_VIEW"
MATERIALIZED_VIEW = "MATERIALIZED_VIEW"
INDEX = "INDEX_TABLE"  # contents of an index, up to Hive 2.3


class Table(Value, frozen=True, omit_defaults=True):
    """A table or a view. `kind` is the metastore's tableType. Views have no data; materialized views have."""

    db: str
    name: str
    kind: str = MANAGED
    owner: str | None = None
    owner_type: str | None = None
    create_time: Int32 = 0
    last_access_time: Int32 = 0
    retention: Int32 = 0
    storage: Storage | None = Storage()
    partition_keys: tuple[Column, ...] = ()
    parameters: dict[str, str] = {}
    view_original: str | None = None
    view_expanded: str | None = None
    rewrite_enabled: bool | None = None
    temporary: bool = False
    privileges: dict[str, Any] | None = None  # thrift PrincipalPrivilegeSet in TJSON form
    extra: dict[str, Any] = {}

    @property
    def is_view(self) -> bool:
        """Returns True for a view without data; a materialized view has data like a managed table's."""
        return self.kind == VIEW

    @property
    def has_query(self) -> bool:
        """Returns True for a view of either kind: a query defines its rows."""
        return self.kind in (VIEW, MATERIALIZED_VIEW)

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partition_keys)

    @property
    def has_files_by_partition(self) -> bool:
        """Returns True if the files of its partitions are the partitions' own."""
        return self.is_partitioned and not (self.storage and self.storage.is_whole)

    @property
    def is_external(self) -> bool:
        return self.kind == EXTERNAL or self.parameters.get("EXTERNAL", "").upper() == "TRUE"

    @property
    def owns_data(self) -> bool:
        """Returns True if dropping the table drops its data: managed, or external with external.table.purge=true."""
        return not self.is_view and (
            not self.is_external or self.parameters.get("external.table.purge", "").lower() == "true"
        )

    @property
    def moves_with_name(self) -> bool:
        """Returns True if a rename moves the table's directory: managed tables, and tables that Hive 4 itself has
        translated to external ones, even if the directory is not at the default location of the table's name."""
        return not self.is_external or self.parameters.get(TRANSLATED, "").upper() == "TRUE"

    @property
    def location(self) -> str | None:
        """The location of the data. Spark stores the location of tables of its own formats in the serde parameter
        `path`; the metastore's location may then be an empty default (an external JSON or CSV table)."""
        if self.storage is None:
            return None
        if self.parameters.get("spark.sql.sources.provider", "hive").lower() != "hive":
            for key, value in self.storage.serde.parameters.items():
                if key.lower() == "path" and value:
                    return value
        return self.storage.location


class Partition(Value, frozen=True, omit_defaults=True):
    """One partition of a table; `values` are unescaped, in the order of the table's partition keys."""

    values: tuple[str, ...]
    create_time: Int32 = 0
    last_access_time: Int32 = 0
    storage: Storage | None = None
    parameters: dict[str, str] = {}
    extra: dict[str, Any] = {}

    @property
    def location(self) -> str | None:
        """The directory of its own files; None if they are the table's."""
        return self.storage.location if self.storage and not self.storage.is_whole else None


class Function(Value, frozen=True, omit_defaults=True):
    """A permanent function; `resources` are (JAR | FILE | ARCHIVE, uri) pairs."""

    db: str
    name: str
    class_name: str
    owner: str | None = None
    owner_type: str | None = None
    create_time: Int32 = 0
    kind: str = "JAVA"
    resources: tuple[tuple[str, str], ...] = ()
    extra: dict[str, Any] = {}


HIVE = "hive"  # the engine whose statistics every metastore stores


class ColumnStatistic(Value, frozen=True, omit_defaults=True):
    """Statistics of one column; `data` is thrift's ColumnStatisticsData in TJSON form."""

    column: str
    type: str
    data: dict[str, Any]


class Statistics(Value, frozen=True, omit_defaults=True):
    """Column statistics of a table, or of one partition if `partition` is set (Hive's escaped name). columns:
    statistics of the engine `hive`; others: statistics of other engines, by engine."""

    db: str
    table: str
    partition: str | None = None
    columns: tuple[ColumnStatistic, ...] = ()
    last_analyzed: int = 0
    others: dict[str, tuple[ColumnStatistic, ...]] = {}

    @classmethod
    def of_engines(
        cls, db: str, table: str, partition: str | None, engines: Mapping[str, tuple[ColumnStatistic, ...]]
    ) -> Statistics:
        others = {engine: columns for engine, columns in engines.items() if engine != HIVE}
        return cls(db=db, table=table, partition=partition, columns=engines.get(HIVE, ()), others=others)

    def by_engine(self) -> dict[str, tuple[ColumnStatistic, ...]]:
        return {HIVE: self.columns, **self.others}

    def __bool__(self) -> bool:
        """Returns True if there are any statistics."""
        return bool(self.columns or self.others)


PRIMARY_KEY, FOREIGN_KEY, UNIQUE = "PRIMARY KEY", "FOREIGN KEY", "UNIQUE"
NOT_NULL, DEFAULT, CHECK = "NOT NULL", "DEFAULT", "CHECK"


class Constraint(Value, frozen=True, omit_defaults=True):
    """A constraint of a table. `kind`: one of the constants above; `columns`: in the order of the key; `parent`:
    (database, table) that a foreign key refers to, with its `parent_columns`; `rules`: actions on update and on delete
    of the parent, as the metastore's numbers; `value`: the default, or the expression that is checked. The flags are
    Hive's ENABLE, VALIDATE and RELY."""

    kind: str
    name: str
    columns: tuple[str, ...] = ()
    parent: tuple[str, str] | None = None
    parent_columns: tuple[str, ...] = ()
    rules: tuple[Int32, Int32] = (0, 0)
    value: str | None = None
    enable: bool = False
    validate: bool = False
    rely: bool = False

    def __str__(self) -> str:
        """Formats the constraint for messages."""
        to = f" to {'.'.join(self.parent)} ({', '.join(self.parent_columns)})" if self.parent else ""
        value = f" {self.value}" if self.value is not None else ""
        return f"{self.kind} {self.name} ({', '.join(self.columns)}){to}{value}"


PrincipalKind = Literal["USER", "ROLE", "GROUP"]
USER: PrincipalKind = "USER"
ROLE: PrincipalKind = "ROLE"
GROUP: PrincipalKind = "GROUP"


class Grant(Value, frozen=True, omit_defaults=True):
    """A privilege of the metastore's own authorization on an object. `kind`: that of the principal; `grantor_kind`: of
    the grantor; `option`: the principal may grant it to others; `column`: one column of the
    object, empty for the object itself."""

    principal: str
    kind: PrincipalKind
    privilege: str
    grantor: str = ""
    grantor_kind: PrincipalKind = USER
    option: bool = False
    column: str = ""

    def __str__(self) -> str:
        """Formats the grant for messages."""
        column = f" ({self.column})" if self.column else ""
        option = " with grant option" if self.option else ""
        return f"{self.privilege}{column} to {self.kind.lower()} {self.principal}{option}, by {self.grantor or 'none'}"


class Member(Value, frozen=True, omit_defaults=True):
    """A principal that has a role. `option`: it may give the role to others."""

    principal: str
    kind: PrincipalKind
    option: bool = False

    def __str__(self) -> str:
        """Formats the member for messages."""
        return f"{self.kind.lower()} {self.principal}{' with admin option' if self.option else ''}"


class RoleMembers(Value, frozen=True, omit_defaults=True):
    """A role with its members, ordered."""

    name: str
    members: tuple[Member, ...] = ()


WriteId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class WriteIds(Value, frozen=True, omit_defaults=True):
    """The write ids of a transactional table at one moment: every id up to `high` is committed, except those that are
    open or aborted. The table's directories are named by them."""

    high: WriteId
    open: tuple[WriteId, ...] = ()
    aborted: tuple[WriteId, ...] = ()


class NotificationEvent(Value, frozen=True, omit_defaults=True):
    """One row of the metastore's notification log, as sent. `time` is in seconds. `catalog`: None for the catalog that
    was queried."""

    id: int
    time: int
    type: str
    db: str | None = None
    table: str | None = None
    message: str | None = None
    format: str | None = None
    catalog: str | None = None


_ESCAPED = {chr(c) for c in range(1, 0x20)} | set("\"#%'*/:=?\\\x7f{[]^")
_ESCAPE = str.maketrans({c: f"%{ord(c):02X}" for c in _ESCAPED})
_ESCAPES = re.compile("%([0-9A-Fa-f]{2})")
_is_special = re.compile(f"[{re.escape(''.join(sorted(_ESCAPED)))}]").search  # most names contain none: this is cheaper
DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def partition_name(keys: tuple[Column, ...], values: tuple[str, ...]) -> str:
    """Formats `k1=v1/k2=v2` with Hive's escaping (FileUtils.escapePathName); an empty value is Hive's default."""
    if len(keys) != len(values):
        raise FormatError(f"{len(values)} partition values for {len(keys)} keys: {list(values)}")
    return "/".join(
        [
            f"{_key(key.name)}={_escaped(value) if value else DEFAULT_PARTITION}"
            for key, value in zip(keys, values, strict=True)
        ]
    )


def partition_spec(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns keys and values of an escaped partition name (FileUtils.unescapePathName); the name of Hive's default
    partition is returned unchanged. Raises FormatError for a text that is not a partition name."""
    pairs = [part.partition("=") for part in name.split("/")]
    if not all(equals for _, equals, _ in pairs):
        raise FormatError(f"{name!r} is not the name of a partition")
    return tuple(_unescaped(key) for key, _, _ in pairs), tuple(_unescaped(value) for _, _, value in pairs)


@lru_cache(maxsize=10_000)
def _key(name: str) -> str:
    return _escaped(name.lower())


def _escaped(text: str) -> str:
    return text.translate(_ESCAPE) if _is_special(text) else text


def _unescaped(text: str) -> str:
    return _ESCAPES.sub(lambda match: chr(int(match[1], 16)), text) if "%" in text else text
