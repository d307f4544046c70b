"""Stored states of a source: `dumps verify`, `ls`, `expire`, `export` and `import` handle finished dumps, without a
metastore; `show` reads a dump, a captured log or one segment of it; `restore` rebuilds a database or tables at a
recovery point, or reports whether it could.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from cmroot.log.captured import segments
from cmroot.root import open_existing
from cmroot.store.checksum import FLOW
from replicator.captures.dumps.archive import Archived, export_dump, import_dump
from replicator.captures.dumps.data import (
    PERIODS,
    DumpsExpired,
    DumpsListed,
    DumpVerified,
    Keep,
    expire_dumps,
    list_dumps,
    verify_dump,
)
from replicator.captures.dumps.layout import DumpReader
from replicator.captures.dumps.shown import Narrowing, Shown, narrowed, open_shown
from replicator.commands.base import Copying, Options, names, verb
from replicator.commands.of_policy import OfPolicy, only_one
from replicator.commands.options import (
    CommitJobs,
    DryRun,
    Formats,
    KeyFile,
    OverwriteFile,
    Scratch,
    SourceRoot,
    Target,
    TargetCatalog,
    TargetRoot,
)
from replicator.core.not_replicated import SUPPORTED
from replicator.core.option import LogMoment, Moment, Natural, arg, opt, parse_moment
from replicator.core.runtime import JOBS
from replicator.errors import UsageError
from replicator.metastore.events.record import ChangeRecord
from replicator.policies.direction import Direction
from replicator.replay.restore import plan as planning
from replicator.replay.restore.plan import RestorePlan
from replicator.replay.restore.recovery_points import RowState, RowStates
from replicator.replay.restore.restore import Restored
from replicator.replay.restore.restore import restore as bring_back

# ---- dumps -----------------------------------------------------------------------------------------------------------


FinishedDump = Annotated[str, arg("The finished dump's directory.", "DUMP")]


@dataclass(frozen=True, kw_only=True)
class DumpsVerifyOptions(Options):
    dump: FinishedDump = field(kw_only=False)
    key_file: KeyFile = None


@verb(DumpsVerifyOptions)
def dumps_verify(options: DumpsVerifyOptions) -> DumpVerified:
    """Reads all of a dump, with every byte of its data, also in the earlier dumps that it refers to. Changes nothing.

        assert not replicator.dumps_verify("/backup/1").damaged

    Raises FormatError for a dump that is unfinished, or whose description, records or file entries are damaged; Refused
    for one that is not signed with a key."""
    with options.runtime() as runtime:
        return verify_dump(DumpReader(options.dump, options.keys(options.key_file)), runtime)


@dataclass(frozen=True, kw_only=True)
class DumpsExportOptions(Copying):
    dump: FinishedDump = field(kw_only=False)
    archive: Annotated[str, arg("The tar file to write.", "FILE")] = field(kw_only=False)
    overwrite: OverwriteFile = False
    encrypt: Annotated[
        bool, opt("Encrypt the whole archive, names too, with the first key of the key file (AES-256-GCM).")
    ] = False
    key_file: KeyFile = None


@verb(DumpsExportOptions)
def dumps_export(options: DumpsExportOptions) -> Archived:
    """Writes a dump with data as one tar file, and compares every byte with its checksum. May run twice.

        replicator.dumps_export("/backup/1", "/media/disk/1.tar")

    Raises UsageError for a dump without data, or an existing file; ChecksumMismatch for damaged data; FormatError and
    Refused as `dumps_verify`."""
    keys = options.keys(options.key_file)
    if options.encrypt and keys is None:
        raise UsageError("--encrypt needs a key file", hint="give --key-file, or key_file of [dumps]")
    reader, encrypt = DumpReader(options.dump, keys), keys if options.encrypt else None
    with FLOW.limited(options.rate):
        return export_dump(reader, options.archive, options.teller, overwrite=options.overwrite, encrypt=encrypt)


@dataclass(frozen=True, kw_only=True)
class DumpsImportOptions(Copying):
    archive: Annotated[str, arg("The tar file that `dumps export` wrote.", "FILE")] = field(kw_only=False)
    out: Annotated[str, opt("The dump's directory, new or empty.", metavar="PLACE")]
    key_file: KeyFile = None


@verb(DumpsImportOptions)
def dumps_import(options: DumpsImportOptions) -> Archived:
    """Writes the dump of a tar file into a directory. Each file is compared with its checksum before it gets its name.
    May run again after a crash: existing files are not written again.

        replicator.dumps_import("/media/disk/1.tar", out="s3://backup/1")

    Raises FormatError for a damaged file or one that `export` did not write, with the name of the member; Refused for a
    dump that is not signed with a key; UsageError for a directory that is not empty."""
    with FLOW.limited(options.rate):
        return import_dump(options.archive, options.out, options.keys(options.key_file), options.teller)


DumpsPlace = Annotated[str, arg("The directory that has the dumps' directories.", "PLACE")]


@dataclass(frozen=True, kw_only=True)
class DumpsLsOptions(Options):
    place: DumpsPlace = field(kw_only=False)


@verb(DumpsLsOptions)
def dumps_ls(options: DumpsLsOptions) -> DumpsListed:
    """Lists the dumps of a directory, with the dumps that each needs. Changes nothing.

        replicator.dumps_ls("s3://backup/sales").to_arrow()

    Raises UsageError for a directory without dumps; FormatError for a damaged dump."""
    return list_dumps(options.place)


@dataclass(frozen=True, kw_only=True)
class DumpsExpireOptions(Options):
    place: DumpsPlace = field(kw_only=False)
    keep_last: Annotated[Natural, opt("Keep the newest N dumps.", metavar="N")] = 0
    keep_daily: Annotated[
        Natural, opt("Keep the newest dump of each of the last N days that have any.", metavar="N")
    ] = 0
    keep_weekly: Annotated[Natural, opt("The same, by ISO weeks.", metavar="N")] = 0
    keep_monthly: Annotated[Natural, opt("The same, by months.", metavar="N")] = 0
    keep_yearly: Annotated[Natural, opt("The same, by years.", metavar="N")] = 0
    keep_within: Annotated[timedelta | None, opt("Keep all dumps that are younger, such as 36h or 14d.")] = None
    dry_run: DryRun = False

    @property
    def keep(self) -> Keep:
        """Raises UsageError if nothing is to be kept."""
        periods = {name: count for name in PERIODS if (count := getattr(self, f"keep_{name}"))}
        if not periods and self.keep_within is None:
            raise UsageError("no dump is to be kept", hint="give at least one of the --keep options")
        return Keep(periods, self.keep_within)


@verb(DumpsExpireOptions)
def dumps_expire(options: DumpsExpireOptions) -> DumpsExpired:
    """Removes dumps with data that are not kept. A kept dump keeps the dumps that it needs: no chain is broken. May run
    again after a crash.

        replicator.dumps_expire("s3://backup/sales", keep_daily=7, keep_weekly=4, dry_run=True)

    Raises UsageError if nothing is to be kept; FormatError, before any removal, for a damaged dump."""
    return expire_dumps(options.place, options.keep, time.time, dry_run=options.dry_run)


# ---- show ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    place: Annotated[str, arg("A dump's directory, a $cmroot, or a segment of its log.", "DUMP_OR_LOG")] = field(
        kw_only=False
    )
    files: Annotated[bool, opt("List the file entries, too.")] = False
    key_file: KeyFile = None
    table: Annotated[
        str | None, opt("Only this table, by any name that it had, and its database as a whole.", metavar="DB.TABLE")
    ] = None
    since: Annotated[
        Moment | int | None,
        opt("Only from an event id, @POSITION or a time (UTC) on, or -90m, -1d, yesterday.", metavar="X"),
    ] = None
    until: Annotated[Moment | int | None, opt("Only up to an event id, @POSITION or a time, or -1d.", metavar="X")] = (
        None
    )


@verb(ShowOptions)
def show(options: ShowOptions) -> Shown:
    """Opens a dump, a captured log or a segment for inspection: its header, and its records and file entries one by
    one. Reads only; safe to run concurrently with all commands.

        for record in replicator.show("/dumps/2").records(): print(record.position, record.change)

    Raises UsageError for an invalid table or recovery point; FormatError for a location that is neither a dump nor a
    log, and for a damaged one; Refused for a dump that is not signed with a key."""
    shown = open_shown(options.place, lambda: options.keys(options.key_file), files=options.files)
    if options.table is options.since is options.until is None:
        return shown
    table = None if options.table is None else _table(options.table)
    since, until = _moment(options.since, "--since"), _moment(options.until, "--until")
    narrowing = Narrowing(table, since, until)
    found = narrowed(shown, narrowing)
    if table is None or shown.header["what"] != "log":
        return found
    return replace(found, restores=lambda: _restores(shown, narrowing, table))


def _restores(shown: Shown, narrowing: Narrowing, table: tuple[str, str]) -> Iterator[tuple[ChangeRecord, list[str]]]:
    """Yields the selected records of a table, each with the arguments of `restore` for its state."""
    root = str(shown.header["place"])
    whole = narrowing.with_former(shown.records())
    states = RowStates(segments(root), table)
    for record, state in states.of(filter(whole.concerns, shown.records())):
        if narrowing.is_within(record):
            yield record, ["--cmroot", root, *state.arguments] if state else []


def states_at(root: str, table: str, positions: Iterable[int]) -> dict[int, RowState]:
    """Returns the restorable states of a table at some positions of a root's log, as `RowStates.at`."""
    shown, name = open_shown(root), _table(table)
    whole = Narrowing(name).with_former(shown.records())
    states = RowStates(segments(root), name)
    return states.at(filter(whole.concerns, shown.records()), positions)


