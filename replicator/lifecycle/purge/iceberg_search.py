"""Search of an Iceberg table for the ids: every data and delete file that a snapshot, branch or tag names, whatever
deletes apply to it, by Arrow. Changes nothing, and needs no Iceberg in Spark.

A row that a snapshot no longer shows is still in its file. So the files are searched, not the rows of readers; and the
bounds of columns in manifests, which outlive the files.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.keep.journal import files_at
from cmroot.store import iceberg
from cmroot.store.place import join, located, name_of, normal
from replicator.core.formats import pointer_of
from replicator.lifecycle.purge.lake_search import Finder, Held, SearchTask, Unsearchable, arrow_type, task_for
from replicator.metastore.client import MetastoreReader

MAIN = "main"
"""The branch that readers see."""
TRUNCATED = 16
"""The length from which bounds of texts are taken for truncated ones."""
_REMOVED = 2  # `status` of an entry


# ---- the tree --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An entry of a manifest. is_live: False for a file that the manifest's snapshot removed. content: 0 data, 1
    position deletes, 2 equality deletes. bounds: of the column of ids, as stored."""

    path: str
    is_live: bool
    content: int
    format: str
    size: int
    records: int
    bounds: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Tree:
    """All files that a metadata file leads to. lists, statistics: of snapshots, by id; manifests: of snapshots, by id;
    entries: of manifests, by path. refs: branches and tags by name, with their snapshot."""

    pointer: str
    metadata: Mapping[str, Any]
    lists: Mapping[int, str]
    manifests: Mapping[int, tuple[str, ...]]
    entries: Mapping[str, tuple[Entry, ...]]

    @property
    def refs(self) -> dict[str, int]:
        found = {name: each["snapshot-id"] for name, each in (self.metadata.get("refs") or {}).items()}
        now = self.metadata.get("current-snapshot-id")
        return {MAIN: now, **found} if now is not None and now != -1 else found

    @property
    def tags(self) -> set[str]:
        return {name for name, each in (self.metadata.get("refs") or {}).items() if each["type"] == "tag"}

    def of(self, snapshot: int) -> Iterator[Entry]:
        """Yields the entries of a snapshot's manifests."""
        for manifest in self.manifests.get(snapshot, ()):
            yield from self.entries[manifest]

    def live(self, snapshots: Iterable[int] | None = None) -> dict[str, Entry]:
        """Returns the files that these snapshots, or all, have, by path."""
        wanted = self.manifests if snapshots is None else snapshots
        return {each.path: each for snapshot in wanted for each in self.of(snapshot) if each.is_live}

    def holding(self, dirty: Collection[str]) -> set[int]:
        """Returns the snapshots with an entry about one of these files."""
        manifests = self.naming(dirty)
        return {snapshot for snapshot, own in self.manifests.items() if not manifests.isdisjoint(own)}

    def naming(self, dirty: Collection[str]) -> set[str]:
        """Returns the manifests with an entry about one of these files."""
        return {name for name, entries in self.entries.items() if any(each.path in dirty for each in entries)}

    def statistics(self, snapshots: Collection[int]) -> set[str]:
        """Returns the statistics files of snapshots."""
        known = (each for name in _STATISTICS for each in self.metadata.get(name) or ())
        return {each["statistics-path"] for each in known if each["snapshot-id"] in snapshots}

    def only_in(self, snapshots: Collection[int]) -> set[str]:
        """Returns the lists, manifests and files that only these snapshots name."""
        others = self.manifests.keys() - snapshots
        own, rest = ({each for number in some for each in self.manifests[number]} for some in (snapshots, others))
        lists = {self.lists[each] for each in snapshots if each in self.lists}
        return lists | (own - rest) | (self.live(snapshots).keys() - self.live(others).keys())

    def named(self) -> set[str]:
        """Returns the normal paths of all files of the tree."""
        found = {self.pointer, *self.lists.values(), *self.entries, *self.statistics(self.manifests.keys())}
        found |= {each["metadata-file"] for each in self.metadata.get("metadata-log") or ()}
        return {normal(path) for path in (*found, *(each.path for some in self.entries.values() for each in some))}


