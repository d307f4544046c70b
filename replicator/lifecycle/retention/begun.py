"""What a killed run had begun: directories dated by their modification time, of which some files are gone. Acts.

Where a directory cannot go by one rename (HDFS, another device), each file that goes gives it a new time, so the rest
would look new. Before the first file goes, `<cmroot>/retention/removing-<id>` says what each directory had; while what
is there is a part of that, and nothing else, it counts as old as it was then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.keep.safely import files_at
from cmroot.store.listing import FileState
from cmroot.store.place import Place, normal
from cmroot.text import shown
from replicator.core.engine import LocalEngine

VERSION = 1
_NOTE = "removing-"
AT_ONCE = 8  # directories that are listed


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A directory whose files are about to go. mtime: seconds since 1970, as the plan saw it; files: all below."""

    path: str
    mtime: float
    files: list[FileState]
    version: int = VERSION


@dataclass(frozen=True)
class Beginnings:
    """The notes of a root. place: `<cmroot>/retention`. Under the lease of retention, `dates` also without."""

    place: Place

    def note(self, begun: Iterator[Begun]) -> Place | None:
        """Durable before the first file goes; `remove_own` it when all are gone. None when there is nothing to note.
        One directory at a time in memory."""
        first = next(begun, None)
        if first is None:
            return None
        note = self.place / f"{_NOTE}{uuid.uuid4().hex}"
        with note.open_write() as file:
            for each in chain([first], begun):
                file.write(msgspec.json.encode(each) + b"\n")
        return note

    def dates(self) -> dict[str, float]:
        """(place, as `normal` spells it) -> the time that it had. Raises FormatError for a damaged note."""
        found: dict[str, float] = {}
        for note in self._notes():
            for path, mtime in self._rests(note):
                found[path] = min(mtime, found.get(path, mtime))
        return found

    def settle(self) -> None:
        """Removes the notes that no directory needs any more. Safe to run twice."""
        for note in self._notes():
            if next(self._rests(note), None) is None:
                note.remove_own()

    def _notes(self) -> Iterator[Place]:
        return (self.place / name for name in self.place.list() if name.startswith(_NOTE))

    def _rests(self, note: Place) -> Iterator[tuple[str, float]]:
        """Those of which a part is there, and nothing that came or changed since."""
        with note.open_read() as file:
            for found in LocalEngine(AT_ONCE).run(_rest, (_decode(line, str(note)) for line in file)):
                if found is not None:
                    yield normal(found.path), found.mtime


def begun(path: str, mtime: float) -> Begun:
    """Of what is there now. Raises OSError or Error for a directory that cannot be listed."""
    return Begun(path=path, mtime=mtime, files=_states(path))


def _states(path: str) -> list[FileState]:
    return [msgspec.structs.replace(state, path_relative=shown(name)) for name, state in files_at(path)]


def _rest(then: Begun) -> Begun | None:
    with suppress(FileNotFoundError):
        there = Place(then.path).child()
        if there is not None and there.is_directory and set(_states(then.path)) < set(then.files):
            return then
    return None


def _decode(line: bytes, place: str) -> Begun:
    try:
        found = msgspec.json.decode(line, type=Begun)
    except UNREADABLE as error:
        raise FormatError(
            f"{place}: {error}", hint="remove the file: what is left of its directories is dated by their times then"
        ) from error
    if found.version != VERSION:
        raise FormatError(f"{place}: version {found.version}, this release knows {VERSION}", hint="use a newer release")
    return found
