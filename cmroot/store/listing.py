"""Listing files below a location, and finding recorded directories that have changed since. Reads only; hashes nothing.

A directory's modification time changes when a name in it is added, removed or replaced; it does not change when a
file's bytes are modified in place, which no table format does. (The checksum detects that when the bytes are used.)
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa

from cmroot.store.checksum import ALGORITHM
from cmroot.store.delta import LOG, beyond
from cmroot.store.objects import object_identity, object_time_ns
from cmroot.store.place import Place, is_local, local_path, name_of, remote_store
from cmroot.store.spelling import naming
from cmroot.text import is_text, shown, unsafe

RACY_MARGIN = timedelta(seconds=2)
"""How much older than its listing a directory must be before an equal modification time proves anything.

A change that follows the listing within one tick of the clock leaves the same modification time (git calls such entries
racy). Ticks: ext4 and xfs stamp with the kernel's coarse clock (1 to 10 ms), ext3, HDFS and many NFS servers with whole
seconds, FAT with two seconds. A directory inside the margin is only listed again: it costs time, not data.
"""

_MARGIN_NS = RACY_MARGIN // timedelta(microseconds=1) * 1000

UNFINISHED = frozenset({"_temporary", "_scratch"})
"""Directories in which Hadoop committers and Hive store files that belong to no table yet."""


class FileState(msgspec.Struct, frozen=True, gc=False):
    """A file in a listing: name relative to the location ("": the location is this file), bytes, nanoseconds since the
    epoch, and identity: the inode number locally, the store's own tag (ETag, generation, ...) elsewhere. Another
    identity is another file. `changed_ns` is the change time of a local file (0: unknown), which no tool can set,
    whereas inode numbers are reused and modification times can be restored."""

    path_relative: str
    size: int
    mtime_ns: int
    identity: str
    changed_ns: int = 0

    @property
    def full_identity(self) -> str:
        """The identity as recorded in the log: `<inode>:<change time in ns>` locally, else the identity."""
        return full_identity(self.identity, self.changed_ns)

    def is_recorded(self, size: int | None, mtime_ns: int | None, identity: str | None) -> bool:
        """Returns True if this is the file of an entry, so that it need not be read. `identity` as recorded; entries of
        releases before the change time was recorded have the inode's number alone."""
        if (size, mtime_ns) != (self.size, self.mtime_ns) or identity is None:
            return False
        return identity == (self.full_identity if ":" in identity else self.identity)


def full_identity(identity: str, changed_ns: int) -> str:
    return f"{identity}:{changed_ns}" if changed_ns else identity


class DirectoryState(msgspec.Struct, frozen=True, gc=False):
    """A directory, or a location that is one file, as it was just before it was listed. `relative` is "" for the
    location itself; `listed_ns` is a timestamp before the listing; `identity` is `<inode>:<ctime in ns>`, which a
    rename into place or a modification time set by a tool (rsync -t, DistCp -pt) cannot fake. Empty identity: not
    recorded, not compared."""

    relative: str
    mtime_ns: int
    listed_ns: int
    identity: str = ""


class Listing(msgspec.Struct, frozen=True):
    """All files below a location, and its directories (none on an object store), each sorted by name. `unnamed`: files,
    and directories with a slash, whose names are not UTF-8, in the form of `text.shown`, and objects whose names have
    an empty part; they are in neither of the other lists."""

    files: list[FileState]
    directories: list[DirectoryState]
    unnamed: list[str] = []

    @property
    def is_one_file(self) -> bool:
        """Returns True if the location is not a directory, but this file."""
        return bool(self.files) and not self.files[0].path_relative


def hidden(name: str) -> bool:
    """Returns True for names that are never data: `.crc` sidecars, staging files and directories
    (`.hive-staging_...`)."""
    return name.startswith(".")


def skipped_directory(name: str) -> bool:
    return hidden(name) or name in UNFINISHED


