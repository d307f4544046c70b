"""Transports for thrift: buffers over a connection that sends and receives chunks of plain data.

The accelerated decoder of thrift reads the buffer itself (`cstringio_buf`, `cstringio_refill`), on each transport.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from io import BytesIO
from typing import Literal, Protocol

from thrift.transport.TTransport import CReadableTransport, TTransportBase, TTransportException

from cmroot.authentication import FrameError as FrameError
from replicator.core.connections import MetastoreConfig, read_secret
from replicator.errors import IdentityRefused, NotAMetastore

# ---- frames ----------------------------------------------------------------------------------------------------------
# The frames of thrift over SASL, for clients and for servers (the gateway): negotiation messages of a status byte, a
# length and a payload; after them frames of a length and a payload, which a layer has wrapped.
#
# A `read(size)` returns exactly so many bytes or raises EOFError.


Read = Callable[[int], bytes]

CLOSED = "it closed the connection"
LARGEST_MESSAGE = 1 << 20  # of a negotiation, whose peer is not authenticated yet
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
    """An interface for the protection of data after the negotiation."""

    @property
    def lasts(self) -> bool:
        """True if it can protect another call."""
        ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes:
        """Returns plain data. Raises FrameError for data that are not from the peer."""
        ...


class Unlayered:
    """A layer that does not change the data: quality AUTHENTICATION."""

    lasts = True

    def wrap(self, data: bytes) -> bytes:
        return data

    def unwrap(self, data: bytes) -> bytes:
        return data


def message(status: Status, payload: bytes = b"") -> bytes:
    return _MESSAGE.pack(status, len(payload)) + payload


def read_message(read: Read) -> tuple[Status, bytes]:
    """Reads a negotiation message. Raises FrameError for anything else."""
    status, size = _MESSAGE.unpack(read(_MESSAGE.size))
    if status not in Status.__members__.values() or size > LARGEST_MESSAGE:
        raise FrameError(f"not a SASL message: it begins with {_MESSAGE.pack(status, size)!r}")
    return Status(status), read(size)


def frame(data: bytes) -> bytes:
    return _FRAME.pack(len(data)) + data


def read_frame(read: Read, largest: int) -> bytes:
    (size,) = _FRAME.unpack(read(_FRAME.size))
    if size > largest:
        raise FrameError(f"a frame of {size} bytes, more than {largest}")
    return read(size)


def reading(connection: socket.socket) -> Read:
    """Returns a function that reads from a socket, and no byte more than requested."""

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = connection.recv(size - len(data))
            if not piece:
                raise EOFError(CLOSED)
            data += piece
        return bytes(data)

    return read


# ---- transport -------------------------------------------------------------------------------------------------------


BUFFER = 1 << 16
LARGEST_FRAME = (1 << 31) - 1  # thrift's own limit is 16 MB; one INSERT event can be larger


class Transport(TTransportBase, CReadableTransport):  # type: ignore[misc]
    """An open connection. `send` and `receive` carry plain data, regardless of the encoding on the wire."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._read = BytesIO()
        self._written = BytesIO()

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends data. Raises OSError."""

    @abstractmethod
    def receive(self) -> bytes:
        """Returns the next chunk, at least one byte. Raises EOFError, OSError."""

    @property
    def lasts(self) -> bool:
        """True if another call may use it: open, in step, and its tickets valid. Servers send nothing unrequested."""
        try:
            waiting = select.poll()
            waiting.register(self.socket, select.POLLIN)
            return not waiting.poll(0)
        except (OSError, ValueError):
            return False

    def limit(self, seconds: float) -> None:
        """Sets how long one `send` or `receive` may wait."""
        self.socket.settimeout(seconds)

    def close(self) -> None:
        """Closes the connection. May run twice, and concurrently with a call, which then finds the connection dead."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def peek(self, size: int) -> bytes:
        """Returns the beginning of the response, at least `size` bytes, without consuming them."""
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
    """A transport of raw bytes, over TCP or TLS."""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        data = self.socket.recv(BUFFER)
        if not data:
            raise EOFError(CLOSED)
        return data


class Framed(Transport):
    """A transport of frames with a length prefix; with SASL their contents are wrapped by its layer."""

    def __init__(self, connection: socket.socket, layer: Layer | None = None) -> None:
        super().__init__(connection)
        self._reader = connection.makefile("rb", BUFFER)
        self.layer = layer or Unlayered()

    def send(self, data: bytes) -> None:
        self.socket.sendall(frame(self.layer.wrap(data)))

    def receive(self) -> bytes:
        while True:  # skips empty frames
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


