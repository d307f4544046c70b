"""`drill`: rehearse a failover, show the drills that were made, or take down what they left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Annotated

from cmroot.root import open_existing
from replicator.commands.base import Options, verb
from replicator.commands.of_policy import Existing, matching, refuse_unknown
from replicator.commands.options import DryRun, PolicyName
from replicator.core.option import Jobs, Natural, Positive, opt
from replicator.core.policy import Policy
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
    policy: PolicyName = field(kw_only=False)
    queries: Annotated[
        Sequence[str],
        opt(
            "A query, with the replica's database names, to run on the shadows after the policy's "
            "`smoke` queries; repeatable.",
            "--query",
            metavar="SQL",
        ),
    ] = ()
    db: Annotated[
        str | Sequence[str],
        opt(
            "Only this database, by the replica's name, or those whose entire names match; repeatable.", metavar="REGEX"
        ),
    ] = ()
    sample: Annotated[Natural, opt("Also count the rows of N tables, a new random sample each time.", metavar="N")] = 20
    prefix: Annotated[str, opt("Prefix of the shadows' names.", metavar="TEXT")] = drills.PREFIX
    keep: Annotated[
        bool,
        opt(
            "Keep the shadows for inspection, until the next drill or --clean. Read only: a write to "
            "their tables is a write to the replica's files."
        ),
    ] = False
    clean: Annotated[bool, opt("Only drop the shadows left over from drills of the policy.")] = False
    listing: Annotated[bool, opt("Only list past drills.", "--list")] = False
    limit: Annotated[Positive | None, opt("With --list: number of drills, newest first.")] = 20
    jobs: Annotated[Jobs, opt("Number of tables created concurrently.")] = 4
    dry_run: DryRun = False


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
        raise UsageError(
            f"--prefix {options.prefix!r} cannot be the prefix of a database name", hint="use a-z, 0-9 and _"
        )
    policy = options.settings.policy(options.policy)
    if options.listing:
        return Drills(Memory(open_existing(policy.target_cmroot), policy.name)).shown(policy.name, options.limit)
    wanted = drills.DrillSettings(
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
        wanted = replace(wanted, databases=_chosen(options, policy, source, target))
        if options.dry_run:
            return drills.plan(policy, source, target, wanted)

        def asking(metastore: Metastore) -> QueryEngine:
            return stack.enter_context(spark_on(metastore, options.master, options.own_spark, options.spark))

        return drills.drill(policy, source, target, asking, wanted)


def _chosen(options: DrillOptions, policy: Policy, source: Metastore, target: Metastore) -> list[str]:
    """Returns the replicas that names and patterns select; none given: none. Raises as `matching` and
    `refuse_unknown`."""
    given = [options.db] if isinstance(options.db, str) else list(options.db)
    if not given:
        return []
    replicas = drills.find_replicas(policy, source, target)
    existing = Existing(f"policy {policy.name}", [each.name for each in replicas.databases])
    refuse_unknown(existing, given)
    return matching(existing, given)
