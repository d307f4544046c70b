"""One run of a policy: read the state, capture, decide, dump, load, confirm, clean up, write the history
(docs/decisions/0006).

`sync_once` takes the policy's lease; `run_once` is the same for a caller that holds it already. The next run completes
a run that was killed at any step: it finishes the interrupted load, and reads the rest from the target's checkpoints.
"""

from __future__ import annotations

import os
import time as clocks
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from cmroot.lease import Lease
from cmroot.root import create_or_open
from replicator.captures.dumps.dump import Dumped
from replicator.captures.dumps.layout import Point
from replicator.captures.walk import ScannedTables
from replicator.core import logging
from replicator.core.logging import SERVICE_RUN, lines_about
from replicator.core.not_replicated import INCOMPLETE, LoadCounts, NotReplicated, merged
from replicator.core.policy import Policy, refuse_overlaps, same_metastore
from replicator.errors import BootstrapNeeded, Error, LeaseHeld, Refused
from replicator.metastore.events.scope import behind
from replicator.policies.direction import Direction, Sides, find_direction
from replicator.policies.memory import Compared, Memory, RememberedScope, Run, RunKind, iso
from replicator.policies.replicas import (
    Background,
    OutOfScope,
    compare_some,
    drop,
    plan_database,
    plan_tables,
    reported,
    try_again,
)
from replicator.policies.status import seconds_bound
from replicator.policies.steps import SYNC, Steps, SyncSettings
from replicator.policies.sync_plan import DumpBatch, RunWork
from replicator.replay.apply.load import Loaded

REMEMBERED = 1000  # objects not replicated, in the record of a run
TIDY_AFTER = 3600.0  # seconds between two clean-ups in one process


@dataclass
class SyncRun(LoadCounts):
    """The report of a run. `status`: synced, nothing (no changes), incomplete (part of the work failed, see
    `warnings`). `to_event`, `position`: of the target, over all databases. Counts are those of its loads.
    `bootstrapped`: databases that were dumped completely, and why. `left`: replicas of databases and tables that the
    policy no longer names, which remain without consent; `dropped`: those that were dropped. `not_replicated`: objects
    that differ between target and source. `compared`: the verification after this run, or of the background since the
    previous run; None if nothing was verified. `steps`: seconds by name; scan_seconds, compare_seconds, scanned: of its
    capture, as in `Captured`; lag_seconds, lag_seconds_bound: as in `Lag`, at its end."""

    before: ClassVar[str] = "left"
    policy: str
    status: str = "nothing"
    run: str = ""
    kind: str = "nothing"
    reverse: bool = False
    from_event: int | None = None
    to_event: int = 0
    position: int = 0
    databases: list[str] = field(default_factory=list)
    bootstrapped: dict[str, str] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    captured: int = 0
    records: int = 0
    squashed: int = 0
    left: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    missing_directories: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lag_seconds: float | None = None
    lag_seconds_bound: float | None = None
    compared: Compared | None = None
    steps: dict[str, float] = field(default_factory=dict)
    scan_seconds: float = 0.0
    compare_seconds: float = 0.0
    scanned: ScannedTables | None = None
    seconds: float = 0.0

    @property
    def moved(self) -> bool:
        """Returns True if anything was loaded or dropped."""
        return bool(self.dumps or self.dropped)

    def add(self, loaded: Loaded) -> None:
        """Adds the counts of one load."""
        self.dumps.append(loaded.dump)
        self.not_replicated = merged(self.not_replicated, loaded.not_replicated)
        self.records += loaded.records
        self.squashed += loaded.squashed
        self.count(loaded)
        if loaded.from_event is not None:
            self.from_event = min(self.from_event or loaded.from_event, loaded.from_event)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        began = clocks.monotonic()
        try:
            with logging.step(step):
                yield
        finally:
            self.steps[step] = round(self.steps.get(step, 0.0) + clocks.monotonic() - began, 3)


class Remembering:
    """The state of a policy that one process keeps between runs, so that idle rounds read and write next to nothing."""

    def __init__(self, policy: Policy) -> None:
        self.memory = Memory(create_or_open(policy.target_cmroot), policy.name)
        self.tidied: float | None = None
        self.quiet: Run | None = None  # the record of the last round, if it had no changes: the next one prolongs it
        self.unreached: Run | None = None  # the same of rounds that could not begin
        self.swept = False
        self.background: Background | None = None  # the verification while this process follows the policy


