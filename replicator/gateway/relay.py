"""One client's connection: bytes pass unread in both directions, but for the name of each call.

A client of the metastore waits for each answer before it sends again, so whatever it sends after the first byte of an
answer begins the next message. Calls that delete data are read whole and handed over; all else is relayed as it comes.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
from collections.abc import Sequence

from replicator.gateway.calls import intercepted, suspicious
from replicator.gateway.drops import Counts, Drops, Reply, UpstreamLost, refusal
from replicator.gateway.messages import (
    CALL,
    INTERNAL_ERROR,
    ONEWAY,
    PROTOCOL_ERROR,
    REPLY,
    Fields,
    Garbage,
    Header,
    application_error,
    parse_header,
    read_from,
    read_struct,
)

CHUNK = 256 * 1024
LOOKED_AT = 64 * 1024  # a request of up to so many bytes is looked at whole: nothing may follow it unseen
QUIET = 1.0  # seconds without a byte after which an answer counts as complete when the gateway is to stop
CONNECT_TIMEOUT = 20.0

log = logging.getLogger(__name__)


class _Closed(Exception):
    """The connection is over; the reason for the log, if it is worth a line."""


class Connection:
    """Serves one client until it goes away, is refused, or `stopping` (a descriptor) becomes readable between calls."""

    def __init__(
        self, client: socket.socket, name: str, addresses: Sequence[tuple[str, int]], drops: Drops, counts: Counts,
        stopping: int, *, pass_unknown: bool,
    ) -> None:  # fmt: skip
        self._client, self._name, self._addresses = client, name, addresses
        self._drops, self._counts, self._stopping, self._pass_unknown = drops, counts, stopping, pass_unknown
        self._upstream: socket.socket | None = None
        self._pending = bytearray()  # of the client, not yet looked at
        self._waiting: Header | None = None  # a call whose answer has not begun
        self._began = False  # an answer has begun, and its end is not known
        self._poll = select.poll()
        self._buffer = bytearray(CHUNK)
        self._view = memoryview(self._buffer)

    def serve(self) -> None:
        """Never raises; both ends are closed when it returns."""
        _prepare(self._client)
        self._poll.register(self._client, select.POLLIN)
        self._poll.register(self._stopping, select.POLLIN)
        try:
            while header := self._next_message():
                self._counts.add(calls=1)
                self._handle(header)
        except _Closed as reason:
            if str(reason):
                log.warning("%s: %s", self._name, reason)
        except (OSError, UpstreamLost) as error:
            log.info("%s: %s", self._name, error)
        except Exception:
            log.exception("%s: closed", self._name)
        finally:
            self._close()

    # ---- the client -----------------------------------------------------------------------------------------------

    def _next_message(self) -> Header | None:
        """Relays until the client begins another message; None when there will be none."""
        stopping = False
        while True:
            if self._pending and self._waiting is None:
                header = self._parse()
                if header is not None:
                    self._began = False
                    return header
            ready = dict(self._poll.poll(QUIET * 1000 if stopping else None))
            if self._upstream is not None and self._upstream.fileno() in ready:
                self._relay_answer()
            elif self._waiting is None and (stopping or self._stopping in ready):
                if not self._began or not ready or self._client.fileno() in ready:
                    return None  # between two calls: the client sends another, or the answer has come to its end
                stopping = True
                self._poll.unregister(self._stopping)
            elif self._client.fileno() in ready:
                if not self._receive():
                    return None
            else:
                self._await_answer()

    def _await_answer(self) -> None:
        """To be stopped while a call is at work: its answer is waited for, and the client may go on sending it."""
        self._poll.unregister(self._stopping)
        try:
            while self._waiting is not None:
                ready = dict(self._poll.poll())
                if self._upstream is not None and self._upstream.fileno() in ready:
                    self._relay_answer()
                elif not self._receive():
                    raise _Closed
        finally:
            self._poll.register(self._stopping, select.POLLIN)

    def _receive(self) -> bool:
        """What the client has sent: the rest of a call goes on at once. False when it has gone."""
        size = self._client.recv_into(self._buffer)
        if not size:
            return False
        if self._waiting is not None:
            self._forward(self._view[:size])
        else:
            self._pending += self._view[:size]
        return True

    def _parse(self) -> Header | None:
        try:
            header = parse_header(self._pending)
            if header is not None and header.kind not in (CALL, ONEWAY):
                raise Garbage("an answer where a call should be")
            return header
        except Garbage as error:
            self._answer(application_error(None, PROTOCOL_ERROR, f"the gateway cannot read this: {error}"))
            raise _Closed(f"garbage: {error}") from error

    # ---- one call -------------------------------------------------------------------------------------------------

    def _handle(self, header: Header) -> None:
        if suspicious(header.name) and not self._pass_unknown:
            self._read_call(header)
            self._counts.add(refused=1)
            log.warning("%s: refused %s", self._name, header.name)
            self._answer(refusal(header, (
                f"{header.name} may delete data, and the gateway does not know how; if it is harmless, start the"
                " gateway with --pass-unknown-drops"
            )))  # fmt: skip
            return
        try:
            self._connect()
        except OSError as error:
            self._answer(application_error(header, INTERNAL_ERROR, f"the metastore does not answer: {error}"))
            raise _Closed(f"the metastore does not answer: {error}") from error
        if intercepted(header.name):
            self._intercept(header)
        else:
            self._pass(header)

    def _intercept(self, header: Header) -> None:
        arguments = self._read_call(header)
        try:
            self._answer(self._drops.run(header, arguments, self._ask))
        except UpstreamLost as error:
            message = f"the metastore went away during {header.name}: {error}"
            self._answer(refusal(header, message))
            raise _Closed(message) from error

    def _read_call(self, header: Header) -> Fields:
        """The arguments of a call, read to their end."""
        self._take(header.size)
        try:
            return read_struct(self._take)
        except Garbage as error:
            self._answer(application_error(header, PROTOCOL_ERROR, f"the gateway cannot read this: {error}"))
            raise _Closed(f"garbage in {header.name}: {error}") from error

    def _pass(self, header: Header) -> None:
        """Sends on what is there of a call; the rest follows as it comes."""
        if len(self._pending) <= LOOKED_AT and (end := _end_of(self._pending, header.size)) is not None:
            if end < len(self._pending) and header.kind == CALL:
                self._answer(application_error(header, PROTOCOL_ERROR, "the gateway takes one call at a time"))
                raise _Closed(f"sent more before {header.name} was answered")
        else:
            end = len(self._pending)
        if header.kind == ONEWAY:
            self._pass_oneway(header)
            return
        self._waiting = header
        data, self._pending = self._pending, bytearray()
        self._forward(data)

    def _pass_oneway(self, header: Header) -> None:
        """There will be no answer, so the message is read to its end."""
        record = bytearray()

        def read(size: int) -> bytes:
            data = self._take(size)
            record.extend(data)
            return data

        read(header.size)
        try:
            read_struct(read)
        except Garbage as error:
            raise _Closed(f"garbage in {header.name}: {error}") from error
        self._forward(record)

    def _take(self, size: int) -> bytes:
        """The next bytes of the client. Raises _Closed when it goes before it has sent them."""
        while len(self._pending) < size:
            count = self._client.recv_into(self._buffer)
            if not count:
                raise _Closed("went away in the middle of a call")
            self._pending += self._view[:count]
        data = bytes(self._pending[:size])
        del self._pending[:size]
        return data

    def _answer(self, data: bytes) -> None:
        self._client.sendall(data)

    # ---- the metastore --------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """The first of the addresses that answers. The connection is the client's own: what it says of its user holds
        for it alone."""
        if self._upstream is not None:
            return
        reasons = []
        for host, port in self._addresses:
            try:
                self._upstream = socket.create_connection((host, port), CONNECT_TIMEOUT)
            except OSError as error:
                reasons.append(f"{host}:{port}: {error.strerror or error}")
                continue
            self._upstream.settimeout(None)
            _prepare(self._upstream)
            self._poll.register(self._upstream, select.POLLIN)
            return
        raise ConnectionError("; ".join(reasons))

    def _forward(self, data: bytes | bytearray | memoryview) -> None:
        assert self._upstream is not None
        try:
            self._upstream.sendall(data)
        except OSError as error:
            self._lost(error.strerror or str(error))

    def _relay_answer(self) -> None:
        assert self._upstream is not None
        try:
            size = self._upstream.recv_into(self._buffer)
        except OSError as error:
            self._lost(error.strerror or str(error))
            return
        if not size:
            self._lost("it closed the connection")
        self._waiting, self._began = None, True
        self._client.sendall(self._view[:size])

    def _lost(self, reason: str) -> None:
        """The metastore is gone. A client that has seen nothing of an answer is told; any other sees it end."""
        if self._waiting is not None:
            message = f"the metastore went away during {self._waiting.name}: {reason}"
            self._answer(application_error(self._waiting, INTERNAL_ERROR, message))
            raise _Closed(message)
        raise _Closed

    def _ask(self, message: bytes) -> Reply:
        """Sends a whole message and reads the whole answer."""
        assert self._upstream is not None
        upstream, record, at = self._upstream, bytearray(), 0

        def read(size: int) -> bytes:
            nonlocal at
            while len(record) - at < size:
                count = upstream.recv_into(self._buffer)
                if not count:
                    raise UpstreamLost("it closed the connection")
                record.extend(self._view[:count])
            at += size
            return bytes(record[at - size : at])

        try:
            upstream.sendall(message)
            while (header := parse_header(record[:512])) is None:
                at = len(record)
                read(1)
            at = header.size
            fields = read_struct(read)
        except OSError as error:
            raise UpstreamLost(error.strerror or str(error)) from error
        except Garbage as error:
            raise UpstreamLost(f"it answered nonsense: {error}") from error
        return Reply(bytes(record[:at]), header.kind == REPLY and not any(field.id for field in fields))

    def _close(self) -> None:
        for end in (self._client, self._upstream):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()


def _end_of(data: bytearray, start: int) -> int | None:
    """Where the struct that begins at `start` ends; None when it is not all there, or not to be read."""
    read, position = read_from(data, start)
    try:
        read_struct(read)
    except (EOFError, Garbage):
        return None
    return position()


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
