"""`replicator housekeeping`: old data and expired tables go as their owners said (Beekeeper's table properties)."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from replicator.cli.guard import guard_options
from replicator.cli.options import (
    Duration,
    EngineChoice,
    Session,
    all_databases_option,
    cmroot_option,
    db_option,
    dry_run_option,
    engine_options,
    json_option,
    no_scan_option,
    pass_session,
)
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, size_text, write
from replicator.cli.signals import Stopping, Terminated
from replicator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cmroot.root import ChangeRoot
    from replicator.guard.removal import Limits
    from replicator.housekeeping.items import Item
    from replicator.housekeeping.run import Housekept
    from replicator.housekeeping.store import Store
    from replicator.housekeeping.wishes import Defaults

F = TypeVar("F", bound=Callable[..., Any])
GRACE = timedelta(seconds=30)  # that a run has to come to its end when the program is to stop
LONGEST_WAIT = 300.0  # seconds between two tries while something is away

store_option = click.option(
    "--store", metavar="URL", help="Where items are kept: postgresql://user@host/db or sqlite:////path; default: an "
    "SQLite file in $cmroot, where that is local.",
)  # fmt: skip


@click.group()
def housekeeping() -> None:
    """Remove data that tables left behind, and expired partitions and tables, as their properties say (Beekeeper).

    Everything that goes is recycled into $cmroot. See docs/housekeeping.md for the table properties.

    \b
    Example:
      ALTER TABLE sales.orders SET TBLPROPERTIES (
        'beekeeper.remove.unreferenced.data'='true', 'beekeeper.unreferenced.data.retention.period'='P7D')
      replicator housekeeping run --metastore prod --cmroot /cm --dry-run
      replicator housekeeping run --metastore prod --cmroot /cm --follow
    """


@housekeeping.command()
@click.option("--metastore", required=True, metavar="METASTORE", help="thrift://host:port, or a configured name.")
@cmroot_option
@store_option
@db_option
@all_databases_option
@click.option("--no-capture", is_flag=True, help="Take the captured log as it is.")
@no_scan_option
@dry_run_option
@click.option("--at", metavar="TIME", help="Of --dry-run: what would be due then; ISO 8601, default: now.")
@click.option("--follow", is_flag=True, help="Run again and again until stopped.")
@click.option("--interval", type=Duration(), default="5m", show_default=True, help="Between two runs of --follow.")
@click.option("--default-unreferenced", metavar="PERIOD", help="For tables that give no period; default P3D.")
@click.option("--default-expired", metavar="PERIOD", help="For tables that give no period; default P30D.")
@click.option("--allow-immediate", is_flag=True, help="Let periods of zero and below be meant.")
@guard_options
@engine_options
@json_option
@pass_session
def run(
    session: Session, metastore: str, cmroot: str, store: str | None, db: tuple[str, ...], all_databases: bool,
    no_capture: bool, no_scan: bool, dry_run: bool, at: str | None, follow: bool, interval: timedelta,
    default_unreferenced: str | None, default_expired: str | None, allow_immediate: bool, limits: Limits,
    engine: EngineChoice, as_json: bool,
) -> int:  # fmt: skip
    """Capture what has changed, schedule what that left behind or gave a time to live, and remove what is due.

    Each path is looked at once more in that moment: nothing goes that a table or partition refers to, and nothing that
    data lies under which has to stay. A killed run is completed by the next. Exit 3 when something was refused, failed,
    or has properties that cannot be understood; 6 when more would go than may; 7 while another run is at work.

    --dry-run captures nothing and writes nothing: it tells by the captured log as it is.

    \b
    Example:
      replicator housekeeping run --metastore prod --cmroot /cm --dry-run --at 2027-01-01
      replicator housekeeping run --metastore prod --cmroot /cm --max-bytes 10TiB
      replicator housekeeping run --metastore prod --cmroot /cm --store postgresql://hk@db/hk --follow
    """
    from cmroot.root import create_or_open, open_existing
    from replicator.housekeeping.run import Housekeeping, Options

    if dry_run and follow:
        raise UsageError("--dry-run and --follow do not go together", hint="run it without --follow")
    if at is not None and not dry_run:
        raise UsageError("--at is for --dry-run only", hint="a run removes what is due now")
    moment = None if at is None else _moment(at)
    options = Options(
        _defaults(session, default_unreferenced, default_expired, allow_immediate), limits, not no_capture,
        [name.lower() for name in db], not no_scan, all_databases,
    )  # fmt: skip
    root = open_existing(cmroot) if dry_run else create_or_open(cmroot)
    with ExitStack() as stack:
        work = stack.enter_context(
            Housekeeping(
                stack.enter_context(session.metastore(metastore)), root, _store(session, stack, root, store), options,
                engine=stack.enter_context(session.engines(engine)), progress=session.progress,
            )
        )  # fmt: skip
        if follow:
            return _follow(session, work.run, interval, as_json)
        done = work.rehearse(moment) if dry_run else work.run()
    emit(done, as_json, _lines(done))
    return 0 if done.is_whole else 3


def _follow(session: Session, once: Callable[[], Housekept], interval: timedelta, as_json: bool) -> int:
    """Every failure but those of the configuration is tried again."""
    rounds = removed = failures = 0
    total: dict[str, Any] = {}
    with Stopping(GRACE) as stop:
        try:
            wait = 1.0
            while not stop.is_set():
                try:
                    done = once()
                    rounds, removed, total, wait = rounds + 1, removed + done.removed, asdict(done), 1.0
                    if (done.removed or not done.is_whole or done.scheduled) and not as_json:
                        write(_lines(done))
                    stop.wait(interval.total_seconds())
                except (ConfigError, UsageError):
                    raise
                except Exception as error:
                    failures += 1
                    if session.verbose:
                        traceback.print_exc()
                    note(f"{type(error).__name__}: {error}; trying again in {wait:.0f} s")
                    stop.wait(wait)
                    wait = min(LONGEST_WAIT, wait * 2)
        except Terminated:
            pass
        code = stop.code
    total |= {"rounds": rounds, "removed": removed, "failures": failures, "status": "stopped", "exit_code": code}
    emit(total, as_json, [f"stopped after {count_text(rounds, 'run')}; {count_text(removed, 'item')} removed"])
    return code


@housekeeping.command()
@click.argument("table", metavar="DB.TABLE")
@click.option("--metastore", required=True, metavar="METASTORE", help="thrift://host:port, or a configured name.")
@cmroot_option
@store_option
@click.option("--period", default="P3D", show_default=True, metavar="PERIOD", help="How long what is found stays.")
@dry_run_option
@json_option
@pass_session
def vacuum(
    session: Session, table: str, metastore: str, cmroot: str, store: str | None, period: str, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Schedule directories of a table that lie there as partitions do, and are none: left before anybody looked.

    Nobody may be about to add partitions for them; those that are added before the period is over stay.

    \b
    Example: replicator housekeeping vacuum sales.orders --metastore prod --cmroot /cm --dry-run
    """
    from replicator.housekeeping.periods import parse_period
    from replicator.housekeeping.vacuum import vacuum as vacuum_table

    db, dot, name = table.lower().partition(".")
    if not dot:
        raise UsageError(f"{table!r} is not DB.TABLE", hint="e.g. sales.orders")
    try:
        stays = parse_period(period)
    except ValueError as error:
        raise UsageError(f"--period: {error}", hint="e.g. P3D") from error
    with _alone(session, cmroot, store) as opened, session.metastore(metastore) as client:
        done = vacuum_table(client, opened, db, name, stays, dry_run=dry_run)
    lines = [
        (done.status, f"{count_text(len(done.paths), 'path')} of {done.table}"),
        ("in use", f"{done.referred:,} of {done.directories:,}"),
        ("waiting", f"{done.waiting:,}" if done.waiting else None),
        ("paths", shortened(done.paths)),
    ]
    emit(done, as_json, aligned(lines))


