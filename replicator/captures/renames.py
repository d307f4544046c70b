"""Renames: what an object seen at a position is called afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replicator.captures.events.record import ChangeRecord


@dataclass(frozen=True)
class Rename:
    """A table (db, name), or a partition (db, table, name), that has another name from a position on."""

    position: int
    before: tuple[str, ...]
    after: tuple[str, ...]

    def follow(self, key: tuple[str, str, str], position: int) -> tuple[str, str, str] | None:
        """The key (db, table, partition) of an object seen at a position, after this rename; None when the object was
        gone by then: another took its name."""
        if self.position <= position:
            return key
        if key[: len(self.before)] == self.before:
            db, table, partition = (*self.after, *key[len(self.before) :])
            return db, table, partition
        return None if key[: len(self.after)] == self.after else key

    @classmethod
    def of(cls, record: ChangeRecord) -> Rename | None:
        return cls(record.position, *record.change.rename) if record.change.rename else None


def followed(key: tuple[str, str, str], position: int, renames: Iterable[Rename]) -> tuple[str, str, str] | None:
    """What an object seen at a position is called after renames, in their order; None when it was gone by then."""
    now: tuple[str, str, str] | None = key
    for rename in renames:
        now = rename.follow(now, position) if now else None
    return now
