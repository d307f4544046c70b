"""`replicator retention`: run the policies of a config store, and explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, took, write
from replicator.cli.tools import tell_if_first
from replicator.commands.retention import retention_explain, retention_run
from replicator.core.not_replicated import PARTIAL
from replicator.errors import UsageError
from replicator.lifecycle.retention.datasets import Explained
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def retention() -> None:
    """Remove expired versions of datasets, by a config store or job file (Gobblin retention).

    \b
    Example:
      replicator retention run job.properties --metastore prod --cmroot /cm --dry-run
      replicator retention explain /data/events/loginEvent --config job.properties
    """


@retention.command()
@options_of(retention_run, engine=True)
@click.option("--no-metastore", is_flag=True, help="Assert that no metastore refers to these files; none is read.")
@json_options
@pass_session
def run(session: Session, /, metastore: str | None, no_metastore: bool, as_json: bool, **given: Any) -> int:
    """Remove expired versions of datasets; set the access of the others.

    CONFIG is the job file (Java properties, or HOCON if it ends in .conf), or a config store's directory. Files are
    moved to $cmroot, from which `audit undo` restores them. Data of a table or partition of the metastore is
    kept, unless the partition itself is dropped. Exit 3 if items failed or were refused, 6 if the entire run was
    refused, 7 while another run holds the lease.

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
    # For a person a line at a time: a plan may have a million items.
    tell = None if as_json else lambda item: write([_item_line(item)])
    done = session.call(retention_run, metastore=metastore, tell=tell, **given)
    emit(done, as_json, _run_lines(done, words))
    return 0 if done.is_whole else PARTIAL


def _item_line(item: PlannedItem) -> str:
    removal = item.removal
    if item.access:
        return f"set {item.access} on {removal.path}: {removal.reason}"
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
