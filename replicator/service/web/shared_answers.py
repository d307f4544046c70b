"""Answers of a moment: what many ask at once is made once, and given to all of them.

For pages and lists that read the store; those about roots, and all that a session or a proxy's user sees, are made each
time. An answer is at most a second old, and never older than what this server has written since."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from anyio.to_thread import run_sync
from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replicator.service.web.serving import of_request

MOMENT = 1.0  # seconds
LARGEST = 1 << 20
"""Bytes of an answer that is kept."""
MOST = 256
"""Answers that are kept."""

_SHARED = re.compile(r"/(|jobs|runs|policies/[^/]+|api/v1/(status|policies|jobs|runs)(/[^/:]+)?|api/v1/database/.+)")

Key = tuple[str, bytes, str, str]


@dataclass
class _Kept:
    """messages: of the answer, once it is there. changes: of the store, before it was made."""

    at: float
    changes: int
    made: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] = field(default_factory=list)


class SharedAnswers:
    """An ASGI application before another. changes: counts what this server has written. The event loop's thread uses
    it."""

    def __init__(self, app: ASGIApp, changes: Callable[[], int], seconds: float = MOMENT) -> None:
        self.app = app
        self._changes, self._seconds = changes, seconds
        self._kept: dict[Key, _Kept] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope) if self._seconds else None
        if key is None or not await _is_known(scope):
            await self.app(scope, receive, send)
            return
        kept = self._kept.get(key)
        if kept is None or kept.changes != self._changes() or time.monotonic() - kept.at > self._seconds:
            await self._make(key, scope, receive, send)
            return
        await kept.made.wait()
        if not kept.messages:  # nothing that may be kept came of it
            await self.app(scope, receive, send)
            return
        for each in kept.messages:
            await send({**each, "headers": list(each["headers"])} if "headers" in each else each)

    async def _make(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        self._forget()
        kept = self._kept[key] = _Kept(time.monotonic(), self._changes())
        said: list[Message] = []

        async def sent(message: Message) -> None:
            said.append({**message, "headers": list(message["headers"])} if "headers" in message else message)
            await send(message)

        try:
            await self.app(scope, receive, sent)
            size = sum(len(each.get("body", b"")) for each in said)
            if said and said[0].get("status") == 200 and size <= LARGEST and not _is_private(said[0]):
                kept.messages = said
        finally:
            kept.made.set()
            if not kept.messages and self._kept.get(key) is kept:
                del self._kept[key]

    def _forget(self) -> None:
        """What is too old, and when there are too many all that is made."""
        now = time.monotonic()
        for key, each in list(self._kept.items()):
            if each.made.is_set() and (now - each.at > self._seconds or len(self._kept) >= MOST):
                del self._kept[key]


def _key_of(scope: Scope) -> Key | None:
    """What makes an answer the same; None: it is somebody's own."""
    if scope["type"] != "http" or scope["method"] != "GET" or not _SHARED.fullmatch(scope["path"]):
        return None
    headers = Headers(scope=scope)
    if "cookie" in headers or scope["state"]["sender"].user:
        return None
    return scope["path"], scope["query_string"], headers.get("authorization", ""), headers.get("hx-request", "")


async def _is_known(scope: Scope) -> bool:
    """Whether a token still holds, which is asked each time. Without one the application says whether it needs one."""
    request = Request(scope)
    if "authorization" not in request.headers:
        return True
    try:
        await run_sync(of_request, request)
    except HTTPException:
        return False
    return True


def _is_private(start: Message) -> bool:
    return "set-cookie" in Headers(raw=start["headers"])
