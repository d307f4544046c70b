"""Keeping what will be removed: bytes are in the root, and copies were read back, before a source may go."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cmroot.checksum import checksum_file
from cmroot.content import Kept, locate
from cmroot.errors import ChecksumMismatch, KeepError
from cmroot.keep import CopyKeeper, Keeper
from cmroot.listing import FileState, file_state, hidden, object_state
from cmroot.objects import keep_and_check, remove_source
from cmroot.place import is_local, local_path, naming
from cmroot.remote import FsspecStore


def keep_safely(keeper: Keeper, root: str, path: str) -> Kept:
    """Keeps one file as its keeper does; a copy is compared with its name. FileNotFoundError: it was gone."""
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
    return kept


def remove_kept(path: str, kept: Kept) -> bool:
    """Removes a file that is still the one that was kept, or that is gone; False for another one."""
    if not is_local(path):
        try:
            remove_source(path, kept)
        except FileNotFoundError:
            return True
        except KeepError:
            return False
        return True
    path = local_path(path)
    with naming(path):
        try:
            if not unchanged(file_state(path), kept):
                return False
            os.unlink(path)
        except FileNotFoundError:
            return True
    return True


def unchanged(state: FileState, kept: Kept) -> bool:
    return (state.identity, state.mtime_ns, state.size) == (kept.identity, kept.mtime_ns, kept.size)


def objects_below(place: str) -> Iterator[tuple[str, FileState]]:
    """(name relative to the place, state) of every object below it but hidden ones."""
    store = FsspecStore(place)
    prefix = store.key(place).rstrip("/") + "/"
    with naming(place):
        found = store.filesystem.find(prefix.rstrip("/"), detail=True)
    for key, info in found.items():
        name = key[len(prefix) :]
        is_file = key.startswith(prefix) and name and not name.endswith("/") and info.get("type") != "directory"
        if is_file and not any(hidden(part) for part in name.split("/")):
            yield name, object_state(name, info)
