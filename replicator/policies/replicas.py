"""Replicas of a policy between its loads: dropped once out of scope, verified, and refused objects tried again.

Databases, tables and partitions that a policy no longer names are dropped with consent, after their data was moved to
the target's `$cmroot`; objects that replication did not create are retained. Verifying takes no lease of the policy,
and no more than the budget of its `verify`. The captured log distinguishes a difference from a change in transit:
differing tables are captured once more, and a table with records after the checkpoint that the replica had before the
comparison is only behind. So writes without events do not count as differences either.
"""

from __future__ import annotations

import threading
import time as clocks
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot
from replicator.captures.dumps.layout import BOOTSTRAP, DumpMetadata, Point, Scope
from replicator.captures.manifest import read_records
from replicator.captures.recording import Captured
from replicator.compare.both_sides import Comparison
from replicator.compare.repair import RepairSettings, planned
from replicator.compare.sampling import Budget, Sampled, verify_sample
from replicator.compare.verify import touched_names
from replicator.core.formats import WITHOUT_TABLE
from replicator.core.formats.iceberg_table import UNTRANSLATED, UNTRANSLATED_VIEW
from replicator.core.formats.symlink_table import UNTRANSLATED as UNTRANSLATED_LINKS
from replicator.core.formats.transactional_table import UNREPLAYED
from replicator.core.model import Database, Table
from replicator.core.not_replicated import NOT_TAKEN, PROPERTY, NotReplicated, from_property, merged
from replicator.core.policy import METADATA
from replicator.core.roles import may_load_into
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import Error, LeaseHeld, ObjectNotFound
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import Patterns, matches_name
from replicator.policies.direction import Pair, Sides
from replicator.policies.memory import Compared, Memory, iso
from replicator.policies.steps import SYNC, Steps
from replicator.replay.apply.commit import Commit
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.prepare import Preparation
from replicator.replay.apply.work import Work
from replicator.replay.placement import Placement
from replicator.replay.plan import Plan
from replicator.replay.replica import PUBLISH, SOURCE
from replicator.replay.squash import squash
from replicator.replay.target import TargetDatabase, read_target, table_position

# ---- replicas out of scope -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutOfScope:
    """The objects to drop of one of the target's databases: `tables`, and with `whole` the database itself. `staying`:
    tables that replication did not create, which keep the database. `partitions`: by table, those outside its filter.
    `snapshots`: loads publish by snapshots there, so the data is removed after the delay. `known_as`: the database's
    name at the source."""

    db: str
    tables: list[Table]
    whole: bool
    staying: list[str]
    partitions: dict[str, list[str]] = field(default_factory=dict)
    snapshots: bool = False
    known_as: str = ""

    @property
    def empty(self) -> bool:
        return not self.tables and not self.whole and not self.partitions

    @property
    def names(self) -> list[str]:
        """Returns the names for display; a database that is dropped completely appears by its name alone."""
        if self.whole or self.staying:
            return [self.db]
        tables = [f"{self.db}.{table.name}" for table in self.tables]
        return tables + [
            f"{self.db}.{table} ({count_text(len(some), 'partition')})" for table, some in self.partitions.items()
        ]


def plan_database(target: MetastoreReader, db: str, known_as: str, root_id: str) -> OutOfScope:
    """Plans the drop of a database that left the policy. known_as: its name at the source. `root_id`: of the source's
    `$cmroot` that its tables were made from. Raises Refused for one that is a primary or fenced."""
    there = read_target(target, [db])[db]
    may_load_into(f"database {db} of the target", there.role(db))
    ours = _ours(there, root_id)
    staying = sorted(set(there.tables) - {table.name for table in ours})
    whole = there.database is not None and not staying
    return OutOfScope(db, ours, whole, staying, snapshots=_by_snapshots(there.database), known_as=known_as)


def plan_tables(target: MetastoreReader, db: str, known_as: str, patterns: Patterns, root_id: str) -> OutOfScope:
    """Plans the drop of tables outside the patterns, and of partitions outside a filter, in a retained database.
    known_as: its name at the source, for the filters. Costs a call for all table names, and one a filtered table."""
    try:
        names = target.table_names(db)
    except ObjectNotFound:
        return OutOfScope(db, [], False, [])
    outside = [name for name in names if not patterns.match(name)]
    tables = _made_from(target.tables(db, outside), root_id)
    partitions: dict[str, list[str]] = {}
    for name in names:
        wanted = patterns.filter_of(known_as, name)
        if wanted is not None and name not in outside and _made_from(target.tables(db, [name]), root_id):
            gone = [each for each in target.partition_names(db, name) if not matches_name(wanted, each)]
            partitions |= {name: gone} if gone else {}
    return OutOfScope(db, tables, False, [], partitions, _by_snapshots(target.database(db)), known_as)