def sync_once(sides: Sides, options: SyncSettings = SYNC, remembering: Remembering | None = None) -> SyncRun:
    """Runs the policy once: bootstraps where required, else increments; no changes, no dump. May be killed and run
    again.

    remembering: of an earlier run of this process. Raises LeaseHeld while another run of the policy is running, Refused
    if roles, an unfinished role change, or objects that replication did not create block the run, and the errors of
    capture and load."""
    kept = remembering or Remembering(sides.policy)
    with kept.memory.lease("sync") as lease:
        return run_once(sides, lease, kept, options)


def run_once(sides: Sides, lease: Lease, kept: Remembering, options: SyncSettings) -> SyncRun:
    """Does the same as `sync_once` for a caller that holds the policy's lease, such as the drain of a switchover."""
    began, clock = clocks.monotonic(), sides.runtime.clock
    report = SyncRun(sides.policy.name, run=uuid.uuid4().hex[:12])
    with lines_about(run=report.run, policy=report.policy), recorded(report, kept, lease, clock):
        with report.timed("look"):
            refuse_role_change(kept.memory, options)
            remembered = kept.memory.read_scope()
            direction = look(sides, remembered)
            report.reverse = direction.reverse
            steps = Steps(direction, options, sides.runtime)
            epochs = steps.roles()
            steps.forget_checkpoints()
        _finish(steps, sides, remembered, report)
        with report.timed("capture"):
            captured = steps.capture()
            report.scan_seconds, report.compare_seconds = captured.scan_seconds, captured.compare_seconds
            report.captured, report.missing_directories = captured.records, captured.missing_directories
            report.scanned = captured.scanned
            covered = captured.covered_until
            seen = steps.concerning(captured.not_replicated)
            left_out = steps.left_out(captured)
            report.not_replicated = merged(report.not_replicated, seen, left_out)
        work = steps.decide(remembered)
        lease.check()
        ends = _replicate(steps, work, epochs, report)
        report.to_event, report.position = captured.through_event, min([captured.position, *ends])
        steps.advance(work, Point(captured.position, captured.through_event, 0))
        steps.confirm(report.position)
        leave(steps, find_out_of_scope(steps, work), report)
        clean_up(steps, kept, work, remembered, report)
        if covered is not None and report.position >= captured.position:
            report.lag_seconds_bound = seconds_bound(covered, report.lag_seconds, clock())
        with report.timed("retry"):
            again = {each.object for each in left_out}
            report.not_replicated = try_again(steps, report.not_replicated, report.count, again)
        verify(steps, kept, report)
        sum_up(steps, report, began)
    return report


# ---- the steps of a run -------------------------------------------------------------------------------------------


def look(sides: Sides, remembered: RememberedScope | None) -> Direction:
    """Returns the direction and both sides' databases. Raises ConfigError if another policy writes to the same ones."""
    policy = sides.policy
    direction = find_direction(policy, sides.source, sides.target, remembered)
    background = [
        each for each in sides.others if each.name != policy.name and same_metastore(each.target, policy.target)
    ]
    if background:
        names = {policy.source_key: [pair.known_as for pair in direction.matching]}
        for other in background:
            refuse_overlaps([policy, other], names)
    return direction


def refuse_role_change(memory: Memory, options: SyncSettings) -> None:
    unfinished = None if options.draining else memory.unfinished_role_change()
    if unfinished is not None:
        raise Refused(
            f"policy {memory.policy}: a {unfinished.verb} was begun at {unfinished.started} and has not ended",
            hint=f"run `replicator {unfinished.verb} {memory.policy}` again to complete it",
            details={"turn": unfinished.id, "verb": unfinished.verb},
        )


def _finish(steps: Steps, sides: Sides, remembered: RememberedScope | None, report: SyncRun) -> None:
    """Finishes the loads that a killed run began, then reads the target again."""
    with report.timed("finish"):
        finished = steps.finish_interrupted()
    for loaded in finished:
        report.add(loaded)
        report.kind = "bootstrap" if loaded.kind == "bootstrap" else "incremental"
    if finished:
        steps.direction = look(sides, remembered)


def _replicate(steps: Steps, work: RunWork, epochs: dict[str, int], report: SyncRun) -> list[int]:
    """Dumps and loads every batch. Returns their end positions."""
    if not work.batches:
        return []
    steps.protect(work)
    ends = []
    for batch in work.batches:
        slot = steps.policy.slot if batch is work.batches[-1] else ""
        try:
            dumped = _dump_and_load(steps, batch, epochs, report, slot)
        except BootstrapNeeded as error:
            if batch.bootstrap:
                raise
            steps.warnings.append(f"ran a bootstrap instead of an increment: {error}")
            dumped = _dump_and_load(steps, DumpBatch(batch.databases, why=str(error)), epochs, report, "")
        ends.append(dumped.to_position)
    return ends


