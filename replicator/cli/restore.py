"""`replicator restore`: a database or tables as they were."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, note, shortened, size_text, took
from replicator.commands.restore import restore as run
from replicator.core.not_replicated import PARTIAL
from replicator.core.option import absolute_moment
from replicator.replay.restore.plan import RestorePlan
from replicator.replay.restore.restore import Restored


@click.command()
@options_of(run, engine=True)
@json_options
@pass_session
def restore(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore a database, or tables of it, to an event or a time, from the captured log and $cmroot.

    The result is a new database with its own copy of the data, on the source's metastore or another. Missing files are
    reported before anything is changed.

    \b
    Example:
      replicator restore --cmroot /cm --db sales --to 2026-03-01T12:00:00Z --target thrift://a:9083 --dry-run
      replicator restore --cmroot /cm --db sales --table orders --to 4711 --target thrift://a:9083 --into rescue
      replicator restore west --db sales --table orders --to 4711
      replicator restore west --db sales --table orders --to @812
      replicator restore west --db sales --table orders --to -90m --dry-run
    """
    moment = absolute_moment(given["to"], time.time())
    if moment != given["to"]:
        note(f"--to {moment}  # {given['to']}; a restore that is killed continues with this time")
    report = session.call(run, **{**given, "to": moment})
    if isinstance(report, RestorePlan):
        emit(report, as_json, _plan_lines(report))
        return PARTIAL if report.not_replicated else 0
    emit(report, as_json, _restored_lines(report))
    return PARTIAL if report.files_missing or report.not_replicated else 0


def _plan_lines(plan: RestorePlan) -> Iterable[str]:
    return aligned(
        [
            ("would restore", f"{plan.db} as at {_moment(plan)}"),
            ("states", _states(plan)),
            ("into", f"{plan.into} at {plan.location}"),
            ("tables", shortened(plan.tables)),
            ("partitions", shortened(plan.partitions)),
            ("replaced", shortened(plan.replaced)),
            ("dropped", shortened(plan.dropped)),
            ("copy", f"{count_text(plan.files_to_copy, 'file')}, {size_text(plan.bytes_to_copy)}"),
            ("from source", _files(plan.files_from_source, plan.bytes_from_source)),
            ("from $cmroot", _files(plan.files_from_cmroot, plan.bytes_from_cmroot)),
            ("missing", _missing(plan)),
            ("not restored", shortened(f"{each.object}: {each.reason}" for each in plan.not_replicated)),
            ("warning", shortened(plan.warnings)),
        ]
    )


def _restored_lines(restored: Restored) -> Iterable[str]:
    return aligned(
        [
            (restored.status, f"{restored.db} as at {_moment(restored)}"),
            ("states", _states(restored)),
            ("into", f"{restored.into} of {restored.target}"),
            ("tables", shortened(restored.tables)),
            ("partitions", shortened(restored.partitions)),
            ("dropped", shortened(restored.dropped)),
            ("copied", f"{count_text(restored.files_copied, 'file')}, {size_text(restored.bytes_copied)}"),
            ("missing", _missing(restored)),
            ("not restored", shortened(map(str, restored.not_replicated))),
            ("warning", shortened(restored.warnings)),
            ("took", took(restored.seconds)),
        ]
    )


def _moment(report: RestorePlan | Restored) -> str:
    return f"event {report.event} (position {report.position}, {report.time})"


def _states(report: RestorePlan | Restored) -> str | None:
    """The number of states that the requested event or time covers, if several."""
    if report.states < 2:
        return None
    span = f"from @{report.states_from} to @{report.position}"
    return f"{report.states} have this event or time, {span}: this is the last; --to @POSITION selects another"


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')}, {size_text(size)}" if files else None


def _missing(report: RestorePlan | Restored) -> list[str]:
    """What exists nowhere: how much, and the first ones."""
    if not report.files_missing:
        return []
    total = f"{count_text(report.files_missing, 'file')}, {size_text(report.bytes_missing)} no longer exist anywhere"
    return [total, *shortened(f"{each['file']} of {each['object']}: {each['reason']}" for each in report.missing)]
