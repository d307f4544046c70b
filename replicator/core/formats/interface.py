"""The interface of table formats. Pure: callers bring metadata, files and stores.

A table in Hive's layout consists of the files in its directories, so a copy of its files is a copy of the table. Other
formats have a log or a tree of metadata files, which determines which files are valid, or transactions. All that
captures, loads, comparisons and jobs must know of that is a value or a method here: no other room asks for a format by
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import BinaryIO, Protocol, TypeVar

from cmroot.errors import FormatError
from replicator.core.model import INDEX, Table

POINTER = "metadata_location"  # property of an Iceberg table or view, in any case: the location of its metadata file
FULL, INSERT_ONLY = "full", "insert_only"  # kinds of transactional tables


class Removals(Enum):
    """The step of a load after which no reader uses the files that the source has removed."""

    COPY = "copy"  # any time: the metastore names directories
    LOG = "log"  # when the log names other files
    METADATA = "metadata"  # when the metastore has the new pointer, or the new write ids


# ---- recognition and captures ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signs:
    """The metadata by which tables of a format are recognised, in lower case."""

    table: Table

    @cached_property
    def properties(self) -> dict[str, str]:
        return {key.lower(): value.strip().lower() for key, value in self.table.parameters.items()}

    @cached_property
    def types(self) -> tuple[str, str]:
        """The property `table_type`, by which catalogs mark their tables and views, and the source that Spark uses."""
        given = self.properties
        return given.get("table_type", "").removesuffix("-view"), given.get("spark.sql.sources.provider", "")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of Spark's source, the storage handler and the input format, each with a dot at its end."""
        reader = (self.table.storage.input_format or "") if self.table.storage else ""
        return tuple(f"{name.lower()}." for name in (self.types[1], self.properties.get("storage_handler", ""), reader))

    @property
    def is_index(self) -> bool:
        return self.table.kind == INDEX


Translation = Callable[[str], str]
NamedFiles = list[tuple[str, str, bool]]
"""Receives the files that a file of a log or tree names: (store, path, leads on). store: "" for a file in the table's
location, else location and path are those of its entry (see `outside`); leads on: it names further files."""
Examine = Callable[[str, str, BinaryIO, NamedFiles], str]
"""Returns why a table with this file has no exact copy, "" if nothing is wrong. Gets the file's path in its table, the
table's location, and the file's bytes; adds the files that it names."""


class Captured(Protocol):
    """A table as its captures know it."""

    @property
    def table(self) -> Table: ...

    @property
    def home(self) -> str | None:
        """The location of its database."""

    @property
    def has_write_ids(self) -> bool: ...

    def files(self, directory: str, own: str = "") -> Mapping[str, Callable[[Examine], str]]:
        """Returns the files of the table in a directory, by their paths in the table, each with a function that returns
        its problem. Files that are known to have none are left out, except for `own`. directory "": only `own`, if it
        exists. Each content is examined once."""

    def outside_problem(self) -> str:
        """Returns why files outside of the table's location are not captured; "" if all are."""

    def named_file(self, place: str, examine: Examine) -> str:
        """Returns the problem of a file that metadata names, also if it was not captured."""


# ---- loads -----------------------------------------------------------------------------------------------------------


