"""Retired directories: data that a load with `publish = "snapshot"` replaced, and that running queries may read.

    superseded/<dump id>/<unique>.json   directories, noted in the target's `$cmroot` before any location switches
    superseded/<dump id>/closed          written when the load has ended: no reader begins to read them after that
    superseded/<dump id>-left/           the same, for files left in the source's layout: no delay

After the delay, under the root's lease, `sweep_retired` moves them to `$cmroot`, except what an object uses by then.
Files that the successor shares (hard-linked unchanged by the load) are not moved a second time.
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
from replicator.core.model import Name
from replicator.core.not_replicated import NotReplicated, renamed
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.replay.neighbours import Holder, Leaving, Neighbours, clear
from replicator.replay.placement import PUBLISHED
from replicator.replay.replica import LOADING

NOTES = "superseded"
_CLOSED = "closed"
LEFT = "-left"
_FORMAT, _VERSION = "replicator-superseded", 1


class Retired(msgspec.Struct, frozen=True):
    """A directory of the target that was (or is about to be) replaced, with its table and partition; `successor`: the
    directory that has its unchanged files (empty: none); `stamped`: for directories abandoned by a table, only files
    that a load has published are removed; `root`: of a partitioned table, only files in none of its partitions."""

    directory: str
    db: str
    table: str
    partition: str = ""
    successor: str = ""
    stamped: bool = False
    root: bool = False


class _Note(msgspec.Struct, frozen=True):
    format: str
    version: int
    directories: tuple[Retired, ...]


def note_retired(root: str, load: str, directories: Sequence[Retired]) -> None:
    """Notes directories, durably, before the metadata that names other directories changes. May run twice."""
    if directories:
        note = _Note(_FORMAT, _VERSION, tuple(directories))
        place = Place(root) / NOTES / load / f"{uuid.uuid4().hex}.json"
        place.write_bytes(msgspec.json.encode(note) + b"\n")


def note_left(root: str, load: str, directories: Sequence[Retired]) -> None:
    """Like `note_retired`, for files that are removed before the load ends: see `take_left`."""
    note_retired(root, f"{load}{LEFT}", directories)


def take_left(root: str, take: Callable[[Sequence[Retired]], None]) -> None:
    """Passes abandoned directories to `take`, also those of killed loads, and removes their notes. Under the lease of
    the target's root, once all their tables are located elsewhere. May run twice. Raises FormatError for a damaged
    note."""
    for load in (Place(root) / NOTES).list():
        if load.endswith(LEFT):
            place = Place(root) / NOTES / load
            for name in place.list():
                if name != _CLOSED:
                    take(_read(str(place / name), root))
                    (place / name).remove_own()
            place.remove_own_tree()


def close_retired(root: str, load: str, *, now: float) -> None:
    """Starts the delay, after a load's last switch. May run twice; the first time counts."""
    place = Place(root) / NOTES / load
    if place.list() and not (place / _CLOSED).exists():
        (place / _CLOSED).write_bytes(f"{now:.3f}\n".encode())


def has_retired(root: str) -> bool:
    """Returns True if there are notes of any load."""
    return bool((Place(root) / NOTES).list())


@dataclass
class RetiredSwept:
    """The number of directories and files removed; `held`: directories that remain because something is located in
    them, with the occupant; `whose`: the tables that they belonged to."""

    directories: int = 0
    files: int = 0
    held: list[tuple[str, Holder]] = field(default_factory=list)
    whose: dict[str, Name] = field(default_factory=dict)


def sweep_retired(
    root: str,
    target: MetastoreReader,
    delay: timedelta,
    *,
    now: Callable[[], float],
    check: Callable[[], None] = lambda: None,
) -> RetiredSwept:
    """Removes directories superseded longer than `delay` ago. Under the lease of the target's root, while no load is
    running, which `check` verifies again before each note. May run twice, and again after a crash. Raises FormatError
    for a damaged note."""
    swept = RetiredSwept()
    due = []
    loads = (Place(root) / NOTES).list()
    loading = _loading(target) if loads else set()
    for load in loads:
        place = join(root, NOTES, load)
        if load in loading or load.endswith(LEFT):  # the next load removes that
            continue
        if not (Place(place) / _CLOSED).exists():  # abandoned, or killed right before closing
            close_retired(root, load, now=now())
            continue
        closed = float((Place(place) / _CLOSED).read_bytes())
        if closed + delay.total_seconds() <= now():
            due.append((closed, place))
    if not due:
        return swept
    neighbours = Neighbours(target, shadows=True)
    for _, place in sorted(due):  # in order, so that a successor still exists
        for name in Place(place).list():
            if name != _CLOSED:
                check()
                _sweep_note(root, neighbours, _read(join(place, name), root), swept)
                (Place(place) / name).remove_own()
        Place(place).remove_own_tree()
    return swept


