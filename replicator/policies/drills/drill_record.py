"""Drill records: what a drill did and found, one dated file each in the policy's memory.

    drills/<start>-<id>.json    written before the first shadow is made, and again at the end
    drills/lease                one drill of a policy at a time; runs of the policy do not ask for it

A record whose shadows are not torn down tells the next drill what to sweep. All may be lost: the shadows bear a stamp.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from cmroot.lease import Lease, acquire
from cmroot.root import seal, unseal
from replicator.core.not_replicated import NotReplicated, Report, Rows
from replicator.errors import FormatError
from replicator.policies.memory import Memory, iso, stamp

_FORMAT = "replicator-drill"
_HINT = "remove it: only this drill's record is lost"

Outcome = Literal["good", "different", "failed", "changed"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One query and its answer. `outcome`: good; different: the count is not what exact statistics say; failed;
    changed: it failed or differed, and replication changed the database meanwhile. `rows`: the first of the answer,
    values as JSON or text. `expected`: the count that statistics say, None where there is none."""

    query: str
    outcome: Outcome
    rows: list[list[Any]] = []
    expected: int | None = None
    seconds: float = 0.0
    error: str = ""


class Standing(msgspec.Struct, frozen=True):
    """How far a replica was: the event of its source, and the position in the captured log."""

    event: int
    position: int


class Drill(Report, msgspec.Struct, frozen=True, kw_only=True):
    """One drill. Times are ISO 8601 with a zone.

    status: running, done, incomplete (a query failed or answered otherwise), failed (`error` says why), killed (found
    by the next drill). by: who started it. metastore: where. databases: replica -> shadow; homes: the shadows' own
    directories. checkpoint: by replica, when its shadow was begun; moved: replicas whose checkpoint went on during the
    drill. lag_seconds: at the beginning, None where the source did not tell. tables, views, partitions, functions:
    made. skipped: objects without a shadow, and why. not_replicated: as the last run said, by the source's names.
    ready_seconds: from the start until all shadows were there; first_answer_seconds: until the first good answer, the
    measured recovery time, None without one. steps: seconds by name. torn_down: no shadow is left. staying: what keeps
    a shadow there, as the drill did not make it."""

    id: str
    policy: str
    started: str
    by: str
    metastore: str
    ended: str = ""
    status: Literal["planned", "running", "done", "incomplete", "failed", "killed"] = "running"
    reverse: bool = False
    databases: dict[str, str] = {}
    homes: dict[str, str] = {}
    checkpoint: dict[str, Standing] = {}
    moved: list[str] = []
    lag_seconds: float | None = None
    tables: int = 0
    views: int = 0
    partitions: int = 0
    functions: int = 0
    skipped: dict[str, str] = {}
    not_replicated: list[NotReplicated] = []
    queries: list[Asked] = []
    ready_seconds: float | None = None
    first_answer_seconds: float | None = None
    steps: dict[str, float] = {}
    seconds: float = 0.0
    torn_down: bool = False
    kept: bool = False
    staying: list[str] = []
    warnings: list[str] = []
    error: str = ""


class DrillPlan(Drill, frozen=True, kw_only=True):
    """What a drill would show: its databases and their shadows, and how many `tables` those have."""

    status: Literal["planned"] = "planned"


@dataclass(frozen=True, kw_only=True)
class ShownDrills(Rows):
    """A policy's drills, newest first, and files among them that cannot be understood."""

    listed: ClassVar[str] = "drills"
    status: str = "shown"
    policy: str
    drills: list[Drill]
    damaged: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """As JSON has them, but answers, whose values are of any type, are JSON text."""
        return [{**row, "queries": [_as_text(each) for each in row["queries"]]} for row in super().rows()]


def _as_text(asked: dict[str, Any]) -> dict[str, Any]:
    return {**asked, "rows": json.dumps(asked["rows"], ensure_ascii=False)}


class Drills:
    """The drills that a policy remembers. Whoever writes holds `lease`."""

    def __init__(self, memory: Memory) -> None:
        self.place = memory.place / "drills"

    def lease(self) -> Lease:
        """Raises LeaseHeld (exit 7) while another drill of the policy is running."""
        return acquire(str(self.place), "drill")

    def write(self, drill: Drill) -> None:
        """The last word counts. Safe to run twice."""
        (self.place / f"{stamp(drill.started)}-{drill.id}.json").write_bytes(seal(_FORMAT, drill))

    def read(self, limit: int | None = None) -> tuple[list[Drill], list[str]]:
        """Newest first, and the files among them that cannot be understood."""
        found, damaged = [], []
        for name in [name for name in reversed(self.place.list()) if name.endswith(".json")][:limit]:
            path = self.place / name
            try:
                found.append(unseal(path.read_bytes(), Drill, _FORMAT, str(path), _HINT))
            except FileNotFoundError:
                continue
            except FormatError:
                damaged.append(str(path))
        return found, damaged

    def shown(self, policy: str, limit: int | None = None) -> ShownDrills:
        """The newest `limit` drills (None: all)."""
        drills, damaged = self.read(limit)
        return ShownDrills(policy=policy, drills=drills, damaged=damaged)

    def unfinished(self) -> list[Drill]:
        """Those whose shadows may still be there."""
        return [drill for drill in self.read()[0] if not drill.torn_down]

    def close(self, drill: Drill, *, now: Callable[[], float]) -> None:
        """The shadows of a drill that was killed or kept are gone. Safe to run twice."""
        if drill.status == "running":
            drill = msgspec.structs.replace(
                drill, status="killed", ended=iso(now()), error="the process ended before the drill did"
            )
        self.write(msgspec.structs.replace(drill, torn_down=True, kept=False))
