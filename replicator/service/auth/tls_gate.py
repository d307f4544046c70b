"""Connections before their TLS handshake, which are counted and have a time as all others.

asyncio tells a protocol of a connection over TLS only after its handshake: nobody would count who sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class TlsGate(asyncio.Protocol):
    """One of `connections`, of uvicorn's, until its handshake is over; then `inner` is in its place. The event loop's
    thread uses it."""

    def __init__(self, inner: Any, context: ssl.SSLContext, most: int, seconds: float) -> None:
        """inner: uvicorn's protocol. most: connections, with those that are in. seconds: for the handshake."""
        self._inner, self._context, self._most, self._seconds = inner, context, most, seconds
        self._connections: set[Any] = inner.connections
        self._early, self._lost, self._open = bytearray(), False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        if len(self._connections) > self._most:
            log.warning("a connection is refused: there are %s", self._most)
            transport.abort()  # nothing can be said before the handshake
        else:
            self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        self._early += data  # came together with the end of the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        if self._open:
            self._inner.connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends."""
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._seconds
        try:
            secured = await loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # also of TLS, and of time
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
    """As `inner`, a class of `timed_connection.connection_class`, for connections that begin with a handshake."""
    return lambda **given: TlsGate(inner(**given), context, inner.most, inner.head_time)