def _table(text: str) -> tuple[str, str]:
    db, dot, table = text.lower().partition(".")
    if not (db and dot and table):
        raise UsageError(f"--table {text!r} is not a table", hint="write DB.TABLE")
    return db, table


def _moment(text: str | int | None, option: str) -> LogMoment | None:
    return None if text is None else parse_moment(str(text), option)


# ---- restore ---------------------------------------------------------------------------------------------------------


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
        """Returns the options for a restore on the primary, unless another metastore is given, with its root and
        locations."""
        known = super().known(direction)
        own = {"target": known["source"], "target_cmroot": None if self.target else known["cmroot"], "warehouse": None}
        return known | own

    def databases(self, direction: Direction) -> str:
        return self.db or only_one([pair.name for pair in direction.matching], direction.policy.name)


@verb(RestoreOptions)
def restore(options: RestoreOptions) -> Restored | RestorePlan:
    """Restores a database, or tables of it, to an event or a time, from the captured log and $cmroot: a new database
    with its own copy of the data. May run again after a crash: the same restore continues.

        replicator.restore(cmroot="/cm", db="sales", to="2026-03-01T12:00:00Z", target="thrift://a:9083")
        replicator.restore(cmroot="/cm", db="sales", table="orders", to=4711, target="prod", into="rescue")
        replicator.restore("west", db="sales", to=4711)

    Raises UsageError for an invalid recovery point, and for tables of another database; ObjectNotFound for objects that
    did not exist then; Refused for an existing database (unless forced), and for partitions of an existing table;
    FilesMissing, before any change, for bytes that are no longer available (unless allowed)."""
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
