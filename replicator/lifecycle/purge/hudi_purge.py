"""Purging one Hudi table: search it, delete the rows, merge log files, remove the files that only older instants show,
and the indices with bounds and keys. Has side effects, all by Hudi itself in Spark.

    search      base and log files of all slices; bounds and keys in indices; the timeline
    delete      `DELETE FROM`, if readers see a row with an id
    compact     if the table is merged on read, and a file still has one
    record      checksums of all files with ids, and of those of indices
    clean       all files but the newest of each file group, if one of them has an id
    drop        the indices in the table of metadata, which later writes build again

Nothing is done while a write is in flight: a write that began earlier, and ends later, is not seen by readers if Hudi
does not compare the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

import msgspec

from cmroot.pins import iso
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.delta_search import location_of
from replicator.lifecycle.purge.hudi_search import HudiFinder, HudiLog, pending_at
from replicator.lifecycle.purge.ids import KEYS, keys_of
from replicator.lifecycle.purge.lake_purge import Lake, Seen, counted
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.state import Unit
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.hudi_actions import HudiActions, other_names, overlapping, why_no_hudi

BUILT = frozenset({"column_stats", "partition_stats", "bloom_filters", "record_index"})
"""The indices that writers build again by their settings; others are made by statements."""


class HudiLake(Lake):
    """The steps of a purge on one table."""

    finder: HudiFinder

    def __init__(self, work: TableWork, onboarded: Onboarded) -> None:
        super().__init__(work, onboarded)
        self.finder = HudiFinder(onboarded, work.ids, work.remover.engine)
        self._matched = 0

    def why_not(self) -> str:
        return why_no_hudi(self._session)

    def seen(self) -> Seen:
        return self._seen(self._look())

    def _unit(self, seen: Seen) -> Unit:
        """Returns the unit of a purge, with the rows as readers see them: a log file has rows of its base file, too."""
        return msgspec.structs.replace(super()._unit(seen), matched=self._matched)

    def purge(self, unit: Unit) -> tuple[Unit, str]:
        log = self._look()
        if why := self._shared(log.held) or self._in_flight(log) or _made(log):
            return unit, why
        self._note_matched(log.held)
        self._actions.keep_version(log.properties["hoodie.table.version"])
        if log.pending:
            self._roll_back()
            log = self._look()
        if self._shown():
            if why := self._in_flight(log):
                return unit, why
            self._delete(log)
            log = self._look()
        if log.held and log.is_merged:
            self._compact()
            log = self._look()
        self._work.remover.check()
        drops = bool(log.held or log.indexes or unit.backup)
        unit = self._record(unit, log)
        if log.held:
            if why := self._in_flight(log):
                return unit, why
            self._clean()
            log = self._look()
        if drops and log.all_indexes:
            self._drop(log)
            log = self._look()
        seen = self._seen(log)
        self.gaps = seen.gaps
        unit = counted(unit, seen)  # a compaction merges files
        return msgspec.structs.replace(unit, rewritten=min(unit.rewritten, unit.files)), self._left(log)

    def _look(self) -> HudiLog:
        with self._work.task("search", self._onboarded):
            return self.finder.look(self._work.metastore)

    def _seen(self, log: HudiLog) -> Seen:
        older = len(log.held.keys() - log.heads.keys())
        text = f"{older:,} older files have such rows, and {len(log.indexes):,} files of indices have values of them"
        rows, self._matched = self._actions.rows(*self._keys_and_column, KEYS)
        is_dirty = bool(log.held or log.indexes)
        return Seen(log.location, log.held, log.heads, rows, text, is_dirty, [*self.finder.gaps, *self._named(log)])

    def _named(self, log: HudiLog) -> Iterator[PurgeGap]:
        """Yields a gap for each thing that a purge leaves."""
        name = self._onboarded.name
        for path, held in log.unnamed.items():
            why = f"{held.rows:,} rows with ids in {path}, of a write that is not completed: roll it back with Hudi"
            yield PurgeGap(name, why)
        for path in log.texts:
            yield PurgeGap(name, f"{path} of its timeline has an id, and Hudi changes no file of its timeline")

    # ---- steps -----------------------------------------------------------------------------------------------------

    @cached_property
    def _actions(self) -> HudiActions:
        table = self._onboarded.table
        return HudiActions(self._session, table, location_of(table))

    @property
    def _keys_and_column(self) -> tuple[object, str]:
        keys, _, _ = keys_of(self._work.ids, self._onboarded)
        return keys, searching.key_column(self._onboarded)

    def _in_flight(self, log: HudiLog) -> str:
        """Returns which write may not have ended, as the timeline is now; "" if none."""
        grace = self._work.options.grace
        newest = self._work.remover.clock() - grace.total_seconds()
        young = {time: changed for time, changed in pending_at(log).items() if changed > newest}
        if not young:
            return ""
        time, until = min(young), iso(max(young.values()) + grace.total_seconds())
        return f"the instant {time} is in flight: purge again when it is completed; after {until} it counts as failed"

    def _shown(self) -> bool:
        return self._actions.rows(*self._keys_and_column, KEYS)[1] > 0

    def _roll_back(self) -> None:
        self._work.remover.check()
        self._actions.roll_back()

    def _delete(self, log: HudiLog) -> None:
        """Deletes the rows that readers see. A delete that fails because another write overlaps is rolled back, so that
        it is not in flight when it is repeated; no instant that was there before, and none that is completed."""
        self._work.remover.check()
        try:
            with self._work.task("purge", self._onboarded):
                self._actions.delete(*self._keys_and_column, KEYS)
        except Exception as error:
            if (own := overlapping(error)) not in log.pending and own in pending_at(log):
                self._actions.undo(own)
            raise

    def _compact(self) -> None:
        self._work.remover.check()
        with self._work.task("purge", self._onboarded):
            self._actions.compact()

    def _record(self, unit: Unit, log: HudiLog) -> Unit:
        indexes = [path for several in log.all_indexes.values() for path in several]
        return self._write_record(unit, log.held, log.indexes, indexes)

    def _clean(self) -> None:
        self._work.remover.check()
        self._actions.clean()

    def _drop(self, log: HudiLog) -> None:
        self._work.remover.check()
        self._actions.drop_indexes(log.all_indexes)

    def _left(self, log: HudiLog) -> str:
        if log.held:
            why = f"{len(log.held):,} files with rows of ids are still there, such as {min(log.held)}"
            points = ", ".join(sorted(log.savepoints))
            return f"{why}: delete the savepoints {points} (`delete_savepoint`), and purge again" if points else why
        return f"the index {min(log.indexes.values())} still has values of ids" if log.indexes else ""

    def same(self) -> Collection[str]:
        table = self._onboarded.table
        return other_names(self._work.metastore, table, location_of(table))


def _made(log: HudiLog) -> str:
    made = sorted(log.all_indexes.keys() - BUILT)
    if not made or not (log.held or log.indexes):
        return ""
    return f"the index {made[0]} has values of rows: drop it (`DROP INDEX`), purge again, and create it again"


# ---- certificates ----------------------------------------------------------------------------------------------------


def left(log: HudiLog) -> Iterator[str]:
    """Yields where ids are left in a table, as text: files, indices and timeline."""
    if held := {**log.held, **log.unnamed}:
        yield f"{sum(each.rows for each in held.values()):,} rows have an id, in {len(held):,} files"
    if log.indexes:
        yield f"{len(log.indexes):,} files of indices have bounds or keys of such rows"
    if log.texts:
        yield f"{len(log.texts):,} files of the timeline have an id"
