"""ETags: a GET of JSON whose answer is as the client has it already is answered with 304 and no body."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST = 8 << 20
"""Bytes of a body that is held back to be compared; a larger one has no ETag."""


class ETags:
    """For JSON; all else, such as streams of events, goes through as it comes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            await self.app(scope, receive, _Held(send, Headers(scope=scope).getlist("if-none-match")))
        else:
            await self.app(scope, receive, send)


class _Held:
    """Holds back the head of a JSON answer until its body is known. given: what the client has."""

    def __init__(self, send: Send, given: Iterable[str]) -> None:
        self._send = send
        self._given = {each.strip().removeprefix("W/") for line in given for each in line.split(",")}
        self._start: Message | None = None
        self._body: list[bytes] = []
        self._size = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_json(message):
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body.append(message.get("body", b""))
            self._size += len(self._body[-1])
            if not message.get("more_body") or self._size > LARGEST:
                await self._finish(more=bool(message.get("more_body")))
        else:
            await self._send(message)

    async def _finish(self, *, more: bool) -> None:
        assert self._start is not None
        start, body, self._start = self._start, b"".join(self._body), None
        if not more:
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers = MutableHeaders(raw=start["headers"])
            headers["ETag"], headers["Cache-Control"], headers["Vary"] = etag, "private, no-cache", "Authorization"
            if self._given & {etag, "*"}:
                start["status"], body = 304, b""
                del headers["Content-Length"]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _is_json(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return start["status"] == 200 and kind.partition(";")[0] == "application/json"
