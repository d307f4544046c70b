"""`replicator dump`: capture, then write a dump directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import (
    EngineChoice,
    Session,
    cmroot_option,
    deep_option,
    dry_run_option,
    empty_option,
    engine_options,
    exclude_option,
    formats_option,
    include_option,
    json_option,
    keeper_option,
    key_file_option,
    no_scan_option,
    pass_session,
    source_option,
)
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.core.not_replicated import PARTIAL
from replicator.errors import UsageError

if TYPE_CHECKING:
    from cmroot.root import ChangeRoot
    from replicator.captures.manifest import Manifest
    from replicator.core.table_format import FormatChoice
    from replicator.dumps.dump import Dumped
    from replicator.events.scope import Patterns
    from replicator.metastore.client import MetastoreReader


@click.command()
@source_option
@cmroot_option
@click.option("--out", required=True, metavar="PLACE", help="The dump's directory, new or empty.")
@click.option("--db", multiple=True, required=True, metavar="NAME", help="A database to dump; repeatable.")
@include_option
@exclude_option
@click.option("--since", metavar="X", help="Incremental: an event id, a time (UTC), or an earlier dump's directory.")
@click.option("--until", metavar="X", help="End at this event id or time instead of now.")
@click.option("--slot", default="", metavar="NAME", help="Who takes the dumps: $cmroot keeps what it needs "
              "until its load has confirmed it. Without --since, the dump begins there; a new one gets a "
              "bootstrap.")  # fmt: skip
@click.option("--allow-replica", is_flag=True, help="Dump a database that is a replica itself, to replicate it on.")
@click.option("--no-capture", is_flag=True, help="Dump what is captured already; the source is not asked.")
@no_scan_option
@deep_option
@keeper_option
@empty_option
@key_file_option
@formats_option
@dry_run_option
@engine_options
@json_option
@pass_session
def dump(
    session: Session, source: str, cmroot: str, out: str, db: tuple[str, ...], include: tuple[str, ...],
    exclude: tuple[str, ...], since: str | None, until: str | None, slot: str, allow_replica: bool, no_capture: bool,
    no_scan: bool, deep: bool, keeper: str, empty: tuple[str, ...], key_file: str | None, formats: FormatChoice,
    dry_run: bool,
    engine: EngineChoice, as_json: bool,
) -> int:  # fmt: skip
    """Capture, then write a dump: the whole of some databases (a bootstrap), or with --since, or with a --slot that
    has confirmed something, what changed in them.

    A dump names files and their checksums and carries none; load reads them from the source or from $cmroot.

    \b
    Example:
      replicator dump --source thrift://a:9083 --cmroot /cm --db sales --out /dumps/1
      replicator dump --source prod --cmroot /cm --db sales --since /dumps/1 --out /dumps/2 --exclude 'tmp_.*'
      replicator dump --source prod --cmroot /cm --db sales --slot dr --out /dumps/3
    """
    from cmroot.root import open_existing
    from replicator import api
    from replicator.api import names
    from replicator.events.scope import Patterns
    from replicator.policies.roles import epochs_to_dump

    if empty and no_capture:
        raise UsageError("--empty is a word to the capture, and --no-capture leaves that out", hint="give one of them")
    uri = session.config.metastore_uri(source)
    if dry_run:
        patterns = Patterns.parse(include, exclude)
        with session.metastore(source) as metastore:
            epochs_to_dump(metastore, names(db), allow_replica=allow_replica)
            plan = _preview(metastore, open_existing(cmroot), names(db), patterns, since, until, slot)
        emit({"status": "planned", "dump": out, **plan}, as_json, _preview_lines(plan))
        return 0
    with session.engines(engine) as engines:
        dumped = api.dump(
            source=uri, cmroot=cmroot, out=out, db=db, include=include, exclude=exclude, since=since, until=until,
            slot=slot, capture_first=not no_capture, scan=not no_scan, deep=deep, keeper=keeper, empty=empty,
            allow_replica=allow_replica, formats=formats, engine=engines, progress=session.progress, key_file=key_file,
        )  # fmt: skip
    emit(dumped, as_json, _dumped_lines(dumped))
    return PARTIAL if dumped.not_replicated else 0


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
            ("slot", dumped.slot or None),
            ("not replicated", shortened(map(str, dumped.not_replicated))),
            ("unknown", shortened(dumped.unknown)),
            ("warning", shortened(dumped.warnings)),
            ("took", took(dumped.seconds)),
        ]
    )


# ---- --dry-run ----------------------------------------------------------------------------------------------------


def _preview(
    source: MetastoreReader, root: ChangeRoot, databases: Sequence[str], patterns: Patterns, since: str | None,
    until: str | None, slot: str,
) -> dict[str, Any]:  # fmt: skip
    """What a dump of what is captured by now would hold. Approximate: the source is not captured first."""
    from cmroot.lease import acquire
    from cmroot.log.captured import segments
    from replicator.captures.fold import open_manifest
    from replicator.dumps.dump import begin_of_dump
    from replicator.dumps.points import resolve_until

    with acquire(root.place, "dump"), open_manifest(root) as manifest:
        log = segments(root.place)
        end = resolve_until(log, until)
        begin = begin_of_dump(root, log, since, slot)
        found = (
            _count_state(manifest, databases, patterns)
            if begin is None
            else _count_range(root, begin.position, end.position, databases, patterns)
        )
        waiting = max(0, source.current_event_id() - (manifest.event or 0)) if until is None else 0
    return {
        "kind": "bootstrap" if begin is None else "incremental",
        "from_event": begin.event if begin else None, "to_event": end.event, **found, "events_not_captured": waiting,
        "approximate": True,
    }  # fmt: skip


def _count_state(manifest: Manifest, databases: Sequence[str], patterns: Patterns) -> dict[str, Any]:
    tables, partitions, files, size = [], 0, 0, 0
    for db in databases:
        for name in filter(patterns.match, manifest.table_names(db)):
            tables.append(f"{db}.{name}")
            partitions += manifest.partition_count(db, name)
            for row in manifest.table_files(db, name):
                files += 1
                size += row[3]
    return {"tables": tables, "partitions": partitions, "files": files, "bytes": size}


def _count_range(
    root: ChangeRoot, after: int, until: int, databases: Sequence[str], patterns: Patterns
) -> dict[str, Any]:
    from cmroot.log.captured import ADD, segments
    from replicator.captures.fold import read_records
    from replicator.events.record import touched_table

    tables: set[str] = set()
    records = files = size = 0
    for segment in segments(root.place):
        if segment.last <= after or segment.first > until:
            continue
        for record in read_records(segment, after, until):
            table = touched_table(record.change)
            if table and table[0] in databases and patterns.match(table[1]):
                tables.add(".".join(table))
                records += 1
        for batch in segment.file_batches(["position", "op", "db", "table", "size"]):
            for row in batch.to_pylist():
                in_range = after < row["position"] <= until and row["op"] == ADD
                if in_range and row["db"] in databases and patterns.match(row["table"]):
                    files += 1
                    size += row["size"] or 0
    return {"tables": sorted(tables), "records": records, "files": files, "bytes": size}


def _preview_lines(plan: dict[str, Any]) -> Iterable[str]:
    begin = "the beginning" if plan["from_event"] is None else f"event {plan['from_event']}"
    return aligned(
        [
            ("would dump", f"{plan['kind']}, {begin} to event {plan['to_event']}"),
            ("tables", shortened(plan["tables"])),
            ("partitions", plan.get("partitions")),
            ("records", plan.get("records")),
            ("files", f"{plan['files']:,}, {size_text(plan['bytes'])}"),
            ("not counted", f"{count_text(plan['events_not_captured'], 'event')} not captured yet"),
            ("note", "counts are of what is captured by now; a dump captures first"),
        ]
    )
