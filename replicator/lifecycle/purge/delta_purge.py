"""Purging one Delta table: search it, delete the rows, rewrite what still has them, remove the files that only older
versions name, and the log's statistics about them. Has side effects, all by Delta itself in Spark.

    search      all files that any version names; bounds of columns, and conditions of commands, in the log
    delete      `MERGE`, if the present version shows a row with an id
    rewrite     `REORG`, if its files still have one, below a deletion vector or in a dropped column
    record      checksums of the older files with ids, and of files of the log about them
    vacuum      these older files, by name; no others, so that files of writers that have not committed stay
    forget      a checkpoint, and Delta's cleanup of older files of the log

The cleanup removes nothing that is younger than `grace`: a writer that has begun before would take the version of a
removed commit for its own, and no reader would see that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from cmroot.pins import iso
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.delta_search import DeltaFinder, Log, location_of, shown_by
from replicator.lifecycle.purge.ids import keys_of
from replicator.lifecycle.purge.lake_purge import Lake, Seen, counted
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.state import Unit
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.delta_actions import DeltaActions, why_no_delta


class DeltaLake(Lake):
    """The steps of a purge on one table."""

    finder: DeltaFinder

    def __init__(self, work: TableWork, onboarded: Onboarded) -> None:
        super().__init__(work, onboarded)
        self.finder = DeltaFinder(onboarded, work.ids, work.remover.engine)
        self._has_forgotten = False

    def why_not(self) -> str:
        return why_no_delta(self._session)

    def seen(self) -> Seen:
        return self._seen(self._look())

    def purge(self, unit: Unit) -> tuple[Unit, str]:
        log = self._look()
        if why := self._shared(log.below) or self._cloned(log.below):
            return unit, why
        self._note_matched(log.held)
        if log.shown:
            self._delete()
            log = self._look()
        if log.shown:
            self._rewrite()
            log = self._look()
        self._work.remover.check()
        unit = self._record(unit, log)
        if older := log.below.keys() - log.live.keys():
            if why := self._cloned(older):
                return unit, why
            self._vacuum(log, older)
        if log.unnamed:
            self._vacuum(log, log.unnamed, aged=True)
        if older or log.unnamed:
            log = self._look()
        if self._forgets(log):
            self._forget(log)
            log = self._look()
        seen = self._seen(log)
        self.gaps = seen.gaps
        return counted(unit, seen), _left(log)

    def _look(self) -> Log:
        with self._work.task("search", self._onboarded):
            return self.finder.look(self._work.metastore)

    def _seen(self, log: Log) -> Seen:
        sizes = {path: log.files[path].size if path in log.files else 0 for path in log.live}
        rows = sum(self.finder.searched[path].records - hidden for path, hidden in log.live.items())
        files, about = len(log.held.keys() - log.live.keys()), len(log.dirty)
        older = f"{files:,} older files have such rows, and {about:,} files of the log have bounds of them"
        is_dirty = bool(log.held or log.dirty or log.unnamed)
        return Seen(log.location, log.held, sizes, rows, older, is_dirty, [*self.finder.gaps, *self._named(log)])

    def _named(self, log: Log) -> Iterator[PurgeGap]:
        """Yields a gap for each thing that the purge has left."""
        name = self._onboarded.name
        for path in sorted(log.held.keys() - log.live.keys() - log.below.keys()):
            yield PurgeGap(name, f"rows with ids in {path}, of another table, which older versions name: purge that")
        for path, held in log.unnamed.items():
            why = f"{held.rows:,} rows with ids in {path}, which the log does not name"
            yield PurgeGap(name, f"{why}: VACUUM removes it when it is older than the table's retention")
        if log.dirty:
            first, grace = min(log.dirty), self._work.options.grace
            what = f"{len(log.dirty):,} files of its log have bounds of files with ids, or ids in conditions: {first}"
            if not log.is_cleaned:
                why = "delta.enableExpiredLogCleanup is false: set it, and purge again"
            elif self._young(log):
                last = max(each.mtime_ns for each in log.dirty.values()) / 1e9 + grace.total_seconds()
                why = f"they are removed when they are older than --grace ({grace}): purge again after {iso(last)}"
            else:
                why = "Delta's cleanup of the log has left them" if self._has_forgotten else ""
            if why:
                yield PurgeGap(name, f"{what}: {why}")

    # ---- steps -----------------------------------------------------------------------------------------------------

    @cached_property
    def _actions(self) -> DeltaActions:
        return DeltaActions(self._session, location_of(self._onboarded.table))

    def _delete(self) -> None:
        self._work.remover.check()
        with self._work.task("purge", self._onboarded):
            keys, _, _ = keys_of(self._work.ids, self._onboarded)
            self._actions.delete(keys, f"{searching.key_column(self._onboarded)} = k.key")

    def _rewrite(self) -> None:
        self._work.remover.check()
        with self._work.task("purge", self._onboarded):
            self._actions.rewrite()

    def _record(self, unit: Unit, log: Log) -> Unit:
        older = {path: each for path, each in log.held.items() if path not in log.live}
        return self._write_record(unit, older, [log.path_of(name) for name in log.dirty])

    def _vacuum(self, log: Log, paths: Iterable[str], *, aged: bool = False) -> None:
        self._work.remover.check()
        states = [(path, log.files[path]) for path in sorted(paths)]
        self._actions.vacuum([(path, each.size, each.mtime_ns // 1_000_000) for path, each in states], aged=aged)

    def _young(self, log: Log) -> bool:
        """Returns True if files of the log may be of writers that have not ended."""
        newest = self._work.remover.clock() - self._work.options.grace.total_seconds()
        return any(each.mtime_ns / 1e9 > newest for each in log.dirty.values())

    def _forgets(self, log: Log) -> bool:
        return bool(log.dirty) and log.is_cleaned and not self._young(log)

    def _forget(self, log: Log) -> None:
        self._work.remover.check()
        self._has_forgotten = True
        is_last = max(each.version for each in log.dirty.values()) >= log.version
        self._actions.forget(self._work.options.grace, commit=is_last)

    def _cloned(self, paths: Collection[str]) -> str:
        """Returns which other Delta table of the metastore shows files; "" if none does."""
        name = shown_by(self._work.metastore, self._onboarded.name, paths)
        why = "shows files with rows of ids, as a shallow clone does: purge that first"
        return f"{name} {why}" if name else ""


def _left(log: Log) -> str:
    if log.shown:
        return f"{len(log.shown):,} files of the present version still have ids"
    if older := log.below.keys() - log.live.keys():
        return f"{len(older):,} older files with rows of ids are still there, such as {min(older)}"
    return ""


# ---- certificates ----------------------------------------------------------------------------------------------------


def left(log: Log) -> Iterator[str]:
    """Yields where ids are left in a table, as text: files and log."""
    if held := {**log.held, **log.unnamed}:
        yield f"{sum(each.rows for each in held.values()):,} rows have an id, in {len(held):,} files"
    if log.dirty:
        yield f"{len(log.dirty):,} files of the log have bounds of files with ids, or ids in conditions"
