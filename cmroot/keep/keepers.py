"""Keepers: the ways to retain the bytes of a live file (hard link, bucket version, HDFS snapshot, copy), and the choice
of one that a store supports. Recycling, re-exported here, is for files that the replicator removes itself. The times of
a retained file are never changed, because a link shares them with its source.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Protocol

import msgspec

from cmroot.errors import KeepError, NotWritable, UnknownPlace
from cmroot.keep.content import (
    Kept,
    content_name,
    file_by_copy,
    file_by_link,
    fresh_incoming,
    is_kept,
    locate,
    opened,
    read_steadily,
)
from cmroot.keep.hdfs_keepers import ChangeManager, NativeKeeper, SnapshotKeeper, why_no_native
from cmroot.keep.recycle import Record, Recycled, Swept, recycle, recycle_tree, sweep_incoming
from cmroot.keep.remote_files import keep_object, read_object
from cmroot.keep.versions import VersionKeeper, noncurrent_days, why_unversioned
from cmroot.store.drivers import NO_PERMISSION
from cmroot.store.hdfs import SCHEMES
from cmroot.store.hudi import is_replaced_in_place
from cmroot.store.local import raise_unless_gone, same_device, status_of
from cmroot.store.place import Place, is_local, local_path, scheme
from cmroot.store.spelling import naming

# ---- capability ------------------------------------------------------------------------------------------------------
# Capabilities of a root and a store, found by trying: links, and writing.
#
# Each function returns the reason why not; an empty reason means yes. Versioning of buckets is checked in `versions`.


PROBE = "probe"  # prefix of the names of probes; a sweep removes those left by a crash
EXAMINED = 2_000  # entries at and below a location, in search of a file


def why_no_link(root: str, location: str) -> str:
    """Tries a link from the root to the first file below a location, or to a file created for this when there is none.
    Returns the reason why it failed. Raises NotWritable or NoSpace when the root cannot be written at all."""
    if not (is_local(root) and is_local(location)):
        return "links need a local filesystem"
    if not same_device(root, location):
        return "they are on different devices"
    root = local_path(root)
    with naming(root):
        own = fresh_incoming(root, PROBE)
        linked = own + "-linked"
        example = _first_file(local_path(location))
        try:
            if example is None:
                os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.link(os.path.realpath(example or own), linked)
        except FileNotFoundError:
            return ""  # the example vanished, as files in a live warehouse do; the devices are equal
        except OSError as error:
            return error.strerror or str(error)
        finally:
            for path in (own, linked):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    return ""


def why_no_copy(root: str) -> str:
    """Tries to write a small file into the root, and removes it. Raises NoSpace when it is full, which is transient."""
    try:
        files = Place(root) / "files"
        if files.local and not os.access(_nearest(files.local), os.W_OK | os.X_OK):
            return f"{files}: this user cannot write there"
        probe = Place(fresh_incoming(root, PROBE))
        probe.write_bytes(b"written to see whether this can be written\n")
        probe.remove_own()
    except (NotWritable, UnknownPlace) as error:
        return error.message
    except NotImplementedError as error:  # stores that fsspec can only read
        return f"{root}: cannot be written ({error or type(error).__name__})"
    return ""


def _nearest(path: str) -> str:
    """Returns the path, or the nearest directory above it that exists."""
    while status_of(path) is None:
        path = os.path.dirname(path)
    return path


def _first_file(location: str) -> str | None:
    """Returns a file below a location, if there is one among the first entries: a table may have very many partitions
    without any."""
    return next(filter(None, islice(_entries(location), EXAMINED)), None)


def _entries(directory: str) -> Iterator[str | None]:
    """Yields the entries at and below a directory as it is read: the path of a file, None for others."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_file = not entry.name.startswith(".") and not os.path.isdir(entry.path)
                yield entry.path if is_file else None
                if not is_file and entry.is_dir(follow_symlinks=False):
                    yield from _entries(entry.path)
    except OSError as error:
        raise_unless_gone(error)


