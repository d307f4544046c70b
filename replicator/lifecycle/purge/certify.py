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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Self

import msgspec

from cmroot.expire.plans import expedite, look_at_contents
from cmroot.expire.retention import LIVE, ends_when
from cmroot.keep.content import content_name
from cmroot.keep.versions import keeps_versions, why_versions_unseen
from cmroot.pins import iso
from cmroot.root import ChangeRoot
from cmroot.store.blocks import Unsupported
from cmroot.store.place import join, normal, resolved
from replicator.core.audit import AuditLog, begin_audit
from replicator.core.cluster import is_of_spark, is_unread, spark_failed
from replicator.core.engine import AutoEngine
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.policy import Policy, matching_databases
from replicator.core.runtime import Runtime
from replicator.core.spark import hive_settings
from replicator.errors import Error, FormatError, ObjectNotFound
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.backup_actions import Retain
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.certificate_file import Certificate, Holding, Sought, erased_contents, older_contents
from replicator.lifecycle.purge.file_columns import look_at_all
from replicator.lifecycle.purge.file_names import NamedIds, refuse_on_nodes
from replicator.lifecycle.purge.ids import Ids, LossyIds, ids_of
from replicator.lifecycle.purge.lakes import is_lake, rows_left
from replicator.lifecycle.purge.options import (
    CertifyOptions,
    Onboarded,
    PurgeGap,
    PurgeOptions,
    RetainOptions,
    WhiteList,
)
from replicator.lifecycle.purge.run import Derived, derived, described, materialized_at, unended
from replicator.lifecycle.purge.searching import searched
from replicator.lifecycle.purge.state import (
    PURGE,
    RunDirectory,
    Unit,
    erased_rows,
    recorded_units,
    runs_of,
    swapped_units,
)
from replicator.lifecycle.purge.table_files import (
    Content,
    copies,
    directories_of,
    is_below,
    kept_versions,
    look_at,
    parts_of,
    shared_contents,
)
from replicator.lifecycle.purge.transactional_files import with_write_ids
from replicator.lifecycle.removal.removal import ResolvedHold, read_holds
from replicator.metastore.client import Metastore, MetastoreReader, warehouse_of
from replicator.metastore.events.scope import Patterns, refuse_other_catalog
from replicator.metastore.newer_servers import refuse_for_spark
from replicator.replay.placement import Placement, is_published
from replicator.replay.replica import LAST_ID

VERSIONS = "this version is deleted, by hand or a rule of the bucket"
"""The event that removes a noncurrent version."""


