"""Connections of clients: their number, of all and of one address, and their time limits for the head of a request and
for reading a response. uvicorn itself limits the time of connections that are idle between requests.

A full server closes the connection that has been idle for longest and never had a valid token, so that clients without
one cannot keep others out. When all are in use, a few more are accepted for requests about health alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.core.logging import Periodic
from replicator.core.service_config import LimitConfig, ProxyConfig
from replicator.core.text import parse_duration

HEAD = 32 << 10  # bytes of a request's head
HEALTH = ("/healthz", "/readyz")
FOR_HEALTH = 16
"""Connections beyond the maximum, for requests about health."""

log = logging.getLogger(__name__)
refusals = Periodic(log)


class Counted(Protocol):
    """A connection of `Room`. address: of the peer. idle_since: by the loop's clock; None: a request is being answered.
    known: it has sent a valid token."""

    @property
    def address(self) -> str: ...
    @property
    def idle_since(self) -> float | None: ...
    @property
    def known(self) -> bool: ...
    def evict(self) -> None: ...


@dataclass(frozen=True)
class Room:
    """The capacity of a server: connections in all, and of one address that is not a trusted proxy."""

    most: int
    of_address: int
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def take(self, new: Counted, others: Iterable[Counted]) -> str:
        """Makes room for a connection. Returns "" if it may do anything, "health" if it may only query that, otherwise
        the reason to refuse it."""
        there = [each for each in others if each is not new]
        same = [each for each in there if each.address == new.address]
        if len(same) >= self.of_address and not self._is_proxy(new.address):
            if not _evicted(same):
                return f"{len(same)} connections of one address are in use"
        elif len(there) >= self.most and not _evicted(there):
            return "health" if len(there) < self.most + FOR_HEALTH else f"{len(there)} connections are in use"
        return ""

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in network for network in self.proxies)


def _evicted(among: Iterable[Counted]) -> bool:
    """Closes the connection that has been idle for longest of those without a valid token. Returns False without
    one."""
    idle = [(each.idle_since, number, each) for number, each in enumerate(among) if not each.known]
    ended = min(((since, number, each) for since, number, each in idle if since is not None), default=None)
    if ended is not None:
        ended[2].evict()
    return ended is not None


def connection_class(limits: LimitConfig, proxy: ProxyConfig | None = None) -> type[asyncio.Protocol]:
    """Returns the class that uvicorn uses for each connection. proxy: whose connections carry many clients."""
    head, write = (parse_duration(each).total_seconds() for each in (limits.header_time, limits.write_time))
    networks = tuple(ipaddress.ip_network(each) for each in (proxy.networks if proxy else ()))

    class TimedConnection(H11Protocol):
        room, head_time = Room(limits.connections, limits.connections_per_address, networks), head
        idle_since: float | None = None
        _head: asyncio.TimerHandle | None = None
        _write: asyncio.TimerHandle | None = None

        @property
        def address(self) -> str:
            return self.client[0] if self.client else ""

        @property
        def known(self) -> bool:
            return bool(self.scope and self.scope.get("state", {}).get("recognised"))

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.idle_since = self.loop.time()
            limit = self.room.take(self, cast(set[Counted], self.connections))
            if limit == "health":
                self.app = only_health(self.app)
            elif limit:
                refusals.warning("connection refused: %s", limit)
                self._end(b"503 Service Unavailable")
                return
            self._head = self.loop.call_later(head, self._late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.idle_since = None
                self._cancel()
            elif self._head is None and not self.transport.is_closing():
                self._head = self.loop.call_later(head, self._late)

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete:  # the next request was there already
                self.idle_since = None

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

        def evict(self) -> None:
            """Closes an idle connection, which no longer counts."""
            self.connections.discard(self)
            self._cancel()
            self.transport.close()
            self.loop.call_later(write, self.transport.abort)

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


def only_health(app: Any) -> Any:
    """Returns an ASGI application that answers requests about health as `app` does, and refuses others."""

    async def answer(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["path"] in HEALTH:
            await app(scope, receive, _closing(send))
            return
        refusals.warning("request refused: all connections are in use")
        headers = [(b"content-length", b"0"), (b"connection", b"close"), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return answer


def _closing(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Returns a `send` after whose response the connection is closed."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return sent


def uvicorn_limits(limits: LimitConfig, proxy: ProxyConfig | None = None) -> dict[str, Any]:
    """Returns settings of uvicorn. Headers about addresses are evaluated by `admission`, not by uvicorn."""
    return {
        "http": connection_class(limits, proxy),
        "ws": "none",
        "proxy_headers": False,
        "h11_max_incomplete_event_size": HEAD,
        "timeout_keep_alive": max(1, round(parse_duration(limits.idle_time).total_seconds())),
    }


# ---- TLS -------------------------------------------------------------------------------------------------------------
# Connections before their TLS handshake, which are counted and limited in time like all others.
#
# asyncio notifies a protocol of a TLS connection only after its handshake: clients that send nothing would not be
# counted.


class TlsGate(asyncio.Protocol):
    """A protocol that is one of uvicorn's `connections` until its handshake ends; then `inner` replaces it. Used by the
    event loop's thread."""

    known = False

    def __init__(self, inner: Any, context: ssl.SSLContext, room: Room, seconds: float) -> None:
        """inner: uvicorn's protocol. seconds: for the handshake."""
        self._inner, self._context, self._room, self._seconds = inner, context, room, seconds
        self._connections: set[Any] = inner.connections
        self._early, self._lost, self._open = bytearray(), False, False
        self.address, self.idle_since = "", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        loop = asyncio.get_running_loop()
        self.address, self.idle_since = str(peer[0]) if peer else "", loop.time()
        self._connections.add(self)
        limit = self._room.take(self, self._connections)
        if limit not in ("", "health"):  # for health, its handshake is accepted; the request's path decides
            refusals.warning("connection refused: %s", limit)
            transport.abort()  # no response can be sent before the handshake
        else:
            self._task = loop.create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        self._early += data  # arrived together with the end of the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        if self._open:
            self._inner.connection_lost(exc)

    def evict(self) -> None:
        """Closes the connection, which no longer counts."""
        self._connections.discard(self)
        self._transport.abort()

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
            log.debug("TLS handshake failed: %s", error)
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
    """Returns a factory for `inner`, a class of `connection_class`, for connections that begin with a
    handshake."""
    return lambda **given: TlsGate(inner(**given), context, inner.room, inner.head_time)
