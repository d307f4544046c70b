"""Swapping: the metadata of purged partitions, and the one call that makes it theirs. Deciding is pure; `Swap` acts.

A swap compares first: the partition must be what it was when it was read, and its files those that were searched. The
window that is left is between that look and the call's arrival; what a writer that began before puts into the old
directory later is found there, and brought over (see `backups`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from cmroot.store.place import located, name_of, normal, parent, remove_if_empty
from replicator.core.model import Partition, Skew, Storage, Table
from replicator.errors import CommitOutcomeUnknown, MetastoreError, ObjectNotFound
from replicator.lifecycle.purge.backups.backups import backups
from replicator.lifecycle.purge.partitions import SIBLING, Part, look_at, parts_of
from replicator.lifecycle.purge.state import Counted, PurgeRun, RunDirectory, runs
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.client import Metastore, MetastoreReader

STATISTICS_OF_SPARK = "spark.sql.statistics."
WRITTEN = "replicator.ingestion.written"
"""The property in which ingestion says what it wrote; `numFiles` is of anybody who writes there. A purge renews it."""

PURGED = ", purged"
_STALE = ("COLUMN_STATS_ACCURATE", "rawDataSize", "numFilesErasureCoded")


@dataclass(frozen=True)
class Figures:
    """What a partition has after a purge. rows: -1 where nobody counted."""

    files: int
    rows: int
    bytes: int


def purged(part: Part, new: str, figures: Figures, now: float) -> Table | Partition:
    """The same table or partition at its new location. Statistics of columns are left out: a smallest or largest value
    may be one that was erased."""
    parameters = {
        key: value
        for key, value in part.obj.parameters.items()
        if key not in _STALE and not key.startswith(STATISTICS_OF_SPARK)
    }
    parameters |= {"numFiles": str(figures.files), "totalSize": str(figures.bytes)}
    parameters["transient_lastDdlTime"] = str(int(now))
    if WRITTEN in parameters:
        parameters[WRITTEN] = f"{figures.files} files, {figures.bytes} bytes{PURGED}"
    if figures.rows >= 0:
        parameters["numRows"] = str(figures.rows)
    if any(key.startswith(STATISTICS_OF_SPARK) for key in part.obj.parameters):
        parameters[STATISTICS_OF_SPARK + "totalSize"] = str(figures.bytes)
        if figures.rows >= 0:
            parameters[STATISTICS_OF_SPARK + "numRows"] = str(figures.rows)
    return msgspec.structs.replace(part.obj, storage=relocated(part.storage, part.location, new), parameters=parameters)


def relocated(storage: Storage, old: str, new: str) -> Storage:
    """Everything that names the old location names the new one."""
    serde = storage.serde
    here = old.rstrip("/")
    paths = {key: new for key, value in serde.parameters.items() if key.lower() == "path" and value.rstrip("/") == here}
    if paths:
        serde = msgspec.structs.replace(serde, parameters={**serde.parameters, **paths})
    skew = storage.skew
    if skew is not None and skew.locations:
        moved = tuple((values, _moved(place, old, new)) for values, place in skew.locations)
        skew = Skew(skew.columns, skew.values, moved)
    elsewhere = paths and storage.location and storage.location.rstrip("/") != here  # Spark reads `path` only
    location = storage.location if elsewhere else new
    return msgspec.structs.replace(storage, location=location, serde=serde, skew=skew)


def _moved(place: str, old: str, new: str) -> str:
    return new + place[len(old) :] if place.startswith(old) else place


def set_parts(metastore: Metastore, table: Table, things: Sequence[Table | Partition]) -> None:
    """One call. Raises what the metastore raises; CommitOutcomeUnknown when nobody knows."""
    if not table.is_partitioned:
        (obj,) = things
        assert isinstance(obj, Table)
        metastore.alter_table(table.db, table.name, obj)
        return
    metastore.alter_partitions(table.db, table.name, [each for each in things if isinstance(each, Partition)])


def locations_now(metastore: Metastore, table: Table, names: Sequence[str]) -> dict[str, str]:
    """Where parts lie now; those that are gone are left out."""
    try:
        current = metastore.table(table.db, table.name)
    except ObjectNotFound:
        return {}
    return {part.name: part.location for part in parts_of(metastore, current, names)}


@dataclass(frozen=True)
class Flipped:
    """swapped: names that lie at their new location now; changed: name -> why it was left as it was."""

    swapped: list[str]
    changed: dict[str, str]
    event: int = 0


def flip(metastore: Metastore, table: Table, wanted: dict[str, tuple[Part, Table | Partition]]) -> Flipped:
    """Changes those whose metadata are as they were read. Settles by looking when an answer is lost: so it may run
    twice."""
    changed: dict[str, str] = {}
    for _ in range(2):
        try:
            current = metastore.table(table.db, table.name)
        except ObjectNotFound:
            return Flipped([], dict.fromkeys(wanted, "its table was dropped meanwhile"))
        now = {part.name: part for part in parts_of(metastore, current, list(wanted))}
        for name, (part, _) in wanted.items():
            if name not in now:
                changed[name] = "was dropped meanwhile"
            elif not same(now[name], part):
                changed[name] = "its metadata were changed meanwhile"
        going = {name: pair for name, pair in wanted.items() if name not in changed}
        if not going:
            return Flipped([], changed)
        try:
            set_parts(metastore, table, [obj for _, obj in going.values()])
        except CommitOutcomeUnknown:
            there = locations_now(metastore, table, list(going))
            lost = [name for name, (_, obj) in going.items() if there.get(name) != obj.location]
            changed |= dict.fromkeys(lost, "the metastore went away during the swap, which it did not execute")
            going = {name: pair for name, pair in going.items() if name not in changed}
        except MetastoreError as error:
            if error.transient:
                raise
            continue  # one of them went away since it was read
        return Flipped(list(going), changed, metastore.current_event_id())
    return Flipped([], changed | {name: "the metastore refused to change it" for name in wanted if name not in changed})


def same(now: Part, before: Part) -> bool:
    """Whether a part is what it was; a server's note of when it was last read does not count."""
    return _steady(now) == _steady(before)


