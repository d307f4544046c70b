"""Drill records: the actions and results of a drill, one dated file each in the policy's memory.

    drills/<start>-<id>.json    written before the first shadow is created, and again at the end
    drills/lease                one drill of a policy at a time; runs of the policy do not take it

Records whose shadows are not torn down are input for the next sweep. All may be lost: the shadows have a stamp.
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
    """One query and its answer. `outcome`: good; different: the count differs from exact statistics; failed; changed:
    it failed or differed, and replication changed the database since. `rows`: the first of the answer, values as JSON
    or text. `expected`: the count in the statistics, None if unknown."""

    query: str
    outcome: Outcome
    rows: list[list[Any]] = []
    expected: int | None = None
    seconds: float = 0.0
    error: str = ""


class Standing(msgspec.Struct, frozen=True):
    """The checkpoint of a replica: the event of its source, and the position in the captured log."""

    event: int
    position: int


class Drill(Report, msgspec.Struct, frozen=True, kw_only=True):
    """The record of one drill. Times are ISO 8601 with a zone.

    status: running, done, incomplete (a query failed or differed), failed (see `error`), killed (set by the next
    drill). by: the operator. metastore: where. databases: replica -> shadow; homes: the shadows' own directories.
    checkpoint: by replica, when its shadow was begun; moved: replicas whose checkpoint changed during the drill.
    lag_seconds: at the beginning, None if unknown. tables, views, partitions, functions: created. skipped: objects
    without a shadow, and why. not_replicated: as of the last run, by the source's names. ready_seconds: from the start
    until all shadows existed; first_answer_seconds: until the first good answer, the measured recovery time, None
    without one. steps: seconds by name. torn_down: no shadow remains. staying: objects not created by the drill, which
    keep a shadow from being dropped."""

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
    """The plan of a drill: its databases and their shadows, and how many `tables` those have."""

    status: Literal["planned"] = "planned"


@dataclass(frozen=True, kw_only=True)
class ShownDrills(Rows):
    """A policy's drills, newest first, and files among them that cannot be parsed."""

    listed: ClassVar[str] = "drills"
    status: str = "shown"
    policy: str
    drills: list[Drill]
    damaged: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """Returns the JSON objects, but with answers, whose values are of any type, as JSON text."""
        return [{**row, "queries": [_as_text(each) for each in row["queries"]]} for row in super().rows()]


def _as_text(asked: dict[str, Any]) -> dict[str, Any]:
    return {**asked, "rows": json.dumps(asked["rows"], ensure_ascii=False)}


class Drills:
    """The drill records of a policy. A writer holds `lease`."""

    def __init__(self, memory: Memory) -> None:
        self.place = memory.place / "drills"

    def lease(self) -> Lease:
        """Acquires the lease. Raises LeaseHeld (exit 7) while another drill of the policy is running."""
        return acquire(str(self.place), "drill")

    def write(self, drill: Drill) -> None:
        """Writes a record; the last version counts. May run twice."""
        (self.place / f"{stamp(drill.started)}-{drill.id}.json").write_bytes(seal(_FORMAT, drill))

    def read(self, limit: int | None = None) -> tuple[list[Drill], list[str]]:
        """Returns the records, newest first, and the files among them that cannot be parsed."""
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
        """Returns the newest `limit` drills (None: all)."""
        drills, damaged = self.read(limit)
        return ShownDrills(policy=policy, drills=drills, damaged=damaged)

    def unfinished(self) -> list[Drill]:
        """Returns the drills whose shadows may still exist."""
        return [drill for drill in self.read()[0] if not drill.torn_down]

    def close(self, drill: Drill, *, now: Callable[[], float]) -> None:
        """Records that the shadows of a drill, killed or with --keep, are removed. May run twice."""
        if drill.status == "running":
            drill = msgspec.structs.replace(
                drill, status="killed", ended=iso(now()), error="the process ended before the drill did"
            )
        self.write(msgspec.structs.replace(drill, torn_down=True, kept=False))
