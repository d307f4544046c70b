"""Batching: partitions that many records name, a few each, are combined into batches for the metastore. Pure.

Most events name one partition. One call for a thousand costs the server far less than a thousand calls for one,
so a table's partitions wait for each other, within a bound over all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replicator.core.model import Partition
from replicator.metastore.client import PARTITION_BATCH
from replicator.replay.plan.squash import Lineage

Named = list[tuple[str, Partition]]

WAITING = 10 * PARTITION_BATCH  # partitions of all tables together: some 50 MB of wide ones


def gathered(
    some: Iterable[tuple[Lineage, Named]], *, size: int = PARTITION_BATCH, waiting: int = WAITING
) -> Iterator[tuple[Lineage, Named]]:
    """The same partitions, each table's in their order, at most `size` at once; about `waiting` wait at most."""
    held: dict[int, tuple[Lineage, Named]] = {}
    count = 0
    for lineage, named in some:
        together = held.setdefault(id(lineage), (lineage, []))[1]
        together += named
        count += len(named)
        while len(together) >= size:
            yield lineage, together[:size]
            del together[:size]
            count -= size
        if count >= waiting:
            yield from _full(held)
            held.clear()
            count = 0
    yield from _full(held)


def _full(held: dict[int, tuple[Lineage, Named]]) -> Iterator[tuple[Lineage, Named]]:
    return ((lineage, named) for lineage, named in held.values() if named)
