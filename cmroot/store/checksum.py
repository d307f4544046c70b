"""Checksums, and copies that compute them on the fly. Contains the inner loops of every copy.

A checksum is the xxh3_128 of a file's content, as 32 lowercase hex digits, never truncated. It detects damage and
distinguishes contents; it does not protect against deliberate collisions.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import BinaryIO

import xxhash

from cmroot.errors import NoSpace
from cmroot.store.local import FLOW
from cmroot.store.place import is_local, local_path, located
from cmroot.store.spelling import raise_named

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
    source_path: str, temporary_path: str, *, reread: bool = False, mtime_ns: int | None = None
) -> tuple[str, int]:
    """Copies one local file to a new name, hashing on the fly; returns checksum and size of the bytes read.

    The new file must not exist, has mode 0666 less the umask, is not synced and not renamed into place: that is left to
    the caller. With `reread` the bytes are read back through the open descriptor, and checksum and size are those of
    the copy, so that one comparison with the recorded checksum covers source and copy. `mtime_ns`: its times. After an
    error the new file is removed.
    """
    try:
        source = os.open(source_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise_named(error, source_path)
    try:
        return copy_descriptor(source, temporary_path, reread=reread, mtime_ns=mtime_ns)
    finally:
        os.close(source)


def copy_descriptor(
    source: int, temporary_path: str, *, reread: bool = False, sync: bool = False, mtime_ns: int | None = None
) -> tuple[str, int]:
    """Like `copy_file`, from an open descriptor (from byte 0 on); `sync` makes the copy durable before returning."""
    try:
        target = os.open(temporary_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
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


def copy_between(source: int, target: int) -> tuple[str, int]:
    """Copies from one open descriptor (from byte 0 on) to that of a new file, opened for reading too, and reads back
    like `copy_file` with `reread`. Returns checksum and size of the copy."""
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
