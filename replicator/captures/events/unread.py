"""Events that change nothing a replica has, and the count of those that this release cannot read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from replicator.core.model import NotificationEvent

IRRELEVANT = frozenset(
    {
        "OPEN_TXN",
        "COMMIT_TXN",
        "ABORT_TXN",
        "ALLOC_WRITE_ID_EVENT",
        "ACID_WRITE_EVENT",
        "BATCH_ACID_WRITE_EVENT",
        "COMMIT_COMPACTION_EVENT",
        "CREATE_CATALOG",
        "ALTER_CATALOG",
        "DROP_CATALOG",
        "CREATE_DATACONNECTOR",
        "ALTER_DATACONNECTOR",
        "DROP_DATACONNECTOR",
        "CREATE_ISCHEMA",
        "ALTER_ISCHEMA",
        "DROP_ISCHEMA",
        "ADD_SCHEMA_VERSION",
        "ALTER_SCHEMA_VERSION",
        "DROP_SCHEMA_VERSION",
        "CONFIG_CHANGE_EVENT",
        "RELOAD",
    }
)
"""Kinds that change neither metadata that is replicated nor files of it. Each query of a Hive 4 cluster opens a
transaction."""


def is_irrelevant(event: NotificationEvent) -> bool:
    """Whether it changes nothing that a replica has: by its kind, or because it is of another catalog."""
    return event.type in IRRELEVANT or event.catalog is not None


NAMED = 10  # events that are named one by one
KINDS = 20  # that are counted apart
OTHERS = "other kinds"


@dataclass
class UnreadEvents:
    """Events of kinds or messages that this release cannot read. `first`: of the first few, id and kind; `kinds`: how
    many there are of each."""

    first: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.kinds.total()

    def add(self, event: int, kind: str) -> None:
        if len(self) < NAMED:
            self.first.append(f"event {event}: {kind}")
        self.kinds[kind if kind in self.kinds or len(self.kinds) < KINDS else OTHERS] += 1

    def listed(self) -> list[str]:
        """The first by name; where there are more, all by kind."""
        if len(self) <= NAMED:
            return list(self.first)
        return [*self.first, f"in all: {', '.join(f'{count:,} {kind}' for kind, count in self.kinds.most_common())}"]
