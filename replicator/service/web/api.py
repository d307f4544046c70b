"""`/api/v1`: jobs, runs and their events, policies, the scheduler.

Reads the store and the reports of commands; actions are records in the store, which the scheduler processes.
`runs/R/events` sends a run's states, progress and log as server-sent events, until it ends. A client costs a coroutine:
between polls it holds no thread and no connection of the store. Unread data waits in its socket, which is closed when
the client reads nothing for long (`service_process`).
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute

from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.api_tokens import NOBODY
from replicator.service.jobs import Job
from replicator.service.runs import LOG, PROGRESS, RunFilter, RunState, ServiceRun, answer_of
from replicator.service.store import ALL, ActionFilter, actions
from replicator.service.web.actions import Id, What, do_once, queue_once, refuse_unseen, sees, serving_of
from replicator.service.web.policy_queries import moment
from replicator.service.web.responses import (
    ActionList,
    ActionView,
    Ask,
    Asked,
    JobList,
    PolicyList,
    PolicyView,
    RunList,
    RunView,
    ServiceStatus,
)
from replicator.service.web.serving import Serving, Who, require

# ---- known parameters ------------------------------------------------------------------------------------------------
# Unknown query parameters are refused: a misspelled filter must not return everything.


def refuse_unknown_parameters(request: Request) -> None:
    """Refuses unknown query parameters; a dependency of routers. Raises UsageError."""
    route = request.scope.get("route")
    known = list(_names(route.dependant)) if isinstance(route, APIRoute) else []
    for name, value in (*request.query_params.multi_items(), *request.path_params.items()):
        if "\0" in name or "\0" in str(value):
            raise UsageError("a parameter contains a NUL character", hint="remove it")
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            there = ", ".join(known) or "none"
            hint = (f"did you mean {near[0]}? " if near else "") + f"parameters: {there}"
            raise UsageError(f"unknown parameter {name[:100]!r}", hint=hint)


def _names(dependant: Any) -> Iterator[str]:
    """Yields the parameters of an endpoint and of its dependencies."""
    for each in dependant.query_params:
        yield each.alias
    for each in dependant.dependencies:
        yield from _names(each)


# ---- api -------------------------------------------------------------------------------------------------------------


TAIL = 256 << 10
"""Bytes of a log's end that are shown."""

api = APIRouter(prefix="/api/v1", dependencies=[Depends(refuse_unknown_parameters)])


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


@api.get("/status")
def status(request: Request, who: Who) -> ServiceStatus:
    """Shows the state of the service."""
    return _serving(request).status()


@api.get("/policies")
def policies(request: Request, who: Who) -> PolicyList:
    """Lists all policies with their last measured lag."""
    serving = _serving(request)
    return PolicyList([each for each in serving.policies() if who.may("viewer", each.name)])


@api.get("/policies/{policy}")
def policy(request: Request, who: Who, policy: str) -> PolicyView:
    """Shows one policy."""
    require(who, "viewer", policy)
    return next((each for each in _serving(request).policies() if each.name == policy), None) or _missing(policy)


@api.get("/jobs")
def jobs(request: Request, who: Who) -> JobList:
    """Lists all jobs by name."""
    return JobList([each for each in _serving(request).jobs() if who.may("viewer", each.policy)])


@api.post("/jobs/{job}:run", status_code=202)
def run_job(request: Request, who: Who, job: str, ask: Ask) -> Asked:
    """Runs a job now, paused or not; its schedule is unchanged. If a run of the job has not ended, returns that run."""
    _, wanted = _wanted(request, who, job)
    return queue_once(request, who, What("run", job, ask.reason), wanted)


@api.post("/jobs/{job}:pause", status_code=204)
def pause_job(request: Request, who: Who, job: str, ask: Ask) -> None:
    """Stops scheduled runs of the job until `resume`, also across restarts; a run that is running continues."""
    serving, wanted = _wanted(request, who, job)
    _done(request, who, ("pause", job, ask.reason), lambda: serving.store.pause(wanted.name, who.name, ask.reason))


@api.post("/jobs/{job}:resume", status_code=204)
def resume_job(request: Request, who: Who, job: str, ask: Ask | None = None) -> None:
    """Resumes a job. A time that was missed since then is made up for once."""
    serving, wanted = _wanted(request, who, job)
    _done(request, who, ("resume", job, ask.reason if ask else ""), lambda: serving.store.resume(wanted.name))


@api.post("/scheduler:pause", status_code=204)
def pause_all(request: Request, who: Who, ask: Ask) -> None:
    """Stops scheduled runs of all jobs until `resume`."""
    require(who, "admin", "")
    store = _serving(request).store
    _done(request, who, ("pause", ALL, ask.reason), lambda: store.pause(ALL, who.name, ask.reason))


@api.post("/scheduler:resume", status_code=204)
def resume_all(request: Request, who: Who, ask: Ask | None = None) -> None:
    """Resumes all jobs, except those that were paused individually."""
    require(who, "admin", "")
    store = _serving(request).store
    _done(request, who, ("resume", ALL, ask.reason if ask else ""), lambda: store.resume(ALL))


@dataclass
class ActionFilters:
    by: Annotated[str, Query(alias="who", max_length=300)] = ""
    action: Annotated[str, Query(max_length=30)] = ""
    subject: Annotated[str, Query(max_length=4000)] = ""
    since: Annotated[str, Query(max_length=40)] = ""