def _steady(part: Part) -> Table | Partition:
    return msgspec.structs.replace(part.obj, last_access_time=0)


def drop_column_statistics(metastore: Metastore, table: Table, names: Iterable[str]) -> None:
    """Of purged parts and of their table, as their extremes may be erased values: those of every engine. Safe to run
    twice."""
    columns = [column.name for column in (table.storage.columns if table.storage else ())]
    found = [metastore.table_statistics(table.db, table.name, columns)]
    if table.is_partitioned:
        found += metastore.partition_statistics(table.db, table.name, columns, list(names))
    for each in filter(None, found):
        for column in {column.column: None for some in each.by_engine().values() for column in some}:
            metastore.drop_statistics(table.db, table.name, each.partition or "", column, None)


# ---- unswapped -------------------------------------------------------------------------------------------------------
# Directories of partitions that were written again and never swapped: nothing refers to them. Finds and removes them.
#
# Which ones they are is asked of the living metastore, not remembered: a run may have been killed between a swap and
# its record, and the table renamed since.


def leftovers(root: str, metastore: MetastoreReader, live: LiveLocations) -> Iterator[str]:
    """Of purges that have ended."""
    kept = {normal(each.place) for each in backups(root)}
    for directory in runs(root):
        run = directory.read_run()
        if run.status == "running" or "ids" not in run.request or run.request["metastore"] != metastore.uri:
            continue
        reported = list(directory.reported())
        swapped = {normal(unit.new) for unit in reported if unit.backup}
        for place in sorted({normal(unit.new) for unit in reported if unit.new} - swapped - kept):
            ours = name_of(parent(place)).startswith(SIBLING)
            if ours and not look_at(place).missing:
                live.refresh()
                if live.blocking(place) is None:
                    yield place