def may_name_places(path: str) -> bool:
    """Returns True if a file, by its path in a table's directory, may be an index that names others by whole paths: its
    name, or that of a directory above it, begins with `_`, or it is called a manifest. False for files of a Delta log,
    and below directories of partition values."""
    if "_" not in path and "manifest" not in path:
        return False
    names = path.split("/")
    if LOG in names:
        return False
    return any(name[:1] == "_" and "=" not in name for name in names) or "manifest" in names[-1].lower()


def list_tree(location: str, *, now_ns: Callable[[], int] = time.time_ns) -> Listing | None:
    """Returns every file below a location; None when the directory does not exist (on object stores: no objects below
    it). A location that is one file, as a Spark table may have, contains that file, with the name "".

    A file or directory that vanishes concurrently is left out: its parent's recorded time is older than that change.
    `now_ns` returns the filesystem's current time.
    """
    return list_local(local_path(location), now_ns) if is_local(location) else _list_objects(location)


def list_local(
    top: str, now_ns: Callable[[], int], within: Callable[[str], bool] = lambda name: True
) -> Listing | None:
    """Lists a Delta table's log before everything else: a later listing contains all files that the log names. within:
    selects the directories at the top by name."""
    listed_ns = now_ns()  # once, before everything: an earlier time is only safer
    files: list[FileState] = []
    directories: list[DirectoryState] = []
    unnamed: list[str] = []
    waiting = [""]
    log_listed = False
    seen: set[tuple[int, int]] = set()  # a symbolic link to a parent must not cause an endless loop
    while waiting:
        relative = waiting.pop()
        path = f"{top}/{relative}" if relative else top
        prefix = relative + "/" if relative else ""
        try:
            with naming(path):
                status = os.stat(path)  # before listing: a concurrent change makes the time look old, not new
                if not relative and not stat.S_ISDIR(status.st_mode):
                    return _one_file(status, listed_ns)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                found, below, strange = _scan(path, prefix)
                below = [name for name in below if relative or within(name)]
                if LOG in below and not log_listed:  # and then the table again
                    waiting, log_listed = ["", LOG], True
                    continue
        except FileNotFoundError:
            if not relative:
                return None
            continue
        seen.add((status.st_dev, status.st_ino))
        whole = _readable(found) if relative == LOG else found
        identity = f"{status.st_ino}:{status.st_ctime_ns}"
        # Otherwise it must be listed again; also one with strange names, so that they are reported each time.
        proved = len(whole) == len(found) and not strange
        changed_ns = status.st_mtime_ns if proved else listed_ns
        directories.append(DirectoryState(relative, changed_ns, listed_ns, identity))
        files += whole
        unnamed += strange
        waiting += below
    files.sort(key=lambda file: file.path_relative)
    directories.sort(key=lambda directory: directory.relative)
    return Listing(files, directories, sorted(unnamed))


def _one_file(status: os.stat_result, listed_ns: int) -> Listing | None:
    """Returns the listing of a single file; its times and inode show a change of it, as a directory's do."""
    if not stat.S_ISREG(status.st_mode):
        return None
    file = FileState("", status.st_size, status.st_mtime_ns, str(status.st_ino), status.st_ctime_ns)
    return Listing([file], [DirectoryState("", status.st_mtime_ns, listed_ns, f"{status.st_ino}:{status.st_ctime_ns}")])


def _readable(log: list[FileState]) -> list[FileState]:
    """Returns a Delta log's own files without versions that follow a gap: the table was written while it was listed."""
    skipped = beyond(name_of(file.path_relative) for file in log)
    return [file for file in log if name_of(file.path_relative) not in skipped] if skipped else log


