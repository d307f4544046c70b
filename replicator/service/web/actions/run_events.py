"""`runs/R/events`: a run's states, progress and log as server-sent events, until it ends.

A client costs a coroutine: between two looks no thread and no connection of the store is held. What it has not read
waits in its socket, which is closed when it reads nothing for long (`service_process`).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.children import LOG, PROGRESS
from replicator.service.run_history import ServiceRun
from replicator.service.web.actions.bodies import Id
from replicator.service.web.actions.recorded import refuse_unseen, serving_of
from replicator.service.web.serving import Serving, Who
from replicator.service.web.views import RunView

LOOK, HEARTBEAT, LONGEST = 0.5, 5.0, 900.0
"""Seconds from one look at a run to the next, without a word to a client, and of one stream: then the client asks
again, and its token is looked at."""

MOST = 200
"""Streams of one server: each looks at the store twice a second."""

CHUNK = 256 << 10
"""Bytes of a log that one event has, and where a stream that begins has its end."""

_ID = re.compile(r"([a-z]{1,12})-([0-9]{1,15})")

run_events = APIRouter(prefix="/api/v1")


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@dataclass
class _Told:
    """What a client has been told: the state, the bytes of the log (None: nothing yet), the progress."""

    state: str = ""
    offset: int | None = None
    progress: bytes = b""

    @classmethod
    def until(cls, id: str) -> _Told:
        """Up to the event of that id; raises UsageError for what is none."""
        if not id:
            return cls()
        found = _ID.fullmatch(id)
        if found is None:
            raise UsageError(f"Last-Event-ID {id[:100]!r} is none of ours", hint="leave it out to begin anew")
        return cls(found[1], int(found[2]))

    def event(self, kind: str, *lines: str) -> str:
        data = "".join(f"data: {line}\n" for line in lines)
        return f"event: {kind}\nid: {self.state or 'none'}-{self.offset or 0}\n{data}\n"


@run_events.get("/runs/{run}/events", response_class=EventStream)
def follow_run(
    request: Request, who: Who, run: Id, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> Response:
    """`state` (the run), `progress` (its open tasks) and `log` (lines) until it ends; then 204 for a client that has
    had all, so that it does not ask again. A comment every 5 seconds. Logs and progress are those of
    this server's runs."""
    serving, told = serving_of(request), _Told.until(last_event_id or "")
    found = serving.store.run(run)
    refuse_unseen(serving.config, who, found)
    if found.ended is not None and told.state == found.state:
        return Response(status_code=204)
    if request.app.state.streams >= MOST:
        raise HTTPException(503, f"{MOST} streams are open here; ask again later, or `runs/{run}`")
    return EventStream(_counted(request, _stream(serving, run, told)))


async def _counted(request: Request, stream: AsyncGenerator[str]) -> AsyncGenerator[str]:
    request.app.state.streams += 1  # in the event loop only
    try:
        async with aclosing(stream):
            async for event in stream:
                yield event
    finally:
        request.app.state.streams -= 1


async def _stream(serving: Serving, run: str, told: _Told) -> AsyncGenerator[str]:
    begun = spoken = time.monotonic()
    ended = False
    while not ended:
        try:
            events, ended = await asyncio.to_thread(_look, serving, run, told)
        except ObjectNotFound:  # it was forgotten
            return
        except Error:  # the store is away, and may come back
            events = []
        for event in events:
            yield event
        now = time.monotonic()
        if events:
            spoken = now
        elif now - spoken >= HEARTBEAT:
            yield ": heartbeat\n\n"
            spoken = now
        if serving.scheduler.stopping.is_set() or now - begun > LONGEST:
            return
        if not ended and not events:
            await asyncio.sleep(LOOK)


def _look(serving: Serving, run: str, told: _Told) -> tuple[list[str], bool]:
    """What is new, and whether that is all for ever."""
    found, directory = serving.store.run(run), serving.directory(run)
    over = found.ended is not None
    events = [] if over else _state(found, told)
    events += _progress(directory, told)
    more = True
    while more and len(events) < 8:
        lines = _log(directory, told, over)
        more = bool(lines)
        events += [told.event("log", *lines)] if lines else []
    if over and not more:
        events += _state(found, told)
    return events, over and not more


def _state(found: ServiceRun, told: _Told) -> list[str]:
    if found.state == told.state:
        return []
    told.state = found.state
    return [told.event("state", json.dumps(asdict(RunView.of(found))))]


def _progress(directory: Path, told: _Told) -> list[str]:
    try:
        found = (directory / PROGRESS).read_bytes()
        said: Mapping[str, object] = json.loads(found)
    except (OSError, ValueError):
        return []
    if found == told.progress:
        return []
    told.progress = found
    return [told.event("progress", json.dumps(said))]


def _log(directory: Path, told: _Told, over: bool) -> list[str]:
    """Whole lines, at most a chunk of them; what follows the last line end, too, when the run is over."""
    try:
        with (directory / LOG).open("rb") as file:
            size = file.seek(0, 2)
            if told.offset is None:
                told.offset = max(0, size - CHUNK)
            file.seek(told.offset)
            read = file.read(CHUNK)
    except OSError:
        return []
    end = len(read) if over or len(read) == CHUNK else 0
    whole = read[: read.rfind(b"\n") + 1] or read[:end]
    told.offset += len(whole)
    return whole.decode(errors="replace").replace("\r", "").removesuffix("\n").split("\n") if whole else []
