"""The store of HDFS: what `place` asks of a store, by the client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

from cmroot.store.hdfs.native import Hdfs, described, told
from cmroot.store.local import Names
from cmroot.store.remote import FsspecStore, Infos
from cmroot.store.spelling import naming, normal, parent, split_authority

SCHEMES = frozenset({"hdfs", "viewfs"})

_CALLS_AT_ONCE = 16
"""Calls to the NameNode at one time: it answers each in a fraction of a millisecond."""

_ENDS_AT_ONCE = 128
"""Files that are written at one time: the client waits half a second at the end of nearly each."""


@lru_cache(maxsize=32)
def _connected(process: int, store: str, configuration: str | None) -> Hdfs:
    """One client for each store, process (its threads do not survive a fork) and configuration."""
    return Hdfs(store)


@dataclass(frozen=True)
class HdfsStore(FsspecStore):
    """A NameNode's, or a name service's, directories. A file gets its name whole, by a rename, which is one step."""

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
