"""Taking: what somebody else is about to drop goes into the root first, and comes back if it is not dropped after all.

A taking is `taking/<id>/`: `journal.json` says what is under way, `0`, `1`, ... are directories moved out of reach by
one rename each, `entries.parquet` is what was kept of them. On stores without a rename, and across devices, the sources
stay where they are until it is decided; then they are removed. Who decides, and how, is no business of this module.
What is left for the capture of the event is in `taken`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.content import ATTEMPTS, Kept, is_kept
from cmroot.errors import FormatError, KeepError
from cmroot.keep import Keeper, choose_keeper
from cmroot.listing import FileState, hidden, skipped_directory
from cmroot.log import ADD, FILES
from cmroot.place import ASIDE, is_local, join, local_path, naming, normal, same_device, split_authority, store_for
from cmroot.recycle import files_below, recycle, recycle_tree, remove_emptied
from cmroot.safely import keep_safely, objects_below, remove_kept, unchanged
from cmroot.taken import JOURNAL, write_taken

VERSION = 1
DIRECTORY = "taking"
ENTRIES = "entries.parquet"

TAKING, SENT, DONE = "taking", "sent", "done"
"""States of a journal: nothing is sent yet, so everything goes back; sent, and the outcome is not known; dropped."""

THREADS = 8
_BATCH = 64  # files that a thread keeps in a row


class Source(msgspec.Struct, frozen=True):
    """A directory, or a single file, to take. `table`: the one that it goes with. `entry`: its name in the taking, when
    it is moved there."""

    place: str
    table: str
    entry: str = ""


class Owner(msgspec.Struct, frozen=True):
    """Whose files lie below a location: a table without partitions, or a partition by its escaped name."""

    table: str
    partition: str
    location: str


class Journal(msgspec.Struct, frozen=True):
    """What `journal.json` says. `before_event`: the newest event before the drop was sent. `empties`: the directories
    stay, without what is in them. `about`: the caller's own. `events`: of what was dropped, the event by table.
    `sent_at`: seconds since the epoch."""

    version: int
    id: str
    state: str
    before_event: int
    call: str
    db: str
    table: str
    created: str
    sources: tuple[Source, ...]
    owners: tuple[Owner, ...]
    empties: bool = False
    about: dict[str, Any] = {}
    events: dict[str, int] = {}
    sent_at: float = 0


class Taking:
    """One taking: `protect`, then `sent`, then `settle` (or `put_back`). Each may be run again after a crash."""

    def __init__(self, root: str, journal: Journal, *, live: bool) -> None:
        """`live`: its sources have not been out of sight since it began; not so for one that a crash left."""
        self.root, self.journal = root, journal
        self.place = join(root, DIRECTORY, journal.id)
        self._live = live
        self.open = True  # until it is finished or gone
        self._kept: dict[str, Kept] = {}  # by the place that the file had
        self._keepers: dict[object, Keeper] = {}

    @classmethod
    def begin(
        cls, root: str, *, before_event: int, call: str, db: str, table: str, sources: Sequence[Source],
        owners: Sequence[Owner], empties: bool = False, about: Mapping[str, Any] | None = None,
    ) -> Taking:  # fmt: skip
        """Writes the journal; nothing is moved yet. Raises NotWritable or NoSpace when the root takes nothing, and
        KeepError for a source that holds the root."""
        chosen = outermost(sources)
        for source in chosen:
            _refuse_overlap(root, source.place)
        taken = tuple(
            msgspec.structs.replace(source, entry=str(number) if same_device(root, source.place) else "")
            for number, source in enumerate(chosen)
        )
        journal = Journal(
            VERSION, uuid.uuid4().hex, TAKING, before_event, call, db, table,
            datetime.now(UTC).isoformat(timespec="seconds"), taken, tuple(owners), empties, dict(about or {}),
        )  # fmt: skip
        taking = cls(root, journal, live=True)
        try:
            store_for(root).mkdirs(taking.place)
            taking._save()
        except BaseException:
            with contextlib.suppress(Exception):
                taking._forget()
            raise
        return taking

    @property
    def files(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        return sum(kept.size for kept in self._kept.values())

    def protect(self) -> None:
        """Keeps every file, then moves what can be moved, then keeps what a writer added meanwhile. When it returns the
        bytes are in `files/`, whatever happens to the sources. An error leaves all as it was."""
        try:
            for source in self.journal.sources:
                self._keep(source.place, source.place)
            moved = [self._move(source) for source in self.journal.sources]
            self.journal = msgspec.structs.replace(self.journal, sources=tuple(moved))
            self._keep_late()
            self._write_entries()
        except BaseException:
            self.put_back()
            raise

    def sent(self) -> None:
        """To be called before the drop is sent: from here on only who was asked knows the outcome. An error leaves all
        as it was."""
        try:
            self._save(state=SENT, sent_at=time.time())
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Nothing was dropped: every source is where it was, and the taking is gone. Where something has the name of a
        file meanwhile, that stays, and ours stays kept."""
        self._restore(self.journal.sources)
        self._forget()

    def settle(self, events: Mapping[str, int]) -> None:
        """The tables named here were dropped (or lost partitions, or were emptied), by the event given; the others were
        not. Leaves the entries for the capture of that event, and removes what was taken; the rest goes back."""
        if not events:
            self.put_back()
            return
        if self.journal.state != DONE:
            self._save(state=DONE, events=dict(events))
        self._load_entries()
        gone = [source for source in self.journal.sources if source.table in self.journal.events]
        self._restore(source for source in self.journal.sources if source.table not in self.journal.events)
        for _ in range(ATTEMPTS):
            self._keep_late()
            self._leave_for_capture()
            if all(self._remove(source) for source in gone):
                self._forget()
                return
        raise KeepError(
            f"{self.journal.db}.{self.journal.table}: files keep appearing in what was dropped",
            hint="end their writer; the taking is finished then",
        )

    # ---- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, place: str, named: str) -> None:
        """Keeps the files at `place` that are not yet; they had the name `named`."""
        keeper = self._keeper(place)
        fresh = [
            (join(place, relative), key)
            for relative, state in _files(place)
            if (key := normal(join(named, relative))) not in self._kept or not unchanged(state, self._kept[key])
        ]

        def keep_some(some: Sequence[tuple[str, str]]) -> list[tuple[str, Kept]]:
            found = []
            for path, key in some:
                with contextlib.suppress(FileNotFoundError):  # vanished, as files in a live table do
                    found.append((key, keep_safely(keeper, self.root, path)))
            return found

        batches = [fresh[at : at + _BATCH] for at in range(0, len(fresh), _BATCH)]
        if len(batches) < 2:
            self._kept.update(pair for batch in batches for pair in keep_some(batch))
            return
        with ThreadPoolExecutor(THREADS, thread_name_prefix="taking") as pool:
            try:
                for pairs in pool.map(keep_some, batches):
                    self._kept.update(pairs)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _keep_late(self) -> None:
        """What appeared in the sources after they were looked at. One that a crash left where it was may be another
        table's by now: it is not looked at again."""
        for source in self.journal.sources:
            if source.entry:
                if os.path.lexists(self._entry(source)):
                    self._keep(self._entry(source), source.place)
            elif self._live and not (self.journal.empties and self.journal.state == DONE):
                self._keep(source.place, source.place)

    def _keeper(self, place: str) -> Keeper:
        key = os.stat(_nearest(local_path(place))).st_dev if is_local(place) else split_authority(normal(place))[0]
        if key not in self._keepers:
            self._keepers[key] = choose_keeper(self.root, place)
        return self._keepers[key]

    # ---- moving ---------------------------------------------------------------------------------------------------

    def _move(self, source: Source) -> Source:
        """One rename out of everybody's reach. A source that cannot be renamed stays, and says so; one that is not
        there is none."""
        if not source.entry:
            return source
        path = local_path(source.place)
        with naming(path):
            try:
                before = os.stat(path)
                os.rename(path, self._entry(source))
            except FileNotFoundError:
                return source
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EBUSY):
                    raise
                return msgspec.structs.replace(source, entry="")  # a mount point, or one inside
            if self.journal.empties and stat.S_ISDIR(before.st_mode):
                os.mkdir(path)
                os.chmod(path, stat.S_IMODE(before.st_mode))
                if os.geteuid() == 0:
                    os.chown(path, before.st_uid, before.st_gid)
        return source

    def _restore(self, sources: Iterable[Source]) -> None:
        for source in reversed(list(sources)):
            if source.entry and os.path.lexists(self._entry(source)):
                path = local_path(source.place)
                with naming(path):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    _rename_into(self.root, self._entry(source), path)

    def _entry(self, source: Source) -> str:
        return local_path(join(self.place, source.entry))

    # ---- removing -------------------------------------------------------------------------------------------------

    def _remove(self, source: Source) -> bool:
        """Removes what is kept, and the directory; False when there is something that is not kept yet."""
        if source.entry:
            return self._remove_moved(self._entry(source), source.place)
        if not is_local(source.place):
            names = [(name, join(source.place, name)) for name, _ in objects_below(source.place)]
            left = [
                name for name, path in names
                if normal(path) not in self._kept or not remove_kept(path, self._kept[normal(path)])
            ]  # fmt: skip
            return not left or not self._live or self.journal.empties
        return self._remove_in_place(local_path(source.place))

    def _remove_moved(self, entry: str, place: str) -> bool:
        with naming(entry):
            if not os.path.lexists(entry):
                return True
            if os.path.islink(entry) or not os.path.isdir(entry):
                os.unlink(entry)
                return True
            for path in files_below(entry):
                kept = self._kept.get(normal(join(place, path[len(entry) :])))
                if kept is None or not remove_kept(path, kept):
                    return False
            try:
                remove_emptied(entry)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
        return True

    def _remove_in_place(self, path: str) -> bool:
        with naming(path):
            if not os.path.lexists(path):
                return True
            if not os.path.isdir(path):
                return path not in self._kept or remove_kept(path, self._kept[path])
            left = [
                each for each in files_below(path) if each not in self._kept or not remove_kept(each, self._kept[each])
            ]
            if not self._live or self.journal.empties:
                return True
            if not left:
                try:
                    remove_emptied(path)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    return False
            return not left

    # ---- the taking's own files -----------------------------------------------------------------------------------

    def _save(self, **changes: Any) -> None:
        journal = msgspec.structs.replace(self.journal, **changes)
        store_for(self.root).write_bytes(join(self.place, JOURNAL), msgspec.json.encode(journal))
        self.journal = journal

    def _forget(self) -> None:
        """The journal last: while it is there, captures wait and a restart looks here."""
        store = store_for(self.root)
        store.remove(join(self.place, ENTRIES))
        store.remove(join(self.place, JOURNAL))
        _remove_empty(self.place)
        self.open = False

    def _write_entries(self) -> None:
        with store_for(self.root).open_write(join(self.place, ENTRIES)) as file:
            pq.write_table(self._rows(), file, compression="zstd")

    def _load_entries(self) -> None:
        """What was kept before a crash."""
        if self._kept:
            return
        path = join(self.place, ENTRIES)
        try:
            with store_for(path).open_read(path) as file:
                rows = pq.read_table(file).to_pylist()
        except FileNotFoundError:
            return  # nothing was to be kept
        except (pa.ArrowException, OSError) as error:
            raise FormatError(
                f"{path}: {error}", hint="restore the file, or remove it: no record names them then"
            ) from error
        for row in rows:
            if row["version"] is None and not is_kept(self.root, row["checksum"], row["size"]):
                continue  # unreferenced until now, so it may have expired; it is kept again from where it was moved to
            kept = Kept(row["size"], row["mtime_ns"], row["identity"], "", row["checksum"], row["version"])
            self._kept[normal(join(row["location"], row["path"]))] = kept

    def _leave_for_capture(self) -> None:
        rows = self._rows()
        for table, event in self.journal.events.items():
            of_table = rows.filter(pc.equal(rows["table"], table))
            if of_table.num_rows:
                write_taken(self.root, event, of_table, uuid.uuid5(uuid.UUID(self.journal.id), table).hex)

    def _rows(self) -> pa.Table:
        """File entries of all that is data of a table or partition; `_temporary` and the like is nobody's."""
        by_place = {normal(owner.location): owner for owner in self.journal.owners}
        above: dict[str, tuple[str, Owner] | None] = {}  # directory -> the owner's location, and the owner
        columns: dict[str, list[Any]] = {name: [] for name in FILES.names}
        for key, kept in sorted(self._kept.items()):
            directory = key.rpartition("/")[0]
            if directory not in above:
                above[directory] = _owner_above(directory, by_place)
            found = above[directory]
            if found is None:
                continue
            location, owner = found
            path = key[len(location) + 1 :]
            *parents, name = path.split("/")
            if hidden(name) or any(skipped_directory(parent) for parent in parents):
                continue
            values = (
                None, ADD, self.journal.db, owner.table, owner.partition, owner.location, path, kept.size,
                kept.mtime_ns, kept.identity, kept.checksum, True, None, kept.version,
            )  # fmt: skip
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
        return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})


