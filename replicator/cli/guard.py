"""`replicator audit` and `replicator legal-hold`: what was removed and by whom, and what must not be. And the options
that all jobs that remove have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from replicator.cli.options import Session, Size, cmroot_option, dry_run_option, json_option, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text

if TYPE_CHECKING:
    from replicator.removal.audit import AuditRow

F = TypeVar("F", bound=Callable[..., Any])


def guard_options(command: F) -> F:
    """`--max-share`, `--max-bytes`, `--min-depth` and `--protect`: as fields of `Limited`."""
    for option in (
        click.option("--protect", multiple=True, metavar="PLACE", help="Protect this place and the paths below and "
                     "above it; repeatable."),
        click.option("--min-depth", type=click.IntRange(1), help="Minimum depth of removed paths below the store's "
                     "root; default 2."),
        click.option("--max-bytes", type=Size(), help="Refuse a run that would remove more, e.g. 10TiB."),
        click.option("--max-share", type=click.FloatRange(0, 1), help="Refuse a run that would remove a larger "
                     "share, e.g. 0.2."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def audit() -> None:
    """Who removed what, when and why, and where its bytes went: the record of housekeeping, retention and purge.

    The record is Parquet in $cmroot/audit, which Spark reads as one dataset.

    \b
    Example: replicator audit ls --cmroot /cm --object sales.orders
    """


@audit.command(name="ls")
@cmroot_option
@click.option("--job", help="Only rows of this job: housekeeping, retention, purge.")
@click.option("--run", help="Only rows of this run.")
@click.option("--object", "object_", metavar="DB.TABLE", help="Only rows about this table.")
@click.option("--path", metavar="PLACE", help="Only this path and paths below it.")
@click.option(
    "--outcome",
    type=click.Choice(["intended", "removed", "refused", "failed", "done"]),
    help="Only rows with this outcome.",
)
@click.option("--since", metavar="TIME", help="Only rows from this time on; ISO 8601.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of rows.")
@json_option
@pass_session
def ls(
    session: Session, cmroot: str, job: str | None, run: str | None, object_: str | None, path: str | None,
    outcome: str | None, since: str | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """List removals and refusals of jobs, by job, run and time.

    \b
    Example:
      replicator audit ls --cmroot /cm --job purge --since 2026-11-01
      replicator audit ls --cmroot /cm --outcome refused --json
    """
    from cmroot.root import open_existing
    from replicator.removal.audit import read_audit

    root = open_existing(cmroot).place
    found = list(
        islice(read_audit(root, job=job, run=run, object=object_, path=path, outcome=outcome, since=since), limit + 1)
    )
    rows, more = found[:limit], len(found) > limit
    answer = {"status": "shown", "root": root, "rows": [_fields(row) for row in rows], "more": more}
    emit(answer, as_json, _audit_lines(rows, more))


@audit.command(name="restore")
@cmroot_option
@click.option("--run", required=True, help="The run whose files to restore; `audit ls` lists runs.")
@click.option("--path", metavar="PLACE", help="Only this path and paths below it.")
@dry_run_option
@json_option
@pass_session
def restore(session: Session, cmroot: str, run: str, path: str | None, dry_run: bool, as_json: bool) -> int:
    """Restore the files that a run removed to their paths, from $cmroot. Replaces nothing. Exit 3 if some are lost.

    Restore their metadata with `replicator restore`, or recreate it by hand.

    \b
    Example: replicator audit restore --cmroot /cm --run 20261121T020000Z-1f2e3d4c --path /w/sales.db/orders/day=1
    """
    from cmroot.root import open_existing
    from replicator.removal.bring_back import bring_back

    done = bring_back(open_existing(cmroot).place, run, path=path, dry_run=dry_run)
    lines = [
        (done.status, f"{count_text(done.files, 'file')}, {size_text(done.bytes)}"),
        ("there", count_text(len(done.there), "file") if done.there else None),
        ("lost", shortened(f"{path}: {why}" for path, why in done.lost.items())),
    ]
    emit(done, as_json, aligned(lines))
    return 3 if done.lost else 0


@click.group(name="legal-hold")
def legal_hold() -> None:
    """Say what no job may remove, whatever its policy says. (`cm hold` keeps a past state; this keeps living data.)

    \b
    Example: replicator legal-hold add case-17 --cmroot /cm --on 'sales.orders/day=2026-*' --reason 'case 17'
    """


@legal_hold.command(name="add")
@click.argument("name")
@cmroot_option
@click.option("--on", "pattern", required=True, metavar="PATTERN", help="A place, or a glob for DB.TABLE or "
              "DB.TABLE/PARTITION.")  # fmt: skip
@click.option("--reason", required=True, help="Reason, shown with each refusal.")
@click.option("--until", default="", metavar="TIME", help="End of the hold; ISO 8601, default: none.")
@json_option
@pass_session
def add(session: Session, name: str, cmroot: str, pattern: str, reason: str, until: str, as_json: bool) -> None:
    """Add a legal hold. A hold on a table covers its partitions; one on a place, the paths below and above it.

    \b
    Example: replicator legal-hold add litigation --cmroot /cm --on s3://lake/claims --reason 'case 17'
    """
    import time

    from cmroot.pins import iso
    from cmroot.root import create_or_open
    from replicator.removal.audit import who
    from replicator.removal.legal import LegalHold, add_hold

    root = create_or_open(cmroot).place
    hold = LegalHold(name=name, pattern=pattern, reason=reason, by=who(), created=iso(time.time()), until=until)
    add_hold(root, hold)
    emit({"status": "added", "root": root, **_fields(hold)}, as_json, [f"added    {name}: {pattern}"])


@legal_hold.command(name="ls")
@cmroot_option
@json_option
@pass_session
def list_holds(session: Session, cmroot: str, as_json: bool) -> None:
    """List legal holds, also those that have ended.

    \b
    Example: replicator legal-hold ls --cmroot /cm
    """
    from cmroot.root import open_existing
    from replicator.removal.legal import all_holds

    root = open_existing(cmroot).place
    found = all_holds(root)
    rows = [(hold.name, hold.pattern, hold.until or "for ever", hold.by, hold.reason) for hold in found]
    lines = columns(("name", "on", "until", "by", "reason"), rows) if rows else ["no legal holds"]
    emit({"status": "shown", "root": root, "holds": [_fields(hold) for hold in found]}, as_json, lines)


@legal_hold.command(name="release")
@click.argument("name")
@cmroot_option
@json_option
@pass_session
def release(session: Session, name: str, cmroot: str, as_json: bool) -> None:
    """Release a legal hold; the covered data may be removed from now on.

    \b
    Example: replicator legal-hold release case-17 --cmroot /cm
    """
    from cmroot.root import open_existing
    from replicator.removal.legal import release_hold

    root = open_existing(cmroot).place
    release_hold(root, name)
    emit({"status": "released", "root": root, "name": name}, as_json, [f"released    {name}"])


def _fields(value: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _audit_lines(rows: list[AuditRow], more: bool) -> Iterable[str]:
    if not rows:
        return ["nothing is recorded"]
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
        for row in rows
    ]
    lines = list(columns(("time", "job", "run", "outcome", "what", "object", "path", "why"), shown))
    return [*lines, "there are more: see --limit"] if more else lines
