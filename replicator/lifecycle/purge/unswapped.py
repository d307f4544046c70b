"""Directories of partitions that were written again and never swapped: nothing refers to them. Finds and removes them.

Which ones they are is asked of the living metastore, not remembered: a run may have been killed between a swap and its
record, and the table renamed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cmroot.store.emptied import remove_if_empty
from cmroot.store.place import name_of, normal, parent
from cmroot.store.resolve import located
from replicator.lifecycle.purge.backups.backups import backups
from replicator.lifecycle.purge.partitions import SIBLING, look_at
from replicator.lifecycle.purge.state import runs
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.client import MetastoreReader


def leftovers(root: str, metastore: MetastoreReader, live: LiveLocations) -> Iterator[str]:
    """Of purges that have ended."""
    kept = {normal(each.place) for each in backups(root)}
    for directory in runs(root):
        run = directory.read_run()
        if run.status == "running" or "ids" not in run.request or run.request["metastore"] != metastore.uri:
            continue
        reported = list(directory.reported())
        swapped = {normal(unit.new) for unit in reported if unit.backup}
        for place in sorted({normal(unit.new) for unit in reported if unit.new} - swapped - kept):
            ours = name_of(parent(place)).startswith(SIBLING)
            if ours and not look_at(place).missing:
                live.refresh()
                if live.blocking(place) is None:
                    yield place


def remove_leftovers(
    root: str, metastore: MetastoreReader, live: LiveLocations, check: Callable[[], None]
) -> list[str]:
    """Under the lease of purges; check raises LeaseHeld when it was lost. Safe to run twice."""
    removed = []
    for place in leftovers(root, metastore, live):
        check()
        located(place).remove_tree()
        remove_empty_sibling(place)
        removed.append(place)
    return removed


def remove_empty_sibling(place: str) -> None:
    """The directory above, when it was the last in it. Raises as `remove_if_empty`."""
    above = parent(place)
    if name_of(above).startswith(SIBLING):
        remove_if_empty(above)
