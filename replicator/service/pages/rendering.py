"""Templates and their values: times, sizes and names for display. Everything is escaped: markup by Jinja, and
characters that change the direction of a text or clear a terminal by `printable`."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

import msgspec
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message

from replicator.core.formats import FORMATS
from replicator.core.text import bound_text, count_text, duration_text, printable, size_text
from replicator.errors import Error
from replicator.ingestion.ingestion_request import SINGLE_USER
from replicator.service.api_tokens import LASTS, NOBODY, Identity, csrf_of, is_csrf_of, session_of, sign_in, sign_out
from replicator.service.web.responses import status_of
from replicator.service.web.serving import of_request

HERE = Path(__file__).parent
ASSETS = {
    "page.css": "text/css; charset=utf-8",
    "api.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "idiomorph-ext.min.js": "text/javascript; charset=utf-8",
}
BYTES = {name: (HERE / "assets" / name).read_bytes() for name in ASSETS}
ZIPPED = {name: gzip.compress(data, 9, mtime=0) for name, data in BYTES.items()}
EDITION = hashlib.sha256(b"".join(BYTES.values())).hexdigest()[:12]
"""Part of the assets' URLs: a browser caches them until they change."""

WORDS = {
    "current": "in sync",
    "behind": "behind",
    "late": "late",
    "blocked": "blocked",
    "none": "not replicated yet",
    "unknown": "not known",
    "failed_user": "failed (request)",
    "failed_type": "failed (types)",
}
"""Labels of the status of a policy, and of states of jobs of ingestion."""

ILL = frozenset(
    {"unreachable", "late", "blocked", "unknown", "failed", "lost", "differs", "partial", "killed", "incomplete"}
    | {"failed_user", "failed_type", "expired"}  # jobs of ingestion
)
WELL = frozenset({"current", "done"})
AT_WORK = frozenset({"running", "published"})


_CODE = re.compile("`([^`]+)`")


def _shown(value: Any) -> Any:
    """Returns the output of an expression in a template."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def seconds_of(moment: str | float) -> float:
    """Converts ISO 8601 to seconds since 1970; without a zone it is UTC. Raises ValueError."""
    if not isinstance(moment, str):
        return float(moment)
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def relative(seconds: float) -> str:
    """Formats seconds from now: `12 min ago`, `in 38 s`."""
    if abs(seconds) < 1:
        return "now"
    return f"in {duration_text(seconds)}" if seconds > 0 else f"{duration_text(-seconds)} ago"


def when(moment: str | float | None, now: float | None = None) -> Markup:
    """Formats a time, relative to `now` (None: the clock's), with the absolute one as a tooltip; nothing for None. A
    text that is not a time is shown unchanged."""
    if moment is None or moment == "":
        return Markup("")
    try:
        at = seconds_of(moment)
        absolute = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(printable(str(moment)))
    apart = at - (time.time() if now is None else now)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        absolute.isoformat(timespec="seconds"), f"{absolute:%Y-%m-%d %H:%M:%S} UTC", relative(apart)
    )


def utc(moment: float) -> str:
    """Formats a time, absolute."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def clock(moment: float) -> Markup:
    """Formats a time of today."""
    at = datetime.fromtimestamp(moment, UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:%H:%M:%S} UTC"
    )


def lines(text: str) -> Markup:
    """Formats a text of several lines, such as a log."""
    return Markup("\n").join(printable(each) for each in text.split("\n"))


def said(text: str) -> Markup:
    """Formats a message or hint, with text between backticks as code."""
    parts = _CODE.split(text)
    codes = (Markup("<code>{}</code>").format(printable(each)) for each in parts[1::2])
    return Markup("").join(each for pair in zip(map(printable, parts[::2]), [*codes, ""], strict=True) for each in pair)


def css_class(state: str) -> str:
    """Returns the style of a state, which is always shown as a word, too."""
    return "ill" if state in ILL else "well" if state in WELL else "work" if state in AT_WORK else "calm"


def format_name(format: str) -> str:
    """Formats a table's format."""
    return FORMATS[format].title if format in FORMATS else format


def role_name(role: str) -> str:
    """Formats the role of a database on one side."""
    return "not known" if not role else "no role yet" if role.startswith("none ") else role


def schedule(text: str) -> str:
    """Formats a job's schedule; `every 300 s` becomes `every 5 min`."""
    match = re.fullmatch(r"every ([\d.e+]+) s", text)
    return f"every {duration_text(float(match[1]))}" if match else text


def segment(name: str) -> str:
    """Escapes a name as one segment of a URL's path; Jinja's `urlencode` leaves slashes, which a name may contain."""
    return quote(name, safe="")


