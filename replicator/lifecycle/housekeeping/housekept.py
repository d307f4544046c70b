"""What a run of housekeeping did, as its report tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from replicator.lifecycle.removal.job import Removals


@dataclass
class Housekept(Removals):
    """What a run did. run: its name in the audit record; position: of the captured log, up to which all is scheduled.
    scheduled, cancelled, detached: items that the log brought about, that are not to go any more, whose object is gone.
    due: items whose time had come; removed: those that went; waiting: those that wait for something else first.
    invalid: tables whose properties were found to be wrong in this run. plan: of a rehearsal, the items. databases:
    those that the root captures, the only ones that housekeeping knows of; warnings: databases outside whose tables
    have properties for it."""

    root: str
    store: str
    run: str = ""
    position: int = 0
    records: int = 0
    scheduled: int = 0
    cancelled: int = 0
    detached: int = 0
    due: int = 0
    removed: int = 0
    partitions_dropped: int = 0
    tables_dropped: int = 0
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    waiting: int = 0
    exhausted: int = 0
    invalid: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    plan: list[dict[str, Any]] = field(default_factory=list)
    more: int = 0
    databases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "done"

    @property
    def is_whole(self) -> bool:
        """Nothing was refused, failed, or could not be understood."""
        return not (self.refused or self.failed or self.invalid)
