"""Admission of requests before the application sees them: their sender, rate, origin and size. The connections that
carry them are `client_connections`.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from replicator.core.service_config import ProxyConfig, ServiceConfig
from replicator.core.text import parse_duration, parse_size
from replicator.service.api_tokens import ROLES, Identity, bearer_of, digest_of
from replicator.service.web.responses import problem

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
        given = _values(headers, config.groups_header)
        if len(given) > 1:  # one may be the client's
            raise ValueError(f"{config.groups_header} is given twice")
        groups = {each.strip() for value in given for each in value.split(",")}
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

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

SAFE = ("GET", "HEAD", "OPTIONS")
STRICT = (b"strict-transport-security", b"max-age=31536000")
"""A client that connected by TLS must use TLS for a year."""


class _Refused(Exception):
    """A refused request. status, text: of the response. close: the connection, as more of the request may follow."""

    def __init__(self, status: int, text: str, *, close: bool = False, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.text, self.close, self.wait = status, text, close, wait


class Admission:
    """An ASGI middleware. headers: added to each response without headers of these names. is_known: returns True if a
    request may have a body; that of any other is not read, and the connection closed. Used by the event loop's
    thread."""

    def __init__(
        self,
        application: Application,
        config: ServiceConfig,
        headers: Mapping[str, str],
        is_known: Callable[[Message], Awaitable[bool]] | None = None,
    ) -> None:
        self._application, self._is_known = application, is_known
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
        closing = False

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [each for each in self._headers if each[0] not in there]
                if scope["scheme"] == "https":
                    more.append(STRICT)
                if closing:
                    more.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            _refuse_zeros(scope)
            _refuse_no_host(scope["headers"])
            _refuse_two_lengths(scope["headers"])
            self._know(scope)
            if _has_body(scope["headers"]) and self._is_known and not await self._is_known(scope):
                closing, body, replay = True, b"", cast(Receive, _nothing)
            else:
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
        if scope["method"] == "HEAD" and not scope["path"].endswith("/events"):  # a stream has no end
            scope = {**scope, "method": "GET"}  # the server leaves out the body
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
        state = scope["state"] = {**scope.get("state", {})}
        state["sender"] = Sender(found.address, found.user, found.identity, lambda: self._recognise(digest, state))

    def _recognise(self, digest: str, state: Message) -> None:
        """Counts this token by itself from now on, not with all requests from its address, and marks the request's
        state for its connection."""
        state["recognised"] = True
        if digest:
            self._tokens[digest] = None
            while len(self._tokens) > CLIENTS:
                self._tokens.popitem(last=False)

    async def _read(self, headers: Headers, receive: Receive) -> tuple[bytes, Receive]:
        """Reads the complete body. Returns it, and how the application receives it."""
        if not _has_body(headers):
            return b"", receive
        said = dict(headers)
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


def _has_body(headers: Headers) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


async def _nothing() -> Message:
    """Receives an empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _refuse_two_lengths(headers: Headers) -> None:
    """Refuses a body with two descriptions of its length: a proxy that reads the other one would take the rest of the
    body for a request of someone else."""
    if {name for name, _ in headers} >= {b"content-length", b"transfer-encoding"}:
        raise _Refused(400, "a request has either Content-Length or Transfer-Encoding", close=True)


def _refuse_no_host(headers: Headers) -> None:
    """Refuses an invalid Host, which later code reads as the host of a URL."""
    for name, value in headers:
        if name == b"host" and not _HOST.fullmatch(value.decode("latin-1")):
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
