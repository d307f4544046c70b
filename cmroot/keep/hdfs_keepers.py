"""Retention by HDFS itself: by snapshots, or by the metastore's own change manager, which moves dropped files on HDFS.

Snapshots retain files that are removed later; only the snapshot that has a file is recorded. A file is in the snapshot
in which it was found, and in all later ones until it is removed. So a snapshot may be deleted when a later one exists
and no file removed between them is required any more (`cmroot.expire.bucket_versions`). They are created, deleted and
compared by WebHDFS; errors are OSErrors with the NameNode's reason. Only of a directory that an administrator has
allowed (`hdfs dfsadmin -allowSnapshot`), its owner can create one.
"""

from __future__ import annotations

import errno
import http.client
import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple
from xml.etree import ElementTree

import msgspec

from cmroot.authentication import open_url
from cmroot.errors import UNREADABLE, FormatError, KeepError
from cmroot.keep.content import ATTEMPTS, Kept, unsteady
from cmroot.keep.remote_files import keep_object, read_object
from cmroot.root import open_existing
from cmroot.store.buckets import OWN
from cmroot.store.hdfs import SCHEMES
from cmroot.store.hdfs_checksums import PATIENCE, ask, hdfs_checksum, in_zone, web_addresses
from cmroot.store.listing import FileState, file_state
from cmroot.store.place import Place, join, name_of, scheme
from cmroot.store.spelling import normal, split_authority, upwards

# ---- snapshots -------------------------------------------------------------------------------------------------------


DIRECTORY = ".snapshot"

CAPTURES_OPEN = "dfs.namenode.snapshot.capture.openfiles"
"""If this is not true, a file that is open for writing during a snapshot has in the snapshot also the data written
later, so the diff to the next snapshot does not list it."""

_ABSENT = ("the snapshot does not exist", "Cannot find the snapshot", "is not a snapshottable directory")
_REPLACED = "\ufffd"  # a byte of a name that is not text


class Difference(NamedTuple):
    """One difference. kind: CREATE, DELETE, MODIFY or RENAME; entries below a directory that was created, deleted or
    renamed are not listed. Paths are absolute; `target`: of a rename."""

    kind: str
    path: str
    target: str = ""


def snapshottable(store: str) -> list[str]:
    """Returns the directories of a store (`hdfs://...`) of which this user may create snapshots, as absolute paths."""
    found = ask(join(store, "/"), "GETSNAPSHOTTABLEDIRECTORYLIST").get("SnapshottableDirectoryList") or ()
    return [f"{each['parentFullPath'].rstrip('/')}/{each['dirStatus']['pathSuffix']}" for each in found]


def create_snapshot(directory: str, name: str) -> None:
    """Raises FileNotFoundError without the directory; OSError if it is not snapshottable, or has too many snapshots."""
    ask(directory, "CREATESNAPSHOT", "PUT", snapshotname=name)


def delete_snapshot(directory: str, name: str) -> None:
    """Deletes a snapshot. May run twice: a missing snapshot or directory is not an error."""
    try:
        ask(directory, "DELETESNAPSHOT", "DELETE", snapshotname=name)
    except FileNotFoundError:
        return
    except OSError as error:
        if not any(each in str(error) for each in _ABSENT):
            raise


def differences(directory: str, old: str, new: str = "") -> list[Difference]:
    """Returns the differences from one snapshot to another, or to the present. The NameNode scans everything below.

    A file that was truncated and rewritten in place to the same length is not listed; no table format does that.
    """
    answer = ask(directory, "GETSNAPSHOTDIFF", oldsnapshotname=old, snapshotname=new)
    top = split_authority(normal(directory))[1] or "/"
    try:
        report = answer["SnapshotDiffReport"]
        asked_for = (report["snapshotRoot"], report["fromSnapshot"], report["toSnapshot"]) == (top, old, new)
        found = [_difference(top, each) for each in report["diffList"]]
    except (KeyError, TypeError) as error:
        raise OSError(errno.EIO, f"WebHDFS: no snapshot diff: {error!r} is missing", directory) from None
    if not asked_for or any(_REPLACED in each.path + each.target for each in found):
        raise OSError(
            errno.EIO, "WebHDFS: a snapshot diff of other snapshots, or with names that are not UTF-8", directory
        )
    return found


class Named:
    """The paths that snapshot differences name."""

    def __init__(self, found: Iterable[Difference]) -> None:
        self._whole: set[str] = set()  # everything below them has changed
        named, above = set[str](), set[str]()
        for each in found:
            for path in (each.path, each.target):
                if path:
                    named.add(path)
                    above.update(each for each in upwards(path) if each != path)
                    if each.kind != "MODIFY":
                        self._whole.add(path)
        self._inside = named | above  # something in them has changed
        self._files_in = {path.rpartition("/")[0] or "/" for path in named - above}  # or new and dropped directories

    def __bool__(self) -> bool:
        return bool(self._inside)

    def has(self, path: str) -> bool:
        """Returns True if a file in the directory `path`, or the directory itself, may have changed."""
        return path in self._inside or any(each in self._whole for each in upwards(path))

    def has_of_root(self, path: str) -> bool:
        """Returns True if a file of a partitioned table's directory `path` that is in no partition may have changed.
        Differences do not show which paths are files: what has no changes below it may be one."""
        own = any(f"{path.rstrip('/')}/{name}" in self._inside for name in OWN)
        return own or path in self._files_in or any(each in self._whole for each in upwards(path))


