"""Rewriting of files with ids into a new directory, and metadata after a swap, computed (pure) and applied in one call.

The sums must agree before a swap, which `replacing` does. Restores of backups of earlier releases, and of data that
these have moved to another location, switch the location (`flip`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from cmroot.store.place import give_rights, is_local, join, located, name_of, normal, parent, remove_if_empty
from replicator.core.engine import AutoEngine
from replicator.core.formats import is_transactional
from replicator.core.model import Partition, Skew, Storage, Table
from replicator.core.runtime import Advance
from replicator.errors import CommitOutcomeUnknown, Error, MetastoreError, ObjectNotFound
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.rewrite_task import FileDone, FilesTask, FileWork, run_files_task, sweep_staging
from replicator.lifecycle.purge.state import Counted, PurgeRun, RunDirectory, runs
from replicator.lifecycle.purge.table_files import SIBLING, Look, Part, is_data, look_at, parts_of
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.client import Metastore, MetastoreReader

# ---- swap ------------------------------------------------------------------------------------------------------------


STATISTICS_OF_SPARK = "spark.sql.statistics."
WRITTEN = "replicator.ingestion.written"
"""The property in which ingestion records the files it wrote; any writer updates `numFiles`. A purge updates it."""

PURGED = ", purged"
_STALE = ("COLUMN_STATS_ACCURATE", "rawDataSize", "numFilesErasureCoded")


@dataclass(frozen=True)
class Figures:
    """The statistics of a partition after a purge. rows: -1 if they are not known, as in a transactional table, whose
    files have deleted rows, too."""

    files: int
    rows: int
    bytes: int


def purged(part: Part, new: str, figures: Figures, now: float) -> Table | Partition:
    """Returns the table or partition at its new location. Omits column statistics, because a minimum or maximum may be
    an erased value."""
    parameters = {
        key: value
        for key, value in part.obj.parameters.items()
        if key not in _STALE and not key.startswith(STATISTICS_OF_SPARK)
    }
    parameters |= {"numFiles": str(figures.files), "totalSize": str(figures.bytes)}
    parameters["transient_lastDdlTime"] = str(int(now))
    if WRITTEN in parameters:
        parameters[WRITTEN] = f"{figures.files} files, {figures.bytes} bytes{PURGED}"
    parameters.pop("numRows", None)
    if figures.rows >= 0:
        parameters["numRows"] = str(figures.rows)
    if any(key.startswith(STATISTICS_OF_SPARK) for key in part.obj.parameters):
        parameters[STATISTICS_OF_SPARK + "totalSize"] = str(figures.bytes)
        if figures.rows >= 0:
            parameters[STATISTICS_OF_SPARK + "numRows"] = str(figures.rows)
    return msgspec.structs.replace(part.obj, storage=relocated(part.storage, part.location, new), parameters=parameters)


def relocated(storage: Storage, old: str, new: str) -> Storage:
    """Replaces the old location by the new one wherever the storage descriptor names it."""
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
    """Alters all in one call. Raises the metastore's errors, CommitOutcomeUnknown if the outcome is unknown."""
    if not table.is_partitioned:
        (obj,) = things
        assert isinstance(obj, Table)
        metastore.alter_table(table.db, table.name, obj)
        return
    metastore.alter_partitions(table.db, table.name, [each for each in things if isinstance(each, Partition)])


def locations_now(metastore: MetastoreReader, table: Table, names: Sequence[str]) -> dict[str, str]:
    """Returns the current locations of parts by name; omits parts that no longer exist."""
    try:
        current = metastore.table(table.db, table.name)
    except ObjectNotFound:
        return {}
    return {part.name: part.location for part in parts_of(metastore, current, names)}


@dataclass(frozen=True)
class Flipped:
    """A swap's result. swapped: names of parts now at their new location; changed: name -> why it was not swapped."""

    swapped: list[str]
    changed: dict[str, str]
    event: int = 0


