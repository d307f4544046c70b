"""The local filesystem: the store whose publishing survives a crash, and properties of a path."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar

from cmroot.store.spelling import STAGING, is_local, join, local_path, naming, parent, raise_named

Names = list[str]  # the store below has a method called list
Lacking = list[tuple[str, str]]  # rights, and what remains without each


@dataclass(frozen=True, slots=True)
class Child:
    """One name in a directory. mtime: seconds since 1970, None where the store has none (directories of object stores).
    A symbolic link is reported and not followed."""

    path: str
    is_directory: bool
    mtime: float | None
    size: int = 0
    is_link: bool = False


Children = list[Child]


@dataclass(frozen=True)
class LocalStore:
    """A POSIX filesystem. Publishing survives a crash: file and directory are synced."""

    at_once = 1  # no request latency

    def read_bytes(self, path: str) -> bytes:
        with naming(path), open(local_path(path), "rb") as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        with self.open_write(path) as file:
            file.write(data)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        target = local_path(path)
        with naming(path):
            staged = self._write_staged(target, data)
            try:
                os.link(staged, target)  # the name appears with all its bytes, for one caller only
            except FileExistsError:
                return False
            finally:
                os.unlink(staged)
            sync_directory(os.path.dirname(target))
            return True

    def open_read(self, path: str) -> BinaryIO:
        with naming(path):
            return open(local_path(path), "rb")

    def open_stream(self, path: str) -> BinaryIO:
        return self.open_read(path)

    @contextlib.contextmanager
    def open_write(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        target = local_path(path)
        with naming(path):
            self.mkdirs(os.path.dirname(target))
            staged = staging_name(target)
            try:
                with open(staged, "xb", buffering=1 << 18) as file:
                    yield file
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(staged, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(staged)
                raise
            if durable:
                sync_directory(os.path.dirname(target))

    def open_new(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        return self.open_write(path)

    def sweep(self, path: str, *, before: float, deep: bool) -> Names:
        top, swept = local_path(path), []
        for directory, below, names in os.walk(top, onerror=raise_unless_gone):
            for name in names:
                file = join(directory, name)
                with naming(file), contextlib.suppress(FileNotFoundError):
                    if name.startswith(STAGING) and os.lstat(file).st_mtime < before:
                        os.unlink(file)
                        swept.append(file[len(top) :].lstrip("/"))
            if not deep:
                below.clear()
        return swept

    def exists(self, path: str) -> bool:
        return status_of(local_path(path)) is not None

    def size(self, path: str) -> int:
        with naming(path):
            return os.stat(local_path(path)).st_size

    def list(self, path: str) -> Names:
        try:
            return sorted(name for name in os.listdir(local_path(path)) if not name.startswith(STAGING))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise_named(error, path)

    def find(self, path: str) -> Names:
        top = local_path(path)
        found = []
        for directory, _, names in os.walk(top, onerror=raise_unless_gone):
            below = directory[len(top) :].lstrip("/")
            found += [os.path.join(below, name) for name in names if not name.startswith(STAGING)]
        return sorted(found)

    def children(self, path: str) -> Children:
        top, found = local_path(path), []
        with naming(top), os.scandir(top) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # gone since the directory was opened
                    if not entry.name.startswith(STAGING):
                        found.append(_child(join(top, entry.name), entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda each: each.path)

    def child(self, path: str) -> Child | None:
        path = local_path(path)
        status = status_of(path, follow=False)
        return _child(path, status) if status else None

    def move(self, path: str, target: str) -> None:
        old, new = local_path(path), local_path(target)
        with naming(target):
            self.mkdirs(os.path.dirname(new))
            os.replace(old, new)
            sync_directory(os.path.dirname(new))

    def remove(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            os.unlink(local_path(path))

    def remove_own(self, path: str) -> bool:
        self.remove(path)
        return True

    def remove_own_tree(self, path: str) -> bool:
        self.remove_tree(path)
        return True

    def replace_own(self, path: str, data: bytes) -> None:
        self.write_bytes(path, data)

    def remove_uploads(self, path: str, begins: str, *, before: float) -> int:
        return 0

    def lacking_rights(self, path: str) -> Lacking:
        return []

    def remove_tree(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(local_path(path))

    def mkdirs(self, path: str, *, private: bool = False) -> None:
        directory, mode = local_path(path), 0o700 if private else 0o777
        with naming(path):
            try:
                os.mkdir(directory, mode)
            except FileExistsError:
                if not is_directory(directory):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
                return
            except FileNotFoundError:
                self.mkdirs(os.path.dirname(directory))
                with contextlib.suppress(FileExistsError):
                    os.mkdir(directory, mode)
            sync_directory(os.path.dirname(directory))

    def sync(self, path: str) -> None:
        sync_filesystem(local_path(path))

    def _write_staged(self, target: str, data: bytes) -> str:
        self.mkdirs(os.path.dirname(target))
        staged = staging_name(target)
        try:
            with open(staged, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(staged)
            raise
        return staged


def _child(path: str, status: os.stat_result) -> Child:
    mode = status.st_mode
    return Child(path, stat.S_ISDIR(mode), status.st_mtime, status.st_size, stat.S_ISLNK(mode))


def raise_unless_gone(error: OSError) -> None:
    """Raises an error met by `os.walk`, which would treat an unreadable directory as an empty one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise_named(error, str(error.filename))


