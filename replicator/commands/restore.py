"""`restore`: a database or tables as they were; or say what that would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Copying, names, verb
from replicator.commands.of_policy import OfPolicy, only_one
from replicator.commands.options import (
    CommitJobs,
    DryRun,
    Formats,
    Scratch,
    SourceRoot,
    Target,
    TargetCatalog,
    TargetRoot,
)
from replicator.core.not_replicated import SUPPORTED
from replicator.core.option import Moment, arg, opt
from replicator.core.runtime import JOBS
from replicator.policies.direction import Direction
from replicator.replay.restore import plan as planning
from replicator.replay.restore.plan import RestorePlan
from replicator.replay.restore.restore import Restored
from replicator.replay.restore.restore import restore as bring_back


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Copying, OfPolicy):
    needed: ClassVar = ("cmroot", "db", "target")
    chooses: ClassVar = "cmroot"
    single: ClassVar = True

    policy: Annotated[
        str | None,
        arg(
            "The policy's name in the configuration: its primary is the target, and its root provides the state.",
            "[POLICY]",
        ),
    ] = field(default=None, kw_only=False)
    cmroot: SourceRoot = ""
    db: Annotated[
        str, opt("The database, by its name at the recovery point, or the only one that matches.", metavar="REGEX")
    ] = ""
    table: Annotated[
        str | Sequence[str], opt("Only this table, by its name at the recovery point; repeatable.", metavar="NAME")
    ] = ()
    partition: Annotated[
        str | Sequence[str],
        opt(
            "Only this partition of the one --table, or all that have these values; repeatable. Into "
            "a database that does not have the table.",
            metavar="K=V[/K2=V2]",
        ),
    ] = ()
    to: Annotated[
        Moment | int,
        opt(
            "The recovery point: @POSITION (one state), an event id (its last state), a time (UTC), or back from now: "
            "-90m, -1d, yesterday.",
            metavar="X",
        ),
    ]
    target: Target = ""
    target_catalog: TargetCatalog = None
    into: Annotated[str | None, opt("The database to create; default: DB_restored_EVENT.", metavar="NAME")] = None
    warehouse: Annotated[
        str | None,
        opt("Parent directory of the new database; default: that of the target's default database.", metavar="PLACE"),
    ] = None
    target_cmroot: TargetRoot = None
    force: Annotated[
        bool,
        opt(
            "Restore into an existing database, even the live one: its restored tables are replaced, "
            "and their previous data is moved to the target's root."
        ),
    ] = False
    allow_missing: Annotated[bool, opt("Restore without the missing files.")] = False
    scratch: Scratch = None
    jobs: CommitJobs = JOBS
    formats: Formats = None
    dry_run: DryRun = False

    def meant(self, name: str) -> str:
        return f"`replicator load {name}` loads a dump" if "/" in name else super().meant(name)

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
