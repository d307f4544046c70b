"""Verifying: comparisons of a policy's replicas in addition to its runs, within the budget of its `verify`.

The captured log distinguishes a difference from a change in transit: differing tables are captured once more, and a
table with records after the checkpoint that the replica had before the comparison is only behind. So writes without
events do not count as differences either. Verifying requires no lease of the policy: it reads both sides, and writes
its memory and its captures under their own leases.

Also contains the retry of objects that the target refused in earlier runs.
"""

from __future__ import annotations

import threading
import time as clocks
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

from cmroot.log.captured import segments
from replicator.captures.manifest import read_records
from replicator.captures.recording import Captured
from replicator.compare.both_sides import Comparison
from replicator.compare.repair import RepairSettings, planned
from replicator.compare.sampling import Budget, Sampled, verify_sample
from replicator.compare.verify import touched_names
from replicator.core.not_replicated import NOT_TAKEN, PROPERTY, NotReplicated, from_property, merged
from replicator.core.policy import METADATA
from replicator.errors import Error, LeaseHeld, ObjectNotFound
from replicator.policies.direction import Pair, Sides
from replicator.policies.memory import Compared, Memory, iso
from replicator.policies.out_of_scope import drop, plan_database
from replicator.policies.steps import SYNC, Steps
from replicator.replay.apply.load import Loaded, load

SHARE = 5  # with --follow, verifying may take one part in so many of the time
NAMED = 20  # tables in a warning
GRACE = 5.0  # seconds for the table that is being compared when the following ends


def compare_some(steps: Steps, memory: Memory, *, enough: Callable[[], bool] = lambda: False) -> Compared | None:
    """Compares as much as the policy's budget allows. Returns None if it has no budget, no replica is complete, or
    another process is comparing. `steps`: of the run, or of a direction determined for this. enough: called before each
    table or hundred; True ends early. May run twice, and concurrently with a run."""
    direction, budget = steps.direction, steps.policy.verify
    ready = (
        {pair.name: pair.position for pair in _replicas(steps) if _is_complete(pair, direction.root.id)}
        if budget
        else {}
    )
    if budget is None or not ready:
        return None

    captured: list[Captured] = []
    scanning = Steps(direction, replace(steps.options, scan=True), steps.runtime)

    def changed(db: str, names: Set[str]) -> Set[str]:
        if not captured:  # called after all comparisons, so it includes all writes until then
            captured.append(scanning.capture())
        if not any(pair.name == db and _is_complete(pair, direction.root.id) for pair in _replicas(steps)):
            return names  # a load or a repair is running there: the comparison may have seen it half done
        found: set[tuple[str, str]] = set()
        after = ready[db] or 0
        for segment in segments(direction.root.place):
            if segment.last > after:
                for record in read_records(segment, after):
                    found |= touched_names(record.change)
        return {name for name in names if (db, name) in found}

    try:
        sampled = verify_sample(
            Comparison(
                direction.source,
                direction.target,
                direction.renames(ready),
                direction.map_locations,
                direction.patterns,
                formats=steps.policy.formats,
            ),
            list(ready),
            Budget(budget.objects, budget.bytes),
            str(memory.place / "verified"),
            steps.runtime,
            changed=changed,
            enough=enough,
        )
    except LeaseHeld:
        return None
    steps.warnings += sampled.warnings
    return _compared(sampled, steps.runtime.clock())


def compare_now(sides: Sides, memory: Memory, *, enough: Callable[[], bool] = lambda: False) -> Compared | None:
    """Does the same as `compare_some` outside of a policy's run. Returns None during a role change, too."""
    if memory.unfinished_role_change() is not None:
        return None
    return compare_some(Steps(sides.direction(memory), SYNC, sides.runtime), memory, enough=enough)


def _replicas(steps: Steps) -> Iterator[Pair]:
    """Yields the replicated databases, with the current state of the target's."""
    for pair in steps.direction.matching:
        if pair.source is not None:
            try:
                yield replace(pair, target=steps.direction.target.database(pair.replica))
            except ObjectNotFound:
                continue


def _is_complete(pair: Pair, root_id: str) -> bool:
    """Returns True if a load has completed there, and none is running."""
    return pair.position is not None and pair.made_from == root_id and not pair.loading


def _compared(sampled: Sampled, now: float) -> Compared:
    return Compared(
        tables=sampled.tables,
        sampled=sampled.sampled,
        bytes=sampled.bytes,
        differing=tuple(sampled.differing[:1000]),
        behind=len(sampled.behind),
        open=tuple(sampled.open_names),
        open_count=sampled.open,
        never=sampled.never,
        oldest=sampled.oldest,
        seconds=sampled.seconds,
        ended=iso(now),
    )


def reported(compared: Compared | None) -> list[str]:
    """Returns the differences as a warning for the operator; empty if there are none."""
    names = list(dict.fromkeys([*compared.differing, *compared.open])) if compared else []
    if compared is None or not names:
        return []
    more = max(len(names), compared.open_count) - NAMED
    text = ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
    return [f"differs from the source, and not because it is behind: {text}; see `replicator repair`"]


