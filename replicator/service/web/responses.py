"""Responses of the API: their values, and errors as problem details (RFC 9457) with a hint and an exit code.

Times are ISO 8601 with a zone.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cmroot.errors import Exists, FormatError, PinError, UnknownPlace
from replicator.errors import ConfigError, Error, LeaseHeld, NoSpace, ObjectNotFound, Refused, UsageError
from replicator.policies.memory import Run as PolicyRun
from replicator.service.jobs import Job
from replicator.service.runs import RunState, ServiceRun, iso
from replicator.service.store import UNFINISHED, Action, JobState

Words = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")]
"""Text of a user: PostgreSQL stores no NUL."""


@dataclass(frozen=True)
class RunView:
    """A run. seconds: from its start to its end."""

    id: str
    job: str
    policy: str
    command: tuple[str, ...]
    asked_by: str
    reason: str
    missed: int
    due: str | None
    queued: str | None
    begun: str | None
    ended: str | None
    seconds: float | None
    state: RunState
    cancelled_by: str
    exit_code: int | None
    message: str
    hint: str
    server: str

    @classmethod
    def of(cls, run: ServiceRun) -> RunView:
        both = run.begun is not None and run.ended is not None
        return cls(
            id=run.id,
            job=run.job,
            policy=run.policy,
            command=("replicator", *run.arguments),
            asked_by=run.asked_by,
            reason=run.reason,
            missed=run.missed,
            due=iso(run.due),
            queued=iso(run.queued),
            begun=iso(run.begun),
            ended=iso(run.ended),
            seconds=round((run.ended or 0) - (run.begun or 0), 3) if both else None,
            state=run.state,
            cancelled_by=run.cancelled_by,
            exit_code=run.exit_code,
            message=run.message,
            hint=run.hint,
            server=run.server,
        )

    @classmethod
    def by_hand(cls, run: PolicyRun) -> RunView:
        """Returns a run of a policy that no service started; it has no id here."""
        begun, ended = (datetime.fromisoformat(each).timestamp() if each else None for each in (run.started, run.ended))
        return cls(
            id="",
            job=run.policy,
            policy=run.policy,
            command=("replicator", "sync", run.policy),
            asked_by="by hand",
            reason="",
            missed=0,
            due=None,
            queued=iso(begun),
            begun=iso(begun),
            ended=iso(ended),
            seconds=round(ended - begun, 3) if begun and ended else None,
            state="lost" if run.status == "killed" else run.status,
            cancelled_by="",
            exit_code=None,
            message=run.error,
            hint="",
            server="",
        )


@dataclass(frozen=True)
class RunList:
    """Runs. next: the cursor of the following page; None: this is the last one."""

    items: list[RunView]
    next: str | None


@dataclass(frozen=True)
class JobView:
    """A job. next: when it is due. last: the newest run, even if it has not ended. asset: the one whose tables it
    requests to land; else empty."""

    name: str
    policy: str
    command: tuple[str, ...]
    schedule: str
    next: str | None
    paused: bool
    paused_by: str
    reason: str
    last: RunView | None
    asset: str = ""

    @property
    def syncs(self) -> bool:
        """Returns True if it brings its policy's target up to date."""
        return self.command[1] == "sync"

    @classmethod
    def of(cls, job: Job, state: JobState | None, last: ServiceRun | None) -> JobView:
        return cls(
            name=job.name,
            policy=job.policy,
            command=("replicator", *job.arguments),
            schedule=job.schedule.text,
            next=iso(state.due) if state else None,
            paused=bool(state and state.paused),
            paused_by=state.paused_by if state else "",
            reason=state.reason if state else "",
            last=RunView.of(last) if last else None,
            asset=job.asset,
        )


@dataclass(frozen=True)
class JobList:
    items: list[JobView]


@dataclass(frozen=True)
class PolicyView:
    """A policy with its last measured lag; the metrics are None before the first measurement, and if a side does not
    answer. lag_seconds_bound, covered_until: as `seconds_bound` and `covered_until` of `replicator lag`."""

    name: str
    source: str
    target: str
    databases: tuple[str, ...]
    schedule_seconds: float
    status: str
    lag_events: int | None
    lag_seconds: float | None
    lag_seconds_bound: float | None
    covered_until: str | None
    lag_bytes: int | None
    objective_seconds: float | None
    headroom_seconds: float | None
    measured: str | None
    trouble: tuple[str, ...]


@dataclass(frozen=True)
class PolicyList:
    items: list[PolicyView]


@dataclass(frozen=True)
class ServiceStatus:
    """The state of the service. leader: the server that schedules; led: it has the lease now. here: this server.
    trouble: what prevents this server from working. paused: all schedules are."""

    here: str
    leader: str
    epoch: int
    led: bool
    paused: bool
    trouble: tuple[str, ...]
    running: int
    queued: int
    version: str