# ---- keepers ---------------------------------------------------------------------------------------------------------


__all__ = [
    "CopyKeeper",
    "Keeper",
    "Kept",
    "LinkKeeper",
    "NativeKeeper",
    "NoKeeper",
    "Record",
    "Recycled",
    "SnapshotKeeper",
    "Swept",
    "VersionKeeper",
    "choose_keeper",
    "content_name",
    "is_kept",
    "locate",
    "recycle",
    "recycle_tree",
    "sweep_incoming",
]


class Keeper(Protocol):
    """A keeper that retains the bytes of one file. A value: may be pickled, and used by many threads and processes."""

    name: ClassVar[str]

    def keep(self, path: str) -> Kept:
        """Retains a file. May run twice. Raises FileNotFoundError if the file did not exist when it was opened,
        KeepError if it could not be retained; the source is unchanged."""


@dataclass(frozen=True)
class LinkKeeper:
    """A hard link per content: no bytes are copied, and they remain when the source is unlinked or replaced.

    Root and source are on one local filesystem. Does not protect against writing into a source file in place; files of
    Hudi tables that are replaced so are copied. A file that cannot be linked (too many links, another owner's) or was
    unlinked concurrently is copied instead. Durable
    after `Store.sync(root)`, once for any number of files: the captured log does it before its marker.
    """

    root: str
    name: ClassVar[str] = "link"

    def keep(self, path: str) -> Kept:
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            if is_replaced_in_place(path):
                return file_by_copy(local_path(self.root), descriptor, path)
            kept = read_steadily(descriptor, path)
            file_by_link(local_path(self.root), descriptor, kept)
            return msgspec.structs.replace(kept, changed_ns=os.fstat(descriptor).st_ctime_ns)


@dataclass(frozen=True)
class CopyKeeper:
    """A copy per content, for another device or store: written to a staging file in `incoming/` while it is hashed,
    synced, then renamed to its content name. Protects against writing in place too."""

    root: str
    name: ClassVar[str] = "copy"

    def keep(self, path: str) -> Kept:
        if not (is_local(path) and is_local(self.root)):
            return keep_object(self.root, path)
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            return file_by_copy(local_path(self.root), descriptor, path)


@dataclass(frozen=True)
class NoKeeper:
    """A keeper that only computes checksums. Files dropped at the source before they are copied are lost, by choice."""

    name: ClassVar[str] = "none"

    def keep(self, path: str) -> Kept:
        if not is_local(path):
            return read_object(path)
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            return read_steadily(descriptor, path)


def choose_keeper(
    root: str,
    example_location: str,
    requested: str = "auto",
    *,
    tell: Callable[[str], None] = lambda _: None,
    manager: Callable[[], ChangeManager] | None = None,
    snapshots: Callable[[str], SnapshotKeeper | str] | None = None,
) -> Keeper:
    """Returns the keeper for files like those below `example_location`: a link where one can be created, the store's
    own versions where the bucket has them, a snapshot where possible, else a copy. All are tried, none assumed.

    `requested` is auto, link, version, snapshot, native, copy or none. Raises KeepError when the requested keeper is
    unavailable, or when nothing can be retained at all: none is chosen only on request, and so is native, which retains
    only files that the metastore itself drops. `tell` is called with one line that the operator should know about the
    choice; it is not an error. `manager` queries the metastore for its change manager; `snapshots` creates the keeper
    of a location on HDFS, or returns why there is none.
    """
    match requested:
        case "none":
            return NoKeeper()
        case "link":
            reason = why_no_link(root, example_location)
            if reason:
                raise _cannot(
                    example_location, f"be linked into {root}: {reason}", "put $cmroot on the same filesystem"
                )
            return LinkKeeper(root)
        case "version":
            reason = why_unversioned(example_location)
            if reason:
                hint = "enable the bucket's versioning"
                raise _cannot(example_location, f"be kept by version: {reason}", hint)
            return _by_version(root, example_location, tell)
        case "snapshot":
            return _by_snapshot(example_location, snapshots)
        case "native":
            return _by_metastore(example_location, tell, manager)
        case "copy":
            reason = why_no_copy(root)
            if reason:
                raise _cannot(example_location, f"be copied into {root}: {reason}", "make $cmroot writable")
            return CopyKeeper(root)
        case "auto":
            return _best(root, example_location, tell, snapshots)
    hint = "choose auto, link, version, snapshot, native, copy or none"
    raise KeepError(f"{requested!r} is not a keeper", hint=hint)