def takings(root: str) -> list[Taking]:
    """Those that are not finished, the oldest first: of a gateway at work, or left by a crash. Raises FormatError for a
    journal that is damaged or of another version."""
    store, found = store_for(root), []
    for name in store.list(join(root, DIRECTORY)):
        path = join(root, DIRECTORY, name, JOURNAL)
        try:
            journal = msgspec.json.decode(store.read_bytes(path), type=Journal)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            raise FormatError(f"{path}: {error}", hint="what it took is beside it: move it back by hand") from error
        if journal.version != VERSION:
            raise FormatError(
                f"{path}: version {journal.version}, this release knows {VERSION}", hint="use the newer one"
            )
        found.append(Taking(root, journal, live=False))
    return sorted(found, key=lambda taking: (taking.journal.before_event, taking.journal.created))


def sweep_takings(root: str) -> None:
    """Removes what a crash left of takings that had no journal yet, or none any more: empty directories."""
    store = store_for(root)
    for name in store.list(join(root, DIRECTORY)):
        place = join(root, DIRECTORY, name)
        if not name.startswith(".") and not store.exists(join(place, JOURNAL)):
            _remove_empty(place)


def _remove_empty(place: str) -> None:
    if is_local(place):
        path = local_path(place)
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                if name.startswith(ASIDE):
                    os.unlink(join(path, name))
            os.rmdir(path)


