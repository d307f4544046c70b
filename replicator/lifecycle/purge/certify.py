"""`replicator purge certify`: proves that no erased data remain, or lists the copies and what will remove them.

    tables      searched again for the ids: no row may have one; parts that no search reads are listed
    backups     old directories that are still stored
    $cmroot     the source's and each replica's, by checksum: files that had rows erased, and older states
    replicas    how far they have replicated
    disks       of source and replicas, below the tables' current and former directories, by checksum
    versions    of any of these that an S3 bucket retains

--expedite first recycles backups and expires entries, except those that a slot, hold, dump or legal hold requires.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Self

from cmroot.expire.plans import expedite, look_at_contents
from cmroot.expire.retention import LIVE, ends_when
from cmroot.keep.content import content_name
from cmroot.keep.versions import keeps_versions, why_versions_unseen
from cmroot.pins import iso
from cmroot.root import ChangeRoot
from cmroot.store.place import Place, join, normal, resolved
from replicator.core.audit import AuditLog, begin_audit
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy, matching_databases
from replicator.core.runtime import Runtime, watched
from replicator.core.spark import hive_settings
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.backup_actions import Retain
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.file_columns import look_at_all
from replicator.lifecycle.purge.ids import Ids, LossyIds, open_ids, read_ids
from replicator.lifecycle.purge.options import (
    CertifyOptions,
    Onboarded,
    PurgeGap,
    PurgeOptions,
    RetainOptions,
    WhiteList,
)
from replicator.lifecycle.purge.run import Derived, derived, described, materialized_at, warehouse_of
from replicator.lifecycle.purge.searching import searched
from replicator.lifecycle.purge.state import PURGE, RunDirectory, Unit, runs
from replicator.lifecycle.purge.table_files import (
    Content,
    copies,
    directories_of,
    erased_contents,
    is_below,
    kept_versions,
    look_at,
    older_contents,
    parts_of,
)
from replicator.lifecycle.removal.removal import ResolvedHold, read_holds
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import Patterns, refuse_other_catalog
from replicator.metastore.newer_servers import refuse_for_spark
from replicator.replay.replica import LAST_ID

VERSIONS = "this version is deleted, by hand or a rule of the bucket"
"""The event that removes a noncurrent version."""


@dataclass(frozen=True)
class Replica:
    """A managed replica: a policy's name, its target, the target's `$cmroot`, the names of databases there, and a
    predicate that is True if a table ("db", "table") of the source is replicated."""

    name: str
    target: MetastoreReader
    root: str
    target_name: Callable[[str], str]
    replicates: Callable[[str, str], bool]

    @classmethod
    def of(cls, policy: Policy, target: MetastoreReader) -> Self:
        """Returns the replica of a policy. A table also counts as replicated if only partitions of it are."""
        patterns = Patterns.parse(policy.include, policy.exclude)

        def replicates(db: str, table: str) -> bool:
            return bool(matching_databases(policy, [db])) and patterns.match(table)

        return cls(policy.name, target, normal(policy.target_cmroot), policy.target_name, replicates)


@dataclass(frozen=True)
class Holding:
    """A remaining copy of data from before the purge. what: table, backup, $cmroot, replica, replica's $cmroot. why:
    the reason that it must be removed; until: the event that will remove it."""

    what: str
    object: str
    path: str
    bytes: int
    why: str
    until: str
    where: str = ""


@dataclass
class Certificate(Report):
    """The report. status: "certified"; "remaining" if copies remain; "gaps" if none was found, but not everything was
    searched. holding: all remaining copies. searched: tables whose files were all read, and in which no row has an id.
    gaps: white-listed tables, partitions of others, and materialized views of searched tables, that were not searched.
    views: those that read a searched table; they have no rows of their own, or were rebuilt since. replicas: of one of
    the tables. erased: rows that the purges erased, by table. never_found: the number of ids that no purge of these has
    found in any table; None if unknown. near_misses: how many of these a table had in another spelling."""

    status: str
    ids: str
    count: int
    runs: list[str]
    time: str
    event: int
    searched: list[str] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    erased: dict[str, int] = field(default_factory=dict)
    never_found: int | None = None
    near_misses: int | None = None
    contents: int = 0
    replicas: list[str] = field(default_factory=list)
    holding: list[dict[str, Any]] = field(default_factory=list)
    expedited_files: int = 0
    expedited_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """True if no copy remains, and everything that had to be searched was searched."""
        return self.status == "certified"


def certify(
    metastore: Metastore,
    root: ChangeRoot,
    asked: PurgeOptions,
    options: CertifyOptions,
    replicas: Sequence[Replica],
    runtime: Runtime,
) -> Certificate:
    """Certifies the ids of a run, or of `asked.ids` and all its runs. Changes only the audit, unless it expedites. May
    run twice.

    Raises Refused if there are no ids, UsageError for an unknown run."""
    began, engines = clocks.monotonic(), runtime.engines
    refuse_other_catalog(root.place, metastore)
    refuse_for_spark(metastore)
    directories = _runs(metastore, root, asked, options.run)
    if options.run is not None:
        request = directories[0].read_run().request
        asked = PurgeOptions(request["ids"], request["whitelist"], request["field_path"])
    audit = begin_audit(root.place, PURGE, clock=runtime.clock)
    certificate = Certificate(
        "certified", asked.ids, 0, [each.id for each in directories], iso(runtime.clock()), metastore.current_event_id()
    )
    if options.expedited:
        everything = RetainOptions(0, timedelta(0), options.readers, timedelta(0))
        with Retain(
            root=root, metastore=metastore, runtime=runtime, limits=options.limits, options=everything
        ) as backups_of_all:
            certificate.expedited_files += backups_of_all.run().files
    found: list[Holding] = []
    session = engines.session(hive_settings(metastore.config, warehouse_of(metastore), engines.settings))
    ids = _ids(session, asked, directories if options.run is not None else [])
    certificate.count = ids.count
    certificate.erased = _erased(directories)
    known = [run for run in (each.read_run() for each in directories) if run.never_found is not None]
    if known:
        least = min(known, key=lambda run: run.never_found or 0)
        certificate.never_found, certificate.near_misses = least.never_found, least.near_misses
    tables, gaps = described(metastore, WhiteList.parse(asked.whitelist), asked)
    views = derived(metastore, [table.name for table in tables])
    gaps = _with_views(certificate, gaps, views, _swapped(directories))
    certificate.gaps = [{"table": gap.table, "reason": gap.reason} for gap in gaps]
    for table in watched(runtime.progress, "search tables", tables):
        rows, unread = _rows_left(metastore, ids, table, engines)
        certificate.gaps += [{"table": gap.table, "reason": gap.reason} for gap in unread]
        if rows:
            found.append(
                Holding(
                    "table", table.name, table.table.location or "", 0, f"{rows:,} rows have an id", "the next purge"
                )
            )
        elif not unread:
            certificate.searched.append(table.name)
    ids.close()
    replicas = [each for each in replicas if any(each.replicates(table.table.db, table.table.name) for table in tables)]
    certificate.replicas = [each.name for each in replicas]
    contents = {each.key: each for each in erased_contents(directories)}
    materialized = [view.name for view in views if view.is_materialized]
    contents = older_contents(root.place, [table.name for table in tables] + materialized) | contents
    certificate.contents = len(contents)
    found += _backups(root.place, directories, {table.name for table in tables})
    places = [("$cmroot", root.place, "")] + [("replica's $cmroot", each.root, each.name) for each in replicas]
    places += [("replica's $cmroot", each, "") for each in options.roots]
    for what, place, name in places:
        if options.expedited:
            _expedite(place, contents, root.place, certificate, runtime)
        found += _kept(what, place, name, contents, engines)
    swapped = _swapped(directories)
    found += _left_at(metastore, "table", "", swapped, contents, engines, str)
    for replica in replicas:
        found += _replica(replica, swapped, contents, engines)
    looked_at = {(place, place) for _, place, _ in places} | {(each.name, each.table.location or "") for each in tables}
    seen = [{"table": name, "reason": why_versions_unseen(place)} for name, place in sorted(looked_at)]
    certificate.gaps += [each for each in seen if each["reason"]]
    certificate.holding = [asdict(each) for each in found]
    if found:
        certificate.status = "remaining"
    elif certificate.gaps and not options.allow_gaps:
        certificate.status = "gaps"
    certificate.seconds = clocks.monotonic() - began
    _record(audit, certificate)
    return certificate


def _runs(metastore: Metastore, root: ChangeRoot, options: PurgeOptions, run: str | None) -> list[RunDirectory]:
    """Returns the selected runs, oldest first. `latest` selects the newest run."""
    known = []
    for directory in runs(root.place):
        request = directory.read_run().request
        if "ids" in request and request["metastore"] == metastore.uri:
            known.append((directory, request["ids"]))
    if run is not None:
        found = [directory for directory, _ in known if run in (directory.id, "latest")][-1:]
        if not found:
            raise UsageError(
                f"{root.place}: no purge {run!r}", hint=f"known purges: {', '.join(d.id for d, _ in known)}"
            )
        return found
    return [directory for directory, ids in known if ids == options.ids]


def _with_views(
    certificate: Certificate, gaps: list[PurgeGap], views: Sequence[Derived], swapped: Mapping[str, list[Unit]]
) -> list[PurgeGap]:
    """Adds the views of searched tables to a certificate. Returns the gaps, with the materialized views whose rows may
    be older than the last purge of their table."""
    stale, rebuilt = dict[str, PurgeGap](), set[str]()
    for each in views:
        last = max((unit.time for unit in swapped.get(each.reads, ())), default=0.0)
        if each.is_materialized and not materialized_at(each.view) > last:
            why = f"a materialized view of {each.reads}, whose rows were not searched: rebuild it, or drop it"
            stale[each.name] = PurgeGap(each.name, why)
            continue
        if each.is_materialized:
            rebuilt.add(each.name)
        row = {"view": each.name, "reads": each.reads, "materialized": each.is_materialized}
        certificate.views.append(row if each.understood else {**row, "unparsed": True})
    others = [gap for gap in gaps if gap.table not in rebuilt and gap.table not in stale]
    return [*others, *stale.values()]


def _erased(directories: Iterable[RunDirectory]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for directory in directories:
        for unit in directory.units().values():
            if unit.backup:
                rows[unit.table] = rows.get(unit.table, 0) + unit.matched
    return rows


def _ids(session: Any, options: PurgeOptions, directories: Sequence[RunDirectory]) -> Ids:
    for directory in directories:
        if Place(directory.ids).list():
            return open_ids(session, directory.ids)
    return read_ids(session, options.ids, None)


def _rows_left(
    metastore: MetastoreReader, ids: Ids, table: Onboarded, engines: AutoEngine
) -> tuple[int, list[PurgeGap]]:
    """Returns the number of rows with an id, and the gaps of the search."""
    parts = list(parts_of(metastore, table.table))
    looked = look_at_all(engines, parts, table)

    def count(*, pushdown: bool) -> tuple[int, list[PurgeGap]]:
        found, gaps = searched(ids, table, parts, looked, pushdown=pushdown)
        return sum(searching.ask_counts(found).values()), gaps

    try:
        try:
            return count(pushdown=True)
        except Exception as error:
            if not searching.is_unread(error):
                raise
        return count(pushdown=False)
    except LossyIds as error:
        return 0, [PurgeGap(table.name, f"not searched: {error}")]
    except Error:
        raise
    except Exception as error:
        if not searching.is_sparks(error):
            raise
        return 0, [PurgeGap(table.name, f"not searched: {searching.failed(error).message}")]


def _backups(root: str, directories: Sequence[RunDirectory], tables: Collection[str]) -> Iterator[Holding]:
    """Yields backups of these runs, and of any other run that purged one of the tables: those were not searched."""
    ours = {directory.id for directory in directories}
    for backup in backups(root):
        unit = backup.unit
        if unit.backup == "kept" and (backup.directory.id in ours or backup.trash or unit.table in tables):
            look = look_at(backup.place)
            if not look.missing:
                size = sum(state.size for state in look.files)
                yield Holding(
                    "backup",
                    unit.name,
                    backup.place,
                    size,
                    f"swapped out {iso(unit.time)}",
                    "`purge retain` recycles it; --expedite does it now",
                )


def _expedite(
    place: str, contents: dict[tuple[str, int], Content], root: str, certificate: Certificate, runtime: Runtime
) -> None:
    held = [ResolvedHold(hold) for hold in read_holds(root, runtime.clock())]

    def is_held(each: Content) -> bool:
        path = resolved(each.path) if held else ""
        return any(hold.covers(_name(each), path) for hold in held)

    free = [key for key, each in contents.items() if not is_held(each)]
    gone = expedite(look_at_contents(place, free, runtime.engines.for_work(len(free))), now=runtime.clock)
    certificate.expedited_files += gone.entries
    certificate.expedited_bytes += gone.bytes


def _name(content: Content) -> str:
    return f"{content.table}/{content.partition}" if content.partition else content.table


def _kept(
    what: str, place: str, name: str, contents: dict[tuple[str, int], Content], engines: AutoEngine
) -> Iterator[Holding]:
    rows = look_at_contents(place, contents, engines.for_work(len(contents))).rows
    for row in rows.select(["checksum", "size", "bytes", "reason", "keep", "released"]).to_pylist():
        content = contents[row["checksum"], row["size"]]
        path = join(place, "files", row["checksum"][:2], f"xxh3_128-{row['checksum']}-{row['size']}")
        yield Holding(what, _name(content), path, row["bytes"], content.why, _until(row), name)
    paths = {normal(join(place, "files", key[0][:2], content_name(*key))): each for key, each in contents.items()}
    for old in kept_versions(list(paths), engines):
        content = paths[old.path]
        yield Holding(what, _name(content), _of_version(old.path, old.version), old.size, content.why, VERSIONS, name)


def _of_version(path: str, version: str) -> str:
    return f"{path}?versionId={version}"


def _until(row: dict[str, Any]) -> str:
    if not row["keep"]:
        return "the next expiry; --expedite does it now"
    live = "a capture records that the source no longer has it"
    return ends_when(row["reason"], row["released"]) or (live if row["reason"] == LIVE else row["reason"])


def _swapped(directories: Iterable[RunDirectory]) -> dict[str, list[Unit]]:
    """Returns the purged partitions by table, in the state of their last run."""
    units = [unit for directory in directories for unit in directory.units().values() if unit.backup]
    latest: dict[tuple[str, str], Unit] = {unit.key: unit for unit in units}
    by_table: dict[str, list[Unit]] = {}
    for unit in latest.values():
        by_table.setdefault(unit.table, []).append(unit)
    return by_table


def _replica(
    replica: Replica, swapped: Mapping[str, list[Unit]], contents: dict[tuple[str, int], Content], engines: AutoEngine
) -> Iterator[Holding]:
    """Yields a replica's lag, and its copies of the data purged at the source."""
    ours = {name: units for name, units in swapped.items() if replica.replicates(*_split(name))}
    for name, units in ours.items():
        db, table_name = _split(name)
        there = replica.target_name(db)
        try:
            at = int(replica.target.database(there).parameters.get(LAST_ID, "0"))
        except ObjectNotFound:
            continue
        if at < (newest := max(unit.event for unit in units)):
            yield Holding(
                "replica",
                f"{there}.{table_name}",
                "",
                0,
                f"it is at event {at}, and the purge is at event {newest}",
                "its next run",
                replica.name,
            )
    yield from _left_at(replica.target, "replica", replica.name, ours, contents, engines, replica.target_name)