def _best(
    root: str, location: str, tell: Callable[[str], None], snapshots: Callable[[str], SnapshotKeeper | str] | None
) -> Keeper:
    try:
        no_link = why_no_link(root, location)
    except NotWritable as error:
        no_link = error.message
    if not no_link:
        return LinkKeeper(root)
    no_versions = why_unversioned(location)
    if not no_versions:
        return _by_version(root, location, tell)
    if snapshots and scheme(location) in SCHEMES and not isinstance(snapshot := snapshots(location), str):
        return snapshot
    no_copy = why_no_copy(root)
    if no_copy:
        raise KeepError(
            f"{location}: files dropped here could not be kept in {root}: no link ({no_link}), no versions"
            f" ({no_versions}), no copy ({no_copy})",
            hint="make $cmroot writable, move it elsewhere, or enable the bucket's versioning; --keeper none captures"
            " without keeping anything",
        )
    if no_versions.startswith(NO_PERMISSION):
        tell(f"{location}: files are copied into {root}: {no_versions}")
    elif is_local(root) and is_local(location):
        tell(
            f"{location}: bytes are kept by copy, which uses their space a second time ({no_link}): put $cmroot on the "
            "warehouse's own filesystem to keep them by hard link"
        )
    return CopyKeeper(root)


def _by_version(root: str, location: str, tell: Callable[[str], None]) -> Keeper:
    try:
        days = noncurrent_days(location)
    except PermissionError:
        days = None
        tell(
            f"{location}: cannot check if a lifecycle rule of the bucket removes old versions"
            f" ({'s3:GetLifecycleConfiguration' if scheme(location) == 's3' else 'storage.buckets.get'})"
        )
    if days is not None:
        tell(f"{location}: a lifecycle rule of the bucket removes old versions after {days} days, even if needed")
    return VersionKeeper(root)


def _by_snapshot(location: str, snapshots: Callable[[str], SnapshotKeeper | str] | None) -> Keeper:
    found = snapshots(location) if snapshots and scheme(location) in SCHEMES else "only HDFS has snapshots"
    if isinstance(found, str):
        hint = "run hdfs dfsadmin -allowSnapshot DIRECTORY, and capture as its owner"
        raise _cannot(location, f"be kept by snapshot: {found}", hint)
    return found


def _by_metastore(location: str, tell: Callable[[str], None], manager: Callable[[], ChangeManager] | None) -> Keeper:
    said = manager() if manager and scheme(location) in SCHEMES else None
    reason = why_no_native(said, location)
    if reason or said is None:
        hint = (
            "set hive.repl.cm.enabled and hive.repl.cmrootdir in the metastore, and let this user read that directory"
        )
        raise _cannot(location, f"be kept by the metastore: {reason}", hint)
    whose = "of managed tables " if said.managed_only else ""
    tell(
        f"{location}: only files {whose}dropped by the metastore itself are kept, in {said.root_for(location)}, and "
        f"removed there after {said.retain or 'its retention'} (hive.repl.cm.retain), even if needed"
    )
    return NativeKeeper(said.root_for(location))


def _cannot(location: str, what: str, hint: str) -> KeepError:
    return KeepError(f"{location}: files here cannot {what}", hint=f"{hint}, or choose another keeper")
