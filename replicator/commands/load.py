"""`load`: replay a dump on a target; or say what that would change, and its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cmroot.store.hdfs import Attribute
from replicator.captures.dumps.layout import DumpReader
from replicator.commands.base import Braked, pairs, renames, verb
from replicator.commands.of_policy import OfPolicy, principals_of
from replicator.commands.options import (
    CommitJobs,
    DatabaseNames,
    DryRun,
    ExternalBase,
    Formats,
    GrantsOption,
    KeyFile,
    LocationMap,
    OptionalPolicy,
    PrincipalNames,
    Target,
    TargetCatalog,
    TargetRoot,
    TargetWarehouse,
)
from replicator.core.not_replicated import AS_THEY_ARE
from replicator.core.option import arg, opt, python_only
from replicator.core.policy import Publish
from replicator.core.runtime import JOBS
from replicator.replay.apply import planning
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.load import load as replay
from replicator.replay.apply.planning import LoadPlan, described


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Braked, OfPolicy):
    needed: ClassVar = ("target",)
    renamed: ClassVar = {"cmroot": "target_cmroot"}

    dump: Annotated[str, arg("The finished dump's directory.", "DUMP")] = field(kw_only=False)
    policy: OptionalPolicy = None
    target: Target = ""
    target_catalog: TargetCatalog = None
    warehouse: TargetWarehouse = None
    target_cmroot: TargetRoot = None
    rename_db: DatabaseNames = ()
    map_location: LocationMap = ()
    external_base: ExternalBase = None
    shared_external: Annotated[
        bool | None, python_only("External tables leave their data at the source; None: as in earlier loads.")
    ] = None
    publish: Annotated[
        Publish | None, python_only('"snapshot" or "mirror", as in a policy; None: as the target\'s databases record.')
    ] = None
    source_cmroot: Annotated[
        str | None,
        opt("The source's root, if its path on this machine differs from that in the dump.", metavar="PLACE"),
    ] = None
    overwrite: Annotated[bool, opt("Replace objects that are newer, or that replication did not create.")] = False
    take_over: Annotated[
        bool, opt("Assert that another load, whose mark on the target names an unreachable root, has ended.")
    ] = False
    jobs: CommitJobs = JOBS
    key_file: KeyFile = None
    formats: Formats = None
    grants: GrantsOption = None
    principals: PrincipalNames = ()
    preserve: Annotated[
        Attribute | Sequence[Attribute],
        opt(
            "From HDFS to HDFS: attributes of the source that copied files and their directories get, "
            "in addition to the bytes; repeatable."
        ),
    ] = ()
    dry_run: DryRun = False


@verb(LoadOptions)
def load(options: LoadOptions) -> Loaded | LoadPlan:
    """Replays a finished dump on a target. May run twice, and again after a crash at any point.

        replicator.load("/dumps/1", target="thrift://b:9083", rename_db={"sales": "sales_copy"})
        replicator.load("/dumps/2", target="dr", map_location={"s3://a/raw": "s3://b/raw"}, dry_run=True)
        replicator.load("/dumps/3", policy="west")

    Raises FormatError for a dump that is unfinished or damaged; Refused for objects of others, and for a load that
    would take away more than it may; BootstrapNeeded for a range that does not begin where the target is; LeaseHeld
    while another load is working on the target; FilesMissing when bytes are nowhere to be had."""
    how = planning.LoadSettings(
        warehouse=options.warehouse,
        cmroot=options.target_cmroot,
        rename=renames(options.rename_db),
        map_locations=pairs(options.map_location, "--map-location"),
        external=options.external_base,
        shared_external=options.shared_external,
        publish=options.publish,
        overwrite=options.overwrite,
        source_root=options.source_cmroot,
        keys=options.keys(options.key_file),
        as_they_are=options.formats == AS_THEY_ARE,
        grants=options.grants != "ignore",
        principals=principals_of(options.principals),
        brake=options.limits,
        take_over=options.take_over,
        preserve=(options.preserve,) if isinstance(options.preserve, str) else options.preserve,
    )
    with options.runtime(options.jobs) as runtime, options.connected(options.target) as target:
        if options.dry_run:
            reader = DumpReader(options.dump, how.keys)
            return described(planning.planned(reader, target, how, runtime), how.brake)
        return replay(options.dump, target, how, runtime)
