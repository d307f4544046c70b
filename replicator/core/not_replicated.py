"""Objects that a replica does not have as the source has them, each by name and with the reason. Pure.

Captures find them, dumps contain them, loads and runs pass them on: each of these reports lists what is missing, and
exit code 3 indicates that something is.
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

FormatChoice = Literal["supported", "as-they-are"]
SUPPORTED: FormatChoice = "supported"  # replicates formats of which an exact copy can be made
AS_THEY_ARE: FormatChoice = "as-they-are"  # copies the files of all formats
INCOMPLETE = "incomplete"  # the status of a report that lists any
PARTIAL = 3  # its exit code
PROPERTY = "replicator.not_replicated"  # property of a replica's database, available even if its source is not
REMOTE = (
    "it is REMOTE: its tables belong to another system; its data connector, which may have passwords, is not replicated"
)
"""Reason for a REMOTE database."""
OF_SERVERS = ("data connector ", "resource plan ")  # begins of the names of objects that belong to no database
UNLISTED = "all "  # begin of the name of objects that the server does not list
SOURCE_GRANTS = "its grants at the source are left out: "  # begin of the reason of a database
NAMES_SOURCE = "it has files that name a location of the source"  # begin of the reason of such an object
NOT_TAKEN = "the target's metastore does not take it"  # begin of the reason of such an object
ROOM = 3500  # characters of its value: metastores store at most 4000 of a property


@dataclass(frozen=True)
class NotReplicated:
    """An object that is not replicated. `object`: "db.table" (or only a database, or a data connector), by its name in
    the source; `partition`: its escaped name, empty for the entire object; `reason`: a sentence. `bytes`: the bytes
    concerned, None if unknown; `since`: seconds since the epoch at which it was noticed. `unknown`: its files could not
    be listed, so the replica retains what it has; the dump names the files of the last listing."""

    object: str
    reason: str
    partition: str = ""
    bytes: int | None = None
    since: int | None = None
    unknown: bool = False

    @property
    def names_source(self) -> bool:
        return self.reason.startswith(NAMES_SOURCE)

    @property
    def key(self) -> tuple[str, str]:
        return self.object, self.partition

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object

    def __str__(self) -> str:
        """Formats the entry for messages."""
        return f"{self.name}: {self.reason}"


def merged(*lists: Iterable[NotReplicated]) -> list[NotReplicated]:
    """Returns all entries of several lists, each object once; the last entry of an object counts."""
    found = {(each.object, each.partition): each for some in lists for each in some}
    return [found[key] for key in sorted(found)]


def renamed(things: Iterable[NotReplicated], databases: dict[str, str]) -> list[NotReplicated]:
    """Returns the entries with the names that databases have elsewhere."""
    changed = []
    for each in things:
        db, dot, table = each.object.partition(".")
        changed.append(replace(each, object=f"{databases.get(db, db)}{dot}{table}"))
    return changed


# ---- the record on a replica ----------------------------------------------------------------------------------------


class _Word(msgspec.Struct, frozen=True):
    count: int
    first: tuple[NotReplicated, ...]


def as_property(things: Sequence[NotReplicated]) -> str:
    """Returns the property of a replica's database: the number of entries, and as many of them as fit."""
    shown = [replace(each, reason=_short(each.reason)) for each in things]
    while True:
        text = json.dumps(msgspec.to_builtins(_Word(len(things), tuple(shown))))  # ASCII, for any database
        if len(text) <= ROOM or not shown:
            return text
        shown = shown[: len(shown) // 2]


def with_property(parameters: dict[str, str], things: Sequence[NotReplicated]) -> dict[str, str]:
    """Returns a database's parameters with this property in place of any former one."""
    rest = {key: value for key, value in parameters.items() if key != PROPERTY}
    return rest | ({PROPERTY: as_property(things)} if things else {})


def _short(reason: str) -> str:
    return reason if len(reason) <= 300 else f"{reason[:300]}..."


def from_property(text: str | None, database: str) -> list[NotReplicated]:
    """Parses the property. Entries that did not fit become one more entry for the entire database. Empty without a
    property; a property that cannot be read becomes an entry of its own."""
    if not text:
        return []
    try:
        word = msgspec.json.decode(text, type=_Word)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [NotReplicated(database, f"its property {PROPERTY} cannot be read: {error}")]
    more = word.count - len(word.first)
    rest = [NotReplicated(database, f"{more:,} more objects of it are not replicated", unknown=True)] if more else []
    return [*word.first, *rest]


# ---- report ----------------------------------------------------------------------------------------------------------
# Reports: the results of a command, as values that print as the JSON of the command line.


class Report:
    """A dataclass or struct with the results of a command. `print(report)` prints the output of `--json`."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object of the command line."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """Returns a table of the fields, for notebooks."""
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.to_dict().items()
        )
        return f"<table>{''.join(rows)}</table>"


@dataclasses.dataclass(kw_only=True)
class CopyCounts(Report):
    """Counts of copied files, by the source of their bytes; files_skipped: already up to date. `before`: the field of a
    report that follows the counts in its JSON; "": the counts come first."""

    files_copied: int = 0
    bytes_copied: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_from_dump: int = 0
    files_skipped: int = 0
    before: ClassVar[str] = ""

    def count(self, done: CopyCounts) -> None:
        """Adds the counts that both reports have."""
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
    """Counts of all changes of a load."""

    files_removed: int = 0
    objects_changed: int = 0


class Rows(Report):
    """A report that is a list: `listed` is the field with its rows. columns: their names, if the field's type does not
    define them."""

    listed: ClassVar[str]
    columns: ClassVar[Sequence[str]] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as mappings, as in the JSON."""
        return list(self.to_dict()[self.listed])

    def to_arrow(self) -> Any:
        """Returns the rows as a pyarrow.Table, which pandas, Polars, DuckDB and Spark read."""
        return table_of(self.rows(), self.columns or listed_columns(cast(Hashable, type(self)), self.listed))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Returns mappings as a pyarrow.Table with `columns`, and any other columns of the rows."""
    import pyarrow as pa  # loaded only by commands that use it

    names = dict.fromkeys((*columns, *(name for row in rows for name in row)))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


@functools.cache
def listed_columns(kind: Hashable, listed: str) -> tuple[str, ...]:
    """Returns the field names of the dataclasses or structs that a field lists."""
    (row,) = get_args(get_type_hints(kind)[listed])
    kinds = get_args(row) or (row,)
    names = (
        each.__struct_fields__ if hasattr(each, "__struct_fields__") else [one.name for one in dataclasses.fields(each)]
        for each in kinds
    )
    return tuple(dict.fromkeys(name for each in names for name in each))


def _cell(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
