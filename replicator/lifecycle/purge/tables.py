"""Purging one table: search it, rewrite the files that contain ids, compare, swap, record. Has side effects.

Batches of partitions pass through the states of `state`. One that changed concurrently is searched again a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec

from cmroot.store.blocks import Unsupported
from cmroot.store.place import Place, join, located
from replicator.core.audit import Removal
from replicator.core.cluster import is_of_spark, is_unread, spark_failed
from replicator.core.grouping import batched
from replicator.core.runtime import Advance, Progress, Silent
from replicator.errors import Error, ObjectNotFound
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.file_columns import Looked, look_at_all
from replicator.lifecycle.purge.file_names import (
    Drop,
    Matched,
    NamedIds,
    Unplaced,
    by_part,
    drop_parts,
    lost_drops,
    place_of,
    refuse_on_nodes,
)
from replicator.lifecycle.purge.ids import Ids, LossyIds, Searched, near_misses, view_missing, write_matched
from replicator.lifecycle.purge.matching import is_matched
from replicator.lifecycle.purge.options import Onboarded, PurgeGap, PurgeOptions
from replicator.lifecycle.purge.replacing import figured, lacking_of, replace_parts, swap_of
from replicator.lifecycle.purge.rewrite.formats import format_of_files
from replicator.lifecycle.purge.searching import Search, searched
from replicator.lifecycle.purge.spark_work import prove, stage_by_spark
from replicator.lifecycle.purge.state import PurgeRun, RunDirectory, TableDone, Unit
from replicator.lifecycle.purge.swapping import Staged, Staging, drop_column_statistics, settle_counts, stage
from replicator.lifecycle.purge.table_files import (
    Look,
    Part,
    look_at,
    new_files_location,
    new_location,
    parts_of,
    rows_of_files,
)
from replicator.lifecycle.purge.transactional_files import (
    COMPACTED,
    COMPACTS,
    compacting,
    is_compacted_since,
    only,
    table_in_spark,
    with_write_ids,
)
from replicator.lifecycle.removal.job import Remover
from replicator.lifecycle.removal.removal import LegalHold, forbidden, read_holds
from replicator.metastore.client import Metastore

BATCH = 100
"""The number of partitions that are written, compared and swapped together."""


@dataclass(frozen=True)
class TableSearch:
    """One search of a table: all its partitions as read before it, and what was listed at each location."""

    number: int
    onboarded: Onboarded
    parts: dict[str, Part]
    looked: dict[str, Looked]
    found: Search

    def look_again(self, part: Part) -> Look:
        """Lists a location again: of a transactional table, the directories that were searched."""
        return only(look_at(part.location), self.looked[part.location].directories)


@dataclass
class TableWork:
    """Purging of the tables of a run. `which`: the number of the current table and the total, as text."""

    metastore: Metastore
    remover: Remover
    directory: RunDirectory
    run: PurgeRun
    ids: Ids
    options: PurgeOptions
    progress: Progress = field(default_factory=Silent)
    which: str = ""

    def __post_init__(self) -> None:
        self._last = 0

    # ---- one table ------------------------------------------------------------------------------------------------

    def plan_table(self, onboarded: Onboarded) -> TableDone:
        """Reports what a run would do. Writes nothing."""
        done = TableDone(onboarded.name)
        self._tried(onboarded, lambda attempt: self._plan(attempt, done), done)
        return done

    def purge_table(self, onboarded: Onboarded) -> TableDone:
        done, ended, before = TableDone(onboarded.name), set[str](), self.directory.units().values()
        done.add(each for each in before if each.table == done.table and each.state == "DONE" and each.backup)
        self._tried(onboarded, lambda attempt: self._attempt(attempt, ended, done), done)
        if done.swapped:
            self.run = settle_counts(self.metastore, self.directory, self.run, done.table)
        self.run = msgspec.structs.replace(self.run, tables=(*self.run.tables, done.table))
        self.directory.write_run(self.run)
        (Place(self.directory.place) / "found").remove_own_tree()
        return done

    def _tried(self, onboarded: Onboarded, act: Callable[[TableSearch], list[Unit]], done: TableDone) -> None:
        """Searches and acts; repeats both while there are units to retry."""
        for number in range(1, self.options.attempts + 1):
            last = number == self.options.attempts
            try:
                again = self._act(onboarded, act, number, done)
            except ObjectNotFound as error:
                done.error = f"dropped concurrently: {error.message}"
                break
            except Unplaced as error:
                if not last:
                    continue  # a partition was added concurrently
                done.error = str(error)
                break
            except (LossyIds, Unsupported) as error:
                done.error = str(error)
                break
            except Error:
                raise
            except Exception as error:
                if not is_of_spark(error):
                    raise
                done.error = spark_failed(error).message
                break
            if not again:
                break
            if last:
                exhausted = [unit.at("EXHAUSTED", self.remover.clock) for unit in again]
                self.directory.write_units(exhausted)
                done.add(exhausted)

    def _act(
        self, onboarded: Onboarded, act: Callable[[TableSearch], list[Unit]], number: int, done: TableDone
    ) -> list[Unit]:
        table = self.metastore.table(onboarded.table.db, onboarded.table.name)
        parts = list(parts_of(self.metastore, table))
        refuse_on_nodes(onboarded, parts)
        onboarded = with_write_ids(self.metastore, onboarded)
        try:
            return act(self._searched(onboarded, parts, number, done))
        except Exception as error:
            if not is_unread(error):
                raise
        return act(self._searched(onboarded, parts, number, done, pushdown=False))

    def _searched(
        self, onboarded: Onboarded, parts: list[Part], number: int, done: TableDone, *, pushdown: bool = True
    ) -> TableSearch:
        """Searches a table. parts: all its partitions."""
        done.partitions = max(done.partitions, len(parts))
        names = NamedIds(self.ids, onboarded)
        with self.task("list", onboarded):
            looked = look_at_all(self.remover.engine, parts, onboarded, names)
        late = [gap for gap in done.gaps if gap.reason == COMPACTED]
        found, gaps = searched(self.ids, onboarded, parts, looked, pushdown=pushdown)
        done.gaps = [*late, *gaps, *names.gaps(parts)]
        return TableSearch(number, onboarded, {part.name: part for part in parts}, looked, found)

    def _attempt(self, attempt: TableSearch, ended: set[str], done: TableDone) -> list[Unit]:
        """Returns the units to retry. ended: names that earlier attempts have finalised; adds this attempt's."""
        place = self.directory.found(attempt.onboarded.name, attempt.number)
        with self.task("search", attempt.onboarded):
            searching.write_found(attempt.found, place)
        parts, stamp, counts = list(attempt.parts.values()), self._stamp(), searching.read_counts(place)
        if counts:  # before a swap: a run that continues this one does not find these ids again
            write_matched(self.ids, attempt.onboarded, place, join(self.directory.matched, stamp))
        matched = by_part(parts, counts, escaped=attempt.found.escaped)
        dirty = [part for part in parts if part.name in matched and part.name not in ended]
        units = [
            Unit(
                table=attempt.onboarded.name,
                partition=part.name,
                state="PENDING",
                time=self.remover.clock(),
                attempt=attempt.number,
                old=part.location,
                new=new_files_location(part.location, stamp),
                aside=new_location(part.location, stamp),
            )
            for part in dirty
        ]
        self.directory.write_units(units)
        lost = lost_drops(self.directory, attempt.onboarded, attempt.parts)
        again = self._dropped(attempt.onboarded, lost, done, []) if lost else []
        files = sum(len(matched[part.name]) for part in dirty)
        with self.task("purge", attempt.onboarded, total=len(units), files=files) as advance:
            for batch in batched(units, BATCH):
                again += self._batch(attempt, batch, matched, place, done, advance)
                advance(len(batch))
        ended |= {part.name for part in dirty} - {unit.partition for unit in again}
        return again

    def task(
        self, what: str, onboarded: Onboarded, *, total: int | None = None, files: int | None = None
    ) -> AbstractContextManager[Advance]:
        return self.progress.task(f"{what} {onboarded.name}{self.which}", total, files=files)

    def _stamp(self) -> str:
        """Returns a stamp for the new directories of one attempt, unique among all attempts of all runs."""
        self._last = max(self._last + 1, int(self.remover.clock() * 1000))
        return f"{self._last:013d}"

    def _plan(self, attempt: TableSearch, done: TableDone) -> list[Unit]:
        """Adds the plan of one table to `done`. Returns no units, because a plan is never retried."""
        found, onboarded = attempt.found, attempt.onboarded
        with self.task("search", onboarded):
            counts = searching.ask_counts(found)
        matched = by_part(list(attempt.parts.values()), counts, escaped=found.escaped)
        compacts = compacting(self.metastore, onboarded)
        for name, files in matched.items():
            part = attempt.parts[name]
            rows = sum(rows for _, rows in files.values())
            done.rows_erased += rows
            done.swapped += 1
            if onboarded.is_key:
                done.dropped += 1
                planned = Drop.of(self._planned(onboarded, part), part, files).unit
                reason = "its value is an id: it is to be dropped"
                done.units.append(msgspec.to_builtins(msgspec.structs.replace(planned, reason=reason)))
                continue
            reason = f"{rows:,} rows in {len(files):,} files have an id"
            try:
                if name in compacts:
                    raise Unsupported(COMPACTS)
                format_of_files(onboarded, part.storage, part.location, files)
            except Unsupported as error:
                reason, done.failed = f"{reason}, and {error}", done.failed + 1
            done.files_rewritten += len(files)
            places = (place_of(uri, escaped=found.escaped) for uri, _ in files.values())
            done.bytes_rewritten += sum(located(place).size() for place in places)
            unit = self._planned(onboarded, part)
            unit = msgspec.structs.replace(unit, reason=reason, matched=rows, rewritten=len(files))
            done.units.append(msgspec.to_builtins(unit))
        return []

    def _planned(self, onboarded: Onboarded, part: Part) -> Unit:
        return Unit(
            table=onboarded.name,
            partition=part.name,
            state="PENDING",
            time=self.remover.clock(),
            old=part.location,
            new=part.location,
            aside=new_location(part.location, self.run.stamp),
        )

    def never_found(self, tables: Sequence[Onboarded]) -> tuple[int, int | None, str]:
        """Returns the number of ids that no table of the run had, how many of these a table has in another spelling,
        and why the latter is None. Reads the tables only if there are such ids."""
        matched, near = Place(self.directory.matched), Place(self.directory.place) / "found"
        try:
            with self.progress.task("count ids that no table has"):
                missing = view_missing(self.ids, [str(matched / name) for name in matched.list()]).cache()
                count = int(missing.count())
            known = [_searched_column(each) for each in tables if count and is_matched(each.type)]
            if not known:
                return count, 0, ""
            try:
                with self.progress.task("near misses", len(known)) as advance:
                    return count, near_misses(self.ids, known, str(near / "near"), advance), ""
            except Exception as error:
                if not is_of_spark(error):
                    raise
                return count, None, f"near misses were not counted: {spark_failed(error).message}"
        finally:
            matched.remove_own_tree()
            near.remove_own_tree()

    # ---- one batch of its partitions ------------------------------------------------------------------------------

    def _batch(
        self, attempt: TableSearch, units: list[Unit], matched: Matched, found: str, done: TableDone, advance: Advance
    ) -> list[Unit]:
        """Writes, compares, swaps, records. Returns the units to retry. found: the location of the matches."""
        onboarded = attempt.onboarded
        again: list[Unit] = []
        ended: list[Unit] = []
        stagings: dict[str, Staging] = {}
        dropped: dict[str, Drop] = {}
        holds = read_holds(self.remover.root, self.remover.clock())
        compacts = compacting(self.metastore, onboarded)
        self.remover.live.refresh()
        for unit in units:
            part = attempt.parts[unit.partition]
            if why := self.forbidden_now(unit, part, holds):
                ended.append(unit.at("SKIPPED", self.remover.clock, reason=why))
                continue
            look = attempt.look_again(part)
            if look.digest != attempt.looked[part.location].digest:
                again.append(unit.at("FAILED", self.remover.clock, reason="its files changed during the search"))
                continue
            if unit.partition in compacts:
                again.append(unit.at("FAILED", self.remover.clock, reason=COMPACTS))
                continue
            if why := look.why_skipped:
                ended.append(unit.at("SKIPPED", self.remover.clock, reason=why))
                continue
            files = matched[unit.partition]
            if onboarded.is_key:
                dropped[part.name] = Drop.of(unit, part, files)
                continue
            try:
                format_ = format_of_files(onboarded, part.storage, part.location, files)
            except Unsupported as error:
                ended.append(unit.at("SKIPPED", self.remover.clock, reason=str(error)))
                continue
            stagings[unit.partition] = Staging(
                part,
                look,
                unit.new,
                format_,
                {name: rows for name, (_, rows) in files.items()},
                {name: uri for name, (uri, _) in files.items()},
            )
        if onboarded.is_key:
            return self._dropped(onboarded, dropped, done, [*ended, *again])
        by_name = {unit.partition: unit for unit in units}
        staged = {
            each.staging.part.name: each for each in self._stage(onboarded, list(stagings.values()), found, advance)
        }
        for name, each in staged.items():
            by_name[name] = figured(by_name[name], each)
            if each.error:
                if each.final:
                    ended.append(by_name[name].at("SKIPPED", self.remover.clock, reason=each.error))
                else:
                    again.append(by_name[name].at("FAILED", self.remover.clock, reason=each.error))
        going = {name: each for name, each in staged.items() if not each.error}
        self.directory.write_units(by_name[name].at("STAGED", self.remover.clock) for name in going)
        self.directory.write_files(
            [
                row
                for name, each in going.items()
                for row in rows_of_files(by_name[name], each.staging.look, each.staging.matched, each.checksums)
            ]
        )
        changed: dict[str, str] = {}
        for name, each in list(going.items()):
            if attempt.look_again(each.staging.part).digest != each.staging.look.digest:
                changed[name] = "its files changed during the rewrite"
                del going[name]
        for name, proved in prove(self.ids.session, onboarded, [each.staging for each in going.values()]).items():
            done.files_proved += proved.files
            if proved.error:
                ended.append(by_name[name].at("SKIPPED", self.remover.clock, reason=proved.error))
                del going[name]
        for name in compacting(self.metastore, onboarded) & going.keys():
            changed[name] = COMPACTS
            del going[name]
        for name in going:
            by_name[name] = by_name[name].at("VERIFIED", self.remover.clock, reason=lacking_of(staged[name]))
        self.directory.write_units(by_name[name] for name in going)
        swaps = replace_parts(
            self.metastore,
            onboarded.table,
            [each.staging.part for each in going.values()],
            [swap_of(by_name[name], each.staging) for name, each in going.items()],
            self.remover.engine.for_work(sum(len(each.matched) for each in stagings.values())),
            self.remover.clock,
            self.remover.check,
        )
        changed |= swaps.changed
        self.directory.write_units(swaps.units)
        drop_column_statistics(self.metastore, onboarded.table, [unit.partition for unit in swaps.units])
        late = compacting(self.metastore, onboarded) & going.keys()
        for name, each in going.items() if onboarded.state else ():
            if is_compacted_since(each.staging.look, look_at(each.staging.part.location)):
                late |= {name}
        done.gaps += [PurgeGap(f"{onboarded.name}/{name}".rstrip("/"), COMPACTED) for name in sorted(late)]
        for unit in swaps.units:
            whole = unit.matched == by_name[unit.partition].matched
            ended.append(unit.at("DONE" if whole else "EXHAUSTED", self.remover.clock))
            self.record(unit)
        for name, why in changed.items():
            again.append(by_name[name].at("FAILED", self.remover.clock, reason=why))
        self.directory.write_units([*ended, *again])
        done.add(ended)
        return again

    def _dropped(self, onboarded: Onboarded, parts: dict[str, Drop], done: TableDone, others: list[Unit]) -> list[Unit]:
        """Drops partitions whose value is an id, and records them and `others`. Returns the units to retry."""
        units = drop_parts(self.metastore, self.remover, self.directory, onboarded.table, parts)
        drop_column_statistics(self.metastore, onboarded.table, ())
        for unit in units:
            if unit.state == "DONE":
                self.record(unit)
        units += others
        self.directory.write_units(units)
        done.add(unit for unit in units if unit.state != "FAILED")
        return [unit for unit in units if unit.state == "FAILED"]

    def forbidden_now(self, unit: Unit, part: Part, holds: Sequence[LegalHold], same: Collection[str] = ()) -> str:
        """Returns why a table or partition may not be purged now, "" if it may. same: other names of the table."""
        removal = Removal(
            path=part.location,
            what="partition" if part.name else "table",
            object=unit.table,
            partition=unit.partition,
            reason="purge",
            same=tuple(same),
        )
        if why := forbidden(removal, self.remover.limits, holds):
            return why
        found = self.remover.live.blocking(part.location, object=unit.table, partition=unit.partition, same=same)
        return f"shares its location with {found}" if found else ""

    def _stage(self, onboarded: Onboarded, stagings: list[Staging], found: str, advance: Advance) -> Iterator[Staged]:
        """Rewrites file by file where possible, else by Spark, one partition at a time."""
        left = [each for each in stagings if each.format.kind == "spark"]
        others = [each for each in stagings if each.format.kind != "spark"]
        for staged in stage(others, found, self.remover.engine, advance):
            if staged.by_spark:
                left.append(staged.staging.for_spark)
            else:
                yield staged
        for each in left:
            staged = stage_by_spark(self.ids.session, onboarded, each, found, self.remover.engine)
            advance(0, files=len(each.matched), size=staged.bytes)
            yield staged

    def record(self, unit: Unit) -> None:
        self.remover.audit.changed(
            unit.table,
            f"{unit.matched:,} of {unit.rows:,} rows had an id of run {self.run.id}",
            what="purge",
            partition=unit.partition,
            path=unit.new,
            detail=msgspec.to_builtins(unit),
        )


def _searched_column(onboarded: Onboarded) -> Searched:
    return Searched(table_in_spark(onboarded.table), searching.key_column(onboarded), onboarded.type)
