"""`hdfs://` over a local directory, for tests: a filesystem that cannot replace a file in one step, and with faults.

A rename onto a file deletes that file first, as pyarrow's driver for HDFS does; `changed` is called after each step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

from cmroot.store import remote


class LocalHdfs(LocalFileSystem):  # type: ignore[misc]
    """faults: path -> error number with which it is answered; met: those that were asked for."""

    protocol = ("hdfs",)
    faults: ClassVar[dict[str, int]] = {}
    met: ClassVar[list[str]] = []
    changed: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("hdfs://tests").rstrip("/") or "/"

    def _check(self, path: str) -> str:
        path = self._strip_protocol(path)
        if path in self.faults:
            self.met.append(path)
            raise OSError(self.faults[path], os.strerror(self.faults[path]), path)
        return path

    def info(self, path: Any, **more: Any) -> Any:
        return super().info(self._check(path) if isinstance(path, str) else path, **more)

    def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
        return super().ls(self._check(path), detail=detail, **more)

    def mv(self, old: str, new: str, **_: Any) -> None:
        old, new = self._strip_protocol(old), self._strip_protocol(new)
        if os.path.isfile(new):
            self.rm_file(new)
        os.rename(old, new)
        self.changed()

    def rm_file(self, path: str) -> None:
        super().rm_file(path)
        self.changed()


@contextlib.contextmanager
def local_hdfs() -> Iterator[type[LocalHdfs]]:
    """Registered while the block lasts; places are `hdfs://tests/<absolute path>`."""
    before = _registry.get("hdfs")
    _registry["hdfs"] = LocalHdfs
    remote._filesystem.cache_clear()
    LocalHdfs.faults, LocalHdfs.met = {}, []
    try:
        yield LocalHdfs
    finally:
        LocalHdfs.changed = staticmethod(lambda: None)  # type: ignore[assignment]
        remote._filesystem.cache_clear()
        del _registry["hdfs"]
        if before is not None:
            _registry["hdfs"] = before
