"""Iceberg tables and views: replicated by translation of the paths in their metadata.

Data files are copied like those of any table, and delete files that name rows are translated on the way. The tree above
them is published afterwards, from the leaves up: manifests, which have the sizes of delete files, then the lists with
the sizes of manifests, then metadata files. Nothing of it has readers until the table's pointer, a property in the
metastore, names the new metadata file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError, UnknownPlace
from cmroot.store import iceberg
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import join, located, normal, relative
from replicator.core.formats import iceberg_tree
from replicator.core.formats.interface import (
    POINTER,
    Captured,
    Compared,
    Loading,
    NamedFiles,
    Removals,
    Signs,
    TableFile,
    TableFormat,
    Translation,
    with_log,
)
from replicator.core.formats.outside import OUTSIDE, outside_directory, outside_entry
from replicator.core.model import Table

CATALOGS = frozenset({"spark_catalog", "hive", "hive_metastore"})  # names of this metastore in the text of any view
HEAD = 1 << 16  # bytes of an Avro file that contain its schema
NO_POINTER = "{}: the metastore does not have the location of its metadata file"
UNTRANSLATED = "an Iceberg table: its metadata names the source's files"  # of releases that translated none
UNTRANSLATED_VIEW = "an Iceberg view: its definition is a file of the source"  # likewise
_IN_CATALOG = r"""(?<![\w.`"])([`"]?[\w-]+[`"]?)\s*\.\s*[`"]?({})[`"]?\s*\.\s*[\w`"]"""


@dataclass(frozen=True)
class _Iceberg(TableFormat):
    """The common part of tables and views."""

    def recognises(self, signs: Signs) -> bool:
        return super().recognises(signs) or bool(signs.properties.get(POINTER))

    def pointer(self, table: Table) -> str:
        return {key.lower(): value for key, value in table.parameters.items()}.get(POINTER, "")

    def why_left_out(self, table: Table) -> str:
        return "" if self.pointer(table) else NO_POINTER.format(self.said)


@dataclass(frozen=True)
class IcebergTable(_Iceberg):
    """The format of tables."""

    def problems(self, captured: Captured) -> Iterator[str]:
        """Yields why a table is left out: its metadata file, or a list or manifest, cannot be translated."""
        table = captured.table
        if why := self.why_left_out(table):
            yield why
        if table.location is None or not (pointer := self.pointer(table)):
            return
        own = relative(pointer, table.location)
        if not own:
            yield f"{self.said}: its metadata file {pointer} is outside of its location"
            return
        if not iceberg.in_tree(own):
            directory = iceberg.DIRECTORY
            yield f"{self.said}: its metadata file {pointer} is not in the directory {directory} of its location"
        elif own not in captured.files(iceberg.DIRECTORY, own):
            yield f"{self.said}: its metadata file {pointer} was not found"
        yield from self.log_problems(captured)
        if why := captured.outside_problem():
            yield f"{self.said}: {why}"

    def log_problems(self, captured: Captured) -> Iterator[str]:
        own = relative(self.pointer(captured.table) or "/", captured.table.location or "/") or ""
        for path, problem in captured.files(iceberg.DIRECTORY, own).items():
            if iceberg_tree.leads_on(path, own) and (why := problem(self.examine)):
                yield f"{self.said}: {why}"

    def moment(self, table: Table) -> str:
        """Returns the metadata file, and the snapshot if its catalog has noted one in the metastore. Another catalog
        may commit without a note, so the file counts."""
        snapshot = {key.lower(): value for key, value in table.parameters.items()}.get("current-snapshot-id", "")
        file = self.pointer(table).rpartition("/")[2]
        return f"snapshot {snapshot} ({file})" if snapshot else file

    def tree_tops(self, table: Table) -> Sequence[str]:
        given = {key.lower(): value for key, value in table.parameters.items()}
        places = (given.get(key, "") for key in (POINTER, f"previous_{POINTER}"))
        first, *rest = (relative(place or "/", table.location or "/x") or "" for place in places)
        return (
            [path for path in (first, *rest) if iceberg_tree.may_be_top(path)] if iceberg_tree.may_be_top(first) else []
        )

    def leads_on(self, path: str, top: str) -> bool:
        return iceberg_tree.leads_on(path, top)

    def may_lack(self, path: str) -> bool:
        return iceberg.is_metadata(path)

    def examine(self, path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
        return iceberg_tree.examine(path, location, stream, named)

    # ---- loads -------------------------------------------------------------------------------------------------------

    def waits(self, path: str) -> bool:
        return iceberg.in_tree(path)

    def is_unique(self, path: str) -> bool:
        return iceberg.in_tree(path)

    def translated(self, file: TableFile, load: Loading) -> bytes | None:
        """Translates position deletes and deletion vectors; a file stays if its bytes are not available."""
        if file.checksum is None or not file.size or not iceberg.names_rows(file.target):
            return None
        if not file.target.endswith(".puffin") and not load.head(file, _reads_rows(file)):
            return None
        if (data := load.recorded(file)) is None:
            return None
        noting = _Noting(load.move, lambda _, recorded: recorded)
        content = iceberg.moved_deletes(file.source, data, noting.move)
        return content if noting.changes else None

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        """Publishes manifests, lists and metadata files, in the order in which they depend on each other.

        A list or manifest whose own files do not exist is of a snapshot that expired while the source was read. It
        keeps the recorded sizes; one that the table's pointer leads to is missing."""
        tree = _Tree(load)
        in_order = sorted(files, key=lambda file: file.target)
        waiting = sorted((file for file in in_order if not iceberg.is_metadata(file.target)), key=_looks_like_list)
        count = len(waiting) + 1
        while waiting and len(waiting) < count:  # a list waits for its manifests, whatever their names are
            count = len(waiting)
            waiting = [file for file in waiting if not tree.placed(file, load.move)]
        for file in waiting:
            tree.placed(file, load.move, as_recorded=True)
        for file in in_order:
            if iceberg.is_metadata(file.target):  # an earlier one may name places that the table no longer has
                is_own = normal(file.source) == normal(load.pointer)
                tree.placed(file, load.move if is_own else load.move_any)
        tree.check(waiting)

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def tree_paths(self, pair: Compared) -> set[str] | None:
        with suppress(FormatError, UnknownPlace, OSError):
            return iceberg_tree.paths_below(pair.tops, pair.source, pair.read) if pair.tops else None
        return None

    def outside(self, paths: Iterable[str], pair: Compared) -> dict[str, str]:
        """Returns those that a manifest names. Any others are not read, as manifests may name any place."""
        known, found = set(paths), dict[str, str]()
        if not any(path.startswith(f"{OUTSIDE}/") and path not in known for path in pair.files):
            return {}
        for path in (path for path in known if iceberg.in_tree(path) and not iceberg.is_metadata(path)):
            with suppress(FormatError, UnknownPlace):
                for each in iceberg.references(path, pair.read(join(pair.source, path)) or b""):
                    entry = outside_entry(each.path) if relative(each.path, pair.source) is None else None
                    there = entry and f"{outside_directory(entry[0])}/{entry[1]}"
                    if entry and there and there in pair.files and there not in known:
                        found[there] = join(*entry)
        return found

    def compare_translated(self, paths: Sequence[str], pair: Compared) -> None:
        own, repeated = relative(pair.pointer, pair.target), iceberg.Repeated()

        def size_of(place: str, recorded: int) -> int:
            return pair.files.get(relative(place, pair.target) or "", recorded)

        for path in paths:
            here, there = pair.read(join(pair.source, path)), pair.read(join(pair.target, path))
            try:
                move = pair.move_any if iceberg.is_metadata(path) and path != own else pair.move
                wanted = (
                    iceberg.translated(path, here, move, size_of, pair.in_order, repeated) if here is not None else None
                )
            except (FormatError, UnknownPlace) as error:
                pair.differs("log", path, "a file of an Iceberg tree that can be read", error.message)
                continue
            if wanted is None or there is None or (wanted != there and not iceberg.equal(path, wanted, there)):
                pair.differs("file content", path, _checksum(wanted), _checksum(there))

    def is_translation(self, path: str, pair: Compared) -> bool:
        if not iceberg.names_rows(path):
            return False
        here, there = map(pair.read, pair.both(path))
        if here is None or there is None:
            return False
        with suppress(FormatError):
            moved = iceberg.moved_deletes(path, here, pair.move)
            return moved != here and iceberg.same_deletes(moved, there)
        return False

    def check(self, pair: Compared) -> None:
        """Reads the tree of the target's pointer: every file that it names is the table's, and has the recorded
        size."""
        try:
            for each in iceberg_tree.walk(pair.pointer, pair.read):
                below = relative(each.path, pair.target)
                if below is None:
                    pair.differs("names the source", each.path, "a file of the table", each.path)
                elif below not in pair.files:
                    pair.differs("file missing", below, "named by the table's metadata", None)
                elif each.size is not None and each.size != pair.files[below]:
                    pair.differs("file size", below, f"{each.size} bytes", f"{pair.files[below]} bytes")
        except (FormatError, UnknownPlace, OSError) as error:
            pair.differs("log", pair.pointer, "an Iceberg tree that can be read", str(error))


