"""The plan of a policy's next run as a value, and its file."""

from __future__ import annotations

from typing import Any

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.store.resolve import as_written
from replicator.core.not_replicated import NotReplicated
from replicator.core.report import Report
from replicator.errors import FormatError
from replicator.replay.apply.weighing import Gone

FORMAT, VERSION = "replicator-plan", 1


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a load would do, in numbers. `events`: between the begin and the end; `records`: in the dump, `squashed` of
    them would not be applied one by one. files, bytes: copied, by their contents; files_from_...: where from.
    files_removed, bytes_removed, partitions_removed: to the target's `$cmroot`. `missing`: files whose bytes are not to
    be had; then the load would fail."""

    events: int = 0
    records: int = 0
    squashed: int = 0
    objects: int = 0
    files: int = 0
    bytes: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    partitions_removed: int = 0
    missing: int = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class PlannedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One dump of a plan. `databases`: by their source names; `why`: of a bootstrap. `checkpoints`: of the replicas, by
    their names, when it was planned. `steps`: what would be dropped, made and altered. `digest`: of all that the load
    depends on at the target. `gone`: what goes to the target's `$cmroot`, by name, with files and bytes."""

    dump: str
    id: str
    kind: str
    databases: list[str]
    why: str = ""
    from_event: int | None
    to_event: int
    to_position: int
    checkpoints: dict[str, int | None]
    cost: Cost
    steps: dict[str, Any]
    digest: str
    gone: list[Gone] = []


class SyncPlan(Report, msgspec.Struct, frozen=True, kw_only=True):
    """What the next run of a policy would do. `policy_digest`: of its keys. `roles`: database -> role and epoch, on
    both sides. `position`, `to_event`: where the target is afterwards. `left`: replicas that the policy does not name
    any more; `drops`: tables and partitions that the loads drop, and tables of those that would go, with consent.
    `cost`: of all loads."""

    format: str = FORMAT
    version: int = VERSION
    id: str
    policy: str
    policy_digest: str
    made: str
    reverse: bool = False
    adopt: bool = False
    drop_left: bool = False
    roles: dict[str, str]
    loads: list[PlannedLoad]
    left: list[str]
    drops: list[str]
    position: int
    to_event: int
    cost: Cost
    warnings: list[str] = []
    not_replicated: list[NotReplicated] = []

    def to_dict(self) -> dict[str, Any]:
        return {"status": "planned", **super().to_dict()}

    @property
    def empty(self) -> bool:
        return not self.loads and not (self.drops and self.drop_left)


def encode_plan(plan: SyncPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def read_plan(place: str) -> SyncPlan:
    """Raises FormatError for what is no plan of a version that this release knows."""
    hint = "make a new plan with `replicator plan POLICY --out FILE`"
    try:
        data = as_written(place).read_bytes()
        about = msgspec.json.decode(data, type=_Versioned)
        if about.format != FORMAT or about.version != VERSION:
            raise FormatError(f"{place}: a {about.format} of version {about.version}, not a plan", hint=hint)
        return msgspec.json.decode(data, type=SyncPlan)
    except FileNotFoundError:
        raise FormatError(f"{place}: there is no such file", hint=hint) from None
    except UNREADABLE as error:
        raise FormatError(f"{place}: no plan: {error}", hint=hint) from error


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int
