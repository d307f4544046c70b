"""Retired directories: data that a load with `publish = "snapshot"` has replaced, and that running queries may read.

    superseded/<dump id>/<unique>.json   directories, noted in the target's `$cmroot` before anything names others
    superseded/<dump id>/closed          when the load had ended: from then on nobody begins to read them
    superseded/<dump id>-left/           the same, of what tables leave in the source's layout: no delay

After the delay, under the root's lease, `sweep_retired` takes them into `$cmroot`: what of them no table and no
partition has by then. What the successor has as the same file (the load carried it by link) is not taken twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import foreign
from cmroot.store.listing import list_tree
from cmroot.store.place import (
    Place,
    folded,
    is_local,
    join,
    local_path,
    located,
    normal,
    parent,
    remove_if_empty,
    resolved,
    touches,
)
from replicator.core.not_replicated import NotReplicated, renamed
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.replay.places.neighbours import Leaving, Name, Neighbours, Occupant, clear
from replicator.replay.places.placement import PUBLISHED
from replicator.replay.places.replica import LOADING

_NOTES = "superseded"
_CLOSED = "closed"
_LEFT = "-left"
_FORMAT, _VERSION = "replicator-superseded", 1


class Retired(msgspec.Struct, frozen=True):
    """A directory of the target that was (or is about to be) replaced: of which table, and which partition of it;
    `successor`: the directory that has what stayed the same (empty: none has); `stamped`: of what a table left, only
    files go that a load has published."""

    directory: str
    db: str
    table: str
    partition: str = ""
    successor: str = ""
    stamped: bool = False


class _Note(msgspec.Struct, frozen=True):
    format: str
    version: int
    directories: tuple[Retired, ...]


def note_retired(root: str, load: str, directories: Sequence[Retired]) -> None:
    """Durable when it returns; before the metadata that names other directories. May run twice."""
    if directories:
        note = _Note(_FORMAT, _VERSION, tuple(directories))
        place = Place(root) / _NOTES / load / f"{uuid.uuid4().hex}.json"
        place.write_bytes(msgspec.json.encode(note) + b"\n")


def note_left(root: str, load: str, directories: Sequence[Retired]) -> None:
    """As `note_retired`, of what goes before the load ends: see `take_left`."""
    note_retired(root, f"{load}{_LEFT}", directories)


def take_left(root: str, take: Callable[[Sequence[Retired]], None]) -> None:
    """Hands over what tables have left, of loads that were killed, too, and forgets it. Under the lease of the target's
    root, once all of them lie elsewhere. May run twice. Raises FormatError for a damaged note."""
    for load in (Place(root) / _NOTES).list():
        if load.endswith(_LEFT):
            place = Place(root) / _NOTES / load
            for name in place.list():
                if name != _CLOSED:
                    take(_read(str(place / name), root))
                    (place / name).remove_own()
            place.remove_own_tree()


def close_retired(root: str, load: str, *, now: float) -> None:
    """After a load's last flip: the delay begins. May run twice; the first time counts."""
    place = Place(root) / _NOTES / load
    if place.list() and not (place / _CLOSED).exists():
        (place / _CLOSED).write_bytes(f"{now:.3f}\n".encode())


def has_left(root: str) -> bool:
    return any(load.endswith(_LEFT) for load in (Place(root) / _NOTES).list())


def has_retired(root: str) -> bool:
    """Whether anything waits."""
    return bool((Place(root) / _NOTES).list())


@dataclass
class RetiredSwept:
    """Directories and files taken away; `held`: directories that stay, as something lies in them, and who has them;
    `whose`: the tables that they were of."""

    directories: int = 0
    files: int = 0
    held: list[tuple[str, Occupant]] = field(default_factory=list)
    whose: dict[str, Name] = field(default_factory=dict)


def sweep_retired(
    root: str,
    target: MetastoreReader,
    delay: timedelta,
    *,
    now: Callable[[], float],
    check: Callable[[], None] = lambda: None,
) -> RetiredSwept:
    """Takes away what was superseded longer than `delay` ago. Under the lease of the target's root, while no load is at
    work, which `check` asks again before each note. May run twice, and again after a crash. Raises FormatError for a
    damaged note."""
    swept = RetiredSwept()
    due = []
    loads = (Place(root) / _NOTES).list()
    loading = _loading(target) if loads else set()
    for load in loads:
        place = join(root, _NOTES, load)
        if load in loading or load.endswith(_LEFT):  # the next load takes that
            continue
        if not (Place(place) / _CLOSED).exists():  # given up, or killed right before it had been closed
            close_retired(root, load, now=now())
            continue
        closed = float((Place(place) / _CLOSED).read_bytes())
        if closed + delay.total_seconds() <= now():
            due.append((closed, place))
    if not due:
        return swept
    neighbours = Neighbours(target, shadows=True)
    for _, place in sorted(due):  # in order, so that a successor is still there
        for name in Place(place).list():
            if name != _CLOSED:
                check()
                _sweep_note(root, neighbours, _read(join(place, name), root), swept)
                (Place(place) / name).remove_own()
        Place(place).remove_own_tree()
    return swept