@dataclass(frozen=True)
class IcebergView(_Iceberg):
    """The format of views: their metadata file is kept and translated as one that metadata names."""

    def problems(self, captured: Captured) -> Iterator[str]:
        """Yields why a view is left out: its metadata file cannot be translated."""
        table = captured.table
        yield from super().problems(captured)
        if table.location is None or not captured.home or not (pointer := self.pointer(table)):
            return
        if relative(table.location, captured.home) is None:
            yield f"{self.said}: its location {table.location} is outside of its database's"
        if why := captured.named_file(pointer, _no_view):
            yield f"{self.said}: {why}"

    def is_metadata(self, path: str) -> bool:
        return iceberg.is_metadata(path)

    def translated_metadata(
        self, path: str, data: bytes, move: Translation, database: Translation, sql: Translation
    ) -> bytes:
        return iceberg.translated_view(path, data, move, database, sql)

    def view_problem(self, text: str, databases: Mapping[str, str]) -> str:
        return in_catalog(text, databases)


# ---- captures --------------------------------------------------------------------------------------------------------


def in_catalog(text: str, databases: Mapping[str, str]) -> str:
    """Returns which renamed database (source name -> target name) a view's text names in a catalog, as far as that may
    be this metastore: only its readers know; "" for none."""
    names = "|".join(re.escape(before) for before, after in databases.items() if before.lower() != after.lower())
    found = re.search(_IN_CATALOG.format(names), text, re.IGNORECASE) if names else None
    if found is None or found[1].strip('`"').lower() in CATALOGS:
        return ""
    return f"names {found[2]} in the catalog {found[1]}"