class Background:
    """A thread that verifies repeatedly, concurrently with the runs of --follow, which never wait for it."""

    def __init__(self, once: Callable[[Callable[[], bool]], Compared | None], *, pause: float) -> None:
        """Prepares the thread. `once(enough)`: one comparison. pause: minimum seconds between two of them."""
        self._once, self._pause = once, pause
        self._stop = threading.Event()
        self._news: Compared | None = None
        self._lock = threading.Lock()
        self.last: Compared | None = None
        self.error = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the thread for the length of a block. At its end a running comparison is abandoned, as it only reads."""
        thread = threading.Thread(target=self._run, name="verify", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(timeout=GRACE)

    @property
    def has_news(self) -> bool:
        """Returns True if a difference waits to be recorded by a run."""
        with self._lock:
            return self._news is not None and bool(self._news.differing)

    def take(self) -> Compared | None:
        """Returns the result since the last call; None if nothing was compared."""
        with self._lock:
            news, self._news = self._news, None
            return news

    def _run(self) -> None:
        while not self._stop.is_set():
            began = clocks.monotonic()
            try:
                compared = self._once(self._stop.is_set)
                self.error = ""
            except Exception as error:  # such as a metastore that is away or Spark that died: retried, and reported
                compared, self.error = None, f"{type(error).__name__}: {error}"
            if compared is not None:
                with self._lock:
                    self._news = self.last = compared
            self._stop.wait(max(self._pause, (SHARE - 1) * (clocks.monotonic() - began)))


# ---- what the target did not take ----------------------------------------------------------------------------------


def try_again(steps: Steps, lacking: Sequence[NotReplicated], count: Callable[[Loaded], None]) -> list[NotReplicated]:
    """Loads objects that earlier runs left out and this run did not load either, completely, as a repair does. Returns
    those of `lacking` still missing. count: receives each load's report. A failure is a warning. May run twice."""
    for pair in steps.direction.matching:
        if pair.drop_refused:
            lacking = _drop_again(steps, pair, lacking)
            continue
        names = _still_refused(steps, pair) if pair.source is not None else []
        if not names:
            continue
        try:
            loaded = _load_again(steps, pair, names)
        except Error as error:
            if error.transient:
                raise
            steps.warnings.append(f"{pair.name}: what its replica lacks was tried again, and failed: {error}")
            continue
        tried = {f"{pair.name}.{name}" for name in names}
        rest = (each for each in lacking if not (each.object in tried and each.reason.startswith(NOT_TAKEN)))
        lacking = merged(rest, loaded.not_replicated)
        count(loaded)
    return list(lacking)


def _drop_again(steps: Steps, pair: Pair, lacking: Sequence[NotReplicated]) -> list[NotReplicated]:
    """Retries the drop of a database that the target refused. Returns what is missing. Other objects prevent it."""
    direction = steps.direction
    going = plan_database(direction.target, pair.replica, pair.name, direction.root.id)
    assert pair.target is not None
    said = from_property(pair.target.parameters.get(PROPERTY), pair.name)
    if going.whole:
        said = drop([going], direction.target, direction.target_root, steps.runtime).refused
    return merged((each for each in lacking if each.object.partition(".")[0] != pair.name), said)


def _still_refused(steps: Steps, pair: Pair) -> list[str]:
    """Returns tables and functions that are missing, by their current names, of a database where some were refused
    before this run; includes those that only the target has, whose drop it refused."""
    before = _refused(pair, pair.target.parameters.get(PROPERTY)) if pair.target is not None else set()
    if not before:
        return []
    now = _refused(pair, steps.direction.target.database(pair.replica).parameters.get(PROPERTY))
    there: set[str] = set()
    for side, db in ((steps.direction.source, pair.name), (steps.direction.target, pair.replica)) if now else ():
        there |= {*side.table_names(db), *side.function_names(db)}
    return sorted(now & there)


def _refused(pair: Pair, said: str | None) -> set[str]:
    found = from_property(said, pair.name)
    return {each.object.partition(".")[2] for each in found if each.reason.startswith(NOT_TAKEN)}


def _load_again(steps: Steps, pair: Pair, names: Sequence[str]) -> Loaded:
    direction, policy = steps.direction, steps.policy
    both = Comparison(
        direction.source,
        direction.target,
        direction.renames([pair.name]),
        direction.map_locations,
        direction.patterns,
        formats=policy.formats,
    )
    settings = RepairSettings(
        pair.name,
        differing=[f"{pair.name}.{name}" for name in names],
        cmroot=direction.target_root.place,
        warehouse=direction.warehouse,
        external=direction.external,
        shared_external=policy.external == METADATA,
        source_root=direction.root.place,
        brake=steps.options.brake,
    )
    with planned(direction.root, both, settings, steps.runtime) as plan:
        assert plan.reader is not None
        return load(plan.reader.place, direction.target, plan.load, steps.runtime)
