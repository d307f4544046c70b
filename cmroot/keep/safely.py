"""Steps of an intercept: keeps a file before its removal, moves a tree out of reach and back, removes kept files.

Each removes or moves only what it was given as kept; what it finds besides, it leaves and says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping

from cmroot.errors import ChecksumMismatch, KeepError
from cmroot.keep.content import Kept, locate, sync_name
from cmroot.keep.keepers import CopyKeeper, Keeper
from cmroot.keep.objects import keep_and_check, remove_source
from cmroot.keep.recycle import files_below, recycle, recycle_tree, remove_emptied
from cmroot.store.checksum import checksum_file
from cmroot.store.listing import FileState, file_state, object_state
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import is_local, join, local_path, normal
from cmroot.store.spelling import naming
from cmroot.store.stores import remote_store


def keep_safely(keeper: Keeper, root: str, path: str) -> Kept:
    """Keeps one file as its keeper does; a copy is read back. FileNotFoundError: it was gone."""
    if not isinstance(keeper, CopyKeeper):
        return keeper.keep(path)
    if not (is_local(root) and is_local(path)):
        return keep_and_check(root, path)
    kept = keeper.keep(path)
    final = local_path(locate(root, kept.checksum, kept.size))
    if checksum_file(final) != (kept.checksum, kept.size):
        raise ChecksumMismatch(
            f"{final}: holds other bytes than its name says, so {path} must not go",
            hint="look at the disk for errors, remove the damaged file, then do the same again",
        )
    sync_name(final)
    return kept


def unchanged(state: FileState, kept: Kept) -> bool:
    return (state.identity, state.mtime_ns, state.size) == (kept.identity, kept.mtime_ns, kept.size)


# ---- looking ------------------------------------------------------------------------------------------------------


def files_at(place: str) -> Iterator[tuple[str, FileState]]:
    """(name relative to the place, state) of every file, hidden ones too; a file itself has the name "". Symbolic links
    to directories are not followed, as deleting does not follow them."""
    if not is_local(place):
        yield from _objects_at(place)
        return
    top = local_path(place)
    with naming(top):
        try:
            status = os.stat(top)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            yield "", _state(status)
            return
        waiting = [""]
        while waiting:
            relative = waiting.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(join(top, relative)) as found:
                for entry in found:
                    name = f"{relative}/{entry.name}" if relative else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    elif entry.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            yield name, _state(entry.stat())


def _objects_at(place: str) -> Iterator[tuple[str, FileState]]:
    for name, info in remote_store(place).below(place):
        if not name.endswith("/") and info.get("type") != "directory":
            yield name, object_state(name, info)


def _state(status: os.stat_result) -> FileState:
    return FileState("", status.st_size, status.st_mtime_ns, str(status.st_ino))


# ---- moving -------------------------------------------------------------------------------------------------------


def move_aside(path: str, entry: str, *, stays: bool) -> bool:
    """One rename out of everybody's reach; with `stays` an empty directory takes the place, as accessible as before.
    False when it cannot be renamed: a mount point, or one inside. What is not there needs no moving."""
    with naming(path):
        try:
            before = os.stat(path)
            os.rename(path, entry)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EBUSY):
                raise
            return False
        if stays and stat.S_ISDIR(before.st_mode):
            os.mkdir(path)
            os.chmod(path, stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.chown(path, before.st_uid, before.st_gid)
    return True


def move_back(root: str, entry: str, path: str) -> None:
    """Back to the name it had. What has come there meanwhile stays: directories are merged, and a file whose name is
    taken goes to the root's kept files."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    entry_is_tree, path_is_tree = (is_directory(each, follow=False) for each in (entry, path))
    if status_of(path, follow=False) is None:
        os.rename(entry, path)
    elif entry_is_tree and path_is_tree:
        try:
            os.rename(entry, path)  # onto an empty directory
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        for name in sorted(os.listdir(entry)):
            move_back(root, join(entry, name), join(path, name))
        os.rmdir(entry)
    elif entry_is_tree:
        recycle_tree(root, entry, ours=True)
    elif stat.S_ISREG(os.lstat(entry).st_mode):
        recycle(root, entry, ours=True)
    else:
        os.unlink(entry)


# ---- removing -----------------------------------------------------------------------------------------------------


def remove_kept_below(place: str, named: str, kept: Mapping[str, Kept], *, whole: bool) -> bool:
    """Removes the files at `place` that are kept, by the place `named` that they had; with `whole` the emptied
    directory, too. False when something was found that is not kept, and stays."""
    if not is_local(place):
        left = [
            name
            for name, _ in _objects_at(place)
            if not _remove_object(join(place, name), kept.get(normal(join(named, name))))
        ]
        return not left
    path = local_path(place)
    with naming(path):
        status = status_of(path, follow=False)
        if status is None:
            return True
        if stat.S_ISLNK(status.st_mode):
            if whole:
                os.unlink(path)
            return True
        if not stat.S_ISDIR(status.st_mode):
            return _remove_file(path, kept.get(normal(named)))
        left = [
            each for each in files_below(path) if not _remove_file(each, kept.get(normal(named + each[len(path) :])))
        ]
        if left or not whole:
            return not left
        try:
            remove_emptied(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True


def _remove_object(path: str, kept: Kept | None) -> bool:
    if kept is None:
        return False
    try:
        remove_source(path, kept)
    except FileNotFoundError:
        return True
    except KeepError:
        return False
    return True


def _remove_file(path: str, kept: Kept | None) -> bool:
    if kept is None:
        return False
    try:
        if not unchanged(file_state(path), kept):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    return True
