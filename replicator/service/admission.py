"""Admission of connections and requests before the application sees them: the number of connections, their time
limits for the head of a request and for reading a response; the sender, rate, origin and size of requests. uvicorn
itself limits the time of connections that are idle between requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from uvicorn.protocols.http.h11_impl import H11Protocol

from replicator.core.service_config import LimitConfig, ProxyConfig, ServiceConfig
from replicator.core.text import parse_duration, parse_size
from replicator.service.api_tokens import ROLES, Identity, bearer_of, digest_of
from replicator.service.web.responses import problem

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
                log.warning("connection refused: %s connections are open", limits.connections)
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
            log.warning("connection refused: %s connections are open", self._most)
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
    return lambda **given: TlsGate(inner(**given), context, inner.most, inner.head_time)


# ---- trusted proxies -------------------------------------------------------------------------------------------------
# Trusted proxies: their headers about users and addresses are accepted. Pure.
#
# The same headers from any other peer are ignored, also from loopback.


SCHEME = "X-Forwarded-Proto"
HOPS = 20  # addresses of a chain of proxies that are examined
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Sender:
    """The sender of a request. address: of the client, behind all proxies. scheme: in which it reached the first of
    them; empty: not reported. user: as a proxy reports it; empty: not reported. identity: its permissions; None: none.
    recognised: called when the token of a request was valid."""

    address: str
    user: str = ""
    identity: Identity | None = None
    recognised: Callable[[], object] = lambda: None
    scheme: str = ""


class Proxies:
    """The proxies of a configuration."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._networks = [ipaddress.ip_network(each) for each in config.networks]

    def sender(self, peer: str, headers: Headers) -> Sender:
        """Returns the sender of a request from a peer. Raises ValueError for invalid headers of a proxy."""
        if not self._trusts(_address(peer)):
            return Sender(peer)
        config = self._config
        user = _values(headers, config.user_header)
        if len(user) > 1 or any(len(each) > 200 or not each.isprintable() for each in user):
            raise ValueError(f"{config.user_header} is given twice, or is not a valid name")
        address = self._behind(peer, ",".join(_values(headers, config.address_header)))
        scheme = ",".join(_values(headers, SCHEME)).partition(",")[0].strip().lower()
        scheme = scheme if scheme in ("http", "https") else ""
        if not user or not user[0]:
            return Sender(address, scheme=scheme)
        groups = {each.strip() for value in _values(headers, config.groups_header) for each in value.split(",")}
        return Sender(address, user[0], self._identity(user[0], groups), scheme=scheme)

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def _behind(self, peer: str, chain: str) -> str:
        """Returns the last address of a chain that is not a proxy: addresses before it are unverified."""
        found = peer
        for text in reversed(chain.split(",")[-HOPS:]):
            address = _address(text.strip())
            if address is None:
                return found
            found = str(address)
            if not self._trusts(address):
                return found
        return found

    def _identity(self, user: str, groups: set[str]) -> Identity | None:
        """Returns an identity with the permissions of each of its groups."""
        grants = [(each.role, each.policies) for name, each in self._config.groups.items() if name in groups]
        if not grants:
            return None
        grants.sort(key=lambda grant: (-ROLES.index(grant[0]), len(grant[1])))
        return Identity(f"proxy:{user}", *grants[0], also=tuple(grants[1:]), groups=tuple(sorted(filter(None, groups))))


