"""`dump`: capture, then write a dump directory; or count what one would hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from cmroot.root import create_or_open, open_existing
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps import dump as dumping
from replicator.captures.dumps.dump import Dumped, DumpPlan, confirmed, preview
from replicator.captures.events.scope import refuse_other_catalog
from replicator.captures.recording import Captured
from replicator.commands.base import Where, names, point, verb
from replicator.commands.of_policy import Selecting
from replicator.commands.ranges import Moment
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.core.policy import Keeper
from replicator.core.runtime import Runtime
from replicator.errors import UsageError
from replicator.policies.roles import epochs_to_dump


@dataclass(frozen=True, kw_only=True)
class DumpOptions(Selecting):
    """Arguments:

    source: the source's metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: whose databases are meant, on Hive 3 and newer; None: the server's default one.
    cmroot: the source's change-management root; made where there is none.
    out: the dump's directory, new or empty.
    db: a database, or several.
    since: an event id, a time (UTC), or an earlier dump's directory; None: a bootstrap, or from where the slot is.
    until: an event id or a time at which the dump ends; None: now.
    slot: the consumer's name; the root keeps what it has not confirmed.
    capture_first: bring the captured log up to now before; without it the source is not asked, nor its role.
    scan: look for changes that left no event. deep: of each partition, too.
    scan_time: look at tables for about so long, and go on after them in the next capture; None: at all.
    keeper: auto, link, version, native, copy or none: how bytes are kept; None: as the policy says, else auto.
    empty: objects ("db.table", "db.table/day=1") whose directory is missing and which are really empty.
    allow_replica: dump a database that is a replica itself.
    draining: dump a fenced database, whose last changes its fencer fetches.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    key_file: keys, one a line, of which the first signs the dump; None: that of [dumps], if any.
    dry_run: only count what is captured by now; nothing is written.
    """

    needed: ClassVar = ("source", "cmroot", "db")

    policy: str | None = field(default=None, kw_only=False)
    source: Where = ""
    catalog: str | None = None
    cmroot: str = ""
    out: str
    db: str | Sequence[str] = ()
    since: Moment | int | None = None
    until: Moment | int | None = None
    slot: str = ""
    capture_first: bool = True
    scan: bool = True
    scan_time: timedelta | None = None
    deep: bool = False
    keeper: Keeper | None = None
    empty: Sequence[str] = ()
    allow_replica: bool = False
    draining: bool = False
    formats: FormatChoice | None = None
    key_file: str | None = None
    dry_run: bool = False


@verb(DumpOptions)
def dump(options: DumpOptions) -> Dumped | DumpPlan:
    """Captures, then writes a dump: the whole of some databases, or what changed in them. It names files and carries
    none. May run again after a crash: an unfinished dump is written again.

        replicator.dump(source="thrift://a:9083", cmroot="/cm", db="sales", out="/dumps/1")
        replicator.dump(source="prod", cmroot="/cm", db="sales", since="/dumps/1", out="/dumps/2")
        replicator.dump("west", out="/dumps/3")

    Raises UsageError for a range or pattern that fits nothing; Refused for a replica or a fenced database;
    BootstrapNeeded when records of the range are gone; LeaseHeld while another run has the root."""
    if options.empty and not options.capture_first:
        raise UsageError("--empty is a word to the capture, and --no-capture leaves that out", hint="give one of them")
    wanted = dumping.DumpSettings(
        options.settings.metastore_uri(options.source),
        names(options.db),
        options.patterns,
        since=point(options.since),
        until=point(options.until),
        slot=options.slot,
        formats=options.formats or SUPPORTED,
    )
    if options.dry_run:
        return _planned(options, wanted)
    with options.runtime() as runtime:
        observed, epochs = _captured(options, runtime) if options.capture_first else (None, {})
        wanted = replace(wanted, epochs=epochs, keys=options.keys(options.key_file))
        report = dumping.write_dump(create_or_open(options.cmroot), options.out, wanted, runtime)
    if observed is not None:
        report.captured, report.warnings, report.scanned = observed.records, observed.warnings, observed.scanned
        if report.from_event is None:  # a bootstrap's records are a state; what the scan found is in it
            report.observed = observed.observed
    return report


def _captured(options: DumpOptions, runtime: Runtime) -> tuple[Captured, dict[str, int]]:
    """The capture before a dump, and the epochs of the source's databases."""
    databases = names(options.db)
    with options.connected(options.source) as metastore:
        epochs = epochs_to_dump(metastore, databases, allow_replica=options.allow_replica, draining=options.draining)
        root = create_or_open(options.cmroot)
        whole = options.since is None and not (options.slot and confirmed(root.place, options.slot))
        wanted = CaptureSettings(
            databases,
            scan=options.scan,
            scan_time=options.scan_time,
            deep=options.deep,
            constraints=whole or options.draining,
            repair=whole,
            keeper=options.keeper or "auto",
            empty=options.empty,
        )
        return capture(metastore, root, wanted, runtime), epochs


def _planned(options: DumpOptions, wanted: dumping.DumpSettings) -> DumpPlan:
    with options.connected(options.source) as metastore:
        epochs_to_dump(metastore, wanted.databases, allow_replica=options.allow_replica)
        root = open_existing(options.cmroot)
        refuse_other_catalog(root.place, metastore)
        return preview(metastore, root, options.out, wanted)
