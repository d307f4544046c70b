"""Loading by difference: over what the target holds, so that only what differs is copied. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from replicator.core.model import Table
from replicator.replay.places.placement import Placement, is_published, relative
from replicator.replay.plan.target import TargetDatabase


@dataclass(frozen=True)
class ByDifference:
    """A bootstrap loaded over what is there: tables that can be altered into the dump's stay, and stay where they are;
    files that are the same stay, the rest is copied; what tables hold besides goes to the target's $cmroot.

    reread: files of the right size, time and stamp are read, too. drop_extra: tables in the dump's scope that it does
    not hold go, whoever made them (else: those that replication made). only_tables: the database's own properties and
    its functions are left alone."""

    reread: bool = False
    drop_extra: bool = False
    only_tables: bool = False


def stay(
    placement: Placement,
    tables: Iterable[Table],
    target: Mapping[str, TargetDatabase],
    shared: Callable[[Table, Table | None], bool],
    *,
    back: bool,
) -> Placement:
    """A placement by which tables that the target has lie where they lie there, unless that is a place of the
    source. `tables`: the source's. shared: whether a table, of which the target has the second, keeps its data at the
    source. back: those in published places go back into the source's layout."""
    own = []
    for table in tables:
        there = target[placement.database(table.db)].tables.get(table.name)
        if there is None or table.is_view or not table.location or not there.location or shared(table, there):
            continue
        if back and is_published(there.location):
            continue
        wanted = placement.table(table.db, table.location)
        homes = (table.location, placement.source_locations.get(table.db))
        of_target = relative(there.location, placement.target_locations[table.db]) is not None
        of_source = any(home and relative(there.location, home) is not None for home in homes)
        if relative(there.location, wanted) != "" and (of_target or not of_source):
            own.append((table.location, there.location))
    return replace(placement, mappings=(*own, *placement.mappings))
