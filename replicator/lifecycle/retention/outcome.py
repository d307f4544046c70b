"""What a run of retention did, as its result tells it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from replicator.core.report import Rows
from replicator.lifecycle.removal.removal import Refusal
from replicator.lifecycle.removal.removal_report import Removals

REPORTED = 1000  # refusals that a result lists; the record has all


@dataclass
class RetentionRun(Removals):
    """What a run did, or would do (`planned`). `status`: done, incomplete (something failed or was refused) or planned.
    `versions`: looked at; `selected`: by a policy; `removed`: went, with `files` and `bytes` to `$cmroot`; `dropped`:
    partitions; `ignored`: names whose time cannot be read. `refused`: the first ones of `refused_count`, and why;
    `failed`: what, and why. `databases`: those that the root captures; None: unknown, or it captures none. Versions of
    any database go to it, but its log tells the history of these only."""

    status: str = "done"
    run: str = ""
    datasets: int = 0
    versions: int = 0
    selected: int = 0
    removed: int = 0
    dropped: int = 0
    access: int = 0
    files: int = 0
    bytes: int = 0
    ignored: int = 0
    refused_count: int = 0
    refused: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    databases: list[str] | None = None
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Nothing was refused or failed."""
        return not (self.refused_count or self.failed)

    def refuse(self, refusal: Refusal) -> None:
        self.refused_count += 1
        if len(self.refused) < REPORTED:
            removal = refusal.removal
            self.refused.append({"path": removal.path, "object": removal.name, "why": refusal.why})

    def fail(self, what: str, why: str) -> None:
        self.failed.append({"what": what, "why": why})


@dataclass
class RetentionPlan(RetentionRun, Rows):
    """What a run would do. items: what it would remove, drop or set, unless that was listed one by one."""

    listed = "items"
    columns = ("act", "dataset", "path", "partition", "files", "bytes", "keeps_data", "access", "reason")
    status: str = "planned"
    items: list[dict[str, Any]] = field(default_factory=list)
