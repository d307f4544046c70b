"""`replicator housekeeping ls`, `cancel` and `rearm`: items, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from replicator.cli.options import Session, json_option, of_policy_argument, of_policy_option, pass_session, root_option
from replicator.cli.output import columns, emit
from replicator.commands.housekeeping_items import housekeeping_cancel, housekeeping_ls, housekeeping_rearm
from replicator.lifecycle.housekeeping.item_queries import ItemPage, ItemsChanged
from replicator.lifecycle.housekeeping.items import iso

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    metavar="URL",
    help="Store of the items: postgresql://user@host/db or sqlite:////path; default: an "
    "SQLite file in $cmroot, if that is a local directory.",
)


@click.command()
@of_policy_argument
@root_option
@store_option
@click.option("--db", metavar="NAME", help="Only items of this database.")
@click.option("--table", metavar="NAME", help="Only items of this table.")
@click.option("--partition", metavar="NAME", help="Only items of this partition, e.g. day=2026-01-01.")
@click.option("--path", metavar="PLACE", help="Only items with this path, in any spelling.")
@click.option(
    "--status",
    metavar="STATE",
    help="Only items in this state: SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG.",
)
@click.option(
    "--lifecycle",
    type=click.Choice(["unreferenced", "expired"], case_sensitive=False),
    help="Only former locations (unreferenced), or only partitions and tables past their lifetime (expired).",
)
@click.option(
    "--deleted-before", metavar="TIME", help="Only items whose planned removal is before this time; ISO 8601."
)
@click.option("--deleted-after", metavar="TIME", help="Only items whose planned removal is after this time.")
@click.option("--registered-before", metavar="TIME", help="Only items whose period began before this time.")
@click.option("--registered-after", metavar="TIME", help="Only items whose period began after this time.")
@click.option(
    "--size", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Number of items per page."
)
@click.option("--page", type=click.IntRange(0), default=0, show_default=True, help="Page number, from 0.")
@click.option("--sort", multiple=True, metavar="NAME[,desc]", help="Sort by this field of the JSON; repeatable.")
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


def _item_options(command: F) -> F:
    """Which items, and where they are."""
    command = of_policy_option(store_option(json_option(command)))
    return click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)(root_option(command))


@click.command()
@_item_options
@click.option("--reason", default="cancelled by hand", show_default=True, help="Reason, shown by `ls`.")
@pass_session
def cancel(session: Session, /, as_json: bool, **given: Any) -> int:
    """Cancel items. A later change of the table creates a new item; to prevent that, use a legal hold.

    \b
    Example: replicator housekeeping cancel 17 18 --cmroot /cm --reason 'needed for the audit'
    """
    return _tell(session.call(housekeeping_cancel, **given), as_json)


@click.command()
@_item_options
@pass_session
def rearm(session: Session, /, as_json: bool, **given: Any) -> int:
    """Reschedule items that are exhausted, skipped or cancelled.

    \b
    Example: replicator housekeeping rearm 17 --cmroot /cm
    """
    return _tell(session.call(housekeeping_rearm, **given), as_json)


# ---- for people -----------------------------------------------------------------------------------------------------


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
