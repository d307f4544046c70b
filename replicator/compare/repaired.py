"""The reports of repairs: what they did, or would do, of one database or several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from replicator.compare.differences import Difference
from replicator.core.not_replicated import NotReplicated
from replicator.core.report import LoadCounts, Report, Rows


@dataclass
class Repaired(LoadCounts):
    """What a repair did. `status`: same (nothing differed), repaired, or different: something remains, listed in
    `remaining` (the first of `remaining_count`), or incomplete: nothing remains but `not_replicated`, what the replica
    lacks and no repair can bring. `found`: differences before it; None where the caller knows what differs. `event`,
    `position`: the target's checkpoint, before and after. `tables`: those that were looked at."""

    before: ClassVar[str] = "remaining_count"
    db: str
    target: str
    event: int
    position: int
    status: str = "same"
    found: int | None = None
    tables: list[str] = field(default_factory=list)
    remaining_count: int = 0
    remaining: list[Difference] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class RepairPlan(Report):
    """What a repair would do. `found`: differences; None where the caller knows what differs. `event`, `position`: the
    target's checkpoint. `tables`: those that are looked at. `files_missing`: whose bytes are not to be had."""

    status: str = field(default="planned", kw_only=True)
    db: str
    event: int
    position: int
    found: int | None
    tables: list[str]
    drop_tables: list[str] = field(default_factory=list)
    create_tables: list[str] = field(default_factory=list)
    alter_tables: list[str] = field(default_factory=list)
    files_to_copy: int = 0
    bytes_to_copy: int = 0
    files_to_remove: int = 0
    bytes_to_remove: int = 0
    partitions_to_drop: int = 0
    files_missing: int = 0
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class RepairedDatabases(Rows):
    """Repairs of several databases, or their plans. `status`: the worst of theirs."""

    listed: ClassVar[str] = "databases"

    status: str
    databases: list[Repaired | RepairPlan]

    @classmethod
    def of(cls, databases: list[Repaired | RepairPlan]) -> Self:
        states = ("same", "planned", "repaired", "incomplete", "different")
        return cls(max((each.status for each in databases), key=states.index), databases)