def flip(metastore: Metastore, table: Table, wanted: dict[str, tuple[Part, Table | Partition]]) -> Flipped:
    """Switches the locations of the parts whose metadata are unchanged since they were read. If a response is lost,
    reads the current locations to determine the outcome. May run twice."""
    changed: dict[str, str] = {}
    for _ in range(2):
        try:
            current = metastore.table(table.db, table.name)
        except ObjectNotFound:
            return Flipped([], dict.fromkeys(wanted, "its table was dropped concurrently"))
        now = {part.name: part for part in parts_of(metastore, current, list(wanted))}
        for name, (part, _) in wanted.items():
            if name not in now:
                changed[name] = "was dropped concurrently"
            elif not same(now[name], part):
                changed[name] = "its metadata was changed concurrently"
        going = {name: pair for name, pair in wanted.items() if name not in changed}
        if not going:
            return Flipped([], changed)
        try:
            set_parts(metastore, table, [obj for _, obj in going.values()])
        except CommitOutcomeUnknown:
            there = locations_now(metastore, table, list(going))
            lost = [name for name, (_, obj) in going.items() if there.get(name) != obj.location]
            changed |= dict.fromkeys(lost, "the metastore became unreachable during the swap, which it did not execute")
            going = {name: pair for name, pair in going.items() if name not in changed}
        except MetastoreError as error:
            if error.transient:
                raise
            continue  # a partition was dropped since it was read
        return Flipped(list(going), changed, metastore.current_event_id())
    return Flipped([], changed | {name: "the metastore refused to change it" for name in wanted if name not in changed})


def same(now: Part, before: Part) -> bool:
    """Returns True if a part is unchanged; ignores the last access time that the server records."""
    return _steady(now) == _steady(before)


def _steady(part: Part) -> Table | Partition:
    return msgspec.structs.replace(part.obj, last_access_time=0)


def drop_column_statistics(metastore: Metastore, table: Table, names: Iterable[str]) -> None:
    """Drops the column statistics of purged parts and of their table, for every engine, because minima and maxima may
    be erased values. May run twice."""
    columns = [column.name for column in (table.storage.columns if table.storage else ())]
    found = [metastore.table_statistics(table.db, table.name, columns)]
    if table.is_partitioned:
        found += metastore.partition_statistics(table.db, table.name, columns, [*filter(None, names)])
    for each in filter(None, found):
        for column in {column.column: None for some in each.by_engine().values() for column in some}:
            metastore.drop_statistics(table.db, table.name, each.partition or "", column, None)


# ---- unswapped -------------------------------------------------------------------------------------------------------
# Finds and removes leftover directories: partitions that were rewritten and never swapped, to which nothing refers.
#
# They are determined from the current metastore, not from records: a run may have been killed between a swap and its
# record, and the table may have been renamed since.


def leftovers(root: str, metastore: MetastoreReader, live: LiveLocations) -> Iterator[str]:
    """Yields the leftover directories of purges that have ended."""
    restored = [each for each in backups(root) if each.unit.aside and each.unit.backup == "restored"]
    kept = {normal(each.place) for each in backups(root)} - {normal(each.place) for each in restored}
    for directory in runs(root):
        run = directory.read_run()
        if run.status == "running" or "ids" not in run.request or run.request["metastore"] != metastore.uri:
            continue
        reported = list(directory.reported())
        swapped = {normal(unit.new) for unit in reported if unit.backup and unit.new}
        created = {normal(place) for unit in reported for place in (unit.new, unit.aside) if place}
        for place in sorted(created - swapped - kept):
            ours = name_of(parent(place)).startswith(SIBLING)
            if ours and not look_at(place).missing:
                live.refresh()
                if live.blocking(place) is None:
                    yield place


def remove_leftovers(
    root: str, metastore: MetastoreReader, live: LiveLocations, check: Callable[[], None]
) -> list[str]:
    """Removes leftovers; requires the lease of purges. check raises LeaseHeld if the lease was lost. May run twice."""
    removed = []
    for place in leftovers(root, metastore, live):
        check()
        located(place).remove_tree()
        remove_empty_sibling(place)
        removed.append(place)
    return removed


