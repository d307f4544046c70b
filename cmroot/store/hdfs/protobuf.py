"""Protocol buffers, as far as DataNodes are spoken to."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, Protocol


class Stream(Protocol):
    """A connection; `read` gives as many bytes as asked for, fewer at its end."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...

    def read(self, size: int, /) -> bytes: ...


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1  # of erasure-coded groups the number is negative
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + delimited(data)


def received(stream: Stream) -> bytes:
    size = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            raise ConnectionResetError(errno.ECONNRESET, "the DataNode ended the connection: it may want encryption")
        size |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionResetError(errno.ECONNRESET, "the DataNode ended the connection")
    return data


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an integer, or bytes."""
    at = 0

    def following() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        key = following()
        match key & 7:
            case 0:
                yield key >> 3, following()
            case 2:
                size = following()
                yield key >> 3, data[at : at + size]
                at += size
            case wire:
                at += {1: 8, 5: 4}[wire]