def _scan(path: str, prefix: str) -> tuple[list[FileState], list[str], list[str]]:
    """Returns files, directories, and names that are not valid text."""
    files, below, unnamed = [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if not is_text(name):
                unnamed.append(shown(prefix + name) + ("/" if entry.is_dir() else ""))
                continue
            if entry.is_dir():
                if name not in UNFINISHED:
                    below.append(prefix + name)
                continue
            if not entry.is_file():  # a pipe, a socket, a dangling link
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # vanished
                continue
            files.append(
                FileState(prefix + name, status.st_size, status.st_mtime_ns, str(status.st_ino), status.st_ctime_ns)
            )
    return files, below, unnamed


def directory_state(location: str, relative: str) -> DirectoryState:
    """Returns the present state of a local directory, without listing it. Raises FileNotFoundError if it is missing."""
    listed_ns = time.time_ns()
    path = local_path(location) + (f"/{relative}" if relative else "")
    with naming(path):
        status = os.stat(path)
    return DirectoryState(relative, status.st_mtime_ns, listed_ns, f"{status.st_ino}:{status.st_ctime_ns}")


def file_state(place: str) -> FileState:
    """Returns the state of a file of any store as in a listing, by its name. Raises FileNotFoundError if missing."""
    if is_local(place):
        with naming(place):
            status = os.stat(local_path(place))
        return FileState(name_of(place), status.st_size, status.st_mtime_ns, str(status.st_ino), status.st_ctime_ns)
    store = remote_store(place)
    with naming(place):
        info: dict[str, Any] = store.filesystem.info(store.key(place))
    return object_state(name_of(place), info)


def object_state(name: str, info: dict[str, Any]) -> FileState:
    """Returns the state of an object as described by fsspec, the same for a listing and a request for one object."""
    mtime_ns = object_time_ns(info)
    return FileState(name, int(info["size"]), mtime_ns, object_identity(info, mtime_ns))


def _list_objects(location: str) -> Listing | None:
    store, prefix = remote_store(location), key_prefix(location)
    found = store.tree(location)
    log = {key: info for key, info in found.items() if key.startswith(f"{prefix}{LOG}/")}
    if log:  # a Delta table: files listed after its log include all files that the log names
        skipped = beyond(key[len(prefix) + len(LOG) + 1 :] for key in log)
        log = {key: info for key, info in log.items() if key[len(prefix) + len(LOG) + 1 :] not in skipped}
        found = {key: info for key, info in store.tree(location).items() if not key.startswith(f"{prefix}{LOG}/")} | log
    listing = listed_objects(prefix, found)
    if found.keys() == {prefix[:-1]}:
        (info,) = found.values()
        if info.get("type") != "directory" and info["size"]:  # one of no bytes is a marker created by tools
            return Listing([object_state("", info)], [])
    return listing if found else None


def key_prefix(location: str) -> str:
    return remote_store(location).key(location).rstrip("/") + "/"


def listed_objects(prefix: str, found: dict[str, dict[str, Any]]) -> Listing:
    files, unnamed = [], []
    for key, info in found.items():
        relative = key[len(prefix) :]
        if not key.startswith(prefix) or not relative or relative.endswith("/") or info.get("type") == "directory":
            continue
        *above, name = relative.split("/")
        if hidden(name) or any(skipped_directory(part) for part in above):
            continue
        if unsafe(relative):  # an empty part, which Hadoop's Path cannot express
            unnamed.append(relative)
            continue
        files.append(object_state(relative, info))
    files.sort(key=lambda file: file.path_relative)
    return Listing(files, [], sorted(unnamed))


def unchanged(directory: DirectoryState, location: str) -> bool:
    """Returns True if a directory of a location provably has the names it had when it was recorded. Local only: returns
    False elsewhere, and for a directory that does not exist."""
    if not is_local(location):
        return False
    path = local_path(location)
    if directory.relative:
        path += "/" + directory.relative
    return not changed_directories([path], [directory.mtime_ns], [directory.listed_ns], [directory.identity])


def changed_directories(
    paths: Sequence[str],
    mtimes_ns: Iterable[int],
    listed_ns: Iterable[int],
    identities: Iterable[str | None] | None = None,
) -> list[int]:
    """Returns the indexes of recorded directories that are not proved unchanged: gone, another time or identity, or
    recorded within the racy margin. Costs one stat each, none for the racy ones. `paths`: complete local places (or
    URIs)."""
    status_of = os.stat
    changed = []
    for index, (place, mtime, listed, identity) in enumerate(
        zip(paths, mtimes_ns, listed_ns, identities or [None] * len(paths), strict=True)
    ):
        if mtime + _MARGIN_NS >= listed:
            changed.append(index)
            continue
        try:
            status = status_of(place if place[:1] == "/" else local_path(place))
        except OSError:  # whatever the error is, listing the directory will report it
            changed.append(index)
            continue
        if status.st_mtime_ns != mtime or (identity and not _same(status, identity, listed)):
            changed.append(index)
    return changed


def _same(status: os.stat_result, identity: str, listed: int) -> bool:
    return status.st_ctime_ns + _MARGIN_NS < listed and identity == f"{status.st_ino}:{status.st_ctime_ns}"


# ---- entries ---------------------------------------------------------------------------------------------------------
# The contents of `files/`: retained entries by the first two digits of their checksum, listed as 256 directories.
#
# A name there that is not a content name, or is in the wrong directory, is counted and left unchanged.


PREFIXES = tuple(f"{number:02x}" for number in range(256))

ENTRIES = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),  # as in the name
        ("bytes", pa.int64()),  # as reported by the store
        ("changed_ns", pa.int64()),  # the inode's change time, or the object's time; since 1970; null: unknown
        ("links", pa.int32()),  # names of the inode; 1 on an object store
    ]
)

