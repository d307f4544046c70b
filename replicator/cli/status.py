"""`replicator status`: how far a target is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import click

from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text, time_text, took, write
from replicator.commands.policies import Statuses, WaitedDatabases
from replicator.commands.policies import check as run_check
from replicator.commands.policies import history as run_history
from replicator.commands.policies import lag as run_lag
from replicator.commands.policies import status as run_status
from replicator.commands.policies import wait as run_wait
from replicator.core.formats import kind_of
from replicator.core.not_replicated import NotReplicated
from replicator.core.text import bound_text, duration_text
from replicator.errors import UsageError
from replicator.policies.checks import NAGIOS, nagios_line
from replicator.policies.checks.check import PolicyChecked
from replicator.policies.lag import Lag
from replicator.policies.memory import ShownRun
from replicator.policies.status import Status, Waited

# ---- lag -------------------------------------------------------------------------------------------------------------
# `replicator lag` and `replicator history`: the lag of a policy's target, and the results of its runs.


PARTIAL = 3


@click.command()
@options_of(run_lag)
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
    """Returns the exit code: 3 if a side does not answer, because the metrics are then the last known ones."""
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
                f"{size_text(report.bytes)}",
            ),
            ("in sync" if report.status == "current" else "at most", _bound_line(report) + goal),
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
            "?" if each.seconds_bound is None else f"{math.ceil(each.seconds_bound)}",
            size_text(each.bytes),
            each.source_role or "?",
            each.target_role or "?",
        )
        for each in report.databases
    ]
    head = ("database", "status", "at event", "events", "seconds", "at most", "bytes", "source is", "target is")
    yield from columns(head, rows, ("events", "seconds", "at most"))
    waiting = [(each.table, each.events, f"{each.seconds:.0f}", size_text(each.bytes)) for each in report.tables[:20]]
    if waiting:
        yield from columns(("table", "events", "seconds", "bytes"), waiting, ("events", "seconds"))


def _bound_line(report: Lag) -> str:
    """Returns until when the target has every change, as scans prove it."""
    if report.seconds_bound is None or report.covered_until is None:
        return "not known: no complete scan covers it"
    since = time_text(report.covered_until)
    bound = bound_text(report.seconds_bound)
    if report.status == "current":
        return f"as of {since}, when the last complete scan began: at most {bound} behind"
    return f"{bound} behind: every change until {since} is there"


def _source_line(report: Lag) -> str:
    away = report.unreachable.get("target" if report.reverse else "source")
    if away is None:
        return f"at event {report.source_event}"
    return "does not answer" + (f"; was at event {report.source_event}" if report.source_event else "")


@click.command()
@options_of(run_history)
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
            run.error or "; ".join(_said(run)),
        )
        for run in runs
    ]
    head = ("started", "status", "kind", "to event", "of", "records", "files", "bytes", "message")
    return columns(head, rows, ("to event", "records", "files"))


def _said(run: ShownRun) -> list[str]:
    return [*_left_out(run.not_replicated), *run.warnings[:1]] or (["a clock was ahead"] if run.future else [])


def _left_out(found: Sequence[NotReplicated]) -> list[str]:
    """Returns the objects that a run did not replicate as a text, if there are any: by format, with their bytes."""
    kinds = Counter(kind_of(each.reason) for each in found)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    size = sum(each.bytes or 0 for each in found)
    return [f"not replicated: {counts} ({size_text(size)})"] if found else []


# ---- status ----------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_status)
@json_option
@pass_session
def status(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show a replicated database's position: event id, position, time; with --source its lag. For a policy, the same as
    lag.

    Of several databases, or of those that a pattern selects, a list.

    \b
    Example:
      replicator status west
      replicator status --target dr --db 'sales_.*' --source prod --cmroot /warehouse/.cmroot
      replicator status --target thrift://b:9083 --db sales --source thrift://a:9083 --cmroot /warehouse/.cmroot
    """
    report = session.call(run_status, **given)
    if isinstance(report, Lag):
        return tell_lag(report, as_json)
    each = report.databases if isinstance(report, Statuses) else [report]
    emit(report, as_json, chain.from_iterable(map(_lines, each)))
    return 0


