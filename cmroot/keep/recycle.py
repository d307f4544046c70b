"""Recycling: what we remove ourselves (purge, retention, expiry, replaced files) moves into the root instead.

Protect first: one rename takes the file, or the whole directory, into `incoming/recycle-<unique>`; beside it a
symbolic link `recycle-<unique>.origin`, made before the rename, holds the original path (a link, because making one is
a single step that a crash cannot tear, and it holds any path). Then hash, then file. A crash leaves the entry in
`incoming/`, and `sweep_incoming` finishes it. On HDFS the same is done by renames in `recycling/` (see `renamed`);
between devices and stores, and where renames are refused, files are copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cmroot.errors import ChecksumMismatch, KeepError
from cmroot.keep.content import (
    ATTEMPTS,
    Kept,
    file_by_copy,
    file_incoming,
    fresh_incoming,
    locate,
    opened,
    remove_name,
    sync_name,
    unsteady,
)
from cmroot.keep.hdfs_recycling import left_entries, renames_within, take
from cmroot.keep.objects import keep_and_check, remove_source
from cmroot.store.checksum import checksum_file
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import Place, is_local, join, local_path, refuse_root, remote_store
from cmroot.store.spelling import naming
from cmroot.text import shown

_ORIGIN = ".origin"

_RENAME_REFUSED = frozenset({errno.EXDEV, errno.EBUSY})
"""A rename is refused: another device, or a mount point inside a directory."""


class Recycled(msgspec.Struct, frozen=True, gc=False):
    """A file that was taken from `path` (as `text.shown` tells it) and is kept now."""

    path: str
    kept: Kept


Record = Callable[[list[Recycled]], None]
"""Told what was filed before the last trace of it is removed, so a crash repeats the telling and never skips it: a
recycled path is reported at least once, by the run itself or by the next sweep. It must be durable when it returns."""


def forget(recycled: list[Recycled]) -> None:
    """The record of a caller that needs none."""


class Swept(msgspec.Struct, frozen=True):
    """What a sweep found in `incoming/`: recyclings it finished, and leftovers of copies it removed (names)."""

    finished: list[Recycled]
    removed: list[str]


def recycle(root: str, path: str, known: Kept | None = None, *, record: Record = forget, ours: bool = False) -> Kept:
    """Move one file into the root; returns what was kept. FileNotFoundError when it is gone, so a second run says so.
    KeepError for a symbolic link: the bytes behind it are somebody else's. Protected for a place of a root, unless it
    is `ours`: what this package itself has moved there.

    `known` is what an earlier `keep` of this path said: when the kept file is this very inode with the time and size
    of then, its name is removed without reading it again. `record`: see Record.
    """
    if not ours:
        refuse_root(root, path)
    if is_local(path):
        refuse_link(local_path(path))
    if not (is_local(root) and is_local(path)):
        if renames_within(root, path) and _is_file(path) and (taken := take(root, path)):
            if found := _file_entry(taken, path, record):
                return found[0].kept
            raise unsteady(path)
        kept = keep_and_check(root, path)
        record([Recycled(shown(path), kept)])
        remove_source(path, kept)
        return kept
    root, path = local_path(root), local_path(path)
    with naming(path):
        if known is not None and _is_linked(root, path, known):
            record([Recycled(shown(path), known)])
            os.unlink(path)
            return known
        try:
            entry = _protect(root, path)
        except OSError as error:
            if error.errno not in _RENAME_REFUSED:
                raise
            return _recycle_by_copy(root, path, record)
        return _file_entry(_LocalEntry(root, entry, path), path, record)[0].kept


def recycle_tree(root: str, directory: str, *, record: Record = forget, ours: bool = False) -> list[Recycled]:
    """Move every file below a directory into the root and remove the directory; [] when it is gone. Record: see there.
    A single file is moved like a directory of one. KeepError when the directory is a symbolic link; Protected, and
    `ours`, as for `recycle`.

    Every file is kept, hidden ones (`.hoodie/...`, `.x.crc`) too; symbolic links in it are removed and not followed. On
    one device the whole directory is protected by a single rename, with whatever is written into it later by a program
    that has it open.
    """
    if not ours:
        refuse_root(root, directory)
    if is_local(directory):
        refuse_link(local_path(directory))
    if not (is_local(root) and is_local(directory)):
        try:
            taken = take(root, directory) if renames_within(root, directory) else None
        except FileNotFoundError:
            return []
        if taken:
            return _file_entry(taken, directory, record)
        return _recycle_each(root, directory, record, ours)
    root, directory = local_path(root), local_path(directory)
    with naming(directory):
        try:
            entry = _protect(root, directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno not in _RENAME_REFUSED:
                raise
            return _recycle_each(root, directory, record, ours)
        return _file_entry(_LocalEntry(root, entry, directory), directory, record)


def sweep_incoming(root: str, *, record: Record = forget) -> Swept:
    """Finish the recyclings and remove the part copies that a crash left; under the lease, before new work.

    Safe to run twice. A copy's source is still where it was. `record`: see Record.
    """
    where = Place(root) / "incoming"
    finished: list[Recycled] = []
    removed: list[str] = []
    removed += [*Place(root).sweep(), *where.sweep()]
    if not where.local:
        for name in where.find():
            (where / name).remove_own()
            removed.append(name)
        for left in left_entries(root):
            finished += _file_entry(left, left.top, record)
        return Swept(finished, removed)
    root, incoming = Place(root).local, where.local
    with naming(incoming):
        names = where.list()
        for name in names:
            entry = join(incoming, name)
            if name.endswith(_ORIGIN):
                continue
            if stat.S_ISLNK(os.lstat(entry).st_mode):
                _put_back_link(entry)
                removed.append(name)
            elif name.startswith("recycle-"):
                origin = os.readlink(entry + _ORIGIN)
                finished += _file_entry(_LocalEntry(root, entry, origin), origin, record)
            elif name.startswith("damaged-"):  # a kept file; no path of the warehouse led to it
                file_incoming(root, entry)
                remove_name(entry)
            else:
                remove_name(entry)
                removed.append(name)
        for name in names:
            if name.endswith(_ORIGIN):  # the crash came before the rename, or after the filing
                remove_name(join(incoming, name))
    return Swept(finished, removed)


def is_left(root: str) -> bool:
    """Whether `sweep_incoming` may find anything: of a killed run, or of one at work."""
    return bool((Place(root) / "incoming").list() or left_entries(root))


def _protect(root: str, path: str) -> str:
    """One rename out of everybody's reach; the origin first, so that nothing in `incoming/` is ever nameless."""
    entry = fresh_incoming(root, "recycle")
    os.symlink(path, entry + _ORIGIN)
    try:
        os.rename(path, entry)
    except OSError:
        os.unlink(entry + _ORIGIN)
        raise
    if stat.S_ISLNK(os.lstat(entry).st_mode):  # since it was looked at
        _put_back_link(entry)
        raise _linked(path)
    return entry


