"""Objects that a replica does not have as the source has them, each by name and with the reason. Pure.

Captures find them, dumps contain them, loads and runs pass them on: each of these reports lists what is missing, and
exit code 3 indicates that something is.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args, get_type_hints

import msgspec

from replicator.core.model import INDEX, Table

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


# ---- table format ----------------------------------------------------------------------------------------------------
# Formats of tables: which of them store table metadata in files of their own. Pure: from the metastore's metadata
# alone.
#
# A table in Hive's layout consists of the files in its directories, so a copy of its files is a copy of the table.
# Other formats have a log, or name their files by absolute paths: readers of such a copy would read the source's files,
# and writers would change them.


Format = Literal["plain", "delta", "iceberg", "iceberg-view", "hudi", "acid", "paimon", "symlink", "handler", "index"]

PLAIN: Format = "plain"
DELTA: Format = "delta"
ICEBERG: Format = "iceberg"
ICEBERG_VIEW: Format = "iceberg-view"
POINTER = "metadata_location"  # property of an Iceberg table or view, in any case: the location of its metadata file
FormatChoice = Literal["supported", "as-they-are"]
SUPPORTED: FormatChoice = "supported"  # replicates formats for which a copy of the files is a copy of the table
AS_THEY_ARE: FormatChoice = "as-they-are"  # replicates all formats as if they were plain

_PROVIDERS: dict[str, Format] = {"iceberg": ICEBERG, "delta": DELTA, "hudi": "hudi", "paimon": "paimon"}
_READERS: dict[str, Format] = {
    "org.apache.iceberg.": ICEBERG,
    "io.delta.": DELTA,
    "org.apache.hudi.": "hudi",
    "com.uber.hoodie.": "hudi",
    "org.apache.paimon.": "paimon",
    "org.apache.hadoop.hive.ql.io.symlinktextinputformat.": "symlink",
}
NO_WRITE_IDS = "a transactional table: the source's metastore has no write ids, as before Hive 3"
NO_TRANSACTIONS = "a transactional table: the target's metastore has no write ids, as before Hive 3"
TRANSACTIONAL_VIEW = "a transactional table of a materialized view: rebuild the view on the target"
ACID: Format = "acid"
FULL, INSERT_ONLY = "full", "insert_only"  # kinds of transactional tables
NAMES_SOURCE = "it has files that name a location of the source"  # begin of the reason of such an object
NO_POINTER = "{}: the metastore does not have the location of its metadata file"  # of an Iceberg table or view
CATALOGS = frozenset({"spark_catalog", "hive", "hive_metastore"})  # names of this metastore in the text of any view
_IN_CATALOG = r"""(?<![\w.`"])([`"]?[\w-]+[`"]?)\s*\.\s*[`"]?({})[`"]?\s*\.\s*[\w`"]"""
UNREPLAYED = "a transactional table: its rows depend on the source's transactions"  # of releases that replicated none
UNTRANSLATED = "an Iceberg table: its metadata names the source's files"  # of releases that translated none
UNTRANSLATED_VIEW = "an Iceberg view: its definition is a file of the source"  # likewise
OUTSIDE = "a Delta table that names files outside of its directory, as shallow clones do"


@dataclass(frozen=True)
class FormatRules:
    """A format as commands treat its tables. said: its name in messages, with an article; title: its name on pages.
    left_out: why its tables are not replicated. no_shadow, no_purge, no_retention, no_housekeeping: why drills, purges,
    retention and housekeeping skip its tables; "" if they do not. late: readers of the replica need removed files until
    metadata names newer ones. own_columns: the log has the columns; those in the metastore may be outdated."""

    said: str = ""
    title: str = ""
    left_out: str = ""
    no_shadow: str = ""
    no_purge: str = ""
    no_retention: str = ""
    no_housekeeping: str = ""
    late: bool = False
    own_columns: bool = False


def _with_log(said: str, title: str, **more: Any) -> FormatRules:
    """Returns the rules of a format whose log determines which files are valid."""
    own = f"{said}: its own log determines its files, so"
    tools = {"no_purge": f"{own} erase with its own tools", "no_retention": f"{own} remove its data with its own tools"}
    return FormatRules(said, title, **tools | more)


FORMATS: dict[Format, FormatRules] = {
    PLAIN: FormatRules(title="Hive"),
    DELTA: _with_log("a Delta table", "Delta", own_columns=True),
    ICEBERG: _with_log(
        "an Iceberg table",
        "Iceberg",
        no_shadow="an Iceberg table: dropping it deletes its files, regardless of its properties",
        no_purge="",
        no_housekeeping="an Iceberg table tracks its own files; use its own snapshot expiry",
        late=True,
    ),
    ICEBERG_VIEW: _with_log(
        "an Iceberg view",
        "Iceberg view",
        no_shadow="an Iceberg view: its metadata file names the replica's database",
        late=True,
    ),
    "hudi": _with_log(
        "a Hudi table",
        "Hudi",
        left_out="a Hudi table: its timeline and its log files have hidden names, which are not captured",
        own_columns=True,
    ),
    "paimon": _with_log(
        "a Paimon table",
        "Paimon",
        left_out="a Paimon table: its snapshots define which files are valid",
        own_columns=True,
    ),
    ACID: FormatRules(
        "a transactional table",
        "transactional",
        no_shadow="a transactional table cannot be external",
        no_retention="a transactional table: its partitions belong to the transactions that wrote them; drop them in"
        " Hive",
        no_housekeeping="a transactional table's files belong to transactions; its compactor removes them",
        late=True,
    ),
    "symlink": FormatRules(
        "a table of symbolic links",
        "symbolic links",
        left_out="a table of symbolic links: its files name the source's files",
        no_purge="a table of symbolic links: its rows are other tables' files, so erase them there",
    ),
    "handler": FormatRules(title="storage handler", no_purge="its data is stored by {handler}"),
    "index": _with_log(
        "the table of an index",
        "Index",
        left_out="the table of an index, which is not replicated: its rows can be computed from the indexed table",
    ),
}


def rules_of(table: Table) -> FormatRules:
    return FORMATS[table_format(table)]


def kind_of(reason: str) -> str:
    """Returns the format of the tables that are left out for a reason; "other" for any other reason."""
    known = ((format, rules.said) for format, rules in FORMATS.items() if rules.said)
    return next((format for format, said in known if reason.startswith(said)), "other")


def table_format(table: Table) -> Format:
    """Returns a table's format, by its properties, storage handler and input format. `handler`: its rows are not stored
    in files, but in another system (HBase, JDBC). Names and values are case-insensitive."""
    if table.kind == INDEX:
        return "index"
    given = {key.lower(): value.strip().lower() for key, value in table.parameters.items()}
    kind, provider = given.get("table_type", ""), given.get("spark.sql.sources.provider", "")
    handler = given.get("storage_handler", "")
    reader = (table.storage.input_format or "").lower() if table.storage else ""
    found: Format | None = _PROVIDERS.get(kind.removesuffix("-view")) or _PROVIDERS.get(provider)
    if found is None and given.get(POINTER):
        found = ICEBERG
    for name in (provider, handler, reader):
        found = found or next((each for start, each in _READERS.items() if f"{name}.".startswith(start)), None)
    if found is not None:
        return ICEBERG_VIEW if found == ICEBERG and table.is_view else found
    if given.get("transactional") == "true" and not table.is_view:
        return "acid"
    return "handler" if handler else PLAIN


def is_transactional(table: Table) -> str:
    """Returns FULL for a transactional table with row ids, INSERT_ONLY for one without; empty for any other object, and
    for a materialized view."""
    if table_format(table) != ACID or table.has_query:
        return ""
    given = {key.lower(): value.strip().lower() for key, value in table.parameters.items()}
    return INSERT_ONLY if given.get("transactional_properties") == INSERT_ONLY else FULL


def iceberg_pointer(table: Table) -> str:
    """Returns the location of an Iceberg table's metadata file; empty for any other table or view."""
    return _pointer(table) if table_format(table) == ICEBERG else ""