def as_json(value: Any) -> Markup:
    """Formats a response for display."""
    return lines(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def pretty(text: str) -> Markup:
    """Formats JSON on several lines; another text is unchanged."""
    try:
        return as_json(json.loads(text))
    except ValueError:
        return lines(text)


_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_shown,
)
_TEMPLATES.filters |= {
    "when": when,
    "clock": clock,
    "utc": utc,
    "bound": bound_text,
    "duration": duration_text,
    "size": size_text,
    "count": count_text,
    "lines": lines,
    "as_json": as_json,
    "pretty": pretty,
    "said": said,
    "schedule": schedule,
    "format_name": format_name,
    "role_name": role_name,
    "quote": shlex.quote,
    "segment": segment,
    "shell": shlex.join,
    "look": css_class,
    "word": lambda state: WORDS.get(state, state),
}
_TEMPLATES.globals |= {"edition": EDITION}


def render(request: Request, template: str, shown: dict[str, Any], status: int = 200) -> Response:
    """Renders a page; with `?format=json` returns its data."""
    if request.query_params.get("format") == "json":
        return Response(msgspec.json.encode(shown, enc_hook=str), status, media_type="application/json")
    here = local_place(request)
    more = {
        "here": here,
        "as_data": f"{here}{'&' if request.url.query else '?'}format=json",
        "path": request.url.path,
        "now": time.time(),
        "version": getattr(request.state, "version", ""),
        "visitor": getattr(request.state, "visitor", None),
        "single_user": SINGLE_USER if request.app.state.serving.config.ingestion.single_user else "",
    }
    text = _TEMPLATES.get_template(template).render(more | shown)
    return HTMLResponse(text.encode("utf-8", "replace"), status)


# ---- visiting --------------------------------------------------------------------------------------------------------
# The visitor of a page: by a session's cookie, a proxy's user, a bearer token, or none if the service is open to all.


SIGN_IN = "/sign-in"
FOREIGN = frozenset({"cross-site", "same-site"})
"""Values that a browser sends with a form of another site's page."""


@dataclass(frozen=True)
class Visitor:
    """The visitor of a page. cookie: of the session; empty: there is none. mark: a cookie that binds the forms of a
    proxy's user to the browser, as there is no session."""

    identity: Identity
    cookie: str = ""
    mark: str = ""

    @property
    def csrf(self) -> str:
        return csrf_of(self.cookie) if self.cookie else csrf_of(self.mark, self.identity.name) if self.mark else ""

    def sent(self, given: str) -> bool:
        """Returns True if a form with this CSRF token is one of the visitor's."""
        return is_csrf_of(self.cookie, given) if self.cookie else is_csrf_of(self.mark, given, self.identity.name)

    @property
    def name(self) -> str:
        """Empty if the visitor has not signed in."""
        return "" if self.identity is NOBODY else self.identity.name

    def may_act(self, policy: str = "") -> bool:
        """Returns True if forms are shown: with a session, or to a proxy's user, whose forms have a mark."""
        return bool(self.cookie or self.mark) and self.identity.may("operator", policy)


def cookie_name(request: Request) -> str:
    """Returns the session cookie's name: with TLS one that no other host's page and no unencrypted one can set."""
    return "__Host-replicator-session" if request.url.scheme == "https" else "replicator-session"


def mark_name(request: Request) -> str:
    """Returns the mark's name, as `cookie_name`."""
    return "__Host-replicator-mark" if request.url.scheme == "https" else "replicator-mark"


def _new_mark(request: Request) -> str:
    """Creates a mark, which is sent to the browser with the response."""
    request.state.new_mark = secrets.token_urlsafe(32)
    return str(request.state.new_mark)


def remember(request: Request, answer: Response, name: str, value: str, seconds: int | None) -> None:
    """Sets a cookie for this server alone. seconds: None: until the browser closes."""
    secure = request.url.scheme == "https"
    answer.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")


def visitor_of(request: Request) -> Visitor:
    """Returns the visitor of a request. Raises HTTPException 401 if reading requires a token, and for an invalid
    token."""
    cookie = request.cookies.get(cookie_name(request), "")
    found = session_of(request.app.state.store, cookie) if cookie and "Authorization" not in request.headers else None
    visitor = Visitor(found, cookie) if found else Visitor(of_request(request))
    if found:
        request.state.sender.recognised()
    if not found and request.state.sender.user:
        visitor = replace(visitor, mark=request.cookies.get(mark_name(request)) or _new_mark(request))
    request.state.visitor = visitor
    return visitor


Visiting = Annotated[Visitor, Depends(visitor_of)]


def bodies_of(app: FastAPI) -> Callable[[Message], Awaitable[bool]]:
    """Returns a function that returns True for a request that may have a body: one with a valid token or session, and
    the one to sign in. The application refuses all others without reading it."""

    async def is_known(scope: Message) -> bool:
        if scope["path"] == SIGN_IN:
            return True
        try:
            await run_sync(visitor_of, Request({**scope, "app": app}))
        except (HTTPException, Error):
            return False
        return True

    return is_known


