"""The commands as Python functions: each connects, does one thing, and returns a report that prints as the same JSON.

    import replicator
    replicator.dump(source="thrift://a:9083", cmroot="/w/cmroot", out="/w/dumps/1", db="sales")
    replicator.load("/w/dumps/1", target="thrift://b:9083")

Places are local paths or fsspec URLs, metastores thrift URIs. Errors are those of `replicator.errors`.

Where there is much to do, Spark does it: the session given as `spark`, else the one that this process runs (as in a
notebook), else one of our own. Only our own is stopped, and the process's environment stays as it is. `engine` is
auto (by the amount of work), local or spark, or what `engines()` gives, to keep a Spark over several calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from cmroot.root import open_existing
from replicator.checks.check import Checked, impatient
from replicator.checks.check import check as _check
from replicator.commands.base import EngineGiven, engines, names
from replicator.compare.repair import Repaired, RepairOptions
from replicator.compare.repair import repair as _repair
from replicator.compare.verify import Level
from replicator.core.config import read_config
from replicator.core.engine import AutoEngine
from replicator.core.progress import Progress, Silent
from replicator.core.table_format import SUPPORTED, FormatChoice
from replicator.drills.drill import DrillOptions
from replicator.drills.drill import drill as _drill
from replicator.drills.drill_record import Drill
from replicator.drills.queries import Asking, spark_on
from replicator.errors import UsageError
from replicator.events.scope import Patterns
from replicator.metastore.client import Metastore
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.pitr.plan import RestoreOptions
from replicator.pitr.restore import Restored
from replicator.pitr.restore import restore as _restore
from replicator.policies.lag import Lag
from replicator.policies.lag import lag as _lag
from replicator.policies.plan import SyncPlan
from replicator.policies.plan import apply as _apply
from replicator.policies.plan import make as _plan
from replicator.policies.run import SyncRun, sync_once
from replicator.policies.status import Status
from replicator.policies.status import status as _status
from replicator.policies.steps import SyncOptions
from replicator.policies.wait import Goal, Waited
from replicator.policies.wait import wait as _wait
from replicator.replay.apply.brake import BRAKE, Brake
from replicator.replay.places.placement import parse_pairs, parse_renames
from replicator.turnover.failback import FailbackOptions
from replicator.turnover.failback import failback as _failback
from replicator.turnover.failover import FailoverOptions
from replicator.turnover.failover import failover as _failover
from replicator.turnover.switchover import abort as _abort
from replicator.turnover.switchover import switchover as _switchover
from replicator.turnover.switchover_steps import SwitchoverOptions
from replicator.turnover.turn import Sides, Turned


def restore(
    *, cmroot: str, db: str, to: str | int, target: str, table: str | Sequence[str] = (), into: str | None = None,
    warehouse: str | None = None, target_cmroot: str | None = None, force: bool = False, allow_missing: bool = False,
    scratch: str | None = None, jobs: int = 2, formats: FormatChoice = SUPPORTED,
    engine: EngineGiven = None, spark: Any = None,
    progress: Progress | None = None,
) -> Restored:  # fmt: skip
    """Makes a database or tables as they were at an event or time; see replicator.pitr.restore.restore."""
    options = RestoreOptions(
        db=db.lower(), to=str(to), tables=names(table), into=into, warehouse=warehouse, cmroot=target_cmroot,
        force=force, allow_missing=allow_missing, scratch=scratch, jobs=jobs, formats=formats,
    )  # fmt: skip
    with given_engine(engine, spark) as work, connect(target) as metastore:
        return _restore(open_existing(cmroot), metastore, options, engine=work, progress=progress or Silent())


def repair(
    *, source: str, target: str, cmroot: str, db: str, table: str | Sequence[str] = (),
    differing: Sequence[str] | None = None, target_cmroot: str | None = None, rename_db: Sequence[str] = (),
    map_location: Sequence[str] = (), include: Sequence[str] = (), exclude: Sequence[str] = (),
    level: Level = "checksum", drop_extra: bool = False, warehouse: str | None = None,
    external_base: str | None = None, scratch: str | None = None, jobs: int = 2, brake: Brake | None = BRAKE,
    engine: EngineGiven = None, spark: Any = None,
    progress: Progress | None = None,
) -> Repaired:  # fmt: skip
    """Makes a replica again what it was loaded as, by copying what differs. `differing`: names as in Verified.differing
    (None: they are looked for); see replicator.compare.repair.repair."""
    options = RepairOptions(
        db=db.lower(), rename=dict(parse_renames(rename_db)).get(db.lower()), tables=names(table),
        differing=differing, patterns=Patterns.parse(include, exclude), level=level, drop_extra=drop_extra,
        cmroot=target_cmroot, warehouse=warehouse, external=external_base,
        map_locations=parse_pairs(map_location, "--map-location"), jobs=jobs, scratch=scratch, brake=brake,
    )  # fmt: skip
    with given_engine(engine, spark) as work, connect(source) as here, connect(target) as there:
        root = open_existing(cmroot)
        return _repair(root, here, there, options, engine=work, progress=progress or Silent())


def status(
    *, target: str, db: str, source: str | None = None, cmroot: str | None = None, source_db: str | None = None
) -> Status:
    """How far a target's database is; see replicator.policies.status.status."""
    with ExitStack() as stack:
        there = stack.enter_context(connect(target))
        here = stack.enter_context(connect(source)) if source else None
        root = open_existing(cmroot) if cmroot else None
        return _status(there, db.lower(), source=here, root=root, source_db=source_db)