def remove_empty_sibling(place: str) -> None:
    """Removes the directory above if `place` was its last entry. Raises the errors of `remove_if_empty`."""
    above = parent(place)
    if name_of(above).startswith(SIBLING):
        remove_if_empty(above)


# ---- counting --------------------------------------------------------------------------------------------------------
# Updates the counts in a partitioned table's own properties by the changes of its partitions. Has side effects.
#
# A run records each change before it makes it, so that after a kill the next run can tell whether it was applied.


_ROWS, _SIZE = "numRows", "totalSize"
_COUNTS = {_ROWS: 0, _SIZE: 1, "numFiles": 2, STATISTICS_OF_SPARK + _ROWS: 0, STATISTICS_OF_SPARK + _SIZE: 1}
"""Properties -> index of what they count in (rows, bytes, files)."""

_Sums = tuple[int, int, int]
"""Rows, bytes and files by which the swaps of a run have changed a table."""

_NOTHING = (0, 0, 0)


def settle_counts(metastore: Metastore, directory: RunDirectory, run: PurgeRun, name: str) -> PurgeRun:
    """Updates a table's ("db.table") counts after its swaps, and removes column statistics stored by Spark. Removes
    counts that cannot be correct. Returns the run with the recorded counts. May run twice, also after a kill."""
    units = [unit for unit in directory.units().values() if unit.table == name and unit.backup]
    sums = (
        sum(unit.rows_after - unit.rows for unit in units),
        sum(unit.bytes_after - unit.bytes for unit in units),
        sum(unit.files - unit.files_before for unit in units),
    )
    try:
        table = metastore.table(*name.split(".", 1))
    except ObjectNotFound:
        return run
    counted_of = dict.fromkeys(_COUNTS if table.is_partitioned else ())
    if is_transactional(table):
        counted_of.pop(_ROWS, None)
    now = {key: value for key, value in table.parameters.items() if key in counted_of}
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
    """Returns the part of `sums` that the table's counts already include. Returns None if that is unknown because
    another process has updated the counts; if nothing was swapped after that update, its counts are accepted."""
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


# ---- rewriting of partitions -----------------------------------------------------------------------------------------


BUNDLE_FILES = 64
BUNDLE_BYTES = 256 << 20
"""The maximum number and size of files per task: each Spark task costs 25 to 50 ms, regardless of its work."""


@dataclass(frozen=True)
class Staging:
    """A part whose files with ids are rewritten at `new`. matched: number of rows to erase, by file name relative to
    the location; uris: the URIs that Spark uses for these files."""

    part: Part
    look: Look
    new: str
    format: FileFormat
    matched: Mapping[str, int]
    uris: Mapping[str, str]

    @property
    def for_spark(self) -> Staging:
        """Returns the same staging, to be written by Spark."""
        return replace(self, format=msgspec.structs.replace(self.format, kind="spark"))

    @property
    def rows_matched(self) -> int:
        return sum(self.matched.values())


@dataclass
class Staged:
    """A part that was written. error: why it may not be swapped; final: a retry would not help; by_spark: Spark might
    be able to write it; checksums: of the old and the new contents of rewritten files; lacking: rights of the old
    directory or files that the new ones do not have."""

    staging: Staging
    rows: int = 0
    erased: int = 0
    bytes: int = 0
    bytes_after: int = 0
    files: int = 0
    files_before: int = 0
    rewritten: int = 0
    checksums: dict[str, tuple[str, str]] = field(default_factory=dict)
    error: str = ""
    final: bool = False
    by_spark: bool = False
    lacking: str = ""

    @property
    def figures(self) -> Figures:
        return Figures(self.files, self.rows - self.erased, self.bytes_after)


def works_of(staging: Staging) -> Iterator[FileWork]:
    """Yields the work for each file: of those without ids, only the rows are counted. Omits files other than data."""
    for state in staging.look.files:
        data = is_data(state.path_relative)
        if not data:
            continue
        name = state.path_relative
        source, matched = join(staging.part.location, name), staging.matched.get(name, 0)
        target = join(staging.new, name) if matched else source
        uri = staging.uris.get(name, "")
        yield FileWork(staging.part.name, name, source, target, uri, state.size, matched, data)


