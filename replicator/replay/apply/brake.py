"""The brake: a load that would make a replica much smaller stops before it changes anything.

What counts is by how much each table gets smaller: the bytes of files that go, less those that come into it. Tables and
partitions that were dropped at the source do not count, nor what a person has declared empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.config import GuardConfig
from replicator.core.text.quantity import parse_size
from replicator.errors import ConfigError, Refused
from replicator.replay.apply.weighing import Weight, weigh
from replicator.replay.apply.work import Replay
from replicator.replay.plan.plan import Plan

MAX_SHARE = 0.5
"""Of the bytes that a replica has of what a dump covers."""

MAX_BYTES = 1 << 40
_NAMED = 5


@dataclass(frozen=True)
class Brake:
    """How much one load may take away: max_share, of the bytes that the replica has, 0 to 1; max_bytes; None: no limit
    of this kind."""

    max_share: float | None = MAX_SHARE
    max_bytes: int | None = MAX_BYTES


BRAKE = Brake()
"""As it is where nobody says otherwise."""


def brake_of(guard: GuardConfig, max_share: float | None = None, max_bytes: int | None = None) -> Brake:
    """What was asked for, else `[guard]`'s, else the defaults. Raises ConfigError for a size that is none."""
    if max_bytes is None and guard.max_bytes is not None:
        try:
            max_bytes = parse_size(str(guard.max_bytes))
        except ValueError as error:
            raise ConfigError(f"guard.max_bytes: {error}", hint="write a size such as 10TiB") from error
    if max_share is None:
        max_share = guard.max_share
    return Brake(
        BRAKE.max_share if max_share is None else max_share, BRAKE.max_bytes if max_bytes is None else max_bytes
    )


def stop_excess(replay: Replay, brake: Brake) -> None:
    """Raises Refused where a load would take away more than it may. Costs next to nothing for one that only adds."""
    if _may_remove(replay.plan) and (refusal := excess(replay.plan, weigh(replay, dropped=False), brake)):
        raise refusal


def _may_remove(plan: Plan) -> bool:
    made = {step.name for step in plan.tables}
    replaced = plan.metadata.kind == BOOTSTRAP and any((table.db, table.name) in made for table in plan.drops)
    return bool(plan.metadata.removed or replaced or any(step.prune and step.exists for step in plan.tables))


def excess(plan: Plan, weight: Weight, brake: Brake) -> Refused | None:
    """The refusal of a load that would take this away; None: it may."""
    metadata, names = plan.metadata, plan.placement.databases
    empty = [".".join([names.get(db, db), rest]) for db, _, rest in (each.partition(".") for each in metadata.empty)]
    losses = weight.losses(empty)
    lost, held = sum(losses.values()), metadata.bytes if metadata.kind == BOOTSTRAP else metadata.held
    had = None if held is None else held + lost
    by_size = sorted(losses.items(), key=lambda each: -each[1])
    details = {"bytes": lost, "of": had, "tables": dict(by_size[:1000])}
    some = ", ".join(f"{table} {size:,} bytes" for table, size in by_size[:_NAMED])
    hint = (
        "look at it with --dry-run, or `replicator plan`; if it is right, run again with --allow-removals, or raise "
        "{} for this run or in [guard]. A table that is gone for good is dropped at the source"
    )
    if brake.max_share is not None and had and lost / had > brake.max_share:
        return Refused(
            f"{lost:,} of {had:,} bytes of the replica would be removed, {lost / had:.0%}; one load may remove "
            f"{brake.max_share:.0%} ({some})",
            hint=hint.format("--max-share"),
            details={**details, "max_share": brake.max_share},
        )
    if brake.max_bytes is not None and lost > brake.max_bytes:
        return Refused(
            f"{lost:,} bytes of the replica would be removed; one load may remove {brake.max_bytes:,} ({some})",
            hint=hint.format("--max-bytes"),
            details={**details, "max_bytes": brake.max_bytes},
        )
    return None
