"""`runs/R/events`: a run's states, progress and log as server-sent events, until it ends.

A client costs a coroutine: between polls it holds no thread and no connection of the store. Unread data waits in its
socket, which is closed when the client reads nothing for long (`service_process`).
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
"""Seconds between polls of a run, without an event until a heartbeat, and of one stream: then the client connects
again, and its token is checked."""

MOST = 200
"""Maximum streams of one server: each polls the store twice a second."""

CHUNK = 256 << 10
"""Maximum bytes of a log in one event, and of the end of the log with which a new stream starts."""

_ID = re.compile(r"([a-z]{1,12})-([0-9]{1,15})")

run_events = APIRouter(prefix="/api/v1")


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@dataclass
class _Told:
    """The data that a client has received: the state, the bytes of the log (None: nothing yet), the progress."""

    state: str = ""
    offset: int | None = None
    progress: bytes = b""

    @classmethod
    def until(cls, id: str) -> _Told:
        """Returns what was sent up to the event of that id. Raises UsageError for an invalid id."""
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
    """Sends `state` (the run), `progress` (its open tasks) and `log` (lines) until it ends; then answers 204 to a
    client that has received everything, so that it does not connect again. Sends a comment after 5 seconds without
    events. Logs and progress are those of this server's runs."""
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
        except ObjectNotFound:  # it was deleted
            return
        except Error:  # the store is unreachable, and may return
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
    """Returns new events, and whether they are the last."""
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
    """Reads complete lines, at most a chunk of them; when the run is over, also the rest after the last line end."""
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
