"""What an intercept writes down: its journal, and the file entries of what it kept. Values, and their files.

`taking/<id>/journal.json` is there from before anything is touched until nothing is left to do; `entries.parquet` from
when all is kept. The taking itself is in `intercept`.
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
from cmroot.keep.objects import keep_and_check, remove_source
from cmroot.keep.recycle import files_below, recycle, recycle_tree, remove_emptied
from cmroot.log.captured import ADD, FILES
from cmroot.log.references import JOURNAL
from cmroot.store.checksum import checksum_file
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
"""States of a journal: nothing is sent yet, so everything goes back; sent, and the outcome is not known; dropped."""


class InterceptSource(msgspec.Struct, frozen=True):
    """A directory, or a single file, to take. `table`: the one that it goes with. `entry`: its name in the intercept,
    when it is moved there."""

    place: str
    table: str
    entry: str = ""


class Owner(msgspec.Struct, frozen=True):
    """Whose files lie below a location: a table without partitions, or a partition by its escaped name."""

    table: str
    partition: str
    location: str


class DropCall(msgspec.Struct, frozen=True, kw_only=True):
    """Who drops what; the fields are those of Journal."""

    before_event: int
    call: str
    db: str
    table: str
    empties: bool = False
    about: dict[str, Any] = {}


class Journal(msgspec.Struct, frozen=True):
    """What `journal.json` says. `before_event`: the newest event before the drop was sent; `sent_at`: when, in seconds
    since the epoch. `empties`: the directories stay, without what is in them. `about`: the caller's own. `events`: of
    what was dropped, the event by table."""

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
    """Durable when it returns; replaces the one before."""
    (Place(place) / JOURNAL).replace_own(msgspec.json.encode(journal))


def read_journal(place: str) -> Journal | None:
    """None when there is none: nothing has begun there, or all is done. Raises FormatError for a damaged one."""
    path = Place(place) / JOURNAL
    try:
        journal = msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise FormatError(f"{path}: {error}", hint="what it took is beside it: move it back by hand") from error
    if journal.version != VERSION:
        raise FormatError(f"{path}: version {journal.version}, this release knows {VERSION}", hint="use the newer one")
    return journal


def flaw(journal: Journal, name: str) -> str:
    """Why a journal below `taking/<name>/` is none that a gateway wrote: an entry that leads elsewhere, a state that
    does not exist; "" for a sound one. What it names as places is for who knows the warehouse to judge."""
    if journal.id != name or not _ID.fullmatch(name):
        return f"it says to be {journal.id!r}"
    if journal.state not in (INTERCEPTING, SENT, DONE):
        return f"it has no known state: {journal.state!r}"
    moved = [source.entry for source in journal.sources if source.entry]
    wrong = [entry for entry in moved if not _ENTRY.fullmatch(entry)]
    if wrong or len(set(moved)) < len(moved):
        return f"it moves {wrong[0]!r}" if wrong else "it moves one entry to two places"
    odd = [source.place for source in journal.sources if not _PLACE.match(source.place) or "\0" in source.place]
    if odd:
        return f"{odd[0]!r} is no place"
    return ""


def outermost(sources: Iterable[InterceptSource]) -> list[InterceptSource]:
    """Without those that lie below another, which takes them along."""
    found: list[InterceptSource] = []
    for source in sorted(sources, key=lambda source: normal(source.place) + "/"):
        if not found or not _is_below(normal(source.place), normal(found[-1].place)):
            found.append(source)
    return found


def _is_below(place: str, other: str) -> bool:
    return place == other or place.startswith(other.rstrip("/") + "/")


# ---- entries ------------------------------------------------------------------------------------------------------


def entries(journal: Journal, kept: Mapping[str, Kept]) -> pa.Table:
    """File entries (cmroot.log.FILES, positions null) of all that is data of a table or partition. `kept`: by the place
    that a file had, in the spelling of `normal`. `_temporary` and what lies beside partitions is nobody's data."""
    owners = {normal(owner.location): owner for owner in journal.owners}
    above: dict[str, str | None] = {}  # directory -> the location that it belongs to
    columns: dict[str, list[Any]] = {name: [] for name in FILES.names}
    for place, file in sorted({shown(place): file for place, file in kept.items()}.items()):
        directory = place if place in owners else place.rpartition("/")[0]  # one file may be all of a table
        if directory not in above:
            above[directory] = _nearest_owner(directory, owners)
        location = above[directory]
        if location is None:
            continue
        owner, path = owners[location], place[len(location) + 1 :]
        *parents, name = path.split("/")
        if hidden(name) or any(skipped_directory(parent) for parent in parents):
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
    """What was kept before a crash, by the place it had, as far as it still is: until it is recorded nothing refers to
    it, so it may have expired. Raises FormatError."""
    path = Place(place) / ENTRIES
    try:
        with path.open_read() as file:
            rows = pq.read_table(file).to_pylist()
    except FileNotFoundError:
        return {}  # all of this is done already
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: {error}", hint="remove it: no record will name these files then") from error
    return {
        normal(join(row["location"], row["path"])): Kept(
            row["size"], row["mtime_ns"], row["identity"], "", row["checksum"], row["version"]
        )
        for row in rows
        if row["version"] is not None or is_kept(root, row["checksum"], row["size"])
    }


# ---- safely ----------------------------------------------------------------------------------------------------------
# Steps of an intercept: keeps a file before its removal, moves a tree out of reach and back, removes kept files.
#
# Each removes or moves only what it was given as kept; what it finds besides, it leaves and says so.


def keep_safely(keeper: Keeper, root: str, path: str) -> Kept:
    """Keeps one file as its keeper does; a copy is read back. FileNotFoundError: it was gone."""
    if not isinstance(keeper, CopyKeeper):
        return keeper.keep(path)
    if not (is_local(root) and is_local(path)):
        return keep_and_check(root, path)
    kept = keeper.keep(path)
    final = local_path(locate(root, kept.checksum, kept.size))
    if checksum_file(final) != (kept.checksum, kept.size):
        raise ChecksumMismatch(
            f"{final}: holds other bytes than its name says, so {path} must not go",
            hint="look at the disk for errors, remove the damaged file, then do the same again",
        )
    sync_name(final)
    return kept


def unchanged(state: FileState, kept: Kept) -> bool:
    return (state.identity, state.mtime_ns, state.size) == (kept.identity, kept.mtime_ns, kept.size)


# ---- looking ------------------------------------------------------------------------------------------------------


def files_at(place: str) -> Iterator[tuple[str, FileState]]:
    """(name relative to the place, state) of every file, hidden ones too; a file itself has the name "". Symbolic links
    to directories are not followed, as deleting does not follow them."""
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
    """One rename out of everybody's reach; with `stays` an empty directory takes the place, as accessible as before.
    False when it cannot be renamed: a mount point, or one inside. What is not there needs no moving."""
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
    """Back to the name it had. What has come there meanwhile stays: directories are merged, and a file whose name is
    taken goes to the root's kept files."""
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
    """Removes the files at `place` that are kept, by the place `named` that they had; with `whole` the emptied
    directory, too. False when something was found that is not kept, and stays."""
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