def _by_snapshots(database: Database | None) -> bool:
    return database is not None and database.parameters.get(PUBLISH) == "snapshot"


def _ours(there: TargetDatabase, root_id: str) -> list[Table]:
    return _made_from(there.tables.values(), root_id)


def _made_from(tables: Iterable[Table], root_id: str) -> list[Table]:
    return [table for table in tables if table_position(table) is not None and table.parameters.get(SOURCE) == root_id]


@dataclass
class Dropped:
    """The result of a drop: number of files moved to `$cmroot`. `refused`: objects not dropped, by source name."""

    recycled: int = 0
    refused: list[NotReplicated] = field(default_factory=list)


def drop(out_of_scope: Sequence[OutOfScope], target: Metastore, root: ChangeRoot, runtime: Runtime) -> Dropped:
    """Drops the planned objects. `root`: the target's. May run twice."""
    done = Dropped()
    with acquire(root.place, "drop out-of-scope replicas") as lease:
        for each in out_of_scope:
            work = Work(_plan(each), target, root.place, runtime, lease.check)
            Preparation(work).prepare()
            Commit(work).drop_databases()
            for name, partitions in each.partitions.items():
                work.drop_partitions(target.table(each.db, name), partitions)
            done.recycled += work.changed.recycled
            done.refused += work.outcomes.refused()
    return done


def _plan(out_of_scope: OutOfScope) -> Plan:
    """Returns a load's plan that only drops."""
    nowhere = Point(0, 0, 0)
    metadata = DumpMetadata(
        id=f"leaving-{out_of_scope.db}",
        kind=BOOTSTRAP,
        created="",
        scope=Scope(databases=(out_of_scope.db,)),
        source="",
        root="",
        root_id="",
        begin=None,
        end=nowhere,
        locations={},
        records=0,
        files=0,
        removed=0,
        bytes=0,
        observed=0,
        buckets=0,
    )
    return Plan(
        metadata=metadata,
        placement=Placement({out_of_scope.known_as or out_of_scope.db: out_of_scope.db}, {}, {}, None),
        after=0,
        squashed=squash((), (), bootstrap=False),
        drops=list(out_of_scope.tables),
        drop_databases=[out_of_scope.db] if out_of_scope.whole else [],
        snapshot=metadata.id if out_of_scope.snapshots else None,
    )


# ---- verifying and retries -------------------------------------------------------------------------------------------


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
    scanning = Steps(direction, replace(steps.options, scan=True, paced=False), steps.runtime)

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
                grants=steps.policy.grants == "replicate",
                principals=direction.principals,
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
    return [f"differs from the source, and not because of the lag: {text}; see `replicator repair`"]


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


# ---- objects that the target refused --------------------------------------------------------------------------------


def try_again(
    steps: Steps, lacking: Sequence[NotReplicated], count: Callable[[Loaded], None], left_out: Collection[str]
) -> list[NotReplicated]:
    """Loads objects that earlier runs left out and this run did not load either, completely, as a repair does. Returns
    those of `lacking` still missing. count: receives each load's report. left_out: objects that a load would leave out
    again, by the capture. A failure is a warning. May run twice."""
    for pair in steps.direction.matching:
        if pair.drop_refused:
            lacking = _drop_again(steps, pair, lacking)
            continue
        names = _still_refused(steps, pair) if pair.source is not None else []
        names = [name for name in names if f"{pair.name}.{name}" not in left_out]
        if not names:
            continue
        try:
            loaded = _load_again(steps, pair, names)
        except Error as error:
            if error.transient:
                raise
            steps.warnings.append(f"{pair.name}: retrying the objects that its replica lacks failed: {error}")
            continue
        tried = {f"{pair.name}.{name}" for name in names}
        rest = (each for each in lacking if not (each.object in tried and each.reason.startswith(RETRIED)))
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


RETRIED = (NOT_TAKEN, UNREPLAYED, UNTRANSLATED, UNTRANSLATED_VIEW, UNTRANSLATED_LINKS, WITHOUT_TABLE)  # begins


def _refused(pair: Pair, said: str | None) -> set[str]:
    found = from_property(said, pair.name)
    return {each.object.partition(".")[2] for each in found if each.reason.startswith(RETRIED)}


def _load_again(steps: Steps, pair: Pair, names: Sequence[str]) -> Loaded:
    direction, policy = steps.direction, steps.policy
    both = Comparison(
        direction.source,
        direction.target,
        direction.renames([pair.name]),
        direction.map_locations,
        direction.patterns,
        formats=policy.formats,
        grants=policy.grants == "replicate",
        principals=direction.principals,
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
