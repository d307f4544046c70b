"""The store of HDFS: the operations of `place`, by hdfs-native, a client without Java that reads HADOOP_CONF_DIR for
name services and Kerberos.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast, get_args

from fsspec import AbstractFileSystem

from cmroot.authentication import client_settings, hadoop_settings, kerberized, kerberos_error
from cmroot.errors import NotWritable, StorageUnreachable, UnknownPlace
from cmroot.store.hdfs_checksums import carry_extended
from cmroot.store.local import Names
from cmroot.store.remote import FsspecStore, Infos
from cmroot.store.spelling import naming, normal, parent, scheme, split_authority

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus


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
"""Error numbers for the NameNode's exceptions, which the client passes on by name."""

_REMOTE = re.compile(r'RPCError\("[\w.]*?([A-Z][\w$]*)", "(.*?)(?:\\n|"\))', re.DOTALL)
_SYSTEM = re.compile(r"\(os error (\d+)\)$")
_GONE = "RPC listener disconnected"
"""The client itself repeats idempotent requests at the other NameNode; its caller must repeat the others."""

_BLOCKS = "DataTransferError("
_NO_PROVIDER = "no KMS provider is configured"
_KMS_REFUSED = re.compile(r"KMS request failed \((?:40[13])\b.*")
_KMS = ("KMS HTTP error", "KMS request failed")
"""Errors of an encryption zone's key server, which the client queries for the key of each file it reads or creates."""

_NO_DATANODE = "no DataNode that has this block, or is to store it, answers"

