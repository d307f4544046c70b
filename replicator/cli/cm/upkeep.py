"""`replicator cm check`, `compact` and `expire`: what an operator runs from time to time, beside everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.cm.kept import limit_option
from replicator.cli.first_run import opened_root
from replicator.cli.options import (
    Duration,
    EngineChoice,
    Session,
    cmroot_option,
    dry_run_option,
    engine_options,
    json_option,
    pass_session,
)
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took
from replicator.text.quantity import duration_text

if TYPE_CHECKING:
    from cmroot.check import Checked
    from cmroot.log.compact import Compacted

DIFFERENT = 4
"""The exit code of a check that found damage, as of a verify that found differences."""

wait_option = click.option(
    "--wait", type=Duration(), default="1m", show_default=True, help="For the lease of another run, such as a capture."
)


@click.command()
@cmroot_option
@click.option("--no-bytes", is_flag=True, help="Compare names and sizes only; do not read what is kept.")
@limit_option
@engine_options
@json_option
@pass_session
def check(session: Session, cmroot: str, no_bytes: bool, limit: int, engine: EngineChoice, as_json: bool) -> int:
    """Compare every kept file with its name, and the log with what is kept; say what a repair would do.

    Changes nothing. Exit code 4 when something is damaged or missing.

    \b
    Example:
      replicator cm check --cmroot /cm
      replicator cm check --cmroot s3://bucket/cm --no-bytes --engine spark
    """
    from cmroot.root import open_existing
    from replicator.pitr.upkeep import check_root

    root = open_existing(cmroot)
    with session.engines(engine) as engines:
        checked = check_root(root, engines, bytes=not no_bytes, limit=limit)
    emit(checked, as_json, _checked_lines(checked))
    return DIFFERENT if checked.status == "damaged" else 0


def _checked_lines(checked: Checked) -> Iterable[str]:
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
            ("found", ", ".join(f"{number:,} {kind}" for kind, number in checked.counts.items()) or "nothing wrong"),
            ("kept", f"{count_text(checked.entries, 'entry')}, {size_text(checked.bytes)}{read}"),
            ("versions", f"{checked.versions:,} kept by their buckets" if checked.versions else None),
            ("log", f"{count_text(checked.segments, 'segment')}, {count_text(checked.records, 'record')}, "
                    f"{checked.files:,} file entries"),
            ("note", None if checked.references_checked
                     else "what is needed was not looked for, as the log cannot be believed"),
            ("took", took(checked.seconds)),
        ]
    )  # fmt: skip


@click.command()
@cmroot_option
@wait_option
@dry_run_option
@json_option
def compact(cmroot: str, wait: timedelta, dry_run: bool, as_json: bool) -> None:
    """Merge small segments of the captured log. Records, positions and what each capture said stay.

    Safe beside everything: the lease is held for one merge at a time, and readers of the old segments have an hour.

    \b
    Example: replicator cm compact --cmroot /cm
    """
    from cmroot.root import open_existing
    from replicator.pitr.upkeep import compact_log, plan_log

    root = open_existing(cmroot)
    if dry_run:
        plan = plan_log(root)
        emit(plan, as_json, [f"would merge {plan['merged']:,} of {count_text(plan['segments_before'], 'segment')} into "
                             f"{plan['runs']:,}"])  # fmt: skip
        return
    compacted = compact_log(root, patience=wait)
    emit(compacted, as_json, _compacted_lines(compacted))


def _compacted_lines(compacted: Compacted) -> Iterable[str]:
    return aligned(
        [
            (compacted.status, compacted.root),
            ("segments", f"{compacted.segments_before:,} before, {compacted.segments_after:,} now"),
            ("merged", f"{compacted.merged:,} into {compacted.runs:,}: {count_text(compacted.records, 'record')}, "
                       f"{compacted.files:,} file entries; {size_text(compacted.bytes_before)} became "
                       f"{size_text(compacted.bytes_after)}" if compacted.runs else "none are worth it"),
            ("removed", f"{len(compacted.swept):,} that were merged an hour ago or more" if compacted.swept else None),
            ("took", took(compacted.seconds)),
        ]
    )  # fmt: skip


@click.command()
@cmroot_option
@click.option("--older-than", type=Duration(), required=True, metavar="DURATION",
              help="The retention: what the source had within it stays, such as 7d.")  # fmt: skip
@click.option("--max-slot-lag", type=Duration(), metavar="DURATION",
              help="Give up slots that have confirmed nothing for longer; default: never.")  # fmt: skip
@click.option("--idle", type=Duration(), default="1d", show_default=True, metavar="DURATION",
              help="Refuse when the newest capture was longer ago: it has stopped, or the clock is ahead.")  # fmt: skip
@wait_option
@dry_run_option
@engine_options
@json_option
@pass_session
def expire(
    session: Session, cmroot: str, older_than: timedelta, max_slot_lag: timedelta | None, idle: timedelta,
    wait: timedelta, dry_run: bool, engine: EngineChoice, as_json: bool,
) -> None:  # fmt: skip
    """Remove what nobody needs: not the source, no slot, hold or dump, and no moment of the retention.

    Safe beside captures, dumps and loads, and to run again after a crash.

    \b
    Example:
      replicator cm expire --cmroot /cm --older-than 7d --dry-run
      replicator cm expire --cmroot /cm --older-than 7d
    """
    from replicator.pitr.upkeep import expire_root, plan_expired

    with opened_root(cmroot, dry_run=dry_run, makes=False) as here, session.engines(engine) as engines:
        if dry_run:
            said = plan_expired(here.root, engines, older_than, max_slot_lag=max_slot_lag, idle=idle)
        else:
            done = expire_root(here.root, engines, older_than, max_slot_lag=max_slot_lag, patience=wait, idle=idle)
            said = {"status": "expired", "root": here.place, **done.as_json()}
    said = here.told(said)
    emit(said, as_json, _expired_lines(said))


def _expired_lines(said: Mapping[str, Any]) -> Iterable[str]:
    planned = said["status"] == "planned"
    back = said.get("taken_back", {})
    return aligned(
        [
            (said["status"], f"{said['root']}, what was released more than "
                             f"{duration_text(said['older_than_seconds'])} ago"),
            ("would go" if planned else "went",
             _count(said["going_entries"], said["going_bytes"]) if planned
             else f"{_count(said['removed_entries'], said['removed_bytes'])}; {size_text(said['bytes_freed'])} freed"),
            *((f"  {reason}", _count(**count)) for reason, count in said["going"].items()),
            ("taken back", _count(**back) + ", as they are needed by now" if back.get("entries") else None),
            ("stays", _count(said["kept_entries"], said["kept_bytes"])),
            *((f"  {reason}", _count(**count)) for reason, count in said["kept"].items()),
            ("held by", [_holding(each) for each in said["held"]]),
            ("GIVEN UP", [f"slot {each['slot']}: confirmed nothing for {duration_text(each['lag_seconds'])}; "
                          "its consumer must bootstrap" for each in said["given_up"]]),
            ("forgotten", shortened(f"dump {name}" for name in said.get("forgotten_dumps", []))),
            ("unknown", f"{said['unknown']:,} names in files/ that are none of ours" if said["unknown"] else None),
            ("took", took(said['seconds'])),
        ]
    )  # fmt: skip


def _count(entries: int, bytes: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}, {size_text(bytes)}"


def _holding(each: Mapping[str, Any]) -> str:
    alone = f", {size_text(each['alone_bytes'])} of it alone" if each["alone_entries"] else ""
    age = duration_text(each["age_seconds"])
    return f"{each['pin']}: {_count(each['entries'], each['bytes'])}{alone}, for {age}"
