"""Stores behind fsspec: object stores, WebHDFS, SFTP. `place` defines the operations of a store."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

from cmroot.errors import NotWritable
from cmroot.store import objects, s3
from cmroot.store.drivers import AZURE, GCS, VARIABLE, filesystem_of
from cmroot.store.local import LARGEST, Child, Children, Lacking, Names, staging_name, within
from cmroot.store.objects import Heeds, child_of, heeds, is_aside, lists_trees, object_time_ns
from cmroot.store.s3 import RENAMING, is_there, rename_onto_free, replace
from cmroot.store.spelling import join, naming, normal, parent, scheme, split_authority

_CONDITIONAL = frozenset({"s3"}) | GCS | AZURE
"""fsspec protocols whose `pipe_file(mode="create")` is one conditional request and not exists-then-write."""

_ASKED_AT_ONCE = 32
"""Concurrent requests about single objects: a thousand of them take about as long as removing a thousand."""

Below = list[tuple[str, dict[str, Any]]]
Infos = list[dict[str, Any] | None]  # the store below has a method called list

_HEEDED: dict[tuple[int, str], Heeds] = {}
_TRYING = threading.Lock()
_MEMORY_CREATE = threading.Lock()  # fsspec's memory store checks, then writes; it is local to one process


@dataclass(frozen=True)
class FsspecStore:
    """A store behind fsspec, named by any place in it. Holds no connection, so it may be pickled and forked."""

    place: str

    @property
    def filesystem(self) -> Any:
        return filesystem_of(os.getpid(), split_authority(normal(self.place))[0], os.environ.get(VARIABLE, ""))

    def key(self, path: str) -> str:
        """Returns the name that the filesystem itself uses for a place."""
        return cast(str, self.filesystem._strip_protocol(normal(path)))

    @property
    def _renames(self) -> bool:
        return scheme(self.place) in RENAMING

    @property
    def at_once(self) -> int:
        """The number of concurrent requests about single files in a process; 1: the driver handles only one."""
        return _ASKED_AT_ONCE if getattr(self.filesystem, "async_impl", False) else 1

    def read_bytes(self, path: str, most: int = LARGEST, *, follow: bool = False) -> bytes:
        with naming(path):
            data = cast(bytes, self.filesystem.cat_file(self.key(path)))
            return within(path, data, len(data), most)

    def write_bytes(self, path: str, data: bytes) -> None:
        with naming(path):
            if not self._renames:
                self.filesystem.pipe_file(self.key(path), data)
                return
            staged = self._staging(path)
            self.filesystem.pipe_file(staged, data)
            self._replace(staged, self.key(path))

    def create_exclusive(self, path: str, data: bytes) -> bool:
        with naming(path):
            if self._renames:
                return self._create_by_rename(path, data)
            if scheme(self.place) == "memory":
                with _MEMORY_CREATE:
                    return self._create(path, data)
            if scheme(self.place) not in _CONDITIONAL:
                raise NotWritable(
                    f"{path}: {scheme(self.place)}: has no conditional write, so no file here can be exclusive",
                    hint="put leases and $cmroot on a local, HDFS, S3, GCS or Azure store",
                )
            return self._create(path, data)

    def _create(self, path: str, data: bytes) -> bool:
        if scheme(self.place) == "s3":
            return s3.create(self.filesystem, self.key(path), data)
        try:
            self.filesystem.pipe_file(self.key(path), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if s3.is_refused(error):
                return False
            raise
        return True

    def _create_by_rename(self, path: str, data: bytes) -> bool:
        """Creates a file by a rename. HDFS refuses one onto a file; WebHDFS hides that, but the staging file
        remains."""
        if self.exists(path):
            return False
        staged = self._staging(path)
        self.filesystem.pipe_file(staged, data)
        rename_onto_free(self.filesystem, scheme(self.place), staged, self.key(path))
        if not is_there(self.filesystem, staged):
            return True
        self.filesystem.rm_file(staged)
        return False

    def heeds(self, probe: str) -> Heeds:
        """Returns what the store verifies in requests; tried once in each process. `probe`: an unused place."""
        if scheme(self.place) != "s3":
            return Heeds(digests=False, copies=False)
        known = (os.getpid(), split_authority(normal(self.place))[0])
        with _TRYING, naming(probe):
            if known not in _HEEDED:
                _HEEDED[known] = heeds(self.filesystem, self.key(probe))
        return _HEEDED[known]

    def create_checked(self, path: str, data: bytes) -> bool:
        """Like `create_exclusive`, on a store that verifies digests: readers see these bytes or none."""
        with naming(path):
            return s3.put_new(self.filesystem, self.key(path), data)

    def open_read(self, path: str) -> BinaryIO:
        with naming(path):
            if scheme(path) == "memory":  # its open files share one position
                import io

                return io.BytesIO(self.filesystem.cat_file(self.key(path)))
            return cast(BinaryIO, self.filesystem.open(self.key(path), "rb"))

    def open_stream(self, path: str) -> BinaryIO:
        """Like `open_read`, forward only; on S3 by a single request."""
        if scheme(path) != "s3":
            return self.open_read(path)
        return cast(BinaryIO, s3.Stream(self.filesystem, self.key(path), path))

    @contextlib.contextmanager
    def open_write(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        # Spooled to a local file first: fsspec's own files upload incomplete data when they are closed by an error.
        with naming(path), tempfile.NamedTemporaryFile() as spool:
            yield cast(BinaryIO, spool)
            spool.flush()
            if self._renames:
                staged = self._staging(path)
                self.filesystem.put_file(spool.name, staged)
                self._replace(staged, self.key(path))
            else:
                self.filesystem.put_file(spool.name, self.key(path))

    def open_new(self, path: str, *, private: bool = False) -> contextlib.AbstractContextManager[BinaryIO]:
        """See Place. private: on HDFS, only its owner may open it, until it gets other rights."""
        return self.open_write(path)

    def sweep(self, path: str, *, before: float, deep: bool) -> Names:
        if not self._renames:  # no staging files are written
            return []
        try:
            found = self.below(path) if deep else self.directly_below(path)
        except FileNotFoundError:
            return []
        swept = [name for name, info in found if is_aside(name) and object_time_ns(info) < before * 1e9]
        self.remove_many([join(path, name) for name in swept])
        return swept

    def exists(self, path: str) -> bool:
        try:
            with naming(path):
                self.filesystem.info(self.key(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        with naming(path):
            ask = partial(s3.info, self.filesystem) if scheme(path) == "s3" else self.filesystem.info
            return int(ask(self.key(path))["size"])

    def infos(self, paths: Sequence[str]) -> Infos:
        """Returns what the store reports for each file, concurrently if the driver allows it; None: it is missing."""
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="infos") as pool:
            return list(pool.map(self._info, paths))

    def _info(self, path: str) -> dict[str, Any] | None:
        with naming(path):
            try:
                return cast(dict[str, Any], self.filesystem.info(self.key(path)))
            except FileNotFoundError:
                return None

    def list(self, path: str) -> Names:
        key = self.key(path)
        try:
            with naming(path):
                keys = [str(name).rstrip("/") for name in self.filesystem.ls(key, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [name.rpartition("/")[2] for name in keys if name != key.rstrip("/")]
        return sorted(name for name in names if not is_aside(name))

    def find(self, path: str) -> Names:
        return sorted(name for name, _ in self.below(path) if not is_aside(name))

    def children(self, path: str) -> Children:
        found = [child_of(join(path, name), info) for name, info in self.directly_below(path)]
        return sorted(found, key=lambda each: each.path)

    def child(self, path: str) -> Child | None:
        info = self._info(path)
        return child_of(path, info) if info else None

    def directly_below(self, path: str) -> Below:
        """Returns names with what the store reports for them. Raises FileNotFoundError without the directory."""
        own = self.key(path).rstrip("/")
        with naming(path):
            found = [(str(info["name"]).rstrip("/"), info) for info in self.filesystem.ls(own, detail=True)]
        return [(key.rpartition("/")[2], info) for key, info in found if key != own]  # its own entry is a marker

    def below(self, path: str) -> Below:
        """Returns relative names of all files below, with what the store reports for them; like `tree`."""
        prefix = self.key(path).rstrip("/") + "/"
        found = self.tree(path).items()
        return [(key[len(prefix) :], info) for key, info in found if key.startswith(prefix) and key != prefix]

    def tree(self, path: str, *, directories: bool = False) -> dict[str, dict[str, Any]]:
        """Returns every file at and below a place by its key, with what the store reports for it; with `directories`
        these, too; {} when there are none. Raises errors for unreadable directories, which most fsspec drivers would
        omit."""
        top = self.key(path).rstrip("/")
        with naming(path):
            if lists_trees(self.filesystem):
                return cast(dict[str, Any], self.filesystem.find(top, withdirs=directories, detail=True))
            return self._walk(top, directories)

    def _walk(self, top: str, directories: bool) -> dict[str, dict[str, Any]]:
        found, waiting = dict[str, dict[str, Any]](), [top]
        while waiting:
            above = waiting.pop()
            try:
                listed = self.filesystem.ls(above, detail=True)
            except (FileNotFoundError, NotADirectoryError):  # removed, or never existed
                continue
            for info in listed:
                key = str(info["name"]).rstrip("/")
                if info["type"] != "directory":
                    found[key] = info
                elif key != above:
                    waiting.append(key)
                    if directories:
                        found[key] = info
        return found

    def move(self, path: str, target: str) -> None:
        with naming(target):
            old, new = self.key(path), self.key(target)
            if self._renames:
                self.mkdirs(parent(target))
                self._replace(old, new)
            elif scheme(self.place) == "s3":
                self.copy(path, target, path + objects.NOTE)
                objects.remove_own(self.filesystem, old)
            else:  # never fs.mv: it reads * ? [ ] in names as patterns
                self.copy(path, target)
                self.filesystem.rm_file(old)

    def copy(self, path: str, target: str, note: str = "", *, stored: bool = False) -> None:
        """Copies by the server. S3 copies only an object with the tag that was read before; for other stores the sizes
        are compared. Raises FileNotFoundError for a file that is missing, or was replaced concurrently. `note`: a name
        of our own, ending with `objects.NOTE`, where the target's does not identify it as ours. stored: True to keep
        the storage class and the encryption, too."""
        with naming(target):
            old, new = self.key(path), self.key(target)
            if scheme(self.place) != "s3":
                size = self.size(path)
                self.filesystem.cp_file(old, new)
                if not (copied := self.size(target) == size):
                    self.filesystem.rm_file(new)
            else:
                original = objects.original(self.filesystem, old, stored=stored)
                copied = objects.copy(self.filesystem, original, new, self.key(note) if note else "")
            if not copied:
                raise FileNotFoundError(f"{path}: was replaced while it was copied, or its copy is not whole")

    def copy_like(self, path: str, target: str, like: str) -> Names:
        """Copies by the server, on S3 with the metadata, storage class, encryption and tags of the object `like`.
        Returns those that this user may not read or give. Raises FileNotFoundError like `copy`."""
        if scheme(self.place) != "s3":
            self.copy(path, target)
            return []
        with naming(target):
            return objects.copy_like(self.filesystem, self.key(path), self.key(target), self.key(like))

    def has_rights(self, path: str) -> bool:
        """Returns True if a file has rights or attributes that a new one at its path would not get by itself. Raises
        FileNotFoundError."""
        if scheme(self.place) != "s3":
            return self._renames
        with naming(path):
            return objects.has_attributes(self.filesystem, self.key(path))

    def remove_own(self, path: str) -> bool:
        """Like `remove`, for files that only this program writes; see Place."""
        if scheme(self.place) != "s3":
            self.remove(path)
            return True
        with naming(path):
            if path.endswith(objects.NOTE):
                objects.remove_left(self.filesystem, self.key(path))
            return objects.remove_own(self.filesystem, self.key(path))

    def replace_own(self, path: str, data: bytes) -> None:
        if scheme(self.place) != "s3":
            self.write_bytes(path, data)
            return
        with naming(path):
            objects.replace_own(self.filesystem, self.key(path), data)

    def remove_uploads(self, path: str, begins: str, *, before: float) -> int:
        if scheme(self.place) != "s3":
            return 0
        with naming(path):
            prefix = self.key(path).rstrip("/") + "/"
            return objects.remove_uploads(self.filesystem, prefix + begins, before=before)

    def lacking_rights(self, path: str) -> Lacking:
        if scheme(self.place) != "s3":
            return []
        with naming(path):
            return list(s3.lacking_rights(self.filesystem, self.key(path)))

    def remove(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self.key(path))

    def remove_many(self, paths: Sequence[str]) -> None:
        """Removes files, in few requests where the store supports it; missing ones are not an error."""
        keys = [self.key(path) for path in paths]
        with contextlib.suppress(FileNotFoundError), naming(self.place):
            if keys and not any(set(key) & set("*?[]") for key in keys):  # fs.rm reads them as patterns
                self.filesystem.rm(keys)
                return
        for path in paths:
            self.remove(path)

    def remove_own_tree(self, path: str) -> bool:
        if scheme(self.place) != "s3":
            self.remove_tree(path)
            return True
        with naming(path):
            return objects.remove_own_tree(self.filesystem, self.key(path).rstrip("/"), self.tree(path))

    def remove_tree(self, path: str) -> None:
        # never fs.rm of a tree: it reads * ? [ ] in names as patterns
        prefix = self.key(path).rstrip("/")
        with naming(path):
            found = self.tree(path, directories=True)
            directories = [prefix]
            for key, info in found.items():
                if not key.startswith(prefix + "/"):
                    continue
                if info["type"] == "directory":
                    directories.append(key)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    self.filesystem.rm_file(key)
            if self._has_directories:
                for key in sorted(directories, reverse=True):
                    with contextlib.suppress(FileNotFoundError):
                        self.filesystem.rmdir(key)

    def remove_emptied(self, path: str) -> None:
        """Removes the directories at and below a place that contain no file, with the staging files in them. A file
        that is added concurrently remains. May run twice."""
        if not self._has_directories:
            return
        with naming(path):
            found = self.tree(path, directories=True)
            for key, info in found.items():
                if info["type"] != "directory" and is_aside(key):
                    with contextlib.suppress(FileNotFoundError):
                        self.filesystem.rm_file(key)
            below = [key for key, info in found.items() if info["type"] == "directory"]
            for key in sorted({self.key(path).rstrip("/"), *below}, reverse=True):
                with contextlib.suppress(OSError):  # no longer empty, or gone
                    self.filesystem.rmdir(key)

    def remove_directory(self, path: str) -> bool:
        """Removes an empty directory, on HDFS only. Returns True if it was removed; raises OSError if not empty."""
        return False

    @property
    def _has_directories(self) -> bool:
        """True if directories exist by themselves; elsewhere a directory vanishes with its last object."""
        return self._renames or scheme(self.place) == "memory"

    def mkdirs(self, path: str, *, private: bool = False) -> None:
        if self._renames:
            with naming(path):
                self.filesystem.makedirs(self.key(path), exist_ok=True)

    def sync(self, path: str) -> None:
        pass  # a finished upload is durable

    def _staging(self, path: str) -> str:
        self.mkdirs(parent(path))
        return self.key(staging_name(path))

    def _replace(self, staged: str, key: str) -> None:
        replace(self.filesystem, scheme(self.place), staged, key)
