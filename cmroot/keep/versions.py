"""Versions: a bucket with versioning (S3, GCS) retains overwritten and deleted objects; only versions are recorded.

Checks whether a bucket does so, reads an object at a version, and provides the keeper that copies nothing. Versions are
read by ranged requests of the ordinary filesystem: a `version_aware` one would also list versions everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

import msgspec

from cmroot.errors import ChecksumMismatch, Exists, KeepError, NotWritable
from cmroot.keep.content import Kept, content_name, locate
from cmroot.keep.hdfs_keepers import (
    is_in_snapshot,
    is_native,
    native_size,
    open_in_snapshot,
    open_native,
    snapshot_size,
    snapshots_above,
)
from cmroot.keep.remote_files import keep_object
from cmroot.store.checksum import ALGORITHM, checksum_at, checksum_stream, copy_file, copy_stream
from cmroot.store.drivers import (
    GCS,
    NO_PERMISSION,
    UNVERSIONED,
    generation_info,
    generations,
    noncurrent_days_of,
    read_generation,
    remove_generation,
    why_no_generations,
)
from cmroot.store.hdfs import SCHEMES
from cmroot.store.listing import object_state
from cmroot.store.local import LocalStore, staging_name, sync_directory
from cmroot.store.place import Place, as_written, normal, remote_store, scheme
from cmroot.store.spelling import naming

NULL = "null"
"""S3's version id of an object that was written while its bucket had no versioning. It is retained like any other while
versioning is enabled, and overwritten like any object when versioning is suspended."""

BLOCK = 8 * 1024 * 1024
"""Bytes of one ranged request."""

MANY = 1000
"""The number of versions that S3 removes with one request."""

_NOT_KNOWN_THERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of S3-compatible stores that have no versioning."""


_READING = ("s3:GetObjectVersion", "storage.objects.get")


def keeps_versions(place: str) -> bool:
    """Returns True if the place is in a bucket that can retain versions."""
    return scheme(place) == "s3" or scheme(place) in GCS


def why_unversioned(location: str) -> str:
    """Returns "" if the bucket of a location has versioning enabled, else the reason why versions cannot be relied on.
    Missing permission to query it counts as a reason."""
    if scheme(location) in GCS:
        return why_no_generations(_filesystem(location), _bucket(location))
    if scheme(location) != "s3":
        return "only S3 and GCS versions are supported by this release"
    try:
        answer = _call(location, "get_bucket_versioning", Bucket=_bucket(location))
    except PermissionError:
        return f"{NO_PERMISSION} to read the bucket's versioning (s3:GetBucketVersioning)"
    except FileNotFoundError:
        return "the bucket does not exist"
    except OSError as error:
        if error.errno not in _NOT_KNOWN_THERE:
            raise
        return f"the store has no versioning: {error.strerror or error}"
    match answer.get("Status"):
        case "Enabled":
            return ""
        case "Suspended":
            return "the bucket's versioning is suspended"
    return UNVERSIONED


def noncurrent_days(location: str) -> int | None:
    """Returns the minimum number of days after which a lifecycle rule of the bucket removes noncurrent versions; None
    when there is no such rule. A rule for one prefix counts for all. Raises PermissionError when the rules may not be
    read."""
    if scheme(location) in GCS:
        return noncurrent_days_of(_filesystem(location), _bucket(location))
    try:
        answer = _call(location, "get_bucket_lifecycle_configuration", Bucket=_bucket(location))
    except PermissionError:
        raise
    except OSError:  # there is no such rule
        return None
    days = [
        rule["NoncurrentVersionExpiration"].get("NoncurrentDays")
        for rule in answer.get("Rules", ())
        if rule.get("Status") == "Enabled" and "NoncurrentVersionExpiration" in rule
    ]
    return min((int(each) for each in days if each is not None), default=None)


class OldVersion(NamedTuple):
    """A version that is not its object's current one."""

    path: str
    version: str
    size: int


def old_versions(place: str, *, named: bool = False) -> Iterator[OldVersion]:
    """Yields the versions at and below a place that are not current or whose object is deleted; with `named` only at
    it. One request per thousand. Yields none without versioning or the right to list (`why_versions_unseen`)."""
    if not keeps_versions(place):
        return
    bucket, _, key = remote_store(place).key(place).rstrip("/").partition("/")
    top, prefix = normal(place).rstrip("/"), key if named or not key else f"{key}/"
    if scheme(place) in GCS:
        with naming(place), contextlib.suppress(FileNotFoundError, PermissionError):
            for each in generations(_filesystem(place), bucket, prefix):
                below = each.key[len(bucket) + 1 + len(key) :]
                if not each.current and not (named and below):
                    yield OldVersion(top + (below if key else f"/{below}"), each.generation, each.size)
        return
    about = {"Bucket": bucket, "Prefix": prefix}
    while True:
        with naming(place):
            try:
                answer = _call(place, "list_object_versions", **about)
            except (FileNotFoundError, PermissionError):
                return
            except OSError as error:
                if error.errno not in _NOT_KNOWN_THERE:
                    raise
                return
        for found in answer.get("Versions", ()):
            below = found["Key"][len(key) :]
            if not found["IsLatest"] and not (named and below):
                yield OldVersion(top + (below if key else f"/{below}"), found["VersionId"], int(found["Size"]))
        if not answer.get("IsTruncated"):
            return
        about |= {"KeyMarker": answer["NextKeyMarker"], "VersionIdMarker": answer.get("NextVersionIdMarker", "")}


