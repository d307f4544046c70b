"""`replicator verify`: compare a target with its source."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, duration_text, emit, shortened, size_text, took, value_text
from replicator.commands.verify import repair as run_repair
from replicator.commands.verify import verify as run_verify
from replicator.compare.differences import Difference
from replicator.compare.repair import FailedRepair, Repaired, RepairedDatabases, RepairPlan
from replicator.compare.sampling import Sampled
from replicator.compare.verify import Verified
from replicator.core.not_replicated import PARTIAL

DIFFERENT = 4


@click.command()
@options_of(run_verify, engine=True)
@json_options
@pass_session
def verify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Compare every object and file of both sides, and list each difference. Exit code 4 if any.

    With --sample or --sample-bytes, each run compares some tables, and successive runs all of them in turn. Differing
    tables that the source changed since the last load are reported as behind.

    \b
    Example:
      replicator verify west
      replicator verify --source thrift://a:9083 --target thrift://b:9083 --db sales --rename-db sales=sales_copy
      replicator verify --source prod --target dr --db sales --level size
      replicator verify --source prod --target dr --db sales --sample 100 --sample-bytes 50GiB \\
          --target-cmroot /cm-of-dr
    """
    report = session.call(run_verify, **given)
    more = _sample_lines(report) if isinstance(report, Sampled) else []
    emit(report, as_json, [*_lines(report), *more])
    return DIFFERENT if report.difference_count else PARTIAL if report.not_replicated else 0


def _lines(report: Verified | Sampled) -> Iterable[str]:
    for each in report.differences:
        yield _line(each)
    hidden = report.difference_count - len(report.differences)
    if hidden:
        yield f"... and {count_text(hidden, 'more difference')}"
    yield from (f"not compared: {each}" for each in shortened(map(str, report.not_replicated)))
    compared = count_text(report.objects, "object")
    if report.level != "metadata":
        read = f", {report.files_read:,} read because they have no CRC" if report.files_read else ""
        compared += f" and {count_text(report.files, 'file')} ({size_text(report.bytes)}, by {report.level}{read})"
    found = f"{count_text(report.difference_count, 'difference')} in " if report.difference_count else ""
    yield f"{report.status}: {found}{compared}, {took(report.seconds)}"


def _sample_lines(report: Sampled) -> Iterable[str]:
    yield from (f"behind: {name}" for name in shortened(report.behind))
    yield from (f"warning: {each}" for each in report.warnings)
    waits = f", the longest waiting {duration_text(report.oldest)}" if report.oldest is not None else ""
    yield (
        f"sampled: {report.sampled:,} of {count_text(report.tables, 'table')}; {report.never:,} never compared{waits}; "
        f"{report.open:,} different when last compared"
    )


def _line(each: Difference) -> str:
    """`db.table  column comment c1: a expected, b found`."""
    what = f"{each.kind} {each.field}".strip()
    sides = [("nothing" if value is None else value_text(value)) for value in (each.source, each.target)]
    return f"{each.object}  {what}: {sides[0]} expected, {sides[1]} found"


# ---- repair ----------------------------------------------------------------------------------------------------------
# `replicator repair`: copy the differences of a replica.


@click.command()
@options_of(run_repair, engine=True)
@json_options
@pass_session
def repair(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore a replica to the state of its last load: find the differences, and copy exactly these. Exit code 4 if
    differences remain, 3 if only objects remain that are not replicated or were inaccessible. Of several databases, all
    are repaired that can be; the exit code is that of an error, if there was one.

    The reference is the source's captured log at the target's checkpoint, which does not move. Later changes of the
    source come with the next load. Removed files are moved to the target's root. Safe to run twice.

    \b
    Example:
      replicator repair --source thrift://a:9083 --target thrift://b:9083 --cmroot /cm --db sales --dry-run
      replicator repair --source prod --target dr --cmroot /cm --db sales --from verify.json
      replicator repair --source prod --target dr --cmroot /cm --db sales --table orders
      replicator repair west --dry-run
    """
    report = session.call(run_repair, **given)
    if not isinstance(report, RepairedDatabases):
        emit(report, as_json, _repair_lines(report))
        return _code(report)
    emit(report, as_json, chain(*map(_repair_lines, report.databases), *map(_failed_lines, report.failed)))
    return report.failed_code or max(map(_code, report.databases))


def _failed_lines(failed: FailedRepair) -> Iterable[str]:
    return aligned([("failed", f"{failed.db}: {failed.message}"), ("hint", failed.hint or None)])


def _code(report: Repaired | RepairPlan) -> int:
    if isinstance(report, Repaired) and report.remaining_count:
        return DIFFERENT
    return PARTIAL if report.not_replicated else 0


def _repair_lines(report: Repaired | RepairPlan) -> Iterable[str]:
    return _plan_lines(report) if isinstance(report, RepairPlan) else _repaired_lines(report)


def _plan_lines(plan: RepairPlan) -> Iterable[str]:
    return aligned(
        [
            ("would repair", f"{plan.db} as at event {plan.event} (position {plan.position})"),
            ("differences", plan.found),
            ("tables", shortened(plan.tables)),
            ("create", shortened(plan.create_tables)),
            ("drop", shortened(plan.drop_tables)),
            ("partitions", f"{plan.partitions_to_drop:,} dropped" if plan.partitions_to_drop else None),
            ("copy", f"{count_text(plan.files_to_copy, 'file')}, {size_text(plan.bytes_to_copy)}"),
            ("remove", f"{count_text(plan.files_to_remove, 'file')}, {size_text(plan.bytes_to_remove)}"),
            ("missing", count_text(plan.files_missing, "file") if plan.files_missing else None),
            ("not replicated", shortened(f"{each.object}: {each.reason}" for each in plan.not_replicated)),
            ("warning", shortened(plan.warnings)),
        ]
    )


def _repaired_lines(repaired: Repaired) -> Iterable[str]:
    return aligned(
        [
            (repaired.status, f"{repaired.db} as at event {repaired.event} (position {repaired.position})"),
            ("differences", repaired.found),
            ("tables", shortened(repaired.tables)),
            ("copied", f"{count_text(repaired.files_copied, 'file')}, {size_text(repaired.bytes_copied)}"),
            ("removed", count_text(repaired.files_removed, "file") if repaired.files_removed else None),
            ("changed", count_text(repaired.objects_changed, "object")),
            (
                "remaining",
                shortened(f"{each.object}: {each.kind} {each.field}".rstrip() for each in repaired.remaining),
            ),
            ("not replicated", shortened(map(str, repaired.not_replicated))),
            ("warning", shortened(repaired.warnings)),
            ("took", took(repaired.seconds)),
        ]
    )
