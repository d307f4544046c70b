"""`sftp://` over a local directory, for tests: a filesystem behind fsspec that answers with faults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem

from cmroot.store.drivers import filesystem_of


class FaultyFiles(LocalFileSystem):  # type: ignore[misc]
    """faults: path -> error number with which it is answered; met: those that were asked for."""

    protocol = ("sftp",)
    faults: ClassVar[dict[str, int]] = {}
    met: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("sftp://tests").rstrip("/") or "/"

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


@contextlib.contextmanager
def faulty_files() -> Iterator[type[FaultyFiles]]:
    """While the block lasts, faults may be set; places are `sftp://tests/<absolute path>`, and no test has others."""
    register_implementation("sftp", FaultyFiles, clobber=True)
    filesystem_of.cache_clear()
    FaultyFiles.faults, FaultyFiles.met = {}, []
    try:
        yield FaultyFiles
    finally:
        filesystem_of.cache_clear()