_STATISTICS = ("statistics", "partition-statistics")


def read_tree(pointer: str, column: Sequence[str]) -> Tree:
    """Reads a table's tree; column: the path of the ids. Holds its entries in memory. Raises FormatError for a damaged
    file, OSError for a missing one."""
    metadata = iceberg.read_metadata(pointer, _bytes_of(pointer))
    ids, _ = field_of(metadata, column) or (-1, "")
    lists, manifests, entries = dict[int, str](), dict[int, tuple[str, ...]](), dict[str, tuple[Entry, ...]]()
    for snapshot in metadata.get("snapshots") or ():
        number, own = snapshot["snapshot-id"], list(snapshot.get("manifests") or ())
        if path := snapshot.get("manifest-list"):
            lists[number] = path
            own += [each.path for each in iceberg.references(path, _bytes_of(path))]
        manifests[number] = tuple(own)
        for each in own:
            if each not in entries:
                entries[each] = tuple(_entry(record, ids) for record in iceberg.entries(each, _bytes_of(each)))
    return Tree(pointer, metadata, lists, manifests, entries)


def _bytes_of(path: str) -> bytes:
    with located(path).open_stream() as stream:
        return stream.read()


def _entry(record: Mapping[str, Any], ids: int) -> Entry:
    file = record["data_file"]
    sides = (each for side in ("lower_bounds", "upper_bounds") for each in file.get(side) or ())
    bounds = tuple(bytes(each["value"]) for each in sides if each["key"] == ids)
    is_live, form = record["status"] != _REMOVED, str(file["file_format"]).upper()
    size, records = file["file_size_in_bytes"], file["record_count"]
    return Entry(file["file_path"], is_live, file.get("content") or 0, form, size, records, bounds)


def field_of(metadata: Mapping[str, Any], column: Sequence[str]) -> tuple[int, str] | None:
    """Returns the id and the type of a field by its path, in lower case; None if the schema does not have it, or it is
    not scalar."""
    found: Any = {"type": _schema(metadata)}
    for name in column:
        fields = found["type"].get("fields") or () if isinstance(found["type"], dict) else ()
        found = next((each for each in fields if each["name"].lower() == name), None)
        if found is None:
            return None
    return (found["id"], found["type"]) if isinstance(found["type"], str) else None


