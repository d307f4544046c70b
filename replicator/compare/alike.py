"""Proof by texts that a partition is what a load makes of the source's. Most can be proved so, at a tenth of the cost
of making the replica and comparing that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from replicator.core.model import Partition, Table
from replicator.replay.places.placement import is_published
from replicator.replay.places.replica import own_parameters

NO_STATISTICS = "DO_NOT_UPDATE_STATS"  # an instruction to the server, which takes it out when it creates a table


@dataclass(frozen=True)
class Alike:
    """Of partitions of one table: where it lies on both sides, without a slash at the end."""

    source: str
    target: str

    def proves(self, source: Partition, target: Partition) -> bool:
        """Whether the target's partition is as it has to be, and nothing of it names a path that a load rewrites.
        False: nobody knows yet."""
        here, there = source.location, target.location
        if not (here and there and here.startswith(f"{self.source}/") and there.startswith(f"{self.target}/")):
            return False
        below = here[len(self.source) :]
        if below != there[len(self.target) :] or "/." in below:
            return False
        if _may_hold_places(source) or not _are_same(source.parameters, target.parameters):
            return False
        assert source.storage is not None
        wanted = msgspec.structs.replace(
            source,
            storage=msgspec.structs.replace(source.storage, location=there),
            parameters=target.parameters,
            create_time=target.create_time,
            last_access_time=target.last_access_time,
            extra=target.extra,
        )
        return wanted == target


def alike_partitions(source: Table, target: Table) -> Alike | None:
    """The proof for partitions of a table; None where it takes more than their texts."""
    here, there = source.location, target.location
    if not here or not there or is_published(here) or is_published(there) or here[-1] == "/" or there[-1] == "/":
        return None
    return Alike(here, there)


def _may_hold_places(partition: Partition) -> bool:
    storage = partition.storage
    assert storage is not None
    if storage.skew is not None and storage.skew.locations:
        return True
    maps = (partition.parameters, storage.parameters, storage.serde.parameters)
    return any("/" in value for values in maps for value in values.values())


def _are_same(here: Mapping[str, str], there: Mapping[str, str]) -> bool:
    return here == there or without_marks(here) == without_marks(there)


def without_marks(parameters: Mapping[str, str]) -> dict[str, str]:
    """Without marks of replication, and without what a server takes out."""
    found = own_parameters(parameters)
    found.pop(NO_STATISTICS, None)
    return found
