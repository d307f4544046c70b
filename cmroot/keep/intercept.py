"""Intercepts: files that another process is about to drop are first moved into the root, and moved back if the drop
does not happen.

An intercept is `taking/<id>/`: `journal.json` contains the state, `0`, `1`, ... are directories moved out of reach by
one rename each, `entries.parquet` lists the retained files. On stores without a rename, and across devices, the sources
remain in place until the outcome is decided; then they are removed. How the outcome is decided is outside this module.
The file entries for the capture of the event are written to `taken`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow.compute as pc

from cmroot.errors import KeepError
from cmroot.keep.content import ATTEMPTS, Kept
from cmroot.keep.journal import (
    DIRECTORY,
    DONE,
    ENTRIES,
    INTERCEPTING,
    SENT,
    VERSION,
    DropCall,
    InterceptSource,
    Journal,
    Owner,
    entries,
    files_at,
    flaw,
    keep_safely,
    move_aside,
    move_back,
    outermost,
    read_entries,
    read_journal,
    remove_kept_below,
    unchanged,
    write_entries,
    write_journal,
)
from cmroot.keep.keepers import Keeper, choose_keeper
from cmroot.keep.store_lock import store_lock
from cmroot.log.references import JOURNAL, write_intercepted
from cmroot.store.local import same_device, status_of
from cmroot.store.place import Place, is_local, join, local_path, normal, refuse_root, remove_if_empty, split_authority
from cmroot.store.spelling import naming

THREADS = 8
LEFT = "it remains unchanged, and captures wait for it: inspect it, then move it away"
_BATCH = 64  # files that a thread retains in a row

log = logging.getLogger(__name__)


class Intercept:
    """One intercept: `protect`, then `sent`, then `settle` (or `put_back`). Each may run again after a crash."""

    def __init__(self, root: str, journal: Journal, *, live: bool, stopped: threading.Event | None = None) -> None:
        """Creates an intercept from its journal. `live`: its sources have been under control since it began; False for
        an intercept left by a crash. `stopped`: once it is set, `protect` aborts at the next file."""
        self.root, self.journal = root, journal
        self.place = str(Place(root) / DIRECTORY / journal.id)
        self.open = True  # until all is done
        self._live = live
        self._stopped = stopped or threading.Event()
        self._kept: dict[str, Kept] = {}  # by the original path of the file
        self._keepers: dict[object, Keeper] = {}
        self._store_lock = contextlib.ExitStack()
        self._has_store_lock = False

    @classmethod
    def begin(
        cls,
        root: str,
        drop: DropCall,
        sources: Sequence[InterceptSource],
        owners: Sequence[Owner],
        *,
        stopped: threading.Event | None = None,
    ) -> Intercept:
        """Writes the journal; nothing is moved yet. Raises NotWritable or NoSpace when the root cannot be written, and
        Protected for a source inside a root or above one."""
        chosen = outermost(sources)
        for source in chosen:
            refuse_root(root, source.place)
        taken = tuple(
            msgspec.structs.replace(source, entry=str(number) if same_device(root, source.place) else "")
            for number, source in enumerate(chosen)
        )
        journal = Journal(
            VERSION,
            uuid.uuid4().hex,
            INTERCEPTING,
            drop.before_event,
            drop.call,
            drop.db,
            drop.table,
            datetime.now(UTC).isoformat(timespec="seconds"),
            taken,
            tuple(owners),
            drop.empties,
            drop.about,
        )
        intercept = cls(root, journal, live=True, stopped=stopped)
        try:
            Place(intercept.place).mkdirs()
            intercept._save()
        except BaseException:
            with contextlib.suppress(Exception):
                intercept._forget()
            raise
        return intercept

    @property
    def files(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        return sum(kept.size for kept in self._kept.values())

    @property
    def tables(self) -> set[str]:
        return {source.table for source in self.journal.sources}

    def protect(self) -> None:
        """Retains every file, moves the sources that can be moved, then retains files added concurrently. When it
        returns, the bytes are in `files/`, whatever happens to the sources. After an error everything is restored."""
        try:
            self._take_store_lock()
            for source in self.journal.sources:
                self._keep(source.place, source.place, stopped=self._stopped)
            moved = [self._move(source) for source in self.journal.sources]
            self.journal = msgspec.structs.replace(self.journal, sources=tuple(moved))
            self._keep_late()
            write_entries(self.place, entries(self.journal, self._kept))
        except BaseException:
            self.put_back()
            raise

    def sent(self) -> None:
        """Records that the drop is being sent; call it before sending: from then on only the receiver knows the
        outcome. After an error everything is restored."""
        try:
            self._save(state=SENT, sent_at=time.time())
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Restores every source because nothing was dropped, and removes the intercept. A file that was created since
        then under the name of an intercepted file remains, and the intercepted file remains retained."""
        self._restore(self.journal.sources)
        self._forget()

    def settle(self, events: Mapping[str, int]) -> None:
        """Finalises: the tables in `events` were dropped (or lost partitions, or were emptied) by that event, the
        others not. Writes the entries for the capture of the event, removes these tables' files, and moves the rest
        back."""
        if not events:
            self.put_back()
            return
        if self.journal.state != DONE:
            self._save(state=DONE, events=dict(events))
        self._take_store_lock()
        self._kept = self._kept or read_entries(self.root, self.place)
        gone = [source for source in self.journal.sources if source.table in self.journal.events]
        self._restore(source for source in self.journal.sources if source.table not in self.journal.events)
        for _ in range(ATTEMPTS):
            self._keep_late()
            self._leave_for_capture()
            if all(self._remove(source) for source in gone):
                self._forget()
                return
        raise KeepError(
            f"{self.journal.db}.{self.journal.table}: files keep appearing in the dropped directories",
            hint="stop their writer; the intercept is then completed",
        )

    # ---- keeping --------------------------------------------------------------------------------------------------

    def _take_store_lock(self) -> None:
        if not self._has_store_lock:
            self._store_lock.enter_context(store_lock(self.root))
            self._has_store_lock = True

    def _keep(self, place: str, named: str, stopped: threading.Event | None = None) -> None:
        """Retains the files at `place` that are not retained yet; their original location is `named`."""
        fresh = [
            (join(place, relative), key)
            for relative, state in files_at(place)
            if (key := normal(join(named, relative))) not in self._kept or not unchanged(state, self._kept[key])
        ]
        if not fresh:
            return
        keeper = self._keeper(place)

        def keep_some(some: Sequence[tuple[str, str]]) -> list[tuple[str, Kept]]:
            found = []
            for path, key in some:
                if stopped is not None and stopped.is_set():
                    raise KeepError(f"{place}: stopped before all of its files were kept")
                with contextlib.suppress(FileNotFoundError):  # vanished, as files in a live table do
                    found.append((key, keep_safely(keeper, self.root, path)))
            return found

        batches = [fresh[at : at + _BATCH] for at in range(0, len(fresh), _BATCH)]
        if len(batches) == 1:
            self._kept.update(keep_some(fresh))
            return
        with ThreadPoolExecutor(THREADS, thread_name_prefix="taking") as pool:
            try:
                for pairs in pool.map(keep_some, batches):
                    self._kept.update(pairs)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _keep_late(self) -> None:
        """Retains files that appeared in the sources after they were listed. Sources that remained in place across a
        crash may belong to another table by now, and emptied ones are in use: these are not listed again."""
        in_place = self._live and not (self.journal.empties and self.journal.state == DONE)
        for source in self.journal.sources:
            if source.entry:
                self._keep(self._entry(source), source.place)
            elif in_place:
                self._keep(source.place, source.place)

    def _keeper(self, place: str) -> Keeper:
        key = os.stat(local_path(place)).st_dev if is_local(place) else split_authority(normal(place))[0]
        if key not in self._keepers:
            self._keepers[key] = choose_keeper(self.root, place)
        return self._keepers[key]

    # ---- moving and removing --------------------------------------------------------------------------------------

    def _move(self, source: InterceptSource) -> InterceptSource:
        """Returns the source as the journal is to record it: without an entry when it could not be moved."""
        refuse_root(self.root, source.place)
        if source.entry and not move_aside(local_path(source.place), self._entry(source), stays=self.journal.empties):
            return msgspec.structs.replace(source, entry="")
        return source

    def _restore(self, sources: Iterable[InterceptSource]) -> None:
        for source in reversed(list(sources)):
            if source.entry and status_of(self._entry(source), follow=False) is not None:
                refuse_root(self.root, source.place)
                with naming(source.place):
                    move_back(self.root, self._entry(source), local_path(source.place))

    def _remove(self, source: InterceptSource) -> bool:
        """Removes the retained files and the directory. Returns False when there is a file that is not retained yet.
        For a source that was never moved, only the retained files are removed if the location may be in use."""
        if source.entry:
            return remove_kept_below(self._entry(source), source.place, self._kept, whole=True)
        refuse_root(self.root, source.place)
        alone = self._live and not self.journal.empties
        return remove_kept_below(source.place, source.place, self._kept, whole=alone) or not alone

    def _entry(self, source: InterceptSource) -> str:
        return (Place(self.place) / source.entry).local

    # ---- the intercept's own files -----------------------------------------------------------------------------------

    def _save(self, **changes: Any) -> None:
        journal = msgspec.structs.replace(self.journal, **changes)
        write_journal(self.place, journal)
        self.journal = journal

    def _leave_for_capture(self) -> None:
        rows = entries(self.journal, self._kept)
        for table, event in self.journal.events.items():
            of_table = rows.filter(pc.equal(rows["table"], table))
            if of_table.num_rows:
                write_intercepted(self.root, event, of_table, uuid.uuid5(uuid.UUID(self.journal.id), table).hex)

    def _forget(self) -> None:
        """Removes the intercept's files, the journal last: while it exists, captures wait and a restart recovers it."""
        place = Place(self.place)
        (place / ENTRIES).remove_own()
        (place / JOURNAL).remove_own()
        _remove_empty(place)
        self._store_lock.close()
        self.open, self._has_store_lock = False, False


