"""`replicator capture`: bring the captured log up to now, once or again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import (
    Duration,
    EngineChoice,
    Session,
    all_databases_option,
    cmroot_option,
    db_option,
    deep_option,
    empty_option,
    engine_options,
    json_option,
    keeper_option,
    no_scan_option,
    pass_session,
    source_option,
)
from replicator.cli.output import aligned, count_text, emit, note, shortened, size_text, took, write
from replicator.cli.signals import INTERRUPTED, TERMINATED, Terminated
from replicator.core.not_replicated import PARTIAL
from replicator.errors import Error, LeaseHeld, UsageError

if TYPE_CHECKING:
    from replicator.captures.recording import Captured

LONGEST_WAIT = timedelta(minutes=1)  # between tries while the metastore is away


@click.command()
@source_option
@cmroot_option
@db_option
@all_databases_option
@no_scan_option
@deep_option
@click.option("--repair", is_flag=True, help="After lost events, compare everything instead of failing.")
@keeper_option
@empty_option
@click.option("--follow", is_flag=True, help="Capture again and again until stopped.")
@click.option("--interval", type=Duration(), default="10s", show_default=True, help="Between two captures of --follow.")
@engine_options
@json_option
@pass_session
def capture(
    session: Session, source: str, cmroot: str, db: tuple[str, ...], all_databases: bool, no_scan: bool, deep: bool,
    repair: bool, keeper: str, empty: tuple[str, ...], follow: bool, interval: timedelta, engine: EngineChoice,
    as_json: bool,
) -> int:  # fmt: skip
    """Read the notification log into $cmroot, with the files and checksums of every change, and keep the bytes.

    A root captures the databases that were named once, by any command that captures into it; the answer lists them.

    \b
    Example:
      replicator capture --source thrift://a:9083 --cmroot /warehouse/.cmroot --db sales
      replicator capture --source prod --cmroot /warehouse/.cmroot --follow --interval 30s
    """
    from cmroot.root import create_or_open
    from replicator.captures.capture import capture as capture_events

    if follow and empty:
        raise UsageError("--empty is about one capture", hint="capture once with it, then follow without")
    root = create_or_open(cmroot)
    databases = [name.lower() for name in db]
    with session.metastore(source) as metastore, session.engines(engine) as engines:

        def once() -> Captured:
            return capture_events(
                metastore, root, databases=databases, everything=all_databases, scan=not no_scan, deep=deep,
                repair=repair, keeper=keeper, empty=empty, engine=engines, progress=session.progress,
            )  # fmt: skip

        if follow:
            return _follow(once, interval, as_json)
        captured = once()
    emit(captured, as_json, describe(captured))
    return PARTIAL if captured.not_replicated else 0


def describe(captured: Captured) -> Iterable[str]:
    """A capture for a person."""
    yield from aligned(
        [
            (captured.status, f"{count_text(captured.records, 'record')} ({captured.observed:,} found by scan) "
                         f"from {count_text(captured.events, 'event')}"),
            ("through", f"event {captured.through_event}, position {captured.position}"),
            ("files", f"{captured.files:,} new or changed, {size_text(captured.bytes)}, kept by {captured.keeper}"
                      if captured.files else "no new or changed ones"),
            ("log", captured.root),
            ("databases", shortened(captured.databases)),
            ("not replicated", shortened(map(str, captured.not_replicated))),
            ("unknown", shortened(captured.unknown)),
            ("warning", shortened(captured.warnings)),
            ("took", took(captured.seconds)),
        ]
    )  # fmt: skip


# ---- --follow -----------------------------------------------------------------------------------------------------


def _follow(once: Callable[[], Captured], interval: timedelta, as_json: bool) -> int:
    """Captures until a signal comes, which is the way it ends; an error that trying again cannot help is raised."""
    total: dict[str, Any] = {}
    code = 0
    try:
        while True:
            captured = _patiently(once)
            _add(total, captured)
            if captured.records and not as_json:
                write([f"event {captured.through_event}, position {captured.position}: "
                       f"{count_text(captured.records, 'record')}, {count_text(captured.files, 'file')}, "
                       f"{size_text(captured.bytes)}"])  # fmt: skip
            time.sleep(interval.total_seconds() * random.uniform(0.9, 1.1))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    said = f"stopped after {count_text(total.get('rounds', 0), 'capture')}"
    emit({**total, "status": "stopped", "exit_code": code}, as_json, [said])
    return code


def _patiently(once: Callable[[], Captured]) -> Captured:
    """Tries again, ever less often, while the metastore is away or a dump holds the lease."""
    import tenacity

    def report(state: tenacity.RetryCallState) -> None:
        assert state.outcome and state.next_action
        note(f"{state.outcome.exception()}; trying again in {state.next_action.sleep:.0f} s")

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_can_pass), before_sleep=report, reraise=True,
        wait=tenacity.wait_exponential_jitter(initial=1, max=LONGEST_WAIT.total_seconds()),
    )  # fmt: skip
    return attempts(once)


def _can_pass(error: BaseException) -> bool:
    return isinstance(error, LeaseHeld) or (isinstance(error, Error) and error.transient)


def _add(total: dict[str, Any], captured: Captured) -> None:
    """The whole of all rounds: counts are added, places and what is missing are the last round's."""
    before = dict(total)
    total.update(asdict(captured))
    total["rounds"] = before.get("rounds", 0) + 1
    for name in ("events", "records", "observed", "files", "bytes", "seconds"):
        total[name] = round(total[name] + before.get(name, 0), 3)
    for name in ("unknown", "warnings"):
        total[name] = [*before.get(name, []), *(each for each in total[name] if each not in before.get(name, []))]
    total["keeper"] = captured.keeper or before.get("keeper", "")
    total["first_position"] = before.get("first_position", captured.first_position)