@dataclass(frozen=True)
class Ask:
    """The body of an action. reason: is recorded."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    reason: Words = ""


@dataclass(frozen=True)
class Asked:
    """A queued run. run: its id. new: False: it is the run of the job that had not ended."""

    run: str
    new: bool


@dataclass(frozen=True)
class ActionView:
    """An action over HTTP. at: ISO 8601. failed: why it had no effect. unfinished: it is running, or was when its
    server died."""

    id: int
    at: str | None
    who: str
    address: str
    action: str
    subject: str
    reason: str
    failed: str = ""
    unfinished: bool = False

    @classmethod
    def of(cls, done: Action) -> ActionView:
        failed = str(done.answer.get("failed", "")) if isinstance(done.answer, dict) else ""
        return cls(
            done.id,
            iso(done.at),
            done.who,
            done.address,
            done.action,
            done.subject,
            done.reason,
            failed,
            done.answer == UNFINISHED,
        )


@dataclass(frozen=True)
class ActionList:
    """Actions. next: the cursor of the following page; None: this is the last one."""

    items: list[ActionView]
    next: int | None


# ---- errors ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

STATUSES: tuple[tuple[type[Error], int], ...] = (
    (ObjectNotFound, 404),
    (UsageError, 400),
    (UnknownPlace, 400),
    (ConfigError, 500),
    (LeaseHeld, 409),
    (Refused, 409),
    (NoSpace, 507),
    (PinError, 409),
    (Exists, 409),
    (FormatError, 409),
)


HINTS: dict[int, tuple[str, int]] = {
    401: ("send a token as `Authorization: Bearer TOKEN`", 2),
    403: ("use a token with a higher role, or for this policy", 6),
    404: ("see /docs for the API", 1),
    405: ("see /docs for the methods of this path", 2),
    409: ("use a new Idempotency-Key for each action", 6),
    422: ("send the same body as before, or another Idempotency-Key", 2),
    500: ("see the log of the service", 1),
    503: ("try again later", 75),
    504: ("try again later; work in progress continues. The command line has no time limit", 75),
}
"""Hint and exit code for statuses without an error of ours."""


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    """Returns a response with a problem. more: further members; a hint and an exit code are always present."""
    hint, code = HINTS.get(status, ("see /docs for valid requests", 2))
    said = {"exit_code": code, **more, "hint": more.get("hint") or hint}
    return JSONResponse(
        {"type": "about:blank", "title": title, "status": status, "detail": detail, **said},
        status,
        media_type="application/problem+json",
        headers={"WWW-Authenticate": "Bearer"} if status == 401 else None,
    )


def status_of(error: Error) -> int:
    """Returns the HTTP status of one of our errors: 503 if a later try may succeed."""
    return status_of_kind(type(error))


def status_of_kind(kind: type[Error]) -> int:
    """Returns the HTTP status of a class of errors, as `status_of`."""
    for each, status in STATUSES:
        if issubclass(kind, each):
            return status
    return 503 if kind.transient else 500


def add_problems(app: FastAPI) -> None:
    """Converts every error of the application to a problem; none shows a traceback."""

    @app.exception_handler(Error)
    def ours(_: Request, error: Error) -> JSONResponse:
        status = status_of(error)
        fields = {"hint": error.hint, "exit_code": error.exit_code, "transient": error.transient}
        return problem(status, type(error).__name__, error.message, **fields)

    @app.exception_handler(HTTPException)
    def of_http(_: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> JSONResponse:
        log.error("internal error", exc_info=error)
        return problem(500, "InternalError", f"internal error: {type(error).__name__}")

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [{"in": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
        more = {"errors": wrong, "hint": "see /docs for the parameters", "exit_code": 2}
        return problem(422, "UsageError", "the request is invalid", **more)


# ---- conditional -----------------------------------------------------------------------------------------------------
# ETags: a GET of JSON that the client has already is answered with 304 and no body. And its compression, which pages do
# not have: they contain both a secret of the form and text of the request.


LARGEST = 8 << 20
"""Maximum bytes of a body that is buffered for comparison; a larger one has no ETag."""
SMALL = 1 << 10
"""Bytes of a body that is not worth compressing."""


class ETags:
    """A middleware that adds ETags to JSON and compresses it; other responses pass unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            headers = Headers(scope=scope)
            zips = "gzip" in headers.get("accept-encoding", "")
            await self.app(scope, receive, _Held(send, headers.getlist("if-none-match"), zips))
        else:
            await self.app(scope, receive, send)


class _Held:
    """A buffer that delays the head of a JSON response until its body is known. given: ETags that the client has. zips:
    it reads gzip."""

    def __init__(self, send: Send, given: Iterable[str], zips: bool) -> None:
        self._send, self._zips = send, zips
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
            headers["ETag"], headers["Cache-Control"] = etag, "private, no-cache"
            headers["Vary"] = "Authorization, Accept-Encoding"
            if self._given & {etag, "*"}:
                start["status"], body = 304, b""
                del headers["Content-Length"]
            elif self._zips and len(body) > SMALL:
                body = gzip.compress(body, 5)
                headers["Content-Encoding"], headers["Content-Length"] = "gzip", str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _is_json(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return start["status"] == 200 and kind.partition(";")[0] == "application/json"