def _no_view(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    try:
        data = stream.read()
        iceberg.translated_view(path, data, *[lambda text: text] * 3)
        return iceberg_tree.writes_outside(iceberg.locations_of(path, data), location)
    except FormatError as error:
        return error.message


# ---- loads -----------------------------------------------------------------------------------------------------------


def _reads_rows(file: TableFile) -> Callable[[BinaryIO], bool]:
    """Returns a function that tells by its schema whether a file may name rows, and reads only that."""

    def read(stream: BinaryIO) -> bool:
        with suppress(pa.ArrowException, FormatError):
            if file.target.endswith(".avro"):
                return iceberg.has_rows_of_others(file.source, stream.read(HEAD))
            return iceberg.has_row_columns(pq.ParquetFile(stream).schema_arrow)
        return False

    return read


def _looks_like_list(file: TableFile) -> bool:
    return file.target.rpartition("/")[2].startswith("snap-")


class _Noting:
    """A translation that notes whether it changes anything: a file in which nothing changes is copied as it is."""

    def __init__(self, move: iceberg.Move, size_of: iceberg.SizeOf) -> None:
        self._move, self._size_of, self.changes = move, size_of, False

    def move(self, path: str) -> str:
        now = self._move(path)
        self.changes = self.changes or now != path
        return now

    def size_of(self, place: str, recorded: int) -> int:
        now = self._size_of(place, recorded)
        self.changes = self.changes or now != recorded
        return now


@dataclass
class _Tree:
    """The files of one table's tree on the target."""

    load: Loading
    _sizes: dict[str, int] = field(default_factory=dict)
    _repeated: iceberg.Repeated = field(default_factory=iceberg.Repeated)

    def placed(self, file: TableFile, move: iceberg.Move, *, as_recorded: bool = False) -> bool:
        """Publishes a file. Returns False if files that it names do not exist. as_recorded: it keeps their sizes."""
        data = self.load.recorded(file)
        if data is None:
            self.load.place(file)  # tells where the bytes were looked for
            return True
        path = file.target[len(self.load.directory) :]
        try:
            size_of = self._size_or_recorded if as_recorded else self._size
            if self.load.stays:  # so that only names of files outside of the location change
                noting = _Noting(move, size_of)
                content = iceberg.translated(path, data, noting.move, noting.size_of, self.load.in_order)
                content = content if noting.changes else data
            else:
                repeated = None if as_recorded else self._repeated
                content = iceberg.translated(path, data, move, size_of, self.load.in_order, repeated)
        except FileNotFoundError:
            return False
        same = _read(file.target) if content is not data else None
        if same is not None and iceberg.equal(path, same, content):
            self.load.have(file, same)
        else:
            self.load.place(file, content)
        self._sizes.pop(file.target, None)
        if not _looks_like_list(file):
            self._repeated.clear()  # lists contain the size of this file
        return True

    def check(self, stuck: Sequence[TableFile]) -> None:
        """Reports the files without which the table's pointer leads to a state that cannot be read. stuck: those that
        name files which do not exist. Raises FormatError for a metadata file that cannot be read."""
        place = self.load.move(self.load.pointer)
        data = _read(place)
        if data is None:
            self.load.missing(_Pointer(self.load.pointer, place), "the table's metadata file was not captured")
            return
        without = {normal(file.target): file for file in stuck}
        for each in iceberg.references(self.load.pointer, data) if without else ():
            if each.kind != "list":
                continue
            own = _read(each.path) or b""
            below = iceberg.references(each.path, own) if normal(each.path) not in without else ()
            for path in (each.path, *(manifest.path for manifest in below)):
                if (file := without.pop(normal(path), None)) is not None:
                    self.load.missing(file, "files that it names were removed before capture could read them")

    def _size(self, place: str, recorded: int) -> int:
        if place not in self._sizes:
            self._sizes[place] = located(place).size()
        return self._sizes[place]

    def _size_or_recorded(self, place: str, recorded: int) -> int:
        with suppress(FileNotFoundError):
            return self._size(place, recorded)
        return recorded


@dataclass(frozen=True)
class _Pointer:
    """A metadata file that no entry of the load names."""

    source: str
    target: str
    checksum: str | None = None
    size: int | None = None


def _read(place: str) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError), located(place).open_stream() as stream:
        return stream.read()
    return None


# ---- comparisons -----------------------------------------------------------------------------------------------------


def _checksum(data: bytes | None) -> str | None:
    return None if data is None else checksum_stream(io.BytesIO(data))[0]


ICEBERG = with_log(
    IcebergTable(
        "iceberg",
        "an Iceberg table",
        "Iceberg",
        types=("iceberg",),
        readers=("org.apache.iceberg.",),
        of_views=False,
        expires=True,
        no_shadow="an Iceberg table: dropping it deletes its files, regardless of its properties",
        no_housekeeping="an Iceberg table tracks its own files; use its own snapshot expiry",
        reads_log=True,
        has_tree=True,
        paths=f"^{iceberg.DIRECTORY}/",
        special=True,
        translates=True,
        has_outside=True,
        removals=Removals.METADATA,
        switches_itself=True,
    ),
    purged=True,
    retained=True,
)
ICEBERG_VIEW = with_log(
    IcebergView(
        "iceberg-view",
        "an Iceberg view",
        "Iceberg view",
        types=ICEBERG.types,
        readers=ICEBERG.readers,
        of_views=True,
        no_shadow="an Iceberg view: its metadata file names the replica's database",
        reads_log=True,
        names_metadata=True,
        removals=Removals.METADATA,
    )
)