def bundles(stagings: Iterable[Staging], found: str) -> Iterator[FilesTask]:
    """Yields tasks, each with files of one format."""
    by_format: dict[FileFormat, list[FileWork]] = {}
    sizes: dict[FileFormat, int] = {}
    for staging in stagings:
        for work in works_of(staging):
            waiting = by_format.setdefault(staging.format, [])
            waiting.append(work)
            sizes[staging.format] = sizes.get(staging.format, 0) + (work.size if work.matched else 0)
            if len(waiting) >= BUNDLE_FILES or sizes[staging.format] >= BUNDLE_BYTES:
                yield FilesTask(staging.format, found, by_format.pop(staging.format))
                sizes[staging.format] = 0
    for format_, waiting in by_format.items():
        if waiting:
            yield FilesTask(format_, found, waiting)


def stage(stagings: Sequence[Staging], found: str, engines: AutoEngine, advance: Advance) -> list[Staged]:
    """Writes all stagings; the results are durable when it returns. advance: is notified of rewritten files. Raises
    Error if a new location is not empty: each attempt uses new locations."""
    for staging in stagings:
        if look_at(staging.new).files:
            raise Error(f"{staging.new}: already has files", hint="run the same command again: it uses another path")
        located(staging.new).mkdirs()
    staged = {staging.part.name: Staged(staging) for staging in stagings}
    size = sum(state.size for staging in stagings for state in staging.look.files)
    engine = engines.for_work(sum(len(staging.look.files) for staging in stagings), size)
    for outcomes in engine.run(run_files_task, bundles(stagings, found)):
        for outcome in outcomes:
            _count(staged[outcome.partition], outcome)
        written = [outcome.size for outcome in outcomes if outcome.checksum]
        advance(0, files=len(written), size=sum(written))
    for each in staged.values():
        sweep_staging(each.staging.new)
        each.lacking = give_directories(each.staging) or each.lacking
    for above in {staging.new for staging in stagings if is_local(staging.new)}:
        located(above).sync()
        break  # one call for the entire filesystem
    for each in staged.values():
        _judge(each)
    return list(staged.values())


def give_directories(staging: Staging) -> str:
    """Gives the directories of new files the rights of those that they are for, and their parent those of the parent.
    Returns what they lack. May run twice."""
    old, new = staging.part.location, staging.new
    lacking = []
    if staging.matched:
        below = {""} | {above for name in staging.matched for above in above_of(name)}
        lacking = [give_rights(join(old, each), join(new, each)) for each in sorted(below, reverse=True)]
    lacking.append(give_rights(parent(old.rstrip("/")), parent(new)))
    return next(filter(None, lacking), "")


def above_of(name: str) -> Iterator[str]:
    """Yields the directories above a relative path, the nearest first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _count(staged: Staged, done: FileDone) -> None:
    staged.lacking = staged.lacking or done.lacking
    staged.error = staged.error or done.error
    staged.final = staged.final or done.final
    staged.by_spark = staged.by_spark or done.by_spark
    staged.rows += done.rows
    staged.erased += done.matched
    staged.bytes += done.size
    staged.bytes_after += done.size_after
    staged.files += 1
    staged.files_before += 1
    if done.checksum:
        staged.rewritten += 1
        staged.checksums[done.name] = done.checksum, done.checksum_after


def _judge(staged: Staged) -> None:
    """Checks the sums again, over the entire part."""
    if staged.error:
        return
    if staged.erased != staged.staging.rows_matched:
        staged.error = f"{staged.erased:,} rows were left out, but Spark found {staged.staging.rows_matched:,}"
    elif set(staged.checksums) != set(staged.staging.matched):
        missing = sorted(set(staged.staging.matched) - set(staged.checksums))
        staged.error = f"a file in which Spark found rows no longer exists: {missing[0]}"
