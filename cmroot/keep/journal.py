"""The persistent state of an intercept: its journal, and the file entries of the retained files.

`taking/<id>/journal.json` exists from before the first change until nothing remains to be done; `entries.parquet`
exists once all files are retained. The intercept itself is in `intercept`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, ChecksumMismatch, FormatError, KeepError
from cmroot.keep.content import Kept, is_kept, locate, sync_name
from cmroot.keep.keepers import CopyKeeper, Keeper
from cmroot.keep.recycle import files_below, recycle, recycle_tree, remove_emptied
from cmroot.keep.remote_files import keep_and_check, remove_source
from cmroot.log.captured import ADD, FILES
from cmroot.log.references import JOURNAL
from cmroot.store.buckets import OWN
from cmroot.store.checksum import checksum_file
from cmroot.store.hudi import belongs
from cmroot.store.listing import FileState, file_state, hidden, object_state, skipped_directory
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import Place, is_local, join, local_path, normal, remote_store
from cmroot.store.spelling import naming
from cmroot.text import shown

VERSION = 1
DIRECTORY = "taking"
ENTRIES = "entries.parquet"

_ID = re.compile("[0-9a-f]{32}")
_PLACE = re.compile("/|[a-z][a-z0-9+.-]*:/")
_ENTRY = re.compile("[0-9]{1,9}")

INTERCEPTING, SENT, DONE = "taking", "sent", "done"
"""States of a journal: nothing was sent yet, so everything is moved back; sent, and the outcome is unknown; dropped."""


class InterceptSource(msgspec.Struct, frozen=True):
    """A directory, or a single file, to intercept. `table`: the table whose drop removes it. `entry`: its name in the
    intercept, when it is moved there."""

    place: str
    table: str
    entry: str = ""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of the files below a location: a table, or a partition by its escaped name. root: a partitioned table,
    which owns the files that `list_root` lists."""

    table: str
    partition: str
    location: str
    root: bool = False


class DropCall(msgspec.Struct, frozen=True, kw_only=True):
    """The caller and target of a drop; the fields are those of Journal."""

    before_event: int
    call: str
    db: str
    table: str
    empties: bool = False
    about: dict[str, Any] = {}


class Journal(msgspec.Struct, frozen=True):
    """The content of `journal.json`. `before_event`: the newest event before the drop was sent; `sent_at`: when it was
    sent, in seconds since the epoch. `empties`: the directories remain, without their contents. `about`: reserved for
    the caller. `events`: the event of each dropped table."""

    version: int
    id: str
    state: str
    before_event: int
    call: str
    db: str
    table: str
    created: str
    sources: tuple[InterceptSource, ...]
    owners: tuple[Owner, ...]
    empties: bool = False
    about: dict[str, Any] = {}
    events: dict[str, int] = {}
    sent_at: float = 0


def write_journal(place: str, journal: Journal) -> None:
    """Writes the journal, replacing the one before. Durable when it returns."""
    (Place(place) / JOURNAL).replace_own(msgspec.json.encode(journal))


def read_journal(place: str) -> Journal | None:
    """Returns the journal; None if missing: nothing has begun, or all is done. Raises FormatError for a damaged one."""
    path = Place(place) / JOURNAL
    try:
        journal = msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise FormatError(
            f"{path}: {error}", hint="the intercepted files are next to it: move them back by hand"
        ) from error
    if journal.version != VERSION:
        raise FormatError(
            f"{path}: version {journal.version}, this release knows {VERSION}", hint="use the newer release"
        )
    return journal


def flaw(journal: Journal, name: str) -> str:
    """Returns why a journal below `taking/<name>/` cannot be one written by a gateway: an entry that leads elsewhere,
    or an unknown state; "" for a valid one. Its locations must be checked by a caller that knows the warehouse."""
    if journal.id != name or not _ID.fullmatch(name):
        return f"it has another id: {journal.id!r}"
    if journal.state not in (INTERCEPTING, SENT, DONE):
        return f"it has an unknown state: {journal.state!r}"
    moved = [source.entry for source in journal.sources if source.entry]
    wrong = [entry for entry in moved if not _ENTRY.fullmatch(entry)]
    if wrong or len(set(moved)) < len(moved):
        return f"it moves {wrong[0]!r}" if wrong else "it moves one entry to two locations"
    odd = [source.place for source in journal.sources if not _PLACE.match(source.place) or "\0" in source.place]
    if odd:
        return f"{odd[0]!r} is not a valid location"
    return ""