def _lines(report: Status) -> Iterable[str]:
    lag = []
    if report.lag_events is not None:
        lag.append(f"{count_text(report.lag_events, 'event')}")
    if report.lag_seconds is not None:
        lag.append(f"{report.lag_seconds:.0f} s")
    if report.lag_bytes is not None:
        lag.append(size_text(report.lag_bytes))
    bound = None
    if report.covered_until is not None:
        bound = f"every change until {time_text(report.covered_until)}, as a complete scan proves"
    return aligned(
        [
            (report.db, report.status),
            ("event", report.event),
            ("position", report.position),
            ("time", time_text(report.time)),
            ("source", report.source),
            ("loading", report.loading),
            ("lag", ", ".join(lag) or None),
            ("has", bound),
            ("warning", shortened(report.warnings)),
        ]
    )


# ---- wait ------------------------------------------------------------------------------------------------------------
# `replicator wait`: returns when a target has reached an event or a lag.


@click.command()
@options_of(run_wait)
@json_option
@pass_session
def wait(session: Session, /, as_json: bool, **given: Any) -> int:
    """Wait until a replicated database has an event, or a small enough lag. For scripts.

    If a metastore does not answer, it is queried again until the time-out.

    \b
    Example:
      replicator wait west --until-lag 30s
      replicator wait --target thrift://b:9083 --db sales --until-event 4711
      replicator wait --target dr --db sales --source prod --until-lag 30s --timeout 5m
    """
    waited = session.call(run_wait, **given)
    each = waited.databases if isinstance(waited, WaitedDatabases) else [waited]
    emit(waited, as_json, chain.from_iterable(map(_waited_lines, each)))
    return 0


def _waited_lines(waited: Waited) -> list[str]:
    lag = None
    if waited.lag_seconds is not None and waited.lag_events is not None:
        lag = f"{count_text(waited.lag_events, 'event')}, {waited.lag_seconds:.0f} s"
        if waited.lag_seconds_bound is not None:
            lag += f", at most {bound_text(waited.lag_seconds_bound)}"
    return aligned([(waited.db, waited.status), ("event", waited.event), ("lag", lag), ("took", took(waited.seconds))])


# ---- check -----------------------------------------------------------------------------------------------------------
# `replicator check`: verifies that a policy can run.


FOUND = 3  # finished, with critical or unknown findings


@click.command()
@options_of(run_check)
@click.option(
    "--nagios",
    is_flag=True,
    allow_from_autoenv=False,
    help="Print one line with performance data; exit with 0 ok, 1 warning, 2 critical, 3 unknown.",
)
@json_option
@pass_session
def check(session: Session, /, as_json: bool, nagios: bool, **given: Any) -> int:
    """Check POLICY of replicator.toml before its first run, or at any time.

    Checks both metastores, the notification log and its retention, clocks, permissions, disk space, keepers, roles, the
    slot, lag, and the last runs. Writes small hidden files to the directories that runs write, and removes them;
    changes nothing else. Exits with 0 for ok and warnings, with 3 if a finding is critical or unknown, or if objects
    are not replicated.

    \b
    Example:
      replicator check west
      replicator check west --nagios
    """
    if nagios and as_json:
        raise UsageError("--nagios and --json exclude each other", hint="give one of them")
    report = session.call(run_check, **given)
    if nagios:
        write([nagios_line(report.policy, report.findings)])
        return NAGIOS[report.status]
    emit(report, as_json, lines(report))
    return 0 if report.status in ("ok", "warning") and not report.not_replicated else FOUND


def lines(report: PolicyChecked) -> Iterable[str]:
    rows: list[tuple[str, str, str]] = []
    for finding in report.findings:
        rows.append((finding.health, finding.name, finding.text))
        if finding.hint:
            rows.append(("", "", f"hint: {finding.hint}"))
    yield from columns(("health", "what", "found"), rows)
    yield f"{report.policy}: {report.status}" + ("; reverse direction: the target is the primary" * report.backwards)
