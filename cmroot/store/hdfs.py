"""HDFS, by hdfs-native: a client without Java that reads HADOOP_CONF_DIR for name services. It knows Kerberos, too,
which no test here has tried."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from cmroot.errors import UnknownPlace
from cmroot.store.local import Names
from cmroot.store.remote import FsspecStore, Infos
from cmroot.store.spelling import naming, normal, parent, split_authority

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

SCHEMES = frozenset({"hdfs", "viewfs"})

_ERRNO = {
    "AccessControlException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "FileAlreadyExistsException": errno.EEXIST,
    "FSLimitException$PathComponentTooLongException": errno.ENAMETOOLONG,
    "InvalidPathException": errno.EINVAL,
    "NSQuotaExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "SafeModeException": errno.EAGAIN,
    "StandbyException": errno.EAGAIN,
}
"""The NameNode's exceptions, which the client hands on by name, as the operating system's."""

_REMOTE = re.compile(r'RPCError\("[\w.]*?([A-Z][\w$]*)", "(.*?)(?:\\n|"\))', re.DOTALL)
_SYSTEM = re.compile(r"\(os error (\d+)\)$")
_BLOCK = 1 << 20

AT_ONCE = 16
"""Calls about single files at one time: the NameNode answers each in a fraction of a millisecond."""


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors as the operating system's, with the first line of a stack trace."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _first_line(error)) from None
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), _first_line(error)) from None
    except OSError as error:
        if error.errno is None and (found := _SYSTEM.search(str(error))):
            raise OSError(int(found[1]), str(error)) from None
        raise
    except RuntimeError as error:
        found = _REMOTE.search(str(error))
        if found is None:
            raise OSError(errno.EIO, _first_line(error)) from error
        raise OSError(_ERRNO.get(found[1], errno.EIO), f"{found[1]}: {found[2]}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class Hdfs(AbstractFileSystem):  # type: ignore[misc]
    """What the store asks of a filesystem, in fsspec's words. Paths are without scheme and authority."""

    protocol = ("hdfs",)
    cachable = False

    def __init__(self, url: str) -> None:
        super().__init__(skip_instance_cache=True)
        try:
            from hdfs_native import Client
        except ImportError as error:
            hint = "install the extra `hdfs`: pip install 'replicator[hdfs]'"
            raise UnknownPlace(f"{url}: needs the package hdfs-native", hint=hint) from error
        with _told():
            self.client: Client = Client(url)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        _, separator, rest = path.partition("://")
        if not separator:
            return path.rstrip("/") or "/"
        return ("/" + rest.partition("/")[2]).rstrip("/") or "/"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        with _told():
            return _described(self.client.get_file_info(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        with _told():
            found = [_described(each) for each in self.client.list_status(path)]
        return found if detail else [each["name"] for each in found]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with _told(), self.client.read(path) as file:
            if start is None and end is None:
                return cast(bytes, file.readall())
            first = start or 0
            return cast(bytes, file.read_range(first, (file.size() if end is None else end) - first))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.writing(path, overwrite=mode == "overwrite") as file:
            file.write(value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        with open(lpath, "rb") as source, self.writing(rpath) as target:
            while block := source.read(_BLOCK):
                target.write(block)

    @contextlib.contextmanager
    def writing(self, path: str, *, overwrite: bool = True) -> Iterator[BinaryIO]:
        """A new file, on the disks of its DataNodes when the block ends; removed when the block raises."""
        from hdfs_native import WriteOptions

        with _told():
            raw = self.client.create(path, WriteOptions(overwrite=overwrite, create_parent=True))
        try:
            buffered = io.BufferedWriter(cast(io.RawIOBase, _Whole(raw)), _BLOCK)
            yield cast(BinaryIO, buffered)
            buffered.flush()
            with _told():
                raw.hsync()
                raw.close()
        except BaseException:
            with contextlib.suppress(OSError, RuntimeError):
                raw.close()
            with contextlib.suppress(OSError, RuntimeError):
                self.client.delete(path)
            raise

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        with _told():
            return io.BufferedReader(_Read(self.client.read(path)), _BLOCK)

    def rm_file(self, path: str) -> None:
        with _told():
            if not self.client.delete(path):
                raise FileNotFoundError(path)

    def rmdir(self, path: str) -> None:
        self.rm_file(path)

    def mv(self, path1: str, path2: str, *, overwrite: bool = True, **_: Any) -> None:
        """In one step: a reader finds the old file or the new one."""
        with _told():
            self.client.rename(path1, path2, overwrite)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with _told():
            self.client.mkdirs(path, create_parent=True)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        with self._open(path1) as source, self.writing(path2) as target:
            while block := source.read(_BLOCK):
                target.write(block)


class _Whole(io.RawIOBase):
    """A writer that says how much it took; closed by `writing` alone, as an end makes the file whole."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view, _told():
            self._inner.write(bytes(view))
            return view.nbytes


class _Read(io.RawIOBase):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._inner.seek(offset, whence)
        return int(self._inner.tell())

    def tell(self) -> int:
        return int(self._inner.tell())

    def readinto(self, into: Any) -> int:
        with _told():
            data = self._inner.read(len(into))
        into[: len(data)] = data
        return len(data)


def _described(status: FileStatus) -> dict[str, Any]:
    kind = "directory" if status.isdir else "file"
    return {"name": status.path, "size": status.length, "type": kind, "modificationTime": status.modification_time}


@lru_cache(maxsize=32)
def _connected(process: int, store: str) -> Hdfs:
    """One client for each store and process: its threads do not survive a fork."""
    return Hdfs(store)


@dataclass(frozen=True)
class HdfsStore(FsspecStore):
    """A NameNode's, or a name service's, directories. A file gets its name whole, by a rename, which is one step."""

    @property
    def filesystem(self) -> Hdfs:
        return _connected(os.getpid(), split_authority(normal(self.place))[0])

    @property
    def side_by_side(self) -> bool:
        return True

    @property
    def _renames(self) -> bool:
        return True

    def key(self, path: str) -> str:
        return Hdfs._strip_protocol(normal(path))

    def create_exclusive(self, path: str, data: bytes) -> bool:
        with naming(path):
            if self.exists(path):  # the end of a file takes half a second
                return False
            staged = self._staging(path)
            self.filesystem.pipe_file(staged, data)
            try:
                self.filesystem.mv(staged, self.key(path), overwrite=False)
            except FileExistsError:
                self.filesystem.rm_file(staged)
                return False
            return True

    @contextlib.contextmanager
    def open_write(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        with naming(path):
            staged = self._staging(path)
            with self.filesystem.writing(staged) as file:
                yield file
            self.filesystem.mv(staged, self.key(path))

    def tree(self, path: str, *, directories: bool = False) -> dict[str, dict[str, Any]]:
        with naming(path), _told():
            try:
                found = self.filesystem.client.list_status(self.key(path), recursive=True)
                described = map(_described, found)
                return {each["name"]: each for each in described if directories or each["type"] == "file"}
            except FileNotFoundError:
                return {}

    def infos(self, paths: Sequence[str]) -> Infos:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="infos") as pool:
            return list(pool.map(self._info, paths))

    def remove_many(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="remove") as pool:
            for _ in pool.map(self.remove, paths):
                pass

    def list(self, path: str) -> Names:
        if (info := self._info(path)) is None or info["type"] == "file":
            return []
        return super().list(path)

    def remove_tree(self, path: str) -> None:
        with naming(path), _told():
            self.filesystem.client.delete(self.key(path), True)

    def mkdirs(self, path: str, *, private: bool = False) -> None:
        with naming(path), _told():
            self.filesystem.client.mkdirs(self.key(path), 0o700 if private else 0o755, True)

    def move(self, path: str, target: str) -> None:
        with naming(target):
            self.mkdirs(parent(target))
            self.filesystem.mv(self.key(path), self.key(target))

    def _replace(self, staged: str, key: str) -> None:
        self.filesystem.mv(staged, key)