_BLOCK = 1 << 20


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Converts errors to those of the operating system, with the first line of a stack trace."""
    try:
        yield
    except (FileNotFoundError, FileExistsError) as error:
        number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
        raise OSError(number, os.strerror(number), _first_line(error)) from None
    except OSError as error:
        if error.errno is None and (found := _SYSTEM.search(str(error))):
            raise OSError(int(found[1]), str(error)) from None
        if error.errno is None and _GONE in str(error):
            simple = "" if kerberized() else ", or requires Kerberos, which HADOOP_CONF_DIR does not configure"
            text = f"the NameNode closed the connection{simple}: {_first_line(error)}"
            raise ConnectionResetError(errno.ECONNRESET, text) from None
        raise
    except RuntimeError as error:
        if (unknown := kerberos_error(error)) is not None:
            raise unknown from error
        if _BLOCKS in str(error):
            raise ConnectionAbortedError(errno.ECONNABORTED, _NO_DATANODE) from error
        if _NO_PROVIDER in str(error):
            raise OSError(errno.ENOKEY, "is in an encryption zone, and no key server is configured here") from error
        if refused := _KMS_REFUSED.search(str(error)):
            raise OSError(errno.ENOKEY, f"is in an encryption zone: {refused[0]}") from error
        if any(each in str(error) for each in _KMS):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"its key server does not answer: {error}") from error
        found = _REMOTE.search(str(error))
        if found is None:
            raise OSError(errno.EIO, _first_line(error)) from error
        raise OSError(_ERRNO.get(found[1], errno.EIO), f"{found[1]}: {found[2]}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class Hdfs(AbstractFileSystem):  # type: ignore[misc]
    """The filesystem operations that the store requires, named as in fsspec. Paths have no scheme and authority."""

    protocol = ("hdfs",)
    cachable = False

    def __init__(self, url: str) -> None:
        super().__init__(skip_instance_cache=True)
        self.url = url.rstrip("/")
        try:
            from hdfs_native import Client
        except ImportError as error:
            hint = "install the extra `hdfs`: pip install 'replicator[hdfs]'"
            raise UnknownPlace(f"{url}: needs the package hdfs-native", hint=hint) from error
        try:
            with told():
                self.client: Client = Client(url, client_settings(url, hadoop_settings()))
        except OSError as error:
            if "No NameNode hosts" not in str(error):
                raise
            hint = "list its NameNodes in the hdfs-site.xml of HADOOP_CONF_DIR (dfs.ha.namenodes.*), also on executors"
            raise UnknownPlace(f"{url}: this name service is not configured", hint=hint) from error

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        _, separator, rest = path.partition("://")
        if not separator:
            return path.rstrip("/") or "/"
        return ("/" + rest.partition("/")[2]).rstrip("/") or "/"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        with told():
            return described(self.client.get_file_info(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        with told():
            found = [described(each) for each in self.client.list_status(path)]
        return found if detail else [each["name"] for each in found]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with told(), self.client.read(path) as file:
            if start is None and end is None:
                return cast(bytes, file.readall())
            first = start or 0
            return cast(bytes, file.read_range(first, (file.size() if end is None else end) - first))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.writing(path, overwrite=mode == "overwrite") as file:
            file.write(value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        with open(lpath, "rb") as source, self.writing(rpath) as target:
            shutil.copyfileobj(source, target, _BLOCK)

    @contextlib.contextmanager
    def writing(self, path: str, *, overwrite: bool = True, mode: int = 0o644) -> Iterator[BinaryIO]:
        """Opens a new file; on the disks of its DataNodes when the block ends; removed when the block raises."""
        from hdfs_native import WriteOptions

        with told():
            raw = self.client.create(path, WriteOptions(overwrite=overwrite, create_parent=True, permission=mode))
        try:
            buffered = io.BufferedWriter(cast(io.RawIOBase, _Whole(raw)), _BLOCK)
            yield cast(BinaryIO, buffered)
            buffered.flush()
            with told():
                raw.hsync()
                raw.close()
        except BaseException:
            with contextlib.suppress(OSError, RuntimeError):
                raw.close()
            with contextlib.suppress(OSError, RuntimeError):
                self.client.delete(path)
            raise

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        with told():
            return io.BufferedReader(_Read(self.client.read(path), f"{self.url}{path}"), _BLOCK)

    def rm_file(self, path: str) -> None:
        with told():
            if not self.client.delete(path):
                raise FileNotFoundError(path)

    rmdir = rm_file

    def mv(self, path1: str, path2: str, *, overwrite: bool = True, **_: Any) -> None:
        """Renames atomically: a reader finds the old file or the new one."""
        with told():
            self.client.rename(path1, path2, overwrite)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with told():
            self.client.mkdirs(path, create_parent=True)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        with self._open(path1) as source, self.writing(path2) as target:
            shutil.copyfileobj(source, target, _BLOCK)


class _Whole(io.RawIOBase):
    """A writer that returns how much it wrote; closed only by `writing`, because closing completes the file."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view, told():
            self._inner.write(bytes(view))
            return view.nbytes


class _Read(io.RawIOBase):
    """A reader whose errors name the file, because no caller can add the name while it is read."""

    def __init__(self, inner: Any, place: str) -> None:
        self._inner, self._place = inner, place

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
        with naming(self._place), told():
            data = self._inner.read(len(into))
        into[: len(data)] = data
        return len(data)


def described(status: FileStatus) -> dict[str, Any]:
    kind = "directory" if status.isdir else "file"
    return {"name": status.path, "size": status.length, "type": kind, "modificationTime": status.modification_time}


# ---- the store -------------------------------------------------------------------------------------------------------


SCHEMES = frozenset({"hdfs", "viewfs"})

_CALLS_AT_ONCE = 16
"""The number of concurrent calls to the NameNode, which answers each in a fraction of a millisecond."""

_ENDS_AT_ONCE = 128
"""The number of files written concurrently: closing nearly each one takes the client half a second."""


@lru_cache(maxsize=32)
def _connected(process: int, store: str, configuration: str | None) -> Hdfs:
    """Returns one client for each store, process (its threads do not survive a fork) and configuration."""
    return Hdfs(store)


