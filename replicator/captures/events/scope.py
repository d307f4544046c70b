"""Scope: which databases a root captures, and which changes concern them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cmroot.log.captured import Segment
from replicator.captures.events.record import Change, DropTable
from replicator.core.model import Table, partition_spec
from replicator.core.text.partition_filter import PartitionFilter
from replicator.errors import UsageError


def captured_databases(log: Sequence[Segment]) -> list[str] | None:
    """Databases that a captured log is about, sorted; those that were dropped since stay. None: the log is empty, or
    its newest segment was written before segments said so."""
    names = log[-1].metadata.get("databases") if log else None
    return sorted(map(str, names)) if isinstance(names, list) else None


def changes_in_scope(change: Change, databases: Collection[str]) -> Iterator[Change]:
    """What of a change concerns the databases: a rename out of them is a drop, one into them a table altered from a
    name that was not known."""
    if change.touched_db in databases or change.lost or (change.unread is not None and not change.touched_db):
        yield change
    elif change.rename and change.rename[0][0] in databases:
        yield DropTable(db=change.rename[0][0], name=change.rename[0][1])


@dataclass(frozen=True)
class Patterns:
    """Which tables of a database a dump holds: names that match any include (all when there is none) and no exclude.
    Patterns are regular expressions for the whole name, regardless of case, as Hive's replication policies.
    `partitions`: "db.table" in lower case -> which of its partitions; a partition outside is as if it did not exist."""

    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()
    partitions: Mapping[str, PartitionFilter] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        partitions: Mapping[str, PartitionFilter] | None = None,
    ) -> Patterns:
        """Raises UsageError for one that is not a regular expression."""
        return cls(tuple(map(_compile, include)), tuple(map(_compile, exclude)), dict(partitions or {}))

    @classmethod
    def of_names(cls, names: Iterable[str], partitions: Mapping[str, PartitionFilter] | None = None) -> Patterns:
        """Exactly these tables; none at all when there are no names."""
        text = "|".join(map(re.escape, sorted(set(names))))
        return cls.parse([text or "(?!)"], partitions=partitions)

    @property
    def everything(self) -> bool:
        """Whether every table is held; of some perhaps not every partition."""
        return not self.include and not self.exclude

    def match(self, table: str) -> bool:
        included = not self.include or any(pattern.fullmatch(table) for pattern in self.include)
        return included and not any(pattern.fullmatch(table) for pattern in self.exclude)

    def filter_of(self, db: str, table: str) -> PartitionFilter | None:
        """Which partitions of a table are held; None: all."""
        return self.partitions.get(f"{db}.{table}".lower()) if self.partitions else None

    def filter_for(self, table: Table) -> PartitionFilter | None:
        """As `filter_of`. Raises UsageError for a filter about what is no partition key of the table."""
        found = self.filter_of(table.db, table.name)
        unknown = found.unknown_keys([key.name for key in table.partition_keys]) if found else []
        if found and unknown:
            raise UsageError(
                f"the filter {found.text!r} of {table.db}.{table.name} asks for {', '.join(unknown)}, which is no "
                "partition key of it",
                hint="mend the filter, or leave it out; nothing of the table can be told to be wanted or not",
            )
        return found


def matches_name(wanted: PartitionFilter, name: str) -> bool:
    """Whether a partition of this escaped name is wanted; one without the filter's keys, of a table that was another
    before, is not."""
    keys, values = partition_spec(name)
    return not wanted.unknown_keys(keys) and wanted.matches(keys, values)


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise UsageError(
            f"not a regular expression: {text!r}: {error}", hint="patterns match whole table names, e.g. 'sales_.*'"
        ) from error
