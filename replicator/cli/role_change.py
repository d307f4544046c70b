"""`replicator switchover`, `failover`, `failback`, `loss` and `role`: exchange the roles of a policy's sides. And
`drill`: rehearse a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text, time_text, took, write
from replicator.commands.role_change import drill as run
from replicator.commands.role_change import failback as run_failback
from replicator.commands.role_change import failover as run_failover
from replicator.commands.role_change import loss as run_loss
from replicator.commands.role_change import role_set, role_show
from replicator.commands.role_change import switchover as run_switchover
from replicator.core.not_replicated import PARTIAL
from replicator.core.text import duration_text
from replicator.policies.drill_record import Asked, Drill, DrillPlan, ShownDrills
from replicator.policies.role_changes.role_change import RoleChanged, StepReport
from replicator.policies.roles import ShownRoles
from replicator.policies.shadows import WENT, ShadowsSwept


@click.command()
@options_of(run_switchover, engine=True)
@json_options
@pass_session
def switchover(session: Session, /, as_json: bool, **given: Any) -> int:
    """Exchange the roles of primary and replica: planned, without loss. A second switchover switches back.

    Stop the writers before, or when the step `fence` is reported: a role stops replication, not writers. Writes until
    the end of the drain are replicated; later ones are kept and listed. Safe to kill and to run again. Exit 6, without
    a change, if the check finds an obstacle.

    \b
    Example:
      replicator switchover west --dry-run
      replicator switchover west
      replicator switchover west --abort
    """
    done = session.call(run_switchover, reported=_reported(as_json), **given)
    emit(done, as_json, role_change_lines(done))
    return 6 if done.problems else 0


@click.command()
@options_of(run_failover, engine=True)
@json_options
@pass_session
def failover(session: Session, /, as_json: bool, **given: Any) -> int:
    """Make the replica the primary when the primary is lost. Without --force: only report the loss, and exit 6.

    The loss report uses every part that still answers: the replica, the lost side's $cmroot, its metastore;
    --answer-timeout limits the wait for the lost side. Interrupted loads are completed first. Safe to kill and to run
    again.

    \b
    Example:
      replicator failover west
      replicator failover west --force
    """
    done = session.call(run_failover, reported=_reported(as_json), **given)
    emit(done, as_json, [*loss_lines(done.loss or {}), *role_change_lines(done)])
    return 6 if done.status == "refused" else 0


@click.command()
@options_of(run_failback, engine=True)
@json_options
@pass_session
def failback(session: Session, /, as_json: bool, **given: Any) -> int:
    """Make the old primary, after a failover, the replica of the new one, by difference.

    Its own changes, which were never replicated, are listed, kept in its $cmroot and held there. Only differences are
    copied. Its writers must have stopped. Then sync runs in the reverse direction, and switchover makes it the primary
    again. Safe to kill and to run again.

    \b
    Example:
      replicator failback west --dry-run
      replicator failback west
      replicator switchover west
    """
    done = session.call(run_failback, reported=_reported(as_json), **given)
    emit(done, as_json, [*own_lines(done.own or {}), *role_change_lines(done)])
    return 0


@click.command()
@options_of(run_loss)
@json_option
@pass_session
def loss(session: Session, /, as_json: bool, **given: Any) -> None:
    """Show the loss report of a policy's last failover, as it was when the replica was promoted.

    \b
    Example: replicator loss west
    """
    found = session.call(run_loss, **given)
    emit(found, as_json, loss_lines(found.loss or {}))


def loss_lines(loss: Mapping[str, Any]) -> list[str]:
    """Formats a loss report."""
    if not loss:
        return []
    unknown = f"{loss['unknown_seconds']:,.0f} s ago" if loss["unknown_seconds"] is not None else None
    at = [loss["unknown_after_time"], unknown]
    return aligned(
        [
            ("loss", f"{loss['policy']}: {loss['lost']} is lost, {loss['survivor']} can be promoted"),
            ("replica", [_replica(each) for each in loss["databases"]]),
            ("lost", _counted(loss) + (f", over {loss['seconds']:,} s" if loss["seconds"] is not None else "")),
            (
                "not captured",
                f"{loss['not_captured']:,} of the changes: their files are unknown" if loss["not_captured"] else None,
            ),
            ("table", shortened(_lost_table(each) for each in loss["tables"])),
            (
                "uncaptured",
                [
                    f"{count_text(loss['unseen_files'], 'file')}, {size_text(loss['unseen_bytes'])}",
                    *shortened(_uncaptured_table(each) for each in loss["unseen"]),
                ]
                if loss["unseen"] is not None
                else None,
            ),
            (
                "unknown",
                f"all after event {loss['unknown_after_event']}"
                + (f" ({', '.join(text for text in at if text)})" if any(at) else ""),
            ),
            ("no log", loss["log"] or None),
            ("no answer", loss["metastore"] or None),
            ("between", shortened(f"{each['table']} {each['state']}" for each in loss.get("between", []))),
            ("warning", loss["warnings"]),
        ]
    )


def _uncaptured_table(each: Mapping[str, Any]) -> str:
    files = f"{count_text(each['files'], 'file')}, {size_text(each['bytes'])}"
    return f"{each['table']}: {files}, in {', '.join(each['directories'][:3])}"


def own_lines(own: Mapping[str, Any]) -> list[str]:
    """Formats the changes that only the old primary had."""
    if not own:
        return []
    return aligned(
        [
            ("own", f"{_counted(own)}, in {own['root']}"),
            ("table", shortened(_lost_table(each) for each in own["tables"])),
            ("unknown", f"no last replicated position of {', '.join(own['unknown'])}" if own["unknown"] else None),
            ("held", f"as at event {own['event']} by {own['hold']}" if own["hold"] else None),
        ]
    )


def _counted(found: Mapping[str, Any]) -> str:
    return (
        f"{count_text(found['changes'], 'change')} of {count_text(found['table_count'], 'table')}, "
        f"{count_text(found['partitions'], 'partition')}, {count_text(found['files'], 'file')}, "
        f"{size_text(found['bytes'])}"
    )


def _replica(each: Mapping[str, Any]) -> str:
    time = time_text(each["time"])
    loading = f", loading {each['loading']}" if each["loading"] else ""
    return f"{each['replica']} at event {each['event']}" + (f" of {time}" if time else "") + loading


def _lost_table(each: Mapping[str, Any]) -> str:
    names = f" ({', '.join(each['names'])})" if each["names"] else ""
    return (
        f"{each['table']}: {count_text(each['changes'], 'change')}, "
        f"{count_text(each['partitions'], 'partition')}{names}, "
        f"{count_text(each['files'], 'file')}, {size_text(each['bytes'])}"
    )


def _reported(as_json: bool) -> Callable[[StepReport], None] | None:
    """Prints each step when it ends; with --json, the report has them all."""
    return None if as_json else lambda step: write([step_line(step)])


def step_line(step: StepReport) -> str:
    took = "before" if step.seconds is None else f"{step.seconds:.1f} s"
    return f"{step.name:<10} {took:>8}  {step.does}"


def role_change_lines(done: RoleChanged) -> Iterable[str]:
    """Formats a role change, after its steps."""
    if done.status == "refused":
        return aligned([("refused", f"{done.policy}: --force makes the {done.primary}, {done.uri}, the primary")])
    words = {"nothing": "nothing", "ready": "ready" if not done.problems else "refused"}
    is_ = "would be" if done.status == "ready" else "is"
    return aligned(
        [
            (
                words.get(done.status, done.status),
                f"{done.policy}: the {done.primary}, {done.uri}, {is_} the primary"
                + (f" at epoch {done.epoch}" if done.epoch else ""),
            ),
            ("databases", shortened(done.databases)),
            (
                "lag",
                f"{count_text(done.lag_events, 'event')}, {done.lag_seconds:.0f} s"
                if done.lag_events is not None and done.lag_seconds is not None and done.status == "ready"
                else None,
            ),
            (
                "copied",
                f"{count_text(done.files_copied, 'file')}, {size_text(done.bytes_copied)}"
                if done.verb == "failback" and done.status == "done"
                else None,
            ),
            ("downtime", f"{done.downtime_seconds:.1f} s" if done.downtime_seconds is not None else None),
            ("problem", shortened(done.problems)),
            ("warning", shortened(done.warnings)),
            ("took", took(done.seconds)),
        ]
    )


# ---- role ------------------------------------------------------------------------------------------------------------
# `replicator role`: show and set by hand which side of a replication a database is.


@click.group()
def role() -> None:
    """Show or set the role of a database: primary, replica, fenced, or none.

    \b
    Example: replicator role show --metastore thrift://b:9083 --db sales
    """


@role.command()
@options_of(role_show)
@json_option
@pass_session
def show(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show roles, their epochs, and who set them. If two sides contradict each other, the higher epoch is valid.

    \b
    Example:
      replicator role show --metastore thrift://a:9083 --db sales
      replicator role show --metastore dr --json
    """
    report = session.call(role_show, **given)
    emit(report, as_json, _shown_lines(report))
    return PARTIAL if report.unreadable else 0


