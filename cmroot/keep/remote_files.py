"""Retaining files of stores other than local disks: copies through fsspec, and renames within one HDFS namespace.

Copies: read, hash, copy to a staging file, rename. In place of descriptors and links, the state that the store reports
for the source is compared before and after. HDFS: a removed file is renamed into `recycling/<id>/`, where it has its
original path: this records the origin in one step that a crash cannot split. There it is hashed, passed to the
recorder, and renamed to its content name; the next sweep files all that remain. No bytes are written. Where a rename is
refused (an encryption zone, a snapshot, permissions, another namespace), the caller copies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from cmroot.errors import ChecksumMismatch, Error, KeepError, NoSpace
from cmroot.keep.content import ATTEMPTS, Kept, fresh_incoming, is_kept, locate, name_incoming, unsteady
from cmroot.store import objects
from cmroot.store.checksum import ALGORITHM, checksum_at, checksum_stream, copy_stream
from cmroot.store.hdfs import HdfsStore, told
from cmroot.store.listing import FileState, file_state, object_state
from cmroot.store.place import Place, join, name_of, normal, parent, remote_store, scheme, split_authority
from cmroot.store.remote import FsspecStore
from cmroot.store.s3 import Stream, copy_if
from cmroot.store.spelling import naming

# ---- copies ----------------------------------------------------------------------------------------------------------


def read_object(path: str) -> Kept:
    """Returns the checksum of a file on any store, read while no writer changed it."""
    for _ in range(ATTEMPTS):
        with _reading(path) as source:
            checksum, size = checksum_stream(source.stream)
        if source.was_steady(size):
            return Kept(size, source.state.mtime_ns, source.state.identity, ALGORITHM, checksum)
    raise unsteady(path)


def keep_object(root: str, path: str, *, renew: bool = False) -> Kept:
    """Copies a file of any store into a root on any store. Within one object store the server copies. `renew`: content
    that is retained already is replaced by equal bytes, so that it is as young as a new one; else it is unchanged."""
    if not Place(root).local and Place(root).same_store(Place(path)):
        return _keep_by_server(root, path, renew)
    for _ in range(ATTEMPTS):
        staged = Place(fresh_incoming(root, "copy"))
        with _reading(path) as source, staged.open_new() as target:
            checksum, size = copy_stream(source.stream, target)
        kept = Kept(size, source.state.mtime_ns, source.state.identity, ALGORITHM, checksum)
        if source.was_steady(size):
            _name(root, staged, kept, renew)
            return kept
        staged.remove_own()
    raise unsteady(path)


def keep_and_check(root: str, path: str) -> Kept:
    """Retains a file, as young as if it were new, and reads the retained bytes back: required before the source may be
    removed."""
    kept = keep_object(root, path, renew=True)
    final = locate(root, kept.checksum, kept.size)
    if checksum_at(final) != (kept.checksum, kept.size):
        raise ChecksumMismatch(
            f"{final}: its content does not match its name, so {path} was not removed",
            hint="check the store for errors, remove the damaged file, then run the same command again",
        )
    return kept


def remove_source(path: str, kept: Kept) -> None:
    """Removes a file if it is unchanged since it was retained. Raises KeepError when it has changed."""
    refuse_changed(path, kept)
    Place(path).remove()


def refuse_changed(path: str, kept: Kept) -> None:
    """Raises KeepError for a file that has changed since it was retained; called right before it is replaced."""
    now = file_state(path)
    if (now.identity, now.mtime_ns, now.size) != (kept.identity, kept.mtime_ns, kept.size):
        raise unsteady(path)


@dataclass(frozen=True)
class _Source:
    """A file that is being read, and its state as reported by the store before. `whole`: both are from one response."""

    path: str
    stream: BinaryIO
    state: FileState
    whole: bool

    def was_steady(self, size: int) -> bool:
        """Returns True if the `size` bytes that were read are those of the file in the reported state."""
        now = self.state if self.whole else file_state(self.path)
        return size == now.size and (now.identity, now.mtime_ns) == (self.state.identity, self.state.mtime_ns)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[_Source]:
    if scheme(path) == "s3":
        with Place(path).open_stream() as stream:
            assert isinstance(stream, Stream)
            yield _Source(path, stream, object_state(name_of(path), stream.info), whole=True)
    else:
        before = file_state(path)
        with Place(path).open_stream() as stream:
            yield _Source(path, stream, before, whole=False)


def _keep_by_server(root: str, path: str, renew: bool) -> Kept:
    store = remote_store(root)
    for _ in range(ATTEMPTS):
        kept = read_object(path)
        if not renew and is_kept(root, kept.checksum, kept.size):
            return kept
        if kept.size > objects.WHOLE_COPY or store.heeds(fresh_incoming(root, "probe")).copies:
            if _copied_as_read(store, path, locate(root, kept.checksum, kept.size), kept):
                return kept
            continue
        staged = Place(fresh_incoming(root, "copy"))
        store.copy(path, str(staged))
        if file_state(path).identity == kept.identity and staged.size() == kept.size:
            _name(root, staged, kept, renew)
            return kept
        staged.remove_own()
    raise unsteady(path)


def _copied_as_read(store: FsspecStore, path: str, final: str, kept: Kept) -> bool:
    with naming(final):
        small = kept.size <= objects.WHOLE_COPY
        if small and copy_if(store.filesystem, store.key(path), store.key(final), kept.identity):
            return True
        try:  # its version, where there is one: some stores compare with an older one
            old = objects.original(store.filesystem, store.key(path))
        except FileNotFoundError:
            return False
        return old.etag == kept.identity and objects.copy(store.filesystem, old, store.key(final))


def _name(root: str, staged: Place, kept: Kept, renew: bool) -> None:
    if staged.local:
        name_incoming(Place(root).local, staged.local, kept)
        return
    if not renew and is_kept(root, kept.checksum, kept.size):
        staged.remove_own()
    else:
        staged.move(Place(locate(root, kept.checksum, kept.size)))


# ---- renames on HDFS -------------------------------------------------------------------------------------------------


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
                raise KeepError(f"{path}: is being written", hint="stop its writer; the next sweep completes this")
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
