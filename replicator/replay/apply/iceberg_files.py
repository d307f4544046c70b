"""Files of Iceberg tables in a load: which are translated, and the order in which they are published. On executors.

Data files are copied like those of any table, and delete files that name rows are translated on the way. The tree above
them is published afterwards: manifests, which have the sizes of delete files, then the lists with the sizes of
manifests, then metadata files. Nothing of it has readers until the table's pointer, a property in the metastore, names
the new metadata file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store import iceberg
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import located, normal, relative
from replicator.errors import FormatError
from replicator.replay.apply.copying import Placed, Placing, place_file
from replicator.replay.apply.named_places import Homes, Naming, homes_of, moved, recorded_bytes
from replicator.replay.apply.origins import Wanted, directory_of, origins
from replicator.replay.plan import EntryKey, FileRules

UNREADABLE = "in a file of deletes that cannot be read"  # in place of a location
HEAD = 1 << 16  # bytes of an Avro file that contain its schema
Noted = Callable[[Wanted, Placed], None]


class Outside(FormatError):
    """A file of a tree names a location outside of its table."""


def trees_of(homes: Mapping[str, EntryKey], rules: FileRules) -> dict[str, EntryKey]:
    """Returns the directories of Iceberg tables among those of objects (see `fold_entries`)."""
    found = ((directory, key, rules.rules_of(*key[:4])) for directory, key in homes.items())
    return {directory: key for directory, key, some in found if some is not None and some[0].pointer}


def tree_of(target: str, trees: Mapping[str, EntryKey]) -> str:
    """Returns the directory of the Iceberg table that a file of the target belongs to; "" for other files."""
    return directory_of(target, trees) if trees else ""


def is_of_tree(target: str, trees: Mapping[str, EntryKey]) -> bool:
    """Returns True if a file is published with its table's tree, after all data."""
    directory = tree_of(target, trees)
    return bool(directory) and iceberg.in_tree(target[len(directory) :])


@dataclass(frozen=True)
class Mover:
    """The translation of paths. homes: locations of the table on the source and the target. former: for a metadata file
    that is not the table's: paths outside of these stay."""

    homes: Homes
    former: bool = False

    def __call__(self, path: str) -> str:
        """Raises Outside for a path that would not be in the target's location."""
        now = moved(path, self.homes)
        if not self.former and not any(relative(now, target) is not None for _, target in self.homes):  # also by `..`
            raise Outside(f"{path} is outside of its table's location", hint="see docs/formats.md, Iceberg")
        return now

    @property
    def stays(self) -> bool:
        """True if the target has the source's paths, so that files are copied as they are."""
        return all(normal(source) == normal(target) for source, target in self.homes)


def mover_of(key: EntryKey, rules: FileRules, *, former: bool = False) -> Mover:
    """Returns the translation of paths in the files of an entry's table."""
    found = rules.rules_of(*key[:4])
    own = found[0].location if found else None
    pairs = [rules.places(*key) or (None, None)]
    if found and own:
        pairs.append((own, rules.placement.inside(found[0].db, own, own)))
    return Mover(homes_of(pairs), former)


# ---- delete files ----------------------------------------------------------------------------------------------------


def translated_deletes(
    file: Wanted, trees: Mapping[str, EntryKey], rules: FileRules, how: Placing
) -> tuple[Wanted, Naming | None]:
    """Returns a file of an Iceberg table as it must be on the target: one that names rows of data files is translated,
    any other unchanged; and a report of one that cannot be translated. One whose bytes are not available is unchanged:
    placing it reports why."""
    directory = tree_of(file.target, trees)
    if not directory or file.checksum is None or not file.size or not iceberg.names_rows(file.target):
        return file, None
    if not _names_rows(file, file.checksum, file.size, how):
        return file, None
    key = trees[directory]
    data, move = recorded_bytes(file, file.checksum, file.size, how), mover_of(key, rules)
    if data is None or move.stays:
        return file, None
    try:
        return with_content(file, iceberg.moved_deletes(file.source, data, move)), None
    except FormatError:
        table, partition = rules.object_at(*key[:4]) or (key[1:3], key[3])
        return file, Naming(table, partition, file.target[len(directory) :], UNREADABLE)


def _names_rows(file: Wanted, checksum: str, size: int, how: Placing) -> bool:
    """Returns True if a file may name rows, by its schema; reads only that."""
    if file.target.endswith(".puffin"):
        return True
    for origin in origins(file, checksum, size, how.roots, how.kept):
        with suppress(FileNotFoundError, pa.ArrowException, FormatError), origin.open_read() as stream:
            if file.target.endswith(".avro"):
                return iceberg.has_rows_of_others(file.source, stream.read(HEAD))
            return iceberg.has_row_columns(pq.ParquetFile(stream).schema_arrow)
    return False