def captures_open_files(store: str) -> bool:
    """Returns True if snapshots freeze open files: all NameNodes that respond report so (`/conf`), at least one."""
    said = []
    for address in web_addresses(store, os.environ.get("HADOOP_CONF_DIR", "")):
        try:
            with open_url(f"{address}/conf?name={CAPTURES_OPEN}", "GET", PATIENCE) as answer:
                found = ElementTree.fromstring(answer.read()).findtext("property/value", "")
        except (OSError, http.client.HTTPException, ElementTree.ParseError):
            continue
        said.append(found.strip() == "true")
    return bool(said) and all(said)


def _difference(top: str, said: dict[str, Any]) -> Difference:
    target = said.get("targetPath")
    return Difference(said["type"], _absolute(top, said["sourcePath"]), _absolute(top, target) if target else "")


def _absolute(top: str, path: str) -> str:
    return f"{top.rstrip('/')}/{path}" if path else top


# ---- the keeper ------------------------------------------------------------------------------------------------------


MARK = "hdfs-snapshot:"
"""The prefix of a `version` in a snapshot: `hdfs-snapshot:<name>:<modification time in ns>@<its directory>`."""


def is_in_snapshot(version: str | None) -> bool:
    return version is not None and version.startswith(MARK)


def snapshot_size(path: str, version: str) -> int:
    """Returns the bytes of a file in a snapshot. Raises FileNotFoundError when no snapshot has it (any more)."""
    return _found(path, version)[1].size


def open_in_snapshot(path: str, version: str) -> BinaryIO:
    """Opens such a file. Raises FileNotFoundError as above."""
    return Place(_found(path, version)[0]).open_stream()


def snapshots_above(location: str) -> str:
    """Returns the nearest directory, at an HDFS location or above it, that has snapshots of any user; "" if none."""
    store, path = split_authority(normal(location))
    return next((f"{store}{each}" for each in upwards(path) if (Place(f"{store}{each}") / DIRECTORY).list()), "")


@dataclass(frozen=True)
class SnapshotKeeper:
    """A keeper that uses a snapshot of this capture: bytes are read once, for their checksum, and never copied.

    Protects against any removal and replacement once the snapshot is created, but not against the deletion of
    snapshots. Files written after the snapshot was created are copied into the root.
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
    """Yields the snapshot, then later ones created by the same root."""
    yield name
    own = name[: -len("000000000000-0000-00000000")]
    there = (Place(directory) / DIRECTORY).list()
    yield from sorted(each for each in there if each.startswith(own) and each > name)


def _within(directory: str, snapshot: str, path: str) -> str:
    top, place = (split_authority(normal(each))[1].rstrip("/") for each in (directory, path))
    return join(directory, DIRECTORY, snapshot, place[len(top) :])


# ---- snapshot entries ------------------------------------------------------------------------------------------------
# Snapshots that a root has created on HDFS. Each has an entry `snapshots/<name>` in the root, written before it is
# created and removed after it is deleted, so a sweep finds all that a crash leaves. All under the root's lease.
#
# A name is `replicator-<id of the root>-<position>-<number>-<hex>`: names of one root sort by creation.


PLACE = "snapshots"
PREFIX = "replicator-"
VERSION = 1


class SnapshotEntry(msgspec.Struct, frozen=True):
    """The content of an entry. directory: the snapshottable directory. after: the log's position before the capture
    that created it. keeps: whether file entries may refer to it; else it is only compared with the next."""

    version: int
    name: str
    directory: str
    after: int
    keeps: bool

    @property
    def place(self) -> str:
        return f"{self.directory}/.snapshot/{self.name}"


def make_snapshot(root: str, directory: str, after: int, *, keeps: bool) -> str:
    """Creates a snapshot; returns its name. After an OSError, its entry remains until the next sweep."""
    own = f"{PREFIX}{open_existing(root).id[:8]}-{after:012d}-"
    before = [each.name for each in made_snapshots(root) if each.name.startswith(own)]
    number = int(before[-1].removeprefix(own).partition("-")[0]) + 1 if before else 0
    name = f"{own}{number:04d}-{uuid.uuid4().hex[:8]}"
    entry = SnapshotEntry(VERSION, name, directory, after, keeps)
    (Place(root) / PLACE / name).write_bytes(msgspec.json.encode(entry) + b"\n")
    create_snapshot(directory, name)
    return name


def made_snapshots(root: str) -> list[SnapshotEntry]:
    """Returns all snapshots that may exist, by creation. Raises FormatError for an entry that cannot be read."""
    place = Place(root) / PLACE
    return [_read(place, name) for name in sorted(place.list()) if name.startswith(PREFIX)]


def drop_snapshots(root: str, entries: Collection[SnapshotEntry]) -> list[str]:
    """Deletes snapshots, then their entries. May run twice. Returns the reasons why some could not be deleted; the next
    sweep tries these again."""
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
    """Deletes snapshots that are not required: they are not `compared` with the next, and no file entry published by a
    capture refers to them. `position`: up to which captures have published. Returns reasons as above."""
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
    if entry.name != name:  # perhaps a snapshot of another owner, which would be deleted
        raise FormatError(
            f"{place}: names another snapshot, {entry.name!r}", hint=f"remove it, and the snapshot {name!r}"
        )
    return entry


# ---- the metastore's change manager ----------------------------------------------------------------------------------
# Native: the metastore's own change manager moves dropped files into a `$cmroot` of its own; the replicator only
# records their checksums.
#
# Its rules (Hive's ReplChangeManager): one flat directory; a file is named by its HDFS checksum, from Hive 3 on
# `<name>_<checksum>`; its cleaner removes files older than `hive.repl.cm.retain`. The replicator only reads there.


NATIVE_MARK = "hive-cm:"
"""The prefix of a `version` that the metastore retains after a drop: `hive-cm:<HDFS's checksum>@<its root>`."""

_LONGEST = 254
"""Maximum length of a name in the metastore's root, in bytes; the metastore truncates longer names."""


