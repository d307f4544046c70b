"""`replicator housekeeping ls`, `cancel` and `rearm`: items, one by one; and the store that they lie in."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cmroot.store.scratch import scratch
from replicator.cli.options import Session, cmroot_option, json_option, pass_session
from replicator.cli.output import columns, emit
from replicator.errors import UsageError

if TYPE_CHECKING:
    from cmroot.root import ChangeRoot
    from replicator.housekeeping.items import Item
    from replicator.housekeeping.store import Store

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option(
    "--store", metavar="URL", help="Where items are kept: postgresql://user@host/db or sqlite:////path; default: an "
    "SQLite file in $cmroot, where that is local.",
)  # fmt: skip


@click.command()
@cmroot_option
@store_option
@click.option("--db", metavar="NAME", help="Of this database.")
@click.option("--table", metavar="NAME", help="Of this table.")
@click.option("--partition", metavar="NAME", help="Of this partition, e.g. day=2026-01-01.")
@click.option("--path", metavar="PLACE", help="With this path.")
@click.option("--status", metavar="STATE", help="SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, "
              "INVALID_CONFIG.")  # fmt: skip
@click.option("--lifecycle", type=click.Choice(["unreferenced", "expired"], case_sensitive=False),
              help="Left behind, or past its time.")  # fmt: skip
@click.option("--deleted-before", metavar="TIME", help="Planned to go before then; ISO 8601.")
@click.option("--deleted-after", metavar="TIME", help="Planned to go after then.")
@click.option("--registered-before", metavar="TIME", help="Whose time began before then.")
@click.option("--registered-after", metavar="TIME", help="Whose time began after then.")
@click.option("--size", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Items of a page.")
@click.option("--page", type=click.IntRange(0), default=0, show_default=True, help="Which page, from 0.")
@json_option
@pass_session
def ls(
    session: Session, cmroot: str, store: str | None, db: str | None, table: str | None, partition: str | None,
    path: str | None, status: str | None, lifecycle: str | None, deleted_before: str | None, deleted_after: str | None,
    registered_before: str | None, registered_after: str | None, size: int, page: int, as_json: bool,
) -> None:  # fmt: skip
    """List items: what is to go, when, and why; what went; what cannot. The filters and fields are Beekeeper's.

    \b
    Example:
      replicator housekeeping ls --cmroot /cm --db sales --status scheduled
      replicator housekeeping ls --cmroot /cm --status failed --json
    """
    from cmroot.root import open_existing
    from replicator.housekeeping.listing import Filter, list_items

    times = {
        name: None if text is None else time_of(text)
        for name, text in (
            ("deleted_before", deleted_before), ("deleted_after", deleted_after),
            ("registered_before", registered_before), ("registered_after", registered_after),
        )
    }  # fmt: skip
    wanted = Filter(db=db, table=table, partition=partition, path=path, status=status, lifecycle=lifecycle, **times)
    with ExitStack() as stack:
        opened = store_of(session, stack, open_existing(cmroot).place, store)
        opened.check()
        found, total = list_items(opened, wanted, size=size, page=page)
        counts = opened.counts()
    pages = -(-total // size)
    answer = {
        "status": "shown", "store": opened.url, "content": [one.as_json() for one in found], "totalElements": total,
        "totalPages": pages, "number": page, "size": size, "numberOfElements": len(found), "first": page == 0,
        "last": page + 1 >= pages, "empty": not found, "states": counts,
    }  # fmt: skip
    emit(answer, as_json, _table(found, total))


def _item_options(command: F) -> F:
    @click.argument("ids", metavar="ID...", nargs=-1, required=True, type=int)
    @cmroot_option
    @store_option
    @json_option
    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return command(*arguments, **options)

    return wrapped  # type: ignore[return-value]


@click.command()
@_item_options
@click.option("--reason", default="cancelled by hand", show_default=True, help="Told by `ls`.")
@pass_session
def cancel(
    session: Session, ids: tuple[int, ...], cmroot: str, store: str | None, reason: str, as_json: bool
) -> None:  # fmt: skip
    """Say of items that they are not to go. A later change of the table makes a new item; a legal hold would not.

    \b
    Example: replicator housekeeping cancel 17 18 --cmroot /cm --reason 'needed for the audit'
    """
    from replicator.housekeeping.listing import cancel as cancel_items

    with alone(session, cmroot, store) as opened:
        changed = cancel_items(opened, list(ids), reason, time.time)
    _tell("cancelled", changed, len(ids), as_json)


@click.command()
@_item_options
@pass_session
def rearm(session: Session, ids: tuple[int, ...], cmroot: str, store: str | None, as_json: bool) -> None:
    """Let items be tried again that failed too often, were skipped or were cancelled.

    \b
    Example: replicator housekeeping rearm 17 --cmroot /cm
    """
    from replicator.housekeeping.listing import rearm as rearm_items

    with alone(session, cmroot, store) as opened:
        changed = rearm_items(opened, list(ids), time.time)
    _tell("armed", changed, len(ids), as_json)


# ---- what is opened -------------------------------------------------------------------------------------------------


def store_of(session: Session, stack: ExitStack, root: str, url: str | None) -> Store:
    from replicator.housekeeping.store import Store, store_url

    return stack.enter_context(Store(store_url(root, url or session.config.housekeeping.store)))


@contextmanager
def alone(session: Session, cmroot: str, url: str | None) -> Iterator[Store]:
    """The store, while no run is at work; LeaseHeld when one is for longer than a minute."""
    from cmroot.lease import acquire
    from cmroot.root import open_existing
    from cmroot.store.place import join
    from cmroot.waiting import patiently
    from replicator.housekeeping.run import JOB

    root = open_existing(cmroot)
    with ExitStack() as stack:
        opened = store_of(session, stack, root.place, url)
        opened.check()
        take = functools.partial(acquire, join(root.place, JOB), "change items of housekeeping")
        stack.enter_context(patiently(take, timedelta(minutes=1)))
        yield opened


@contextmanager
def copy_of(store: Store, root: ChangeRoot) -> Iterator[Store]:
    """Items to try something out with; the store is only read."""
    with ExitStack() as stack:
        here = stack.enter_context(scratch("rehearsal"))
        copy = stack.enter_context(store.copied(here / "items.sqlite"))
        copy.prepare(root)
        yield copy


def time_of(text: str) -> int:
    from cmroot.pins import seconds

    try:
        return int(seconds(text))
    except ValueError as error:
        raise UsageError(str(error), hint="write an ISO 8601 time such as 2027-01-31T12:00:00Z") from error


# ---- for people -----------------------------------------------------------------------------------------------------


def _table(found: list[Item], total: int) -> Iterable[str]:
    if not found:
        return ["no items"]
    from replicator.housekeeping.items import iso

    rows = [
        (one.id, one.status, one.lifecycle, one.name, iso(one.cleanup), one.attempts or "", one.path, one.reason)
        for one in found
    ]
    head = ("id", "state", "lifecycle", "object", "goes at", "tries", "path", "reason")
    lines = list(columns(head, rows, right=("id", "tries")))
    return lines if len(found) == total else [*lines, f"{len(found):,} of {total:,}: see --page and --size"]


def _tell(what: str, changed: list[Item], asked: int, as_json: bool) -> None:
    answer = {"status": what, "changed": len(changed), "items": [one.as_json() for one in changed]}
    emit(answer, as_json, [f"{what}    {one.id}: {one.name} at {one.path}" for one in changed] or ["nothing to change"])