def remove_leftovers(
    root: str, metastore: MetastoreReader, live: LiveLocations, check: Callable[[], None]
) -> list[str]:
    """Under the lease of purges; check raises LeaseHeld when it was lost. Safe to run twice."""
    removed = []
    for place in leftovers(root, metastore, live):
        check()
        located(place).remove_tree()
        remove_empty_sibling(place)
        removed.append(place)
    return removed


def remove_empty_sibling(place: str) -> None:
    """The directory above, when it was the last in it. Raises as `remove_if_empty`."""
    above = parent(place)
    if name_of(above).startswith(SIBLING):
        remove_if_empty(above)


# ---- counting --------------------------------------------------------------------------------------------------------
# The counts of a partitioned table as a whole, in its own properties: they change as its partitions' did. Acts.
#
# What a run is about to change stands in its record before, so that after a kill the next one knows whether it came.


_ROWS, _SIZE = "numRows", "totalSize"
_COUNTS = {_ROWS: 0, _SIZE: 1, "numFiles": 2, STATISTICS_OF_SPARK + _ROWS: 0, STATISTICS_OF_SPARK + _SIZE: 1}
"""Properties, and which of (rows, bytes, files) they count."""

_Sums = tuple[int, int, int]
"""Rows, bytes and files by which the swaps of a run have changed a table."""

_NOTHING = (0, 0, 0)


def settle_counts(metastore: Metastore, directory: RunDirectory, run: PurgeRun, name: str) -> PurgeRun:
    """After the swaps of a table ("db.table"): its counts become what they are now, and extremes that Spark keeps go. A
    count that cannot be right goes. The run, with what it has counted. Safe to run twice, and after a kill."""
    units = [unit for unit in directory.units().values() if unit.table == name and unit.state == "DONE"]
    sums = (
        sum(unit.rows_after - unit.rows for unit in units),
        sum(unit.bytes_after - unit.bytes for unit in units),
        sum(unit.files - unit.files_before for unit in units),
    )
    try:
        table = metastore.table(*name.split(".", 1))
    except ObjectNotFound:
        return run
    now = {key: value for key, value in table.parameters.items() if table.is_partitioned and key in _COUNTS}
    counted = _counted(run, name, now, sums)
    after = now if counted == sums else _changed(now, counted, sums)
    if after != now:
        run = msgspec.structs.replace(
            run, counted={**run.counted, name: Counted(counted or _NOTHING, sums, now, after)}
        )
        directory.write_run(run)
    _set(metastore, table, after)
    return run


def _counted(run: PurgeRun, name: str, now: dict[str, str], sums: _Sums) -> _Sums | None:
    """What of the sums the counts have in them already. None: nobody knows, as somebody else has counted since; where
    nothing was swapped after that, his counts are right."""
    last = run.counted.get(name)
    if last is None:
        return _NOTHING
    if now == last.before:
        return last.was
    return last.sums if now == last.after or sums == last.sums else None


def _changed(now: dict[str, str], counted: _Sums | None, sums: _Sums) -> dict[str, str]:
    after: dict[str, str] = {}
    if counted is None:
        return after
    for key, value in now.items():
        count = int(value) + sums[_COUNTS[key]] - counted[_COUNTS[key]] if value.isascii() and value.isdecimal() else -1
        if count >= 0:
            after[key] = str(count)
    return after


def _set(metastore: Metastore, table: Table, counts: dict[str, str]) -> None:
    kept = {
        key: value
        for key, value in table.parameters.items()
        if not key.startswith(STATISTICS_OF_SPARK + "colStats.") and (not table.is_partitioned or key not in _COUNTS)
    }
    parameters = kept | counts
    if parameters != table.parameters:
        parameters["transient_lastDdlTime"] = str(int(time.time()))
        metastore.alter_table(table.db, table.name, msgspec.structs.replace(table, parameters=parameters))
