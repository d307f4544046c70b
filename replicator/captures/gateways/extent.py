"""Where a message ends, found while its bytes pass: nothing of it is kept but a head that was cut in two.

A message that cannot be followed to its end is an error and never passes: what a server makes of its rest is unknown.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from replicator.captures.gateways.messages import (
    DEPTH_LIMIT,
    FIXED,
    LIST,
    MAP,
    SET,
    STOP,
    STRING,
    STRING_LIMIT,
    STRUCT,
    Garbage,
    least,
)

_short = struct.Struct(">h").unpack_from
_int = struct.Struct(">i").unpack_from
_HEADS = {STRING: 4, STRUCT: 0, LIST: 5, SET: 5, MAP: 6}

Bytes = bytes | bytearray | memoryview


class Extent:
    """One struct. `ended`: its last byte has been seen; `values`: how many values it has so far; `fields`: the numbers
    of its own fields."""

    def __init__(self) -> None:
        self.ended = False
        self.values = 0
        self.fields: list[int] = []
        self._open: list[list[int]] = [[]]  # what is not closed yet: a struct, or [kind, kind of the other, how many]
        self._skip = 0  # bytes of a value that are still to come
        self._cut = b""  # of a head

    def feed(self, data: Bytes) -> int:
        """How many of these bytes belong to the struct: all, unless it ends before. Raises Garbage."""
        size = len(data)
        if self._skip >= size:
            self._skip -= size
            return size
        at, self._skip, before = self._skip, 0, 0
        if self._cut:
            before, self._cut, data = len(self._cut), b"", self._cut + bytes(data)
        at = self._follow(data, at)
        return at - before if self.ended else size

    def _follow(self, data: Bytes, at: int) -> int:
        """Each value in turn; strings, of which most consist, without a call."""
        end, open_, fixed = len(data), self._open, FIXED
        while open_:
            if at > end:
                self._skip = at - end
                return end
            top, start = open_[-1], at
            if top:
                if not top[2]:
                    open_.pop()
                    continue
                kind = top[top[2] & 1]
            else:
                if at == end:
                    return end
                kind = data[at]
                if kind == STOP:
                    at += 1
                    open_.pop()
                    continue
                at += 3
            size = fixed.get(kind)
            if size is None:
                size = _HEADS.get(kind, 0)
                if at + size > end:
                    self._cut = bytes(data[start:])
                    return end
                at += size
                if kind == STRING:
                    (size,) = _int(data, at - 4)
                    if not 0 <= size <= STRING_LIMIT:
                        raise Garbage(f"a length of {size}")
            elif at > end:
                self._cut = bytes(data[start:])
                return end
            self.values += 1
            if top:
                top[2] -= 1
            elif len(open_) == 1:
                self.fields.append(_short(data, start + 1)[0])
            at += size if kind in fixed or kind == STRING else self._enter(kind, data, at)
        self.ended = True
        return at

    def _enter(self, kind: int, data: Bytes, at: int) -> int:
        """Bytes to skip behind the head of a value that holds others; what is not skipped comes next."""
        if kind not in _HEADS:
            raise Garbage(f"there is no type {kind}")
        if len(self._open) > DEPTH_LIMIT:
            raise Garbage("values are nested too deeply")
        if kind == STRUCT:
            self._open.append([])
            return 0
        at -= _HEADS[kind]
        first, second = data[at], data[at + (kind == MAP)]
        count: int = _int(data, at + 1 + (kind == MAP))[0]
        if not count:
            return 0
        if count < 0:
            raise Garbage(f"a length of {count}")
        each = least(first) + (least(second) if kind == MAP else 0)
        if count > STRING_LIMIT // each:
            raise Garbage(f"a length of {count}")
        width = FIXED.get(first, 0)
        if kind != MAP and width:
            self.values += count
            return count * width
        # Counted down: the key of a pair has an even number, its value an odd one.
        self._open.append([first, second, 2 * count if kind == MAP else count])
        return 0


class MethodNames:
    """Looks for names of methods in bytes that pass, as they stand in the head of a message, wherever that lies.

    A server reads a value as its own declaration says, whatever the type before it on the wire is, so a call can hold
    what is another call to the server and an argument to everybody else. What no server can do is to read a call whose
    name is not there."""

    def __init__(self, names: Iterable[str]) -> None:
        heads = [struct.pack(">i", len(name)) + name.encode() for name in names]
        self._pattern = re.compile(b"|".join(map(re.escape, heads)))
        self._overlap = max(map(len, heads)) - 1

    def find(self, before: Bytes, data: Bytes) -> str | None:
        """The first such name that ends in `data`. `before`: what came just before it, see `tail`."""
        found = self._pattern.search(bytes(before) + bytes(data) if before else data)
        return found[0][4:].decode() if found else None

    def tail(self, before: Bytes, data: Bytes) -> bytes:
        """What the next search needs of what has passed."""
        if len(data) >= self._overlap:
            return bytes(data[-self._overlap :])
        return (bytes(before) + bytes(data))[-self._overlap :]
