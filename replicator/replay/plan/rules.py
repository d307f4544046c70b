"""File rules: what turns a file entry of a dump into a place on the target. Pure: planning makes, copying asks them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cmroot.store.place import join
from replicator.replay.places.placement import Placement
from replicator.replay.plan.squash import Move, follow


@dataclass(frozen=True)
class PartitionRule:
    """What a task must know of a partition that had a name from position `begin` on: entries before `since` are void;
    `now`: its last name; `moves`: of its own directory; `gone`: it was dropped."""

    begin: int
    since: int
    now: str
    moves: tuple[Move, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class TableRule:
    """A table by one of its names, from position `begin` to `end` (None: the end of the range): its final database and
    source location, the moves of its directory, and from which position entries count. `gone`: nothing of it is wanted.
    `partitions`: by each of their names. `name`: its last one on the target. `place`: where the load publishes it,
    partitions by their names below (None: in the source's layout). `only`: the
    objects that are published, "" for the table's own files (None: all)."""

    begin: int
    end: int | None
    db: str
    since: int
    location: str | None
    moves: tuple[Move, ...]
    gone: bool
    partitions: dict[str, list[PartitionRule]] = field(default_factory=dict)
    name: tuple[str, str] | None = None
    place: str | None = None
    only: frozenset[str] | None = None

    def partition(self, name: str, position: int) -> PartitionRule | None:
        """The partition that had a name at a position; None for one that needs no rule."""
        candidates = [rule for rule in self.partitions.get(name, ()) if rule.begin <= position]
        return max(candidates, key=lambda rule: rule.begin, default=None)


@dataclass(frozen=True)
class FileRules:
    """All that turns a file entry into a place on the target."""

    placement: Placement
    tables: dict[tuple[str, str], list[TableRule]]
    after: int  # entries up to this position were loaded before

    def places(self, position: int, db: str, table: str, partition: str, location: str) -> tuple[str, str] | None:
        """Where the object of an entry lies now, at the source and on the target; None when the entry is void."""
        found = self._rules(position, db, table, partition)
        if found is None:
            return None
        rule, about = found
        if rule.only is not None and (about.now if about else partition) not in rule.only:
            return None
        moves = tuple(sorted(rule.moves + about.moves)) if about else rule.moves
        now = follow(location, position, moves)
        if rule.place is not None:
            return now, join(rule.place, about.now if about else partition)
        return now, self.placement.inside(rule.db, rule.location, now)

    def object_at(self, position: int, db: str, table: str, partition: str) -> tuple[tuple[str, str], str] | None:
        """The object of an entry by its last names: (table of the target, partition); None when the entry is void, or
        its table does not stay."""
        found = self._rules(position, db, table, partition)
        if found is None or found[0].name is None:
            return None
        return found[0].name, found[1].now if found[1] else partition

    def _rules(
        self, position: int, db: str, table: str, partition: str
    ) -> tuple[TableRule, PartitionRule | None] | None:
        rule = None
        for candidate in self.tables.get((db, table), ()):
            if candidate.begin <= position and (candidate.end is None or position <= candidate.end):
                rule = candidate
        if rule is None or rule.gone or position < rule.since or position <= self.after:
            return None
        about = rule.partition(partition, position) if partition else None
        if about is not None and (about.gone or position < about.since):
            return None
        return rule, about
