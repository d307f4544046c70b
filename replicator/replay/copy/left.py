"""What tables leave at places where no load puts them, as those that were adopted where they lay: of these only the
files that loads have published go to `$cmroot`, which their stamps tell. Acts; runs on executors, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cmroot.store.listing import list_tree
from cmroot.store.place import is_local, join, local_path
from cmroot.store.resolve import resolved
from replicator.replay.copy.copying import remove_file
from replicator.replay.copy.origins import Roots
from replicator.replay.copy.pruned_directories import sweep_empty
from replicator.replay.copy.staging import OPEN, Fence
from replicator.replay.copy.stamps import is_published
from replicator.replay.places.clearing import Clearing


@dataclass(frozen=True)
class LeftTask:
    """Directories of which published files go to a `$cmroot`, but for what others have in them."""

    root: str
    clearings: Sequence[Clearing]


@dataclass(frozen=True)
class Left:
    """Files that went; and of directories that hold others, how many."""

    removed: int
    others: dict[str, int]


def run_left_task(task: LeftTask, fence: Fence = OPEN) -> Left:
    """May run twice. Raises LeaseHeld when it was given up. Objects have no stamps: on their stores nothing goes."""
    roots, removed, others = Roots(task.root, task.root), 0, dict[str, int]()
    for each in task.clearings:
        listing, real = list_tree(each.directory), resolved(each.directory)
        for file in listing.files if listing else ():
            place = join(each.directory, file.path_relative)
            if any(kept.covers(join(real, file.path_relative)) for kept in each.kept):
                continue
            if is_local(place) and is_published(local_path(place)):
                fence.check()
                removed += remove_file(place, roots)
            else:
                others[each.directory] = others.get(each.directory, 0) + 1
        if not each.kept:
            sweep_empty(each.directory)
    return Left(removed, others)