@dataclass(frozen=True)
class HdfsStore(FsspecStore):
    """The directories of a NameNode or name service. A complete file gets its name by a rename, which is atomic."""

    @property
    def filesystem(self) -> Hdfs:
        return _connected(os.getpid(), split_authority(normal(self.place))[0], os.environ.get("HADOOP_CONF_DIR"))

    @property
    def at_once(self) -> int:
        return _ENDS_AT_ONCE

    @property
    def _renames(self) -> bool:
        return True

    def key(self, path: str) -> str:
        return Hdfs._strip_protocol(normal(path))

    def create_exclusive(self, path: str, data: bytes) -> bool:
        with naming(path):
            if self.exists(path):  # closing a file takes half a second
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

    @contextlib.contextmanager
    def open_new(self, path: str, *, private: bool = False) -> Iterator[BinaryIO]:
        with naming(path), self.filesystem.writing(self.key(path), mode=0o600 if private else 0o644) as file:
            yield file

    def tree(self, path: str, *, directories: bool = False) -> dict[str, dict[str, Any]]:
        with naming(path), told(), contextlib.suppress(FileNotFoundError):
            found = map(described, self.filesystem.client.list_status(self.key(path), recursive=True))
            return {each["name"]: each for each in found if directories or each["type"] == "file"}
        return {}

    def infos(self, paths: Sequence[str]) -> Infos:
        with ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="infos") as pool:
            return list(pool.map(self._info, paths))

    def remove_many(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="remove") as pool:
            list(pool.map(self.remove, paths))

    def list(self, path: str) -> Names:
        if (info := self._info(path)) is None or info["type"] == "file":
            return []
        return super().list(path)

    def remove_tree(self, path: str) -> None:
        with naming(path), told():
            self.filesystem.client.delete(self.key(path), True)

    def remove_directory(self, path: str) -> bool:
        if (self._info(path) or {}).get("type") != "directory":
            return False
        self.filesystem.rmdir(self.key(path))
        return True

    def mkdirs(self, path: str, *, private: bool = False) -> None:
        with naming(path), told():
            self.filesystem.client.mkdirs(self.key(path), 0o700 if private else 0o755, True)

    def make_inheriting(self, path: str, home: str) -> None:
        with naming(path), told(), contextlib.suppress(FileNotFoundError):
            if self._info(path) is not None:
                return
            client, above = self.filesystem.client, parent(path)
            mode = client.get_file_info(self.key(home)).permission
            own = _own_mode(mode, _acl_of(client, self.key(home)))
            while own != mode and self._info(above) is None:
                above = parent(above)
            if own != mode and not any(each.scope == "default" for each in _acl_of(client, self.key(above))):
                mode = own  # no default ACL makes it a mask
            client.mkdirs(self.key(path), mode, True)

    def move(self, path: str, target: str) -> None:
        with naming(target):
            self.mkdirs(parent(target))
            self.filesystem.mv(self.key(path), self.key(target))

    def _replace(self, staged: str, key: str) -> None:
        self.filesystem.mv(staged, key)


# ---- attributes ------------------------------------------------------------------------------------------------------
# Attributes that HDFS stores in addition to the bytes, and that a copy of a file may get from its source.


Attribute = Literal["owner", "mode", "acl", "replication", "xattr"]
ATTRIBUTES: tuple[str, ...] = get_args(Attribute)
BY_RPC = tuple(name for name in ATTRIBUTES if name != "xattr")
"""Without a request to WebHDFS for each file, for which executors may have no ticket."""

_STICKY, _GROUP = 0o1777, 0o070
_ACTIONS = ("---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx")