def drop_versions(versions: Sequence[OldVersion]) -> None:
    """Removes versions of one bucket permanently; missing ones are no error. Raises NotWritable when one is refused."""
    if not versions:
        return
    place = versions[0].path
    store = remote_store(place)
    if scheme(place) in GCS:
        with ThreadPoolExecutor(store.at_once) as pool:
            list(pool.map(_drop_generation, versions))
        return
    for start in range(0, len(versions), MANY):
        named = [
            {"Key": store.key(old.path).partition("/")[2], "VersionId": old.version}
            for old in versions[start : start + MANY]
        ]
        with naming(place):
            answer = _call(place, "delete_objects", Bucket=_bucket(place), Delete={"Objects": named, "Quiet": True})
        for refused in answer.get("Errors", ()):
            if refused.get("Code") != "NoSuchVersion":
                raise NotWritable(
                    f"{_bucket(place)}/{refused.get('Key')} at version {refused.get('VersionId')} could not be removed:"
                    f" {refused.get('Message') or refused.get('Code')}",
                    hint="allow s3:DeleteObjectVersion on the bucket, check its objects for locks, or let a lifecycle"
                    " rule remove old versions",
                )


def _drop_generation(old: OldVersion) -> None:
    store = remote_store(old.path)
    with naming(old.path), contextlib.suppress(FileNotFoundError):
        remove_generation(store.filesystem, store.key(old.path), old.version)


def why_versions_unseen(location: str) -> str:
    """Returns why the versions in the bucket of a location cannot be listed; "" if they can be, or there are none."""
    if scheme(location) in GCS:
        try:
            with naming(location):
                next(generations(_filesystem(location), _bucket(location), ""), None)
        except NotWritable:
            without = why_unversioned(location) == UNVERSIONED
            return "" if without else f"generations of {_bucket(location)} cannot be listed (storage.objects.list)"
        except FileNotFoundError:
            pass
        return ""
    if scheme(location) in SCHEMES:
        top = snapshots_above(location)
        return f"snapshots of {top} may have earlier contents, which are not checked" if top else ""
    if scheme(location) != "s3":
        return ""
    try:
        with naming(location):
            _call(location, "list_object_versions", Bucket=_bucket(location), MaxKeys=1)
    except NotWritable:
        without = why_unversioned(location) == UNVERSIONED
        return "" if without else f"versions of {_bucket(location)} cannot be listed (s3:ListBucketVersions)"
    except OSError as error:
        if error.errno not in (errno.ENOENT, *_NOT_KNOWN_THERE):
            raise
    return ""


def version_size(path: str, version: str) -> int:
    """Returns the bytes of an object at a version. Raises FileNotFoundError when the version is missing."""
    if is_native(version):
        return native_size(path, version)
    if is_in_snapshot(version):
        return snapshot_size(path, version)
    return int(_head(path, version)["size"])


def open_version(path: str, version: str, size: int | None = None) -> BinaryIO:
    """Opens an object at a version, whatever its current content. `size`: if known, saves a request. Raises
    FileNotFoundError when the version does not exist (any more), NotWritable without s3:GetObjectVersion."""
    if is_native(version):
        return open_native(path, version)
    if is_in_snapshot(version):
        return open_in_snapshot(path, version)
    length = version_size(path, version) if size is None else size
    return io.BufferedReader(_Version(path, version, length), BLOCK)


@dataclass(frozen=True)
class VersionKeeper:
    """A keeper that uses the versions in the bucket: bytes are read once, for their checksum, and never copied.

    Protects against any delete and overwrite once the object was seen: the file entry contains its version. Does not
    protect against the deletion of versions by users or lifecycle rules. An object whose version does not exist any
    more is copied into the root instead.
    """

    root: str
    name: ClassVar[str] = "version"

    def keep(self, path: str) -> Kept:
        head = _head(path)
        state = object_state(path, head)
        version = str(head["generation"] if scheme(path) in GCS else head.get("VersionId") or NULL)
        try:
            with open_version(path, version, state.size) as source:
                checksum, size = checksum_stream(source)
        except FileNotFoundError:  # removed since, or unavailable under that name
            return keep_object(self.root, path)
        except NotWritable as error:
            raise KeepError(
                f"{path}: cannot be read at its version {version}: {error.message}",
                hint=f"allow {_READING[scheme(path) in GCS]} on the bucket, or choose the copy keeper",
            ) from error
        return Kept(size, state.mtime_ns, state.identity, ALGORITHM, checksum, version)