@dataclass(frozen=True)
class Replica:
    """A managed replica: a policy's name, its target, the target's `$cmroot`, the names of databases there, and a
    predicate that is True if a table ("db", "table") of the source is replicated. mappings, external: of locations, as
    in Placement; None: in the target's warehouse."""

    name: str
    target: MetastoreReader
    root: str
    target_name: Callable[[str], str]
    replicates: Callable[[str, str], bool]
    mappings: tuple[tuple[str, str], ...] = ()
    external: str | None = None

    @classmethod
    def of(cls, policy: Policy, target: MetastoreReader) -> Self:
        """Returns the replica of a policy. A table also counts as replicated if only partitions of it are."""
        patterns = Patterns.parse(policy.include, policy.exclude)

        def replicates(db: str, table: str) -> bool:
            return bool(matching_databases(policy, [db])) and patterns.match(table)

        external = policy.external_base or (join(policy.warehouse, "external") if policy.warehouse else None)
        locations = tuple(policy.map_location.items()), external
        return cls(policy.name, target, normal(policy.target_cmroot), policy.target_name, replicates, *locations)

    def places_of(self, source: MetastoreReader, db: str, table: str, places: Sequence[str]) -> Iterator[str]:
        """Yields where loads put data of a table of the source, at these places there."""
        with suppress(ObjectNotFound, FormatError):  # dropped concurrently; cannot be replicated
            top, home = source.table(db, table).location, source.database(db).location or ""
            there = self.target.database(self.target_name(db))
            external = self.external or join(warehouse_of(self.target) or "/", "external")
            homes = {db: there.name}, {db: home}, {db: there.location or ""}, external, self.mappings
            for apart in (frozenset({db}), frozenset[str]()):
                yield from [Placement(*homes, None, apart).inside(db, top, place) for place in places]


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

    Raises Refused if there are no ids, or others than those of the run; UsageError for an unknown run."""
    began, engines = clocks.monotonic(), runtime.engines
    refuse_other_catalog(root.place, metastore)
    refuse_for_spark(metastore)
    directories = runs_of(root.place, metastore.uri, asked.ids, options.run)
    if options.run is not None:
        request = directories[0].read_run().request
        asked = PurgeOptions(request["ids"], request["whitelist"], request["field_path"])
    audit = begin_audit(root.place, PURGE, clock=runtime.clock)
    certificate = Certificate(
        "certified", asked.ids, 0, [each.id for each in directories], iso(runtime.clock()), metastore.current_event_id()
    )
    found: list[Holding] = []
    with runtime.progress.task("start Spark"):
        session = engines.session(hive_settings(metastore.config, warehouse_of(metastore) or "/tmp", engines.settings))
    with runtime.progress.task("read ids"):
        ids = ids_of(session, asked.ids, directories if options.run is not None else [])  # before `Retain` removes them
    if options.expedited:
        everything = RetainOptions(0, timedelta(0), options.readers, timedelta(0))
        with Retain(
            root=root, metastore=metastore, runtime=runtime, limits=options.limits, options=everything
        ) as backups_of_all:
            certificate.expedited_files += backups_of_all.run().files
    certificate.count = ids.count
    purged, _ = recorded_units(directories)
    certificate.erased, swapped = erased_rows(purged), swapped_units(purged)
    known = [run for run in (each.read_run() for each in directories) if run.never_found is not None]
    if known:
        least = min(known, key=lambda run: run.never_found or 0)
        certificate.never_found, certificate.near_misses = least.never_found, least.near_misses
    tables, gaps, without = described(metastore, WhiteList.parse(asked.whitelist), asked)
    certificate.without_persons = [msgspec.to_builtins(each) for each in without]
    views = derived(metastore, [table.name for table in tables])
    gaps = [*unended(metastore, directories), *_with_views(certificate, gaps, views, swapped)]
    certificate.gaps = [{"table": gap.table, "reason": gap.reason} for gap in gaps]
    for number, table in enumerate(tables, 1):
        with runtime.progress.task(f"search {table.name}, table {number:,} of {len(tables):,}"):
            rows, unread = _rows_left(metastore, ids, table, engines)
        certificate.gaps += [{"table": gap.table, "reason": gap.reason} for gap in unread]
        if rows:
            found.append(Holding("table", table.name, table.table.location or "", 0, rows, "the next purge"))
        elif not unread:
            certificate.searched.append(table.name)
    ids.close()
    replicas = [each for each in replicas if any(each.replicates(table.table.db, table.table.name) for table in tables)]
    certificate.replicas = [each.name for each in replicas]
    erased = list(erased_contents(purged))
    shared = shared_contents(metastore, swapped, erased, engines)
    contents = {each.key: each for each in erased if (each.table, each.key) not in shared}
    materialized = [view.name for view in views if view.is_materialized]
    older, former = older_contents(root.place, [table.name for table in tables] + materialized)
    contents = older | contents
    sought = Sought(contents, shared, dict(_outside(tables, former)))
    certificate.contents = len(contents)
    found += _backups(root.place, directories, {table.name for table in tables})
    places = [("$cmroot", root.place, "")] + [("replica's $cmroot", each.root, each.name) for each in replicas]
    places += [("replica's $cmroot", each, "") for each in options.roots]
    for what, place, name in places:
        if options.expedited:
            _expedite(place, contents, root.place, certificate, runtime)
        found += _kept(what, place, name, contents, engines)
    found += _left_at(metastore, None, swapped, sought, engines)
    for replica in replicas:
        found += _replica(replica, metastore, swapped, sought, engines)
    certificate.gaps += [{"table": gap.table, "reason": gap.reason} for gap in sought.gaps]
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


def _rows_left(
    metastore: MetastoreReader, ids: Ids, table: Onboarded, engines: AutoEngine
) -> tuple[str, list[PurgeGap]]:
    """Returns how many rows have an id, as text, "" for none, and the gaps of the search."""
    parts = list(parts_of(metastore, table.table))
    try:
        if is_lake(table.table):
            return rows_left(metastore, ids, table, engines)
        refuse_on_nodes(table, parts)
    except (LossyIds, Unsupported) as error:
        return "", [PurgeGap(table.name, f"not searched: {error}")]
    names, table = NamedIds(ids, table), with_write_ids(metastore, table)
    looked = look_at_all(engines, parts, table, names)
    named = names.gaps(parts)

    def count(*, pushdown: bool) -> tuple[str, list[PurgeGap]]:
        found, gaps = searched(ids, table, parts, looked, pushdown=pushdown)
        counts = searching.ask_counts(found)
        gaps = [*gaps, *named]
        what = "rows, in partitions whose value is an id" if table.is_key else "rows have an id"
        return f"{sum(counts.values()):,} {what}" if counts else "", gaps

    try:
        try:
            return count(pushdown=True)
        except Exception as error:
            if not is_unread(error):
                raise
        return count(pushdown=False)
    except LossyIds as error:
        return "", [PurgeGap(table.name, f"not searched: {error}")]
    except Error:
        raise
    except Exception as error:
        if not is_of_spark(error):
            raise
        return "", [PurgeGap(table.name, f"not searched: {spark_failed(error).message}")]


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


def _replica(
    replica: Replica, source: MetastoreReader, swapped: Mapping[str, list[Unit]], sought: Sought, engines: AutoEngine
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
    yield from _left_at(source, replica, ours, sought, engines)


def _left_at(
    source: MetastoreReader,
    replica: Replica | None,
    swapped: Mapping[str, list[Unit]],
    sought: Sought,
    engines: AutoEngine,
) -> Iterator[Holding]:
    """Yields files with such contents in the directories that purged tables have at the source or a replica, and in
    those that any table of the certificate had, whether or not a table refers to them. Excludes backups, which are
    reported as such. Adds directories that cannot be searched to the gaps of `sought`."""
    what, where = ("replica", replica.name) if replica else ("table", "")
    metastore, target_name = (replica.target, replica.target_name) if replica else (source, str)
    units_kept = (unit for units in swapped.values() for unit in units if unit.backup == "kept")
    kept = {normal(unit.aside or unit.old) for unit in units_kept}
    reported = kept if what == "table" else set()
    for name in sorted({*swapped, *sought.places}):
        db, table_name = _split(name)
        if replica and not replica.replicates(db, table_name):
            continue
        units, shown, home = swapped.get(name, []), f"{target_name(db)}.{table_name}", ""
        places, present = list[str](), list[str]()
        with suppress(ObjectNotFound):  # dropped concurrently, or not replicated yet: it may have left files
            home = metastore.database(target_name(db)).location or ""
            table = metastore.table(target_name(db), table_name)
            parts = list(parts_of(metastore, table, [unit.partition for unit in units]))
            places = [table.location or "", *(part.location for part in parts)]
        homes = home, warehouse_of(metastore)
        if foreign := next((place for place in places if is_on_nodes(place, *homes)), ""):
            yield Holding(what, shown, foreign, 0, ON_NODES, "it is searched where its directories are", where)
            continue
        if places and units:
            present = list(directories_of(table, parts, home, set(metastore.table_names(table.db))))
        dropped, outside = [normal(unit.old) for unit in units if unit.dropped], list(sought.places.get(name, ()))
        if replica:
            dropped, outside = (
                list(replica.places_of(source, db, table_name, some)) if some else [] for some in (dropped, outside)
            )
        else:
            dropped += [unit.old for unit in units if unit.old and keeps_versions(unit.old)]
        if places and outside:  # those that it has again are searched with it
            now = {normal(part.location) for part in parts_of(metastore, table)}
            outside = [place for place in outside if place not in now]
        former = {*dropped, *outside}
        unread = {place: ON_NODES for place in former if is_on_nodes(place, *homes)}
        contents = sought.of(name)
        for copy in copies({*present, *former} - unread.keys(), contents, engines, unread):
            if copy.version or not is_below(copy.place, reported):
                until = "its next run" if what == "replica" else "it is removed by hand"
                if what == "replica" and is_published(copy.place):
                    until = "its next run, or the first after publish_delay if it has reached the purge"
                yield Holding(
                    what,
                    shown,
                    _of_version(copy.place, copy.version) if copy.version else copy.place,
                    copy.size,
                    contents[copy.checksum, copy.size].why,
                    VERSIONS if copy.version else until,
                    where,
                )
        if unread:
            sought.gaps.append(_unread(f"{shown} of {where}" if where else shown, unread))


def _outside(tables: Sequence[Onboarded], places: Mapping[str, set[str]]) -> Iterator[tuple[str, set[str]]]:
    """Yields the locations outside of tables' directories, with the table, if there are any."""
    for each in tables:
        top = {normal(each.table.location or "/")}
        if several := {place for place in places.get(each.name, ()) if not is_below(place, top)}:
            yield each.name, several


def _unread(name: str, unread: Mapping[str, str]) -> PurgeGap:
    place, why = min(unread.items())
    more = f", and {len(unread) - 1:,} more such directories" if len(unread) > 1 else ""
    return PurgeGap(name, f"not searched: {place}, where it is or was ({why}){more}")


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
