"""Purging one table: search it, write what has ids again, compare, swap, record. Acts.

Partitions go in batches through the states of `state`. One that changed meanwhile is left as it was and tried again, a
few times, with a search of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.store.checksum import checksum_stream
from cmroot.store.place import join, store_for
from replicator.core.engine import AutoEngine
from replicator.errors import Error, ObjectNotFound
from replicator.metastore.client import Metastore
from replicator.purge.counting import settle_counts
from replicator.purge.onboarding import Gap, Onboarded
from replicator.purge.options import PurgeOptions
from replicator.purge.parts import Part, look_at, new_location, parts_of
from replicator.purge.rewrite.formats import FileFormat, Unsupported, format_of
from replicator.purge.search import matching
from replicator.purge.search.by_spark import stage_by_spark
from replicator.purge.search.ids import Ids
from replicator.purge.search.matching import LossyIds, Search
from replicator.purge.search.placing import Matched, Unplaced, by_part, place_of
from replicator.purge.search.proving import prove
from replicator.purge.search.searching import look_at_all, searched
from replicator.purge.staging import Staged, Staging, stage
from replicator.purge.state import Run, RunDirectory, State, Unit
from replicator.purge.swapping import drop_column_statistics, flip, purged
from replicator.removal.audit import AuditLog
from replicator.removal.legal import LegalHold, read_holds
from replicator.removal.live import LiveLocations
from replicator.removal.removal import Removal, forbidden

BATCH = 100
"""Partitions that are written, compared and swapped together."""


@dataclass
class TableDone:
    """What became of one table. partitions: all it has; swapped, failed: of those with matching rows. error: why the
    table as a whole was not searched; gaps: what was not searched of the others."""

    table: str
    partitions: int = 0
    swapped: int = 0
    failed: int = 0
    rows_erased: int = 0
    rows_before: int = 0
    rows_after: int = 0
    files_rewritten: int = 0
    files_carried: int = 0
    files_proved: int = 0
    bytes_rewritten: int = 0
    error: str = ""
    units: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class Work:
    """A run at work; `live` is filled when the first partition is to be swapped."""

    metastore: Metastore
    root: str
    directory: RunDirectory
    run: Run
    ids: Ids
    options: PurgeOptions
    engines: AutoEngine
    audit: AuditLog
    clock: Callable[[], float]
    dry_run: bool

    def __post_init__(self) -> None:
        self.live = Lazily(self.metastore)
        self._last = 0

    # ---- one table ------------------------------------------------------------------------------------------------

    def purge_table(self, onboarded: Onboarded) -> TableDone:
        done = TableDone(onboarded.name)
        ended: set[str] = set()
        for attempt in range(1, self.options.attempts + 1):
            last = attempt == self.options.attempts
            try:
                table = self.metastore.table(onboarded.table.db, onboarded.table.name)
                again = self._attempt(onboarded, list(parts_of(self.metastore, table)), ended, attempt, done)
            except ObjectNotFound as error:
                done.error = f"dropped meanwhile: {error.message}"
                break
            except Unplaced as error:
                if not last:
                    continue  # a partition came meanwhile
                done.error = str(error)
                break
            except (LossyIds, Unsupported) as error:
                done.error = str(error)
                break
            except Error:
                raise
            except Exception as error:
                if not matching.is_sparks(error):
                    raise
                done.error = matching.failed(error).message
                break
            if not again:
                break
            if last:
                exhausted = [at(unit, "EXHAUSTED", self.clock) for unit in again]
                self.directory.write_units(exhausted)
                self._tell(done, exhausted)
        if not self.dry_run:
            if done.swapped:
                self.run = settle_counts(self.metastore, self.directory, self.run, done.table)
            self.run = msgspec.structs.replace(self.run, tables=(*self.run.tables, done.table))
            self.directory.write_run(self.run)
            store_for(self.root).remove_tree(join(self.directory.place, "found"))
        return done

    def _attempt(
        self, onboarded: Onboarded, parts: list[Part], ended: set[str], attempt: int, done: TableDone
    ) -> list[Unit]:
        """Units that must be tried again. parts: all of the table; ended: those of earlier attempts that need no other,
        to which this adds."""
        done.partitions = max(done.partitions, len(parts))
        looked = look_at_all(self.engines, parts)
        found, done.gaps = searched(self.ids, onboarded, parts, looked)
        if self.dry_run:
            self._plan(onboarded, parts, found, done)
            return []
        place = self.directory.found(onboarded.name, attempt)
        matching.write_found(found, place)
        matched = by_part(parts, matching.read_counts(place), escaped=found.escaped)
        dirty = [part for part in parts if part.name in matched and part.name not in ended]
        again: list[Unit] = []
        stamp = self._stamp()
        units = [
            Unit(
                table=onboarded.name,
                partition=part.name,
                state="PENDING",
                time=self.clock(),
                attempt=attempt,
                old=part.location,
                new=new_location(part.location, stamp),
            )
            for part in dirty
        ]
        self.directory.write_units(units)
        by_name = {part.name: part for part in dirty}
        digests = {location: each.digest for location, each in looked.items()}
        for start in range(0, len(units), BATCH):
            batch = units[start : start + BATCH]
            again += self._batch(onboarded, batch, by_name, matched, digests, place, done)
        ended |= {part.name for part in dirty} - {unit.partition for unit in again}
        return again

    def _stamp(self) -> str:
        """For new directories of one attempt: no other, of this run or any, has the same."""
        self._last = max(self._last + 1, int(self.clock() * 1000))
        return f"{self._last:013d}"

    def _plan(self, onboarded: Onboarded, parts: list[Part], found: Search, done: TableDone) -> None:
        """What a dry run tells."""
        by_name = {part.name: part for part in parts}
        for name, files in by_part(parts, matching.ask_counts(found), escaped=found.escaped).items():
            part = by_name[name]
            rows = sum(rows for _, rows in files.values())
            reason = f"{rows:,} rows in {len(files):,} files have an id"
            try:
                _format_of(onboarded, part, files)
            except Unsupported as error:
                reason, done.failed = f"{reason}, and {error}", done.failed + 1
            done.rows_erased += rows
            done.swapped += 1
            done.files_rewritten += len(files)
            places = (place_of(uri, escaped=found.escaped) for uri, _ in files.values())
            done.bytes_rewritten += sum(store_for(place).size(place) for place in places)
            unit = Unit(
                table=onboarded.name,
                partition=name,
                state="PENDING",
                time=self.clock(),
                reason=reason,
                old=part.location,
                new=new_location(part.location, self.run.stamp),
                matched=rows,
                rewritten=len(files),
            )
            done.units.append(msgspec.to_builtins(unit))

    # ---- one batch of its partitions ------------------------------------------------------------------------------

    def _batch(
        self,
        onboarded: Onboarded,
        units: list[Unit],
        parts: dict[str, Part],
        matched: Matched,
        digests: dict[str, str],
        found: str,
        done: TableDone,
    ) -> list[Unit]:
        """Writes, compares, swaps and records. Units that must be tried again."""
        again: list[Unit] = []
        ended: list[Unit] = []
        stagings: dict[str, Staging] = {}
        holds, live = read_holds(self.root, self.clock()), self.live.locations
        for unit in units:
            part = parts[unit.partition]
            if why := self._forbidden(unit, part, holds, live):
                ended.append(at(unit, "SKIPPED", self.clock, reason=why))
                continue
            look = look_at(part.location)
            if look.digest != digests[part.location]:
                again.append(at(unit, "FAILED", self.clock, reason="its files changed during the search"))
                continue
            if look.links:
                ended.append(at(unit, "SKIPPED", self.clock, reason=f"a symbolic link: {look.links[0]}"))
                continue
            if look.unnamed:
                why = f"the name of a file is not UTF-8: {look.unnamed[0]}"
                ended.append(at(unit, "SKIPPED", self.clock, reason=why))
                continue
            files = matched[unit.partition]
            try:
                format_ = _format_of(onboarded, part, files)
            except Unsupported as error:
                ended.append(at(unit, "SKIPPED", self.clock, reason=str(error)))
                continue
            stagings[unit.partition] = Staging(
                part,
                look,
                unit.new,
                format_,
                {name: rows for name, (_, rows) in files.items()},
                {name: uri for name, (uri, _) in files.items()},
            )
        by_name = {unit.partition: unit for unit in units}
        staged = {each.staging.part.name: each for each in self._stage(onboarded, list(stagings.values()), found)}
        for name, each in staged.items():
            by_name[name] = _figured(by_name[name], each)
            if each.error:
                if each.final:
                    ended.append(at(by_name[name], "SKIPPED", self.clock, reason=each.error))
                else:
                    again.append(at(by_name[name], "FAILED", self.clock, reason=each.error))
        going = {name: each for name, each in staged.items() if not each.error}
        self.directory.write_units(at(by_name[name], "STAGED", self.clock) for name in going)
        self._write_files(onboarded, going.values())
        changed: dict[str, str] = {}
        for name, each in list(going.items()):
            if look_at(each.staging.part.location).digest != digests[each.staging.part.location]:
                changed[name] = "its files changed while they were written anew"
                del going[name]
        for name, proved in prove(self.ids.session, onboarded, [each.staging for each in going.values()]).items():
            done.files_proved += proved.files
            if proved.error:
                ended.append(at(by_name[name], "SKIPPED", self.clock, reason=proved.error))
                del going[name]
        self.directory.write_units(at(by_name[name], "VERIFIED", self.clock) for name in going)
        wanted = {
            name: (each.staging.part, purged(each.staging.part, each.staging.new, each.figures, self.clock()))
            for name, each in going.items()
        }
        flipped = flip(self.metastore, onboarded.table, wanted)
        changed |= flipped.changed
        swapped = [
            at(by_name[name], "SWAPPED", self.clock, backup="kept", event=flipped.event) for name in flipped.swapped
        ]
        self.directory.write_units(swapped)
        drop_column_statistics(self.metastore, onboarded.table, flipped.swapped)
        for unit in swapped:
            ended.append(at(unit, "DONE", self.clock))
            self._record(unit)
        for name, why in changed.items():
            again.append(at(by_name[name], "FAILED", self.clock, reason=why))
        self.directory.write_units([*ended, *again])
        self._tell(done, ended)
        return again

    def _forbidden(self, unit: Unit, part: Part, holds: Sequence[LegalHold], live: LiveLocations) -> str:
        removal = Removal(
            path=part.location,
            what="partition" if part.name else "table",
            object=unit.table,
            partition=unit.partition,
            reason="purge",
        )
        if why := forbidden(removal, self.options.limits, holds):
            return why
        found = live.blocking(part.location, object=unit.table, partition=unit.partition)
        return f"shares its location with {found}" if found else ""

    def _stage(self, onboarded: Onboarded, stagings: list[Staging], found: str) -> Iterator[Staged]:
        """File by file where that can be; by Spark, a partition at a time, where not."""
        left = [each for each in stagings if each.format.kind == "spark"]
        for staged in stage([each for each in stagings if each.format.kind != "spark"], found, self.engines):
            if staged.by_spark:
                left.append(staged.staging.for_spark)
            else:
                yield staged
        for each in left:
            yield stage_by_spark(self.ids.session, onboarded, each, found, self.engines)

    def _write_files(self, onboarded: Onboarded, staged: Iterable[Staged]) -> None:
        rows = [
            {
                "table": onboarded.name,
                "partition": each.staging.part.name,
                "location": each.staging.part.location,
                "name": state.path_relative,
                "size": state.size,
                "mtime_ns": state.mtime_ns,
                "identity": state.identity,
                "matched": each.staging.matched.get(state.path_relative, 0),
                "checksum": each.checksums.get(state.path_relative),
            }
            for each in staged
            for state in each.staging.look.files
        ]
        rows += [
            {
                "table": onboarded.name,
                "partition": each.staging.part.name,
                "location": each.staging.part.location,
                "name": name,
                "matched": 0,
                **_content(join(each.staging.part.location, name)),
            }
            for each in staged
            for name in each.staging.look.passed_over
        ]
        if rows:
            self.directory.write_files(rows)

    def _record(self, unit: Unit) -> None:
        self.audit.changed(
            unit.table,
            f"{unit.matched:,} of {unit.rows:,} rows had an id of run {self.run.id}",
            what="purge",
            partition=unit.partition,
            path=unit.new,
            detail=msgspec.to_builtins(unit),
        )

    def _tell(self, done: TableDone, units: Iterable[Unit]) -> None:
        for unit in units:
            done.units.append(msgspec.to_builtins(unit))
            if unit.state != "DONE":
                done.failed += 1
                continue
            done.swapped += 1
            done.rows_erased += unit.matched
            done.rows_before += unit.rows
            done.rows_after += unit.rows_after
            done.files_rewritten += unit.rewritten
            done.files_carried += unit.files - unit.rewritten
            done.bytes_rewritten += unit.bytes


class Lazily:
    """The metastore's locations, walked when they are first asked for."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._stack = ExitStack()
        self._live: LiveLocations | None = None

    def __enter__(self) -> Lazily:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def locations(self) -> LiveLocations:
        if self._live is None:
            self._live = self._stack.enter_context(LiveLocations(self._metastore))
        else:
            self._live.refresh()
        return self._live


def _format_of(onboarded: Onboarded, part: Part, files: Collection[str]) -> FileFormat:
    """files: names below the location. Raises Unsupported."""
    if "" in files:
        raise Unsupported(f"{part.location} is a file, and a purge swaps directories")
    return format_of(onboarded.table, part.storage, onboarded.field, onboarded.type)


def _figured(unit: Unit, staged: Staged) -> Unit:
    return msgspec.structs.replace(
        unit,
        files=staged.files,
        files_before=staged.files_before,
        rewritten=staged.rewritten,
        rows=staged.rows,
        matched=staged.erased,
        rows_after=staged.rows - staged.erased,
        bytes=staged.bytes,
        bytes_after=staged.bytes_after,
    )


def at(unit: Unit, state: State, clock: Callable[[], float], **changes: Any) -> Unit:
    return msgspec.structs.replace(unit, state=state, time=clock(), **changes)


def _content(place: str) -> dict[str, Any]:
    """Of a file that is not taken along, as nobody reads it: a certificate has to find it."""
    with store_for(place).open_read(place) as file:
        checksum, size = checksum_stream(file)
    return {"checksum": checksum, "size": size}
