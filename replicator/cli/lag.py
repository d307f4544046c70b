"""`replicator lag` and `replicator history`: how far a policy's target is behind, and what its runs did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_option, pass_session, policy_argument
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text
from replicator.commands.lag import history as run_history
from replicator.commands.lag import lag as run_lag
from replicator.core.text.quantity import duration_text
from replicator.policies.lag import Lag
from replicator.policies.memory import ShownRun

PARTIAL = 3


@click.command()
@policy_argument
@json_option
@pass_session
def lag(session: Session, /, policy: str, as_json: bool) -> int:
    """Show a policy's lag: per policy, database and table, in events, seconds and bytes.

    Also shows causes that block, both sides' roles, and how long the source still keeps the next needed event. While a
    side does not answer, the last known figures are shown (exit code 3).

    \b
    Example:
      replicator lag west
      replicator lag west --json
    """
    return tell_lag(session.call(run_lag, policy=policy), as_json)


def tell_lag(report: Lag, as_json: bool) -> int:
    """The exit code: 3 when a side does not answer, as the figures are then only the last known ones."""
    emit(report, as_json, _lag_lines(report))
    return PARTIAL if report.unreachable else 0


def _lag_lines(report: Lag) -> Iterable[str]:
    goal = f" (at most {duration_text(report.max_lag_seconds)})" if report.max_lag_seconds is not None else ""
    log = []
    if report.needed_seconds is not None:
        log.append(f"the next event needed is {duration_text(report.needed_seconds)} old")
    if report.kept_seconds is not None:
        log.append(f"events are kept for {duration_text(report.kept_seconds)}")
    if report.reaches_back_seconds is not None:
        log.append(f"it reaches back {duration_text(report.reaches_back_seconds)}")
    yield from aligned(
        [
            (report.status, report.policy + (" (reverse)" if report.reverse else "")),
            (
                "lag",
                f"{'at least ' if report.at_least else ''}{count_text(report.events, 'event')}, "
                f"{duration_text(report.seconds)}, "
                f"{size_text(report.bytes)}{goal}",
            ),
            ("target", f"at event {report.event}" if report.event is not None else None),
            ("captured", f"to event {report.captured_event}" if report.captured_event is not None else None),
            ("source", _source_line(report)),
            ("last good", f"the run that ended at {report.last_good_run}" if report.last_good_run else None),
            ("event log", ", ".join(log) or None),
            ("blocked by", shortened(report.blocks)),
            ("last run", report.last_run or None),
            ("not replicated", shortened(map(str, report.not_replicated))),
            ("warning", shortened(report.warnings)),
        ]
    )
    rows = [
        (
            each.db,
            each.status,
            each.event,
            each.events,
            f"{each.seconds:.0f}",
            size_text(each.bytes),
            each.source_role or "?",
            each.target_role or "?",
        )
        for each in report.databases
    ]
    head = ("database", "status", "at event", "events", "seconds", "bytes", "source is", "target is")
    yield from columns(head, rows, ("events", "seconds"))
    waiting = [(each.table, each.events, f"{each.seconds:.0f}", size_text(each.bytes)) for each in report.tables[:20]]
    if waiting:
        yield from columns(("table", "events", "seconds", "bytes"), waiting, ("events", "seconds"))


def _source_line(report: Lag) -> str:
    away = report.unreachable.get("target" if report.reverse else "source")
    if away is None:
        return f"at event {report.source_event}"
    return "does not answer" + (f"; was at event {report.source_event}" if report.source_event else "")


@click.command()
@policy_argument
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of runs, newest first.")
@json_option
@pass_session
def history(session: Session, /, as_json: bool, **given: Any) -> None:
    """Show a policy's runs, newest first. Consecutive rounds without changes are one entry.

    \b
    Example:
      replicator history west --limit 5
    """
    report = session.call(run_history, **given)
    for path in report.damaged:
        note(f"{path}: damaged, not shown")
    emit(report, as_json, _history_lines(report.runs))


def _history_lines(runs: list[ShownRun]) -> Iterable[str]:
    if not runs:
        return ["no runs"]
    rows = [
        (
            run.started[:19] + "Z",
            run.status,
            run.kind + (" reverse" if run.reverse else ""),
            run.to_event,
            run.events_of,
            run.records,
            run.files,
            size_text(run.bytes),
            run.error or "; ".join(run.warnings[:1]),
        )
        for run in runs
    ]
    head = ("started", "status", "kind", "to event", "of", "records", "files", "bytes", "message")
    return columns(head, rows, ("to event", "records", "files"))