def _sweep_note(root: str, neighbours: Neighbours, noted: Sequence[Retired], swept: RetiredSwept) -> None:
    free = neighbours.removable([each.directory for each in noted], Leaving())
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
    """Removes names of files that the successor shares: the bytes remain, so they need not be retained."""
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
    """Removes the emptied directories above, up to `.published`."""
    above = parent(directory)
    while f"/{PUBLISHED}/" in f"{above}/" and remove_if_empty(above):
        above = parent(above)


def _loading(target: MetastoreReader) -> set[str]:
    """Returns the ids of the dumps that are being loaded."""
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
            f"{place}: {error}", hint="delete it; the replaced directories that it names are kept"
        ) from error
    if (note.format, note.version) != (_FORMAT, _VERSION):
        raise FormatError(f"{place}: {note.format} version {note.version}", hint="use the release that wrote it")
    for each in note.directories:
        for directory in filter(None, (each.directory, each.successor)):
            if not ("://" in directory or directory.startswith(("/", "file:"))) or folded(directory) != normal(
                directory
            ):
                raise foreign(place, "directory", directory, "is not a path")
        if not each.directory or touches(resolved(each.directory), resolved(root)):
            raise foreign(
                place, "directory", each.directory, "was never a table's directory: it is, or contains, the $cmroot"
            )
    return note.directories


# ---- stays -----------------------------------------------------------------------------------------------------------
# Stays: files that a load, or a later sweep, leaves on the target although the source does not have them any more, as
# others have something there. They are reported as not replicated: rows that were erased may be among them.


REPORTED = 10  # directories that a warning names


@dataclass
class Stays:
    """Remaining directories by table of the target: the first one with its reason, and the count; and rights that new
    files and directories lack of those that they replaced, the first by table. Thread-safe."""

    found: dict[Name, tuple[str, str, int]] = field(default_factory=dict)
    lacking: dict[Name, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, table: Name, place: str, why: str) -> None:
        with self._lock:
            first, reason, count = self.found.get(table, (place, why, 0))
            self.found[table] = first, reason, count + 1

    def lack(self, table: Name, text: str) -> None:
        """Adds a text about rights that a file or directory lacks."""
        with self._lock:
            self.lacking.setdefault(table, text)

    def add_held(self, held: Sequence[tuple[str, Holder]], whose: Mapping[str, Name], source: str) -> Iterator[str]:
        """Adds held directories. whose: their former tables. Returns warnings for those that another replica of the
        source (its root's id) uses: at the source they remain for the same reason."""
        shared = []
        for place, holder in held:
            if holder.source == source:
                shared.append((place, holder))
            else:
                self.add(whose[place], place, holder.why)
        return reported(shared)

    def not_replicated(self, databases: Mapping[str, str]) -> list[NotReplicated]:
        """Returns the entries of all tables. databases: source name -> target name."""
        sources = {target: source for source, target in databases.items()}
        texts = {table: [text] for table, text in self.lacking.items()}
        for table, (place, why, count) in self.found.items():
            more = f" and {count - 1:,} more directories" if count > 1 else ""
            text = f"files in {place}{more}, no longer at the source, remain on the target: {why}"
            texts.setdefault(table, []).append(text)
        named = [NotReplicated(".".join(table), "; ".join(some)) for table, some in texts.items()]
        return renamed(named, sources)


def reported(held: Sequence[tuple[str, Holder]]) -> Iterator[str]:
    """Yields warnings; a large number is summarised in one."""
    for place, holder in held[:REPORTED]:
        yield f"the files in {place} were kept: {holder.why}"
    if len(held) > REPORTED:
        yield f"the files in {len(held) - REPORTED} more directories were kept: other objects also use them"
