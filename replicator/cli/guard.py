"""`replicator audit` and `replicator legal-hold`: what was removed and by whom, and what must not be. And the options
that all jobs that remove have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text
from replicator.cli.table import renamed_command
from replicator.commands.guard import audit_ls, audit_undo, legal_hold_add, legal_hold_ls, legal_hold_release
from replicator.core.audit import AuditShown

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def audit() -> None:
    """Show the removals of housekeeping, retention and purge with user, time, reason and kept files; restore files.

    The record is Parquet in $cmroot/audit, which Spark reads as one dataset.

    \b
    Example: replicator audit ls --cmroot /cm --object sales.orders
    """


@audit.command(name="ls")
@options_of(audit_ls)
@json_option
@pass_session
def ls(session: Session, /, as_json: bool, **given: Any) -> int:
    """List removals and refusals of jobs, by job, run and time. Filters narrow each other.

    \b
    Example:
      replicator audit ls --cmroot /cm --job purge --since -1d
      replicator audit ls --cmroot /cm --outcome refused --json
    """
    shown = session.call(audit_ls, **given)
    emit(shown, as_json, _audit_lines(shown))
    return 0


@audit.command(name="undo")
@options_of(audit_undo)
@json_option
@pass_session
def undo(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore the files that a run removed to their paths, from $cmroot. Replaces nothing. Exit 3 if some are lost.

    Restore their metadata with `replicator restore`, or recreate it by hand.

    \b
    Example: replicator audit undo --cmroot /cm --run 20261121T020000Z-1f2e3d4c --path /w/sales.db/orders/day=1
    """
    done = session.call(audit_undo, **given)
    lines = [
        (done.status, f"{count_text(done.files, 'file')}, {size_text(done.bytes)}"),
        ("present", count_text(len(done.there), "file") if done.there else None),
        ("lost", shortened(f"{path}: {why}" for path, why in done.lost.items())),
        ("found", f"files that a killed run had moved; undo run {done.found_run}, too" if done.found_run else None),
    ]
    emit(done, as_json, aligned(lines))
    return 3 if done.lost else 0


renamed_command(audit, "restore", undo)


@click.group(name="legal-hold")
def legal_hold() -> None:
    """Protect data from removal by any job and policy. (`cm hold` protects a past state instead.)

    \b
    Example: replicator legal-hold add case-17 --cmroot /cm --on 'sales.orders/day=2026-*' --reason 'case 17'
    """


@legal_hold.command(name="add")
@options_of(legal_hold_add)
@json_option
@pass_session
def add(session: Session, /, as_json: bool, **given: Any) -> int:
    """Add a legal hold. A hold on a table covers its partitions; one on a location, the paths below and above it.

    \b
    Example: replicator legal-hold add litigation --cmroot /cm --on s3://lake/claims --reason 'case 17'
    """
    added = session.call(legal_hold_add, **given)
    emit(added, as_json, [f"added    {added.name}: {given['pattern']}"])
    return 0


@legal_hold.command(name="ls")
@options_of(legal_hold_ls)
@json_option
@pass_session
def list_holds(session: Session, /, as_json: bool, **given: Any) -> int:
    """List legal holds, also those that have ended.

    \b
    Example: replicator legal-hold ls --cmroot /cm
    """
    shown = session.call(legal_hold_ls, **given)
    rows = [(hold.name, hold.pattern, hold.until or "no end", hold.by, hold.reason) for hold in shown.holds]
    lines = columns(("name", "on", "until", "by", "reason"), rows) if rows else ["no legal holds"]
    emit(shown, as_json, lines)
    return 0


@legal_hold.command(name="release")
@options_of(legal_hold_release)
@json_option
@pass_session
def release(session: Session, /, as_json: bool, **given: Any) -> int:
    """Release a legal hold. Jobs may remove the covered data from now on.

    \b
    Example: replicator legal-hold release case-17 --cmroot /cm
    """
    released = session.call(legal_hold_release, **given)
    emit(released, as_json, [f"released    {released.name}"])
    return 0


def _audit_lines(answer: AuditShown) -> Iterable[str]:
    if not answer.found:
        return ["no records"]
    shown = [
        (
            row.time,
            row.job,
            row.run,
            row.outcome,
            row.what,
            row.object,
            row.partition or row.path,
            row.detail or row.reason,
        )
        for row in answer.found
    ]
    lines = list(columns(("time", "job", "run", "outcome", "what", "object", "path", "why"), shown))
    return [*lines, "more rows exist: see --limit"] if answer.more else lines
