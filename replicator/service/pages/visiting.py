"""Who looks at a page: a session's cookie, a proxy's user, a bearer token, or anybody where the service is open to
all."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException

from replicator.errors import Error
from replicator.service.auth.api_tokens import NOBODY, Identity
from replicator.service.auth.browser_sessions import csrf_of, is_csrf_of, session_of
from replicator.service.pages.rendering import render
from replicator.service.web.permission import of_request
from replicator.service.web.problems import status_of

SIGN_IN = "/sign-in"
FOREIGN = frozenset({"cross-site", "same-site"})
"""What a browser says of a form that another site's page has sent."""


@dataclass(frozen=True)
class Visitor:
    """cookie: of the session; empty: there is none. mark: a cookie that binds the forms of a proxy's user to his
    browser, as there is no session."""

    identity: Identity
    cookie: str = ""
    mark: str = ""

    @property
    def csrf(self) -> str:
        return csrf_of(self.cookie) if self.cookie else csrf_of(self.mark, self.identity.name) if self.mark else ""

    def sent(self, given: str) -> bool:
        """Whether a form with this mark is one of his."""
        return is_csrf_of(self.cookie, given) if self.cookie else is_csrf_of(self.mark, given, self.identity.name)

    @property
    def name(self) -> str:
        """Empty for one who has not signed in."""
        return "" if self.identity is NOBODY else self.identity.name

    def may_act(self, policy: str = "") -> bool:
        """Whether forms are shown: with a session, or to a proxy's user, as they carry a mark."""
        return bool(self.cookie or self.mark) and self.identity.may("operator", policy)


def cookie_name(request: Request) -> str:
    """With TLS one that no other host's page and no unencrypted one can set."""
    return "__Host-replicator-session" if request.url.scheme == "https" else "replicator-session"


def mark_name(request: Request) -> str:
    """As `cookie_name`, of a mark."""
    return "__Host-replicator-mark" if request.url.scheme == "https" else "replicator-mark"


def _new_mark(request: Request) -> str:
    """Goes to the browser with the answer."""
    request.state.new_mark = secrets.token_urlsafe(32)
    return str(request.state.new_mark)


def remember(request: Request, answer: Response, name: str, value: str, seconds: int | None) -> None:
    """A cookie for this server alone; None: until the browser ends."""
    secure = request.url.scheme == "https"
    answer.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")


def visitor_of(request: Request) -> Visitor:
    """Raises HTTPException 401 where looking needs a token, and for a token that is none."""
    cookie = request.cookies.get(cookie_name(request), "")
    found = session_of(request.app.state.store, cookie) if cookie and "Authorization" not in request.headers else None
    visitor = Visitor(found, cookie) if found else Visitor(of_request(request))
    if not found and request.state.sender.user:
        visitor = replace(visitor, mark=request.cookies.get(mark_name(request)) or _new_mark(request))
    request.state.visitor = visitor
    return visitor


Visiting = Annotated[Visitor, Depends(visitor_of)]


async def fields_of(request: Request) -> dict[str, str]:
    """The fields of a form that this server's page has sent; of several of one name the first. Raises HTTPException 415
    for another kind of body, 403 for another site's form."""
    if request.headers.get("Sec-Fetch-Site") in FOREIGN:
        raise HTTPException(403, "this form is another site's")
    if request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is application/x-www-form-urlencoded")
    try:
        found = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise HTTPException(400, "this is no form") from error
    return {name: values[0] for name, values in found.items()}


Fields = Annotated[dict[str, str], Depends(fields_of)]


def of_session(visitor: Visiting, fields: Fields) -> Visitor:
    """Who sent a form. Raises HTTPException 401 without a session or a proxy's user, 403 without the mark of the one or
    the other in the form."""
    if not (visitor.cookie or visitor.mark):
        raise HTTPException(401, "sign in first")
    if not visitor.sent(fields.get("csrf", "")):
        raise HTTPException(403, "this form is not of this session; load the page again")
    return visitor


Acting = Annotated[Visitor, Depends(of_session)]


class PageRoute(APIRoute):
    """Its errors are pages; who must sign in first is led there."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                found = await handle(request)
                if mark := getattr(request.state, "new_mark", ""):
                    remember(request, found, mark_name(request), mark, None)
                return found
            except StarletteHTTPException as error:
                return _of_http(request, error)
            except Error as error:
                return _failed(request, status_of(error), error.message, error.hint or "")

        return answer


def _of_http(request: Request, error: StarletteHTTPException) -> Response:
    if error.status_code == 401 and not request.headers.get("Authorization"):
        place = f"{SIGN_IN}?next={quote(local_place(request), safe='')}"
        if request.headers.get("HX-Request"):  # a part that refreshes itself: the page goes there
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
    """The address of a page, on this server."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def safe_place(given: str) -> str:
    """Where to go after signing in: a page of this server; else the first one."""
    local = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable()
    return given if local and given.isascii() else "/"
