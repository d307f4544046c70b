"""Places and stores: what a path or URL means, and the few operations a store must offer.

A place is a local path (`/w/t`), a `file:` URI (`file:/w/t`, `file:///w/t`) or a URL that fsspec knows (`s3a://b/t`).
Hadoop writes names into URIs as they are, so nothing here ever unquotes: `file:/w/p=a%20b` is a directory called
`p=a%20b`. Publishing lives here too (write aside, sync, rename); checksums, listings and keeping do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, Protocol

from cmroot.errors import Error, NoSpace, NotWritable, UnknownPlace

Names = list[str]  # the stores below have a method called list

ASIDE = ".aside-"
"""Names of files being written. They begin with a dot, so listings and Hive skip them; nothing reads them."""


class Store(Protocol):
    """What this package asks of a store. Paths are whole places. A missing file is FileNotFoundError."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Publish a file: readers see the old content or the new, never a part. Parents are created."""

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Publish a file only if the name is free; True for exactly one of several callers."""

    def open_read(self, path: str) -> BinaryIO: ...

    def open_write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a file piece by piece: published when the block ends, nothing left when it raises."""

    def exists(self, path: str) -> bool:
        """False only when the store says that there is nothing; an answer that cannot be had is raised."""

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> Names:
        """Names directly below, sorted, without those being written; [] when there is no such directory."""

    def find(self, path: str) -> Names:
        """Relative names of all files below, sorted, without those being written; [] when there is none."""

    def move(self, path: str, target: str) -> None:
        """Give a file another name in the same store, replacing what is there. Object stores copy, then remove."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error, so it may run twice."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below; a missing one is no error, so it may run twice."""

    def mkdirs(self, path: str) -> None:
        """Make a directory and its parents; nothing to do on an object store."""

    def sync(self, path: str) -> None:
        """Make everything written so far on this place's filesystem durable; nothing to do on an object store."""


# Places as text


def scheme(place: str) -> str:
    """`file` for local paths, else the URL's scheme with `s3a` and `s3n` read as `s3`."""
    if place.startswith(("/", "file:")):
        return "file"
    head, separator, _ = place.partition("://")
    if not separator or "/" in head:
        return "file"
    return {"s3a": "s3", "s3n": "s3", "local": "file"}.get(head, head)


def is_local(place: str) -> bool:
    return scheme(place) == "file"


def local_path(place: str) -> str:
    """The absolute path of a local place, without a trailing slash. Raises UnknownPlace for other stores."""
    if place.startswith("/"):
        path = place
    elif place.startswith(("file:", "local:")):
        path = place.partition(":")[2]
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise UnknownPlace(f"{place}: a file: URI cannot name the host {host!r}", hint="write file:///path")
            path = "/" + rest
        if not path.startswith("/"):
            raise UnknownPlace(f"{place}: a file: URI needs an absolute path", hint="write file:///path")
    elif is_local(place) and place:
        path = os.path.abspath(place)
    else:
        raise UnknownPlace(f"{place!r} is not on a local filesystem", hint="give a path or a file: URI")
    if path.endswith("/") or "//" in path:  # Hadoop's Path does the same
        path = "/" + "/".join(part for part in path.split("/") if part)
    return path


def normal(place: str) -> str:
    """One spelling per place: the absolute path of a local one, else the URL fsspec knows, no trailing slash."""
    if is_local(place):
        return local_path(place)
    return f"{scheme(place)}://{place.partition('://')[2].rstrip('/')}"


def join(place: str, *parts: str) -> str:
    """A place below another; its spelling is kept, empty parts are left out."""
    names = [part.strip("/") for part in parts if part.strip("/")]
    if not names:
        return place
    return "/".join([_without_slash(place), *names])


def parent(place: str) -> str:
    """The place above; a filesystem's root or a bucket is its own parent."""
    trimmed = _without_slash(place)
    head, path = split_authority(trimmed)
    if not path.strip("/"):
        return place
    above = head + path.rpartition("/")[0]
    return above + "/" if above in ("", "file:", "local:", "file://") else above


def name_of(place: str) -> str:
    """The last name of a place."""
    return _without_slash(place).rpartition("/")[2]


def same_store(a: str, b: str) -> bool:
    """Whether one store holds both: two local places, or two URLs of the same scheme and bucket or host.

    Two local places may still lie on two devices; `same_device` tells.
    """
    if scheme(a) != scheme(b):
        return False
    if is_local(a):
        return True
    return a.partition("://")[2].split("/", 1)[0] == b.partition("://")[2].split("/", 1)[0]


def status_of(path: str, *, follow: bool = True) -> os.stat_result | None:
    """What a local path names; None when there is nothing. Only ENOENT and ENOTDIR say so: any other error (a failing
    disk, a stale handle, a directory that this user may not search) is raised, since it says nothing."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise_named(error, path)


def is_directory(path: str, *, follow: bool = True) -> bool:
    """Of a local path. Raises as `status_of`."""
    status = status_of(path, follow=follow)
    return status is not None and stat.S_ISDIR(status.st_mode)


def same_device(a: str, b: str) -> bool:
    """Whether two places, or their nearest existing parents, lie on one local device: links and renames may work."""
    return is_local(a) and is_local(b) and device(a) == device(b)


def device(place: str) -> int:
    """The number of the device that holds a local place, or the nearest parent that exists."""
    path = local_path(place)
    while True:
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def _without_slash(place: str) -> str:
    head, path = split_authority(place)
    return head + path.rstrip("/")


def split_authority(place: str) -> tuple[str, str]:
    """("s3://bucket", "/a/b"), ("file:", "/a"), ("file://", "/a"), ("", "/a")."""
    head, separator, rest = place.partition("://")
    if separator and "/" not in head:
        authority, slash, path = rest.partition("/")
        return f"{head}://{authority}", slash + path
    if place.startswith(("file:", "local:")):
        head, _, path = place.partition(":")
        return head + ":", path
    return "", place


# Errors


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turns errors of the operating system that a person must act on into ours, with the path and a hint.

    A missing file stays FileNotFoundError, an existing one FileExistsError: callers decide on those.
    """
    try:
        yield
    except OSError as error:
        raise_named(error, path)


