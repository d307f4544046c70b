"""`replicator cm` for the files of a change-management root: `ls`, `find` and `get` list kept files, find recorded ones
and restore one; `check`, `compact` and `expire` are an operator's regular maintenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from replicator.cli.options import Duration, Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text, time_text, took
from replicator.commands.cm import cm_check, cm_compact, cm_expire, cm_find, cm_get, cm_ls
from replicator.core.text import duration_text
from replicator.replay.restore.kept import KeptList
from replicator.replay.restore.restore import FoundList
from replicator.replay.restore.upkeep import CompactionPlanned, LogCompacted, RootChecked


@click.command()
@options_of(cm_ls, engine=True)
@json_option
@pass_session
def ls(session: Session, /, as_json: bool, **given: Any) -> int:
    """List kept files, the largest first.

    Shows the keeper, origin, first event, reason and end of retention of each.

    \b
    Example:
      replicator cm ls --cmroot /cm --limit 20
      replicator cm ls --cmroot /cm --table sales.orders --needed-by slot
    """
    listed = session.call(cm_ls, **given)
    emit(listed, as_json, _kept_lines(listed))
    return 0


def _kept_lines(listed: KeptList) -> Iterable[str]:
    if listed.entries:
        head = ("bytes", "keeper", "event", "needed by", "until", "was", "checksum")
        rows = [
            (
                size_text(each["size"]),
                each["keeper"],
                each["since_event"],
                each["needed_by"],
                each["until"],
                each["origin"] or "-",
                each["checksum"],
            )
            for each in listed.entries
        ]
        yield from columns(head, rows, right=("bytes", "event"))
        hidden = listed.total["entries"] - len(listed.entries)
        if hidden > 0:
            yield f"... and {hidden:,} more (--limit)"
        yield ""
    shared = f"{_counted(listed.shared)} that take no space of their own" if listed.shared["entries"] else None
    yield from aligned(
        [
            ("kept", _counted(listed.total)),
            *((f"  {need}", _counted(count)) for need, count in listed.by_need.items()),
            ("shared", shared),
            ("expiry", _expiry(listed)),
            ("damaged", listed.damaged_pins),
            ("captures", shortened(listed.databases) if listed.databases else "unknown until the next capture"),
        ]
    )


def _expiry(listed: KeptList) -> str:
    if listed.retention_seconds is None:
        return "no job of the configuration expires this root: files that nothing needs remain"
    stay = duration_text(listed.retention_seconds)
    return f"files that nothing else needs remain for {stay} after the source dropped them (job {listed.retention_job})"


def _counted(count: dict[str, int]) -> str:
    entries = f"{count['entries']:,} {'entry' if count['entries'] == 1 else 'entries'}"
    return f"{entries}, {size_text(count['bytes'])}"


@click.command()
@options_of(cm_find)
@json_option
@pass_session
def find(session: Session, /, as_json: bool, **given: Any) -> int:
    """Find files in the captured log.

    Shows the range of events in which the source had each file, and whether it is kept.

    \b
    Example:
      replicator cm find --cmroot /cm --path /warehouse/sales.db/orders/day=1
      replicator cm find --cmroot /cm --table sales.orders/day=1
      replicator cm find --cmroot /cm --checksum 6bba86c7
    """
    found = session.call(cm_find, **given)
    emit(found, as_json, _found_lines(found))
    return 0


def _found_lines(found: FoundList) -> Iterable[str]:
    if found.entries:
        head = ("bytes", "from event", "until event", "since", "kept", "table", "path", "checksum")
        yield from columns(head, map(_found_row, found.entries), right=("bytes", "from event", "until event"))
    hidden = found.total - len(found.entries)
    yield (
        f"... and {hidden:,} earlier ones (--limit)"
        if hidden > 0
        else f"{count_text(len(found.entries), 'file')} found"
    )


def _found_row(each: dict[str, Any]) -> tuple[Any, ...]:
    partition = f"/{each['partition']}" if each["partition"] else ""
    return (
        "" if each["size"] is None else size_text(each["size"]),
        each["since_event"],
        "present" if each["ended_position"] is None else each["ended_event"],
        time_text(each["since_time"]),
        "yes" if each["kept"] else "no",
        f"{each['db']}.{each['table']}{partition}",
        each["path"],
        each["checksum"] or "never read",
    )


@click.command()
@options_of(cm_get)
@json_option
@pass_session
def get(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore one kept file, by its path or its checksum. It is copied and compared before it gets its name.

    \b
    Example:
      replicator cm get /warehouse/sales.db/orders/part-0 --cmroot /cm --at 4711
      replicator cm get 6bba86c7 --cmroot /cm --to /tmp/part-0
    """
    restored = session.call(cm_get, **given)
    lines = aligned(
        [
            ("restored", restored.place),
            ("from", restored.origin),
            ("bytes", size_text(restored.size)),
            ("checksum", restored.checksum),
        ]
    )
    emit(restored, as_json, lines)
    return 0


# ---- check, compact and expire ---------------------------------------------------------------------------------------


DIFFERENT = 4
"""The exit code of a check that found damage, as of a verify that found differences."""

wait_option = click.option(
    "--wait",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Time to wait for a lease that another run holds, such as a capture.",
)


@click.command()
@options_of(cm_check, engine=True)
@json_options
@pass_session
def check(session: Session, /, as_json: bool, **given: Any) -> int:
    """Check kept files and the captured log.

    Names the repair of each finding. Compares every kept file with its name, and every reference of the log with the
    kept files. Changes nothing. Exit code 4 if something is damaged or missing.

    \b
    Example:
      replicator cm check --cmroot /cm
      replicator cm check --cmroot s3://bucket/cm --no-bytes --engine spark
    """
    checked = session.call(cm_check, **given)
    emit(checked, as_json, _checked_lines(checked))
    return DIFFERENT if checked.status == "damaged" else 0


