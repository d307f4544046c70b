"""Signing in on the page with a token, and signing out."""

from __future__ import annotations

import secrets
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.service.auth.browser_sessions import LASTS, csrf_of, is_csrf_of, sign_in, sign_out
from replicator.service.pages.rendering import render
from replicator.service.pages.visiting import SIGN_IN, Acting, Fields, PageRoute, cookie_name, remember, safe_place

FORM = "replicator-form"
"""The cookie that binds the form of signing in to the browser that was given it."""

signing_in = APIRouter(route_class=PageRoute, include_in_schema=False)


@signing_in.get(SIGN_IN)
def show_sign_in(request: Request, next: Annotated[str, Query(max_length=2000)] = "/", wrong: bool = False) -> Response:
    """The form for a token."""
    mark = request.cookies.get(FORM) or secrets.token_urlsafe(32)
    shown = {"next": safe_place(next), "wrong": wrong, "csrf": csrf_of(mark)}
    answer = render(request, "sign_in.html", shown)
    remember(request, answer, FORM, mark, 3600)
    return answer


@signing_in.post(SIGN_IN)
def take_token(request: Request, fields: Fields) -> Response:
    """Begins a session."""
    mark = request.cookies.get(FORM, "")
    if not mark or not is_csrf_of(mark, fields.get("csrf", "")):
        raise HTTPException(403, "this form is not of this browser; load the page again, with cookies allowed")
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