def raise_named(error: OSError, path: str) -> NoReturn:
    """What `naming` does, for loops in which a context manager per file would be felt."""
    better = _named(error, path)
    if better is None:
        raise error
    raise better from error


def _named(error: OSError, path: str) -> Error | None:
    culprit = error.filename2 or error.filename  # of a link or rename, the new name
    what = f"{culprit if isinstance(culprit, str) else path}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace(what, hint="free space or raise the quota, then run the same command again")
        case errno.EACCES | errno.EPERM:
            return NotWritable(what, hint=_ALLOW)
        case errno.EROFS:
            return NotWritable(what, hint="the mount is read-only: remount it, or choose another place")
        case errno.ENOTDIR:
            return NotWritable(what, hint="a parent of this path is a file, not a directory: choose another place")
    if isinstance(error, PermissionError):  # of a store that has no error numbers
        return NotWritable(what, hint=_ALLOW)
    return None


_ALLOW = "give this user the right to read and write there, or choose another place"


# The local filesystem


@dataclass(frozen=True)
class LocalStore:
    """A POSIX filesystem. Publishing survives a crash: file and directory are synced."""

    def read_bytes(self, path: str) -> bytes:
        with naming(path), open(local_path(path), "rb") as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        with self.open_write(path) as file:
            file.write(data)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        target = local_path(path)
        with naming(path):
            aside = self._write_aside(target, data)
            try:
                os.link(aside, target)  # the name appears with all its bytes, for one caller only
            except FileExistsError:
                return False
            finally:
                os.unlink(aside)
            sync_directory(os.path.dirname(target))
            return True

    def open_read(self, path: str) -> BinaryIO:
        with naming(path):
            return open(local_path(path), "rb")

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        target = local_path(path)
        with naming(path):
            self.mkdirs(os.path.dirname(target))
            aside = aside_name(target)
            try:
                with open(aside, "xb", buffering=1 << 18) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                raise
            sync_directory(os.path.dirname(target))

    def exists(self, path: str) -> bool:
        return status_of(local_path(path)) is not None

    def size(self, path: str) -> int:
        with naming(path):
            return os.stat(local_path(path)).st_size

    def list(self, path: str) -> Names:
        try:
            return sorted(name for name in os.listdir(local_path(path)) if not name.startswith(ASIDE))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise_named(error, path)

    def find(self, path: str) -> Names:
        top = local_path(path)
        found = []
        for directory, _, names in os.walk(top, onerror=raise_unless_gone):
            below = directory[len(top) :].lstrip("/")
            found += [os.path.join(below, name) for name in names if not name.startswith(ASIDE)]
        return sorted(found)

    def move(self, path: str, target: str) -> None:
        old, new = local_path(path), local_path(target)
        with naming(target):
            self.mkdirs(os.path.dirname(new))
            os.replace(old, new)
            sync_directory(os.path.dirname(new))

    def remove(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            os.unlink(local_path(path))

    def remove_tree(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(local_path(path))

    def mkdirs(self, path: str) -> None:
        directory = local_path(path)
        with naming(path):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not is_directory(directory):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
                return
            except FileNotFoundError:
                self.mkdirs(os.path.dirname(directory))
                with contextlib.suppress(FileExistsError):
                    os.mkdir(directory)
            sync_directory(os.path.dirname(directory))

    def sync(self, path: str) -> None:
        sync_filesystem(local_path(path))

    def _write_aside(self, target: str, data: bytes) -> str:
        self.mkdirs(os.path.dirname(target))
        aside = aside_name(target)
        try:
            with open(aside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        return aside


def make_private(place: str) -> None:
    """Makes a directory that only its owner may enter: what lies in it may be hidden where it comes from, and links
    share the modes of their files. One that is there keeps its mode: an operator may have chosen it."""
    if not is_local(place):
        store_for(place).mkdirs(place)
        return
    path = local_path(place)
    LocalStore().mkdirs(os.path.dirname(path))
    with naming(path), contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        sync_directory(os.path.dirname(path))


def raise_unless_gone(error: OSError) -> None:
    """What `os.walk` met on its way: it would go on as if an unreadable directory were an empty one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise_named(error, str(error.filename))


def aside_name(target: str) -> str:
    """A fresh name beside `target`: the rename must not cross a device. Short, as a name may have 255 bytes."""
    return join(parent(target), f"{ASIDE}{os.getpid()}-{uuid.uuid4().hex}")


def sync_directory(directory: str) -> None:
    """Make the names in a local directory durable; a rename is not until its directory is synced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(path: str) -> None:
    """Flush the whole filesystem that holds `path`: one call for any number of files written before it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:  # not Linux
            os.sync()
        elif syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise_named(OSError(code, os.strerror(code)), path)
    finally:
        os.close(descriptor)


def store_for(place: str) -> Store:
    """The driver for a place. Cheap, holds no connection until used; may be kept and may be pickled."""
    if is_local(place):
        return LocalStore()
    from cmroot.store.remote import FsspecStore

    return FsspecStore(place)
