"""`replicator capture`, `dump` and `load`: the path of data, from the source's events to a replica."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from replicator.captures.dumps.dump import Dumped, DumpPlan
from replicator.captures.recording import Captured, CapturesFollowed
from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, note, shortened, size_text, sources_text, took, write
from replicator.commands.capture import capture as run_capture
from replicator.commands.replication import dump as run_dump
from replicator.commands.replication import load as run_load
from replicator.core.not_replicated import PARTIAL
from replicator.core.runtime import INTERRUPTED, TERMINATED, Terminated
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.planning import CHANGES, LoadPlan

# ---- capture ---------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_capture, engine=True)
@json_options
@pass_session
def capture(session: Session, /, as_json: bool, **given: Any) -> int:
    """Read the notification log into $cmroot, with the files and checksums of every change, and keep the files.

    A root captures every database that a command has ever named for it; the output lists them.

    \b
    Example:
      replicator capture west
      replicator capture --source thrift://a:9083 --cmroot /warehouse/.cmroot --db sales
      replicator capture --source prod --cmroot /warehouse/.cmroot --follow --interval 30s
    """
    if given["follow"]:
        return _follow(session, as_json, given)
    captured = session.call(run_capture, **given)
    emit(captured, as_json, describe(captured))
    return PARTIAL if captured.not_replicated else 0


def describe(captured: Captured) -> Iterable[str]:
    """Formats the report of a capture."""
    yield from aligned(
        [
            (
                captured.status,
                f"{count_text(captured.records, 'record')} ({captured.observed:,} found by scan) "
                f"from {count_text(captured.events, 'event')}",
            ),
            ("through", f"event {captured.through_event}, position {captured.position}"),
            (
                "files",
                f"{captured.files:,} new or changed, {size_text(captured.bytes)}, kept by {captured.keeper}"
                if captured.files
                else "no new or changed ones",
            ),
            ("log", captured.root),
            ("databases", shortened(captured.databases)),
            ("not replicated", shortened(map(str, captured.not_replicated))),
            ("unknown", shortened(captured.unknown)),
            ("scanned", captured.scanned),
            ("warning", shortened(captured.warnings)),
            ("took", took(captured.seconds)),
        ]
    )


def _follow(session: Session, as_json: bool, given: Mapping[str, Any]) -> int:
    """Captures until a signal ends it. Raises errors that a retry cannot fix."""
    total = CapturesFollowed()

    def reported(captured: Captured) -> None:
        total.add(captured)
        if captured.records and not as_json:
            write(
                [
                    f"event {captured.through_event}, position {captured.position}: "
                    f"{count_text(captured.records, 'record')}, {count_text(captured.files, 'file')}, "
                    f"{size_text(captured.bytes)}"
                ]
            )

    def failed(error: Exception, wait: float) -> None:
        note(f"{error}; trying again in {wait:.0f} s")

    code = 0
    try:
        session.call(run_capture, reported=reported, failed=failed, **given)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    said = f"stopped after {count_text(total.rounds, 'capture')}"
    emit({**total.to_dict(), "status": "stopped", "exit_code": code}, as_json, [said])
    return code


# ---- dump ------------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_dump, engine=True)
@json_options
@pass_session
def dump(session: Session, /, as_json: bool, **given: Any) -> int:
    """Capture, then write a dump: a complete state of some databases (a bootstrap), or their changes (with --since, or
    with a confirmed --slot).

    A dump contains file names and checksums, but no data; load reads the files from the source or from $cmroot. With
    --with-data it contains the bytes, too, and can be loaded when the source and $cmroot are gone. With --keeper none,
    a complete dump needs no $cmroot: nothing is written at the source, and files that change before they are copied are
    missing.

    \b
    Example:
      replicator dump --source thrift://a:9083 --cmroot /cm --db sales --out /dumps/1
      replicator dump --source prod --cmroot /cm --db sales --since /dumps/1 --out /dumps/2 --exclude 'tmp_.*'
      replicator dump --source prod --cmroot /cm --db sales --slot dr --out /dumps/3
      replicator dump west --out /dumps/4
      replicator dump west --with-data --out s3://backup/west/1
      replicator dump west --with-data --into s3://backup/west --complete-every 7d
      replicator dump --source prod --keeper none --db sales --with-data --out /backup/1
    """
    report = session.call(run_dump, **given)
    if isinstance(report, DumpPlan):
        emit(report, as_json, _dump_plan_lines(report))
        return 0
    emit(report, as_json, _dumped_lines(report))
    return PARTIAL if report.not_replicated else 0


def _dumped_lines(dumped: Dumped) -> Iterable[str]:
    begin = "the beginning"
    if dumped.from_event is not None:
        begin = f"event {dumped.from_event} (position {dumped.from_position})"
    return aligned(
        [
            (dumped.status, f"{dumped.dump} ({dumped.kind})"),
            ("range", f"{begin} to event {dumped.to_event} (position {dumped.to_position})"),
            ("records", f"{dumped.records:,} ({dumped.observed:,} found by scan)"),
            ("files", f"{dumped.files:,} named, {size_text(dumped.bytes)}"),
            ("data", _data(dumped)),
            ("slot", dumped.slot or None),
            ("not replicated", shortened(map(str, dumped.not_replicated))),
            ("unknown", shortened(dumped.unknown)),
            ("scanned", dumped.scanned),
            ("warning", shortened(dumped.warnings)),
            ("took", took(dumped.seconds)),
        ]
    )


def _data(dumped: Dumped) -> str | None:
    if not dumped.with_data:
        return None
    text = f"{count_text(dumped.data_files, 'content')}, {size_text(dumped.data_bytes)}"
    text += f" ({dumped.data_files_copied:,} copied by this run)"
    if dumped.data_files_referenced:
        text += f"; {count_text(dumped.data_files_referenced, 'content')} in earlier dumps"
    return text


def _dump_plan_lines(plan: DumpPlan) -> Iterable[str]:
    begin = "the beginning" if plan.from_event is None else f"event {plan.from_event}"
    return aligned(
        [
            ("would dump", f"{plan.kind}, {begin} to event {plan.to_event}"),
            ("tables", shortened(plan.tables)),
            ("partitions", plan.partitions),
            ("records", plan.records),
            ("files", f"{plan.files:,}, {size_text(plan.bytes)}"),
            ("not counted", f"{count_text(plan.events_not_captured, 'event')} not captured yet"),
            ("note", "counts are of changes captured so far; a dump captures first"),
        ]
    )


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
    emit(report, as_json, _load_plan_lines(report) if isinstance(report, LoadPlan) else _loaded_lines(report))
    return PARTIAL if report.not_replicated else 0


def _loaded_lines(loaded: Loaded) -> Iterable[str]:
    began = "" if loaded.from_event is None else f"from event {loaded.from_event} "
    yield from aligned(
        [
            (loaded.status, f"{loaded.dump} ({loaded.kind})"),
            ("target", f"at event {loaded.to_event} {began}".strip()),
            ("records", f"{loaded.records:,}, {loaded.squashed:,} of them squashed"),
            (
                "copied",
                f"{count_text(loaded.files_copied, 'file')}, {size_text(loaded.bytes_copied)}"
                + sources_text(loaded, dump=loaded.files_from_dump),
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


def _load_plan_lines(plan: LoadPlan) -> Iterable[str]:
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
