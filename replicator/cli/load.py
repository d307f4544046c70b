"""`replicator load`: replay a dump on a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.commands.load import load as run_load
from replicator.core.not_replicated import PARTIAL
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.planning import CHANGES, LoadPlan

# ---- brake -----------------------------------------------------------------------------------------------------------
# The options of the brake, for commands that load: how much of a replica one load may take away.


F = TypeVar("F", bound=Callable[..., Any])


# ---- load ------------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_load, engine=True)
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
        "the dump": loaded.files_from_dump,
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
