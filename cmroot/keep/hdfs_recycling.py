"""Recycling within one HDFS namespace: a rename into `recycling/<id>/`, where a file has its original path.

So the rename also records the origin, in one step that a crash cannot split. A file below `recycling/` is hashed,
passed to the recorder, and renamed to its content name; the next sweep files all that remain there. No bytes are
written. Where a rename is refused (an encryption zone, a snapshot, permissions, another namespace), the caller copies.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from dataclasses import dataclass, field

import msgspec

from cmroot.errors import Error, KeepError, NoSpace
from cmroot.keep.content import Kept, locate
from cmroot.keep.objects import keep_and_check, read_object
from cmroot.store.hdfs.hdfs_store import HdfsStore
from cmroot.store.hdfs.native import told
from cmroot.store.listing import file_state
from cmroot.store.place import Place, join, normal, parent, scheme, split_authority
from cmroot.store.spelling import naming

DIRECTORY = "recycling"

_PATIENCE = 60.0
"""Seconds until a file whose writer ended or was fenced off is closed: its DataNodes agree on its last block."""

_PAUSE = 0.25

_UNSETTLED = frozenset({errno.EAGAIN, errno.EDQUOT, errno.ENOSPC})
"""Errors of a rename that a copy would also meet."""

_AS_IT_IS = (1 << 64) - 1
"""The value that leaves a time unchanged (-1 in 64 bits): a NameNode without access times refuses any other."""


def renames_within(root: str, path: str) -> bool:
    """Returns True if a rename into the root is worth trying: both paths are in one HDFS namespace."""
    places = normal(root), normal(path)
    return {scheme(place) for place in places} == {"hdfs"} and len({split_authority(each)[0] for each in places}) == 1


@dataclass(frozen=True)
class RenamedEntry:
    """A file, or a directory with everything below it, moved by one rename. `top`: its location in `recycling/`."""

    root: str
    top: str
    _store: HdfsStore = field(init=False)
    _copied: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_store", HdfsStore(self.top))

    def files(self) -> list[str]:
        """Returns all files, sorted, including hidden ones."""
        authority = split_authority(normal(self.top))[0]
        return sorted(f"{authority}{key}" for key in self._store.tree(self.top))

    def origin(self, path: str) -> str:
        """Returns the original path of a file in it."""
        return split_authority(normal(self.top))[0] + path[len(self.top) :]

    def file(self, path: str) -> Kept:
        """Hashes the file once it is closed for writing, and sets its modification time to now, because its age counts
        from that. If this user may not, the file is copied. Raises KeepError when its writer cannot be fenced off."""
        before = file_state(path)
        try:
            with naming(path):
                self._close(path)
                with told():
                    now = int(time.time() * 1000)
                    self._store.filesystem.client.set_times(self._store.key(path), now, _AS_IT_IS)
        except KeepError:
            raise
        except Error as error:
            if not _refused(error):
                raise
            self._copied.add(path)
            return keep_and_check(self.root, path)
        return msgspec.structs.replace(read_object(path), mtime_ns=before.mtime_ns, identity=before.identity)

    def let_go(self, path: str, kept: Kept) -> None:
        """Renames the file to its content name, replacing equal bytes that are retained already. A file that may not be
        moved there (a zone begins below the renamed directory) is copied, then removed."""
        if path not in self._copied:
            try:
                Place(path).move(Place(locate(self.root, kept.checksum, kept.size)))
                return
            except FileNotFoundError:
                raise
            except (Error, OSError) as error:
                if not _refused(error):
                    raise
            keep_and_check(self.root, path)
        Place(path).remove()

    def remove_emptied(self) -> bool:
        """Removes the empty directories. Returns False when they contain a file again."""
        keys = self._store.tree(self.top, directories=True)
        if any(info["type"] == "file" for info in keys.values()):
            return False
        for key in sorted({self._store.key(self.top), *keys}, reverse=True):
            self._remove_directory(key)
        return True

    def _remove_directory(self, key: str) -> None:
        with naming(key):
            try:
                self._store.filesystem.rmdir(key)
            except FileNotFoundError:
                return

    def _close(self, path: str) -> None:
        """Revokes the lease of a writer that has the file open: its later writes would not be in the checksum."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with told():
                if self._store.filesystem.client.recover_lease(self._store.key(path)):
                    return
            if time.monotonic() > deadline:
                raise KeepError(f"{path}: is being written", hint="end its writer; the next sweep finishes this")
            time.sleep(_PAUSE)


def take(root: str, path: str) -> RenamedEntry | None:
    """Renames a file or directory into the root; returns None if that is refused and nothing has changed. Raises
    FileNotFoundError when it does not exist."""
    store = HdfsStore(root)
    top = join(root, DIRECTORY, f"{os.getpid()}-{uuid.uuid4().hex}")
    entry = RenamedEntry(root, top)
    taken = normal(top) + store.key(path)
    try:
        store.mkdirs(parent(taken))
        with naming(path):
            store.filesystem.mv(store.key(path), store.key(taken), overwrite=False)
    except FileNotFoundError:
        if store.exists(taken):  # moved by an earlier call that was sent again because its answer was lost
            return entry
        entry.remove_emptied()
        raise
    except (Error, OSError) as error:
        if not _refused(error):
            raise
        entry.remove_emptied()
        return None
    return entry


def left_entries(root: str) -> list[RenamedEntry]:
    """Returns the entries left by killed runs; call under the lease."""
    if scheme(root) != "hdfs":
        return []
    place = Place(root) / DIRECTORY
    return [RenamedEntry(root, str(place / name)) for name in place.list()]


def _refused(error: Error | OSError) -> bool:
    """Returns True if a change was refused because of its target, not by an unavailable or read-only NameNode."""
    if isinstance(error, Error):
        return not error.transient and not isinstance(error, NoSpace)
    return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in _UNSETTLED
