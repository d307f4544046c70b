"""Purging one table of a format whose log or tree names its files: what all such formats have in common. Has side
effects, all by the format itself in Spark.

Each step is a commit of the format, and is decided from the table's present state: a killed run continues where it
was. A concurrent writer's commit makes one of the two fail, and is never lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cmroot.errors import FormatError
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState
from cmroot.store.place import is_local, join, located, normal, relative
from cmroot.store.spelling import hadoop_place
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.errors import Error, ObjectNotFound
from replicator.lifecycle.purge.ids import LossyIds, write_matched
from replicator.lifecycle.purge.lake_search import Finder, Held, Unsearchable
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.state import TableDone, Unit
from replicator.lifecycle.purge.swapping import drop_column_statistics
from replicator.lifecycle.purge.table_files import Part
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.live import shared
from replicator.lifecycle.removal.removal import read_holds


@dataclass(frozen=True)
class Seen:
    """The result of one search of a table. place: its location. held: files with ids, by path. heads: the sizes in
    bytes of the files that readers see without time travel. rows: those of the state that readers see. older: what else
    has rows or values of ids, as text. is_dirty: True if there is anything to purge. gaps: what was not searched, or
    cannot be purged."""

    place: str
    held: Mapping[str, Held]
    heads: Mapping[str, int]
    rows: int
    older: str
    is_dirty: bool
    gaps: Sequence[PurgeGap]


class Lake(ABC):
    """One table of a run. gaps: of the last attempt that ended."""

    finder: Finder

    def __init__(self, work: TableWork, onboarded: Onboarded) -> None:
        self._work, self._onboarded, self._session = work, onboarded, work.ids.session
        self._recorded = set[str]()
        self.gaps: Sequence[PurgeGap] | None = None

    # ---- the format's own ----------------------------------------------------------------------------------------

    @abstractmethod
    def why_not(self) -> str:
        """Returns why Spark cannot change tables of the format; else ""."""

    @abstractmethod
    def seen(self) -> Seen:
        """Searches the table. Raises Unsearchable, ObjectNotFound, FormatError, LossyIds."""

    @abstractmethod
    def purge(self, unit: Unit) -> tuple[Unit, str]:
        """Makes one attempt. Returns the unit with new counts, and why ids are left, "" if none are. Raises Spark's
        error for a conflict with another writer, and what `seen` does."""

    def same(self) -> Collection[str]:
        """Returns other names under which the metastore has the table itself."""
        return ()

    # ---- a run -----------------------------------------------------------------------------------------------------

    def plan(self) -> TableDone:
        """Reports what a run would do. Writes nothing."""
        done = TableDone(self._onboarded.name, partitions=1)
        seen = self._first(done)
        if seen is not None and seen.is_dirty:
            unit = self._unit(seen)
            done.units.append(msgspec.to_builtins(unit))
            done.rows_erased, done.swapped, done.files_rewritten = unit.matched, 1, unit.rewritten
            done.bytes_rewritten = unit.bytes
        return done

    def run(self) -> TableDone:
        """Purges the table, or names what keeps it from that. May run twice."""
        work, name = self._work, self._onboarded.name
        done = TableDone(name, partitions=1)
        before = work.directory.units().get((name, ""))
        if (seen := self._first(done)) is not None:
            unit = _continued(self._unit(seen), before)
            if seen.is_dirty or (before is not None and before.backup):
                done.add([self._purged(unit, done)])
        work.run = msgspec.structs.replace(work.run, tables=(*work.run.tables, done.table))
        work.directory.write_run(work.run)
        return done

    def _first(self, done: TableDone) -> Seen | None:
        """Searches the table for the first time; None if it is not purged, with the reason in `done`."""
        name = self._onboarded.name
        if lacking := self.why_not():
            done.gaps = [PurgeGap(name, lacking)]
            return None
        try:
            seen = self.seen()
        except ObjectNotFound as error:
            done.error = f"dropped concurrently: {error.message}"
        except (LossyIds, FormatError) as error:
            done.error = str(error)
        except Unsearchable as error:
            done.gaps = [PurgeGap(name, f"not searched: {error}")]
        else:
            done.gaps = list(seen.gaps)
            return seen
        return None

    def _unit(self, seen: Seen) -> Unit:
        """Returns the table's unit before a purge. rows: of the state that readers see; matched: of all present files,
        each once."""
        shown = [each for path, each in seen.held.items() if path in seen.heads]
        rows = sum(each.rows for each in shown)
        return Unit(
            table=self._onboarded.name,
            partition="",
            state="PENDING",
            time=self._work.remover.clock(),
            reason=f"{rows:,} rows in {len(shown):,} present files have an id; {seen.older}",
            old=normal(seen.place),
            files_before=len(seen.heads),
            rewritten=len(shown),
            rows=seen.rows,
            matched=rows,
            bytes=sum(seen.heads[each.path] for each in shown),
        )

    def _purged(self, unit: Unit, done: TableDone) -> Unit:
        """Purges a table with files that hold ids. Returns its unit in its last state."""
        work, reason = self._work, ""
        work.directory.write_units([unit])
        work.remover.live.refresh()
        holds = read_holds(work.remover.root, work.remover.clock())
        if why := work.forbidden_now(unit, Part("", self._onboarded.table), holds, self.same()):
            unit = unit.at("SKIPPED", work.remover.clock, reason=why)
            work.directory.write_units([unit])
            return unit
        for number in range(1, work.options.attempts + 1):
            unit = msgspec.structs.replace(unit, attempt=number)
            try:
                unit, reason = self.purge(unit)
            except (FormatError, Unsearchable) as error:
                reason = str(error)
            except Error:
                raise
            except Exception as error:
                if not is_of_spark(error):
                    raise
                reason = spark_failed(error).message
            if not reason:
                break
        done.gaps = done.gaps if self.gaps is None else list(self.gaps)
        drop_column_statistics(work.metastore, self._onboarded.table, ())
        event = work.metastore.current_event_id()
        unit = unit.at("EXHAUSTED" if reason else "DONE", work.remover.clock, reason=reason, event=event)
        work.directory.write_units([unit])
        if unit.state == "DONE":
            work.record(unit)
        return unit

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _shared(self, paths: Iterable[str]) -> str:
        return shared(self._work.remover.live, self._onboarded.name, paths, self.same())

    def _note_matched(self, held: Mapping[str, Held]) -> None:
        """Writes which ids were found, before they are deleted."""
        keys = {key for each in held.values() for key in each.keys}
        if not keys:
            return
        name, directory = self._onboarded.name, self._work.directory
        place = directory.found(name, 0)
        frame = self._session.createDataFrame([(key,) for key in keys], f"key {self.finder.type}")
        frame.write.mode("overwrite").parquet(hadoop_place(place))
        stamp = f"{name}-{int(self._work.remover.clock() * 1000)}"
        write_matched(self._work.ids, self._onboarded, place, join(directory.matched, stamp))

    def _write_record(
        self, unit: Unit, held: Mapping[str, Held], about: Iterable[str], others: Iterable[str] = ()
    ) -> Unit:
        """Records files that the format is to delete. held, about: files with ids and metadata about them, with their
        contents, too, which a certificate searches for; others: by name. Returns the unit, which has no backup, but is
        known to certificates from here on."""
        rows = list[dict[str, Any]]()
        for each in held.values():
            if each.checksum and each.path not in self._recorded:
                rows.append(_row(unit, each.path, each.size, each.checksum, each.rows))
        self._recorded |= held.keys()
        for path in about:
            if path not in self._recorded:
                checksum, size = checksum_at(normal(path))
                rows.append(_row(unit, path, size, checksum, 0))
                self._recorded.add(path)
        rows += [_row(unit, path, 0, None, 0) for path in others if path not in self._recorded]
        self._work.directory.write_files(rows)
        unit = unit.at("VERIFIED", self._work.remover.clock, backup="none")
        self._work.directory.write_units([unit])
        return unit

    def _recorded_files(self, unit: Unit) -> list[str]:
        """Returns the recorded files of the table that still exist."""
        found = list[str]()
        for table in self._work.directory.files():
            for row in table.to_pylist():
                name = row["name"]
                path = name if name.startswith("/") or not is_local(name) else join(unit.old, name)
                if row["table"] == unit.table and located(path).exists():
                    found.append(path)
        return found


def counted(unit: Unit, seen: Seen) -> Unit:
    """Returns a unit with the counts after a purge."""
    heads = seen.heads
    return msgspec.structs.replace(unit, files=len(heads), rows_after=seen.rows, bytes_after=sum(heads.values()))


def _continued(unit: Unit, before: Unit | None) -> Unit:
    """Returns the unit with the counts that the same run recorded before it was killed, or before this attempt."""
    if before is None:
        return unit
    ended = before.state == "DONE"
    matched = before.matched + unit.matched if ended else max(before.matched, unit.matched)
    rows, rewritten = max(before.rows, unit.rows), max(before.rewritten, unit.rewritten)
    return msgspec.structs.replace(
        unit, matched=matched, rows=rows, rewritten=rewritten, bytes=max(before.bytes, unit.bytes), backup=before.backup
    )


def _row(unit: Unit, path: str, size: int, checksum: str | None, matched: int) -> dict[str, Any]:
    place = normal(path)
    state = FileState(relative(place, unit.old) or place, size, 0, "")
    return unit.file_row(state, matched=matched, checksum=checksum) | {"mtime_ns": None, "identity": None}