def _dump_and_load(steps: Steps, batch: DumpBatch, epochs: dict[str, int], report: SyncRun, slot: str) -> Dumped:
    if batch.bootstrap:
        report.bootstrapped |= dict.fromkeys(batch.databases, batch.why)
    report.kind = "bootstrap" if report.bootstrapped else "incremental"
    with report.timed("dump"):
        chosen = {name: epoch for name, epoch in epochs.items() if name in batch.databases}
        dumped = steps.dump(batch, chosen, slot=slot)
    with report.timed("load"):
        report.add(steps.load(dumped.dump))
    return dumped


def find_out_of_scope(steps: Steps, work: RunWork) -> list[OutOfScope]:
    """Returns plans to drop what left the policy's scope. Raises Refused for databases that roles protect."""
    direction = steps.direction
    gone = [*work.left, *work.lost, *direction.renamed]
    found = [plan_database(direction.target, pair.replica, pair.name, direction.root.id) for pair in gone]
    if work.rescoped or steps.options.drop_left:
        for pair in direction.matching:
            if pair not in gone and pair.target is not None:
                found.append(
                    plan_tables(direction.target, pair.replica, pair.name, direction.patterns, direction.root.id)
                )
    return [each for each in found if not each.empty]


def leave(steps: Steps, out_of_scope: Sequence[OutOfScope], report: SyncRun) -> None:
    """Drops what left the policy, with consent; reports it otherwise."""
    if out_of_scope and steps.options.drop_left:
        with report.timed("leave"):
            done = drop(out_of_scope, steps.direction.target, steps.direction.target_root, steps.runtime)
            report.files_removed += done.recycled
            report.not_replicated = merged(report.not_replicated, done.refused)
        refused = {each.object.partition(".")[0] for each in done.refused}
        report.dropped = [name for each in out_of_scope if each.known_as not in refused for name in each.names]
        report.left = [name for each in out_of_scope if each.known_as in refused for name in each.names]
        for each in out_of_scope:
            if each.staying:
                steps.warnings.append(f"{each.db} is kept: replication did not create {', '.join(each.staying[:10])}")
        return
    report.left = [name for each in out_of_scope for name in each.names]
    if out_of_scope:
        steps.warnings.append(
            f"the policy no longer names {', '.join(report.left)}: they remain on the target unchanged until a run "
            "with --drop-left"
        )


def verify(steps: Steps, kept: Remembering, report: SyncRun) -> None:
    """Verifies within the policy's budget at the end of a run, or collects the results of the background verification.
    Failures are reported as warnings and do not fail the run."""
    if kept.background is not None:
        report.compared = kept.background.take()
        steps.warnings += reported(report.compared or kept.background.last)
        steps.warnings += [f"verification failed: {kept.background.error}"] if kept.background.error else []
    elif steps.policy.verify is not None and not steps.options.draining:
        try:
            with report.timed("verify"):
                report.compared = compare_some(steps, kept.memory)
        except (Error, OSError) as error:
            steps.warnings.append(f"verification failed: {error}")
        steps.warnings += reported(report.compared)


def clean_up(
    steps: Steps, kept: Remembering, work: RunWork, remembered: RememberedScope | None, report: SyncRun
) -> None:
    """Remembers the scope of this run after the loads; removes retired directories, old dumps and runs."""
    _remember_scope(steps, kept.memory, work, remembered, report)
    _tidy(steps, kept, report)
    report.lag_seconds = behind(steps.direction.source, report.to_event, steps.runtime.clock)


def sum_up(steps: Steps, report: SyncRun, began: float) -> None:
    report.warnings = list(dict.fromkeys(steps.warnings))
    report.databases = [pair.name for pair in steps.direction.matching]
    report.status = INCOMPLETE if report.not_replicated else "synced" if report.moved else "nothing"
    report.seconds = round(clocks.monotonic() - began, 3)


