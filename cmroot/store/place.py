"""`Place`, the location of a file or directory on any store: its parsed path or URL, and the few operations that a
store must provide there.

A place is a local path (`/w/t`), a `file:` URI (`file:/w/t`, `file:///w/t`) or a URL that fsspec supports
(`s3a://b/t`). Hadoop writes names into URIs unescaped, so nothing here ever unquotes: `file:/w/p=a%20b` is a directory
called `p=a%20b`. Checksums, listings and retention are in other modules; loops over files use plain text (`spelling`).
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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cmroot.errors import NotWritable, Protected, UnknownPlace
from cmroot.store import local
from cmroot.store.hdfs import ATTRIBUTES, SCHEMES, HdfsStore, carry_attributes
from cmroot.store.local import LARGEST, Child, Children, Lacking, LocalStore, Names, copy_rights, status_of
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
# The store of a place that is not local.


def remote_store(place: str) -> FsspecStore:
    """Returns the store of a place that is not local."""
    refuse_credentials(place)
    if scheme(place) == "arrow_hdfs":
        raise UnknownPlace(f"{place}: its driver cannot replace a file in one step", hint="write hdfs:// instead")
    return HdfsStore(place) if scheme(place) in SCHEMES else FsspecStore(place)


def give_rights(source: str, target: str, names: Sequence[str] = ATTRIBUTES) -> str:
    """Gives a file or directory the rights of the one that it replaces; names: those wanted on HDFS. Returns a text
    that names those it cannot have, or "". Objects get theirs as they are copied (`copy_like`). May run twice."""
    if is_local(source) and is_local(target):
        return ", ".join(copy_rights(local_path(source), local_path(target)))
    lacking = dict[str, str]()
    carry_attributes(source, target, names, lacking)
    return ", ".join(f"{name} ({why})" for name, why in lacking.items())


def make_inheriting(directory: str, home: str = "") -> str:
    """Creates a directory of a partition, unless it exists: on a disk see `local.make_inheriting`; on HDFS it gets the
    mode of its table's directory `home`, if that exists, and by the NameNode the group and the default ACL of the one
    above it. Returns what this user may not give. May run twice."""
    if is_local(directory):
        with naming(directory):
            return local.make_inheriting(local_path(directory), local_path(home) if home and is_local(home) else "")
    if home and {scheme(directory), scheme(home)} <= SCHEMES:
        HdfsStore(directory).make_inheriting(directory, home)
    return ""


def inherit(directory: str, home: str) -> str:
    """Gives an existing directory what `make_inheriting` gives to a new one. Returns what this user may not give."""
    if is_local(directory) and is_local(home):
        return local.inherit(local_path(directory), local_path(home))
    try:
        carry_attributes(home, directory, {"mode"})
    except NotWritable as error:
        return f"mode ({error.message})"
    return ""


# ---- place -----------------------------------------------------------------------------------------------------------


__all__ = ["Place", "is_local", "join", "local_path", "name_of", "normal", "parent", "scheme", "split_authority"]


_LOCAL = LocalStore()


@dataclass(frozen=True, slots=True)
class Place:
    """A place with its store bound; equal however it is written. Holds no connection: may be stored, and pickled.

    `text` is the place as written, for messages and other readers: a metastore's `s3a://` remains `s3a://`; `normal` is
    the normalised form, for comparing. Raises UnknownPlace for an empty text, one with NUL, and one with `..`, whose
    meaning depends on links: `resolved` and `folded` read such places, written by a user or a metastore.
    """

    text: str = field(compare=False)
    normal: str = field(init=False)

    def __post_init__(self) -> None:
        refuse_credentials(self.text)
        found = normal(self.text)
        if "\0" in found or ("/.." in found and "/../" in f"{found}/"):
            raise UnknownPlace(
                f"{self.text!r}: contains NUL or `..`, which may lead anywhere", hint="write it without them"
            )
        object.__setattr__(self, "normal", found)

    def __truediv__(self, name: str) -> Place:
        """Returns the place with this name, or relative path, below. Raises UnknownPlace if it leads elsewhere."""
        if unsafe(name):
            raise UnknownPlace(f"{self.text}: {name!r} is not a valid name in it", hint=_FOREIGN)
        return Place(join(self.text, name))

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        """Returns the path for system calls. Raises UnknownPlace for a place that is not local."""
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
        """Returns True if one store holds both: two local places (on any device), or one scheme and bucket or host."""
        return split_authority(self.normal)[0] == split_authority(other.normal)[0]

    def is_below(self, other: Place) -> bool:
        """Returns True if this is the other place, or below it, by name: links are not followed (see `resolved`)."""
        return f"{self.normal}/".startswith(f"{other.normal.rstrip('/')}/")

    # Both stores have these methods, with complete paths. A missing file raises FileNotFoundError.

    def read_bytes(self, most: int = LARGEST, *, follow: bool = False) -> bytes:
        """Returns the content of a regular file. follow: it may be a link, as a file that a user names. Raises
        FormatError for another kind of file, and for one of more than `most` bytes."""
        return self.store.read_bytes(self._path, most, follow=follow)

    def write_bytes(self, data: bytes) -> None:
        """Publishes a file: readers see the old content or the new, never a part. Creates parents."""
        self.store.write_bytes(self._path, data)

    def create_exclusive(self, data: bytes) -> bool:
        """Publishes a file only if the name is free; returns True for exactly one of several callers."""
        return self.store.create_exclusive(self._path, data)

    def open_read(self) -> BinaryIO:
        return self.store.open_read(self._path)

    def open_stream(self) -> BinaryIO:
        """Opens a forward-only stream, by a single request where the store allows it."""
        return self.store.open_stream(self._path)

    def open_write(self, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Writes a file incrementally: published when the block ends; nothing remains when it raises. Not `durable`:
        may be lost in a crash before a `sync`."""
        return self.store.open_write(self._path, durable=durable)

    def open_new(self) -> AbstractContextManager[BinaryIO]:
        """Like `open_write`, for a name known only to its writer: a file left by a crash has that name."""
        return self.store.open_new(self._path)

    def sweep(self, *, before: float = math.inf, deep: bool = False) -> Names:
        """Removes incomplete files of killed writers in a directory (`deep`: and below it) that were not modified since
        `before` (seconds since 1970); returns their paths, relative to it. Does nothing for a missing directory. May
        run twice."""
        return self.store.sweep(self._path, before=before, deep=deep)

    def exists(self) -> bool:
        """Returns False only when the store reports that nothing exists; raises an error if it cannot be determined."""
        return self.store.exists(self._path)

    def size(self) -> int:
        return self.store.size(self._path)

    def list(self) -> Names:
        """Returns names directly below, sorted, without those being written; [] when the directory does not exist."""
        return self.store.list(self._path)

    def find(self) -> Names:
        """Returns relative names of all files below, sorted, without those being written; [] when there are none."""
        return self.store.find(self._path)

    def children(self) -> Children:
        """Returns the entries directly below, sorted, without files being written. Raises FileNotFoundError when the
        directory does not exist, NotWritable when it may not be read."""
        return self.store.children(self._path)

    def child(self) -> Child | None:
        """Returns the entry of this place; None when it does not exist."""
        return self.store.child(self._path)

    def move(self, target: Place) -> None:
        """Renames a file written by this program within its store, replacing an existing one. Object stores copy, then
        remove the old object, its version too: files of other writers must be copied and removed separately."""
        self.store.move(self._path, target._path)

    def remove(self) -> None:
        """Removes a file; a missing one is not an error. May run twice."""
        self.store.remove(self._path)

    def remove_own(self) -> bool:
        """Like `remove`, for files that only this program writes: a versioned bucket retains neither a version nor a
        delete marker. Returns False when this user may not remove those; the name is free in any case."""
        return self.store.remove_own(self._path)

    def remove_own_tree(self) -> bool:
        """Like `remove_own`, for a directory in which only this program writes, and everything below."""
        return self.store.remove_own_tree(self._path)

    def replace_own(self, data: bytes) -> None:
        """Like `write_bytes`, for files that only this program writes: no version of the older content is retained."""
        self.store.replace_own(self._path, data)

    def remove_uploads(self, begins: str = "", *, before: float = math.inf) -> int:
        """Aborts unfinished uploads to this directory and below, of names with this prefix, from before a time (seconds
        since 1970); returns their number. No other program may write such names. May run twice. Raises NotWritable if
        forbidden."""
        return self.store.remove_uploads(self._path, begins, before=before)

    def lacking_rights(self) -> Lacking:
        """Returns rights (of S3) that this user lacks in this directory and that no error would report, each with the
        objects that remain for lack of it. Changes nothing."""
        return self.store.lacking_rights(self._path)

    def remove_tree(self) -> None:
        """Removes a directory and everything below; a missing one is not an error. May run twice."""
        self.store.remove_tree(self._path)

    def mkdirs(self, *, private: bool = False) -> None:
        """Creates a directory and its parents; does nothing on an object store. `private`: accessible only to its
        owner, unless it exists already, because its mode may have been chosen."""
        self.store.mkdirs(self._path, private=private)

    def sync(self) -> None:
        """Makes everything written so far on this place's filesystem durable; does nothing on an object store."""
        self.store.sync(self._path)

    @property
    def _path(self) -> str:
        """The text as written, which appears in the store's own messages; the absolute path for local places."""
        return self.local or self.text


