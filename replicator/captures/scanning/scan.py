"""The scan: finds changes without an event, in the metastore and in directories, for all tables or, with a time limit,
for some of them per capture.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from cmroot.store.listing import changed_directories
from replicator.captures.events.decode import decode
from replicator.captures.events.reader import read_events
from replicator.captures.events.record import Change
from replicator.captures.recording import Recording
from replicator.captures.scanning.bucket_notices import BucketNotices
from replicator.captures.scanning.snapshot_diff import CaptureSnapshots, SnapshotDiff, bases
from replicator.captures.scanning.turns import Turns
from replicator.captures.unlistable import Refusals
from replicator.captures.walk import note_engines, refresh_tables, walk_database
from replicator.metastore.client import MetastoreReader


class Scan:
    """The scan of one capture. Its findings become observed records, and objects to be listed. `walked`: databases that
    the capture has just read completely, which are not read again."""

    def __init__(
        self,
        source: MetastoreReader,
        log: Recording,
        refusals: Refusals,
        snapshots: CaptureSnapshots,
        notices: BucketNotices,
    ) -> None:
        self._source, self._log, self._refusals, self._snapshots = source, log, refusals, snapshots
        self._notices = notices
        self.walked: set[str] = set()

    def everything(self, *, compare: bool, deep: bool) -> float:
        """Scans all tables. Returns the seconds taken by `compare`, which are also in the report."""
        if compare:
            began = clocks.monotonic()
            for db in self._existing():
                refused = self._refusals.asked(db)
                self._observe(walk_database(self._source, self._log.manifest, db, refused, deep=deep), deep)
            note_engines(self._source, self._log.manifest)
            self._log.report.compare_seconds = round(clocks.monotonic() - began, 3)
            Turns(self._log.manifest, self._log.now()).all_seen()
        snapshots, self._notices.prove = SnapshotDiff(self._log, self._snapshots, begin=True, prove=deep), deep
        for objects in self._log.manifest.unlisted():
            for each in objects:
                snapshots.is_known(each.location)
                self._notices.is_quiet(each.location)
        self._unlist_changed(lambda place: snapshots.is_quiet(place) or self._notices.is_quiet(place))
        snapshots.finish()
        self._notices.finish()
        return self._log.report.compare_seconds

    def some(self, limit: timedelta, *, deep: bool) -> None:
        """Scans new and dropped tables and some others, for about `limit`, and at least one batch."""
        end, existing = clocks.monotonic() + limit.total_seconds(), self._existing()
        for db in existing:
            self._compare_outlines(db, deep)
        snapshots = SnapshotDiff(self._log, self._snapshots, begin=False, prove=False)
        if bases(self._log.manifest):
            self._log.manifest.unlist_objects_on_stores(
                lambda place: snapshots.is_quiet(place) or not snapshots.is_known(place)
            )
            snapshots.finish()
        turns = Turns(self._log.manifest, self._log.now())
        for batch in turns.batches():
            for db, names in batch.items():
                if db in existing:
                    refused = self._refusals.asked_again(db, names)
                    self._observe(refresh_tables(self._source, self._log.manifest, db, names, refused, deep=deep), deep)
                self._unlist_changed(snapshots.is_known, db, names)
            if clocks.monotonic() >= end:
                break
        scanned = turns.end()
        if scanned.tables == scanned.of:
            note_engines(self._source, self._log.manifest)
        self._log.report.scanned = scanned

    def _compare_outlines(self, db: str, deep: bool) -> None:
        """Compares a database itself, its functions, and tables that are new or dropped."""
        known = set(self._log.manifest.table_names(db))
        changes = walk_database(
            self._source,
            self._log.manifest,
            db,
            self._refusals.asked_again(db, ()),
            deep=deep,
            chosen=lambda name: name not in known,
        )
        self._observe(changes, deep)
        for name in known.difference(self._log.manifest.table_names(db)):
            self._refusals.dropped(db, name)

    def _existing(self) -> list[str]:
        """Returns the captured databases that exist in the metastore and were not just walked."""
        known = self._log.manifest.scope() - self.walked
        return sorted(known.intersection(self._source.database_names())) if known else []

    def _observe(self, changes: Iterable[Change], deep: bool) -> None:
        """Records differences from the metastore. Unless `deep`, differences of tables with new events are left to
        those events."""
        if deep:
            for change in changes:
                self._log.observe(change)
            return
        differences = list(changes)
        if differences:
            moving = self._tables_in_new_events()
            for change in differences:
                if change.touched not in moving:
                    self._log.observe(change)

    def _unlist_changed(self, stays: Callable[[str], bool], db: str = "", names: Sequence[str] = ()) -> None:
        """Compares recorded directories with the store: all, or those of some tables. `stays`: as for the manifest."""
        stale: set[tuple[int, int]] = set()
        for rows in self._log.manifest.directories(db, names):
            table_ids, partition_ids, *recorded = zip(*rows, strict=True)
            for index in changed_directories(*recorded):
                stale.add((table_ids[index], partition_ids[index]))
        self._log.manifest.unlist(stale)
        self._log.manifest.unlist_objects_on_stores(stays, db, names)

    def _tables_in_new_events(self) -> set[tuple[str, str] | None]:
        found: set[tuple[str, str] | None] = set()
        for event in read_events(self._source, self._log.cursor, {}).events:
            change = decode(event).change
            found.update(() if change.is_marker else change.tables or (None,))
        return found
