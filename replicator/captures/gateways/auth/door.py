"""How a client is let in: TLS, then Kerberos, before the first byte of a call is looked at."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from replicator.captures.gateways.auth.channel import Channel, shut
from replicator.captures.gateways.auth.foreign import in_their_words, speaks_sasl, speaks_tls
from replicator.metastore.transports.frames import FrameError, Layer, Status, Unlayered, message, read_message

LOOKED_AT = 512  # bytes of what a client sends first
LINGER, LINGER_READS = 1.0, 16  # seconds and pieces of what a refused client still sends
PATIENCE = 10.0  # seconds for a handshake: who is not in yet holds a thread

T = TypeVar("T")


class NotAdmitted(Exception):
    """The client stays outside; why, for the log. Empty: it has not asked, or the gateway stops."""


@dataclass(frozen=True)
class Admitted:
    """user: who has proved to be it, by which mechanism; None: nobody has."""

    channel: Channel
    user: str | None = None
    mechanism: str = ""


class Proof(Protocol):
    """Finds out who a client is, over SASL. Raises NotAdmitted with what to tell the client."""

    def accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        """The user's short name, and the layer that the client has chosen. `exchange` sends a challenge and gives the
        answer."""
        ...


@dataclass(frozen=True)
class Door:
    """What is asked of clients. tls: a server's context; proofs: of their identity, by mechanism; framed: the framed
    transport."""

    tls: ssl.SSLContext | None = None
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    framed: bool = False

    def admit(self, connection: socket.socket, stopping: int, seconds: float) -> Admitted:
        """A client's connection, secured. stopping: a descriptor that ends the wait. Raises NotAdmitted,
        OSError; the connection is closed then."""
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
            raise NotAdmitted(f"the SASL negotiation begins with {status.name}")
        name, first = mechanism.decode(errors="replace"), wire.answer()
        if name not in proofs:
            raise NotAdmitted(f"the gateway takes {' and '.join(proofs)}, not {name[:40]!r}")
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
    """A connection during a handshake, which ends by a deadline whatever the client does."""

    def __init__(self, connection: socket.socket, stopping: int, deadline: float) -> None:
        self.connection, self._stopping, self._deadline = connection, stopping, deadline
        connection.settimeout(0)

    def expect(self, speaks: Callable[[bytes], bool], wanted: str) -> None:
        """Looks at the first bytes; another protocol is refused in its own words. Raises NotAdmitted."""
        begin = b""
        if isinstance(self.connection, ssl.SSLSocket):
            return  # nothing can be looked at in advance: the negotiation tells
        while len(begin) < 2:
            self._wait(select.POLLIN)
            more = self.connection.recv(LOOKED_AT, socket.MSG_PEEK)
            if len(more) == len(begin):
                raise NotAdmitted("" if not more else "went away after its first byte")
            begin = more
        if not speaks(begin):
            with_words = in_their_words(begin, f"{wanted}, and the client spoke something else")
            self.farewell(with_words)
            raise NotAdmitted(f"{wanted}; it speaks something else")

    def secure(self, context: ssl.SSLContext) -> None:
        """Raises NotAdmitted for a failed handshake: the client hears of it by an alert."""
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
        """The client's next message. Raises NotAdmitted when it gives up."""
        status, said = read_message(self.read)
        if status not in (Status.OK, Status.COMPLETE):
            raise NotAdmitted(f"the client gave up: {said.decode(errors='replace')[:200]}")
        return said

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._patiently(partial(self.connection.recv, size - len(data)))
            if not more:
                raise FrameError("went away during the handshake")
            data += more
        return data

    def send(self, data: bytes) -> None:
        while data:
            data = data[self._patiently(partial(self.connection.send, data)) :]

    def farewell(self, words: bytes) -> None:
        """The last words, and then what the client still sends: closed before it is read, the connection would be
        reset, and the words lost."""
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
            raise NotAdmitted("the handshake was not complete in time")
