"""Carrying: what stays of a table or partition goes into its new directory before a load changes that: by hard link, on
object stores by a copy that the store makes. No byte passes through here.

Runs on executors. A file that is in the new directory already stays as it is, so it may run twice, and after the load
has changed the new directory; what the load has removed there it removes again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cmroot.checksum import copy_file
from cmroot.listing import list_tree
from cmroot.place import is_local, join, local_path, same_store, store_for
from cmroot.remote import FsspecStore


@dataclass(frozen=True)
class CarryTask:
    """(directory, new directory) pairs."""

    pairs: Sequence[tuple[str, str]]


def run_carry_task(task: CarryTask) -> int:
    """How many files were carried."""
    return sum(_carry(old, new) for old, new in task.pairs)


def _carry(old: str, new: str) -> int:
    listing = list_tree(old)
    there = list_tree(new)
    known = {file.path_relative for file in there.files} if there else set()
    count, made = 0, set()
    for file in listing.files if listing else ():
        if file.path_relative in known:
            continue
        source, target = join(old, file.path_relative), join(new, file.path_relative)
        if is_local(old) and is_local(new):
            directory = os.path.dirname(local_path(target))
            if directory not in made:
                os.makedirs(directory, exist_ok=True)
                made.add(directory)
            _link(local_path(source), local_path(target), file.mtime_ns)
        else:
            _copy(source, target)
        count += 1
    return count


def _link(source: str, target: str, mtime_ns: int) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV):
            raise
        aside = f"{os.path.dirname(target)}/.replicating-{os.path.basename(target)}"  # no links here
        copy_file(source, aside, reread=True, mtime_ns=mtime_ns)
        os.rename(aside, target)


def _copy(source: str, target: str) -> None:
    store, other = store_for(source), store_for(target)
    if isinstance(store, FsspecStore) and isinstance(other, FsspecStore) and same_store(source, target):
        store.filesystem.cp_file(store.key(source), store.key(target))
        return
    with store.open_read(source) as reading, other.open_write(target) as writing:
        while block := reading.read(8 << 20):
            writing.write(block)