def wait(
    *, target: str, db: str, source: str | None = None, until_event: int | None = None,
    until_lag: timedelta | None = None, timeout: timedelta = timedelta(minutes=10),
) -> Waited:  # fmt: skip
    """Waits until a target's database has come far enough; see replicator.policies.wait.wait."""
    with ExitStack() as stack:
        there = stack.enter_context(connect(target))
        here = stack.enter_context(connect(source)) if source else None
        return _wait(there, db.lower(), Goal(until_event, until_lag), timeout=timeout, source=here)


def check(policy: str, *, config: str | os.PathLike[str] | None = None) -> Checked:
    """What can be proved of a policy of `replicator.toml` (another file: `config`); see replicator.checks.check."""
    read = read_config(None if config is None else Path(config))
    return _check(read.policy(policy), others=list(read.policies.values()))


def sync(
    policy: str, *, config: str | os.PathLike[str] | None = None, adopt: bool = False, drop_left: bool = False,
    empty: Sequence[str] = (), brake: Brake | None = BRAKE, jobs: int = 2, engine: EngineGiven = None,
    spark: Any = None, progress: Progress | None = None,
) -> SyncRun:  # fmt: skip
    """One run of a policy of `replicator.toml` (another file: `config`); see replicator.policies.run.sync_once."""
    read = read_config(None if config is None else Path(config))
    found = read.policy(policy)
    options = SyncOptions(adopt=adopt, drop_left=drop_left, empty=empty, brake=brake, jobs=jobs)
    with given_engine(engine, spark) as work, connect(found.source) as here, connect(found.target) as there:
        return sync_once(
            found, here, there, engines=work, progress=progress or Silent(), options=options,
            others=list(read.policies.values()),
        )  # fmt: skip


def drill(
    policy: str, *, config: str | os.PathLike[str] | None = None, queries: Sequence[str] = (),
    db: str | Sequence[str] = (), sample: int = 20, keep: bool = False, jobs: int = 4, spark: Any = None,
) -> Drill:  # fmt: skip
    """Rehearses a failover in shadow databases, asking with Spark; see replicator.drills.drill.drill."""
    read = read_config(None if config is None else Path(config))
    found = read.policy(policy)
    options = DrillOptions(databases=names(db), queries=queries, sample=sample, keep=keep, jobs=jobs)
    with ExitStack() as stack:
        here, there = stack.enter_context(impatient(found.source)), stack.enter_context(connect(found.target))

        def asking(metastore: Metastore) -> Asking:
            return stack.enter_context(spark_on(metastore, settings=read.spark, session=spark))

        return _drill(found, here, there, asking, options)


