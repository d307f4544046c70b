"""`replicator purge certify`: the proof that nothing holds what was erased, or the list of what does and until when.

    tables      searched once more for the ids: no row may have one
    backups     directories of before that are still there
    $cmroot     the source's and each replica's, by checksum: files that had rows erased, and older states
    replicas    how far they are, and their partitions' files by checksum

With `expedited` backups are recycled and entries expired first, but for what a slot, hold, dump or legal hold needs.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from cmroot.checksum import checksum_stream
from cmroot.expedite import expedite, look_at_contents
from cmroot.pins import iso
from cmroot.place import join, store_for
from cmroot.resolve import resolved
from cmroot.retention import LIVE
from cmroot.root import ChangeRoot
from replicator.engine import AutoEngine, hive_settings
from replicator.errors import ObjectNotFound, UsageError
from replicator.guard.audit import AuditLog, begin_audit
from replicator.guard.legal import Held, read_holds
from replicator.load.replica import LAST_ID
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.purge import matching
from replicator.purge.backups import backups
from replicator.purge.contents import Content, erased_contents, recorded_contents
from replicator.purge.matching import Ids
from replicator.purge.onboarding import Onboarded, WhiteList
from replicator.purge.options import PurgeOptions, RetainOptions
from replicator.purge.parts import look_at, parts_of
from replicator.purge.retain import retain
from replicator.purge.run import described, warehouse_of
from replicator.purge.state import PURGE, RunDirectory, Unit, runs


@dataclass(frozen=True)
class Replica:
    """A replica under management: a policy's name, its target, the target's `$cmroot`, and what databases are called
    there."""

    name: str
    target: MetastoreReader
    root: str
    target_name: Callable[[str], str]
    replicates: Callable[[str], bool]


@dataclass(frozen=True)
class Holding:
    """Something that still holds bytes from before. what: table, backup, $cmroot, replica, replica's $cmroot. why: the
    reason that it must go; until: what has to happen for it to go."""

    what: str
    object: str
    path: str
    bytes: int
    why: str
    until: str
    where: str = ""


@dataclass
class Certificate:
    """status: certified, or remaining. holding: all that is left. searched: tables in which no row has an id. gaps:
    white-listed tables that nobody searched: the certificate says nothing about them."""

    status: str
    ids: str
    count: int
    runs: list[str]
    time: str
    event: int
    searched: list[str] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    contents: int = 0
    replicas: list[str] = field(default_factory=list)
    holding: list[dict[str, Any]] = field(default_factory=list)
    expedited_files: int = 0
    expedited_bytes: int = 0
    seconds: float = 0.0


def certify(
    metastore: Metastore, root: ChangeRoot, options: PurgeOptions, replicas: Sequence[Replica] = (), *,
    roots: Sequence[str] = (), run: str | None = None, expedited: bool = False,
    readers: timedelta = timedelta(hours=2), engines: AutoEngine,
    clock: Callable[[], float] = clocks.time,
) -> Certificate:  # fmt: skip
    """For the ids of a run, or of `options.ids` and all its runs. roots: of replicas that no policy names. Changes
    nothing but the audit, unless `expedited`; then no backup younger than `readers` goes. Safe to run twice.

    Raises Refused when there are no ids, UsageError for an unknown run."""
    began = clocks.monotonic()
    directories = _runs(metastore, root, options, run)
    if run is not None:
        request = directories[0].read_run().request
        options = PurgeOptions(request["ids"], request["whitelist"], request["field_path"], limits=options.limits)
    audit = begin_audit(root.place, PURGE, clock=clock)
    certificate = Certificate(
        "certified", options.ids, 0, [each.id for each in directories], iso(clock()), metastore.current_event_id(),
        replicas=[each.name for each in replicas],
    )  # fmt: skip
    if expedited:
        everything = RetainOptions(0, timedelta(0), readers, timedelta(0), options.limits)
        gone = retain(metastore, root, everything, engines=engines, clock=clock)
        certificate.expedited_files += gone.files
    found: list[Holding] = []
    session = engines.session(hive_settings(metastore.uri, warehouse_of(metastore)))
    ids = _ids(session, options, directories if run is not None else [])
    certificate.count = ids.count
    tables, gaps = described(metastore, WhiteList.parse(options.whitelist), options)
    certificate.gaps = [{"table": gap.table, "reason": gap.reason} for gap in gaps]
    for table in tables:
        rows = _rows_left(ids, table)
        if rows:
            found.append(Holding("table", table.name, table.table.location or "", 0, f"{rows:,} rows have an id",
                                 "the next purge"))  # fmt: skip
        else:
            certificate.searched.append(table.name)
    matching.forget(ids)
    contents = {each.key: each for each in erased_contents(directories)}
    recorded = recorded_contents(root.place, [table.name for table in tables])
    contents = {**recorded.older, **contents}
    certificate.contents = len(contents)
    found += _backups(directories, clock())
    places = [("$cmroot", root.place, "")] + [("replica's $cmroot", each.root, each.name) for each in replicas]
    places += [("replica's $cmroot", each, "") for each in roots]
    for what, place, name in places:
        if expedited:
            _expedite(place, contents, root.place, engines, certificate, clock)
        found += _kept(what, place, name, contents, engines)
    for replica in replicas:
        found += _replica(replica, directories, contents)
    certificate.holding = [asdict(each) for each in found]
    if found:
        certificate.status = "remaining"
    certificate.seconds = clocks.monotonic() - began
    _record(audit, certificate)
    return certificate


def _runs(metastore: Metastore, root: ChangeRoot, options: PurgeOptions, run: str | None) -> list[RunDirectory]:
    """Oldest first. `latest` is the newest."""
    known = []
    for directory in runs(root.place):
        request = directory.read_run().request
        if "ids" in request and request["metastore"] == metastore.uri:
            known.append((directory, request["ids"]))
    if run is not None:
        found = [directory for directory, _ in known if run in (directory.id, "latest")][-1:]
        if not found:
            raise UsageError(f"{root.place}: no purge {run!r}", hint=f"there are: {', '.join(d.id for d, _ in known)}")
        return found
    return [directory for directory, ids in known if ids == options.ids]


def _ids(session: Any, options: PurgeOptions, directories: Sequence[RunDirectory]) -> Ids:
    for directory in directories:
        if store_for(directory.ids).list(directory.ids):
            return matching.open_ids(session, directory.ids)
    return matching.read_ids(session, options.ids, None)


def _rows_left(ids: Ids, table: Onboarded) -> int:
    try:
        return sum(matching.ask_counts(matching.search(ids, table)).values())
    except matching.LossyIds as error:
        raise UsageError(f"{table.name}: {error}", hint="correct the ids, then certify again") from error


def _backups(directories: Sequence[RunDirectory], now: float) -> Iterator[Holding]:
    ours = {directory.id for directory in directories}
    root = directories[0].root if directories else ""
    for backup in backups(root) if root else ():
        unit = backup.unit
        if unit.backup == "kept" and (backup.directory.id in ours or backup.trash):
            look = look_at(backup.place)
            if not look.missing:
                size = sum(state.size for state in look.files)
                yield Holding("backup", unit.name, backup.place, size, f"swapped out {iso(unit.time)}",
                              "`purge retain` recycles it; --expedite does it now")  # fmt: skip


def _expedite(
    place: str, contents: dict[tuple[str, int], Content], root: str, engines: AutoEngine, certificate: Certificate,
    clock: Callable[[], float],
) -> None:  # fmt: skip
    held = [Held(hold) for hold in read_holds(root, clock())]

    def is_held(each: Content) -> bool:
        path = resolved(each.path) if held else ""
        return any(hold.covers(_name(each), path) for hold in held)

    free = [key for key, each in contents.items() if not is_held(each)]
    gone = expedite(look_at_contents(place, free, engines.for_work(len(free))), now=clock)
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


def _until(row: dict[str, Any]) -> str:
    if not row["keep"]:
        return "the next expiry; --expedite does it now"
    kind, _, name = row["reason"].partition(" ")
    match kind:
        case "slot":
            return f"slot {name} confirms position {row['released']}"
        case "hold":
            return f"hold {name} is released"
        case "dump":
            return f"dump {name} is older than the retention"
    return "a capture records that the source has it no more" if row["reason"] == LIVE else row["reason"]


def _replica(
    replica: Replica, directories: Iterable[RunDirectory], contents: dict[tuple[str, int], Content]
) -> Iterator[Holding]:
    """Its partitions that were purged at the source."""
    units = [unit for directory in directories for unit in directory.units().values() if unit.backup]
    latest: dict[tuple[str, str], Unit] = {unit.key: unit for unit in units}
    by_table: dict[str, list[Unit]] = {}
    for unit in latest.values():
        by_table.setdefault(unit.table, []).append(unit)
    sizes = {size for _, size in contents}
    for name, several in by_table.items():
        db, _, table_name = name.partition(".")
        if not replica.replicates(db):
            continue
        there = replica.target_name(db)
        try:
            at = int(replica.target.database(there).parameters.get(LAST_ID, "0"))
            table = replica.target.table(there, table_name)
        except ObjectNotFound:
            continue
        newest = max(unit.event for unit in several)
        if at < newest:
            yield Holding("replica", f"{there}.{table_name}", table.location or "", 0,
                          f"it is at event {at}, and the purge at {newest}", "its next run", replica.name)  # fmt: skip
        for part in parts_of(replica.target, table, [unit.partition for unit in several]):
            for state in look_at(part.location).files:
                if state.size in sizes:
                    place = join(part.location, state.path_relative)
                    if content := contents.get((_checksum(place), state.size)):
                        yield Holding("replica", f"{there}.{table_name}/{part.name}".rstrip("/"), place, state.size,
                                      content.why, "its next run", replica.name)  # fmt: skip


def _checksum(place: str) -> str:
    with store_for(place).open_read(place) as file:
        return checksum_stream(file)[0]


def _record(audit: AuditLog, certificate: Certificate) -> None:
    audit.changed(
        "", f"{certificate.status}: {certificate.count:,} ids, {len(certificate.holding):,} holdings",
        what="certificate", detail=asdict(certificate),
    )  # fmt: skip
