"""Objects that a replica does not have as the source has them, each by name and with the reason. Pure.

Captures find them, dumps carry them, loads and runs hand them on: whoever looks at any of these reports sees what is
lacking, and the exit code says that something is (3).
"""

from __future__ import annotations

import dataclasses
import functools
import html
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args, get_type_hints

import msgspec

from replicator.core.model import Table

INCOMPLETE = "incomplete"  # the status of a report that names any
PARTIAL = 3  # its exit code
PROPERTY = "replicator.not_replicated"  # of a replica's database: its own word, whatever becomes of its source
REMOTE = (
    "it is REMOTE: its tables are another system's, and its data connector, which may have passwords, is not replicated"
)
"""Of a database."""
CONNECTOR = "data connector "  # begin of the name of such an object, which is in no database
NO_CONNECTOR = "it may have passwords: make it by hand where it is wanted"
NOT_TAKEN = "the target's metastore does not take it"  # begin of the reason of such an object
ROOM = 3500  # characters of its value: metastores keep 4000 of a property


@dataclass(frozen=True)
class NotReplicated:
    """`object`: "db.table" (or a database alone, or a data connector), as the source calls it; `partition`: its escaped
    name, empty for the whole object; `reason`: a sentence. `bytes`: that are concerned, None where nobody knows;
    `since`: seconds since the epoch at which it was noticed. `unknown`: nobody could see which files it has, so what
    the replica has of it stays; the dump names the files that were seen last."""

    object: str
    reason: str
    partition: str = ""
    bytes: int | None = None
    since: int | None = None
    unknown: bool = False

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object

    def __str__(self) -> str:
        """For people."""
        return f"{self.name}: {self.reason}"


def merged(*lists: Iterable[NotReplicated]) -> list[NotReplicated]:
    """All of several lists, each thing once: what is reported last of it counts."""
    found = {(each.object, each.partition): each for some in lists for each in some}
    return [found[key] for key in sorted(found)]


def renamed(things: Iterable[NotReplicated], databases: dict[str, str]) -> list[NotReplicated]:
    """The same by the names that databases have elsewhere."""
    changed = []
    for each in things:
        db, dot, table = each.object.partition(".")
        changed.append(replace(each, object=f"{databases.get(db, db)}{dot}{table}"))
    return changed


# ---- the word of a replica ------------------------------------------------------------------------------------------


class _Word(msgspec.Struct, frozen=True):
    count: int
    first: tuple[NotReplicated, ...]