def plan(
    policy: str, *, config: str | os.PathLike[str] | None = None, adopt: bool = False, drop_left: bool = False,
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> SyncPlan:  # fmt: skip
    """What the next run of a policy would do, with its price; see replicator.policies.plan.make."""
    read = read_config(None if config is None else Path(config))
    found, options = read.policy(policy), SyncOptions(adopt=adopt, drop_left=drop_left)
    with given_engine(engine, spark) as work, connect(found.source) as here, connect(found.target) as there:
        return _plan(
            found, here, there, engines=work, progress=progress or Silent(), options=options,
            others=list(read.policies.values()),
        )  # fmt: skip


def apply(
    plan: SyncPlan, *, config: str | os.PathLike[str] | None = None, brake: Brake | None = BRAKE, jobs: int = 2,
    engine: EngineGiven = None, spark: Any = None,
    progress: Progress | None = None,
) -> SyncRun:  # fmt: skip
    """Does what a plan says, and nothing else; see replicator.policies.plan.apply."""
    read = read_config(None if config is None else Path(config))
    found = read.policy(plan.policy)
    with given_engine(engine, spark) as work, connect(found.source) as here, connect(found.target) as there:
        return _apply(
            plan, found, here, there, engines=work, progress=progress or Silent(), jobs=jobs,
            brake=brake, others=list(read.policies.values()),
        )  # fmt: skip


def lag(policy: str, *, config: str | os.PathLike[str] | None = None) -> Lag:
    """How far a policy is behind, per database and table; see replicator.policies.lag.lag."""
    found = read_config(None if config is None else Path(config)).policy(policy)
    with impatient(found.source) as here, impatient(found.target) as there:
        return _lag(found, here, there)


def switchover(
    policy: str, *, config: str | os.PathLike[str] | None = None, to: str = "", abort: bool = False,
    anyway: bool = False, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> Turned:  # fmt: skip
    """Turns a policy round as planned, or takes that back (`abort`); see replicator.turnover.switchover."""
    with _sides(policy, config, engine, spark, progress) as sides:
        options = SwitchoverOptions(to=to, anyway=anyway)
        return _abort(sides, options) if abort else _switchover(sides, options, dry_run=dry_run)


def failover(
    policy: str, *, config: str | os.PathLike[str] | None = None, force: bool = False, accept_partial: bool = False,
    patience: timedelta = timedelta(seconds=5),
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> Turned:  # fmt: skip
    """Makes the replica the primary while the primary is lost; without `force` only tells what is lost. `patience`: how
    long anything of the lost side may take to answer. See replicator.turnover.failover.failover."""
    with _sides(policy, config, engine, spark, progress) as sides, ExitStack() as stack:
        source, target = (
            stack.enter_context(ThriftMetastore(each.uri, timeout=patience.total_seconds(), retries=0))
            for each in (sides.source, sides.target)
        )
        options = FailoverOptions(force=force, accept_partial=accept_partial, limit=patience)
        return _failover(sides, (source, target), options)


def failback(
    policy: str, *, config: str | os.PathLike[str] | None = None, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> Turned:  # fmt: skip
    """Takes the old primary back after a failover, as the replica; see replicator.turnover.failback.failback."""
    with _sides(policy, config, engine, spark, progress) as sides:
        return _failback(sides, FailbackOptions(), dry_run=dry_run)


@contextmanager
def _sides(
    policy: str, config: str | os.PathLike[str] | None, engine: EngineGiven, spark: Any, progress: Progress | None
) -> Iterator[Sides]:  # fmt: skip
    read = read_config(None if config is None else Path(config))
    found = read.policy(policy)
    with given_engine(engine, spark) as work, connect(found.source) as here, connect(found.target) as there:
        yield Sides(found, here, there, work, progress or Silent(), list(read.policies.values()))


@contextmanager
def given_engine(engine: EngineGiven, spark: Any = None) -> Iterator[AutoEngine]:
    """The engines that a caller gave, or some of our own for the length of a block: `engine` is auto, local or spark,
    `spark` a SparkSession of the caller's to work in. Raises UsageError for another name, and for both."""
    if isinstance(engine, AutoEngine):
        if spark is not None:
            raise UsageError("engine and spark are both given", hint="give spark= to engines() instead")
        yield engine
    else:
        with engines(engine or "auto", session=spark) as own:
            yield own