class _Version(io.RawIOBase):
    """One object at one version, read by ranged requests; the filesystem retries each request that breaks off."""

    def __init__(self, path: str, version: str, size: int) -> None:
        self._path, self._version, self._size, self._at = path, version, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if self._at >= end:
            return 0
        store = remote_store(self._path)
        with naming(self._path):
            if scheme(self._path) in GCS:
                block = read_generation(store.filesystem, store.key(self._path), self._version, self._at, end)
            else:
                block = store.filesystem.cat_file(
                    store.key(self._path), version_id=self._version, start=self._at, end=end
                )
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def _head(path: str, version: str = "") -> dict[str, Any]:
    """Returns what the store reports for an object, with the keys used in listings."""
    if scheme(path) in GCS:
        with naming(path):
            return generation_info(_filesystem(path), remote_store(path).key(path), version)
    bucket, _, key = remote_store(path).key(path).partition("/")
    about = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
    with naming(path):
        try:
            answer = _call(path, "head_object", **about)
        except OSError as error:
            if version and error.errno == errno.EINVAL:  # not a version id of this store's format
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{path} at {version}") from error
            raise
    return {**answer, "size": answer["ContentLength"]}


def _call(place: str, operation: str, **arguments: Any) -> dict[str, Any]:
    return cast(dict[str, Any], remote_store(place).filesystem.call_s3(operation, **arguments))


def _filesystem(location: str) -> Any:
    return remote_store(location).filesystem


def _bucket(location: str) -> str:
    return remote_store(location).key(location).partition("/")[0]


# ---- restoring one file ----------------------------------------------------------------------------------------------
# Restoring one retained file: from `files/`, or from the version that its bucket retains. Not entire tables.


class FileRestored(msgspec.Struct, frozen=True):
    """A file that was restored: its path, and the source of its bytes."""

    place: str
    origin: str
    size: int
    checksum: str


def restore_file(
    root: str, checksum: str, size: int, to: str, *, overwrite: bool = False, version: tuple[str, str] | None = None
) -> FileRestored:
    """Copies one content of a root to a place: hashed and read back, written to a staging file and then renamed.

    `version`: (path, version id) where the bucket retains the bytes. Raises Exists for a file that exists already
    (unless `overwrite`; on a store without conditional writes a file created concurrently is replaced), KeepError when
    the bytes are not retained, ChecksumMismatch when the retained file is damaged: then nothing was written. May run
    again.
    """
    place = as_written(to)
    to = str(place)
    if not overwrite and place.exists():
        raise _exists(to)
    origin = locate(root, checksum, size)
    if place.local:
        with naming(to):
            return _to_local(root, origin, checksum, size, to, overwrite, version)
    with _opened(root, origin, checksum, size, version) as (name, source), place.open_write() as target:
        _compare(name, copy_stream(source, target), (checksum, size))  # an error leaves nothing
    try:
        _compare(to, checksum_at(to), (checksum, size))
    except ChecksumMismatch:
        place.remove()
        raise
    return FileRestored(to, name, size, checksum)


def _to_local(
    root: str, origin: str, checksum: str, size: int, to: str, overwrite: bool, version: tuple[str, str] | None
) -> FileRestored:
    LocalStore().mkdirs(os.path.dirname(to))
    staged = staging_name(to)
    name = origin
    try:
        try:
            if not (kept := Place(origin).local):
                raise FileNotFoundError
            found = copy_file(kept, staged, reread=True)
        except FileNotFoundError:
            with _opened(root, origin, checksum, size, version) as (name, source), open(staged, "xb") as target:
                found = copy_stream(source, target)
        _compare(name, found, (checksum, size))
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if overwrite:
            os.replace(staged, to)
        else:
            os.link(staged, to)  # unlike a rename it replaces nothing
    except FileExistsError:
        raise _exists(to) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)
    sync_directory(os.path.dirname(to))
    return FileRestored(to, name, size, checksum)


@contextlib.contextmanager
def _opened(
    root: str, origin: str, checksum: str, size: int, version: tuple[str, str] | None
) -> Iterator[tuple[str, BinaryIO]]:
    """Yields a name for the source of the retained bytes, and a stream of them."""
    try:
        source, name = Place(origin).open_read(), origin
    except FileNotFoundError:
        if version is None:
            raise _not_kept(root, checksum, size) from None
        try:
            source, name = open_version(*version, size), f"{version[0]} at version {version[1]}"
        except FileNotFoundError:
            raise _not_kept(root, checksum, size) from None
    with source:
        yield name, source


def _compare(name: str, found: tuple[str, int], wanted: tuple[str, int]) -> None:
    if found != wanted:
        raise ChecksumMismatch(
            f"{name}: holds {found[1]} bytes with xxh3_128 {found[0]}, not the {wanted[1]} bytes with {wanted[0]}",
            hint="a check of the root lists the damaged files, and where the bytes may still exist",
        )


def _not_kept(root: str, checksum: str, size: int) -> KeepError:
    return KeepError(
        f"{root}: does not keep {content_name(checksum, size)}",
        hint="it expired, or was never kept; find it in the log for its location at the source",
    )


def _exists(to: str) -> Exists:
    return Exists(f"{to}: a file already exists", hint="choose another path, or allow its replacement")
