"""`replicator load`: replay a dump on a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from cmroot.store.hdfs import ATTRIBUTES
from replicator.cli.options import (
    Session,
    Size,
    bandwidth_option,
    dry_run_option,
    engine_options,
    formats_option,
    jobs_option,
    json_options,
    key_file_option,
    map_option,
    of_policy_option,
    pass_session,
    rename_option,
    target_catalog_option,
    target_option,
)
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.cli.table import renamed_option
from replicator.commands.load import load as run_load
from replicator.core.not_replicated import PARTIAL
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.planning import CHANGES, LoadPlan

# ---- brake -----------------------------------------------------------------------------------------------------------
# The options of the brake, for commands that load: how much of a replica one load may take away.


F = TypeVar("F", bound=Callable[..., Any])


def removal_options(command: F) -> F:
    """`--max-share`, `--max-bytes`, `--allow-removals` and `--bandwidth`: the fields of `Braked`."""
    for option in (
        bandwidth_option,
        click.option("--allow-removals", is_flag=True, help="Lift the removal limits for this run."),
        click.option(
            "--max-bytes",
            type=Size(),
            help="Refuse a load that would remove more; default: that of [guard], else 1TiB.",
        ),
        click.option(
            "--max-share",
            type=click.FloatRange(0, 1),
            help="Refuse a load that would remove a larger "
            "share of the replica's bytes; default: that of [guard], else 0.5.",
        ),
    ):
        command = option(command)
    return command


# ---- load ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("dump", metavar="DUMP")
@of_policy_option
@target_option
@target_catalog_option
@click.option(
    "--warehouse",
    metavar="PLACE",
    help="Parent directory of the target's databases; default: that of its default database.",
)
@renamed_option(
    "--target-cmroot",
    old="--cmroot",
    metavar="PLACE",
    help="The target's change-management root, which keeps replaced files; default: .cmroot in the warehouse.",
)
@rename_option
@map_option
@click.option(
    "--external-base",
    metavar="PLACE",
    help="Directory for external data outside of its database's "
    "directory, in <database>.db; default: external in the warehouse.",
)
@click.option(
    "--source-cmroot",
    metavar="PLACE",
    help="The source's root, if its path on this machine differs from that in the dump.",
)
@click.option("--overwrite", is_flag=True, help="Replace objects that are newer, or that replication did not create.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Assert that another load, whose mark on the target names an unreachable root, has ended.",
)
@jobs_option
@key_file_option
@formats_option
@click.option(
    "--preserve",
    type=click.Choice(ATTRIBUTES),
    multiple=True,
    help="From HDFS to HDFS: what copied files and their directories get of the source's beside the bytes; repeatable.",
)
@dry_run_option
@removal_options
@engine_options
@json_options
@pass_session
def load(session: Session, /, as_json: bool, **given: Any) -> int:
    """Replay a finished dump on a target. Safe to run twice, and again after any crash.

    \b
    Example:
      replicator load /dumps/1 --policy west
      replicator load /dumps/1 --target thrift://b:9083 --rename-db sales=sales_copy
      replicator load /dumps/1 --target dr --map-location s3://a/raw=s3://b/raw --dry-run
    """
    report = session.call(run_load, **given)
    emit(report, as_json, _plan_lines(report) if isinstance(report, LoadPlan) else _loaded_lines(report))
    return PARTIAL if report.not_replicated else 0


def _loaded_lines(loaded: Loaded) -> Iterable[str]:
    began = "" if loaded.from_event is None else f"from event {loaded.from_event} "
    origins = {
        "the source": loaded.files_from_source,
        "$cmroot": loaded.files_from_cmroot,
        "the target itself": loaded.files_from_target,
    }
    said = ", ".join(f"{number:,} from {place}" for place, number in origins.items() if number)
    yield from aligned(
        [
            (loaded.status, f"{loaded.dump} ({loaded.kind})"),
            ("target", f"at event {loaded.to_event} {began}".strip()),
            ("records", f"{loaded.records:,}, {loaded.squashed:,} of them squashed"),
            (
                "copied",
                f"{count_text(loaded.files_copied, 'file')}, {size_text(loaded.bytes_copied)}"
                + (f" ({said})" if said else ""),
            ),
            ("in place", f"{count_text(loaded.files_skipped, 'file')}" if loaded.files_skipped else None),
            ("removed", f"{count_text(loaded.files_removed, 'file')}" if loaded.files_removed else None),
            ("changed", count_text(loaded.objects_changed, "object")),
            ("missing", shortened(f"{each['file']}: {each['reason']}" for each in loaded.missing)),
            ("not replicated", shortened(map(str, loaded.not_replicated))),
            ("warning", shortened(loaded.warnings)),
            ("took", f"{took(loaded.seconds)} (copy {loaded.copy_seconds:.1f}, commit {loaded.commit_seconds:.1f})"),
        ]
    )


def _plan_lines(plan: LoadPlan) -> Iterable[str]:
    if plan.skipped:
        return [f"nothing to do: {plan.skipped}"]
    return aligned(
        [
            *((name.replace("_", " "), shortened(getattr(plan, name))) for name in (*CHANGES, "warnings")),
            ("partitions", f"{plan.partitions_touched:,} changed"),
            ("copy", f"at most {count_text(plan.files, 'file')}, {size_text(plan.bytes)}"),
            ("remove", f"{count_text(plan.files_to_remove, 'file')}, {size_text(plan.bytes_to_remove)}"),
            ("removals", shortened(plan.goes)),
            ("refused", plan.refused or None),
            ("not replicated", shortened(f"{each.object}: {each.reason}" for each in plan.not_replicated)),
            ("locations", shortened(f"{name} at {place}" for name, place in plan.locations.items())),
        ]
    )
