"""Restoring one retained file: from `files/`, or from the version that its bucket retains. Not entire tables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from cmroot.errors import ChecksumMismatch, Exists, KeepError
from cmroot.keep.content import content_name, locate
from cmroot.keep.versions import open_version
from cmroot.store.checksum import checksum_at, copy_file, copy_stream
from cmroot.store.local import LocalStore, staging_name, sync_directory
from cmroot.store.place import Place, as_written
from cmroot.store.spelling import naming


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