# ---- items --------------------------------------------------------------------------------------------------------


@housekeeping.command()
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
        name: None if text is None else _moment(text)
        for name, text in (
            ("deleted_before", deleted_before), ("deleted_after", deleted_after),
            ("registered_before", registered_before), ("registered_after", registered_after),
        )
    }  # fmt: skip
    wanted = Filter(db=db, table=table, partition=partition, path=path, status=status, lifecycle=lifecycle, **times)
    with ExitStack() as stack:
        opened = _store(session, stack, open_existing(cmroot), store)
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


@housekeeping.command()
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

    with _alone(session, cmroot, store) as opened:
        changed = cancel_items(opened, list(ids), reason, time.time)
    _tell("cancelled", changed, len(ids), as_json)


@housekeeping.command()
@_item_options
@pass_session
def rearm(session: Session, ids: tuple[int, ...], cmroot: str, store: str | None, as_json: bool) -> None:
    """Let items be tried again that failed too often, were skipped or were cancelled.

    \b
    Example: replicator housekeeping rearm 17 --cmroot /cm
    """
    from replicator.housekeeping.listing import rearm as rearm_items

    with _alone(session, cmroot, store) as opened:
        changed = rearm_items(opened, list(ids), time.time)
    _tell("armed", changed, len(ids), as_json)