def with_content(file: Wanted, content: bytes) -> Wanted:
    checksum, size = checksum_stream(io.BytesIO(content))
    return msgspec.structs.replace(file, checksum=checksum, size=size, content=content)


# ---- trees -----------------------------------------------------------------------------------------------------------


def publish_tree(
    files: Sequence[Wanted], directory: str, key: EntryKey, rules: FileRules, how: Placing, note: Noted
) -> None:
    """Publishes a table's metadata files, lists and manifests, in the order in which they depend on each other. note:
    gets the outcome of each. May run twice: a file that says the same is not replaced.

    A list or manifest whose own files do not exist is of a snapshot that expired while the source was read. It keeps
    the recorded sizes; one that the table's pointer leads to is missing."""
    found = rules.rules_of(*key[:4])
    pointer = found[0].pointer if found else ""
    tree = _Tree(directory, mover_of(key, rules), how, note)
    former = _Tree(directory, mover_of(key, rules, former=True), how, note)
    waiting = sorted((file for file in files if not iceberg.is_metadata(file.target)), key=_looks_like_list)
    count = len(waiting) + 1
    while waiting and len(waiting) < count:  # a list waits for its manifests, whatever their names are
        count = len(waiting)
        waiting = [file for file in waiting if not tree.placed(file)]
    for file in waiting:
        tree.placed(file, as_recorded=True)
    for file in files:
        if iceberg.is_metadata(file.target):
            (tree if normal(file.source) == normal(pointer) else former).placed(file)
    tree.check(pointer, waiting)


def _looks_like_list(file: Wanted) -> bool:
    return file.target.rpartition("/")[2].startswith("snap-")


class _Tree:
    """The files of one table's tree on the target. directory: of the table, ending with a slash."""

    def __init__(self, directory: str, move: Mover, how: Placing, note: Noted) -> None:
        self._directory, self._move, self._how, self._note = directory, move, how, note
        self._sizes: dict[str, int] = {}

    def placed(self, file: Wanted, *, as_recorded: bool = False) -> bool:
        """Publishes a file. Returns False if files that it names do not exist. as_recorded: it keeps their sizes."""
        data = None
        if file.checksum is not None and file.size is not None:
            data = recorded_bytes(file, file.checksum, file.size, self._how)
        if data is None:
            self._note(file, place_file(file, self._how))  # tells where the bytes were looked for
            return True
        path = file.target[len(self._directory) :]
        try:
            size_of = self._size_or_recorded if as_recorded else self._size
            content = data if self._move.stays else iceberg.translated(path, data, self._move, size_of)
        except FileNotFoundError:
            return False
        wanted = with_content(file, content)
        same = _read(file.target) if content is not data else None
        if same is not None and iceberg.equal(path, same, content):
            self._note(wanted, Placed("present", len(same)))
        else:
            self._note(wanted, place_file(wanted, self._how))
        self._sizes.pop(file.target, None)
        return True

    def check(self, pointer: str, stuck: Sequence[Wanted]) -> None:
        """Reports the files without which the table's pointer leads to a state that cannot be read. stuck: those that
        name files which do not exist. Raises FormatError for a metadata file that cannot be read."""
        place = self._move(pointer)
        data = _read(place)
        if data is None:
            nothing = Wanted(pointer, place, None, None, None, 0)
            self._note(nothing, Placed("missing", reason="the table's metadata file was not captured"))
            return
        without = {normal(file.target): file for file in stuck}
        lists = iceberg.references(pointer, data) if without else ()
        for each in lists:
            if each.kind != "list":
                continue
            own = _read(each.path) or b""
            below = iceberg.references(each.path, own) if normal(each.path) not in without else ()
            for path in (each.path, *(manifest.path for manifest in below)):
                if (file := without.pop(normal(path), None)) is not None:
                    reason = "files that it names were removed before capture could read them"
                    self._note(file, Placed("missing", reason=reason))

    def _size(self, place: str, recorded: int) -> int:
        if place not in self._sizes:
            self._sizes[place] = located(place).size()
        return self._sizes[place]

    def _size_or_recorded(self, place: str, recorded: int) -> int:
        with suppress(FileNotFoundError):
            return self._size(place, recorded)
        return recorded


def _read(place: str) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError), located(place).open_stream() as stream:
        return stream.read()
    return None