def outermost(sources: Iterable[InterceptSource]) -> list[InterceptSource]:
    """Returns the sources that are not below another one, which is moved together with everything below it."""
    found: list[InterceptSource] = []
    for source in sorted(sources, key=lambda source: normal(source.place) + "/"):
        if not found or not _is_below(normal(source.place), normal(found[-1].place)):
            found.append(source)
    return found


def _is_below(place: str, other: str) -> bool:
    return place == other or place.startswith(other.rstrip("/") + "/")


# ---- entries ------------------------------------------------------------------------------------------------------


def entries(journal: Journal, kept: Mapping[str, Kept]) -> pa.Table:
    """Returns file entries (cmroot.log.segment.FILES, positions null) of all data files of a table or partition.
    `kept`: by original path, normalised by `normal`. `_temporary` and directories without a partition in that of a
    partitioned table belong to none."""
    owners = {normal(owner.location): owner for owner in journal.owners}
    above: dict[str, str | None] = {}  # directory -> the location that it belongs to
    columns: dict[str, list[Any]] = {name: [] for name in FILES.names}
    for place, file in sorted({shown(place): file for place, file in kept.items()}.items()):
        directory = place if place in owners else place.rpartition("/")[0]  # a single file may be the entire table
        if directory not in above:
            above[directory] = _nearest_owner(directory, owners)
        location = above[directory]
        if location is None:
            continue
        owner, path = owners[location], place[len(location) + 1 :]
        *parents, name = path.split("/")
        is_hidden = hidden(name) or any(skipped_directory(parent) for parent in parents)
        if is_hidden and not belongs(path):  # hidden files of Hudi tables are data
            continue
        if owner.root and parents and parents[0] not in OWN:
            continue
        row = {
            "op": ADD,
            "db": journal.db,
            "table": owner.table,
            "partition": owner.partition,
            "location": owner.location,
            "path": path,
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "identity": file.identity,
            "checksum": file.checksum,
            "kept": True,
            "version": file.version,
        }
        for column, values in columns.items():
            values.append(row.get(column))
    return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})


def _nearest_owner(directory: str, owners: Mapping[str, Owner]) -> str | None:
    place = directory
    while place and place not in owners:
        place = place.rpartition("/")[0]
    return place or None


def write_entries(place: str, rows: pa.Table) -> None:
    with (Place(place) / ENTRIES).open_write() as file:
        pq.write_table(rows, file, compression="zstd")


def read_entries(root: str, place: str) -> dict[str, Kept]:
    """Returns the files retained before a crash, by original path, that are still retained: until they are recorded
    nothing refers to them, so they may have expired. Raises FormatError."""
    path = Place(place) / ENTRIES
    try:
        with path.open_read() as file:
            rows = pq.read_table(file).to_pylist()
    except FileNotFoundError:
        return {}  # all of this is done already
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: {error}", hint="remove it: these files are then in no record") from error
    return {
        normal(join(row["location"], row["path"])): Kept(
            row["size"], row["mtime_ns"], row["identity"], "", row["checksum"], row["version"]
        )
        for row in rows
        if row["version"] is not None or is_kept(root, row["checksum"], row["size"])
    }


# ---- safely ----------------------------------------------------------------------------------------------------------
# Steps of an intercept: retaining a file before its removal, moving a tree away and back, removing retained files.
#
# Each step removes or moves only files passed as retained; it leaves any others and reports that in its result.


def keep_safely(keeper: Keeper, root: str, path: str) -> Kept:
    """Retains one file by its keeper; a copy is read back. Raises FileNotFoundError if it does not exist any more."""
    if not isinstance(keeper, CopyKeeper):
        return keeper.keep(path)
    if not (is_local(root) and is_local(path)):
        return keep_and_check(root, path)
    kept = keeper.keep(path)
    final = local_path(locate(root, kept.checksum, kept.size))
    if checksum_file(final) != (kept.checksum, kept.size):
        raise ChecksumMismatch(
            f"{final}: its content does not match its name, so {path} must not be deleted",
            hint="check the disk for errors, remove the damaged file, then repeat the operation",
        )
    sync_name(final)
    return kept


