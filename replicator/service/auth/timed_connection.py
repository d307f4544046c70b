"""Connections of clients with time limits for the head of a request and for reading a response, and a limit on their
number.

uvicorn has a time limit for connections that are idle between requests; `admitted` limits bodies.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.core.service_config import LimitConfig
from replicator.core.text.quantity import parse_duration

HEAD = 32 << 10  # bytes of a request's head

log = logging.getLogger(__name__)


def connection_class(limits: LimitConfig) -> type[asyncio.Protocol]:
    """Returns the class that uvicorn uses for each connection."""
    head, write = (parse_duration(each).total_seconds() for each in (limits.header_time, limits.write_time))

    class TimedConnection(H11Protocol):
        most, head_time = limits.connections, head
        _head: asyncio.TimerHandle | None = None
        _write: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                log.warning("a connection is refused: there are %s", limits.connections)
                self._end(b"503 Service Unavailable")
            else:
                self._head = self.loop.call_later(head, self._late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel()
            elif self._head is None and not self.transport.is_closing():
                self._head = self.loop.call_later(head, self._late)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write = self.loop.call_later(write, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._write is not None:
                self._write.cancel()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self.loop.call_later(write, self.transport.abort)  # if the rest was not read by then

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _late(self) -> None:
            self._head = None
            self._end(b"408 Request Timeout")

        def _end(self, status: bytes) -> None:
            """Sends the status and closes the connection; further input is discarded."""
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.transport.close()
            self.loop.call_later(write, self.transport.abort)

        def _cancel(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return TimedConnection


def uvicorn_limits(limits: LimitConfig) -> dict[str, Any]:
    """Returns settings of uvicorn. Headers about addresses are evaluated here, not by uvicorn."""
    return {
        "http": connection_class(limits),
        "ws": "none",
        "proxy_headers": False,
        "h11_max_incomplete_event_size": HEAD,
        "timeout_keep_alive": max(1, round(parse_duration(limits.idle_time).total_seconds())),
    }


# ---- tls gate --------------------------------------------------------------------------------------------------------
# Connections before their TLS handshake, which are counted and limited in time like all others.
#
# asyncio notifies a protocol of a TLS connection only after its handshake: clients that send nothing would not be
# counted.


class TlsGate(asyncio.Protocol):
    """A protocol that is one of uvicorn's `connections` until its handshake ends; then `inner` replaces it. Used by the
    event loop's thread."""

    def __init__(self, inner: Any, context: ssl.SSLContext, most: int, seconds: float) -> None:
        """inner: uvicorn's protocol. most: connections, including established ones. seconds: for the handshake."""
        self._inner, self._context, self._most, self._seconds = inner, context, most, seconds
        self._connections: set[Any] = inner.connections
        self._early, self._lost, self._open = bytearray(), False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        if len(self._connections) > self._most:
            log.warning("a connection is refused: there are %s", self._most)
            transport.abort()  # no response can be sent before the handshake
        else:
            self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        self._early += data  # arrived together with the end of the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        if self._open:
            self._inner.connection_lost(exc)

    def shutdown(self) -> None:
        """Closes the connection when the server ends."""
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._seconds
        try:
            secured = await loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # includes TLS errors and timeouts
            log.debug("no handshake: %s", error)
            self._transport.abort()
            return
        finally:
            self._connections.discard(self)
        if secured is None or self._lost:
            return
        self._open = True
        secured.set_protocol(self._inner)
        self._inner.connection_made(secured)
        if self._early:
            self._inner.data_received(bytes(self._early))


def gated(inner: Any, context: ssl.SSLContext) -> Callable[..., asyncio.Protocol]:
    """Returns a factory for `inner`, a class of `timed_connection.connection_class`, for connections that begin with a
    handshake."""
    return lambda **given: TlsGate(inner(**given), context, inner.most, inner.head_time)
