"""`replicator dump`: capture, then write a dump directory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.captures.dumps.dump import Dumped, DumpPlan
from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.commands.dump import dump as run
from replicator.core.not_replicated import PARTIAL


@click.command()
@options_of(run, engine=True)
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
    report = session.call(run, **given)
    if isinstance(report, DumpPlan):
        emit(report, as_json, _plan_lines(report))
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


def _plan_lines(plan: DumpPlan) -> Iterable[str]:
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