_CONTENT = re.compile(rf"{ALGORITHM}-([0-9a-f]{{32}})-(0|[1-9]\d{{0,18}})")

SAMPLE = 4
"""Directories that are listed to estimate how many entries all 256 have: checksums are evenly distributed."""


@dataclass(frozen=True)
class ListedEntries:
    """The entries of one prefix (schema ENTRIES), and the number of other names."""

    entries: pa.Table
    unknown: int


def content_of(name: str) -> tuple[str, int] | None:
    """Returns (checksum, size) of a content name; None for any other name."""
    match = _CONTENT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def list_entries(root: str, prefix: str) -> ListedEntries:
    """Returns the entries below `files/<prefix>/`, in no order; empty when the directory does not exist."""
    rows: dict[str, list[Any]] = {name: [] for name in ENTRIES.names}
    place = Place(root) / "files" / prefix
    unknown = 0
    found = _local(place.local) if place.local else _retained_objects(str(place))
    for name, size, changed_ns, links in found:
        content = content_of(name)
        if content is None or size is None or content[0][:2] != prefix:
            unknown += not name.startswith(".")
            continue
        for column, value in zip(rows.values(), (*content, size, changed_ns, links), strict=True):
            column.append(value)
    return ListedEntries(pa.table(rows, schema=ENTRIES), unknown)


def prefixes(root: str) -> tuple[str, ...]:
    """Returns those of the 256 possible directories in `files/` that exist."""
    return tuple(sorted(_PREFIX_SET.intersection((Place(root) / "files").list())))


def foreign_names(root: str) -> int:
    """Returns the number of names directly in `files/` that are not one of the 256 directories."""
    names = (Place(root) / "files").list()
    return sum(name not in _PREFIX_SET and not name.startswith(".") for name in names)


def estimate(root: str) -> int:
    """Returns the approximate number of entries, from a sample of the directories."""
    step, files = len(PREFIXES) // SAMPLE, Place(root) / "files"
    return sum(len((files / prefix).list()) for prefix in PREFIXES[::step]) * step


_PREFIX_SET = frozenset(PREFIXES)

_Found = list[tuple[str, int | None, int | None, int]]  # name, size (None: not a file), changed_ns, links


def _local(directory: str) -> _Found:
    found: _Found = []
    with naming(directory):
        try:
            scan = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return found
        with scan:
            for entry in scan:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed concurrently
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else None
                found.append((entry.name, size, status.st_ctime_ns, status.st_nlink))
    return found


def _retained_objects(place: str) -> _Found:
    try:
        listed = remote_store(place).directly_below(place)
    except (FileNotFoundError, NotADirectoryError):
        return []
    sizes = ((name, int(info["size"]) if info.get("type") == "file" else None, info) for name, info in listed)
    return [(name, size, object_time_ns(info) or None, 1) for name, size, info in sizes]
