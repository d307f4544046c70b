"""Authentication of clients: TLS, then SASL (Kerberos or a token), before the first byte of a call is parsed."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from replicator.captures.gateways.local_names import LocalNames, NoLocalUser, in_their_words, speaks_sasl, speaks_tls
from replicator.captures.gateways.targets import Bytes
from replicator.errors import MetastoreError, UsageError
from replicator.metastore.sasl import LARGEST, LEAST_QUALITY, layer, said
from replicator.metastore.transport import FrameError, Layer, Quality, Status, Unlayered, frame, message, read_message

# ---- channel ---------------------------------------------------------------------------------------------------------
# A connection as used by the relay: plain bytes, independent of TLS, SASL or frames on the wire.


LARGEST_WRAPPED = 64 << 20  # maximum bytes of a protected frame, buffered completely, for an authenticated client
LAYERED_PIECE = 60_000  # bytes: with the layer's overhead below 64 KiB, the maximum that Java's clients announce
PIECE = 256 * 1024

_LENGTH = struct.Struct(">I")


class Channel:
    """A channel. One thread reads and writes; any thread may call `shut`. layer: None: bytes without frames."""

    def __init__(self, connection: socket.socket, layer: Layer | None = None) -> None:
        self._socket, self._layer = connection, layer
        self._streams = isinstance(layer, Unlayered)
        self._timeout: float | None = None
        self._wire = bytearray()  # received, not decoded yet
        self._left: int | None = None  # bytes of the current frame that are not decoded
        self._plain = bytearray()  # decoded, not returned yet
        self._buffer = bytearray(PIECE if layer else 0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """Sets the timeout for sending one chunk."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    @property
    def pending(self) -> bool:
        """True if there are buffered bytes that a poll does not report."""
        return bool(self._plain) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    @property
    def partial(self) -> bool:
        """True if a frame has begun and has not ended."""
        return bool(self._wire) or self._left is not None

    def receive_into(self, buffer: Bytes) -> int | None:
        """Returns the number of bytes received; 0 at the end, None if no complete frame has arrived yet. Waits only for
        data that a poll has announced. Raises OSError, FrameError."""
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
        """Shuts the connection down. May be called from any thread, twice, and concurrently with a close."""
        shut(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, buffer: Bytes) -> int | None:
        if not isinstance(self._socket, ssl.SSLSocket):
            return self._socket.recv_into(buffer)
        self._socket.settimeout(0)  # the bytes that a poll has announced may not be application data
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
                    raise FrameError(f"a frame of {self._left} bytes exceeds the limit of {LARGEST_WRAPPED}")
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
    """Shuts down below TLS: an SSLSocket's own `shutdown` would send later data unencrypted. May run twice."""
    try:
        socket.socket.shutdown(connection, how)
    except OSError:
        return


# ---- authentication --------------------------------------------------------------------------------------------------


LOOKED_AT = 512  # bytes examined at the start of a connection
LINGER, LINGER_READS = 1.0, 16  # seconds and reads of remaining data from a refused client
PATIENCE = 10.0  # seconds for a handshake, because a client that is not authenticated yet occupies a thread

T = TypeVar("T")


class NotAdmitted(Exception):
    """Raised to reject a client, with the reason for the log. Empty: it sent nothing, or the gateway stops."""


@dataclass(frozen=True)
class Admitted:
    """An admitted client. user: the authenticated user, with the mechanism; None: not authenticated."""

    channel: Channel
    user: str | None = None
    mechanism: str = ""


class Proof(Protocol):
    """A method that authenticates clients over SASL. Raises NotAdmitted with the message for the client."""

    def accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        """Returns the user's short name, and the layer that the client has chosen. `exchange` sends a challenge and
        returns the answer."""
        ...


