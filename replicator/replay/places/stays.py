"""Stays: what a load, or a sweep after one, leaves on the target's disk although the source has it no more, as others
have something there. It is named as not replicated: rows that were erased may be among it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from replicator.core.not_replicated import NotReplicated, renamed
from replicator.replay.places.neighbours import Name, Occupant

REPORTED = 10  # directories that a warning names


@dataclass
class Stays:
    """By table of the target: the first directory and why it stays, and how many there are. Several threads may add."""

    _found: dict[Name, tuple[str, str, int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, table: Name, place: str, why: str) -> None:
        with self._lock:
            first, reason, count = self._found.get(table, (place, why, 0))
            self._found[table] = first, reason, count + 1

    def add_held(self, held: Sequence[tuple[str, Occupant]], whose: Mapping[str, Name], source: str) -> Iterator[str]:
        """whose: the tables that the directories were of. Warnings of those that another replica of the source (its
        root's id) has: at the source they stay for that, too."""
        shared = []
        for place, holder in held:
            if holder.source == source:
                shared.append((place, holder))
            else:
                self.add(whose[place], place, f"{holder} has them, too")
        return reported(shared)

    def not_replicated(self, databases: Mapping[str, str]) -> list[NotReplicated]:
        """databases: source name -> target name."""
        sources = {target: source for source, target in databases.items()}
        named = []
        for (db, table), (place, why, count) in self._found.items():
            more = f" and {count - 1:,} more directories" if count > 1 else ""
            text = f"files in {place}{more} stay on the target, which the source has no more: {why}"
            named.append(NotReplicated(f"{db}.{table}", text))
        return renamed(named, sources)


def reported(held: Sequence[tuple[str, Occupant]]) -> Iterator[str]:
    """Warnings, of which many become one."""
    for place, holder in held[:REPORTED]:
        yield f"the files in {place} were left: {holder} has them, too"
    if len(held) > REPORTED:
        yield f"the files in {len(held) - REPORTED} more directories were left, which others have, too"
