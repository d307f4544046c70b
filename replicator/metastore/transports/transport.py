"""Transports for thrift: buffers over a connection that sends and receives pieces of plain data.

The accelerated decoder of thrift reads the buffer itself (`cstringio_buf`, `cstringio_refill`), on each transport."""

from __future__ import annotations

import select
import socket
from abc import abstractmethod
from contextlib import suppress
from io import BytesIO

from thrift.transport.TTransport import CReadableTransport, TTransportBase, TTransportException

from replicator.metastore.transports.frames import CLOSED, Layer, Unlayered, frame, read_frame

BUFFER = 1 << 16
LARGEST_FRAME = (1 << 31) - 1  # thrift's own limit is 16 MB; one INSERT event can be larger


class Transport(TTransportBase, CReadableTransport):  # type: ignore[misc]
    """An open connection. `send` and `receive` carry plain data, whatever is around it on the wire."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._read = BytesIO()
        self._written = BytesIO()

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Raises OSError."""

    @abstractmethod
    def receive(self) -> bytes:
        """The next piece, at least one byte. Raises EOFError, OSError."""

    @property
    def lasts(self) -> bool:
        """Whether another call may use it: open, in step, and its tickets valid. The server says nothing unasked."""
        try:
            waiting = select.poll()
            waiting.register(self.socket, select.POLLIN)
            return not waiting.poll(0)
        except (OSError, ValueError):
            return False

    def limit(self, seconds: float) -> None:
        """How long one `send` or `receive` may wait."""
        self.socket.settimeout(seconds)

    def close(self) -> None:
        """Safe to run twice, and beside a call, which then finds the connection dead."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def peek(self, size: int) -> bytes:
        """The beginning of the answer, at least `size` bytes, which stay to be read."""
        said: bytes = self._read.read()
        while len(said) < size:
            said += self._piece()
        self._read = BytesIO(said)
        return said

    def isOpen(self) -> bool:
        return self.socket.fileno() >= 0

    def read(self, size: int) -> bytes:
        found = self._read.read(size)
        if not found:
            self._read = BytesIO(self._piece())
            found = self._read.read(size)
        return found

    def write(self, data: bytes) -> None:
        self._written.write(data)

    def flush(self) -> None:
        data = self._written.getvalue()
        self._written = BytesIO()
        self.send(data)

    @property
    def cstringio_buf(self) -> BytesIO:
        return self._read

    def cstringio_refill(self, partial: bytes, wanted: int) -> BytesIO:
        pieces, size = [partial], len(partial)
        while size < wanted:
            pieces.append(self._piece())
            size += len(pieces[-1])
        self._read = BytesIO(b"".join(pieces))
        return self._read

    def _piece(self) -> bytes:
        try:
            return self.receive()
        except TimeoutError as error:
            raise TTransportException(TTransportException.TIMED_OUT, "no answer in time") from error
        except EOFError as error:
            raise TTransportException(TTransportException.END_OF_FILE, str(error)) from error


class Plain(Transport):
    """The bytes as they are, over TCP or TLS."""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        data = self.socket.recv(BUFFER)
        if not data:
            raise EOFError(CLOSED)
        return data


class Framed(Transport):
    """Frames behind their lengths; below SASL their contents are what its layer makes of the data."""

    def __init__(self, connection: socket.socket, layer: Layer | None = None) -> None:
        super().__init__(connection)
        self._reader = connection.makefile("rb", BUFFER)
        self.layer = layer or Unlayered()

    def send(self, data: bytes) -> None:
        self.socket.sendall(frame(self.layer.wrap(data)))

    def receive(self) -> bytes:
        while True:  # an empty frame is one
            if data := self.layer.unwrap(read_frame(self._exactly, LARGEST_FRAME)):
                return data

    @property
    def lasts(self) -> bool:
        return self.layer.lasts and super().lasts

    def close(self) -> None:
        super().close()
        with suppress(OSError, ValueError):
            self._reader.close()

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._reader.read(size) or b""
        if len(data) < size:
            raise EOFError(CLOSED)
        return data
