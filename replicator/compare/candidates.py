"""Suspects: tables that differ between two sides, until it is known which of them are only behind.

The source goes on changing while a replica is compared with it. So a difference counts only where the source has not
changed the table after the checkpoint that the target had before it was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from replicator.captures.events.decode import decode
from replicator.captures.events.record import Change
from replicator.compare.verify import Verified
from replicator.metastore.client import MetastoreReader

EVENTS = 100_000  # after a checkpoint that are looked at to tell what is only behind
OWN = ""  # in place of a table: a database's own properties and its functions

Changed = Callable[[str, Set[str]], Set[str]]
"""Of some tables of a database (source names) that differ, those that the source changed since; `OWN` may be one."""


@dataclass(frozen=True)
class Batch:
    """Tables of one database that are compared together; `share` of `shares` of their contents."""

    db: str
    names: Sequence[str]
    share: int = 0
    shares: int = 1


@dataclass(frozen=True)
class Candidate:
    """Tables of a batch that differ, or the database itself (`OWN`)."""

    batch: Batch
    found: Verified
    names: frozenset[str]

    def key(self, object: str) -> str:
        """Which of `names` an object of the comparison belongs to."""
        return OWN if self.names == {OWN} else table_of(object)


def table_of(name: str) -> str:
    """The table's name in that of an object; a database itself has none."""
    return name.partition("/")[0].partition(".")[2]


def touched_names(change: Change) -> set[tuple[str, str]]:
    """What a change is about, as (database, table): both names of a rename, `OWN` for what is no table."""
    return set(change.tables) or {(change.touched_db or "", OWN)}


def changed_by_events(source: MetastoreReader, after: int, db: str, names: Set[str]) -> Set[str]:
    """Of some tables, those that the source's events after one are about: as `Changed`, for who captures nothing."""
    changed: set[tuple[str, str]] = set()
    seen = 0
    while seen < EVENTS and (events := source.next_events(after)):
        for event in events:
            changed |= touched_names(decode(event).change)
        after, seen = events[-1].id, seen + len(events)
    return {name for name in names if (db, name) in changed}
