"""The store of HDFS: the operations of `place`, by the native client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, Literal, get_args

from cmroot.store.hdfs.checksums import ask
from cmroot.store.hdfs.native import Hdfs, described, told
from cmroot.store.local import Names
from cmroot.store.remote import FsspecStore, Infos
from cmroot.store.spelling import naming, normal, parent, scheme, split_authority

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
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        with naming(path), self.filesystem.writing(self.key(path)) as file:
            yield file

    def tree(self, path: str, *, directories: bool = False) -> dict[str, dict[str, Any]]:
        with naming(path), told():
            try:
                found = map(described, self.filesystem.client.list_status(self.key(path), recursive=True))
                return {each["name"]: each for each in found if directories or each["type"] == "file"}
            except FileNotFoundError:
                return {}

    def infos(self, paths: Sequence[str]) -> Infos:
        with ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="infos") as pool:
            return list(pool.map(self._info, paths))

    def remove_many(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="remove") as pool:
            for _ in pool.map(self.remove, paths):
                pass

    def list(self, path: str) -> Names:
        if (info := self._info(path)) is None or info["type"] == "file":
            return []
        return super().list(path)

    def remove_tree(self, path: str) -> None:
        with naming(path), told():
            self.filesystem.client.delete(self.key(path), True)

    def remove_directory(self, path: str) -> bool:
        info = self._info(path)
        if info is None or info["type"] != "directory":
            return False
        self.filesystem.rmdir(self.key(path))
        return True

    def mkdirs(self, path: str, *, private: bool = False) -> None:
        with naming(path), told():
            self.filesystem.client.mkdirs(self.key(path), 0o700 if private else 0o755, True)

    def move(self, path: str, target: str) -> None:
        with naming(target):
            self.mkdirs(parent(target))
            self.filesystem.mv(self.key(path), self.key(target))

    def _replace(self, staged: str, key: str) -> None:
        self.filesystem.mv(staged, key)


# ---- attributes ------------------------------------------------------------------------------------------------------
# Attributes that HDFS stores in addition to the bytes: owner, mode, ACL, replication, extended attributes.


_STICKY = 0o1777


def carry_attributes(source: str, target: str, names: Collection[str]) -> None:
    """Copies these ATTRIBUTES (owner: also the group) from source to target, if both are on HDFS; else does nothing.
    May run twice. Raises NotWritable where this user lacks the right: only the superuser changes owners;
    FileNotFoundError when one of the files does not exist."""
    if not names or {scheme(source), scheme(target)} - SCHEMES:
        return
    here, there = HdfsStore(source), HdfsStore(target)
    old, new = here.key(source), there.key(target)
    with naming(source), told():
        found = here.filesystem.client.get_file_info(old)
        listed = here.filesystem.client.get_acl_status(old) if "acl" in names else None
    given = ask(source, "GETXATTRS", encoding="hex")["XAttrs"] if "xattr" in names else ()
    with naming(target), told():
        client = there.filesystem.client
        if listed is not None:
            _set_acl(client, new, found.permission, listed.entries)
        if "mode" in names:
            client.set_permission(new, found.permission & _STICKY)
        if "replication" in names and not found.isdir:
            client.set_replication(new, found.replication)
    with naming(target):
        for each in given:
            if each["name"].startswith("user."):  # others belong to the superuser or the server
                value = each.get("value") or "0x"
                ask(
                    target,
                    "SETXATTR",
                    method="PUT",
                    flag="CREATE,REPLACE",
                    **{"xattr.name": each["name"], "xattr.value": value},
                )
    if "owner" in names:  # last: a file of another owner may be inaccessible
        with naming(target), told():
            client.set_owner(new, found.owner, found.group)


def _set_acl(client: Any, path: str, mode: int, entries: Any) -> None:
    """Sets an ACL. HDFS lists ACLs without the owner's and the others' entries (the mode), but requires them here."""
    from hdfs_native import AclEntry

    client.remove_acl(path)
    if not entries:
        return
    named = any(each.type == "group" and not each.name and each.scope == "access" for each in entries)
    owning: list[tuple[Any, int]] = [("user", mode >> 6 & 7), ("other", mode & 7)]
    owning += [] if named else [("group", mode >> 3 & 7)]
    whole = [AclEntry(kind, "access", _letters(bits)) for kind, bits in owning]
    client.set_acl(path, [*whole, *entries])


def _letters(bits: int) -> Any:
    return "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))


# ---- preserved -------------------------------------------------------------------------------------------------------
# Names of the attributes that a copy of a file on HDFS may get from its source.


Attribute = Literal["owner", "mode", "acl", "replication", "xattr"]
ATTRIBUTES: tuple[str, ...] = get_args(Attribute)


# ---- zones -----------------------------------------------------------------------------------------------------------
# HDFS encryption zones: directories whose files are encrypted by their writers, with keys of a key server (KMS).


def in_zone(directory: str) -> bool:
    """Returns True if files created in a directory are in an encryption zone; False if it does not exist or is not on
    HDFS. One request (WebHDFS). Raises OSError with the NameNode's reason."""
    if scheme(directory) != "hdfs":
        return False
    try:
        return bool(ask(directory, "GETFILESTATUS")["FileStatus"].get("encBit"))
    except FileNotFoundError:
        return False