def _left_at(
    metastore: MetastoreReader,
    what: str,
    where: str,
    swapped: Mapping[str, list[Unit]],
    contents: dict[tuple[str, int], Content],
    engines: AutoEngine,
    target_name: Callable[[str], str],
) -> Iterator[Holding]:
    """Yields files with such contents in the directories of purged tables, whether or not a table refers to them.
    Excludes backups, which are reported as such."""
    units_kept = (unit for units in swapped.values() for unit in units if unit.backup == "kept")
    kept = {normal(unit.aside or unit.old) for unit in units_kept}
    reported = kept if what == "table" else set()
    for name, units in swapped.items():
        db, table_name = _split(name)
        try:
            home = metastore.database(target_name(db)).location or ""
            table = metastore.table(target_name(db), table_name)
            parts = list(parts_of(metastore, table, [unit.partition for unit in units]))
        except ObjectNotFound:
            continue
        swapped_out = [unit.old for unit in units if unit.old and what == "table" and keeps_versions(unit.old)]
        for copy in copies([*directories_of(table, parts, home), *swapped_out], contents, engines):
            if copy.version or not is_below(copy.place, reported):
                until = "its next run" if what == "replica" else "it is removed by hand"
                yield Holding(
                    what,
                    f"{table.db}.{table.name}",
                    _of_version(copy.place, copy.version) if copy.version else copy.place,
                    copy.size,
                    contents[copy.checksum, copy.size].why,
                    VERSIONS if copy.version else until,
                    where,
                )


def _split(name: str) -> tuple[str, str]:
    db, _, table = name.partition(".")
    return db, table


def _record(audit: AuditLog, certificate: Certificate) -> None:
    audit.changed(
        "",
        f"{certificate.status}: {certificate.count:,} ids, {len(certificate.holding):,} holdings",
        what="certificate",
        detail=asdict(certificate),
    )