def outermost(sources: Iterable[Source]) -> list[Source]:
    """Without those that lie below another, which take them along."""
    found: list[Source] = []
    for source in sorted(sources, key=lambda source: normal(source.place)):
        if not found or not _is_below(normal(source.place), normal(found[-1].place)):
            found.append(source)
    return found


def _is_below(place: str, other: str) -> bool:
    return place == other or place.startswith(other.rstrip("/") + "/")


def _refuse_overlap(root: str, place: str) -> None:
    if _is_below(normal(root), normal(place)) or _is_below(normal(place), normal(root)):
        raise KeepError(f"{place}: lies around {root} or in it", hint="put $cmroot beside the tables, not among them")


def _files(place: str) -> Iterator[tuple[str, FileState]]:
    """(name relative to the place, state) of every file but hidden ones; a file itself has the name "". Symbolic links
    to directories are not followed, as deleting does not follow them."""
    if not is_local(place):
        yield from objects_below(place)
        return
    top = local_path(place)
    with naming(top):
        try:
            if not stat.S_ISDIR(os.stat(top).st_mode):
                yield "", _state(os.stat(top))
                return
        except FileNotFoundError:
            return
        waiting = [""]
        while waiting:
            relative = waiting.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(join(top, relative)) as entries:
                for entry in entries:
                    name = join(relative, entry.name) if relative else entry.name
                    if hidden(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    elif entry.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            yield name, _state(entry.stat())


def _state(status: os.stat_result) -> FileState:
    return FileState("", status.st_size, status.st_mtime_ns, str(status.st_ino))


def _rename_into(root: str, entry: str, path: str) -> None:
    """Back to the name it had. What has come there meanwhile stays: directories are merged, and a file whose name is
    taken is only kept."""
    entry_is_tree, path_is_tree = (os.path.isdir(each) and not os.path.islink(each) for each in (entry, path))
    if not os.path.lexists(path):
        os.rename(entry, path)
    elif entry_is_tree and path_is_tree:
        with contextlib.suppress(OSError):
            os.rename(entry, path)  # onto an empty directory
            return
        for name in sorted(os.listdir(entry)):
            _rename_into(root, join(entry, name), join(path, name))
        os.rmdir(entry)
    elif entry_is_tree:
        recycle_tree(root, entry)
    elif os.path.isfile(entry) and not os.path.islink(entry):
        recycle(root, entry)
    else:
        os.unlink(entry)


def _owner_above(directory: str, by_place: Mapping[str, Owner]) -> tuple[str, Owner] | None:
    place = directory
    while place:
        if place in by_place:
            return place, by_place[place]
        shorter = place.rpartition("/")[0]
        if shorter == place:
            break
        place = shorter
    return None


def _nearest(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
