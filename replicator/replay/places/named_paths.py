"""Paths that properties name: a schema in a file, a function's jar. They are rewritten as all paths are, and what lies
there is copied only where it is a file of a table. So each is looked for on the target, and reported where nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cmroot.store.place import normal
from cmroot.store.resolve import located
from replicator.core.model import Function, Partition, Storage, Table


@dataclass(frozen=True)
class NamedPath:
    """A path under a property's name: as the source has it, and as it was rewritten for the target."""

    key: str
    source: str
    target: str

    @property
    def reason(self) -> str:
        return f"{self.key} names {self.target}, where nothing is: {self.source} is no file of a table, and not copied"

    def dangles(self) -> bool:
        """Whether the target has nothing there, and the source has."""
        return not _exists(self.target) and _exists(self.source)


def named_paths(source: Table | Partition | Function, replica: Table | Partition | Function) -> Iterator[NamedPath]:
    """Every path that was rewritten between an object and its replica, but for places of data. Pure."""
    if isinstance(source, Function) and isinstance(replica, Function):
        for (kind, before), (_, after) in zip(source.resources, replica.resources, strict=True):
            if before != after:
                yield NamedPath(kind.lower(), before, after)
        return
    assert isinstance(source, Table | Partition) and isinstance(replica, Table | Partition)
    data = {normal(place) for place in (replica.location, _location(replica.storage)) if place}
    properties = [(source.parameters, replica.parameters), *_maps(source.storage, replica.storage)]
    for given, rewritten in properties:
        for key, value in given.items():
            now = rewritten.get(key, value)
            if now and now is not value and now != value and normal(now) not in data:  # "" is no path
                yield NamedPath(key, value, now)


def _location(storage: Storage | None) -> str | None:
    return storage.location if storage else None


def _maps(before: Storage | None, after: Storage | None) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    if before and after:
        yield before.parameters, after.parameters
        yield before.serde.parameters, after.serde.parameters


def _exists(place: str) -> bool:
    return located(place).exists()