def _address(text: str) -> Address | None:
    """Parses an address; None if it is invalid. An IPv4-mapped IPv6 address becomes the IPv4 address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _values(headers: Headers, name: str | None) -> list[str]:
    if name is None:
        return []
    wanted = name.lower().encode()
    return [value.decode("utf-8", "replace").strip() for key, value in headers if key == wanted]


# ---- rates -----------------------------------------------------------------------------------------------------------
# Rate limits: a bucket of requests per client, which is refilled steadily. Memory is bounded.


CLIENTS = 10_000
"""Maximum clients that are remembered; the least recent one is dropped first, and starts with a full bucket."""


@dataclass
class Rates:
    """Rate limits of clients. per_second: sustained requests; burst: at once. For use by one thread."""

    per_second: float
    burst: int
    clients: int = CLIENTS
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def admit(self, client: str, now: float) -> float:
        """Returns 0.0 and counts the request if the client may send it now, else the seconds to wait. now: of a
        monotonic clock."""
        left, seen = self._left.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - seen) * self.per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self.per_second
        self._left[client] = (left if wait else left - 1, now)
        if len(self._left) > self.clients:
            self._left.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._left)


# ---- admitted --------------------------------------------------------------------------------------------------------


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

SAFE = ("GET", "HEAD", "OPTIONS")
STRICT = (b"strict-transport-security", b"max-age=31536000")
"""A client that connected by TLS must use TLS for a year."""


class _Refused(Exception):
    """A refused request. status, text: of the response. close: the connection, as more of the request may follow."""

    def __init__(self, status: int, text: str, *, close: bool = False, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.text, self.close, self.wait = status, text, close, wait


class Admission:
    """An ASGI middleware. headers: added to each response without headers of these names. Used by the event loop's
    thread."""

    def __init__(self, application: Application, config: ServiceConfig, headers: Mapping[str, str]) -> None:
        self._application = application
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        limits = config.limits
        self._proxies = Proxies(config.proxy)
        self._rates = Rates(limits.requests_per_second, limits.burst)
        self._largest = parse_size(limits.body)
        self._body_time = parse_duration(limits.body_time).total_seconds()
        self._tokens: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [each for each in self._headers if each[0] not in there]
                if scope["scheme"] == "https":
                    more.append(STRICT)
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            _refuse_zeros(scope)
            _refuse_no_host(scope["headers"])
            self._know(scope)
            body, replay = await self._read(scope["headers"], receive)
            scope["state"]["body"] = hashlib.sha256(body).hexdigest()
        except _Refused as refused:
            answer = problem(refused.status, "UsageError", refused.text)
            if refused.wait:
                answer.headers["Retry-After"] = str(int(refused.wait) + 1)
            if refused.close:
                answer.headers["Connection"] = "close"
            await answer(scope, receive, sent)
            return
        await self._application(scope, replay, sent)

    def _know(self, scope: Message) -> None:
        """Adds the sender to the request's state, and replaces the proxy's address and scheme with the client's."""
        headers: Headers = scope["headers"]
        peer = scope["client"][0] if scope.get("client") else ""
        try:
            found = self._proxies.sender(peer, headers)
        except ValueError as error:
            raise _Refused(400, str(error)) from error
        given = next((value for name, value in headers if name == b"authorization"), b"")
        token = bearer_of(given.decode("latin-1"))
        digest = digest_of(token) if token else ""
        known = f"token {digest}" if digest in self._tokens else f"address {found.address}"
        scope["scheme"] = found.scheme or scope["scheme"]
        wait = self._rates.admit(f"user {found.user}" if found.user else known, time.monotonic())
        if wait:
            raise _Refused(429, "too many requests; see service.limits", wait=wait)
        if found.user and scope["method"] not in SAFE and not _from_here(headers):
            raise _Refused(403, "the request comes from a page of another origin")
        scope["client"] = (found.address, 0)
        sender = Sender(found.address, found.user, found.identity, lambda: self._recognise(digest))
        scope["state"] = {**scope.get("state", {}), "sender": sender}

    def _recognise(self, digest: str) -> None:
        """Counts this token by itself from now on, not with all requests from its address."""
        if digest:
            self._tokens[digest] = None
            while len(self._tokens) > CLIENTS:
                self._tokens.popitem(last=False)

    async def _read(self, headers: Headers, receive: Receive) -> tuple[bytes, Receive]:
        """Reads the complete body. Returns it, and how the application receives it."""
        said = dict(headers)
        if b"content-length" not in said and b"transfer-encoding" not in said:
            return b"", receive
        large = _Refused(413, f"the body exceeds {self._largest} bytes", close=True)
        if int(said.get(b"content-length", b"0")) > self._largest:
            raise large
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._body_time):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._largest:
                        raise large
        except TimeoutError as error:
            raise _Refused(408, "the body did not arrive in time", close=True) from error
        _refuse_no_text(bytes(body))
        rest = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return rest.pop() if rest else await receive()

        return bytes(body), replay


def _refuse_zeros(scope: Message) -> None:
    """Refuses zero bytes: no name or value contains them, and PostgreSQL's text cannot."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise _Refused(400, "the URL contains a zero byte")


def _refuse_no_host(headers: Headers) -> None:
    """Refuses an invalid Host, which later code reads as the host of a URL."""
    for name, value in headers:
        if name == b"host" and _host_of("//" + value.decode("latin-1")) is None:
            raise _Refused(400, "invalid Host header")


def _host_of(address: str) -> str | None:
    """Returns the host of an address with its port; None: the address is invalid."""
    try:
        found = urlsplit(address)
        _ = found.port
    except ValueError:
        return None
    return found.netloc


def _refuse_no_text(body: bytes) -> None:
    """Refuses strings of JSON that are not text: zero bytes, unpaired surrogates."""
    if b"\\u" not in body:
        return
    try:
        said = json.dumps(json.loads(body), ensure_ascii=False)
        if "\\u0000" in said:
            raise _Refused(400, "the body contains a zero byte")
        said.encode()
    except UnicodeEncodeError as error:
        raise _Refused(400, "the body contains half a character") from error
    except (ValueError, RecursionError):
        return  # the application reports the error


def _from_here(headers: Headers) -> bool:
    """Returns True if the browser reports a page of this service as the origin, or no origin is reported, as by
    programs."""
    said = dict(headers)
    site = said.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    origin = said.get(b"origin")
    return origin is None or _host_of(origin.decode("latin-1")) == said.get(b"host", b"").decode("latin-1")
