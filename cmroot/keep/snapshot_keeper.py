"""Snapshot: a snapshot of HDFS keeps what is removed later; we only note which has a file.

A file is in the snapshot in which it was found, and in all later ones until it is removed. So a snapshot may go when a
later one is there and nothing needs any more what was removed between them (`cmroot.expire.snapshots_expired`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import msgspec

from cmroot.keep.content import Kept
from cmroot.keep.objects import keep_object, read_object
from cmroot.store.hdfs.snapshots import DIRECTORY
from cmroot.store.listing import FileState, file_state
from cmroot.store.place import Place, join
from cmroot.store.spelling import normal, split_authority, upwards

MARK = "hdfs-snapshot:"
"""Begins a `version` that means: in a snapshot. `hdfs-snapshot:<name>:<modification time in ns>@<its directory>`."""


def is_in_snapshot(version: str | None) -> bool:
    return version is not None and version.startswith(MARK)


def snapshot_size(path: str, version: str) -> int:
    """Bytes of a file in a snapshot. FileNotFoundError when no snapshot has it (any more)."""
    return _found(path, version)[1].size


def open_in_snapshot(path: str, version: str) -> BinaryIO:
    """Reads such a file. FileNotFoundError as above."""
    return Place(_found(path, version)[0]).open_stream()


def snapshots_above(location: str) -> str:
    """The nearest directory, at a location on HDFS or above, that has snapshots, whoever made them; empty without."""
    store, path = split_authority(normal(location))
    return next((f"{store}{each}" for each in upwards(path) if (Place(f"{store}{each}") / DIRECTORY).list()), "")


@dataclass(frozen=True)
class SnapshotKeeper:
    """What a snapshot of this capture has: bytes are read once, for their checksum, and never copied.

    Protects from removal and replacement by anyone, once the snapshot is made. Not from whoever deletes snapshots. What
    was written since it was made is copied into the root.
    """

    root: str
    directory: str
    snapshot: str
    name: ClassVar[str] = "snapshot"

    def keep(self, path: str) -> Kept:
        now = file_state(path)
        place = _within(self.directory, self.snapshot, path)
        try:
            there = file_state(place)
        except FileNotFoundError:
            return keep_object(self.root, path)
        if (there.size, there.mtime_ns) != (now.size, now.mtime_ns):
            return keep_object(self.root, path)
        kept = read_object(place)
        version = f"{MARK}{self.snapshot}:{now.mtime_ns}@{self.directory}"
        return msgspec.structs.replace(kept, identity=now.identity, version=version)


def _found(path: str, version: str) -> tuple[str, FileState]:
    named, _, directory = version.removeprefix(MARK).partition("@")
    name, _, mtime_ns = named.partition(":")
    for each in _candidates(directory, name):
        place = _within(directory, each, path)
        try:
            state = file_state(place)
        except FileNotFoundError:
            continue
        if str(state.mtime_ns) == mtime_ns:
            return place, state
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{path} in snapshot {name} and later ones")


def _candidates(directory: str, name: str) -> Iterator[str]:
    """The snapshot, then those that the same root has made since."""
    yield name
    own = name[: -len("000000000000-0000-00000000")]
    there = (Place(directory) / DIRECTORY).list()
    yield from sorted(each for each in there if each.startswith(own) and each > name)


def _within(directory: str, snapshot: str, path: str) -> str:
    top, place = (split_authority(normal(each))[1].rstrip("/") for each in (directory, path))
    return join(directory, DIRECTORY, snapshot, place[len(top) :])
