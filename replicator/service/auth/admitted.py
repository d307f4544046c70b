"""What every request passes before the application sees it: who sent it, how often, from which page, how large."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from replicator.core.service_config import ProxyConfig, ServiceConfig
from replicator.core.text.quantity import parse_duration, parse_size
from replicator.service.auth.api_tokens import ROLES, Identity, bearer_of, digest_of
from replicator.service.web.problems import problem

# ---- trusted proxies -------------------------------------------------------------------------------------------------
# Proxies: whose headers about users and addresses are believed. Pure.
#
# Headers of anybody else mean nothing, from loopback too.


SCHEME = "X-Forwarded-Proto"
HOPS = 20  # addresses of a chain of proxies that are looked at
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Sender:
    """Who sent a request. address: of the client, behind all proxies. scheme: in which it reached the first of them;
    empty: none says. user: as a proxy says; empty: none does.
    identity: what it may; None: nothing. recognised: called when a request's token was right."""

    address: str
    user: str = ""
    identity: Identity | None = None
    recognised: Callable[[], object] = lambda: None
    scheme: str = ""


class Proxies:
    """Those of a configuration."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._networks = [ipaddress.ip_network(each) for each in config.networks]

    def sender(self, peer: str, headers: Headers) -> Sender:
        """Who sent a request that came from a peer. Raises ValueError for a proxy's headers that mean nothing."""
        if not self._trusts(_address(peer)):
            return Sender(peer)
        config = self._config
        user = _values(headers, config.user_header)
        if len(user) > 1 or any(len(each) > 200 or not each.isprintable() for each in user):
            raise ValueError(f"{config.user_header} is given twice, or is no name")
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
        """The last address of a chain that is no proxy's: those before it are what somebody says."""
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
        """It may what each of its groups may."""
        grants = [(each.role, each.policies) for name, each in self._config.groups.items() if name in groups]
        if not grants:
            return None
        grants.sort(key=lambda grant: (-ROLES.index(grant[0]), len(grant[1])))
        return Identity(f"proxy:{user}", *grants[0], also=tuple(grants[1:]), groups=tuple(sorted(filter(None, groups))))


def _address(text: str) -> Address | None:
    """None: it is none. An IPv4 address that IPv6 maps is itself."""
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
# How often one client may ask: a bucket of requests each, which fills steadily. Memory is bounded.


CLIENTS = 10_000
"""That are remembered; the one that has not asked for longest is forgotten first, and begins with a full bucket."""


@dataclass
class Rates:
    """per_second: requests for long; burst: at once. One thread uses it."""

    per_second: float
    burst: int
    clients: int = CLIENTS
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def admit(self, client: str, now: float) -> float:
        """0.0: it may ask now, and has. Otherwise: in so many seconds. now: of a monotonic clock."""
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
"""Who came by TLS comes by TLS for a year."""


class _Refused(Exception):
    """status, text: of the answer. close: the connection, as more of the request may come."""

    def __init__(self, status: int, text: str, *, close: bool = False, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.text, self.close, self.wait = status, text, close, wait


class Admission:
    """An ASGI application before another. headers: of each answer that has none of that name. The event loop's thread
    uses it."""

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
        """Who sent it goes into the state of the request, and his address and scheme into the place of the proxy's."""
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
            raise _Refused(403, "a page of another origin asks for this")
        scope["client"] = (found.address, 0)
        sender = Sender(found.address, found.user, found.identity, lambda: self._recognise(digest))
        scope["state"] = {**scope.get("state", {}), "sender": sender}

    def _recognise(self, digest: str) -> None:
        """From now on this token is counted by itself, not with all that its address asks."""
        if digest:
            self._tokens[digest] = None
            while len(self._tokens) > CLIENTS:
                self._tokens.popitem(last=False)

    async def _read(self, headers: Headers, receive: Receive) -> tuple[bytes, Receive]:
        """The whole body, and how the application receives it."""
        said = dict(headers)
        if b"content-length" not in said and b"transfer-encoding" not in said:
            return b"", receive
        large = _Refused(413, f"a body has at most {self._largest} bytes", close=True)
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
            raise _Refused(408, "the body did not come in time", close=True) from error
        _refuse_no_text(bytes(body))
        rest = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return rest.pop() if rest else await receive()

        return bytes(body), replay


def _refuse_zeros(scope: Message) -> None:
    """No name or value has them, and PostgreSQL's texts cannot."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise _Refused(400, "a zero byte is in the address")


def _refuse_no_host(headers: Headers) -> None:
    """What comes after reads it as the host of an address."""
    for name, value in headers:
        if name == b"host" and _host_of("//" + value.decode("latin-1")) is None:
            raise _Refused(400, "this Host is none")


def _host_of(address: str) -> str | None:
    """With its port; None: it is no address."""
    try:
        found = urlsplit(address)
        _ = found.port
    except ValueError:
        return None
    return found.netloc


def _refuse_no_text(body: bytes) -> None:
    """Strings of JSON that are no texts: zero bytes, halves of surrogates."""
    if b"\\u" not in body:
        return
    try:
        said = json.dumps(json.loads(body), ensure_ascii=False)
        if "\\u0000" in said:
            raise _Refused(400, "a zero byte is in the body")
        said.encode()
    except UnicodeEncodeError as error:
        raise _Refused(400, "half a character is in the body") from error
    except (ValueError, RecursionError):
        return  # the application says what is wrong


def _from_here(headers: Headers) -> bool:
    """Whether a browser says that a page of this service asks, or nobody says anything, as programs do."""
    said = dict(headers)
    site = said.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    origin = said.get(b"origin")
    return origin is None or _host_of(origin.decode("latin-1")) == said.get(b"host", b"").decode("latin-1")