@api.get("/actions")
def list_actions(
    request: Request,
    who: Who,
    filters: Annotated[ActionFilters, Depends()],
    cursor: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ActionList:
    """Lists actions over HTTP, newest first: who, from where, what, why. For admins."""
    require(who, "admin", "")
    store = _serving(request).store
    since = moment("since", filters.since, store.now)
    wanted = ActionFilter(filters.by, filters.action, filters.subject, since)
    found = actions(store, before=cursor, limit=limit + 1, wanted=wanted)
    following = found[limit - 1].id if len(found) > limit else None
    return ActionList([ActionView.of(each) for each in found[:limit]], following)


@dataclass
class RunFilters:
    job: str = ""
    policy: str = ""
    state: Annotated[list[RunState] | None, Query()] = None
    since: Annotated[str, Query(max_length=40)] = ""
    until: Annotated[str, Query(max_length=40)] = ""


@api.get("/runs")
def runs(
    request: Request,
    who: Who,
    filters: Annotated[RunFilters, Depends()],
    cursor: Annotated[str, Query(pattern=r"^(\d{13}-[0-9a-f]{12})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RunList:
    """Lists runs, newest first. cursor: `next` of the page before."""
    serving = _serving(request)
    since, until = (moment(name, getattr(filters, name), serving.store.now) for name in ("since", "until"))
    wanted = RunFilter((filters.job,) if filters.job else (), filters.policy, filters.state or (), since, until)
    found = serving.store.runs_where(wanted, before=cursor, limit=limit + 1)
    shown = [RunView.of(each) for each in found[:limit] if sees(serving.config, who, each)]
    return RunList(shown, found[limit - 1].id if len(found) > limit else None)


@api.get("/runs/{run}")
def run(request: Request, who: Who, run: str) -> RunView:
    """Shows one run."""
    return RunView.of(_run(request, who, run)[1])


@api.get("/runs/{run}/answer")
def answer(request: Request, who: Who, run: str) -> JSONResponse:
    """Returns the report of the run's command, as with `--json`; {} before its end."""
    directory, _ = _run(request, who, run)
    return JSONResponse(answer_of(directory))


@api.get("/runs/{run}/log", response_class=PlainTextResponse)
def log(request: Request, who: Who, run: str) -> str:
    """Returns the end of its log, at most 256 KiB; it is stored on the server that ran it."""
    directory, found = _run(request, who, run)
    try:
        with (directory / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        raise ObjectNotFound(
            f"run {run} has no log on this server",
            hint=f"it ran on {found.server}" if found.server else "it has not begun",
        ) from None


@api.post("/runs/{run}:cancel", status_code=202)
def cancel(request: Request, who: Who, run: str, ask: Ask | None = None) -> RunView:
    """Requests the end of a run: SIGTERM, and SIGKILL after `service.grace`. The next run completes what it has
    begun."""
    _, found = _run(request, who, run)
    require(who, "operator", found.policy)
    store = _serving(request).store
    _done(request, who, ("cancel", run, ask.reason if ask else ""), lambda: store.cancel(run, who.name) and None)
    return RunView.of(store.run(run))


def _done(request: Request, who: Who, what: tuple[str, str, str], do: Callable[[], Any]) -> Any:
    return do_once(request, who, What(*what), do)


def _wanted(request: Request, who: Who, job: str) -> tuple[Serving, Job]:
    serving = _serving(request)
    wanted = serving.scheduled.get(job)
    require(who, "operator", wanted.policy if wanted else "")
    return serving, wanted or _missing(job)


def _run(request: Request, who: Who, run: str) -> tuple[Path, ServiceRun]:
    serving = _serving(request)
    found = serving.store.run(run)
    refuse_unseen(serving.config, who, found)
    return serving.directory(found.id), found


def _missing(name: str) -> Any:
    raise HTTPException(404, f"no policy or job is named {name!r}")


# ---- events of a run -------------------------------------------------------------------------------------------------


LOOK, HEARTBEAT, LONGEST = 0.5, 5.0, 900.0
"""Seconds between polls of a run, without an event until a heartbeat, and of one stream: then the client connects
again, and its token is checked."""

MOST = 200
"""Maximum streams of one server: each polls the store twice a second."""

OF_ONE = 40
"""Of these, of one identity; without a token, of one address."""

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
            raise UsageError(f"invalid Last-Event-ID {id[:100]!r}", hint="omit it to start a new stream")
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
    streams: Counter[str] = request.app.state.streams
    sender = request.state.sender.address if who is NOBODY else who.name
    for most, open_now in ((MOST, streams.total()), (OF_ONE, streams[sender])):
        if open_now >= most:
            whose = "on this server" if most == MOST else f"for {sender}"
            raise HTTPException(503, f"{most} streams are open {whose}; try again later, or poll `runs/{run}`")
    return EventStream(_counted(streams, sender, _stream(serving, run, told)))


async def _counted(streams: Counter[str], sender: str, stream: AsyncGenerator[str]) -> AsyncGenerator[str]:
    streams[sender] += 1  # in the event loop only
    try:
        async with aclosing(stream):
            async for event in stream:
                yield event
    finally:
        streams[sender] -= 1
        if not streams[sender]:
            del streams[sender]


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