def staging_name(target: str) -> str:
    """Returns a new name next to `target`: a rename must not cross devices. Short: names are limited to 255 bytes."""
    return join(parent(target), f"{STAGING}{os.getpid()}-{uuid.uuid4().hex}")


def sync_directory(directory: str) -> None:
    """Makes the names in a local directory durable; a rename is not until its directory is synced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(path: str) -> None:
    """Flushes the entire filesystem that holds `path`: one call for any number of files written before it."""
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


def status_of(path: str, *, follow: bool = True) -> os.stat_result | None:
    """Returns the status of a local path; None when it does not exist. Only ENOENT and ENOTDIR prove that: any other
    error (a failing disk, a stale handle, a directory that this user may not search) is raised."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise_named(error, path)


def is_directory(path: str, *, follow: bool = True) -> bool:
    """Returns True if a local path is a directory. Raises like `status_of`."""
    status = status_of(path, follow=follow)
    return status is not None and stat.S_ISDIR(status.st_mode)


_UNSUPPORTED = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP)
_OWN_ATTRIBUTES = "user.replicator"  # about the bytes of one file


def copy_rights(source: str, target: str) -> list[str]:
    """Gives a local file or directory the owner, group, mode and extended attributes (POSIX ACLs are some) of another.
    Returns what this user may not give, or the filesystem does not store. May run twice. Raises OSError."""
    lacking = []
    status, own = os.lstat(source), os.lstat(target)
    for kind, wanted, now in (("owner", status.st_uid, own.st_uid), ("group", status.st_gid, own.st_gid)):
        try:
            if wanted != now:
                os.lchown(target, *((wanted, -1) if kind == "owner" else (-1, wanted)))
        except OSError as error:
            _raise_unless(error, _UNSUPPORTED)
            lacking.append(f"{kind} {wanted}")
    for name in _attributes(source):
        if name.startswith(("user.", "system.posix_acl_")) and not name.startswith(_OWN_ATTRIBUTES):
            try:
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
            except OSError as error:
                _raise_unless(error, _UNSUPPORTED)
                lacking.append(name)
    try:
        os.chmod(target, stat.S_IMODE(status.st_mode))  # last: a new owner clears some of its bits
    except OSError as error:
        _raise_unless(error, _UNSUPPORTED)
        lacking.append(f"mode {stat.S_IMODE(status.st_mode):o}")
    return lacking


def _attributes(path: str) -> list[str]:
    """Returns the names of extended attributes; [] on a system or filesystem without any."""
    try:
        return os.listxattr(path, follow_symlinks=False) if hasattr(os, "listxattr") else []
    except OSError as error:
        _raise_unless(error, _UNSUPPORTED)
        return []


def _raise_unless(error: OSError, expected: tuple[int, ...]) -> None:
    if error.errno not in expected:
        raise error


def same_device(a: str, b: str) -> bool:
    """Returns True if two places, or their nearest parents, share a local device: links and renames may work."""
    return is_local(a) and is_local(b) and device(a) == device(b)


def device(place: str) -> int:
    """Returns the number of the device that holds a local place, or its nearest existing parent."""
    path = local_path(place)
    while True:
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


# ---- flow ------------------------------------------------------------------------------------------------------------
# Flow: the bytes that this process copies and reads, counted on the fly, and the maximum rate of copying.


Task = TypeVar("Task")
Result = TypeVar("Result")

SLACK = 0.25
"""Seconds of the rate that may be caught up at once: a sleep never has its exact length."""


class Flow:
    """Bytes of contents copied, and read for comparison, since the process began. Counted without a lock, for
    monitoring: reports have the exact numbers. rate: bytes per second that all threads together may copy; None:
    unlimited."""

    def __init__(self) -> None:
        self.copied = 0
        self.read = 0
        self.rate: float | None = None
        self._lock = threading.Lock()
        self._due = 0.0  # of the monotonic clock: when the bytes so far are due at the rate

    def passed(self, size: int) -> None:
        """Counts copied bytes, and waits until they are due at the rate."""
        self.copied += size
        if self.rate is not None:
            self._wait(size, self.rate)

    @contextmanager
    def limited(self, rate: float | None) -> Iterator[None]:
        """Limits copies of this process to a rate for the duration of a block; None: unchanged."""
        before = self.rate
        self.rate = before if rate is None else rate
        try:
            yield
        finally:
            self.rate = before

    def _wait(self, size: int, rate: float) -> None:
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now - SLACK) + size / rate
            wait = self._due - now
        if wait > 0:
            time.sleep(wait)


FLOW = Flow()
"""The flow of this process."""


class Shared(Generic[Task, Result]):
    """A function of a task, for other processes: each of `tasks` concurrent ones gets its share of this process's
    rate."""

    def __init__(self, function: Callable[[Task], Result], tasks: int) -> None:
        self._function = function
        self._rate = None if FLOW.rate is None else FLOW.rate / max(1, tasks)

    def __call__(self, task: Task) -> Result:
        with FLOW.limited(self._rate):
            return self._function(task)
