"""Superseded directories: data that a load with `publish = "snapshot"` has replaced, and that running queries may read.

    superseded/<dump id>/<unique>.json   directories, noted in the target's `$cmroot` before anything names others
    superseded/<dump id>/closed          when the load had ended: from then on nobody begins to read them

After the delay, under the root's lease, `sweep_superseded` takes them into `$cmroot`: those that no table and no
partition lies in by then. What the successor has as the same file (the load carried it by link) is not taken twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from cmroot.errors import FormatError
from cmroot.listing import list_tree
from cmroot.place import is_local, join, local_path, normal, parent, store_for
from cmroot.recycle import recycle_tree
from replicator.errors import ObjectNotFound
from replicator.load.placement import PUBLISHED
from replicator.load.replica import LOADING
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader

_NOTES = "superseded"
_CLOSED = "closed"
_FORMAT, _VERSION = "replicator-superseded", 1
_TABLES = 200  # read at a time


class Superseded(msgspec.Struct, frozen=True):
    """A directory of the target that was (or is about to be) replaced: of which table, and which partition of it;
    `successor`: the directory that has what stayed the same (empty: none has)."""

    directory: str
    db: str
    table: str
    partition: str = ""
    successor: str = ""


class _Note(msgspec.Struct, frozen=True):
    format: str
    version: int
    directories: tuple[Superseded, ...]


def note_superseded(root: str, load: str, directories: Sequence[Superseded]) -> None:
    """Durable when it returns; before the metadata that names other directories. May run twice."""
    if directories:
        note = _Note(_FORMAT, _VERSION, tuple(directories))
        place = join(root, _NOTES, load, f"{uuid.uuid4().hex}.json")
        store_for(root).write_bytes(place, msgspec.json.encode(note) + b"\n")


def close_superseded(root: str, load: str, *, now: float) -> None:
    """After a load's last flip: the delay begins. May run twice; the first time counts."""
    store, place = store_for(root), join(root, _NOTES, load)
    if store.list(place) and not store.exists(join(place, _CLOSED)):
        store.write_bytes(join(place, _CLOSED), f"{now:.3f}\n".encode())


def has_superseded(root: str) -> bool:
    """Whether anything waits."""
    return bool(store_for(root).list(join(root, _NOTES)))


@dataclass
class Swept:
    """Directories and files taken away; `living`: directories that something lies in again, which stay."""

    directories: int = 0
    files: int = 0
    living: int = 0


def sweep_superseded(
    root: str, target: MetastoreReader, delay: timedelta, *, now: Callable[[], float]
) -> Swept:  # fmt: skip
    """Takes away what was superseded longer than `delay` ago. Under the lease of the target's root, while no load is at
    work. May run twice, and again after a crash. Raises FormatError for a damaged note."""
    store, swept = store_for(root), Swept()
    due = []
    loads = store.list(join(root, _NOTES))
    loading = _loading(target) if loads else set()
    for load in loads:
        place = join(root, _NOTES, load)
        if load in loading:
            continue
        if not store.exists(join(place, _CLOSED)):  # given up, or killed right before it had been closed
            close_superseded(root, load, now=now())
            continue
        closed = float(store.read_bytes(join(place, _CLOSED)))
        if closed + delay.total_seconds() <= now():
            due.append((closed, place))
    if not due:
        return swept
    tables = _Tables(target)
    for _, place in sorted(due):  # in order, so that a successor is still there
        for name in store.list(place):
            if name != _CLOSED:
                _sweep_note(root, tables, _read(join(place, name)), swept)
                store.remove(join(place, name))
        store.remove_tree(place)
    return swept


def _sweep_note(root: str, tables: _Tables, noted: Sequence[Superseded], swept: Swept) -> None:
    living = tables.living(noted)
    for each in noted:
        if each.directory in living:
            swept.living += 1
            continue
        if each.successor:
            _drop_carried(each)
        swept.files += len(recycle_tree(root, each.directory))
        swept.directories += 1
        _remove_empty(each.directory)


def _drop_carried(each: Superseded) -> None:
    """Names of files that the successor has, too: the bytes stay, so they need not be kept."""
    listing, there = list_tree(each.directory), list_tree(each.successor)
    successors = {file.path_relative: file for file in there.files} if there else {}
    local = is_local(each.directory) and is_local(each.successor)
    for file in listing.files if listing else ():
        other = successors.get(file.path_relative)
        if other is not None and (other.size, other.identity) == (file.size, file.identity):
            place = join(each.directory, file.path_relative)
            if local and not os.path.samefile(local_path(place), local_path(join(each.successor, file.path_relative))):
                continue
            store_for(place).remove(place)


def _remove_empty(directory: str) -> None:
    """The emptied directories above, up to `.published`."""
    above = parent(directory)
    while is_local(above) and f"/{PUBLISHED}/" in f"{above}/":
        try:
            os.rmdir(local_path(above))
        except OSError:
            return
        above = parent(above)


def _loading(target: MetastoreReader) -> set[str]:
    """Ids of the dumps that are being loaded."""
    found = set()
    for name in target.database_names():
        with contextlib.suppress(ObjectNotFound):
            found.add(target.database(name).parameters.get(LOADING, ""))
    return found


def _read(place: str) -> tuple[Superseded, ...]:
    try:
        note = msgspec.json.decode(store_for(place).read_bytes(place), type=_Note)
    except msgspec.DecodeError as error:
        raise FormatError(
            f"{place}: {error}", hint="remove it; the replaced directories that it named stay where they are"
        ) from error
    if (note.format, note.version) != (_FORMAT, _VERSION):
        raise FormatError(f"{place}: {note.format} version {note.version}", hint="use the release that wrote it")
    return note.directories


class _Tables:
    """What lies where on the target: all tables, and partitions of tables that were noted, whatever database has one of
    that name (a rehearsal's shadow of a replica, say)."""

    def __init__(self, target: MetastoreReader) -> None:
        self._target = target
        self._named: dict[str, list[str]] = {}
        places = []
        for db in target.database_names():
            with contextlib.suppress(ObjectNotFound):
                names = target.table_names(db)
                for start in range(0, len(names), _TABLES):
                    for table in target.tables(db, names[start : start + _TABLES]):
                        if table.is_partitioned:
                            self._named.setdefault(table.name, []).append(db)
                        if table.location and not table.is_view:
                            places.append(normal(table.location))
        self._places = sorted(places)

    def living(self, noted: Sequence[Superseded]) -> set[str]:
        """Of some directories those that a table or a partition lies in, at or below."""
        found = {each.directory for each in noted if self._any_in(self._places, normal(each.directory))}
        by_table: dict[str, set[str]] = {}
        for each in noted:
            if each.partition:
                by_table.setdefault(each.table, set()).add(each.partition)
        places = sorted(place for table, names in by_table.items() for place in self._partitions(table, sorted(names)))
        return found | {each.directory for each in noted if self._any_in(places, normal(each.directory))}

    def _partitions(self, table: str, names: Sequence[str]) -> Iterator[str]:
        for db in self._named.get(table, ()):
            for start in range(0, len(names), PARTITION_BATCH):
                with contextlib.suppress(ObjectNotFound):
                    for page in self._target.partitions(db, table, names[start : start + PARTITION_BATCH]):
                        yield from (normal(each.location) for each in page if each.location)

    @staticmethod
    def _any_in(places: Sequence[str], directory: str) -> bool:
        for wanted in (directory, directory + "/"):
            index = bisect_left(places, wanted)
            if index < len(places) and (places[index] == directory or places[index].startswith(directory + "/")):
                return True
        return False