@dataclass(frozen=True)
class Authenticator:
    """The authentication required of clients. tls: a server's context; proofs: authentication methods, by mechanism;
    framed: the framed transport."""

    tls: ssl.SSLContext | None = None
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    framed: bool = False

    def admit(self, connection: socket.socket, stopping: int, seconds: float) -> Admitted:
        """Returns a client's connection, secured. stopping: a descriptor that ends the wait. Raises NotAdmitted,
        OSError; the connection is then closed."""
        if self.tls is None and not self.proofs:
            return Admitted(Channel(connection, Unlayered() if self.framed else None))
        wire = _Wire(connection, stopping, time.monotonic() + min(seconds, PATIENCE))
        try:
            return self._admit(wire)
        except BaseException:
            wire.connection.close()
            raise

    def _admit(self, wire: _Wire) -> Admitted:
        if self.tls is not None:
            wire.expect(speaks_tls, "TLS is required here")
            wire.secure(self.tls)
        if not self.proofs:
            return Admitted(Channel(wire.connection, Unlayered() if self.framed else None))
        wire.expect(speaks_sasl, "Kerberos (SASL GSSAPI) is required here")
        return _negotiate(wire, self.proofs)


def _negotiate(wire: _Wire, proofs: Mapping[str, Proof]) -> Admitted:
    try:
        status, mechanism = read_message(wire.read)
        if status is not Status.START:
            raise NotAdmitted(f"the SASL negotiation begins with {status.name} instead of START")
        name, first = mechanism.decode(errors="replace"), wire.answer()
        if name not in proofs:
            raise NotAdmitted(f"the gateway accepts {' and '.join(proofs)}, not {name[:40]!r}")
        user, layer = proofs[name].accept(wire.exchange, first)
        wire.send(message(Status.COMPLETE))
    except FrameError as error:
        raise NotAdmitted(str(error)) from error
    except NotAdmitted as error:
        if str(error):
            wire.farewell(message(Status.BAD, str(error).encode()))
        raise
    return Admitted(Channel(wire.connection, layer), user, name)


class _Wire:
    """A connection during a handshake, limited by a deadline regardless of the client."""

    def __init__(self, connection: socket.socket, stopping: int, deadline: float) -> None:
        self.connection, self._stopping, self._deadline = connection, stopping, deadline
        connection.settimeout(0)

    def expect(self, speaks: Callable[[bytes], bool], wanted: str) -> None:
        """Checks the first bytes; a client of another protocol is refused in that protocol. Raises NotAdmitted."""
        begin = b""
        if isinstance(self.connection, ssl.SSLSocket):
            return  # TLS data cannot be peeked: the negotiation detects errors
        while len(begin) < 2:
            self._wait(select.POLLIN)
            more = self.connection.recv(LOOKED_AT, socket.MSG_PEEK)
            if len(more) == len(begin):
                raise NotAdmitted("" if not more else "disconnected after its first byte")
            begin = more
        if not speaks(begin):
            with_words = in_their_words(begin, f"{wanted}, but the client uses another protocol")
            self.farewell(with_words)
            raise NotAdmitted(f"{wanted}; the client uses another protocol")

    def secure(self, context: ssl.SSLContext) -> None:
        """Performs the TLS handshake. Raises NotAdmitted if it fails; the client is notified by an alert."""
        wrapped = context.wrap_socket(self.connection, server_side=True, do_handshake_on_connect=False)
        self.connection = wrapped
        try:
            self._patiently(wrapped.do_handshake)
        except ssl.SSLError as error:
            raise NotAdmitted(f"TLS: {error.reason or error}") from error

    def exchange(self, challenge: bytes) -> bytes:
        self.send(message(Status.OK, challenge))
        return self.answer()

    def answer(self) -> bytes:
        """Returns the client's next message. Raises NotAdmitted if the client aborts."""
        status, said = read_message(self.read)
        if status not in (Status.OK, Status.COMPLETE):
            raise NotAdmitted(f"the client aborted: {said.decode(errors='replace')[:200]}")
        return said

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._patiently(partial(self.connection.recv, size - len(data)))
            if not more:
                raise FrameError("disconnected during the handshake")
            data += more
        return data

    def send(self, data: bytes) -> None:
        while data:
            data = data[self._patiently(partial(self.connection.send, data)) :]

    def farewell(self, words: bytes) -> None:
        """Sends the last message, then reads what the client still sends: if the connection were closed with unread
        data, it would be reset, and the message lost."""
        try:
            if words:
                self.send(words)
            shut(self.connection, socket.SHUT_WR)
            self._deadline = min(self._deadline, time.monotonic() + LINGER)
            for _ in range(LINGER_READS):
                if not self._patiently(partial(self.connection.recv, 1 << 12)):
                    return
        except (OSError, NotAdmitted):
            return

    def _patiently(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self.connection, events)
        poll.register(self._stopping, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000)}
        if self._stopping in ready:
            raise NotAdmitted("")
        if not ready:
            raise NotAdmitted("the handshake was not completed in time")