def carry_attributes(source: str, target: str, names: Collection[str], lacking: dict[str, str] | None = None) -> None:
    """Copies these ATTRIBUTES (owner: also the group) from source to target, if both are on HDFS; else does nothing.
    May run twice. lacking: receives those that the target cannot have, with the reason, in place of an error; without
    group or ACL its group has no access. Raises NotWritable where this user lacks the right: only the superuser changes
    owners; FileNotFoundError when one of the files does not exist."""
    if not names or {scheme(source), scheme(target)} - SCHEMES:
        return
    here, there = HdfsStore(source), HdfsStore(target)
    old, new, client = here.key(source), there.key(target), there.filesystem.client

    @contextlib.contextmanager
    def step(name: str) -> Iterator[None]:
        try:
            with naming(target), told():
                yield
        except (NotWritable, StorageUnreachable, OSError) as error:
            away = isinstance(error, (StorageUnreachable, ConnectionError)) and name != "xattr"  # of WebHDFS alone
            if lacking is None or away or isinstance(error, FileNotFoundError):
                raise
            lacking[name] = (str(error) or type(error).__name__).splitlines()[0][:300]

    with naming(source), told():
        found = here.filesystem.client.get_file_info(old)
        entries = _acl_of(here.filesystem.client, old) if {"acl", "mode"} & set(names) else []
    with naming(target), told():
        mine = client.get_file_info(new)
        now = _acl_of(client, new) if "acl" in names or entries else []
    for name, value in (("owner", found.owner), ("group", found.group)):  # before a mode or ACL meant for that group
        if "owner" in names and value != getattr(mine, name):  # only the superuser may name an owner, even the same one
            with step(name):
                client.set_owner(new, **{name: value})
    mode, has = found.permission & _STICKY, mine.permission & _STICKY
    if "acl" not in names and not any(each.scope == "access" for each in now):
        mode = _own_mode(mode, entries)
    mode &= ~_GROUP if "group" in (lacking or ()) else _STICKY
    if "acl" in names and (entries or now):
        with step("acl"):
            if mine.isdir:
                client.remove_default_acl(new)
            has = mode if entries or "mode" in names else _own_mode(has, now)
            client.set_acl(new, _whole(has, entries))  # with the mode, in one step; but not the sticky bit
            has = has & 0o777 | mine.permission & 0o1000
        if "acl" in (lacking or ()):
            has, mode = mine.permission & _STICKY, mode & ~_GROUP  # whose bits are the ACL's mask
    if "mode" in names and mode != has:
        with step("mode"):
            client.set_permission(new, mode)
    if "replication" in names and not found.isdir and found.replication != mine.replication:
        with step("replication"):
            client.set_replication(new, found.replication)
    if "xattr" in names:
        with step("xattr"):
            carry_extended(source, target)


def gives_mode(source: str, names: Collection[str]) -> bool:
    """Returns True if `carry_attributes` sets a file's mode: that of the source, or its ACL, of which it is a part."""
    if "mode" in names or "acl" not in names:
        return "mode" in names
    with naming(source):
        return bool(_acl_of(HdfsStore(source).filesystem.client, HdfsStore(source).key(source)))


def _acl_of(client: Any, path: str) -> list[Any]:
    """Returns the entries of an ACL; [] without one, and on a NameNode that has ACLs switched off."""
    try:
        with told():
            return list(client.get_acl_status(path).entries)
    except OSError as error:
        if "AclException" not in str(error):
            raise
        return []


def _own_mode(mode: int, entries: Collection[Any]) -> int:
    """Returns a mode whose group bits are what the group may do: with an ACL, they are its mask."""
    for each in entries:
        if (each.scope, each.type, each.name or "") == ("access", "group", ""):
            return mode & (~_GROUP | _ACTIONS.index(each.permissions) << 3)
    return mode


def _whole(mode: int, entries: Collection[Any]) -> list[Any]:
    """Returns a complete ACL. HDFS lists ACLs without the entries that are the mode, but requires them."""
    from hdfs_native import AclEntry

    middle = "mask" if any(each.scope == "access" for each in entries) else "group"
    owning: list[tuple[Any, int]] = [("user", mode >> 6), (middle, mode >> 3), ("other", mode)]
    return [*(AclEntry(kind, "access", cast(Any, _ACTIONS[bits & 7])) for kind, bits in owning), *entries]