def intercepts(root: str, refuse: Callable[[str, Journal], str] = lambda place, journal: "") -> list[Intercept]:
    """Returns the unfinished intercepts, oldest first: of a running gateway, or left by a crash. Raises FormatError for
    a journal that is damaged or of another version.

    A journal determines which files are moved and removed, so it is used only when it has no flaw and `refuse`, called
    with the intercept's location, returns no objection; else it is logged and left unchanged."""
    found = []
    for name in (Place(root) / DIRECTORY).list():
        place = join(root, DIRECTORY, name)
        journal = read_journal(place)
        if journal is None:
            continue
        if why := flaw(journal, name) or refuse(place, journal):
            log.warning("%s is not applied: %r; %s", join(place, JOURNAL), why, LEFT)
            continue
        found.append(Intercept(root, journal, live=False))
    return sorted(found, key=lambda intercept: (intercept.journal.before_event, intercept.journal.created))


def sweep_intercepts(root: str) -> None:
    """Removes the empty directories of intercepts that crashed before the journal existed or after its removal."""
    for name in (Place(root) / DIRECTORY).list():
        place = Place(root) / DIRECTORY / name
        if not (place / JOURNAL).exists():
            _remove_empty(place)


def _remove_empty(place: Place) -> None:
    place.sweep()
    if path := place.local:
        remove_if_empty(path)
