"""`replicator sync`: run a policy, once or repeatedly. And `plan` and `apply`: show the next run, then execute exactly
that."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import (
    aligned,
    count_text,
    duration_text,
    emit,
    note,
    shortened,
    size_text,
    sources_text,
    took,
    write,
)
from replicator.commands.policies import apply as run_apply
from replicator.commands.policies import plan as run_plan
from replicator.commands.policies import sync as run_sync
from replicator.core.not_replicated import PARTIAL
from replicator.core.runtime import Stopping
from replicator.core.text import bound_text
from replicator.policies.follow import RunsFollowed
from replicator.policies.memory import Compared
from replicator.policies.run import SyncRun
from replicator.policies.sync_plan import SyncPlan

DIFFERENT = 4
GRACE = timedelta(seconds=30)  # for a run to end after a signal


@click.command()
@options_of(run_sync, engine=True)
@json_options
@pass_session
def sync(session: Session, /, as_json: bool, once: bool, **given: Any) -> int:
    """Run a policy: a bootstrap if necessary, else the changes since the last run. Safe to kill and to run again.

    With --follow one Spark session is kept, failures are retried, and SIGTERM or Ctrl-C end it after the current run
    (within 30 s). Exit 7 while another run of the policy holds the lease.

    \b
    Example:
      replicator sync west
      replicator sync west --follow --interval 10s
    """
    if not once:
        return _follow(session, as_json, **given)
    done = session.call(run_sync, **given)
    assert isinstance(done, SyncRun)
    emit(done, as_json, run_lines(done))
    if done.not_replicated:
        return PARTIAL
    return DIFFERENT if done.compared and done.compared.differing else 0


def run_lines(run: SyncRun) -> Iterable[str]:
    """Formats the report of a run."""
    return aligned(
        [
            (run.status, f"{run.policy} ({run.kind}{', reverse' if run.reverse else ''})"),
            ("target", f"at event {run.to_event}, position {run.position}"),
            ("databases", shortened(run.databases)),
            ("bootstrap", shortened(f"{db}: {why}" for db, why in run.bootstrapped.items())),
            ("records", f"{run.records:,}, {run.squashed:,} of them squashed" if run.moved else None),
            (
                "copied",
                f"{count_text(run.files_copied, 'file')}, {size_text(run.bytes_copied)}" + sources_text(run)
                if run.moved
                else None,
            ),
            ("in place", count_text(run.files_skipped, "file") if run.files_skipped else None),
            ("removed", count_text(run.files_removed, "file") if run.files_removed else None),
            ("dropped", shortened(run.dropped)),
            ("left", shortened(run.left)),
            ("not replicated", shortened(map(str, run.not_replicated))),
            ("scanned", run.scanned),
            ("lag", _lag_line(run)),
            ("verified", _compared_line(run.compared) if run.compared else None),
            ("warning", shortened(run.warnings)),
            ("took", f"{took(run.seconds)} ({', '.join(f'{name} {took:.1f}' for name, took in run.steps.items())})"),
        ]
    )


def _lag_line(run: SyncRun) -> str | None:
    if run.lag_seconds is None:
        return None
    bound = "" if run.lag_seconds_bound is None else f", at most {bound_text(run.lag_seconds_bound)}"
    return f"{run.lag_seconds:.0f} s{bound}"


def _compared_line(compared: Compared) -> str:
    waits = f"; oldest comparison {duration_text(compared.oldest)}" if compared.oldest is not None else ""
    return (
        f"{compared.sampled:,} of {count_text(compared.tables, 'table')}, {size_text(compared.bytes)}: "
        f"{len(compared.differing):,} different; {compared.never:,} never compared{waits}"
    )


# ---- --follow -----------------------------------------------------------------------------------------------------


def _follow(session: Session, as_json: bool, **given: Any) -> int:
    def reported(done: SyncRun) -> None:
        if not as_json:
            copied = f"{count_text(done.files_copied, 'file')}, {size_text(done.bytes_copied)}"
            records = count_text(done.records, "record")
            write([f"{done.kind} to event {done.to_event}: {records}, {copied}, {done.seconds:.1f} s"] * done.moved)
            write(f"not replicated: {each}" for each in done.not_replicated[:20])
            write(f"different: {name}" for name in (done.compared.differing[:20] if done.compared else ()))

    def failed(error: Exception, wait: float) -> None:
        hint = getattr(error, "hint", "")
        note(f"{type(error).__name__}: {error}{f' ({hint})' if hint else ''}; trying again in {wait:.1f} s")
        if session.verbose:
            note("".join(traceback.format_exception(error)))

    with Stopping(GRACE) as stop:
        total = session.call(run_sync, once=False, stop=stop, reported=reported, failed=failed, **given)
    assert isinstance(total, RunsFollowed)
    total.exit_code = stop.code
    emit(total, as_json, _followed_lines(total))
    return stop.code


def _followed_lines(total: RunsFollowed) -> Iterable[str]:
    return aligned(
        [
            (total.status, f"{total.policy} after {count_text(total.rounds, 'run')}, {total.synced:,} of them loaded"),
            ("target", f"at event {total.to_event}, position {total.position}"),
            ("records", f"{total.records:,}"),
            ("copied", f"{count_text(total.files_copied, 'file')}, {size_text(total.bytes_copied)}"),
            ("verified", f"{count_text(total.sampled, 'table')} in all" if total.compared else None),
            ("last", _compared_line(total.compared) if total.compared else None),
            ("not replicated", shortened(map(str, total.not_replicated))),
            ("failures", f"{total.failures:,}, the last: {total.last_error}" if total.failures else None),
            ("warning", shortened(total.warnings)),
        ]
    )


# ---- plan ------------------------------------------------------------------------------------------------------------
# `replicator plan` and `replicator apply`: show a policy's next run, then execute exactly that.


@click.command()
@options_of(run_plan, engine=True)
@json_options
@pass_session
def plan(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show the next run's changes and their cost; with --out, write them as a plan for apply.

    Captures, and writes the dumps of that run; the target is not changed.

    \b
    Example:
      replicator plan west
      replicator plan west --out plan.json
      replicator apply plan.json
    """
    made, out = session.call(run_plan, **given), given["out"]
    emit({"status": "planned", "plan": out, **made.to_dict()}, as_json, _plan_lines(made, out))
    return PARTIAL if made.not_replicated else 0


