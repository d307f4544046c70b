"""`dump` writes a complete or incremental dump of a source; `load` replays it on a target. A dry run counts the
contents of the dump, or lists the changes of the load.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from cmroot.root import ChangeRoot, create_or_open, open_existing
from cmroot.store.hdfs import Attribute
from cmroot.store.place import as_written, scratch
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps import dump as dumping
from replicator.captures.dumps.dump import Dumped, DumpPlan, confirmed, preview
from replicator.captures.dumps.layout import FINISHED, DumpReader
from replicator.captures.dumps.rows import scope_of
from replicator.captures.recording import Captured
from replicator.commands.base import Braked, Copying, names, pairs, point, renames, verb
from replicator.commands.of_policy import Existing, OfPolicy, Selecting, captured_in, principals_of
from replicator.commands.options import (
    CommitJobs,
    DatabaseNames,
    DeclaredEmpty,
    DeepScan,
    DryRun,
    EveryDatabase,
    ExternalBase,
    Formats,
    GrantsOption,
    KeeperChoice,
    KeyFile,
    LocationMap,
    OptionalPolicy,
    OutsideDirectories,
    PrincipalNames,
    ScanChoice,
    ScanTime,
    SelectedDatabases,
    Source,
    SourceCatalog,
    SourceRoot,
    Target,
    TargetCatalog,
    TargetRoot,
    TargetWarehouse,
)
from replicator.core.not_replicated import AS_THEY_ARE, SUPPORTED
from replicator.core.option import Moment, arg, opt, python_only
from replicator.core.policy import Publish
from replicator.core.runtime import JOBS, Runtime
from replicator.errors import BootstrapNeeded, UsageError
from replicator.metastore.client import epochs_to_dump
from replicator.metastore.events.scope import refuse_other_catalog
from replicator.replay.apply import planning
from replicator.replay.apply.load import Loaded
from replicator.replay.apply.load import load as replay
from replicator.replay.apply.planning import LoadPlan, described

if TYPE_CHECKING:
    from replicator.captures.dumps.writer import NextDump


# ---- dump ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DumpOptions(Copying, Selecting):
    chooses: ClassVar = "source"
    needed: ClassVar = ("source", "db")

    policy: OptionalPolicy = field(default=None, kw_only=False)
    source: Source = ""
    catalog: SourceCatalog = None
    cmroot: SourceRoot = ""
    out: Annotated[str, opt("The dump's directory, new or empty.", metavar="PLACE")] = ""
    into: Annotated[
        str,
        opt(
            "Instead of --out, with --with-data: a directory of dumps, for runs by a schedule. The dump gets a new "
            "directory in it, and continues the newest dump of the same source and scope there; without one, it is "
            "complete.",
            metavar="PLACE",
        ),
    ] = ""
    complete_every: Annotated[
        timedelta, opt("With --into: the age of a chain's complete dump at which the next complete one is written.")
    ] = timedelta(days=7)
    db: SelectedDatabases = ()
    all_databases: EveryDatabase = False
    since: Annotated[
        Moment | int | None,
        opt("Incremental: an event id, @POSITION, a time (UTC), or an earlier dump's directory.", metavar="X"),
    ] = None
    until: Annotated[
        Moment | int | None, opt("End at this event id, @POSITION or time; default: now.", metavar="X")
    ] = None
    slot: Annotated[
        str,
        opt(
            "Consumer name. $cmroot retains everything that this consumer's load has not confirmed. "
            "Without --since, the dump begins at the slot's position; a new slot gets a bootstrap.",
            metavar="NAME",
        ),
    ] = ""
    capture_first: Annotated[
        bool, opt("Dump the captured log as it is, without contacting the source.", "--no-capture", envvar="NO_CAPTURE")
    ] = True
    scan: ScanChoice = True
    scan_time: ScanTime = None
    deep: DeepScan = False
    grants: GrantsOption = None
    keeper: KeeperChoice = None
    iceberg_outside: OutsideDirectories = ()
    empty: DeclaredEmpty = ()
    allow_replica: Annotated[bool, opt("Also dump a database that is itself a replica (chained replication).")] = False
    draining: Annotated[
        bool, python_only("Dump a fenced database, whose last changes the fencing switchover fetches.")
    ] = False
    with_data: Annotated[
        bool,
        opt(
            "Copy the bytes of the files into the dump, too: it can then be loaded without the source. A killed dump "
            "is completed by the same command; with --since DUMP, bytes that DUMP's chain has are referenced."
        ),
    ] = False
    formats: Formats = None
    key_file: KeyFile = None
    dry_run: DryRun = False

    def existing(self) -> Existing:
        return super().existing() if self.capture_first else captured_in(self.cmroot)

    def complete(self) -> Self:
        """Adds that a dump without a root is possible: a complete one, with `--keeper none`."""
        self._refuse_chain()
        done = super().complete()
        if done.cmroot:
            return done
        if done.keeper != "none":
            raise UsageError(
                "Missing option '--cmroot'.",
                hint="give it, or a policy that provides it; or --keeper none, for a complete dump that keeps nothing",
            )
        given = {"--since": done.since is not None, "--until": done.until is not None, "--slot": bool(done.slot)}
        given |= {"--no-capture": not done.capture_first, "--dry-run": done.dry_run, "--into": bool(done.into)}
        for option in (option for option, is_given in given.items() if is_given):
            raise UsageError(f"{option} needs a $cmroot", hint="give --cmroot, at any place that may be written")
        return done

    def _refuse_chain(self) -> None:
        """Raises UsageError unless exactly one of --out and --into is given, and for options that contradict --into."""
        if not self.out and not self.into:
            hint = "give it, or with --into a directory of dumps, in which the dump gets a directory"
            raise UsageError("Missing option '--out'.", hint=hint)
        if self.into and not self.with_data:
            raise UsageError("--into writes chains of dumps with data", hint="add --with-data")
        given = {"--out": self.out, "--since": self.since, "--until": self.until, "--slot": self.slot}
        for option in (option for option, value in given.items() if self.into and value not in ("", None)):
            raise UsageError(f"{option} and --into exclude each other", hint="--into continues the newest dump, to now")

    @contextmanager
    def root(self) -> Iterator[ChangeRoot]:
        """Yields the root, or one for the length of a block."""
        if self.cmroot:
            yield create_or_open(self.cmroot)
            return
        with scratch("dump") as here:
            yield create_or_open(str(here / "cmroot"))


@verb(DumpOptions)
def dump(options: DumpOptions) -> Dumped | DumpPlan:
    """Captures, then writes a dump: a complete state of some databases, or their changes. It contains the names and
    checksums of files, and their bytes only with `with_data`. May run again after a crash: an unfinished dump is
    written again, and bytes copied before are used.

        replicator.dump(source="thrift://a:9083", cmroot="/cm", db="sales", out="/dumps/1")
        replicator.dump(source="prod", cmroot="/cm", db="sales", since="/dumps/1", out="/dumps/2")
        replicator.dump("west", out="/dumps/3")
        replicator.dump(source="prod", keeper="none", db="sales", out="/dumps/4", with_data=True)
        replicator.dump("west", into="s3://backup/west", with_data=True)

    Raises UsageError for a range or pattern that matches nothing; Refused for a replica or a fenced database;
    BootstrapNeeded if records of the range are no longer in the log; LeaseHeld while another run holds the root's
    lease, or writes `into` the same directory."""
    if "-" in (options.out, options.into):
        option = "--out" if options.out else "--into"
        hint = "give a new or empty directory"
        raise UsageError(f"{option} -: a dump is a directory of files, not a stream", hint=hint)
    if options.empty and not options.capture_first:
        raise UsageError("--empty applies to the capture, which --no-capture omits", hint="give one of them")
    if options.into:
        return _continued(options)
    return _planned(options) if options.dry_run else _dumped(options)


def _continued(options: DumpOptions) -> Dumped | DumpPlan:
    """Writes the next dump of a directory of dumps."""
    from replicator.captures.dumps.data import chain_group
    from replicator.captures.dumps.writer import ChainWanted, continued, decided

    root = (open_existing if options.dry_run else create_or_open)(options.cmroot)
    group = chain_group(root.id, scope_of(names(options.db), options.patterns))
    wanted = ChainWanted(group, options.complete_every, options.keys(options.key_file) is not None)
    if options.dry_run:
        return _planned(_of_chain(options, decided(options.into, wanted, time.time())))
    with continued(options.into, wanted, time.time()) as following:
        warning = following.warning
        try:
            report = _dumped(_of_chain(options, following))
        except BootstrapNeeded as error:
            if not following.since:
                raise
            warning = f"a new chain begins: {error.message}"
            report = _dumped(_of_chain(options, replace(following, since="")))
    report.warnings = [*([warning] if warning else []), *report.warnings]
    return report


def _of_chain(options: DumpOptions, following: NextDump) -> DumpOptions:
    return replace(options, out=following.place, into="", since=following.since or None)


def _settings(options: DumpOptions) -> dumping.DumpSettings:
    return dumping.DumpSettings(
        options.settings.metastore_uri(options.source),
        names(options.db),
        options.patterns,
        since=point(options.since),
        until=point(options.until),
        slot=options.slot,
        formats=options.formats or SUPPORTED,
    )


def _dumped(options: DumpOptions) -> Dumped:
    wanted = _settings(options)
    with options.runtime() as runtime, options.root() as root:
        observed, epochs = _captured(options, root, runtime) if options.capture_first else (None, {})
        wanted = replace(wanted, epochs=epochs, keys=options.keys(options.key_file))
        carry = _carrying(options, wanted, root.place, runtime) if options.with_data else None
        report = dumping.write_dump(root, options.out, wanted, runtime, carry)
    if observed is not None:
        report.captured, report.scanned = observed.records, observed.scanned
        report.warnings = [*observed.warnings, *report.warnings]
        if report.from_event is None:  # a bootstrap's records are a state, which includes the findings of the scan
            report.observed = observed.observed
    return report


def _carrying(options: DumpOptions, wanted: dumping.DumpSettings, root: str, runtime: Runtime) -> dumping.Carry:
    """Returns the copy of bytes into a dump. Bytes of the dump given with --since are referenced, if it has data."""
    from replicator.replay.apply.dump_copy import Carrying, carry_data

    earlier = None
    if isinstance(wanted.since, str) and (as_written(wanted.since) / FINISHED).exists():
        earlier = DumpReader(wanted.since, wanted.keys)
    how = Carrying(root, earlier, wanted.keys, runtime)
    return lambda writer, metadata: carry_data(writer, metadata, how)


def _captured(options: DumpOptions, root: ChangeRoot, runtime: Runtime) -> tuple[Captured, dict[str, int]]:
    """The capture before a dump, and the epochs of the source's databases."""
    databases = names(options.db)
    with options.connected(options.source) as metastore:
        epochs = epochs_to_dump(metastore, databases, allow_replica=options.allow_replica, draining=options.draining)
        whole = options.since is None and not (options.slot and confirmed(root.place, options.slot))
        wanted = CaptureSettings(
            databases,
            scan=options.scan,
            scan_time=options.scan_time,
            paced=not whole and not options.draining,
            deep=options.deep,
            constraints=whole or options.draining,
            repair=whole,
            grants=options.grants != "ignore",
            keeper=options.keeper or "auto",
            outside=options.iceberg_outside,
            empty=options.empty,
        )
        return capture(metastore, root, wanted, runtime), epochs


def _planned(options: DumpOptions) -> DumpPlan:
    wanted = _settings(options)
    with options.connected(options.source) as metastore:
        epochs_to_dump(metastore, wanted.databases, allow_replica=options.allow_replica)
        root = open_existing(options.cmroot)
        refuse_other_catalog(root.place, metastore)
        return preview(metastore, root, options.out, wanted)


# ---- load ------------------------------------------------------------------------------------------------------------


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
        bool, opt("Confirm that another load, whose mark on the target names an unreachable root, has ended.")
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

    Raises FormatError for a dump that is unfinished or damaged; Refused for objects that replication did not create,
    and for a load that would exceed the limits of removals; BootstrapNeeded for a range that does not begin at the
    target's checkpoint; LeaseHeld while another load holds the target's lease; FilesMissing if bytes are not available
    anywhere."""
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