def unchanged(state: FileState, kept: Kept) -> bool:
    return (state.identity, state.mtime_ns, state.size) == (kept.identity, kept.mtime_ns, kept.size)


# ---- looking ------------------------------------------------------------------------------------------------------


def files_at(place: str) -> Iterator[tuple[str, FileState]]:
    """Yields (name relative to the place, state) of every file, hidden ones too; a place that is a file has the name
    "". Symbolic links to directories are not followed, because deleting does not follow them either."""
    if not is_local(place):
        yield from _objects_at(place)
        return
    top = local_path(place)
    with naming(top):
        try:
            status = os.stat(top)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            yield "", _state(status)
            return
        waiting = [""]
        while waiting:
            relative = waiting.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(join(top, relative)) as found:
                for entry in found:
                    name = f"{relative}/{entry.name}" if relative else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    elif entry.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            yield name, _state(entry.stat())


def _objects_at(place: str) -> Iterator[tuple[str, FileState]]:
    for name, info in remote_store(place).below(place):
        if not name.endswith("/") and info.get("type") != "directory":
            yield name, object_state(name, info)


def _state(status: os.stat_result) -> FileState:
    return FileState("", status.st_size, status.st_mtime_ns, str(status.st_ino))


# ---- moving -------------------------------------------------------------------------------------------------------


def move_aside(path: str, entry: str, *, stays: bool) -> bool:
    """Moves a path out of reach by one rename; with `stays` an empty directory with the same permissions replaces it.
    Returns False if it cannot be renamed: a mount point, or one inside. A missing path is not an error."""
    with naming(path):
        try:
            before = os.stat(path)
            os.rename(path, entry)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EBUSY):
                raise
            return False
        if stays and stat.S_ISDIR(before.st_mode):
            os.mkdir(path)
            os.chmod(path, stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.chown(path, before.st_uid, before.st_gid)
    return True


def move_back(root: str, entry: str, path: str) -> None:
    """Moves an entry back to its original name. Files created there since then remain: directories are merged, and a
    file whose name is in use is recycled into the root."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    entry_is_tree, path_is_tree = (is_directory(each, follow=False) for each in (entry, path))
    if status_of(path, follow=False) is None:
        os.rename(entry, path)
    elif entry_is_tree and path_is_tree:
        try:
            os.rename(entry, path)  # onto an empty directory
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        for name in sorted(os.listdir(entry)):
            move_back(root, join(entry, name), join(path, name))
        os.rmdir(entry)
    elif entry_is_tree:
        recycle_tree(root, entry, ours=True)
    elif stat.S_ISREG(os.lstat(entry).st_mode):
        recycle(root, entry, ours=True)
    else:
        os.unlink(entry)


# ---- removing -----------------------------------------------------------------------------------------------------


def remove_kept_below(place: str, named: str, kept: Mapping[str, Kept], *, whole: bool) -> bool:
    """Removes the retained files at `place`, by the original location `named`; with `whole` also the emptied directory.
    Returns False when a file is found that is not retained; that file remains."""
    if not is_local(place):
        left = [
            name
            for name, _ in _objects_at(place)
            if not _remove_object(join(place, name), kept.get(normal(join(named, name))))
        ]
        return not left
    path = local_path(place)
    with naming(path):
        status = status_of(path, follow=False)
        if status is None:
            return True
        if stat.S_ISLNK(status.st_mode):
            if whole:
                os.unlink(path)
            return True
        if not stat.S_ISDIR(status.st_mode):
            return _remove_file(path, kept.get(normal(named)))
        left = [
            each for each in files_below(path) if not _remove_file(each, kept.get(normal(named + each[len(path) :])))
        ]
        if left or not whole:
            return not left
        try:
            remove_emptied(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True


def _remove_object(path: str, kept: Kept | None) -> bool:
    if kept is None:
        return False
    try:
        remove_source(path, kept)
    except FileNotFoundError:
        return True
    except KeepError:
        return False
    return True


def _remove_file(path: str, kept: Kept | None) -> bool:
    if kept is None:
        return False
    try:
        if not unchanged(file_state(path), kept):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    return True
