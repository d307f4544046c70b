"""The frames of thrift over SASL, for clients and for servers (the gateway): negotiation messages of a status byte, a
length and a payload; after them frames of a length and a payload, which a layer has wrapped.

A `read(size)` returns exactly so many bytes or raises EOFError."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from cmroot.digest_md5 import FrameError as FrameError

Read = Callable[[int], bytes]

CLOSED = "it closed the connection"
LARGEST_MESSAGE = 1 << 20  # of a negotiation, whose peer has proved nothing yet
_MESSAGE, _FRAME = struct.Struct(">BI"), struct.Struct(">I")


class Status(IntEnum):
    START = 1
    OK = 2
    BAD = 3
    ERROR = 4
    COMPLETE = 5


class Quality(IntEnum):
    """The protection of a SASL layer; the bits of RFC 4752."""

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


class Layer(Protocol):
    """The protection of data after the negotiation."""

    @property
    def lasts(self) -> bool:
        """Whether it can protect another call."""
        ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes:
        """Raises FrameError for data that are not the peer's."""
        ...


class Unlayered:
    """Data as they are: quality AUTHENTICATION."""

    lasts = True

    def wrap(self, data: bytes) -> bytes:
        return data

    def unwrap(self, data: bytes) -> bytes:
        return data


def message(status: Status, payload: bytes = b"") -> bytes:
    return _MESSAGE.pack(status, len(payload)) + payload


def read_message(read: Read) -> tuple[Status, bytes]:
    """Raises FrameError for anything but a negotiation message."""
    status, size = _MESSAGE.unpack(read(_MESSAGE.size))
    if status not in Status.__members__.values() or size > LARGEST_MESSAGE:
        raise FrameError(f"no SASL message: it begins with {_MESSAGE.pack(status, size)!r}")
    return Status(status), read(size)


def frame(data: bytes) -> bytes:
    return _FRAME.pack(len(data)) + data


def read_frame(read: Read, largest: int) -> bytes:
    (size,) = _FRAME.unpack(read(_FRAME.size))
    if size > largest:
        raise FrameError(f"a frame of {size} bytes, more than {largest}")
    return read(size)


def reading(connection: socket.socket) -> Read:
    """Reads from a socket, and no byte more than asked for."""

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = connection.recv(size - len(data))
            if not piece:
                raise EOFError(CLOSED)
            data += piece
        return bytes(data)

    return read