class TableFile(Protocol):
    """A file of a load: its place at the source and on the target. checksum None: its bytes were never read."""

    @property
    def source(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def checksum(self) -> str | None: ...

    @property
    def size(self) -> int | None: ...


class Moving(Protocol):
    """The translation of paths in files of a table."""

    @property
    def move(self) -> Translation:
        """Returns a path of the source as it is on the target. Raises FormatError for one outside of the table."""

    @property
    def move_any(self) -> Translation:
        """Returns a path of the source as it is on the target; one outside of the table unchanged."""

    @property
    def move_uri(self) -> Translation:
        """Returns the URL-encoded place of a file of the source, also of another table, as it is on the target. Raises
        FormatError for one that is in no location that the target has."""

    def move_own(self, text: str) -> str:
        """Returns a path in the table's location as it is on the target; any other text unchanged."""

    def in_order(self, bounds: Sequence[str]) -> bool:
        """Returns True if all paths within bounds keep their order on the target."""

    def move_database(self, name: str) -> str:
        """Returns the name of the table's database on the target, for its name at the source; any other unchanged."""


class Loading(Moving, Protocol):
    """The load of one table or partition, on an executor."""

    @property
    def directory(self) -> str:
        """Its directory on the target, ending with a slash."""

    @property
    def pointer(self) -> str:
        """The table's pointer at the source."""

    @property
    def stays(self) -> bool:
        """True if the target has the source's paths, except of files outside of the table's location."""

    @property
    def names_others(self) -> bool:
        """True if the table's log names files by absolute paths, as found when the source was read."""

    def recorded(self, file: TableFile) -> bytes | None:
        """Returns the bytes that the source has had; None if they are not available anywhere."""

    def head(self, file: TableFile, read: Callable[[BinaryIO], bool]) -> bool:
        """Applies `read` to the first available copy of the bytes; returns False if there is none."""

    def place(self, file: TableFile, content: bytes | None = None) -> bool:
        """Publishes a file, with other bytes than the source's if `content` is given. Returns False if its bytes are
        missing; the load reports that."""

    def had(self, place: str) -> bool:
        """Returns True if the source has had the bytes of a file of the target, or if that cannot be known."""

    def have(self, file: TableFile, content: bytes) -> None:
        """Counts a file that the target has already."""

    def missing(self, file: TableFile, reason: str) -> None:
        """Reports a file without which the load must not go on."""

    def remove(self, place: str) -> None:
        """Moves a file of the target to its `$cmroot`."""


# ---- comparisons -----------------------------------------------------------------------------------------------------


class Compared(Moving, Protocol):
    """A table on both sides of a comparison."""

    @property
    def source(self) -> str:
        """Its location at the source."""

    @property
    def target(self) -> str:
        """Its location on the target."""

    @property
    def pointer(self) -> str:
        """Its pointer on the target."""

    @property
    def tops(self) -> Sequence[str]:
        """The `tree_tops` of the source."""

    @property
    def files(self) -> Mapping[str, int]:
        """The target's files by path, with sizes in bytes."""

    def both(self, path: str) -> tuple[str, str]:
        """Returns the places of a file on both sides, by its path on the target."""

    def read(self, place: str) -> bytes | None:
        """Returns a file's bytes; None if it does not exist."""

    def open(self, place: str) -> BinaryIO:
        """Opens a file for reading parts in any order."""

    def is_replicated(self, place: str) -> bool:
        """Returns True for a place of the target in a location that the source's tables have there."""

    def differs(self, kind: str, path: str, wanted: str | None, found: str | None) -> None:
        """Reports a difference. kind: see `Difference`."""


# ---- the interface ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableFormat:
    """A table format. Its defaults are those of Hive's layout.

    name: in the API, in captures and dumps. said: its name in messages, with an article; title: its name on pages.

    Recognition: types: `table_type` or Spark's source of its tables; readers: begins of the names of classes that read
    them; of_views: it has only views, or only other objects (None: any).

    Jobs: left_out: why its tables are not replicated. no_shadow, no_purge, no_retention, no_housekeeping: why drills,
    purges, retention and housekeeping skip them; "" if they do not; no_unreferenced, no_expired_partitions: why
    housekeeping looks for no unreferenced directories of them, and removes no expired partitions. expires: retention
    removes past states by the format itself. own_columns: the log has the columns; those in the metastore may be
    outdated. managed: its tables are managed, so drops remove their data.

    Files: reads_log: captures read its log to decide whether a table is replicated. has_tree: one file leads to all
    others, see `tree_tops`. paths: a regular expression for the paths of files that wait or are of a whole directory,
    to find them among all. everywhere: its log is recognised by these paths, in tables of any format. special: some
    methods about paths are not the defaults. translates: its files name others by absolute paths; `--formats
    as-they-are` copies them unchanged. has_outside: data may be outside of a table's location. lists_places: lines of
    its data files are paths of other tables' files; as-they-are copies these unchanged, too. rewrites: maintenance
    replaces files while rows remain. names_metadata: its metadata file is copied like others that metadata names
    (`core/named_files.py`). log: the directory of a log that may name files of other tables by absolute paths. commits:
    the directories of files whose names begin with the number that `commit_version` returns; counted: the word for it.

    Metadata: removals: see `Removals`. switches_itself: readers see a load at once, wherever it puts files. write_ids:
    its tables need a metastore that has write ids."""

    name: str
    said: str = ""
    title: str = ""
    types: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    of_views: bool | None = None
    left_out: str = ""
    no_shadow: str = ""
    no_purge: str = ""
    no_retention: str = ""
    no_housekeeping: str = ""
    no_unreferenced: str = ""
    no_expired_partitions: str = ""
    expires: bool = False
    removals: Removals = Removals.COPY
    own_columns: bool = False
    reads_log: bool = False
    has_tree: bool = False
    log: str = ""
    commits: tuple[str, ...] = ()
    counted: str = "version"
    paths: str = ""
    everywhere: bool = False
    special: bool = False
    translates: bool = False
    switches_itself: bool = False
    has_outside: bool = False
    lists_places: bool = False
    rewrites: bool = False
    names_metadata: bool = False
    write_ids: bool = False
    managed: bool = False

    # ---- recognition, captures ---------------------------------------------------------------------------------------

    @property
    def is_plain(self) -> bool:
        """True for Hive's layout."""
        return False

    def recognises(self, signs: Signs) -> bool:
        """Returns True for a table of this format among those without a type of another one."""
        return bool(self.readers) and any(name.startswith(self.readers) for name in signs.classes)

    def why_left_out(self, table: Table) -> str:
        """Returns why a load cannot make a copy of a table; "" if it can, as far as the metastore knows."""
        return self.left_out

    def problems(self, captured: Captured) -> Iterator[str]:
        """Yields why a captured table is left out; nothing if it is replicated."""
        if why := self.why_left_out(captured.table):
            yield why
        yield from self.log_problems(captured)

    def log_problems(self, captured: Captured) -> Iterator[str]:
        """Yields the problems of files of the log, all of which it examines."""
        yield from ()

    def pointer(self, table: Table) -> str:
        """Returns the location of the metadata file to which the metastore leads readers; "" without one."""
        return ""

    def tree_tops(self, table: Table) -> Sequence[str]:
        """Returns the path, in its table, of the file that leads to all others of its present state, and further ones
        that the metastore names: captures follow the names in these files, which never change, instead of listing
        directories. Empty for a table without a tree."""
        return ()

    def leads_on(self, path: str, top: str) -> bool:
        """Returns True for a file of a tree that names others."""
        return False

    def may_lack(self, path: str) -> bool:
        """Returns True for a file of a tree that readers do not need."""
        return False

    def examine(self, path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
        """Examines a file that leads on; see `Examine`."""
        return ""

    def moment(self, table: Table) -> str:
        """Returns a table's state in the format's own terms; "" if the metastore does not have it."""
        return ""

    def commit_version(self, path: str) -> int | None:
        """Returns the version of the table that a file of its log makes; None for any other file."""
        return None

    def commit_moment(self, version: int) -> str:
        """Returns the state of a table whose newest commit makes a version, in the format's own terms."""
        return f"{self.counted} {version}"

    def transactions(self, table: Table) -> str:
        """Returns FULL for a transactional table with row ids, INSERT_ONLY for one without, "" for any other."""
        return ""

    def is_metadata(self, path: str) -> bool:
        """Returns True for the name of a metadata file, of a format that `names_metadata`."""
        return False

    def translated_metadata(
        self, path: str, data: bytes, move: Translation, database: Translation, sql: Translation
    ) -> bytes:
        """Returns such a file as it must be on the target. Raises FormatError for any other content. move, database,
        sql: return a path, a database's name, and a query as they are there."""
        return data

    def view_problem(self, text: str, databases: Mapping[str, str]) -> str:
        """Returns why a view with this text has no replica where databases have other names (source name -> target
        name); "" if it may have one."""
        return ""

    # ---- loads: paths are relative to the directory of the table or partition ----------------------------------------

    def replica_path(self, path: str) -> str:
        """Returns the path that a replica has for a file of the source."""
        return path

    def waits(self, path: str) -> bool:
        """Returns True for a file that `publish` publishes, when all data of the load is on the target."""
        return False

    def names_source(self, path: str) -> bool:
        """Returns True for a file that another format's readers use, and that is copied as it is: a load reports it if
        it names the source."""
        return False

    def whole(self, path: str) -> str:
        """Returns the directory that readers must see with all of its files or not at all; "" for other files."""
        return ""

    def is_commit(self, path: str) -> bool:
        """Returns True for a file that writers create once for each version: other bytes are another writer's."""
        return False

    def commits_of_others(self, files: Sequence[TableFile], load: Loading, *, remove: bool) -> Iterator[str]:
        """Yields commits of the target that the source never had, if each has a name of its own, or removes them."""
        yield from ()

    def is_unique(self, path: str) -> bool:
        """Returns True for a file whose name is never given to another content."""
        return False

    def translated(self, file: TableFile, load: Loading) -> bytes | None:
        """Returns the bytes of a data file, or of a commit, on the target; None if they are the source's. Raises
        FormatError for a file that names others and cannot be translated."""
        return None

    def names_places(self, path: str) -> bool:
        """Returns True for a file whose lines are paths, of a format that `lists_places`."""
        return False

    def translated_places(self, data: bytes, move: Callable[[str], str | None]) -> tuple[bytes, str]:
        """Returns such a file as it must be on the target, and the first line that has no place there ("": all have
        one). move: returns a path of the source as it is on the target, None if it has no place there."""
        return data, ""

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        """Publishes the files that wait, in an order in which no reader fails. May run twice."""

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def tree_paths(self, pair: Compared) -> set[str] | None:
        """Returns the source's files, by their paths in the table; None without a tree that can be read: all that its
        directory has."""
        return None

    def outside(self, paths: Iterable[str], pair: Compared) -> dict[str, str]:
        """Returns the places of the source's files outside of the table's location that the target has, by their paths
        there. paths: the source's files in that location."""
        return {}

    def compare_translated(self, paths: Sequence[str], pair: Compared) -> None:
        """Reports where files that wait, and are on both sides, are not the source's, translated."""

    def is_translation(self, path: str, pair: Compared) -> bool:
        """Returns True if a data file differs from the source's only as its translation does."""
        return False

    def check(self, pair: Compared) -> None:
        """Reports what the log or tree of the target names and the target does not have: its files may equal the
        source's and still be no table."""


def publish_in_order(
    files: Sequence[TableFile], load: Loading, content: Callable[[TableFile, Loading], bytes | None]
) -> Iterator[TableFile]:
    """Publishes files up to the first whose bytes are missing, and yields each. content: `TableFormat.translated`."""
    broken = ""
    for file in files:
        if broken:
            load.missing(file, f"{broken}, which precedes it, is missing")
            continue
        broken = file.target
        try:
            if load.place(file, content(file, load)):
                broken = ""
                yield file
        except (FormatError, FileNotFoundError) as error:  # a path that no table of the load has, a missing sidecar
            load.missing(file, str(error))


_Format = TypeVar("_Format", bound=TableFormat)


def with_log(format: _Format, *, purged: bool = False, retained: bool = False) -> _Format:
    """Returns a format whose own log determines its valid files. purged, retained: these jobs act by it."""
    own = f"{format.said}: its own log determines its files, so"
    erase, remove = f"{own} erase with its own tools", f"{own} remove its data with its own tools"
    return replace(format, no_purge="" if purged else erase, no_retention="" if retained else remove)