@role.command(name="set")
@options_of(role_set)
@json_option
@pass_session
def set_(session: Session, /, as_json: bool, **given: Any) -> None:
    """Set a database's role manually, for repairs.

    For ordinary role changes use switchover, failover and failback: they have the right order. Loads refuse a primary
    and a fenced database, dumps a replica and a fenced one. A role stops replication, not writers. A change that can
    lose data is refused without --force, and its consequence is shown.

    \b
    Example:
      replicator role set --metastore thrift://a:9083 --db sales --role fenced
      replicator role set --metastore thrift://b:9083 --db sales --role primary --epoch 4 --force
    """
    done = session.call(role_set, **given)
    lines = [(done.status, f"{done.db}: {done.before} -> {done.after}"), ("means", done.consequence or None)]
    emit(done, as_json, aligned(lines))


def _shown_lines(shown: ShownRoles) -> Iterable[str]:
    rows = [
        (each.db, f"{each.role} at epoch {each.epoch}" + (f", set by {each.by}" if each.by else ""))
        for each in shown.databases
    ]
    rows += [(db, f"invalid: {why}") for db, why in shown.unreadable.items()]
    return aligned(rows) if rows else ["no database has a role"]


# ---- drill -----------------------------------------------------------------------------------------------------------


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
    answer differs from exact statistics, or if a table can have no shadow.

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
            emit(done, as_json, _drill_plan_lines(done))
            return 0
    emit(done, as_json, drill_lines(done))
    unseen = [name for name, why in done.skipped.items() if why != WENT]
    return 0 if done.status == "done" and not (done.staying or done.not_replicated or unseen) else NOT_ALL_GOOD


def drill_lines(drill: Drill) -> Iterable[str]:
    """Formats a drill."""
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


def _drill_plan_lines(drill: DrillPlan) -> Iterable[str]:
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