_IN_ZONE = "is in an encryption zone, out of which the metastore cannot move files"


@dataclass(frozen=True)
class ChangeManager:
    """The configuration of a metastore's change manager. `place`: its root; without an authority, on the metastore's
    default filesystem. `retain`: as configured, such as `24h`; `why_not`: the reason why it retains nothing;
    `managed_only`: whether it retains nothing of external tables (since Hive 3)."""

    place: str = ""
    retain: str = ""
    why_not: str = ""
    managed_only: bool = False

    def root_for(self, location: str) -> str:
        """Returns its root; on the store of the location if the root has no authority."""
        if "://" in self.place:
            return self.place
        return join(split_authority(normal(location))[0], self.place.removeprefix("file:"))


def why_no_native(manager: ChangeManager | None, location: str) -> str:
    """Returns "" if the metastore retains files that it drops at a location and they can be read; else the reason."""
    if scheme(location) not in SCHEMES:
        return "the metastore recognizes files by HDFS checksums, which other stores do not have"
    if manager is None:
        return "no metastore was queried"
    if manager.why_not:
        return manager.why_not
    root = manager.root_for(location)
    if split_authority(normal(root))[0] != split_authority(normal(location))[0]:
        return f"hive.repl.cmrootdir is {root}, on another store: the metastore cannot move files there"
    try:
        if not Place(root).exists():
            return f"{root} (hive.repl.cmrootdir) does not exist"
        Place(root).list()
        if in_zone(location):
            return _IN_ZONE
    except FileNotFoundError:  # the location does not exist yet
        return ""
    except OSError as error:
        return f"{error.filename or root}: {error.strerror or error}"
    return ""


def is_native(version: str | None) -> bool:
    return version is not None and version.startswith(NATIVE_MARK)


def native_size(path: str, version: str) -> int:
    """Returns the bytes of a file retained by the metastore, or not dropped. Raises FileNotFoundError if neither."""
    return _found_native(path, version).size()


def open_native(path: str, version: str) -> BinaryIO:
    """Opens such a file. Raises FileNotFoundError as above: the cleaner or another process removed it."""
    return _found_native(path, version).open_stream()


@dataclass(frozen=True)
class NativeKeeper:
    """A keeper that relies on the metastore: bytes are read once, for their checksum, and never copied.

    Protects against removals by the metastore (drops; from Hive 3 on truncates and overwrites by Hive), until its
    cleaner removes the files. Does not protect against removals by Spark or a shell.
    """

    manager_root: str
    name: ClassVar[str] = "native"

    def keep(self, path: str) -> Kept:
        if in_zone(path):  # a zone may begin below a location that was checked
            raise KeepError(f"{path}: {_IN_ZONE}", hint="choose another keeper")
        for _ in range(ATTEMPTS):
            kept = read_object(path)
            checksum = hdfs_checksum(path)
            now = file_state(path)
            if (now.identity, now.mtime_ns, now.size) == (kept.identity, kept.mtime_ns, kept.size):
                return msgspec.structs.replace(kept, version=f"{NATIVE_MARK}{checksum}@{self.manager_root}")
        raise unsteady(path)


def _found_native(path: str, version: str) -> Place:
    checksum, _, root = version.removeprefix(NATIVE_MARK).partition("@")
    for name in (checksum, f"{name_of(path)}_{checksum}"[:_LONGEST]):
        place = Place(root) / name
        if place.exists():
            return place
    if hdfs_checksum(path) != checksum:
        raise FileNotFoundError(f"{path}: {root} does not have it, and its content has changed")
    return Place(path)
