"""Retaining files when at least one of the two stores is accessed through fsspec: read, hash, copy to a staging file,
rename. Descriptors and links, as used on local filesystems, are replaced by comparing the state that the store reports
for the source before and after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cmroot.errors import ChecksumMismatch
from cmroot.keep.content import ATTEMPTS, Kept, fresh_incoming, is_kept, locate, name_incoming, unsteady
from cmroot.store import objects
from cmroot.store.checksum import ALGORITHM, checksum_at, checksum_stream, copy_stream
from cmroot.store.listing import FileState, file_state, object_state
from cmroot.store.place import Place, name_of, remote_store, scheme
from cmroot.store.remote import FsspecStore
from cmroot.store.s3 import Stream, copy_if
from cmroot.store.spelling import naming


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
            f"{final}: holds other bytes than its name says, so {path} was not removed",
            hint="look at the store for errors, remove the damaged file, then run the same command again",
        )
    return kept


def remove_source(path: str, kept: Kept) -> None:
    """Removes a file if it is unchanged since it was retained. Raises KeepError when it has changed."""
    now = file_state(path)
    if (now.identity, now.mtime_ns, now.size) != (kept.identity, kept.mtime_ns, kept.size):
        raise unsteady(path)
    Place(path).remove()


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
