"""`load`: replay a dump on a target; or say what that would change, and its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cmroot.store.hdfs import Attribute
from replicator.captures.dumps.layout import DumpReader
from replicator.commands.base import Braked, Where, pairs, renames, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Jobs
from replicator.core.not_replicated import AS_THEY_ARE, FormatChoice
from replicator.core.policy import Publish
from replicator.core.runtime import JOBS
from replicator.replay.apply import planning
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.load import load as replay
from replicator.replay.apply.planning import LoadPlan, described


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Braked, OfPolicy):
    """Arguments:

    dump: the finished dump's directory.
    target: the target's metastore: a thrift URI, several separated by commas, or a configured name.
    target_catalog: the target's, on Hive 3 and newer; None: the server's default one.
    warehouse: where the target's databases lie; None: its default database's directory.
    target_cmroot: the target's change-management root, for what the load replaces; None: .cmroot in the warehouse.
    rename_db: names of databases on the target by those at the source, as a mapping or "A=B" texts.
    map_location: prefixes of places on the target by those at the source, likewise.
    external_base: where data from outside its database's directory goes; None: external in the warehouse.
    shared_external: external tables keep their data at the source; None: those that did before.
    publish: "snapshot" or "mirror", as of a policy; None: as the target's databases say.
    source_cmroot: the source's root, where it has another name here than the dump says.
    overwrite: replace objects that replication did not make, or that are newer.
    take_over: begin although the target says that another load is running, which cannot be asked and has ended.
    jobs: the most tables committed side by side; as many are as make it faster.
    key_file: keys, one a line, one of which has signed the dump; None: that of [dumps], if any.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    preserve: what files and their directories on HDFS get of those at the source, on HDFS too, beside the bytes:
      "owner" (and group), "mode", "acl", "replication", "xattr" (user.*). Of files that are copied, when they are.
    dry_run: only say what would be done; nothing is changed.
    """

    needed: ClassVar = ("target",)
    renamed: ClassVar = {"cmroot": "target_cmroot"}

    dump: str = field(kw_only=False)
    policy: str | None = None
    target: Where = ""
    target_catalog: str | None = None
    warehouse: str | None = None
    target_cmroot: str | None = None
    rename_db: Mapping[str, str] | Sequence[str] = ()
    map_location: Mapping[str, str] | Sequence[str] = ()
    external_base: str | None = None
    shared_external: bool | None = None
    publish: Publish | None = None
    source_cmroot: str | None = None
    overwrite: bool = False
    take_over: bool = False
    jobs: Jobs = JOBS
    key_file: str | None = None
    formats: FormatChoice | None = None
    preserve: Attribute | Sequence[Attribute] = ()
    dry_run: bool = False


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
        brake=options.limits,
        take_over=options.take_over,
        preserve=(options.preserve,) if isinstance(options.preserve, str) else options.preserve,
    )
    with options.runtime(options.jobs) as runtime, options.connected(options.target) as target:
        if options.dry_run:
            reader = DumpReader(options.dump, how.keys)
            return described(planning.planned(reader, target, how, runtime), how.brake)
        return replay(options.dump, target, how, runtime)