@click.command()
@options_of(run_apply, engine=True)
@json_options
@pass_session
def apply(session: Session, /, as_json: bool, **given: Any) -> int:
    """Carry out a plan, and nothing else. Safe to run again after a crash.

    Exit 6, without a change, if the policy, the roles, the target's checkpoint or its contents have changed since then.

    \b
    Example:
      replicator apply plan.json
    """
    done = session.call(run_apply, **given)
    emit(done, as_json, run_lines(done))
    return PARTIAL if done.not_replicated else 0


def _plan_lines(plan: SyncPlan, out: str | None) -> Iterable[str]:
    """Formats a plan."""
    cost = plan.cost
    changes = []
    for load in plan.loads:
        for key, value in load.steps.items():
            if isinstance(value, list) and value:
                changes.append(f"{key.replace('_', ' ')}: {', '.join(map(str, shortened(map(str, value))))}")
    sources = sources_text(cost, target="the target's $cmroot")
    removed = f"{count_text(cost.files_removed, 'file')}, {count_text(cost.partitions_removed, 'partition')}"
    return aligned(
        [
            ("planned", f"{plan.policy}{' (reverse)' if plan.reverse else ''}{f': {out}' if out else ''}"),
            ("nothing", "no changes" if plan.empty else None),
            (
                "loads",
                [
                    f"{load.kind} of {', '.join(load.databases)}" + (f": {load.why}" if load.why else "")
                    for load in plan.loads
                ],
            ),
            ("to", f"event {plan.to_event}, position {plan.position}"),
            ("events", f"{cost.events:,}, {count_text(cost.records, 'record')}, {cost.squashed:,} of them squashed"),
            ("objects", f"{cost.objects:,} changed"),
            ("copy", f"{count_text(cost.files, 'file')}, {size_text(cost.bytes)}{sources}"),
            (
                "remove",
                f"{removed}, {size_text(cost.bytes_removed)}"
                if cost.files_removed or cost.partitions_removed
                else None,
            ),
            ("removals", shortened(str(each) for load in plan.loads for each in load.gone)),
            ("unavailable", count_text(cost.missing, "file") if cost.missing else None),
            ("changes", changes),
            ("drop" if plan.drop_left else "left", shortened(plan.drops if plan.drop_left else plan.left)),
            ("not replicated", shortened(map(str, plan.not_replicated))),
            ("warning", shortened(plan.warnings)),
        ]
    )