def refuse_link(path: str) -> None:
    """KeepError for a symbolic link, wherever it leads: what is behind it is another's."""
    status = status_of(path, follow=False)
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise _linked(path)


def _linked(path: str) -> KeepError:
    return KeepError(f"{path}: a symbolic link", hint="recycle what it leads to, or remove the link by hand")


def _put_back_link(entry: str) -> None:
    """A link that was protected, by a race or an older release: no bytes of it are here, so it gets its name again,
    or goes where the name is taken."""
    with contextlib.suppress(FileExistsError, FileNotFoundError, NotADirectoryError):
        os.symlink(os.readlink(entry), os.readlink(entry + _ORIGIN))
    remove_name(entry)
    remove_name(entry + _ORIGIN)


class _Entry(Protocol):
    """What was moved out of everybody's reach, to be filed."""

    def files(self) -> list[str]:
        """Places of all files in it, in order."""

    def origin(self, path: str) -> str:
        """Where one was before."""

    def file(self, path: str) -> Kept:
        """Hashes it; where a file can have two names, it has that of its content afterwards, too."""

    def let_go(self, path: str, kept: Kept) -> None:
        """Leaves it no name but that of its content."""

    def remove_emptied(self) -> bool:
        """Removes what is left, and the record of the origin; False when files have come since."""


