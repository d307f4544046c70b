"""Snapshots that a root has made on HDFS. Each has an entry `snapshots/<name>` in the root, written before the snapshot
is made and removed after it is deleted: whatever a crash leaves, a sweep finds. All under the root's lease.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.store.hdfs.snapshots import create_snapshot, delete_snapshot
from cmroot.store.place import Place

PLACE = "snapshots"
VERSION = 1


class _Entry(msgspec.Struct, frozen=True):
    """The content of an entry: its version, and the snapshottable directory."""

    version: int
    directory: str


def make_snapshot(root: str, directory: str, now: float) -> str:
    """Makes a snapshot of a directory, at `now` in seconds; its name. OSError when there is none; its entry stays until
    the next sweep."""
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S")
    name = f"replicator-{moment}-{uuid.uuid4().hex[:12]}"
    (Place(root) / PLACE / name).write_bytes(msgspec.json.encode(_Entry(VERSION, directory)) + b"\n")
    create_snapshot(directory, name)
    return name


def made_snapshots(root: str) -> Mapping[str, str]:
    """Name -> directory of all that may be there. Raises FormatError for an entry that cannot be read."""
    place = Place(root) / PLACE
    return {name: _directory(place / name) for name in place.list() if name.startswith("replicator-")}


def sweep_snapshots(root: str, needed: Collection[str]) -> list[str]:
    """Deletes those that are not needed. May run twice. The reasons why some could not be deleted: the next sweep tries
    them again."""
    reasons = []
    for name, directory in made_snapshots(root).items():
        if name in needed:
            continue
        try:
            delete_snapshot(directory, name)
        except OSError as error:
            reasons.append(f"{directory}/.snapshot/{name} could not be deleted: {error.strerror or error}")
        else:
            (Place(root) / PLACE / name).remove()
    return reasons


def _directory(place: Place) -> str:
    try:
        entry = msgspec.json.decode(place.read_bytes(), type=_Entry)
    except UNREADABLE as error:
        raise FormatError(
            f"{place}: cannot be read: {error}", hint="remove it, and the snapshot of that name"
        ) from error
    if entry.version != VERSION:
        raise FormatError(f"{place}: has version {entry.version}, not {VERSION}", hint="use a newer release")
    return entry.directory
