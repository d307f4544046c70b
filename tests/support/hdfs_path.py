"""Paths of HDFS for tests, with the methods of `pathlib.Path` that tests use; read over WebHDFS, so that what the
product's client wrote is looked at by another reader."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hadoop import Cluster
from waiting import CEILING


@dataclass(frozen=True)
class HdfsPath:
    """`path` is absolute; as text it is a URI."""

    cluster: Cluster
    path: str

    def __str__(self) -> str:
        return self.cluster.url + self.path

    def __truediv__(self, name: str) -> HdfsPath:
        return HdfsPath(self.cluster, f"{self.path.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> HdfsPath:
        return HdfsPath(self.cluster, self.path.rpartition("/")[0] or "/")

    def is_relative_to(self, other: HdfsPath) -> bool:
        return f"{self.path}/".startswith(f"{other.path}/")

    def relative_to(self, other: HdfsPath) -> str:
        assert self.is_relative_to(other)
        return self.path[len(other.path) + 1 :]

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        self._ask("PUT", "MKDIRS")

    def write_text(self, text: str) -> None:
        self._ask("PUT", "CREATE", overwrite="true", data=text.encode())

    def rename(self, other: HdfsPath) -> None:
        self._ask("PUT", "RENAME", destination=other.path, renameoptions="OVERWRITE")

    def touch(self, seconds: float) -> None:
        """Sets the time of its last change."""
        self._ask("PUT", "SETTIMES", modificationtime=str(int(seconds * 1000)))

    def rmtree(self) -> None:
        self._ask("DELETE", "DELETE", recursive="true")

    unlink = rmtree

    def exists(self) -> bool:
        return self._status() is not None

    def is_file(self) -> bool:
        status = self._status()
        return status is not None and status["type"] == "FILE"

    def read_bytes(self) -> bytes:
        return self._ask("GET", "OPEN")

    def iterdir(self) -> Iterator[HdfsPath]:
        for status in json.loads(self._ask("GET", "LISTSTATUS"))["FileStatuses"]["FileStatus"]:
            yield self / status["pathSuffix"]

    def rglob(self, pattern: str) -> Iterator[HdfsPath]:
        """Files alone; of patterns, `*` and `prefix*`."""
        if not self.exists():
            return
        for each in self.iterdir():
            if not each.is_file():
                yield from each.rglob(pattern)
            elif each.name.startswith(pattern.rstrip("*")):
                yield each

    def allow_snapshots(self, allowed: bool = True) -> None:
        self._ask("PUT", "ALLOWSNAPSHOT" if allowed else "DISALLOWSNAPSHOT")

    def give_to(self, owner: str) -> None:
        self._ask("PUT", "SETOWNER", owner=owner)

    def snapshots(self) -> list[str]:
        """Names of the snapshots of this directory."""
        return sorted(each.name for each in (self / ".snapshot").iterdir())

    def delete_snapshot(self, name: str) -> None:
        self._ask("DELETE", "DELETESNAPSHOT", snapshotname=name)

    def _status(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._ask("GET", "GETFILESTATUS"))["FileStatus"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found

    def _ask(self, method: str, operation: str, data: bytes | None = None, **more: str) -> bytes:
        known = self.cluster.headers()
        user = {} if known else {"user.name": "root"}
        query = urllib.parse.urlencode({"op": operation, **user, **more})
        url = f"{self.cluster.web}/webhdfs/v1{urllib.parse.quote(self.path)}?{query}"
        if data is not None:  # the NameNode says to which DataNode
            request = urllib.request.Request(f"{url}&noredirect=true", method=method, headers=known)
            with urllib.request.urlopen(request, timeout=CEILING) as answer:
                url, known = urllib.parse.quote(json.load(answer)["Location"], safe="%/:?&="), {}
        request = urllib.request.Request(url, method=method, data=data, headers=known)
        with urllib.request.urlopen(request, timeout=CEILING) as answer:
            return bytes(answer.read())
