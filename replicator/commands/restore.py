"""`restore`: a database or tables as they were; or say what that would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Copying, Where, names, verb
from replicator.commands.of_policy import OfPolicy, only_one
from replicator.commands.ranges import Jobs, Moment
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.core.runtime import JOBS
from replicator.policies.direction import Direction
from replicator.replay.restore import plan as planning
from replicator.replay.restore.plan import RestorePlan
from replicator.replay.restore.restore import Restored
from replicator.replay.restore.restore import restore as bring_back


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Copying, OfPolicy):
    """Arguments:

    policy: its name in the configuration: its primary is the target, and its root gives the state.
    cmroot: the source's change-management root.
    db: the database, by its name then.
    table: only this table, or these, by their names then.
    partition: only these partitions of the one table, "k=v" or "k=v/k2=v2", into a database that does not have it.
    to: the moment: an event id, a time (UTC), or back from now: -90m, -1d, yesterday.
    target: the metastore that gets it: a thrift URI, several separated by commas, or a configured name.
    target_catalog: the target's, on Hive 3 and newer; None: the server's default one.
    into: the database to make; None: <db>_restored_<event>.
    warehouse: where it is made; None: the target's default database's directory.
    target_cmroot: the target's own root, for what is replaced; None: .cmroot in the warehouse.
    force: write into a database that exists, the live one too; what it holds of what is restored is replaced.
    allow_missing: restore without the files that exist nowhere any more.
    scratch: a directory that executors can read; None: the system's own.
    jobs: the most tables committed side by side; as many are as make it faster.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    dry_run: only say what would be done, and where the bytes are; nothing is changed.
    """

    needed: ClassVar = ("cmroot", "db", "target")

    policy: str | None = field(default=None, kw_only=False)
    cmroot: str = ""
    db: str = ""
    table: str | Sequence[str] = ()
    partition: str | Sequence[str] = ()
    to: Moment | int
    target: Where = ""
    target_catalog: str | None = None
    into: str | None = None
    warehouse: str | None = None
    target_cmroot: str | None = None
    force: bool = False
    allow_missing: bool = False
    scratch: str | None = None
    jobs: Jobs = JOBS
    formats: FormatChoice | None = None
    dry_run: bool = False

    def known(self, direction: Direction) -> dict[str, Any]:
        """The primary gets back what it had, unless another metastore is named, whose root and places it names, too."""
        known = super().known(direction)
        own = {"target": known["source"], "target_cmroot": None if self.target else known["cmroot"], "warehouse": None}
        return known | own

    def databases(self, direction: Direction) -> str:
        return self.db or only_one([pair.name for pair in direction.matching], direction.policy.name)


@verb(RestoreOptions)
def restore(options: RestoreOptions) -> Restored | RestorePlan:
    """Makes a database, or tables of it, as at an event or a time, from the captured log and $cmroot: a new database
    with its own copy of the data. May run again after a crash: the same restore continues.

        replicator.restore(cmroot="/cm", db="sales", to="2026-03-01T12:00:00Z", target="thrift://a:9083")
        replicator.restore(cmroot="/cm", db="sales", table="orders", to=4711, target="prod", into="rescue")
        replicator.restore("west", db="sales", to=4711)

    Raises UsageError for a moment that is none, and for tables of another database; ObjectNotFound for what did not
    exist then; Refused for a database that exists (unless forced), and for partitions of a table that exists;
    FilesMissing, before anything is done, for bytes that exist nowhere any more (unless that is allowed)."""
    db = options.db.lower()
    what = planning.RestoreSettings(
        db=db,
        to=str(options.to),
        tables=planning.tables_of(db, names(options.table)),
        partitions=[options.partition]
        if isinstance(options.partition, str) and options.partition
        else options.partition,
        into=options.into,
        warehouse=options.warehouse,
        cmroot=options.target_cmroot,
        force=options.force,
        allow_missing=options.allow_missing,
        scratch=options.scratch,
        formats=options.formats or SUPPORTED,
    )
    root = open_existing(options.cmroot)
    with options.runtime(options.jobs) as runtime, options.connected(options.target) as target:
        if options.dry_run:
            with planning.planned(root, target, what, runtime) as plan:
                return plan.described()
        return bring_back(root, target, what, runtime)