# ---- tls -------------------------------------------------------------------------------------------------------------
# TLS of a connection: trusted certificates, the client's certificate, and errors of a failed handshake.


_OTHER_HOST = 62  # X509_V_ERR_HOSTNAME_MISMATCH
_OTHER_ADDRESS = 64
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF", "PACKET_LENGTH_TOO_LONG")


def secured(connection: socket.socket, config: MetastoreConfig, host: str) -> ssl.SSLSocket:
    """Adds TLS. Raises IdentityRefused for certificates, NotAMetastore for a server without TLS, OSError if it dies."""
    context = _context(config)
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLEOFError as error:
        raise ConnectionResetError(CLOSED) from error
    except ssl.SSLError as error:
        raise failure(error) from error


def failure(error: ssl.SSLError) -> Exception:
    """Returns the error to raise for the caller, with a hint."""
    if isinstance(error, ssl.SSLCertVerificationError):
        other = error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS)
        return IdentityRefused(
            f"the server's certificate is refused: {error.verify_message}",
            hint="check the URI's host, or set verify_host = false in [metastores.NAME]"
            if other
            else "set ca in [metastores.NAME] to a PEM file with the certificate that signed the server's",
        )
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return NotAMetastore("the server does not speak TLS", hint="set tls = false in [metastores.NAME]")
    if "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason:
        return IdentityRefused(
            f"the server refuses the TLS handshake: {reason.lower().replace('_', ' ')}",
            hint="it may require a client certificate: set certificate and key in [metastores.NAME]",
        )
    return ConnectionResetError(f"TLS: {reason.lower().replace('_', ' ')}")


def _context(config: MetastoreConfig) -> ssl.SSLContext:
    """Returns a new context for each connection: administrators replace certificates while a command runs."""
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except (OSError, ValueError) as error:
        raise IdentityRefused(f"ca {config.ca} cannot be read: {_why(error)}", hint="it must be a PEM file") from error
    context.check_hostname = config.verify_host
    if config.certificate is not None:
        reference = config.key_password
        password = "" if reference is None else read_secret(reference, "key_password")  # empty: never prompts
        try:
            context.load_cert_chain(config.certificate, config.key, password)
        except (OSError, ValueError) as error:
            raise IdentityRefused(
                f"certificate {config.certificate} with key {config.key} cannot be read: {_why(error)}",
                hint="both must be PEM files; key_password is that of an encrypted key",
            ) from error
    return context


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


# ---- greeting --------------------------------------------------------------------------------------------------------
# The first response of an address: detection of a metastore, and of other protocols.
#
# A metastore returns its name at once, however busy it is. Other servers answer in a protocol of their own, or wait for
# more of what they assume is theirs: with a regular call, the wait would be as long as the longest call may take.


_NAME = b"getName"
CALL = b"\x80\x01\x00\x01" + len(_NAME).to_bytes(4, "big") + _NAME + b"\r\n\r\n" + b"\0"
"""Its number ends a line and an empty one after it: line-based protocols answer, instead of waiting for their end."""
COMPACT = b"\x82\x21\x00" + len(_NAME).to_bytes(1, "big") + _NAME + b"\x18\x04\r\n\r\n" + b"\0"
"""The same in the compact protocol, with the line ends in a field that a metastore skips."""
CALLS: Mapping[str, bytes] = {"binary": CALL, "compact": COMPACT}

WENT_AWAY = "the connection broke at the first call"

PATIENCE = 3.0  # seconds for a response to a guess

Found = dict[str, str]
"""Keys of `[metastores.NAME]` with the values that the server requires, as TOML; empty if none were found."""
_TLS: Found = {"tls": "true"}
_HTTP: Found = {"auth": '"none"', "transport": '"http"'}
_FRAMED: Found = {"transport": '"framed"'}
_SOCKET: Found = {"transport": '"socket"'}
_SASL: Found = {"auth": '"kerberos"', "transport": '"socket"'}
_PASSWORD: Found = {"auth": '"plain"', "transport": '"socket"'}
_NO_SASL: Found = {"auth": '"none"'}
_GUESSES: tuple[tuple[bytes, Found], ...] = (
    (frame(CALL), _FRAMED | {"protocol": '"binary"'}),
    (COMPACT, _SOCKET | {"protocol": '"compact"'}),
    (frame(COMPACT), _FRAMED | {"protocol": '"compact"'}),
)


