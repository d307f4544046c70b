"""Places: what a path or URL means, and the few operations a store must offer there.

A place is a local path (`/w/t`), a `file:` URI (`file:/w/t`, `file:///w/t`) or a URL that fsspec knows (`s3a://b/t`).
Hadoop writes names into URIs as they are, so nothing here ever unquotes: `file:/w/p=a%20b` is a directory called
`p=a%20b`. Checksums, listings and keeping are elsewhere; loops over files keep the text (`spelling`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import posixpath
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cmroot.errors import Protected, UnknownPlace
from cmroot.store.hdfs.hdfs_store import SCHEMES, HdfsStore
from cmroot.store.local import Child, Children, Lacking, LocalStore, Names, status_of
from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import (
    is_local,
    join,
    local_path,
    name_of,
    naming,
    normal,
    parent,
    raise_named,
    refuse_credentials,
    scheme,
    split_authority,
)
from cmroot.text import unsafe

# ---- stores ----------------------------------------------------------------------------------------------------------
# Which store holds a place that is not local.


def remote_store(place: str) -> FsspecStore:
    """The store of a place, which names it; not of a local one."""
    refuse_credentials(place)
    if scheme(place) == "arrow_hdfs":
        raise UnknownPlace(f"{place}: its driver cannot replace a file in one step", hint="write hdfs:// instead")
    return HdfsStore(place) if scheme(place) in SCHEMES else FsspecStore(place)


# ---- place -----------------------------------------------------------------------------------------------------------


__all__ = ["Place", "is_local", "join", "local_path", "name_of", "normal", "parent", "scheme", "split_authority"]


_LOCAL = LocalStore()


@dataclass(frozen=True, slots=True)
class Place:
    """A place with its store bound; equal to any other spelling of it. Holds no connection: may be kept, and pickled.

    `text` is the spelling as given, for messages and for what others read: a metastore's `s3a://` stays `s3a://`;
    `normal` is the one spelling, for comparing. Raises UnknownPlace for an empty text, one with NUL, and one with `..`,
    whose meaning depends on links: `resolved` and `folded` read those that a person or a metastore has written.
    """

    text: str = field(compare=False)
    normal: str = field(init=False)

    def __post_init__(self) -> None:
        refuse_credentials(self.text)
        found = normal(self.text)
        if "\0" in found or ("/.." in found and "/../" in f"{found}/"):
            raise UnknownPlace(f"{self.text!r}: has NUL or `..`, which may lead anywhere", hint="write it without")
        object.__setattr__(self, "normal", found)

    def __truediv__(self, name: str) -> Place:
        """What has this name, or relative path, below. Raises UnknownPlace for one that leads elsewhere."""
        if unsafe(name):
            raise UnknownPlace(f"{self.text}: {name!r} cannot be the name of anything in it", hint=_FOREIGN)
        return Place(join(self.text, name))

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        """For the operating system's calls. Raises UnknownPlace for a place that is not local."""
        return local_path(self.text)

    @property
    def local(self) -> str:
        """The absolute path of a local place; "" elsewhere."""
        return self.normal if self.normal[0] == "/" else ""

    @property
    def name(self) -> str:
        return name_of(self.text)

    @property
    def parent(self) -> Place:
        """The place above; a filesystem's root or a bucket is its own parent."""
        return Place(parent(self.text))

    @property
    def store(self) -> LocalStore | FsspecStore:
        return _LOCAL if self.local else remote_store(self.text)

    def same_store(self, other: Place) -> bool:
        """Whether one store holds both: two local places (perhaps on two devices), or one scheme and bucket or host."""
        return split_authority(self.normal)[0] == split_authority(other.normal)[0]

    def is_below(self, other: Place) -> bool:
        """Whether this is the other, or lies below it, by their names: links are not followed (see `resolve`)."""
        return f"{self.normal}/".startswith(f"{other.normal.rstrip('/')}/")

    # Both stores have these, by whole paths. A missing file is FileNotFoundError.

    def read_bytes(self) -> bytes:
        return self.store.read_bytes(self._path)

    def write_bytes(self, data: bytes) -> None:
        """Publish a file: readers see the old content or the new, never a part. Parents are created."""
        self.store.write_bytes(self._path, data)

    def create_exclusive(self, data: bytes) -> bool:
        """Publish a file only if the name is free; True for exactly one of several callers."""
        return self.store.create_exclusive(self._path, data)

    def open_read(self) -> BinaryIO:
        return self.store.open_read(self._path)

    def open_stream(self) -> BinaryIO:
        """A forward-only stream, opened by a single request where the store allows it."""
        return self.store.open_stream(self._path)

    def open_write(self, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Write a file piece by piece: published when the block ends, nothing left when it raises. Not `durable`: it
        survives no crash before a `sync`."""
        return self.store.open_write(self._path, durable=durable)

    def open_new(self) -> AbstractContextManager[BinaryIO]:
        """As `open_write`, for a name that only its writer knows: what a crash leaves there has that name."""
        return self.store.open_new(self._path)

    def sweep(self, *, before: float = math.inf, deep: bool = False) -> Names:
        """Removes what killed writers have left half written in a directory (`deep`: and below it) and not touched
        since `before` (seconds since 1970); their paths, relative to it. Nothing for a directory that is missing.
        Safe to run twice."""
        return self.store.sweep(self._path, before=before, deep=deep)

    def exists(self) -> bool:
        """False only when the store says that there is nothing; an answer that cannot be had is raised."""
        return self.store.exists(self._path)

    def size(self) -> int:
        return self.store.size(self._path)

    def list(self) -> Names:
        """Names directly below, sorted, without those being written; [] when there is no such directory."""
        return self.store.list(self._path)

    def find(self) -> Names:
        """Relative names of all files below, sorted, without those being written; [] when there is none."""
        return self.store.find(self._path)

    def children(self) -> Children:
        """What is directly below, sorted, without files being written. Raises FileNotFoundError when there is no such
        directory, NotWritable for one that may not be read."""
        return self.store.children(self._path)

    def child(self) -> Child | None:
        """One name by itself; None when nothing is there."""
        return self.store.child(self._path)

    def move(self, target: Place) -> None:
        """Give a file of ours another name in the same store, replacing what is there. Object stores copy, then remove
        the old one, its version too: others' files are copied and removed by themselves."""
        self.store.move(self._path, target._path)

    def remove(self) -> None:
        """Remove a file; a missing one is no error, so it may run twice."""
        self.store.remove(self._path)

    def remove_own(self) -> bool:
        """As `remove`, of what only this program writes and nobody needs any more: a bucket with versions keeps neither
        one nor a delete marker. False when this user may not remove these; the name is free in any case."""
        return self.store.remove_own(self._path)

    def remove_own_tree(self) -> bool:
        """As `remove_own`, of a directory in which only this program writes, and all below."""
        return self.store.remove_own_tree(self._path)

    def replace_own(self, data: bytes) -> None:
        """As `write_bytes`, of what only this program writes: no version of the older content stays."""
        self.store.replace_own(self._path, data)

    def remove_uploads(self, begins: str = "", *, before: float = math.inf) -> int:
        """Ends unfinished uploads to this directory and below, of names that begin so, from before a time (seconds
        since 1970); how many. Nobody else may write such names. Safe to run twice. NotWritable when one may not."""
        return self.store.remove_uploads(self._path, begins, before=before)

    def lacking_rights(self) -> Lacking:
        """Rights (of S3) that this user lacks in this directory, and what stays for that; of those whose lack no error
        tells. Changes nothing."""
        return self.store.lacking_rights(self._path)

    def remove_tree(self) -> None:
        """Remove a directory and all below; a missing one is no error, so it may run twice."""
        self.store.remove_tree(self._path)

    def mkdirs(self, *, private: bool = False) -> None:
        """Make a directory and its parents; nothing to do on an object store. `private`: that only its owner may enter,
        unless it is there: its mode may have been chosen."""
        self.store.mkdirs(self._path, private=private)

    def sync(self) -> None:
        """Make everything written so far on this place's filesystem durable; nothing to do on an object store."""
        self.store.sync(self._path)

    @property
    def _path(self) -> str:
        """As given where a store's own messages show it; resolved where it would depend on the working directory."""
        return self.local or self.text


_FOREIGN = "it was damaged or made by somebody else: nothing of it is used"


# ---- resolve ---------------------------------------------------------------------------------------------------------
# Real places: whether two places touch, whatever their spelling and whichever links lead there.
#
# Every rule that protects a place (a legal hold, `--protect`, `$cmroot` itself, another table's data) compares here:
# text alone tells nothing about `/w/a/../b`, `file:///w//b` or a symbolic link.


def resolved(place: str) -> str:
    """One spelling for each directory: absolute, without `.`, `..` and, on a local filesystem, symbolic links.

    The place, or a tail of it, may be missing. On other stores `..` is folded as Hadoop's Path does. Raises what
    `naming` raises when the store cannot tell (a parent that this user may not search, a failing disk): an unknown
    place is never taken for a harmless one.
    """
    if not is_local(place):
        head, path = split_authority(normal(place))
        return head + posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
    path, missing = local_path(place), ""
    while True:
        try:
            found = os.path.normpath(os.path.join(os.path.realpath(path, strict=True), missing))
            return resolved(found) if ".." in missing.split("/") else found  # what `..` came back to may be a link
        except (FileNotFoundError, NotADirectoryError):
            status = status_of(path, follow=False)
            if status is not None and stat.S_ISLNK(status.st_mode):  # it leads to a place that is missing
                path = os.path.join(os.path.dirname(path), os.readlink(path))
            else:
                path, name = os.path.split(path)
                missing = os.path.join(name, missing) if missing else name
        except OSError as error:
            raise_named(error, path)


def as_written(text: str) -> Place:
    """The place that a person means, in its normal form: on a local filesystem `..` leads where the system would go.
    UnknownPlace for a text that is no place."""
    dotted = is_local(text) and "/../" in f"{text}/" and "\0" not in text
    return Place(resolved(text) if dotted else Place(text).normal)


def located(location: str) -> Place:
    """The place that a metastore's location means to its readers: `..` is folded (see `folded`), and only then is the
    spelling another. UnknownPlace for a text that is no place."""
    return Place(folded(location) if "/.." in location else location)


def folded(place: str) -> str:
    """A place by its text alone, `.` and `..` folded as Hadoop's Path does it: what a metastore's location means where
    the store cannot be asked. Nothing leads above a filesystem's root or a bucket."""
    text = normal(place)
    if "/." not in text:
        return text
    head, path = split_authority(text)
    return head + (posixpath.normpath("/" + path.lstrip("/")).rstrip("/") or "/")


def tidied(place: str) -> str:
    """A folded place with its original scheme, for locations in a metastore: a server that has `s3a` has no `s3`."""
    text = folded(place)
    return text if is_local(place) else place.partition("://")[0] + text[text.index("://") :]


def is_within(place: str, other: str) -> bool:
    """Whether a resolved place is the other, or lies below it."""
    return f"{place.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def touches(one: str, other: str) -> bool:
    """Whether two resolved places are the same, or one lies in the other."""
    return is_within(one, other) or is_within(other, one)


def refuse_root(root: str, place: str) -> None:
    """Raises Protected for a place at, in or around a change-management root: this one, and on a local filesystem any.
    To be asked right before anything outside of it is moved or removed. Costs a few stat calls."""
    real, own = resolved(place), resolved(root)
    if touches(real, own):
        raise _protected(place, root)
    if not is_local(place):
        return
    above = real
    while above != "/":
        if _is_root(above):
            raise _protected(place, above)
        above = os.path.dirname(above)


def _is_root(directory: str) -> bool:
    path = f"{directory}/FORMAT"
    try:
        with open(path, "rb") as file:
            return b'"cmroot"' in file.read(1 << 10)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        raise_named(error, path)


def _protected(place: str, root: str) -> Protected:
    return Protected(
        f"{place}: lies around {root} or in it, and a change-management root is nobody's data",
        hint="put $cmroot beside the tables, not among them; a table whose location is there is to get another",
    )


# ---- scratch ---------------------------------------------------------------------------------------------------------
# Scratch directories: one process works in one until it is done; what killed ones left goes with the next. Acts.


@contextlib.contextmanager
def scratch(kind: str, directory: str | None = None) -> Iterator[Path]:
    """A new `replicator-<kind>-<host>-*`, private to this user, in a directory (None: the system's). Those that ended
    processes of this host left go before: a living process holds a lock on its own."""
    above = Path(directory or tempfile.gettempdir())
    head = f"replicator-{kind}-{socket.gethostname()}-"
    _sweep(above, head)
    place, lock = _made(above, head)
    try:
        yield Path(place.name)
    finally:
        place.cleanup()
        os.close(lock)


def _made(above: Path, head: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    while True:
        place = tempfile.TemporaryDirectory(prefix=head, dir=above)
        lock = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody sweeps there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink and os.path.isdir(place.name):
            return place, lock
        os.close(lock)  # somebody's sweep came before the lock


def _sweep(above: Path, head: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(above):
            if entry.name.startswith(head) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another user's, or gone
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(lock)


# ---- emptied ---------------------------------------------------------------------------------------------------------
# Emptied directories: whoever takes the last out of one takes it away, too, and nobody else's with it. Acts.


_STAYS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY})
"""It holds something, is gone, is a file or a symbolic link by now, or something is mounted there."""


def remove_if_empty(place: str | None) -> bool:
    """Whether an empty directory went; None, and an object store, have none. Raises NotWritable, or the
    OSError, for one that is empty, as far as one can tell, and does not go. May run twice."""
    if not place:
        return False
    path = local_path(place) if is_local(place) else place
    with naming(path):
        try:
            if not is_local(place):
                return remote_store(place).remove_directory(place)
            os.rmdir(path)
        except OSError as error:
            if error.errno not in _STAYS:
                raise
            return False
    return True