def _sweep_note(root: str, neighbours: Neighbours, noted: Sequence[Retired], swept: RetiredSwept) -> None:
    free = neighbours.free([each.directory for each in noted], Leaving())
    clearings, holders = {each.directory: each for each in free.clearings}, dict(free.held)
    for each in noted:
        clearing = clearings.get(each.directory)
        if clearing is None:
            swept.held.append((each.directory, holders[each.directory]))
            swept.whose[each.directory] = each.db, each.table
            continue
        if each.successor and not clearing.kept:
            _drop_cloned(each)
        swept.files += clear(root, clearing)
        swept.directories += 1
        _remove_empty(each.directory)


def _drop_cloned(each: Retired) -> None:
    """Names of files that the successor has, too: the bytes stay, so they need not be kept."""
    listing, there = list_tree(each.directory), list_tree(each.successor)
    successors = {file.path_relative: file for file in there.files} if there else {}
    local = is_local(each.directory) and is_local(each.successor)
    for file in listing.files if listing else ():
        other = successors.get(file.path_relative)
        if other is not None and (other.size, other.identity) == (file.size, file.identity):
            place = located(join(each.directory, file.path_relative))
            if local and not os.path.samefile(place.local, local_path(join(each.successor, file.path_relative))):
                continue
            place.remove()


def _remove_empty(directory: str) -> None:
    """The emptied directories above, up to `.published`."""
    above = parent(directory)
    while f"/{PUBLISHED}/" in f"{above}/" and remove_if_empty(above):
        above = parent(above)


def _loading(target: MetastoreReader) -> set[str]:
    """Ids of the dumps that are being loaded."""
    found = set()
    for name in target.database_names():
        with contextlib.suppress(ObjectNotFound):
            found.add(target.database(name).parameters.get(LOADING, ""))
    return found


def _read(place: str, root: str) -> tuple[Retired, ...]:
    try:
        note = msgspec.json.decode(Place(place).read_bytes(), type=_Note)
    except UNREADABLE as error:
        raise FormatError(
            f"{place}: {error}", hint="remove it; the replaced directories that it named stay where they are"
        ) from error
    if (note.format, note.version) != (_FORMAT, _VERSION):
        raise FormatError(f"{place}: {note.format} version {note.version}", hint="use the release that wrote it")
    for each in note.directories:
        for directory in filter(None, (each.directory, each.successor)):
            if not ("://" in directory or directory.startswith(("/", "file:"))) or folded(directory) != normal(
                directory
            ):
                raise foreign(place, "directory", directory, "is not a place")
        if not each.directory or touches(resolved(each.directory), resolved(root)):
            raise foreign(place, "directory", each.directory, "was never a table's: it is, or holds, the $cmroot")
    return note.directories


# ---- stays -----------------------------------------------------------------------------------------------------------
# Stays: what a load, or a sweep after one, leaves on the target's disk although the source has it no more, as others
# have something there. It is named as not replicated: rows that were erased may be among it.


REPORTED = 10  # directories that a warning names


@dataclass
class Stays:
    """By table of the target: the first directory and why it stays, and how many there are. Several threads may add."""

    _found: dict[Name, tuple[str, str, int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, table: Name, place: str, why: str) -> None:
        with self._lock:
            first, reason, count = self._found.get(table, (place, why, 0))
            self._found[table] = first, reason, count + 1

    def add_held(self, held: Sequence[tuple[str, Occupant]], whose: Mapping[str, Name], source: str) -> Iterator[str]:
        """whose: the tables that the directories were of. Warnings of those that another replica of the source (its
        root's id) has: at the source they stay for that, too."""
        shared = []
        for place, holder in held:
            if holder.source == source:
                shared.append((place, holder))
            else:
                self.add(whose[place], place, f"{holder} has them, too")
        return reported(shared)

    def not_replicated(self, databases: Mapping[str, str]) -> list[NotReplicated]:
        """databases: source name -> target name."""
        sources = {target: source for source, target in databases.items()}
        named = []
        for (db, table), (place, why, count) in self._found.items():
            more = f" and {count - 1:,} more directories" if count > 1 else ""
            text = f"files in {place}{more} stay on the target, which the source has no more: {why}"
            named.append(NotReplicated(f"{db}.{table}", text))
        return renamed(named, sources)


def reported(held: Sequence[tuple[str, Occupant]]) -> Iterator[str]:
    """Warnings, of which many become one."""
    for place, holder in held[:REPORTED]:
        yield f"the files in {place} were left: {holder} has them, too"
    if len(held) > REPORTED:
        yield f"the files in {len(held) - REPORTED} more directories were left, which others have, too"