class SilentPeer(Exception):
    """An error: the peer accepted the connection, but sent nothing in time."""


class Strange(Exception):
    """An error: the peer is not a metastore; the message describes what it seems to be."""


def greet(transport: Transport, within: float, protocol: Literal["binary", "compact"] = "binary") -> None:
    """Requests the name and waits for the beginning of the response, which is not consumed. Raises SilentPeer, Strange,
    IdentityRefused for a certificate, or ConnectionError if the connection dies."""
    call = CALLS[protocol]
    deadline = time.monotonic() + within
    try:
        transport.limit(within)
        transport.send(call)
        transport.limit(max(deadline - time.monotonic(), 0.01))
        said = transport.peek(2)
    except TimeoutError:
        raise SilentPeer(f"no answer within {within:g} s, although the port is open") from None
    except ssl.SSLError as error:
        raise failure(error) from error
    except TTransportException as error:
        if error.type == TTransportException.TIMED_OUT:
            raise SilentPeer(f"no answer within {within:g} s, although the port is open") from None
        raise ConnectionResetError(f"{WENT_AWAY}: {error}") from error
    except OSError as error:
        raise ConnectionResetError(f"{WENT_AWAY}: {getattr(error, 'strerror', None) or error}") from error
    if said[:1] != call[:1]:
        raise Strange(seems(said)[0])


def seems(said: bytes) -> tuple[str, Found]:
    """Returns the protocol of a peer, by its first bytes, and the keys for it."""
    if said[:5] == b"HTTP/" or said[:1] == b"<":
        return "an HTTP server answers there", _HTTP
    if said[0] in (0x15, 0x16) and said[1:2] == b"\x03":
        return "the server speaks TLS", _TLS
    if 1 <= said[0] <= 5 and said[1:3] in (b"\0\0", b"\0"):
        return "the server speaks SASL (Kerberos)", _SASL
    if said[4:6] == CALL[:2]:
        return "the server speaks framed thrift", _FRAMED
    return f"the server is not a metastore, its answer: {said[:24]!r}", {}


def recognise(dial: Callable[[], socket.socket]) -> tuple[str, Found]:
    """Returns the protocol of a peer that did not answer as configured, by probing other protocols, and the keys for
    it. `dial`: opens another connection to it. Empty for a peer that answers no probe."""
    said = _answer(dial, CALL)
    if said[:2] == CALL[:2]:
        return "a metastore answers there, with plain binary thrift", _NO_SASL | _SOCKET | {"protocol": '"binary"'}
    if said:
        text, found = seems(said)
        return _mechanism(dial) or (text, found) if found == _SASL else (text, found)
    if wanted := _mechanism(dial):
        return wanted
    if _speaks_tls(dial):
        return "the server speaks TLS", _TLS
    for call, found in _GUESSES:
        answer = _answer(dial, call)
        framed = 4 if found["transport"] == _FRAMED["transport"] else 0
        if answer[framed : framed + 1] == call[framed : framed + 1]:
            keys = ", ".join(value.strip('"') for value in found.values())
            return f"a metastore answers there with other framing ({keys})", found
    return "", {}


def _speaks_tls(dial: Callable[[], socket.socket]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, ValueError), dial() as connection:
        connection.settimeout(PATIENCE)
        context.wrap_socket(connection).close()
        return True
    return False


def _mechanism(dial: Callable[[], socket.socket]) -> tuple[str, Found] | None:
    """Returns the authentication that a server requires; None: it does not support SASL."""
    with suppress(OSError, EOFError), dial() as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(message(Status.START, b"GSSAPI") + message(Status.OK))
        status, payload = read_message(reading(connection))
        if status is not Status.OK and b"nsupported mechanism" in payload:
            return "the server speaks SASL without Kerberos", _PASSWORD
        return "this metastore requires Kerberos (SASL GSSAPI)", _SASL
    return None


def _answer(dial: Callable[[], socket.socket], call: bytes) -> bytes:
    """Returns the beginning of a peer's response to these bytes; empty if it disconnects or is silent."""
    with suppress(OSError, EOFError), dial() as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(call)
        said = connection.recv(64)
        while 0 < len(said) < 6 and (more := connection.recv(64)):
            said += more
        return said
    return b""