def view_pointer(table: Table) -> str:
    """Returns the location of an Iceberg view's metadata file; empty for any other view or table."""
    return _pointer(table) if table.is_view and table_format(table) == ICEBERG_VIEW else ""


def _pointer(table: Table) -> str:
    return {key.lower(): value for key, value in table.parameters.items()}.get(POINTER, "")


def in_catalog(text: str, databases: Mapping[str, str]) -> str:
    """Returns which renamed database (source name -> target name) an Iceberg view's text names in a catalog, as far as
    that may be this metastore: only its readers know; "" for none."""
    names = "|".join(re.escape(before) for before, after in databases.items() if before.lower() != after.lower())
    found = re.search(_IN_CATALOG.format(names), text, re.IGNORECASE) if names else None
    if found is None or found[1].strip('`"').lower() in CATALOGS:
        return ""
    return f"names {found[2]} in the catalog {found[1]}"


def why_not_replicated(table: Table) -> str:
    """Returns why a load cannot make a copy of a table; empty if it can, as far as the metastore knows."""
    format = table_format(table)
    if format == ACID and table.has_query:
        return TRANSACTIONAL_VIEW
    if format in (ICEBERG, ICEBERG_VIEW) and not _pointer(table):
        return NO_POINTER.format(FORMATS[format].said)
    return reason_of(format)


def reason_of(format: Format) -> str:
    """Returns the same for all tables in a format."""
    return FORMATS[format].left_out


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
