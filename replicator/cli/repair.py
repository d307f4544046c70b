"""`replicator repair`: copy exactly what differs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.brake import brake_options
from replicator.cli.options import (
    EngineChoice,
    Session,
    cmroot_option,
    dry_run_option,
    engine_options,
    exclude_option,
    formats_option,
    include_option,
    json_option,
    map_option,
    pass_session,
    rename_option,
    source_option,
    target_option,
)
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.core.not_replicated import PARTIAL
from replicator.errors import UsageError

if TYPE_CHECKING:
    from replicator.compare.repair import Repaired
    from replicator.core.table_format import FormatChoice
    from replicator.replay.apply.brake import Brake

DIFFERENT = 4


@click.command()
@source_option
@target_option
@cmroot_option
@click.option("--target-cmroot", metavar="PLACE", help="The target's change-management root, which keeps removed "
              "files; default: .cmroot in the warehouse.")  # fmt: skip
@click.option("--db", required=True, metavar="NAME", help="The database, by its source name.")
@click.option("--table", multiple=True, metavar="NAME", help="Only this table, even without a difference; repeatable.")
@click.option("--from", "report", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="FILE",
              help="Output of `verify --json`: repair its differences instead of comparing first.")  # fmt: skip
@rename_option
@map_option
@include_option
@exclude_option
@click.option("--level", type=click.Choice(["metadata", "size", "checksum"]), default="checksum", show_default=True,
              help="Comparison of files: none, name and size, or content.")  # fmt: skip
@click.option("--drop-extra", is_flag=True, help="Also drop tables that only the target has and replication did not "
              "create; their data is moved to the target's root.")  # fmt: skip
@click.option(
    "--warehouse",
    metavar="PLACE",
    help="Parent directory of the target's databases; default: that of its default database.",
)
@click.option("--external-base", metavar="PLACE", help="Directory for external data outside of its database's "
              "directory, in <database>.db; default: external in the warehouse.")  # fmt: skip
@click.option(
    "--scratch", metavar="DIR", help="A directory that executors can read; default: the system's temporary directory."
)
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of tables committed concurrently."
)
@formats_option
@dry_run_option
@brake_options
@engine_options
@json_option
@pass_session
def repair(
    session: Session, source: str, target: str, cmroot: str, target_cmroot: str | None, db: str, table: tuple[str, ...],
    report: Path | None, rename_db: tuple[str, ...], map_location: tuple[str, ...], include: tuple[str, ...],
    exclude: tuple[str, ...], level: Any, drop_extra: bool, warehouse: str | None, external_base: str | None,
    scratch: str | None, jobs: int, formats: FormatChoice, dry_run: bool, brake: Brake | None, engine: EngineChoice,
    as_json: bool,
) -> int:  # fmt: skip
    """Restore a replica to the state of its last load: find the differences, and copy exactly these. Exit code 4 if
    differences remain, 3 if only objects remain that are not replicated or were inaccessible.

    The reference is the source's captured log at the target's checkpoint, which does not move. Later changes of the
    source come with the next load. Removed files are moved to the target's root. Safe to run twice.

    \b
    Example:
      replicator repair --source thrift://a:9083 --target thrift://b:9083 --cmroot /cm --db sales --dry-run
      replicator repair --source prod --target dr --cmroot /cm --db sales --from verify.json
      replicator repair --source prod --target dr --cmroot /cm --db sales --table orders
    """
    from cmroot.root import open_existing
    from replicator.commands.base import names
    from replicator.compare.repair import RepairOptions, planned
    from replicator.compare.repair import repair as mend
    from replicator.events.scope import Patterns
    from replicator.replay.places.placement import parse_pairs, parse_renames

    if table and report:
        raise UsageError("--table and --from both say what to repair", hint="give one of them")
    options = RepairOptions(
        db=db.lower(), rename=dict(parse_renames(rename_db)).get(db.lower()), tables=names(table),
        differing=_differing(report, db.lower()) if report else None, patterns=Patterns.parse(include, exclude),
        level=level, drop_extra=drop_extra, cmroot=target_cmroot, warehouse=warehouse, external=external_base,
        map_locations=parse_pairs(map_location, "--map-location"), jobs=jobs, scratch=scratch, formats=formats,
        brake=brake,
    )  # fmt: skip
    root = open_existing(cmroot)
    with (
        session.metastore(source) as here,
        session.metastore(target) as there,
        session.engines(engine) as engines,
    ):
        if dry_run:
            with planned(root, here, there, options, engine=engines, progress=session.progress) as plan:
                described = plan.described(there, engines, session.progress)
            emit({"status": "planned", "db": options.db, **described}, as_json, _plan_lines(options.db, described))
            return PARTIAL if described["not_replicated"] else 0
        repaired = mend(root, here, there, options, engine=engines, progress=session.progress)
    emit(repaired, as_json, _repaired_lines(repaired))
    return DIFFERENT if repaired.remaining_count else PARTIAL if repaired.not_replicated else 0


def _differing(file: Path, db: str) -> list[str]:
    """Names of one database that a report of verify says differ. Raises UsageError for anything else."""
    hint = "write it with `replicator verify --json > FILE`"
    try:
        report = json.loads(file.read_text())
        found = {each["object"].partition("/")[0] for each in report["differences"]} | set(report.get("differing", ()))
        whole = "differing" in report or report["difference_count"] == len(report["differences"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is no report of verify: {error}", hint=hint) from error
    if not whole:
        raise UsageError(f"{file} does not name everything that differs", hint=hint)
    return sorted(name for name in found if name == db or name.startswith(f"{db}."))


def _plan_lines(db: str, plan: dict[str, Any]) -> Iterable[str]:
    return aligned(
        [
            ("would repair", f"{db} as at event {plan['event']} (position {plan['position']})"),
            ("differences", plan["found"]),
            ("tables", shortened(plan["tables"])),
            ("create", shortened(plan["create_tables"])),
            ("drop", shortened(plan["drop_tables"])),
            ("partitions", f"{plan['partitions_to_drop']:,} dropped" if plan["partitions_to_drop"] else None),
            ("copy", f"{count_text(plan['files_to_copy'], 'file')}, {size_text(plan['bytes_to_copy'])}"),
            ("remove", f"{count_text(plan['files_to_remove'], 'file')}, {size_text(plan['bytes_to_remove'])}"),
            ("missing", count_text(plan["files_missing"], "file") if plan["files_missing"] else None),
            ("not replicated", shortened(f"{each['object']}: {each['reason']}" for each in plan["not_replicated"])),
            ("warning", shortened(plan["warnings"])),
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
