"""Checksums, and copies that compute them on the fly. Contains the inner loops of every copy.

A checksum is the xxh3_128 of a file's content, as 32 lowercase hex digits, never truncated. It detects damage and
distinguishes contents; it does not protect against deliberate collisions.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Generic, TypeVar

import xxhash

from cmroot.errors import NoSpace
from cmroot.store.place import is_local, local_path, located
from cmroot.store.spelling import raise_named

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


# ---- checksums -------------------------------------------------------------------------------------------------------


ALGORITHM = "xxh3_128"

BUFFER_SIZE = 256 * 1024
"""Measured: 256 KiB stays in the processor's cache and reuses its pages; 1 MiB and more costs four to seven times the
CPU. One buffer per thread, never a new one per file."""


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_SIZE))
        self.into = [self.view]


_buffer = _Buffer()


def checksum_file(path: str) -> tuple[str, int]:
    """Returns checksum (hex) and size in bytes of a local file. Raises FileNotFoundError when it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return checksum_descriptor(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise_named(error, path)


def checksum_descriptor(descriptor: int, size: int | None = None) -> tuple[str, int]:
    """Returns checksum and size of an open descriptor's content from byte 0 on; its position is not used nor moved.

    With `size` given, a file of that many bytes costs one read less: the caller has called fstat already, and will call
    it again. Otherwise reads to the end.
    """
    view, into = _buffer.view, _buffer.into
    length = os.preadv(descriptor, into, 0)
    if length < BUFFER_SIZE and (length == size or not os.preadv(descriptor, [view[length:]], length)):
        FLOW.read += length
        return xxhash.xxh3_128_hexdigest(view[:length]), length
    digest = xxhash.xxh3_128()
    total = 0
    while length:
        digest.update(view[:length] if length < BUFFER_SIZE else view)
        total += length
        FLOW.read += length
        length = os.preadv(descriptor, into, total)
    return digest.hexdigest(), total


def copy_file(
    source_path: str, temporary_path: str, *, reread: bool = False, mtime_ns: int | None = None, private: bool = False
) -> tuple[str, int]:
    """Copies one local file to a new name, hashing on the fly; returns checksum and size of the bytes read.

    The new file must not exist, has mode and owner of the source (`private`: 0600, until the caller gives it rights),
    is not synced and not renamed into place: that is left to the caller. With `reread` the bytes are read back through
    the open descriptor, and checksum and size are those of the copy, so that one comparison with the recorded checksum
    covers source and copy. `mtime_ns`: its times. After an error the new file is removed.
    """
    try:
        source = os.open(source_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise_named(error, source_path)
    try:
        return copy_descriptor(source, temporary_path, reread=reread, mtime_ns=mtime_ns, private=private)
    finally:
        os.close(source)


def copy_descriptor(
    source: int,
    temporary_path: str,
    *,
    reread: bool = False,
    sync: bool = False,
    mtime_ns: int | None = None,
    private: bool = False,
) -> tuple[str, int]:
    """Like `copy_file`, from an open descriptor (from byte 0 on); `sync` makes the copy durable before returning."""
    try:
        target = os.open(temporary_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if not private:
                _share_access(source, target)
            copied = _copy_and_read_back(source, target) if reread else _copy(source, target)
            if mtime_ns is not None:
                os.utime(target, ns=(mtime_ns, mtime_ns))
            if sync:
                os.fsync(target)
            return copied
        except BaseException:
            os.unlink(temporary_path)
            raise
        finally:
            os.close(target)
    except OSError as error:
        raise_named(error, temporary_path)


def copy_between(source: int, target: int, *, private: bool = False) -> tuple[str, int]:
    """Copies from one open descriptor (from byte 0 on) to that of a new file, opened for reading too, and reads back
    like `copy_file` with `reread`. Returns checksum and size of the copy. private: keeps the new file's own mode."""
    if not private:
        _share_access(source, target)
    return _copy_and_read_back(source, target)


def _share_access(source: int, target: int) -> None:
    """Gives a new file the mode and owner of its source before it has any bytes: content protected by a mode of 0600
    must not become readable by being copied. Sets the owner only as far as this user may give files away."""
    status, own = os.fstat(source), os.fstat(target)
    if (status.st_uid, status.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.fchown(target, status.st_uid, status.st_gid)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL, errno.ENOTSUP):  # not permitted, or unsupported here
                raise
    os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)


def _copy(source: int, target: int) -> tuple[str, int]:
    view, into = _buffer.view, _buffer.into
    length = os.preadv(source, into, 0)
    if length < BUFFER_SIZE and not os.preadv(source, [view[length:]], length):
        _write(target, view[:length])
        FLOW.passed(length)
        return xxhash.xxh3_128_hexdigest(view[:length]), length
    digest = xxhash.xxh3_128()
    total = 0
    while length:
        block = view[:length] if length < BUFFER_SIZE else view
        digest.update(block)
        _write(target, block)
        FLOW.passed(length)
        total += length
        length = os.preadv(source, into, total)
    return digest.hexdigest(), total


def _copy_and_read_back(source: int, target: int) -> tuple[str, int]:
    """Returns checksum and size of the copy. Each block is read back while it is still in the processor's cache, and
    only the bytes read back are hashed: measured a fifth cheaper than hashing both and reading back at the end."""
    view, into = _buffer.view, _buffer.into
    length = os.preadv(source, into, 0)
    if length < BUFFER_SIZE and not os.preadv(source, [view[length:]], length):
        _write(target, view[:length])
        FLOW.passed(length)
        return checksum_descriptor(target, length)
    digest = xxhash.xxh3_128()
    total = 0
    while sent := _send(source, target, total):
        FLOW.passed(sent)
        end = total + sent
        while total < end:
            length = os.preadv(target, into, total)
            if not length:
                return digest.hexdigest(), total
            digest.update(view[:length] if length < BUFFER_SIZE else view)
            total += length
    return digest.hexdigest(), total


def _send(source: int, target: int, at: int) -> int:
    """Appends a block of the source, from byte `at` on, to the target; returns the bytes sent, 0 at the end."""
    try:
        return os.sendfile(target, source, at, BUFFER_SIZE)
    except OSError as error:
        if error.errno not in _CANNOT_SEND:
            raise
    length = os.preadv(source, _buffer.into, at)
    _write(target, _buffer.view[:length])
    return length


_CANNOT_SEND = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of some FUSE filesystems that do not send from file to file."""


def _write(target: int, block: memoryview) -> None:
    written = os.write(target, block)
    while written < len(block):  # a full disk writes a part, then fails
        more = os.write(target, block[written:])
        if more == 0:
            raise NoSpace("a write stored no bytes", hint="free space, then run the same command again")
        written += more


def checksum_at(place: str) -> tuple[str, int]:
    """Returns checksum and size of a file of any store. Raises FileNotFoundError when it does not exist."""
    if is_local(place):
        return checksum_file(local_path(place))
    with located(place).open_stream() as file:
        return checksum_stream(file)


def checksum_stream(source: BinaryIO) -> tuple[str, int]:
    """Returns checksum and size of a binary stream, read to its end."""
    digest = xxhash.xxh3_128()
    total = 0
    while block := source.read(BUFFER_SIZE):
        digest.update(block)
        total += len(block)
        FLOW.read += len(block)
    return digest.hexdigest(), total


def copy_stream(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copies one binary stream to another, for stores behind fsspec; returns checksum and size of the bytes read."""
    digest = xxhash.xxh3_128()
    total = 0
    while block := source.read(BUFFER_SIZE):
        digest.update(block)
        target.write(block)
        FLOW.passed(len(block))
        total += len(block)
    return digest.hexdigest(), total
