"""Recycling: files that the replicator removes (purge, retention, expiry, replaced files) are moved into the root.

First they are protected: one rename moves the file, or the entire directory, to `incoming/recycle-<unique>`. A symbolic
link `recycle-<unique>.origin` next to it, created before the rename, holds the original path (a link, because it is
created in a single step that a crash cannot split, and it can hold any path). Then they are hashed, then filed. A crash
leaves the entry in `incoming/`, and `sweep_incoming` finishes it. On HDFS the same is done by renames in `recycling/`
(see `remote_files`); between devices and stores, and where renames are refused, files are copied.
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
from cmroot.keep.remote_files import keep_and_check, left_entries, remove_source, renames_within, take
from cmroot.store.checksum import checksum_file
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import Place, is_local, join, local_path, refuse_root, remote_store
from cmroot.store.spelling import naming
from cmroot.text import shown

_ORIGIN = ".origin"

_RENAME_REFUSED = frozenset({errno.EXDEV, errno.EBUSY})
"""Errors that mean that a rename is refused: another device, or a mount point inside a directory."""


class Recycled(msgspec.Struct, frozen=True, gc=False):
    """A file that was removed from `path` (in the form of `text.shown`) and is retained now."""

    path: str
    kept: Kept


Record = Callable[[list[Recycled]], None]
"""Called with the filed files before their last trace is removed, so a crash repeats the call and never skips it: a
recycled path is reported at least once, by the run or by the next sweep. The record must be durable on return."""


def forget(recycled: list[Recycled]) -> None:
    """The record of a caller that requires none."""


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep of `incoming/`: recyclings it finished, and incomplete copies it removed (names)."""

    finished: list[Recycled]
    removed: list[str]


def recycle(root: str, path: str, known: Kept | None = None, *, record: Record = forget, ours: bool = False) -> Kept:
    """Moves one file into the root; returns the retained file. Raises FileNotFoundError when it does not exist, so also
    in a second run. Raises KeepError for a symbolic link, whose target belongs to another owner. Raises Protected for a
    path inside a root, unless it is `ours`: moved there by this package.

    `known` is the result of an earlier `keep` of this path: when the retained file is the same inode with the same time
    and size, its name is removed without reading it again. `record`: see Record.
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
        if not (found := _file_entry(_LocalEntry(root, entry, path), path, record)):
            raise KeepError(f"{path}: was a pipe, socket or device", hint="it is removed; run the same command again")
        return found[0].kept


def recycle_tree(root: str, directory: str, *, record: Record = forget, ours: bool = False) -> list[Recycled]:
    """Moves every file below a directory into the root and removes the directory; returns [] when it does not exist.
    `record`: see Record. A single file is moved like a directory of one. Raises KeepError when the directory is a
    symbolic link; Protected, and `ours`, as for `recycle`.

    Every file is retained, including hidden ones (`.hoodie/...`, `.x.crc`); symbolic links in it are removed and not
    followed. On one device the entire directory is protected by a single rename, including files written into it later
    by a program that has it open.
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
    """Finishes the recyclings and removes the incomplete copies left by a crash; under the lease, before new work.

    May run twice. The source of a copy still exists. `record`: see Record.
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
            elif name.startswith("damaged-"):  # a retained file, not one at a path of the warehouse
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
    """Returns True if `sweep_incoming` may find entries, of a killed or a running run."""
    return bool((Place(root) / "incoming").list() or left_entries(root))


def _protect(root: str, path: str) -> str:
    """Moves a path out of reach by one rename; records the origin first, so that no entry in `incoming/` lacks one."""
    entry = fresh_incoming(root, "recycle")
    os.symlink(path, entry + _ORIGIN)
    try:
        os.rename(path, entry)
    except OSError:
        os.unlink(entry + _ORIGIN)
        raise
    if stat.S_ISLNK(os.lstat(entry).st_mode):  # replaced since it was checked
        _put_back_link(entry)
        raise _linked(path)
    return entry


def refuse_link(path: str) -> None:
    """Raises KeepError for a symbolic link, wherever it leads: its target belongs to another owner."""
    status = status_of(path, follow=False)
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise _linked(path)


def _linked(path: str) -> KeepError:
    return KeepError(f"{path}: is a symbolic link", hint="recycle its target, or remove the link by hand")


def _put_back_link(entry: str) -> None:
    """Restores a link that was protected because of a race or by an older release: none of its bytes are here, so it
    gets its name again, or is deleted if the name is in use."""
    with contextlib.suppress(FileExistsError, FileNotFoundError, NotADirectoryError):
        os.symlink(os.readlink(entry), os.readlink(entry + _ORIGIN))
    remove_name(entry)
    remove_name(entry + _ORIGIN)


class _Entry(Protocol):
    """A file or directory moved out of reach of all users, to be filed."""

    def files(self) -> list[str]:
        """Returns the paths of all files in it, in order."""

    def origin(self, path: str) -> str:
        """Returns the original path of a file."""

    def file(self, path: str) -> Kept:
        """Hashes a file; where a file can have two names, also gives it its content name."""

    def let_go(self, path: str, kept: Kept) -> None:
        """Removes all names of the file except its content name."""

    def remove_emptied(self) -> bool:
        """Removes the remaining directories and the record of the origin. Returns False when files were added since."""


@dataclass(frozen=True)
class _LocalEntry:
    """A local entry. `entry`: its path in `incoming/`. `taken_from`: its original path, as recorded."""

    root: str
    entry: str
    taken_from: str

    def files(self) -> list[str]:
        if is_directory(self.entry, follow=False):
            return files_below(self.entry)
        return [] if self._is_pipe() else [self.entry]

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
            elif self._is_pipe():
                remove_name(self.entry)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False  # written by a program that has the directory open
        remove_name(self.entry + _ORIGIN)
        return True

    def _is_pipe(self) -> bool:
        """Returns True for a pipe, socket or device, which has no bytes: opening it may block for ever."""
        status = status_of(self.entry, follow=False)
        return status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _file_entry(entry: _Entry, origin: str, record: Record) -> list[Recycled]:
    """Files the protected files, calls the recorder, and only then removes the traces of their original paths."""
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
    raise KeepError(f"{origin}: files keep appearing in it", hint="stop their writer; the next sweep completes this")


def files_below(directory: str) -> list[str]:
    """Returns all files, sorted; also those that listings skip (hidden, `_temporary`): removal must not lose them."""
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
    """Removes directories, symbolic links and pipes, but no regular file. Raises ENOTEMPTY if there is one."""
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
    """Recycles across devices and stores: file by file, then the remaining directories. Also accepts a single file."""
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
    remote_store(directory).remove_emptied(directory)  # a new file may have been added
    return recycled


def _recycle_by_copy(root: str, path: str, record: Record) -> Kept:
    """Recycles across devices: copies, reads back, syncs the copy and its name, and then removes the source's name."""
    with opened(path) as descriptor:
        kept = file_by_copy(root, descriptor, path)
        final = locate(root, kept.checksum, kept.size)
        if checksum_file(final) != (kept.checksum, kept.size):
            raise ChecksumMismatch(
                f"{final}: its content does not match its name, so {path} was not removed",
                hint="check the disk for errors, remove the damaged file, then run the same command again",
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
