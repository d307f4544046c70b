"""Whether executors on other hosts see the local places of their tasks as the driver does: asked before the first tasks
that name a place. A place that is no mount of all hosts would look empty there, or get files that nobody finds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from cmroot.root import FORMAT
from cmroot.store.place import is_local, local_path
from replicator.core.cluster.failures import cause_of
from replicator.errors import Error

MANY = 16
"""Places that are asked for at one time, of the first tasks."""

DEEP = 4
"""Of values in values of a task, that are looked through for places."""

_HINT = (
    "a local place must be one mount that all hosts have under this name; or put it on HDFS or an object store, or run"
    " with --engine local (docs/on-a-cluster.md)"
)


class Sight(msgspec.Struct, frozen=True):
    """A directory as one host sees it. format: bytes of its FORMAT file, which has a root's own id; b"": no root."""

    path: str
    format: bytes = b""


class SharedPlaces:
    """Those that all executors of an application were found to share. Executors that come later are not asked.
    elsewhere: they may be on other hosts; else nothing is asked."""

    def __init__(self, *, elsewhere: bool) -> None:
        self._elsewhere = elsewhere
        self._known: set[str] = set()

    def check(self, context: Any, tasks: Sequence[Any]) -> None:
        """Of tasks that are about to run. Raises Error, which names host and place. Writes nothing; a directory that is
        there and is no root is taken for the same one."""
        sights: dict[str, Sight] = {}
        for task in tasks[:MANY] if self._elsewhere else ():
            for path in _local_directories(task, DEEP):
                if len(sights) < MANY and not self._is_known(path):
                    sights[path] = Sight(path, _format(path))
        if not sights:
            return
        count = max(2, int(context.defaultParallelism))
        asking = _Asking(tuple(sights.values()))
        try:
            answers = context.parallelize(range(count), count).mapPartitions(asking).collect()
        except Exception as error:
            raise Error(
                f"the executors do not answer: {cause_of(error)}", hint="look at the executors' logs"
            ) from error
        for host, path, what in sorted(set(answers)):
            if os.path.isdir(path) and _format(path) == sights[path].format:  # else it has changed meanwhile
                raise Error(f"{host} has {what} at {path}, which {socket.gethostname()} has", hint=_HINT)
        for path, sight in sights.items():
            self._known |= {path} if sight.format else {path, os.path.dirname(path)}

    def _is_known(self, path: str) -> bool:
        """A root is asked for itself; of others, what is beside or below one is on the same mount."""
        if path in self._known:
            return True
        above = path
        while (above := os.path.dirname(above)) != "/":
            if above in self._known:
                return not _format(path)
        return False


class _Asking:
    """Runs on executors."""

    def __init__(self, sights: tuple[Sight, ...]) -> None:
        self._sights = sights

    def __call__(self, _: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        for sight in self._sights:
            if not os.path.isdir(sight.path):
                yield socket.gethostname(), sight.path, "no directory"
            elif _format(sight.path) != sight.format:
                yield socket.gethostname(), sight.path, "another directory"


def _format(directory: str) -> bytes:
    try:
        with open(os.path.join(directory, FORMAT), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _local_directories(value: Any, deep: int) -> Iterator[str]:
    """That a task names, or in which a file lies that it names; those that exist."""
    if isinstance(value, str):
        if value.startswith(("/", "file:")) and is_local(value):
            with contextlib.suppress(ValueError, Error):
                path = local_path(value)
                while not os.path.isdir(path):
                    path = os.path.dirname(path)
                if path != "/":
                    yield path
    elif deep and isinstance(value, list | tuple):
        for each in value[:MANY]:
            yield from _local_directories(each, deep - 1)
    elif deep and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _local_directories(getattr(value, field.name), deep - 1)
    elif deep and isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _local_directories(getattr(value, name), deep - 1)
