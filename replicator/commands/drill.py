"""`drill`: rehearse a failover, show the drills that were made, or take down what they left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cmroot.root import open_existing
from replicator.commands.base import Options, names, verb
from replicator.commands.ranges import Jobs, Natural, Positive
from replicator.errors import UsageError
from replicator.metastore.client import Metastore
from replicator.policies import drill as drills
from replicator.policies.checks.check import impatient
from replicator.policies.drill import QueryEngine, spark_on
from replicator.policies.drill_record import Drill, DrillPlan, Drills, ShownDrills
from replicator.policies.memory import Memory
from replicator.policies.shadows import ShadowsSwept, clean


@dataclass(frozen=True, kw_only=True)
class DrillOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    queries: queries on the replica that are asked of the shadows, after those of the policy's `smoke`.
    db: only this database, or these, by the replica's names.
    sample: count the rows of so many tables besides, drawn again each time.
    prefix: how shadows' names begin.
    keep: leave the shadows, until the next drill; who writes to their tables writes to the replica's files.
    clean: only take down what drills of the policy left.
    listing: only show the drills that were made. limit: the newest, so many; None: all.
    jobs: tables made side by side.
    dry_run: only tell what would be shown.
    """

    policy: str = field(kw_only=False)
    queries: Sequence[str] = ()
    db: str | Sequence[str] = ()
    sample: Natural = 20
    prefix: str = drills.PREFIX
    keep: bool = False
    clean: bool = False
    listing: bool = False
    limit: Positive | None = 20
    jobs: Jobs = 4
    dry_run: bool = False


@verb(DrillOptions)
def drill(options: DrillOptions) -> Drill | DrillPlan | ShownDrills | ShadowsSwept:
    """Promotes a policy's replica into shadow databases, asks queries of them with Spark, and takes them down; measures
    how long the first good answer took. No data is copied, and replication continues. May run again after a crash: it
    sweeps what was left.

        replicator.drill("west", queries=["SELECT max(day) FROM sales.orders"]).first_answer_seconds
        replicator.drill("west", listing=True).to_arrow()

    Raises LeaseHeld while another drill of the policy is running, Refused where there is no replica yet, UsageError for
    a prefix or database that is none."""
    if options.clean and options.listing:
        raise UsageError("--clean and --list exclude each other", hint="give one of them")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.prefix):
        raise UsageError(f"--prefix {options.prefix!r} cannot begin a database's name", hint="use a-z, 0-9 and _")
    policy = options.settings.policy(options.policy)
    if options.listing:
        return Drills(Memory(open_existing(policy.target_cmroot), policy.name)).shown(policy.name, options.limit)
    wanted = drills.DrillSettings(
        databases=names(options.db),
        queries=options.queries,
        sample=options.sample,
        prefix=options.prefix,
        keep=options.keep,
        jobs=options.jobs,
        progress=options.teller,
    )
    with ExitStack() as stack:
        source = stack.enter_context(impatient(policy.source_metastore))  # it may be away: that is what drills are for
        target = stack.enter_context(options.connected(policy.target_metastore))
        if options.clean:
            return clean(policy, source, target, jobs=options.jobs)
        if options.dry_run:
            return drills.plan(policy, source, target, wanted)

        def asking(metastore: Metastore) -> QueryEngine:
            return stack.enter_context(spark_on(metastore, options.master, options.own_spark, options.spark))

        return drills.drill(policy, source, target, asking, wanted)
