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

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

from cmroot.root import open_existing
from replicator.commands.base import EngineGiven, engines, names
from replicator.compare.repair import Repaired, RepairOptions
from replicator.compare.repair import repair as _repair
from replicator.compare.verify import Level
from replicator.core.engine import AutoEngine
from replicator.core.progress import Progress, Silent
from replicator.core.table_format import SUPPORTED, FormatChoice
from replicator.errors import UsageError
from replicator.events.scope import Patterns
from replicator.metastore.thrift import connect
from replicator.pitr.plan import RestoreOptions
from replicator.pitr.restore import Restored
from replicator.pitr.restore import restore as _restore
from replicator.policies.status import Status
from replicator.policies.status import status as _status
from replicator.policies.wait import Goal, Waited
from replicator.policies.wait import wait as _wait
from replicator.replay.apply.brake import BRAKE, Brake
from replicator.replay.places.placement import parse_pairs, parse_renames


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
