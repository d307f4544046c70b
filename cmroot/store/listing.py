"""Listing files below a location, and finding recorded directories that have changed since. Reads only; hashes nothing.

A directory's modification time changes when a name in it is added, removed or replaced; it does not change when a
file's bytes are modified in place, which no table format does. (The checksum detects that when the bytes are used.)
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from cmroot.store import hudi
from cmroot.store.delta import LOG, beyond
from cmroot.store.objects import object_identity, object_time_ns
from cmroot.store.place import Place, is_local, join, local_path, name_of, remote_store
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
    an empty part; they are in neither of the other lists. is_whole: the files are one state of a Hudi table, of which
    none may be left out."""

    files: list[FileState]
    directories: list[DirectoryState]
    unnamed: list[str] = []
    is_whole: bool = False

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
    name, or that of a directory above it, begins with `_`, or it is called a manifest. False for files of a Delta log
    or a Hudi timeline, and below directories of partition values."""
    if "_" not in path and "manifest" not in path:
        return False
    names = path.split("/")
    if LOG in names or hudi.HOME in names:
        return False
    return any(name[:1] == "_" and "=" not in name for name in names) or "manifest" in names[-1].lower()


TRIES = 5
"""Listings of a Hudi table from which its cleaner removes files at the same time."""


class Cleaned(OSError):
    """Files of a Hudi table were removed while it was listed, each time: no listing is one state of it."""


def list_tree(location: str, *, now_ns: Callable[[], int] = time.time_ns, unfinished: bool = False) -> Listing | None:
    """Returns every file below a location; None when the directory does not exist (on object stores: no objects below
    it). A location that is one file, as a Spark table may have, contains that file, with the name "".

    A file or directory that vanishes concurrently is left out: its parent's recorded time is older than that change.
    Of a Hudi table: the files, hidden ones too, of the instants that were completed when it was listed; raises Cleaned.
    unfinished: also those of other instants. `now_ns` returns the filesystem's current time.
    """
    for _ in range(TRIES):
        listing = list_local(local_path(location), now_ns) if is_local(location) else _list_objects(location)
        if listing is None or not listing.is_whole or unfinished:
            return listing
        if (whole := _of_one_state(location, listing)) is not None:
            return whole
    raise Cleaned(f"{location}: its cleaner removed files during each of {TRIES} listings")


def _of_one_state(location: str, listing: Listing) -> Listing | None:
    """Returns the files of a Hudi table's completed instants; None if others were removed since it was listed."""
    paths = [file.path_relative for file in listing.files]
    now = (f"{each}/{name}" for each in hudi.TIMELINES for name in Place(join(location, each)).list())
    if not hudi.removals(now) <= hudi.removals(paths):
        return None
    state = hudi.State(paths)
    return msgspec.structs.replace(listing, files=[file for file in listing.files if state.has(file.path_relative)])


def list_local(
    top: str, now_ns: Callable[[], int], within: Callable[[str], bool] = lambda name: True
) -> Listing | None:
    """Lists a Delta table's log before everything else: a later listing contains all files that the log names. So are a
    Hudi table's timelines, with files of instants that are not completed. within: selects the directories at the top
    by name."""
    listed_ns = now_ns()  # once, before everything: an earlier time is only safer
    files: list[FileState] = []
    directories: list[DirectoryState] = []
    unnamed: list[str] = []
    waiting = deque([""])
    log_listed = is_hudi = False
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
                found, below, strange = _scan(path, prefix, hidden=is_hudi)
                below = [name for name in below if relative or within(name)]
                if not relative and not log_listed and (first := _listed_first(below)):  # and then the table again
                    waiting, log_listed, is_hudi = deque(["", *reversed(first)]), True, hudi.HOME in below
                    continue
                below = [name for name in below if name != hudi.HOME or is_hudi]
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
        (waiting.extendleft if is_hudi else waiting.extend)(below)  # the timelines come before all others
    files.sort(key=lambda file: file.path_relative)
    directories.sort(key=lambda directory: directory.relative)
    return Listing(files, directories, sorted(unnamed), is_whole=is_hudi)


def _listed_first(below: Sequence[str]) -> Sequence[str]:
    """Returns the directories of a table's log, in their order; none for other tables."""
    return hudi.TIMELINES if hudi.HOME in below else [LOG] if LOG in below else []


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


def _scan(path: str, prefix: str, *, hidden: bool) -> tuple[list[FileState], list[str], list[str]]:
    """Returns files, directories, and names that are not valid text. hidden: also a Hudi table's hidden ones."""
    files, below, unnamed = [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(".") and not hidden and (prefix or name != hudi.HOME):
                continue
            if not is_text(name):
                unnamed.append(shown(prefix + name) + ("/" if entry.is_dir() else ""))
                continue
            if entry.is_dir():
                if hudi.is_walked(name, prefix + name) if hidden or name == hudi.HOME else name not in UNFINISHED:
                    below.append(prefix + name)
                continue
            if not (hudi.belongs(prefix + name) if hidden else name[:1] != "."):
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
    if f"{prefix}{hudi.PROPERTIES}" in found or f"{prefix}{hudi.BACKUP}" in found:
        return _list_hudi_objects(location, found)
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


def _list_hudi_objects(location: str, found: dict[str, dict[str, Any]]) -> Listing:
    """Lists a table whose timeline has been listed: then that of its table of metadata, then the rest."""
    store, prefix = remote_store(location), key_prefix(location)

    def instants(keys: dict[str, dict[str, Any]], of_metadata: bool) -> dict[str, dict[str, Any]]:
        named = ((key, hudi.instant_of(key[len(prefix) :])) for key in keys)
        return {key: keys[key] for key, each in named if each is not None and each.of_metadata is of_metadata}

    first = instants(found, of_metadata=False)
    second = instants(store.tree(join(location, f"{hudi.METADATA}/{hudi.HOME}")), of_metadata=True)
    rest = {key: info for key, info in store.tree(location).items() if hudi.instant_of(key[len(prefix) :]) is None}
    return listed_objects(prefix, first | second | rest, is_hudi=True)


def key_prefix(location: str) -> str:
    return remote_store(location).key(location).rstrip("/") + "/"


def listed_objects(prefix: str, found: dict[str, dict[str, Any]], *, is_hudi: bool = False) -> Listing:
    files, unnamed = [], []
    for key, info in found.items():
        relative = key[len(prefix) :]
        if not key.startswith(prefix) or not relative or relative.endswith("/") or info.get("type") == "directory":
            continue
        *above, name = relative.split("/")
        is_hidden = hidden(name) or any(skipped_directory(part) for part in above)
        if not hudi.belongs(relative) if is_hudi else is_hidden:
            continue
        if unsafe(relative):  # an empty part, which Hadoop's Path cannot express
            unnamed.append(relative)
            continue
        files.append(object_state(relative, info))
    files.sort(key=lambda file: file.path_relative)
    return Listing(files, [], sorted(unnamed), is_whole=is_hudi)


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
