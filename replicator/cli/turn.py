"""`replicator switchover`, `failover` and `failback`: turn a policy round."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from replicator.cli.options import (
    Duration,
    EngineChoice,
    Session,
    dry_run_option,
    engine_options,
    json_option,
    pass_session,
)
from replicator.cli.output import aligned, emit, shortened, write
from replicator.cli.sync import Opened, jobs_option, opened, policy_argument

if TYPE_CHECKING:
    from replicator.sync.turn import Sides, StepTold, Turned

to_option = click.option(
    "--to", type=click.Choice(["source", "target"]), default=None,
    help="Who shall be the primary, as the policy names the sides; default: who is not. Running it again then does not "
    "turn back.",
)  # fmt: skip
wait_option = click.option(
    "--wait", type=Duration(), default="10s", show_default=True, help="How long to wait for a run that is at work."
)


@click.command()
@policy_argument
@to_option
@click.option("--abort", is_flag=True, help="Take a switchover back that has not promoted the replica yet.")
@click.option("--anyway", is_flag=True, help="Also when tables differed in their last comparison, or directories are "
              "missing.")  # fmt: skip
@click.option("--drain", type=Duration(), default="10m", show_default=True, help="How long the last changes may take.")
@wait_option
@dry_run_option
@jobs_option
@engine_options
@json_option
@pass_session
def switchover(
    session: Session, policy: str, to: str | None, abort: bool, anyway: bool, drain: timedelta, wait: timedelta,
    dry_run: bool, jobs: int, engine: EngineChoice, as_json: bool,
) -> int:  # fmt: skip
    """Make the replica the primary, and the primary its replica: planned, without loss. A second one turns back.

    Stop the writers before, or when the step `fence` is told: a role stops replication, it stops nobody from writing.
    What they write until the drain ends is replicated; what comes later is kept and listed. Safe to kill and to run
    again. Exit 6, and nothing is changed, when the check finds something in the way.

    \b
    Example:
      replicator switchover west --dry-run
      replicator switchover west
      replicator switchover west --abort
    """
    from replicator.sync.switchover import SwitchoverOptions
    from replicator.sync.switchover import abort as take_back
    from replicator.sync.switchover import switchover as turn

    options = SwitchoverOptions(to=to or "", anyway=anyway, drain=drain, patience=wait, jobs=jobs)
    with ExitStack() as stack:
        sides = sides_of(session, opened(session, stack, policy, engine), as_json)
        done = take_back(sides, options) if abort else turn(sides, options, dry_run=dry_run)
    emit(done, as_json, turned_lines(done))
    return 6 if done.problems else 0


def sides_of(session: Session, work: Opened, as_json: bool) -> Sides:
    """What a verb works on; each step is told when it is done."""
    from replicator.sync.turn import Sides

    def told(step: StepTold) -> None:
        if not as_json:
            write([step_line(step)])

    return Sides(
        work.policy, work.source, work.target, work.engines, session.progress, work.others, told=told
    )  # fmt: skip


def step_line(step: StepTold) -> str:
    took = "before" if step.seconds is None else f"{step.seconds:.1f} s"
    return f"{step.name:<10} {took:>8}  {step.does}"


def turned_lines(done: Turned) -> Iterable[str]:
    """A turn for a person, after its steps."""
    words = {"done": "turned", "nothing": "nothing", "ready": "ready" if not done.problems else "refused"}
    is_ = "would be" if done.status == "ready" else "is"
    return aligned(
        [
            (words.get(done.status, done.status), f"{done.policy}: the {done.primary}, {done.uri}, {is_} the primary"
                                                  + (f" at epoch {done.epoch}" if done.epoch else "")),
            ("databases", shortened(done.databases)),
            ("lag", f"{done.lag_events:,} events, {done.lag_seconds:.0f} s" if done.lag_events is not None
             and done.lag_seconds is not None and done.status == "ready" else None),
            ("downtime", f"{done.downtime_seconds:.1f} s" if done.downtime_seconds is not None else None),
            ("problem", shortened(done.problems)),
            ("warning", shortened(done.warnings)),
            ("took", f"{done.seconds:.1f} s"),
        ]
    )  # fmt: skip