_FOREIGN = "the name is damaged, or from another program: nothing of it is used"


# ---- resolve ---------------------------------------------------------------------------------------------------------
# Resolving places: whether two places overlap, however they are written and whichever links lead to them.
#
# Every rule that protects a place (a legal hold, `--protect`, `$cmroot` itself, another table's data) compares here:
# text alone does not suffice for `/w/a/../b`, `file:///w//b` or a symbolic link.


def resolved(place: str) -> str:
    """Returns the unique path of a directory: absolute, without `.`, `..` and, on a local filesystem, symbolic links.

    The place, or a tail of it, may not exist. On other stores `..` is folded as in Hadoop's Path. Raises like `naming`
    when the store cannot resolve it (a parent that this user may not search, a failing disk): an unknown place is never
    treated as a safe one.
    """
    if not is_local(place):
        head, path = split_authority(normal(place))
        return head + posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
    path, missing = local_path(place), ""
    while True:
        try:
            found = os.path.normpath(os.path.join(os.path.realpath(path, strict=True), missing))
            return resolved(found) if ".." in missing.split("/") else found  # the target of `..` may be a link
        except (FileNotFoundError, NotADirectoryError):
            status = status_of(path, follow=False)
            if status is not None and stat.S_ISLNK(status.st_mode):  # its target does not exist
                path = os.path.join(os.path.dirname(path), os.readlink(path))
            else:
                path, name = os.path.split(path)
                missing = os.path.join(name, missing) if missing else name
        except OSError as error:
            raise_named(error, path)


