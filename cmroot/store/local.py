"""The local filesystem: the store whose publishing survives a crash, and properties of a path."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cmroot.errors import FormatError
from cmroot.store.spelling import STAGING, is_local, join, local_path, naming, parent, raise_named

Names = list[str]  # the store below has a method called list
Lacking = list[tuple[str, str]]  # rights, and what remains without each
LARGEST = 256 << 20  # bytes of a file that is read as a whole
NO_FILE = "remove it if it was put there by mistake, or restore the file from a copy"


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

    def read_bytes(self, path: str, most: int = LARGEST, *, follow: bool = False) -> bytes:
        try:
            with naming(path), open(local_path(path), "rb", opener=_opener(follow)) as file:
                size = _refuse_other_kinds(path, file)
                return within(path, file.read(min(size, most) + 1) if size <= most else b"", size, most)
        except IsADirectoryError as error:
            if follow:
                raise
            raise FormatError(f"{path}: a directory, not a file", hint=NO_FILE) from error

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
            file = open(local_path(path), "rb", opener=_opener(True))  # noqa: SIM115 the caller closes it
            try:
                _refuse_other_kinds(path, file)
            except BaseException:
                file.close()
                raise
            return file

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
        path = local_path(path)
        with naming(path), contextlib.suppress(FileNotFoundError):
            if is_directory(path, follow=False):
                shutil.rmtree(path)
            else:  # rmtree opens it first, and waits if it is a FIFO
                os.unlink(path)

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


def _opener(follow: bool) -> Callable[[str, int], int]:
    """Returns what opens a file without waiting for a writer, as a FIFO would."""
    more = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)

    def open_(path: str, flags: int) -> int:
        try:
            return os.open(path, flags | more)
        except OSError as error:
            if error.errno == errno.ELOOP and not follow:
                raise FormatError(f"{path}: a symbolic link, not a file", hint=NO_FILE) from error
            if error.errno == errno.ENXIO:
                raise FormatError(f"{path}: a socket or device, not a file", hint=NO_FILE) from error
            raise

    return open_


def _refuse_other_kinds(path: str, file: BinaryIO) -> int:
    """Returns the size of a regular file."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{path}: a FIFO or device, not a file", hint=NO_FILE)
    return status.st_size


def within(path: str, data: bytes, size: int, most: int) -> bytes:
    """Returns the bytes of a file of that size. Raises FormatError for more than `most`."""
    if max(size, len(data)) > most:
        raise FormatError(f"{path}: more than {most >> 10:,} KiB, too large for its kind", hint=NO_FILE)
    return data


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


_ACL, _DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
_OWN_GROUP = 0x04  # tag of the entry of a file's own group in an ACL (acl(5), linux/posix_acl_xattr.h)


def copy_rights(source: str, target: str) -> list[str]:
    """Gives a local file or directory the owner, group, mode and extended attributes (POSIX ACLs are some) of another,
    or of the one to which the other links. Returns what this user may not give, or the filesystem does not store. May
    run twice. Raises OSError, also for a target that is a link. A file gets no set-user-id or set-group-id bit: the
    other may be a link to a program of root, and the bytes anybody's."""
    lacking = []
    status, attributes = os.stat(source), _attributes(source)
    mode = stat.S_IMODE(status.st_mode) & (0o7777 if stat.S_ISDIR(status.st_mode) else 0o777)
    with _held(target) as handle:
        own = os.fstat(handle)
        for kind, wanted, now in (("owner", status.st_uid, own.st_uid), ("group", status.st_gid, own.st_gid)):
            try:
                if wanted != now:
                    os.fchown(handle, *((wanted, -1) if kind == "owner" else (-1, wanted)))
            except OSError as error:
                _raise_unless(error, _UNSUPPORTED)
                lacking.append(f"{kind} {wanted}")
        for name in {_ACL, _DEFAULT_ACL}.intersection(_attributes(handle)).difference(attributes):
            os.removexattr(handle, name)  # of the directory above
        for name in attributes:
            if name.startswith(("user.", "system.posix_acl_")) and not name.startswith(_OWN_ATTRIBUTES):
                try:
                    os.setxattr(handle, name, os.getxattr(source, name))
                except OSError as error:
                    _raise_unless(error, _UNSUPPORTED)
                    lacking.append(name)
        if any(each == _ACL or each.startswith("group") for each in lacking):
            mode &= ~stat.S_IRWXG  # another group is its group, or the bits are an ACL's mask
        try:
            os.fchmod(handle, mode)  # last: a new owner clears some of its bits
        except OSError as error:
            _raise_unless(error, _UNSUPPORTED)
            lacking.append(f"mode {mode:o}")
    return lacking


@contextlib.contextmanager
def _held(path: str) -> Iterator[int]:
    """Opens a file or directory, so that what gets rights is what was opened: who owns the directory above could put a
    link to another file in its place at any moment. Raises OSError for a link."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def make_inheriting(directory: str, home: str) -> str:
    """Creates a directory, unless it, or a file, exists. It and those above it in `home`, if that exists, get its group
    and mode; a default ACL, and the set-group-id bit of the one above, decide by themselves. Returns what this user may
    not give. May run twice, and twice at once: no directory is open to more users than it will be."""
    like, above = status_of(home) if home else None, os.path.dirname(directory)
    if like is None or directory == home:
        with contextlib.suppress(FileExistsError):  # a file
            os.makedirs(directory, exist_ok=True)
        return ""
    lacking = ""
    if status_of(above) is None:
        lacking = make_inheriting(above, home if above.startswith(f"{home.rstrip('/')}/") else "")
    mode = stat.S_IMODE(like.st_mode)
    try:
        os.mkdir(directory, mode if _DEFAULT_ACL in _attributes(above) else mode & ~stat.S_IRWXG)
    except FileExistsError:
        return lacking
    return inherit(directory, home) or lacking


def inherit(directory: str, home: str) -> str:
    """Gives a new directory the group and mode of a table's directory; see `make_inheriting`. May run twice."""
    place = os.path.dirname(directory)
    like, above = os.stat(home), os.stat(place)
    mode, group = _own_mode(home, like), above.st_gid if above.st_mode & stat.S_ISGID else like.st_gid
    mode |= above.st_mode & stat.S_ISGID
    try:
        with _held(directory) as handle:
            made = os.fstat(handle)
            if made.st_gid != group:
                os.fchown(handle, -1, group)
            if stat.S_IMODE(made.st_mode) != mode and _DEFAULT_ACL not in _attributes(place):
                os.fchmod(handle, mode)
    except OSError as error:
        _raise_unless(error, _UNSUPPORTED)
        return f"group {group} or mode {mode:o}"
    return ""


def _own_mode(path: str, status: os.stat_result) -> int:
    """Returns a mode whose group bits are those of the group: with an ACL, `st_mode` has its mask in their place."""
    mode = stat.S_IMODE(status.st_mode)
    if _ACL in _attributes(path):
        for tag, bits, _ in struct.iter_unpack("<HHI", os.getxattr(path, _ACL)[4:]):
            if tag == _OWN_GROUP:
                mode = mode & ~stat.S_IRWXG | (bits & 7) << 3
    return mode


def _attributes(path: str | int) -> list[str]:
    """Returns the names of extended attributes; [] on a system or filesystem without any."""
    try:
        return os.listxattr(path) if hasattr(os, "listxattr") else []
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