async def fields_of(request: Request) -> dict[str, str]:
    """Returns the fields of a form that a page of this server sent; of several of one name the first. Raises
    HTTPException 415 for another kind of body, 403 for another site's form."""
    if request.headers.get("Sec-Fetch-Site") in FOREIGN:
        raise HTTPException(403, "this form was sent by another site")
    if request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form must be application/x-www-form-urlencoded")
    try:
        found = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise HTTPException(400, "invalid form") from error
    return {name: values[0] for name, values in found.items()}


Fields = Annotated[dict[str, str], Depends(fields_of)]


def of_session(visitor: Visiting, fields: Fields) -> Visitor:
    """Returns the sender of a form. Raises HTTPException 401 without a session or a proxy's user, 403 if the form does
    not have the CSRF token of the one or the other."""
    if not (visitor.cookie or visitor.mark):
        raise HTTPException(401, "sign in first")
    if not visitor.sent(fields.get("csrf", "")):
        raise HTTPException(403, "this form belongs to another session; reload the page")
    return visitor


Acting = Annotated[Visitor, Depends(of_session)]


class PageRoute(APIRoute):
    """A route whose errors are pages; visitors who must sign in first are redirected there."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                if await run_sync(_is_current, request):
                    return Response(status_code=204)
                found = await handle(request)
                if mark := getattr(request.state, "new_mark", ""):
                    remember(request, found, mark_name(request), mark, None)
                return found
            except StarletteHTTPException as error:
                return _of_http(request, error)
            except Error as error:
                return _failed(request, status_of(error), error.message, error.hint or "")

        return answer


def _is_current(request: Request) -> bool:
    """Returns True for a part of a page that requests itself again, and has not changed since it was rendered. Records
    the version of the contents before they are read. Raises as `visitor_of`."""
    request.state.version, seen = "", request.headers.get("X-Seen", "")
    if seen:
        visitor_of(request)
    with contextlib.suppress(Error):  # the page itself reports why the store does not answer
        request.state.version = request.app.state.serving.version() if request.method == "GET" else ""
    version, _, until = seen.partition(":")
    fresh = until.isdecimal() and int(until) > time.time()
    return fresh and version == request.state.version


def _of_http(request: Request, error: StarletteHTTPException) -> Response:
    if error.status_code == 401 and not request.headers.get("Authorization"):
        place = f"{SIGN_IN}?next={quote(local_place(request), safe='')}"
        if request.headers.get("HX-Request"):  # a part that refreshes itself: the page is redirected
            return Response(status_code=401, headers={"HX-Redirect": place})
        if request.method == "GET":
            return RedirectResponse(place, 303)
    return _failed(request, error.status_code, str(error.detail), "")


def _failed(request: Request, status: int, message: str, hint: str) -> Response:
    shown = {"status_code": status, "message": message, "hint": hint}
    answer = render(request, "failed.html", shown, status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def local_place(request: Request) -> str:
    """Returns the path and query of a page, on this server, escaped: a path may contain any name."""
    return quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")


def safe_place(given: str) -> str:
    """Returns the page to open after signing in: one of this server; else the first."""
    local = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable()
    return given if local and given.isascii() else "/"


# ---- signing in ------------------------------------------------------------------------------------------------------
# Signing in on the page with a token, and signing out.


FORM = "replicator-form"
"""The cookie that binds the sign-in form to the browser that received it."""

signing_in = APIRouter(route_class=PageRoute, include_in_schema=False)


@signing_in.get(SIGN_IN)
def show_sign_in(request: Request, next: Annotated[str, Query(max_length=4000)] = "/", wrong: bool = False) -> Response:
    """Shows the form for a token."""
    mark = request.cookies.get(FORM) or secrets.token_urlsafe(32)
    shown = {"next": safe_place(next), "wrong": wrong, "csrf": csrf_of(mark)}
    answer = render(request, "sign_in.html", shown)
    remember(request, answer, FORM, mark, 3600)
    return answer


@signing_in.post(SIGN_IN)
def take_token(request: Request, fields: Fields) -> Response:
    """Creates a session."""
    mark = request.cookies.get(FORM, "")
    if not mark or not is_csrf_of(mark, fields.get("csrf", "")):
        raise HTTPException(403, "this form belongs to another browser; reload the page, with cookies allowed")
    place = safe_place(fields.get("next", "/"))
    cookie = sign_in(request.app.state.store, fields.get("token", "").strip())
    if cookie is None:
        return RedirectResponse(f"{SIGN_IN}?wrong=1&next={quote(place, safe='')}", 303)
    answer = RedirectResponse(place, 303)
    remember(request, answer, cookie_name(request), cookie, int(LASTS))
    return answer


@signing_in.post("/sign-out")
def end_session(request: Request, visitor: Acting) -> Response:
    """Ends the session; a proxy's user has none."""
    sign_out(request.app.state.store, visitor.cookie)
    answer = RedirectResponse("/", 303)
    remember(request, answer, cookie_name(request), "", 0)
    return answer
