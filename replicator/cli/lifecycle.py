"""`replicator housekeeping`: removes old data and expired tables by their table properties (Beekeeper). And
`retention`: runs the policies of a config store, and explains them (Gobblin).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text, took, write
from replicator.cli.tools import tell_if_first
from replicator.commands.lifecycle import (
    housekeeping_cancel,
    housekeeping_ls,
    housekeeping_rearm,
    housekeeping_run,
    housekeeping_vacuum,
    retention_explain,
    retention_run,
)
from replicator.core.not_replicated import PARTIAL
from replicator.core.runtime import Stopping
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.clean import Housekept
from replicator.lifecycle.housekeeping.item_queries import ItemPage, ItemsChanged
from replicator.lifecycle.housekeeping.run import Followed
from replicator.lifecycle.housekeeping.store import iso
from replicator.lifecycle.retention.datasets import Explained
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun

# ---- housekeeping ----------------------------------------------------------------------------------------------------


# ---- housekeeping items ----------------------------------------------------------------------------------------------
# `replicator housekeeping ls`, `cancel` and `rearm`: items, one by one.


@click.command()
@options_of(housekeeping_ls)
@json_option
@pass_session
def ls(session: Session, /, as_json: bool, **given: Any) -> int:
    """List items with their state, planned time and reason. The filters and fields are Beekeeper's.

    \b
    Example:
      replicator housekeeping ls --cmroot /cm --db sales --status scheduled
      replicator housekeeping ls --cmroot /cm --status failed --json
    """
    found = session.call(housekeeping_ls, **given)
    emit(found, as_json, _table(found))
    return 0


@click.command()
@options_of(housekeeping_cancel)
@json_option
@pass_session
def cancel(session: Session, /, as_json: bool, **given: Any) -> int:
    """Cancel items. A later change of the table creates a new item; to prevent that, use a legal hold.

    \b
    Example: replicator housekeeping cancel 17 18 --cmroot /cm --reason 'needed for the audit'
    """
    return _tell(session.call(housekeeping_cancel, **given), as_json)


@click.command()
@options_of(housekeeping_rearm)
@json_option
@pass_session
def rearm(session: Session, /, as_json: bool, **given: Any) -> int:
    """Reschedule items that are exhausted, skipped or cancelled.

    \b
    Example: replicator housekeeping rearm 17 --cmroot /cm
    """
    return _tell(session.call(housekeeping_rearm, **given), as_json)


# ---- text ----------------------------------------------------------------------------------------------------------


def _table(found: ItemPage) -> Iterable[str]:
    if not found.items:
        return ["no items"]
    rows = [
        (one.id, one.status, one.lifecycle, one.name, iso(one.cleanup), one.attempts or "", one.path, one.reason)
        for one in found.items
    ]
    head = ("id", "state", "lifecycle", "object", "removal at", "attempts", "path", "reason")
    lines = list(columns(head, rows, right=("id", "attempts")))
    shown = len(found.items)
    return lines if shown == found.total else [*lines, f"{shown:,} of {found.total:,}: see --page and --size"]


def _tell(changed: ItemsChanged, as_json: bool) -> int:
    lines = [f"{changed.status}    {one.id}: {one.name} at {one.path}" for one in changed.items]
    emit(changed, as_json, lines or ["nothing to change"])
    return 0


# ---- housekeeping ----------------------------------------------------------------------------------------------------


GRACE = timedelta(seconds=30)  # for a run to end after a signal


@click.group()
def housekeeping() -> None:
    """Remove unreferenced data, and expired partitions and tables, by their table properties (Beekeeper).

    Removed data is recycled into $cmroot. See docs/housekeeping.md for the table properties.

    \b
    Example:
      ALTER TABLE sales.orders SET TBLPROPERTIES (
        'beekeeper.remove.unreferenced.data'='true', 'beekeeper.unreferenced.data.retention.period'='P7D')
      replicator housekeeping run --metastore prod --cmroot /cm --dry-run
      replicator housekeeping run --metastore prod --cmroot /cm --follow
    """


@housekeeping.command()
@options_of(housekeeping_run, engine=True)
@json_options
@pass_session
def run(session: Session, /, as_json: bool, **given: Any) -> int:
    """Capture, schedule items, and remove those that are due.

    Items are unreferenced directories, and partitions and tables that will expire. Each path is checked again right
    before its removal: paths in use, and paths above data that must be kept, are never removed. The next run completes
    a killed one. Exit 3 if items were refused, failed, or have invalid properties; 6 if the limits of removals are
    exceeded; 7 while another run holds the lease.

    --dry-run captures and writes nothing: it uses the captured log as it is.

    \b
    Example:
      replicator housekeeping run --metastore prod --cmroot /cm --dry-run --at 2027-01-01
      replicator housekeeping run --metastore prod --cmroot /cm --max-bytes 10TiB
      replicator housekeeping run --metastore prod --cmroot /cm --store postgresql://hk@db/hk --follow
    """
    if given["follow"]:
        return _follow(session, as_json, given)
    words = tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(housekeeping_run, **given)
    assert isinstance(done, Housekept)
    emit(done, as_json, _housekept_lines(done, words))
    return 0 if done.is_whole else 3


def _follow(session: Session, as_json: bool, given: dict[str, Any]) -> int:
    """Retries all failures except those of the configuration."""

    def tell(done: Housekept) -> None:
        if (done.removed or not done.is_whole or done.scheduled) and not as_json:
            write(_housekept_lines(done))

    def tell_failure(error: Exception, seconds: float) -> None:
        if session.verbose:
            traceback.print_exception(error)
        note(f"{type(error).__name__}: {error}; trying again in {seconds:.0f} s")

    with Stopping(GRACE) as stop:
        done = session.call(housekeeping_run, stop=stop, tell=tell, tell_failure=tell_failure, **given)
        code = stop.code
    assert isinstance(done, Followed)
    lines = [f"stopped after {count_text(done.rounds, 'run')}; {count_text(done.removed, 'item')} removed"]
    emit({**done.to_dict(), "exit_code": code}, as_json, lines)
    return code


@housekeeping.command()
@options_of(housekeeping_vacuum)
@json_option
@pass_session
def vacuum(session: Session, /, as_json: bool, **given: Any) -> int:
    """Schedule unreferenced directories that are older than the log.

    Selects directories at the depth of the table's partitions that are not the location of a partition. Run it when no
    job is about to add partitions for such directories; those added within the period are kept.

    \b
    Example: replicator housekeeping vacuum sales.orders --metastore prod --cmroot /cm --dry-run
    """
    tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(housekeeping_vacuum, **given)
    lines = [
        (done.status, f"{count_text(len(done.paths), 'path')} of {done.table}"),
        ("in use", f"{done.referred:,} of {done.directories:,}"),
        ("waiting", f"{done.waiting:,}" if done.waiting else None),
        ("paths", shortened(done.paths)),
    ]
    emit(done, as_json, aligned(lines))
    return 0


# ---- for people ---------------------------------------------------------------------------------------------------


def _housekept_lines(done: Housekept, reported: str = "") -> Iterable[str]:
    """reported: a warning that was shown before."""
    planned = done.status == "planned"
    went = f"{count_text(done.removed, 'item')}: {count_text(done.files, 'file')}, {size_text(done.bytes)}"
    yield from aligned(
        [
            (done.status, f"captured log up to position {done.position}, {count_text(done.records, 'new record')}"),
            ("scheduled", f"{done.scheduled:,}" if done.scheduled else None),
            ("cancelled", f"{done.cancelled:,}" if done.cancelled else None),
            ("due", f"{done.due:,}"),
            ("would remove" if planned else "removed", went if done.removed else None),
            (
                "dropped",
                f"{count_text(done.partitions_dropped, 'partition')}, {count_text(done.tables_dropped, 'table')}"
                if done.partitions_dropped or done.tables_dropped
                else None,
            ),
            ("skipped", f"{done.skipped:,}" if done.skipped else None),
            ("waiting", f"{done.waiting:,}" if done.waiting else None),
            (
                "exhausted",
                f"{done.exhausted:,}: see `replicator housekeeping ls --status exhausted`" if done.exhausted else None,
            ),
            (
                "plan",
                shortened(
                    f"{each['action']} {each['object']} at {each['path']}: {each['reason']}" for each in done.plan
                ),
            ),
            ("invalid", shortened(done.invalid)),
            ("refused", shortened(done.refused) if not planned else None),
            ("failed", shortened(done.failed)),
            ("databases", shortened(done.databases) or "unknown until the next capture"),
            ("warning", shortened(each for each in done.warnings if each != reported)),
            ("audit", f"run {done.run}" if done.run and done.removed else None),
        ]
    )


for command in (ls, cancel, rearm):
    housekeeping.add_command(command)


# ---- retention -------------------------------------------------------------------------------------------------------


@click.group()
def retention() -> None:
    """Remove expired versions of datasets, by a config store or job file (Gobblin retention).

    \b
    Example:
      replicator retention run job.properties --metastore prod --cmroot /cm --dry-run
      replicator retention explain /data/events/loginEvent --config job.properties
    """


@retention.command(name="run")
@options_of(retention_run, engine=True)
@click.option("--no-metastore", is_flag=True, help="Assert that no metastore refers to these files; none is read.")
@json_options
@pass_session
def run_policies(session: Session, /, metastore: str | None, no_metastore: bool, as_json: bool, **given: Any) -> int:
    """Remove expired versions of datasets; set the access of the others.

    CONFIG is the job file (Java properties, or HOCON if it ends in .conf), or a config store's directory. Files are
    moved to $cmroot, from which `audit undo` restores them; snapshots of Iceberg, versions of Delta and instants of
    Hudi tables expire for good, by these formats in Spark. Data of a table or partition of the metastore is kept,
    unless the partition itself is dropped. Exit 3 if items failed or were refused, 6 if the entire run was refused, 7
    while another run holds the lease.

    \b
    Example:
      replicator retention run job.properties --metastore prod --cmroot /cm --dry-run
      replicator retention run job.properties --metastore prod --cmroot /cm --max-share 0.2
      replicator retention run /etc/store --set gobblin.retention.tag=/tags/retention --metastore prod --cmroot /cm
    """
    if (metastore is None and given["policy"] is None) == (not no_metastore):
        raise UsageError(
            "data of tables must not be removed, so a metastore is needed",
            hint="name it with --metastore or --policy; or give --no-metastore if no metastore refers to these files",
        )
    words = tell_if_first(given["cmroot"], given["dry_run"])
    # Written line by line: a plan may have a million items.
    tell = None if as_json else lambda item: write([_item_line(item)])
    done = session.call(retention_run, metastore=metastore, tell=tell, **given)
    emit(done, as_json, _run_lines(done, words))
    return 0 if done.is_whole else PARTIAL


def _item_line(item: PlannedItem) -> str:
    removal = item.removal
    if item.access:
        return f"set {item.access} on {removal.path}: {removal.reason}"
    if item.snapshot is not None:
        return f"expire {removal.what} {item.snapshot} of {removal.name}: {removal.reason}"
    size = f" ({count_text(removal.files, 'file')}, {size_text(removal.bytes)})"
    if item.drops:
        data = ", its data is kept" if item.keeps_data else f" with {removal.path}{size}"
        return f"drop {removal.name}{data}: {removal.reason}"
    return f"remove {removal.path}{size}: {removal.reason}"


def _run_lines(done: RetentionRun, reported: str = "") -> Iterable[str]:
    """reported: a warning that was shown before."""
    versions = f"{count_text(done.removed, 'version')}, " if done.status != "planned" else ""
    went = f"{versions}{count_text(done.files, 'file')}, {size_text(done.bytes)}"
    return aligned(
        [
            (done.status, f"{count_text(done.datasets, 'dataset')}, {count_text(done.versions, 'version')} checked"),
            ("run", done.run if done.status != "planned" else None),
            ("selected", count_text(done.selected, "version")),
            ("would remove" if done.status == "planned" else "removed", went),
            ("dropped", count_text(done.dropped, "partition") if done.dropped else None),
            ("expired", count_text(done.expired, "past state") if done.expired else None),
            ("access", f"set on {count_text(done.access, 'path')}" if done.access else None),
            ("unreadable", f"{count_text(done.ignored, 'name')} whose time cannot be parsed" if done.ignored else None),
            ("refused", count_text(done.refused_count, "item") if done.refused_count else None),
            ("", shortened(f"{each['object'] or each['path']}: {each['why']}" for each in done.refused)),
            ("failed", shortened(f"{each['what']}: {each['why']}" for each in done.failed)),
            ("captures", shortened(done.databases) if done.databases else "no database"),
            ("warning", shortened(each for each in done.warnings if each != reported)),
            ("took", took(done.seconds)),
        ]
    )


@retention.command()
@options_of(retention_explain)
@json_option
@pass_session
def explain(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show a dataset's settings, with the file and line of each value.

    PATH is the dataset's path as the configuration writes it, hive/DB/TABLE, or any key of the store; without --config,
    a path in the store. Overridden values are shown with their locations. Reads the configuration only.

    \b
    Example:
      replicator retention explain /data/events/loginEvent --config job.properties
      replicator retention explain hive/sales/orders --config /etc/store --json
    """
    explained = session.call(retention_explain, **given)
    emit(explained, as_json, _explained_lines(explained))
    return 0


def _explained_lines(explained: Explained) -> Iterable[str]:
    if explained.store:
        yield from aligned(
            [
                ("path", explained.path),
                ("store", f"{explained.store}, version {explained.version}"),
                ("keys", [f"{number}. {name}" for number, name in enumerate(explained.nodes, 1)]),
            ]
        )
        yield ""
    for each in explained.values:
        through = f", through {each.through}" if each.through else ""
        over = f", over {', '.join(each.hides)}" if each.hides else ""
        yield f"{each.key} = {each.value}"
        yield f"    {each.at}{through}{over}"
    for warning in explained.warnings:
        yield f"warning: {warning}"
