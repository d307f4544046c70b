"""What every request passes before the application sees it: who sent it, how often, from which page, how large."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from replicator.core.schedules.service_config import ServiceConfig
from replicator.core.text.quantity import parse_duration, parse_size
from replicator.service.auth.api_tokens import bearer_of, digest_of
from replicator.service.auth.rates import CLIENTS, Rates
from replicator.service.auth.trusted_proxies import Headers, Proxies, Sender
from replicator.service.web.problems import problem

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
