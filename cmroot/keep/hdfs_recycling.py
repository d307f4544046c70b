"""Recycling within one namespace of HDFS: a rename into `recycling/<id>/`, where a file has the path that it had.

So the rename is the record of the origin, too: one step that a crash cannot tear. A file below `recycling/` is hashed,
told to the recorder, and renamed to the name of its content; whatever is left there is filed by the next sweep. No
bytes are written. Where a rename is refused (an encryption zone, a snapshot, rights, another namespace), the caller
copies.
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
"""Seconds until a file whose writer went away, or was sent away, is closed: its DataNodes agree on its last block."""

_PAUSE = 0.25

_UNSETTLED = frozenset({errno.EAGAIN, errno.EDQUOT, errno.ENOSPC})
"""Errors of a rename that a copy would meet as well."""

_AS_IT_IS = (1 << 64) - 1
"""For a time that stays (-1 of 64 bits): a NameNode without access times refuses any other."""


def renames_within(root: str, path: str) -> bool:
    """Whether a rename into the root is worth trying: both are of one namespace of HDFS."""
    places = normal(root), normal(path)
    return {scheme(place) for place in places} == {"hdfs"} and len({split_authority(each)[0] for each in places}) == 1


@dataclass(frozen=True)
class RenamedEntry:
    """What one rename took: a file, or a directory with all that is below it. `top`: its place in `recycling/`."""

    root: str
    top: str
    _store: HdfsStore = field(init=False)
    _copied: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_store", HdfsStore(self.top))

    def files(self) -> list[str]:
        """Sorted; hidden ones, too."""
        authority = split_authority(normal(self.top))[0]
        return sorted(f"{authority}{key}" for key in self._store.tree(self.top))

    def origin(self, path: str) -> str:
        """Where a file of it was."""
        return split_authority(normal(self.top))[0] + path[len(self.top) :]

    def file(self, path: str) -> Kept:
        """What the file is, once nobody writes to it any more. It is as young as now from here on: its age is its time.
        Where this user may not do so, it is kept by a copy. KeepError when its writer cannot be sent away."""
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
        """Gives it the name of its content, in place of equal bytes that are kept already. A file that may not be moved
        there (a zone begins below what was renamed) is copied, and removed."""
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
        """False when there is a file in it again."""
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
        """Sends the writer away that has it open: what it writes later would not be what was hashed."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with told():
                if self._store.filesystem.client.recover_lease(self._store.key(path)):
                    return
            if time.monotonic() > deadline:
                raise KeepError(f"{path}: is being written", hint="end its writer; the next sweep finishes this")
            time.sleep(_PAUSE)


def take(root: str, path: str) -> RenamedEntry | None:
    """Renames a file or directory into the root; None where that is refused, and nothing has changed. FileNotFoundError
    when it is gone."""
    store = HdfsStore(root)
    top = join(root, DIRECTORY, f"{os.getpid()}-{uuid.uuid4().hex}")
    entry = RenamedEntry(root, top)
    taken = normal(top) + store.key(path)
    try:
        store.mkdirs(parent(taken))
        with naming(path):
            store.filesystem.mv(store.key(path), store.key(taken), overwrite=False)
    except FileNotFoundError:
        if store.exists(taken):  # by a call whose answer was lost, and which was sent again
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
    """What killed runs left; under the lease."""
    if scheme(root) != "hdfs":
        return []
    place = Place(root) / DIRECTORY
    return [RenamedEntry(root, str(place / name)) for name in place.list()]


def _refused(error: Error | OSError) -> bool:
    """Whether a change was refused for what it was to change; not where the NameNode was away, or says no to all."""
    if isinstance(error, Error):
        return not error.transient and not isinstance(error, NoSpace)
    return not isinstance(error, ConnectionError | TimeoutError) and error.errno not in _UNSETTLED