def as_property(things: Sequence[NotReplicated]) -> str:
    """What a replica's database says of itself: how many there are, and as many of them as there is room for."""
    shown = [replace(each, reason=_short(each.reason)) for each in things]
    while True:
        text = json.dumps(msgspec.to_builtins(_Word(len(things), tuple(shown))))  # ASCII, for any database
        if len(text) <= ROOM or not shown:
            return text
        shown = shown[: len(shown) // 2]


def with_property(parameters: dict[str, str], things: Sequence[NotReplicated]) -> dict[str, str]:
    """A database's parameters that say this, and nothing of before."""
    rest = {key: value for key, value in parameters.items() if key != PROPERTY}
    return rest | ({PROPERTY: as_property(things)} if things else {})


def _short(reason: str) -> str:
    return reason if len(reason) <= 300 else f"{reason[:300]}..."


def from_property(text: str | None, database: str) -> list[NotReplicated]:
    """The other way; what there was no room for is one more entry, of the whole database. Empty for no property. One
    that cannot be read says so."""
    if not text:
        return []
    try:
        word = msgspec.json.decode(text, type=_Word)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [NotReplicated(database, f"its property {PROPERTY} cannot be read: {error}")]
    more = word.count - len(word.first)
    rest = [NotReplicated(database, f"{more:,} more objects of it are not replicated", unknown=True)] if more else []
    return [*word.first, *rest]


# ---- table format ----------------------------------------------------------------------------------------------------
# Formats of tables: which of them say in files of their own what a table is. Pure: from the metastore's word alone.
#
# A table in Hive's layout is what lies in its directories, so a copy of its files is a copy of it. Others keep a log,
# or name their files by whole paths: a copy of such files reads, and lets writers change, what is the source's.


Format = Literal["plain", "delta", "iceberg", "iceberg-view", "hudi", "acid", "paimon", "symlink", "handler"]

PLAIN: Format = "plain"
DELTA: Format = "delta"
ICEBERG: Format = "iceberg"
FormatChoice = Literal["supported", "as-they-are"]
SUPPORTED: FormatChoice = "supported"  # formats of which a copy of the files is a copy of the table are replicated
AS_THEY_ARE: FormatChoice = "as-they-are"  # all are, as if they were plain ones

_PROVIDERS: dict[str, Format] = {"iceberg": ICEBERG, "delta": DELTA, "hudi": "hudi", "paimon": "paimon"}
_READERS: dict[str, Format] = {
    "org.apache.iceberg.": ICEBERG,
    "io.delta.": DELTA,
    "org.apache.hudi.": "hudi",
    "com.uber.hoodie.": "hudi",
    "org.apache.paimon.": "paimon",
    "org.apache.hadoop.hive.ql.io.symlinktextinputformat.": "symlink",
}
_REASONS: dict[Format, str] = {
    ICEBERG: "an Iceberg table: its metadata names the source's files",
    "iceberg-view": "an Iceberg view: its definition is a file of the source",
    "hudi": "a Hudi table: its timeline and its log files have hidden names, which are not captured",
    "acid": "a transactional table: its rows depend on the source's transactions",
    "paimon": "a Paimon table: its snapshots say which files count",
    "symlink": "a table of symbolic links: its files name the source's files",
}
OUTSIDE = "a Delta table that names files outside of its directory, as shallow clones do"
SAID: dict[Format, str] = {
    ICEBERG: "an Iceberg table",
    "delta": "a Delta table",
    "hudi": "a Hudi table",
    "paimon": "a Paimon table",
    "acid": "a transactional table",
    "symlink": "a table of symbolic links",
}


def table_format(table: Table) -> Format:
    """A table's format, by its properties, storage handler and input format. `handler`: its rows lie in no files at
    all, but with another system (HBase, JDBC). Names and values count regardless of case."""
    given = {key.lower(): value.strip().lower() for key, value in table.parameters.items()}
    kind, provider = given.get("table_type", ""), given.get("spark.sql.sources.provider", "")
    handler = given.get("storage_handler", "")
    reader = (table.storage.input_format or "").lower() if table.storage else ""
    found: Format | None = _PROVIDERS.get(kind.removesuffix("-view")) or _PROVIDERS.get(provider)
    if found is None and given.get("metadata_location"):
        found = ICEBERG
    for name in (provider, handler, reader):
        found = found or next((each for start, each in _READERS.items() if f"{name}.".startswith(start)), None)
    if found is not None:
        return "iceberg-view" if found == ICEBERG and table.is_view else found
    if given.get("transactional") == "true" and not table.is_view:
        return "acid"
    return "handler" if handler else PLAIN


def why_not_replicated(table: Table) -> str:
    """Why a copy of its files would not be a copy of a table; nothing when it is."""
    return reason_of(table_format(table))


def reason_of(format: Format) -> str:
    """The same of all tables in a format."""
    return _REASONS.get(format, "")


# ---- report ----------------------------------------------------------------------------------------------------------
# Reports: what a command did, as a value that prints as the JSON the command line gives.


class Report:
    """A dataclass or struct that says what a command did. `print(report)` gives what `--json` gives."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the command line."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """A table of the fields, as notebooks show it."""
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.to_dict().items()
        )
        return f"<table>{''.join(rows)}</table>"


@dataclasses.dataclass(kw_only=True)
class CopyCounts(Report):
    """Counts of copied files, by the origin of their bytes; files_skipped: already in place. `before`: the field of a
    report that follows them in its JSON; "": the first."""

    files_copied: int = 0
    bytes_copied: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_skipped: int = 0
    before: ClassVar[str] = ""

    def count(self, done: CopyCounts) -> None:
        """Adds the counts that both have."""
        for name in self._counts():
            setattr(self, name, getattr(self, name) + getattr(done, name, 0))

    def to_dict(self) -> dict[str, Any]:
        found, counts = super().to_dict(), self._counts()
        others = [name for name in found if name not in counts]
        at = others.index(self.before) if self.before else 0
        return {name: found[name] for name in (*others[:at], *counts, *others[at:])}

    def _counts(self) -> list[str]:
        return [each.name for each in dataclasses.fields(LoadCounts) if hasattr(self, each.name)]


@dataclasses.dataclass(kw_only=True)
class LoadCounts(CopyCounts):
    """Counts of all that a load changed."""

    files_removed: int = 0
    objects_changed: int = 0


class Rows(Report):
    """A report that is a list: `listed` is the field with its rows. columns: their names, where the field's type does
    not tell them."""

    listed: ClassVar[str]
    columns: ClassVar[Sequence[str]] = ()

    def rows(self) -> list[dict[str, Any]]:
        """The rows as mappings, as JSON has them."""
        return list(self.to_dict()[self.listed])

    def to_arrow(self) -> Any:
        """The rows as a pyarrow.Table, which pandas, Polars, DuckDB and Spark read."""
        return table_of(self.rows(), self.columns or listed_columns(cast(Hashable, type(self)), self.listed))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Mappings as a pyarrow.Table: `columns`, and what else rows have."""
    import pyarrow as pa  # not for every command that has a report

    names = dict.fromkeys((*columns, *(name for row in rows for name in row)))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


@functools.cache
def listed_columns(kind: Hashable, listed: str) -> tuple[str, ...]:
    """Of the dataclasses or structs that a field lists."""
    (row,) = get_args(get_type_hints(kind)[listed])
    kinds = get_args(row) or (row,)
    names = (
        each.__struct_fields__ if hasattr(each, "__struct_fields__") else [one.name for one in dataclasses.fields(each)]
        for each in kinds
    )
    return tuple(dict.fromkeys(name for each in names for name in each))


def _cell(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
