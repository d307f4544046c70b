"""The drift guard: which fields a server sends that the bindings do not know, and that would be lost when written back.

thrift drops such fields without a word. The guard repeats one read per kind of object with a decoder that notes what it
skips. It runs when asked, once per kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolBase

from replicator.errors import ObjectNotFound
from replicator.metastore.connecting import NO_LIMIT
from replicator.metastore.connection import Connections


class DriftGuard:
    """Remembers one read per kind of object, and what repeating it with the watching decoder found."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reads: dict[str, Callable[[Any], Any]] = {}
        self._done: set[str] = set()
        self._unknown: dict[str, set[int]] = {}

    def saw(self, kind: str, read: Callable[[Any], Any]) -> None:
        """`read(client)` just answered with an object of `kind`; the first one of each kind is kept."""
        if kind not in self._done:
            self._reads.setdefault(kind, read)

    def unknown_fields(self) -> dict[str, list[int]]:
        """Field ids by struct name, over all kinds seen so far. An object that is gone waits for the next one."""
        for kind in list(self._reads):
            read = self._reads.pop(kind)
            try:
                self._connections.read(f"look for unknown fields of a {kind}", read, self._watching)
            except ObjectNotFound:
                continue
            self._done.add(kind)
        return {name: sorted(fields) for name, fields in sorted(self._unknown.items())}

    def _watching(self, transport: Any) -> TProtocolBase:
        made = _WatchingCompact if self._connections.config.protocol == "compact" else _WatchingBinary
        return made(transport, self._unknown)


class _Watching(TProtocolBase):  # type: ignore[misc]
    """A plain decoder's base; notes the struct and the id of each field it has no row for."""

    def __init__(self, transport: Any, unknown: dict[str, set[int]]) -> None:
        super().__init__(transport, string_length_limit=NO_LIMIT)
        self._unknown = unknown
        self._structs: list[str] = []
        self._field = 0
        self._skipping = False

    def readStruct(self, obj: Any, thrift_spec: Any, is_immutable: bool = False) -> Any:
        self._structs.append(type(obj).__name__)
        try:
            return super().readStruct(obj, thrift_spec, is_immutable)
        finally:
            self._structs.pop()

    def readFieldBegin(self) -> Any:
        begin = super().readFieldBegin()
        if not self._skipping:
            self._field = begin[2]
        return begin

    def skip(self, ttype: int, *depth: int) -> None:
        if self._skipping or not self._structs:
            super().skip(ttype, *depth)
            return
        self._unknown.setdefault(self._structs[-1], set()).add(self._field)
        self._skipping = True
        try:
            super().skip(ttype, *depth)
        finally:
            self._skipping = False


class _WatchingBinary(_Watching, TBinaryProtocol):  # type: ignore[misc]
    pass


class _WatchingCompact(_Watching, TCompactProtocol):  # type: ignore[misc]
    pass