@dataclass(frozen=True)
class _LocalEntry:
    """`entry`: its place in `incoming/`. `taken_from`: what its origin says."""

    root: str
    entry: str
    taken_from: str

    def files(self) -> list[str]:
        return files_below(self.entry) if is_directory(self.entry, follow=False) else [self.entry]

    def origin(self, path: str) -> str:
        return self.taken_from + path[len(self.entry) :]

    def file(self, path: str) -> Kept:
        return file_incoming(self.root, path)

    def let_go(self, path: str, kept: Kept) -> None:
        remove_name(path)

    def remove_emptied(self) -> bool:
        try:
            if is_directory(self.entry, follow=False):
                remove_emptied(self.entry)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False  # a program that has the directory open has written a file into it
        remove_name(self.entry + _ORIGIN)
        return True


def _file_entry(entry: _Entry, origin: str, record: Record) -> list[Recycled]:
    """File what was protected, tell the recorder, and only then remove the traces of where it was."""
    recycled: list[Recycled] = []
    for _ in range(ATTEMPTS):
        paths = entry.files()
        found = [Recycled(shown(entry.origin(path)), entry.file(path)) for path in paths]
        record(found)
        recycled += found
        for path, one in zip(paths, found, strict=True):
            entry.let_go(path, one.kept)
        if entry.remove_emptied():
            return recycled
    raise KeepError(f"{origin}: files keep appearing in it", hint="end their writer; the next sweep finishes this")


def files_below(directory: str) -> list[str]:
    """All files, sorted; also those that listings skip (hidden ones, `_temporary`): removing must not lose them."""
    found, waiting = [], [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
    return sorted(found)


def remove_emptied(directory: str) -> None:
    """Remove directories, symbolic links and pipes. Not a regular file: if there is one, ENOTEMPTY."""
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                remove_emptied(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
    os.rmdir(directory)


def _is_file(path: str) -> bool:
    there = Place(path).child()
    return there is not None and not there.is_directory


def _is_linked(root: str, path: str, known: Kept) -> bool:
    here = os.stat(path, follow_symlinks=False)
    try:
        there = os.stat(locate(root, known.checksum, known.size))
    except FileNotFoundError:
        return False
    same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    return same and not _changed(here, known)


def _recycle_each(root: str, directory: str, record: Record, ours: bool) -> list[Recycled]:
    """Across devices and stores: file by file, then what is left of the directory. A file by itself is one, too."""
    if is_local(directory):
        directory = local_path(directory)
        status = status_of(directory, follow=False)
        if status is None:
            return []
        if stat.S_ISREG(status.st_mode):
            return [Recycled(shown(directory), recycle(root, directory, record=record, ours=ours))]
        paths = files_below(directory)
        recycled = [Recycled(shown(path), recycle(root, path, record=record, ours=ours)) for path in paths]
        remove_emptied(directory)
        return recycled
    place = Place(directory)
    names = place.find()
    if not names and (there := place.child()) and not there.is_directory:
        return [Recycled(shown(directory), recycle(root, directory, record=record, ours=ours))]
    paths = [join(directory, name) for name in names]
    recycled = [Recycled(shown(path), recycle(root, path, record=record, ours=ours)) for path in paths]
    remote_store(directory).remove_emptied(directory)  # a new file may have come
    return recycled


def _recycle_by_copy(root: str, path: str, record: Record) -> Kept:
    """Across devices: a copy, read back, it and its name synced, and only then the source's name goes."""
    with opened(path) as descriptor:
        kept = file_by_copy(root, descriptor, path)
        final = locate(root, kept.checksum, kept.size)
        if checksum_file(final) != (kept.checksum, kept.size):
            raise ChecksumMismatch(
                f"{final}: holds other bytes than its name says, so {path} was not removed",
                hint="look at the disk for errors, remove the damaged file, then run the same command again",
            )
        sync_name(final)
        record([Recycled(shown(path), kept)])
        ours, now = os.fstat(descriptor), os.stat(path)
        if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino) or _changed(ours, kept):
            raise unsteady(path)
        os.unlink(path)
    return kept


def _changed(status: os.stat_result, kept: Kept) -> bool:
    return status.st_mtime_ns != kept.mtime_ns or status.st_size != kept.size