# ---- acceptor --------------------------------------------------------------------------------------------------------
# The server's side of SASL GSSAPI (RFC 4752): the principal of a client's ticket, and the protection layer.


try:
    import gssapi
except ImportError:  # the extra is not installed, or the system has no Kerberos
    gssapi = None

GSSAPI = "GSSAPI"


class KerberosProof:
    """Authentication by Kerberos, for all clients and any thread. `principal`: the gateway's own, in `keytab`. names:
    maps accepted principals to local users; `least`: the weakest protection that a client may choose."""

    def __init__(self, principal: str, keytab: str, names: LocalNames, least: str | None = None) -> None:
        """Raises UsageError for a keytab that does not contain the key."""
        if gssapi is None:
            raise UsageError("Kerberos needs the gssapi package", hint="pip install 'replicator[kerberos]'")
        if not os.access(keytab, os.R_OK):
            raise UsageError(f"keytab {keytab} cannot be read", hint="check its path and permissions")
        name, _, realm = principal.rpartition("@")
        if "/" not in name or not realm:
            raise UsageError(
                f"principal {principal!r} is not a service principal", hint="write hive/host.example.com@REALM"
            )
        self._names = names
        self._offered = sum(each for each in Quality if each >= LEAST_QUALITY[least])
        self._principal, self._keytab = principal, keytab
        try:
            self._credentials = self._acquire()
        except MetastoreError as error:
            raise UsageError(error.message, hint=f"`klist -k {keytab}` lists the keys of the keytab") from error

    def accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        """Authenticates a client. See `authentication.Proof`."""
        try:
            return said(lambda: self._accept(exchange, first), "a client's ticket")
        except MetastoreError as error:
            raise NotAdmitted(error.message) from error

    def _accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        context = gssapi.SecurityContext(creds=self._credentials, usage="accept")
        token = context.step(first)
        while not context.complete:  # an error of the step is raised here
            token = context.step(exchange(token or b""))
        if token and exchange(token):
            raise NotAdmitted("the SASL negotiation is out of sequence")
        offer = bytes([self._offered]) + (LARGEST if self._offered > 1 else 0).to_bytes(3, "big")
        chosen = bytes(context.unwrap(exchange(bytes(context.wrap(offer, False).message))).message)
        quality = _quality(chosen, self._offered)
        who = str(context.initiator_name)
        claimed = chosen[4:].decode(errors="replace")
        if claimed not in ("", who):
            raise NotAdmitted(f"{who} may not act as {claimed[:100]!r}")
        return self._short(who), layer(context, quality)

    def _short(self, who: str) -> str:
        try:
            return self._names.user(who)
        except NoLocalUser as error:
            raise NotAdmitted(str(error)) from error

    def _acquire(self) -> object:
        name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        return said(lambda: gssapi.Credentials(name=name, usage="accept", store={"keytab": self._keytab}), self._keytab)


def _quality(chosen: bytes, offered: int) -> Quality:
    try:
        quality = Quality(chosen[0])
    except (IndexError, ValueError):
        raise NotAdmitted("the client chose no SASL security layer") from None
    if len(chosen) < 4 or not quality & offered:
        raise NotAdmitted(f"the protection {quality.name.lower()} is not offered")
    return quality
