"""A connection as the relay sees it: plain bytes, whatever TLS, SASL or frames make of them on the wire."""

from __future__ import annotations

import socket
import ssl
import struct

from replicator.captures.gateways.extent import Bytes
from replicator.metastore.transports.frames import FrameError, Layer, Unlayered, frame

LARGEST_WRAPPED = 64 << 20  # bytes of a frame that a layer protects: it is held as a whole, of one who is known
LAYERED_PIECE = 60_000  # bytes: with a layer's own they stay below 64 KiB, the most that Java's clients announce
PIECE = 256 * 1024

_LENGTH = struct.Struct(">I")


class Channel:
    """One thread reads and writes; `shut` is for any. layer: None: bytes without frames."""

    def __init__(self, connection: socket.socket, layer: Layer | None = None) -> None:
        self._socket, self._layer = connection, layer
        self._streams = isinstance(layer, Unlayered)
        self._timeout: float | None = None
        self._wire = bytearray()  # received, not decoded yet
        self._left: int | None = None  # bytes of the current frame that are not decoded
        self._plain = bytearray()  # decoded, not given yet
        self._buffer = bytearray(PIECE if layer else 0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """How long one piece may take to be sent."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    @property
    def pending(self) -> bool:
        """Whether there are bytes that no poll sees."""
        return bool(self._plain) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and has not ended."""
        return bool(self._wire) or self._left is not None

    def receive_into(self, buffer: Bytes) -> int | None:
        """How many bytes came; 0 at the end, None when there is nothing whole yet. Waits for nothing that a poll has
        not announced. Raises OSError, FrameError."""
        if self._layer is None:
            return self._receive(buffer)
        if not self._plain:
            size = self._receive(self._buffer)
            if not size:
                return size
            self._decode(memoryview(self._buffer)[:size])
        if not self._plain:
            return None
        with memoryview(buffer) as view:
            size = min(len(self._plain), len(view))
            view[:size] = self._plain[:size]
        del self._plain[:size]
        return size

    def sendall(self, data: Bytes) -> None:
        if self._layer is None:
            self._socket.sendall(data)
            return
        piece = PIECE if self._streams else LAYERED_PIECE
        with memoryview(data) as view:
            for at in range(0, len(view), piece):
                self._socket.sendall(frame(self._layer.wrap(bytes(view[at : at + piece]))))

    def shut(self, how: int) -> None:
        """From any thread; safe to run twice, and beside a close."""
        shut(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, buffer: Bytes) -> int | None:
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.recv_into(buffer)
        self._socket.settimeout(0)  # what a poll has announced may be no data
        try:
            return self._socket.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        finally:
            self._socket.settimeout(self._timeout)

    def _decode(self, data: memoryview) -> None:
        assert self._layer is not None
        self._wire += data
        while True:
            if self._left is None:
                if len(self._wire) < _LENGTH.size:
                    return
                (self._left,) = _LENGTH.unpack_from(self._wire)
                del self._wire[: _LENGTH.size]
                if not self._streams and self._left > LARGEST_WRAPPED:
                    raise FrameError(f"a frame of {self._left} bytes, more than {LARGEST_WRAPPED}")
            if self._streams:
                size = min(self._left, len(self._wire))
                self._plain += self._wire[:size]
                self._left -= size
            elif len(self._wire) >= self._left:
                size, self._left = self._left, 0
                self._plain += self._layer.unwrap(bytes(self._wire[:size]))
            else:
                return
            del self._wire[:size]
            if self._left:
                return
            self._left = None


def prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def shut(connection: socket.socket, how: int) -> None:
    """Below TLS: an SSLSocket's own `shutdown` would send what follows as it is. Safe to run twice."""
    try:
        socket.socket.shutdown(connection, how)
    except OSError:
        return
