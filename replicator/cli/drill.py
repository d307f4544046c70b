"""`replicator drill`: rehearse the day on which the replica is needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, took
from replicator.commands.drill import drill as run
from replicator.core.text import duration_text
from replicator.policies.drill_record import Asked, Drill, DrillPlan, ShownDrills
from replicator.policies.shadows import ShadowsSwept

NOT_ALL_GOOD = 3


@click.command()
@options_of(run, engine=True, without=("engine",))
@json_options
@pass_session
def drill(session: Session, /, as_json: bool, **given: Any) -> int:
    """Rehearse a failover: create shadow databases over a policy's replica, run queries on them, measure the time to
    the first good answer, and drop them.

    No data is copied: a shadow's tables are external, over the replica's own files, and have no constraints.
    Replication continues. The next drill removes the remains of a killed one. Exit code 3 if a query failed or its
    answer differs from exact statistics.

    \b
    Example:
      replicator drill west --query "SELECT max(day) FROM sales.orders"
      replicator drill west --db sales --keep
      replicator drill west --clean
      replicator drill west --list
    """
    done = session.call(run, **given)
    match done:
        case ShownDrills():
            for path in done.damaged:
                note(f"{path}: damaged, not shown")
            emit(done, as_json, _list_lines(done.drills))
            return 0
        case ShadowsSwept():
            emit(done, as_json, _swept_lines(done))
            return NOT_ALL_GOOD if done.staying else 0
        case DrillPlan():
            emit(done, as_json, _plan_lines(done))
            return 0
    emit(done, as_json, drill_lines(done))
    return 0 if done.status == "done" and not (done.staying or done.not_replicated) else NOT_ALL_GOOD


def drill_lines(drill: Drill) -> Iterable[str]:
    """A drill for a person."""
    made = [
        count_text(drill.tables, "table"),
        count_text(drill.partitions, "partition"),
        count_text(drill.views, "view"),
    ]
    lag = f", {drill.lag_seconds:.0f} s behind" if drill.lag_seconds is not None else ""
    events = sorted({standing.event for standing in drill.checkpoint.values()})
    good = sum(each.outcome == "good" for each in drill.queries)
    first = drill.first_answer_seconds
    steps = ", ".join(f"{name} {took:.1f}" for name, took in drill.steps.items())
    yield from aligned(
        [
            (drill.status, f"{drill.policy}, drill {drill.id}" + (" (reverse)" if drill.reverse else "")),
            ("replica", f"{drill.metastore} at event {', '.join(map(str, events))}{lag}"),
            ("shadows", shortened(f"{replica} as {shadow}" for replica, shadow in drill.databases.items())),
            ("created", ", ".join([*made, count_text(drill.functions, "function")])),
            ("skipped", shortened(f"{name}: {why}" for name, why in drill.skipped.items())),
            ("not replicated", shortened(map(str, drill.not_replicated))),
            ("ready", f"after {drill.ready_seconds:.1f} s" if drill.ready_seconds is not None else None),
            ("queries", f"{good} of {len(drill.queries)} good" if drill.queries else "none"),
            ("", shortened(_query_line(each) for each in drill.queries)),
            ("first answer", f"after {first:.1f} s" if first is not None else "none"),
            ("changed", shortened(drill.moved)),
            ("staying", shortened(drill.staying)),
            ("shadows", f"kept: replicator drill {drill.policy} --clean" if not drill.torn_down else "dropped"),
            ("warning", shortened(drill.warnings)),
            ("took", f"{took(drill.seconds)} ({steps})"),
        ]
    )


def _query_line(asked: Asked) -> str:
    text = asked.error or "; ".join(", ".join(map(str, row)) for row in asked.rows) or "no rows"
    wanted = f" (statistics: {asked.expected})" if asked.expected is not None and asked.outcome != "good" else ""
    return f"{asked.outcome}  {asked.query}: {text}{wanted} ({asked.seconds:.1f} s)"


def _plan_lines(drill: DrillPlan) -> Iterable[str]:
    return aligned(
        [
            ("would show", f"{count_text(drill.tables, 'table or view')} of {drill.policy}"),
            ("shadows", shortened(f"{replica} as {shadow}" for replica, shadow in drill.databases.items())),
            ("warning", shortened(drill.warnings)),
        ]
    )


def _list_lines(drills: list[Drill]) -> Iterable[str]:
    if not drills:
        return ["no drills"]
    rows = [
        (
            drill.started[:19] + "Z",
            drill.id,
            drill.status,
            drill.by,
            max((standing.event for standing in drill.checkpoint.values()), default=None),
            drill.tables,
            sum(each.outcome == "good" for each in drill.queries),
            len(drill.queries),
            duration_text(drill.first_answer_seconds) if drill.first_answer_seconds is not None else None,
            drill.error or "; ".join(drill.warnings[:1]),
        )
        for drill in drills
    ]
    head = ("started", "drill", "status", "by", "at event", "tables", "good", "queries", "first answer", "message")
    return columns(head, rows, ("at event", "tables", "good", "queries", "first answer"))


def _swept_lines(swept: ShadowsSwept) -> Iterable[str]:
    return aligned(
        [
            (swept.status, swept.policy),
            ("dropped", shortened(swept.dropped) or "nothing"),
            ("staying", shortened(swept.staying)),
            ("warning", shortened(swept.warnings)),
        ]
    )
