"""Scope: which changes concern the captured databases. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from replicator.errors import UsageError
from replicator.events.record import AlterTable, Change, DropTable, EventsLost, UnknownEvent, touched_db


def changes_in_scope(change: Change, databases: Collection[str]) -> Iterator[Change]:
    """What of a change concerns the databases: a rename out of them is a drop, one into them a table altered from a
    name that was not known."""
    if isinstance(change, AlterTable) and change.db != change.table.db:
        if change.table.db in databases:
            yield change
        elif change.db in databases:
            yield DropTable(db=change.db, name=change.name)
        return
    db = touched_db(change)
    if db in databases or isinstance(change, EventsLost) or (isinstance(change, UnknownEvent) and not db):
        yield change


@dataclass(frozen=True)
class Patterns:
    """Which tables of a database a dump holds: names that match any include (all when there is none) and no exclude.
    Patterns are regular expressions for the whole name, regardless of case, as Hive's replication policies."""

    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def parse(cls, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Patterns:
        """Raises UsageError for one that is not a regular expression."""
        return cls(include=tuple(map(_compile, include)), exclude=tuple(map(_compile, exclude)))

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Patterns:
        """Exactly these tables; none at all when there are no names."""
        text = "|".join(map(re.escape, sorted(set(names))))
        return cls.parse([text or "(?!)"])

    @property
    def everything(self) -> bool:
        return not self.include and not self.exclude

    def match(self, table: str) -> bool:
        included = not self.include or any(pattern.fullmatch(table) for pattern in self.include)
        return included and not any(pattern.fullmatch(table) for pattern in self.exclude)


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise UsageError(
            f"not a regular expression: {text!r}: {error}", hint="patterns match whole table names, e.g. 'sales_.*'"
        ) from error
