"""`replicator plan` and `replicator apply`: look at what a policy's next run would do, then do exactly that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.brake import removal_options
from replicator.cli.options import Session, engine_options, jobs_option, json_options, pass_session, policy_argument
from replicator.cli.output import aligned, count_text, emit, shortened, size_text
from replicator.cli.sync import adopt_option, drop_left_option, run_lines
from replicator.commands.sync import apply as run_apply
from replicator.commands.sync import plan as run_plan
from replicator.core.not_replicated import PARTIAL
from replicator.policies.sync_plan import SyncPlan


@click.command()
@policy_argument
@click.option("--out", required=True, metavar="FILE", help="The plan's file; an existing one is replaced.")
@adopt_option
@drop_left_option
@engine_options
@json_options
@pass_session
def plan(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show the next run's changes and their cost, and write them as a plan for apply.

    Captures, and writes the dumps of that run; the target is not changed.

    \b
    Example:
      replicator plan west --out plan.json
      replicator apply plan.json
    """
    made, out = session.call(run_plan, **given), given["out"]
    emit({"status": "planned", "plan": out, **made.to_dict()}, as_json, _plan_lines(made, out))
    return PARTIAL if made.not_replicated else 0


@click.command()
@click.argument("plan", metavar="PLAN")
@jobs_option
@removal_options
@engine_options
@json_options
@pass_session
def apply(session: Session, /, as_json: bool, **given: Any) -> int:
    """Carry out a plan, and nothing else. Safe to run again after a crash.

    Exit 6, without a change, if the policy, the roles, the target's checkpoint or its contents have changed since.

    \b
    Example:
      replicator apply plan.json
    """
    done = session.call(run_apply, **given)
    emit(done, as_json, run_lines(done))
    return PARTIAL if done.not_replicated else 0


def _plan_lines(plan: SyncPlan, out: str) -> Iterable[str]:
    """A plan for a person."""
    cost = plan.cost
    changes = []
    for load in plan.loads:
        for key, value in load.steps.items():
            if isinstance(value, list) and value:
                changes.append(f"{key.replace('_', ' ')}: {', '.join(map(str, shortened(map(str, value))))}")
    origins = {
        "the source": cost.files_from_source,
        "$cmroot": cost.files_from_cmroot,
        "the target's $cmroot": cost.files_from_target,
    }
    said = ", ".join(f"{number:,} from {place}" for place, number in origins.items() if number)
    removed = f"{count_text(cost.files_removed, 'file')}, {count_text(cost.partitions_removed, 'partition')}"
    return aligned(
        [
            ("planned", f"{plan.policy}{' (reverse)' if plan.reverse else ''}: {out}"),
            ("nothing", "no changes" if plan.empty else None),
            (
                "loads",
                [
                    f"{load.kind} of {', '.join(load.databases)}" + (f": {load.why}" if load.why else "")
                    for load in plan.loads
                ],
            ),
            ("to", f"event {plan.to_event}, position {plan.position}"),
            ("events", f"{cost.events:,}, {count_text(cost.records, 'record')}, {cost.squashed:,} of them squashed"),
            ("objects", f"{cost.objects:,} changed"),
            ("copy", f"{count_text(cost.files, 'file')}, {size_text(cost.bytes)}" + (f" ({said})" if said else "")),
            (
                "remove",
                f"{removed}, {size_text(cost.bytes_removed)}"
                if cost.files_removed or cost.partitions_removed
                else None,
            ),
            ("removals", shortened(str(each) for load in plan.loads for each in load.gone)),
            ("unavailable", count_text(cost.missing, "file") if cost.missing else None),
            ("changes", changes),
            ("drop" if plan.drop_left else "left", shortened(plan.drops if plan.drop_left else plan.left)),
            ("not replicated", shortened(map(str, plan.not_replicated))),
            ("warning", shortened(plan.warnings)),
        ]
    )
