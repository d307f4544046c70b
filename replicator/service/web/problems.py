"""Errors over HTTP: problem details (RFC 9457) with a hint and an exit code."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cmroot.errors import Exists, FormatError, PinError, UnknownPlace
from replicator.errors import ConfigError, Error, LeaseHeld, NoSpace, ObjectNotFound, Refused, UsageError

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
    403: ("ask with a token of a higher role, or of this policy", 6),
    404: ("see /docs for what there is", 1),
    405: ("see /docs for what may be sent there", 2),
    409: ("give each action an Idempotency-Key of its own", 6),
    422: ("send the body that you sent before, or another Idempotency-Key", 2),
    500: ("see the log of the service", 1),
    503: ("ask again later", 75),
    504: ("ask again later; what was begun continues. The command line has no such limit", 75),
}
"""Hint and exit code for statuses without an error of ours."""


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    """Returns a response with a problem. more: further members; a hint and an exit code are always present."""
    hint, code = HINTS.get(status, ("see /docs for what may be asked, and how", 2))
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
        return problem(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> JSONResponse:
        log.error("internal error", exc_info=error)
        return problem(500, "InternalError", f"internal error: {type(error).__name__}")

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [{"in": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
        more = {"errors": wrong, "hint": "see /docs for the parameters", "exit_code": 2}
        return problem(422, "UsageError", "the request is not valid", **more)