def _tidy(steps: Steps, kept: Remembering, report: SyncRun) -> None:
    clock = steps.runtime.clock
    report.not_replicated = merged(steps.lacking, steps.sweep_retired(), report.not_replicated)
    if kept.tidied is None or clocks.monotonic() - kept.tidied > TIDY_AFTER:
        steps.dumps.tidy(steps.direction.root, steps.policy.retention, report.position, clock=clock)
        kept.memory.prune_runs(steps.policy.retention, now=clock)
        kept.tidied = clocks.monotonic()


# ---- memory -------------------------------------------------------------------------------------------------------


def _remember_scope(
    steps: Steps, memory: Memory, work: RunWork, before: RememberedScope | None, report: SyncRun
) -> None:
    """Writes the scope of this run. A database that left is remembered until it is dropped, as nothing else identifies
    it as the policy's. A former name is remembered once its replacement exists, so failed runs change nothing."""
    direction = steps.direction
    now = direction.scope(iso(steps.runtime.clock()))
    staying = {pair.known_as: pair for pair in [*work.left, *work.lost] if pair.replica in report.left}
    databases = now.databases | {
        name: direction.policy.target_name(name)
        if pair.matches
        else (before.databases[name] if before else pair.replica)
        for name, pair in staying.items()
    }
    former = {pair.replica: pair.name for pair in direction.renamed if pair.replica in report.left}
    now = msgspec.structs.replace(now, databases=databases, former=former)
    if before is None or msgspec.structs.replace(now, recorded=before.recorded) != before:
        memory.write_scope(now)


@contextmanager
def recorded(report: SyncRun, kept: Remembering, lease: Lease, clock: Callable[[], float]) -> Iterator[None]:
    """Writes the run's file in the history: running, then done or failed. Successive rounds without changes share one
    file, with the start of the first and the end of the last. Marks runs of earlier processes that never ended as
    killed: before this one is recorded as running, which would be one of them."""
    if not kept.swept:
        kept.memory.close_killed(now=clock)
        kept.swept = True
    started = iso(clock())
    by = os.environ.get(SERVICE_RUN, "")
    run = Run(id=report.run, policy=report.policy, started=started, epoch=lease.epoch, service_run=by)
    kept.unreached = None
    if kept.quiet is None:
        kept.memory.write_run(run)
    try:
        yield
    except BaseException as error:
        failed = _filled(run, report, clock)
        text = f"{type(error).__name__}: {error}"
        kept.quiet = None
        kept.memory.write_run(msgspec.structs.replace(failed, status="failed", error=text))
        raise
    done = msgspec.structs.replace(_filled(run, report, clock), status="done")
    if not report.moved:
        if kept.quiet is not None:
            compared = done.compared or kept.quiet.compared
            done = msgspec.structs.replace(done, id=kept.quiet.id, started=kept.quiet.started, compared=compared)
        kept.quiet = done
    else:
        kept.quiet = None
    kept.memory.write_run(done)


def record_unreached(kept: Remembering, error: Exception, clock: Callable[[], float] = clocks.time) -> None:
    """Records a round that could not begin because a metastore did not answer. Successive failures share one record,
    from the first to the last: a night without the source is one entry of the history. If another process holds the
    policy's lease, nothing is written: that process writes the history."""
    now, text = iso(clock()), f"{type(error).__name__}: {error}"
    before = kept.unreached
    by = os.environ.get(SERVICE_RUN, "")
    run = before or Run(id=uuid.uuid4().hex[:12], policy=kept.memory.policy, started=now, service_run=by)
    with suppress(LeaseHeld), kept.memory.lease("sync") as lease:
        kept.quiet = None
        kept.unreached = msgspec.structs.replace(
            run, ended=now, kind="nothing", status="failed", error=text, epoch=lease.epoch
        )
        kept.memory.write_run(kept.unreached)


def _filled(run: Run, report: SyncRun, clock: Callable[[], float]) -> Run:
    kinds: dict[str, RunKind] = {"bootstrap": "bootstrap", "incremental": "incremental"}
    return msgspec.structs.replace(
        run,
        ended=iso(clock()),
        kind=kinds.get(report.kind, "nothing"),
        from_event=report.from_event,
        to_event=report.to_event or None,
        position=report.position or None,
        records=report.records,
        files=report.files_copied,
        bytes=report.bytes_copied,
        lag_seconds=report.lag_seconds,
        lag_seconds_bound=report.lag_seconds_bound,
        reverse=report.reverse,
        dump=report.dumps[-1] if report.dumps else "",
        warnings=tuple(report.warnings),
        steps=report.steps,
        compared=report.compared,
        not_replicated=tuple(report.not_replicated[:REMEMBERED]),
    )