def _checked_lines(checked: RootChecked) -> Iterable[str]:
    for each in checked.findings:
        yield f"{each['kind']}: {each['what']}"
        yield f"    {each['found']}" + (f" (needed by: {each['needed_by']})" if each["needed_by"] else "")
        yield f"    repair: {each['repair']}"
    hidden = sum(checked.counts.values()) - len(checked.findings)
    if hidden:
        yield f"... and {count_text(hidden, 'more finding')} (--limit)"
    read = f", {size_text(checked.bytes_read)} of them read" if checked.bytes_read else ", none of them read"
    yield from aligned(
        [
            (checked.status, checked.root),
            ("found", ", ".join(f"{number:,} {kind}" for kind, number in checked.counts.items()) or "no findings"),
            ("kept", f"{count_text(checked.entries, 'entry')}, {size_text(checked.bytes)}{read}"),
            ("versions", f"{checked.versions:,} kept by their buckets" if checked.versions else None),
            (
                "log",
                f"{count_text(checked.segments, 'segment')}, {count_text(checked.records, 'record')}, "
                f"{checked.files:,} file entries",
            ),
            (
                "note",
                None
                if checked.references_checked
                else "required contents were not checked, because the log is damaged",
            ),
            ("took", took(checked.seconds)),
        ]
    )


@click.command()
@options_of(cm_compact)
@json_option
@pass_session
def compact(session: Session, /, as_json: bool, **given: Any) -> int:
    """Merge small segments of the captured log. Preserves records, positions and the data of each capture.

    Safe to run concurrently with all commands: each merge takes the lease separately, and old segments are
    kept for an hour.

    \b
    Example: replicator cm compact --cmroot /cm
    """
    report = session.call(cm_compact, **given)
    if isinstance(report, CompactionPlanned):
        emit(
            report,
            as_json,
            [f"would merge {report.merged:,} of {count_text(report.segments_before, 'segment')} into {report.runs:,}"],
        )
    else:
        emit(report, as_json, _compacted_lines(report))
    return 0


def _compacted_lines(compacted: LogCompacted) -> Iterable[str]:
    return aligned(
        [
            (compacted.status, compacted.root),
            ("segments", f"{compacted.segments_before:,} before, {compacted.segments_after:,} now"),
            (
                "merged",
                f"{compacted.merged:,} into {compacted.runs:,}: {count_text(compacted.records, 'record')}, "
                f"{compacted.files:,} file entries; {size_text(compacted.bytes_before)} became "
                f"{size_text(compacted.bytes_after)}"
                if compacted.runs
                else "none: no small segments",
            ),
            ("removed", f"{len(compacted.swept):,} that were merged an hour ago or more" if compacted.swept else None),
            ("took", took(compacted.seconds)),
        ]
    )


@click.command()
@options_of(cm_expire, engine=True)
@json_options
@pass_session
def expire(session: Session, /, as_json: bool, **given: Any) -> int:
    """Delete kept files that nothing needs.

    Files that the source, a slot, a hold, a pinned dump or the retention window needs are kept. Safe to run
    concurrently with captures, dumps and loads, and again after a crash.

    \b
    Example:
      replicator cm expire --cmroot /cm --older-than 7d --dry-run
      replicator cm expire --cmroot /cm --older-than 7d
    """
    report = session.call(cm_expire, **given)
    for words in report.warnings:
        note(f"warning: {words}")
    emit(report, as_json, _expired_lines(report.to_dict()))
    return 0


def _expired_lines(said: Mapping[str, Any]) -> Iterable[str]:
    planned = said["status"] == "planned"
    back = said.get("taken_back", {})
    versions = said["going_versions"] if planned else said["removed_versions"]
    if planned:
        going = _count(said["going_entries"], said["going_bytes"])
    else:
        removed = _count(said["removed_entries"], said["removed_bytes"])
        going = f"{removed}; {size_text(said['bytes_freed'])} freed"
    return aligned(
        [
            (
                said["status"],
                f"{said['root']}, files released more than {duration_text(said['older_than_seconds'])} ago",
            ),
            ("would delete" if planned else "deleted", going),
            *((f"  {reason}", _count(**count)) for reason, count in said["going"].items()),
            ("versions", _count(**versions) if versions["entries"] else None),
            (
                "snapshots",
                [f"{each}, unknown bytes" for each in said.get("removed_snapshots", said["going_snapshots"])],
            ),
            ("restored", _count(**back) + ", needed again" if back.get("entries") else None),
            ("kept", _count(said["kept_entries"], said["kept_bytes"])),
            *((f"  {reason}", _count(**count)) for reason, count in said["kept"].items()),
            ("held by", [_holding(each) for each in said["held"]]),
            (
                "INVALIDATED",
                [
                    f"slot {each['slot']}: confirmed nothing for {duration_text(each['lag_seconds'])}; "
                    "its consumer must bootstrap"
                    for each in said["given_up"]
                ],
            ),
            ("forgotten", shortened(f"dump {name}" for name in said.get("forgotten_dumps", []))),
            ("unknown", f"{said['unknown']:,} foreign names in files/" if said["unknown"] else None),
            ("took", took(said["seconds"])),
        ]
    )


def _count(entries: int, bytes: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}, {size_text(bytes)}"


def _holding(each: Mapping[str, Any]) -> str:
    alone = f", {size_text(each['alone_bytes'])} of it alone" if each["alone_entries"] else ""
    age = duration_text(each["age_seconds"])
    return f"{each['pin']}: {_count(each['entries'], each['bytes'])}{alone}, for {age}"