def _schema(metadata: Mapping[str, Any]) -> Any:
    now = metadata.get("current-schema-id")
    known = (each for each in metadata.get("schemas") or () if each.get("schema-id") == now)
    return next(known, None) or metadata["schema"]


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yields the schema, its fields and their types."""
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _nodes(each)


_IDS = ("id", "element-id", "key-id", "value-id")


# ---- one table -------------------------------------------------------------------------------------------------------


@dataclass
class IcebergFinder(Finder):
    """The search of one table's present tree."""

    def look(self, metastore: MetastoreReader) -> tuple[Tree, dict[str, Held]]:
        """Reads the table's present tree and searches the files that it names, and those below its locations that it
        does not name. Returns the tree, and the files with ids; a file without rows is one that only a manifest still
        describes. Replaces the gaps. Raises Unsearchable, ObjectNotFound, FormatError, LossyIds."""
        self.gaps = []
        table = metastore.table(self.table.table.db, self.table.table.name)
        pointer = pointer_of(table)
        if not pointer:
            raise Unsearchable("its metadata is not in this metastore")
        try:
            tree = read_tree(pointer, self.table.field)
            task = self._task(tree)
            live = tree.live()
            found = self.search({path: each.format for path, each in live.items()}, task)
            found |= {
                each.path: Held(each.path)
                for entries in tree.entries.values()
                for each in entries
                if each.path not in live and any(map(self._keys.has, each.bounds))
            }
            self._look_outside(tree, task)
        except (FileNotFoundError, OSError) as error:
            raise Unsearchable(f"its tree cannot be read: {error}") from error
        return tree, found

    def _task(self, tree: Tree) -> SearchTask:
        """Returns the search, without files."""
        metadata, name = tree.metadata, ".".join(self.table.field)
        known = field_of(metadata, self.table.field)
        type_ = arrow_type(known[1]) if known else None
        if known is None or type_ is None:
            raise Unsearchable(f"{name} is {f'a {known[1]}' if known else 'not in its schema'}")
        keys = self.values(type_, "Iceberg tables")
        self._keys = Keys(keys)
        specs = [each for spec in metadata.get("partition-specs") or () for each in spec["fields"]]
        if any(
            each["source-id"] == known[0] and not each["transform"].startswith(("bucket", "void")) for each in specs
        ):
            self.gap(f"it is or was partitioned by {name}: names of directories may be ids, and are not searched")
        nodes = list(_nodes(_schema(metadata)))
        if any(each.get("id") == known[0] and each.get("initial-default") is not None for each in nodes):
            self.gap(f"files without {name} show its initial default, which is not compared with the ids")
        own = frozenset(node[key] for node in nodes for key in _IDS if key in node)
        return task_for((known[0],), own, keys)

    def _look_outside(self, tree: Tree, task: SearchTask) -> None:
        """Searches files below the table's locations that no snapshot names, such as those of failed commits."""
        named, others, bounds = tree.named(), dict[str, str](), list[str]()
        ids = next(each for each in task.ids if isinstance(each, int))
        for place in iceberg.locations_of(tree.pointer, _bytes_of(tree.pointer)):
            for name, state in files_at(normal(place)):
                path, last = normal(join(place, name)), name_of(name)
                is_other = not (iceberg.is_metadata(last) or last == "version-hint.text" or last.endswith(".crc"))
                if path in named or not is_other or not state.size:
                    continue
                if (entries := _entries_of(path, ids)) is not None:
                    bounds += [path] if any(self._keys.has(bound) for each in entries for bound in each.bounds) else []
                else:
                    others[path] = "PARQUET" if last.endswith(".parquet") else "another format"
        for path in bounds:
            self.gap(f"bounds with ids in {path}, which no snapshot names: {_REMOVE}")
        for path, held in self.search(others, task).items():
            self.gap(f"{held.rows:,} rows with ids in {path}, which no snapshot names: {_REMOVE}")


_REMOVE = "remove it by `remove_orphan_files`"


def _entries_of(path: str, ids: int) -> tuple[Entry, ...] | None:
    """Returns the entries of a manifest, none of a list of manifests; None for any other file."""
    if path.endswith(".avro"):
        with suppress(FormatError, LookupError, FileNotFoundError):
            data = _bytes_of(path)
            kind = iceberg.kind_of(f"{iceberg.DIRECTORY}/{name_of(path)}", data)
            return tuple(_entry(each, ids) for each in iceberg.entries(path, data)) if kind == "manifest" else ()
    return None


class Keys:
    """The ids as values of a column, and bounds of the column in manifests."""

    def __init__(self, values: pa.Array) -> None:
        self.values, self._all = values, set(values.to_pylist())
        self._texts = sorted(self._all) if pa.types.is_string(values.type) else []

    def has(self, bound: bytes) -> bool:
        """Returns True for a bound that is an id, or the begin of one: texts are truncated, to 16 characters by
        default; an upper bound then has its last character increased."""
        value = self._value(bound)
        if value in self._all:
            return True
        if not self._texts or len(value) < TRUNCATED:
            return False
        return self._begins(value) or self._begins(value[:-1] + chr(max(ord(value[-1]) - 1, 0)))

    def _begins(self, text: str) -> bool:
        index = bisect_left(self._texts, text)
        return index < len(self._texts) and self._texts[index].startswith(text)

    def _value(self, bound: bytes) -> Any:
        """Returns a bound's value (Table Spec, Binary single-value serialization)."""
        type_ = self.values.type
        if pa.types.is_string(type_):
            return bound.decode(errors="replace")
        if pa.types.is_decimal(type_):
            return Decimal(int.from_bytes(bound, "big", signed=True)).scaleb(-type_.scale)
        number = struct.unpack("<q" if len(bound) == 8 else "<i", bound)[0]
        return pa.scalar(number, pa.int32()).cast(type_).as_py() if pa.types.is_date(type_) else number