def as_written(text: str) -> Place:
    """Returns the place that a user means, in its normal form: on a local filesystem `..` is resolved as by the system.
    Raises UnknownPlace for an invalid text."""
    dotted = is_local(text) and "/../" in f"{text}/" and "\0" not in text
    return Place(resolved(text) if dotted else Place(text).normal)


def located(location: str) -> Place:
    """Returns the place that a metastore's location denotes to its readers: `..` is folded (see `folded`); otherwise
    the text is unchanged. Raises UnknownPlace for an invalid text."""
    return Place(folded(location) if "/.." in location else location)


def folded(place: str) -> str:
    """Returns a place by its text alone, `.` and `..` folded as in Hadoop's Path: the meaning of a metastore's location
    where the store cannot be queried. Never leads above a filesystem's root or a bucket."""
    text = normal(place)
    if "/." not in text:
        return text
    head, path = split_authority(text)
    return head + (posixpath.normpath("/" + path.lstrip("/")).rstrip("/") or "/")


def relative(location: str, home: str) -> str | None:
    """Returns `location` relative to `home` ("" for home itself); None if it is not below it."""
    path, top = folded(location), folded(home).rstrip("/")
    if path == top:
        return ""
    return path[len(top) + 1 :] if path.startswith(top + "/") else None


def tidied(place: str) -> str:
    """Returns a folded place with its original scheme, for a metastore: a server with `s3a` has no `s3`."""
    text = folded(place)
    return text if is_local(place) else place.partition("://")[0] + text[text.index("://") :]


def is_within(place: str, other: str) -> bool:
    """Returns True if a resolved place is the other, or below it."""
    return f"{place.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def touches(one: str, other: str) -> bool:
    """Returns True if two resolved places are equal, or one is inside the other."""
    return is_within(one, other) or is_within(other, one)


def refuse_root(root: str, place: str) -> None:
    """Raises Protected for a place at, inside or above a change-management root: this one, and on a local filesystem
    any. Must be called immediately before anything outside the root is moved or removed. Costs a few stat calls."""
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
        f"{place}: contains {root} or is inside of it, and a change-management root is not table data",
        hint="use a $cmroot outside of all tables; give another location to a table whose location is there",
    )


# ---- scratch ---------------------------------------------------------------------------------------------------------
# Scratch directories: each belongs to one process; those left by killed processes are removed by the next. Has effects.


@contextlib.contextmanager
def scratch(kind: str, directory: str | None = None) -> Iterator[Path]:
    """Yields a new directory `replicator-<kind>-<host>-*`, private to this user, in a directory (None: the system's).
    Removes those left by ended processes of this host first: a living process holds a lock on its own."""
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
        with contextlib.suppress(OSError):  # a filesystem without locks: no sweep happens there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink and os.path.isdir(place.name):
            return place, lock
        os.close(lock)  # another process's sweep came before the lock


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
# Emptied directories: a caller that removes the last file of a directory also removes the directory. Has effects.


_STAYS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY})
"""Errors that mean that it is not empty, does not exist, is a file or a symbolic link by now, or is a mount point."""


def remove_if_empty(place: str | None) -> bool:
    """Removes the directory if it is empty. Returns True if it was removed; None and object stores have no directories.
    Raises NotWritable or the OSError for an apparently empty directory that cannot be removed. May run twice."""
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