# ---- what is opened -----------------------------------------------------------------------------------------------


def _store(session: Session, stack: ExitStack, root: ChangeRoot, url: str | None) -> Store:
    from replicator.housekeeping.store import Store, store_url

    return stack.enter_context(Store(store_url(root.place, url or session.config.housekeeping.store)))


@contextmanager
def _alone(session: Session, cmroot: str, url: str | None) -> Iterator[Store]:
    """The store, while no run is at work; LeaseHeld when one is for longer than a minute."""
    from cmroot.lease import acquire
    from cmroot.place import join
    from cmroot.root import open_existing
    from cmroot.waiting import patiently
    from replicator.housekeeping.run import JOB

    root = open_existing(cmroot)
    with ExitStack() as stack:
        opened = _store(session, stack, root, url)
        opened.check()
        take = functools.partial(acquire, join(root.place, JOB), "change items of housekeeping")
        stack.enter_context(patiently(take, timedelta(minutes=1)))
        yield opened


def _defaults(session: Session, unreferenced: str | None, expired: str | None, allow_immediate: bool) -> Defaults:
    from replicator.housekeeping.periods import parse_period
    from replicator.housekeeping.wishes import Defaults

    given = session.config.housekeeping
    periods = []
    for text, option in (
        (unreferenced or given.default_cleanup_delay, "--default-unreferenced"),
        (expired or given.default_expiration_delay, "--default-expired"),
    ):
        try:
            periods.append(parse_period(text))
        except ValueError as error:
            raise UsageError(f"{option}: {error}", hint="or [housekeeping] of the configuration") from error
        if not periods[-1].is_positive and not allow_immediate:
            raise UsageError(f"{option}: {text!r} leaves no time at all", hint="--allow-immediate lets it")
    return Defaults(periods[0], periods[1], allow_immediate or given.allow_immediate)


def _moment(text: str) -> int:
    from cmroot.pins import seconds

    try:
        return int(seconds(text))
    except ValueError as error:
        raise UsageError(str(error), hint="write an ISO 8601 time such as 2027-01-31T12:00:00Z") from error


# ---- for people ---------------------------------------------------------------------------------------------------


def _lines(done: Housekept) -> Iterable[str]:
    planned = done.status == "planned"
    went = f"{count_text(done.removed, 'item')}: {count_text(done.files, 'file')}, {size_text(done.bytes)}"
    yield from aligned(
        [
            (done.status, f"captured log up to position {done.position}, {count_text(done.records, 'new record')}"),
            ("scheduled", f"{done.scheduled:,}" if done.scheduled else None),
            ("cancelled", f"{done.cancelled:,}" if done.cancelled else None),
            ("due", f"{done.due:,}"),
            ("would go" if planned else "removed", went if done.removed else None),
            ("dropped", f"{count_text(done.partitions_dropped, 'partition')}, "
                        f"{count_text(done.tables_dropped, 'table')}"
                        if done.partitions_dropped or done.tables_dropped else None),
            ("skipped", f"{done.skipped:,}" if done.skipped else None),
            ("waiting", f"{done.waiting:,}" if done.waiting else None),
            ("exhausted", f"{done.exhausted:,}: see `replicator housekeeping ls --status exhausted`"
                          if done.exhausted else None),
            ("plan", shortened(f"{each['action']} {each['object']} at {each['path']}: {each['reason']}"
                               for each in done.plan)),
            ("invalid", shortened(done.invalid)),
            ("refused", shortened(done.refused) if not planned else None),
            ("failed", shortened(done.failed)),
            ("databases", shortened(done.databases) or "unknown until the next capture"),
            ("warning", shortened(done.warnings)),
            ("audit", f"run {done.run}" if done.run and done.removed else None),
        ]
    )  # fmt: skip


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
