"""`replicator housekeeping`: old data and expired tables go as their owners said (Beekeeper's table properties)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.first_run import opened_root
from replicator.cli.guard import guard_options
from replicator.cli.housekeeping_items import alone, cancel, copy_of, ls, rearm, store_of, store_option, time_of
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
from replicator.cli.output import aligned, count_text, emit, note, shortened, size_text, write
from replicator.cli.signals import Stopping, Terminated
from replicator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from replicator.housekeeping.run import Housekept
    from replicator.housekeeping.wishes import Defaults
    from replicator.removal.removal import Limits

GRACE = timedelta(seconds=30)  # that a run has to come to its end when the program is to stop
LONGEST_WAIT = 300.0  # seconds between two tries while something is away


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
    from replicator.housekeeping.run import Housekeeping, Options

    if dry_run and follow:
        raise UsageError("--dry-run and --follow do not go together", hint="run it without --follow")
    if at is not None and not dry_run:
        raise UsageError("--at is for --dry-run only", hint="a run removes what is due now")
    moment = None if at is None else time_of(at)
    options = Options(
        _defaults(session, default_unreferenced, default_expired, allow_immediate), limits, not no_capture,
        [name.lower() for name in db], not no_scan, all_databases,
    )  # fmt: skip
    with ExitStack() as stack:
        here = stack.enter_context(opened_root(cmroot, dry_run=dry_run))
        client, items = stack.enter_context(session.metastore(metastore)), store_of(session, stack, here.place, store)
        engines = stack.enter_context(session.engines(engine))
        work = stack.enter_context(
            Housekeeping(client, here.root, items, options, engine=engines, progress=session.progress)
        )
        if follow:
            return _follow(session, work.run, interval, as_json)
        done = work.rehearse(moment) if dry_run else work.run()
    emit(here.told(done), as_json, _lines(done))
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
    with ExitStack() as stack:
        if dry_run:
            here = stack.enter_context(opened_root(cmroot, dry_run=True))
            items = stack.enter_context(copy_of(store_of(session, stack, here.place, store), here.root))
        else:
            items = stack.enter_context(alone(session, cmroot, store))
        client = stack.enter_context(session.metastore(metastore))
        done = vacuum_table(client, items, db, name, stays, dry_run=dry_run)
    lines = [
        (done.status, f"{count_text(len(done.paths), 'path')} of {done.table}"),
        ("in use", f"{done.referred:,} of {done.directories:,}"),
        ("waiting", f"{done.waiting:,}" if done.waiting else None),
        ("paths", shortened(done.paths)),
    ]
    emit(here.told(done) if dry_run else done, as_json, aligned(lines))


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


for command in (ls, cancel, rearm):
    housekeeping.add_command(command)
