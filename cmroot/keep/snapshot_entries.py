"""Snapshots that a root has made on HDFS. Each has an entry `snapshots/<name>` in the root, written before the snapshot
is made and removed after it is deleted: whatever a crash leaves, a sweep finds. All under the root's lease.

A name is `replicator-<id of the root>-<position>-<number>-<hex>`: names of one root sort as they were made.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.root import open_existing
from cmroot.store.hdfs.snapshots import create_snapshot, delete_snapshot
from cmroot.store.place import Place

PLACE = "snapshots"
PREFIX = "replicator-"
VERSION = 1


class SnapshotEntry(msgspec.Struct, frozen=True):
    """The content of an entry. directory: the snapshottable one. after: the log's position before the capture that made
    it. keeps: whether file entries may name it; else it is only compared with the next."""

    version: int
    name: str
    directory: str
    after: int
    keeps: bool

    @property
    def place(self) -> str:
        return f"{self.directory}/.snapshot/{self.name}"


def make_snapshot(root: str, directory: str, after: int, *, keeps: bool) -> str:
    """Makes a snapshot of a directory; its name. OSError when there is none; its entry stays until the next sweep."""
    own = f"{PREFIX}{open_existing(root).id[:8]}-{after:012d}-"
    before = [each.name for each in made_snapshots(root) if each.name.startswith(own)]
    number = int(before[-1].removeprefix(own).partition("-")[0]) + 1 if before else 0
    name = f"{own}{number:04d}-{uuid.uuid4().hex[:8]}"
    entry = SnapshotEntry(VERSION, name, directory, after, keeps)
    (Place(root) / PLACE / name).write_bytes(msgspec.json.encode(entry) + b"\n")
    create_snapshot(directory, name)
    return name


def made_snapshots(root: str) -> list[SnapshotEntry]:
    """All that may be there, as they were made. Raises FormatError for an entry that cannot be read."""
    place = Place(root) / PLACE
    return [_read(place, name) for name in sorted(place.list()) if name.startswith(PREFIX)]


def drop_snapshots(root: str, entries: Collection[SnapshotEntry]) -> list[str]:
    """Deletes snapshots, then their entries. May run twice. The reasons why some could not be deleted: they are tried
    again."""
    reasons = []
    for entry in entries:
        try:
            delete_snapshot(entry.directory, entry.name)
        except OSError as error:
            reasons.append(f"{entry.place} could not be deleted: {error.strerror or error}")
        else:
            (Place(root) / PLACE / entry.name).remove()
    return reasons


def sweep_snapshots(root: str, compared: Collection[str], position: int) -> list[str]:
    """Drops those that nothing needs: they are not `compared` with the next, and no file entry names them, which a
    capture has published. `position`: up to which captures have. Reasons as above."""
    needless = (each for each in made_snapshots(root) if not (each.keeps and each.after < position))
    return drop_snapshots(root, [each for each in needless if each.name not in compared])


def _read(directory: Place, name: str) -> SnapshotEntry:
    place = directory / name
    try:
        entry = msgspec.json.decode(place.read_bytes(), type=SnapshotEntry)
    except UNREADABLE as error:
        hint = "remove it, and the snapshot of that name"
        raise FormatError(f"{place}: cannot be read: {error}", hint=hint) from error
    if entry.version != VERSION:
        raise FormatError(f"{place}: has version {entry.version}, not {VERSION}", hint="use a newer release")
    if entry.name != name:  # somebody else's snapshot, perhaps: it would be deleted
        raise FormatError(
            f"{place}: names another snapshot, {entry.name!r}", hint=f"remove it, and the snapshot {name!r}"
        )
    return entry
