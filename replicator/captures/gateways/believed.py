"""Which journals a gateway follows when it starts: they say what is moved and removed, and anyone who can write in
`$cmroot` can write one. So they may name only what the metastore names, and what lies in its warehouse."""

from __future__ import annotations

from collections.abc import Iterator

from cmroot.errors import Error
from cmroot.keep.journal import Journal
from cmroot.store.place import is_within, resolved
from replicator.captures.gateways.targets import Upstream, homes_of
from replicator.core.model import Table
from replicator.errors import ObjectNotFound

WAREHOUSE = "hive.metastore.warehouse.dir"


def refusal_of(journal: Journal, upstream: Upstream) -> str:
    """Why a journal is not to be followed; "" for one that names known places only. Raises MetastoreError, and what
    `resolved` raises for a place that cannot be looked at."""
    if journal.about.keys() - {"partitions", "emptied"}:
        return f"it says more than a gateway does: {sorted(journal.about)}"
    around = [resolved(place) for place in _around(journal, upstream)]
    exact = [resolved(place) for place in _of_tables(journal, upstream)]
    for place in dict.fromkeys(source.place for source in journal.sources):
        real = _resolved(place)
        if not any(is_within(real, each) for each in exact) and not any(_below(real, each) for each in around):
            return f"{place} is no place of {journal.db}.{journal.table or '*'}, and not in the warehouse"
    for place in map(str, journal.about.get("emptied", ())):
        if not any(is_within(_resolved(place), each) for each in (*around, *exact)):
            return f"{place} is not in the warehouse"
    return ""


def _resolved(place: str) -> str:
    """ "" for a place that cannot be looked at: it is within nothing."""
    try:
        return resolved(place)
    except (Error, OSError, ValueError):
        return ""


def _below(place: str, other: str) -> bool:
    return place != other and is_within(place, other)


def _around(journal: Journal, upstream: Upstream) -> Iterator[str]:
    """Places below which tables are made: a table that is gone is known by nothing else."""
    if warehouse := upstream.setting(WAREHOUSE):
        yield warehouse
    try:
        yield from homes_of(upstream.database(journal.db))
    except ObjectNotFound:
        return


def _of_tables(journal: Journal, upstream: Upstream) -> Iterator[str]:
    names = sorted({source.table for source in journal.sources} | ({journal.table} if journal.table else set()))
    try:
        tables = upstream.tables(journal.db, names)
    except ObjectNotFound:
        return
    for table in tables:
        yield from _of_table(table, upstream)


def _of_table(table: Table, upstream: Upstream) -> Iterator[str]:
    if table.storage and table.storage.location:
        yield table.storage.location
    if table.is_partitioned:
        yield from (
            each.location for batch in upstream.all_partitions(table.db, table.name) for each in batch if each.location
        )
