"""Pages about removals: pending ones by day and reason, each with a form to hold it; purges and their
certificates.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.guard import audit_ls, legal_hold_ls
from replicator.commands.purge import purge_backups
from replicator.service.pages.rendering import Acting, Fields, Visiting, render
from replicator.service.pages.root_routes import (
    RootPage,
    Said,
    acting_name,
    asked,
    body_of,
    chosen_root,
    config_of,
    may_change,
    said,
)
from replicator.service.web.actions import RemovalAsk, RootAsk
from replicator.service.web.removals import hold_removal, release_legal_hold

ROWS = 500
"""Maximum rows of a list; the command line has all of them."""

ITEMS = 100
"""Maximum pending removals of a page."""

Cursor = Annotated[str, Query(max_length=400)]

removing = APIRouter(route_class=RootPage, include_in_schema=False)


@removing.get("/removals")
def removals(request: Request, visitor: Visiting, root: str = "", policy: str = "", cursor: Cursor = "") -> Response:
    """Shows pending removals, by day and one by one, with what holds them back; and removals of the last week."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    days = asked(request, visitor.identity, "removals/upcoming", limit=ROWS)
    shown: dict[str, Any] = {"items": Said(), "holds": Said(), "gone": Said(), "days": [], "next": None}
    if chosen:
        week = (datetime.now(UTC) - timedelta(days=7)).isoformat(timespec="seconds")
        config, where = config_of(request), chosen.place
        items = asked(request, visitor.identity, "removals/items", root=chosen.name, limit=ITEMS, cursor=cursor or None)
        shown |= {
            "items": items,
            "days": _by_day(items.found["items"]) if items.found else [],
            "next": items.found["next"] if items.found else None,
            "holds": said(lambda: legal_hold_ls(cmroot=where, config=config)),
            "gone": said(lambda: audit_ls(cmroot=where, outcome="removed", since=week, limit=ROWS, config=config)),
        }
    acting = acting_name(config_of(request), chosen)
    may = {
        "may_hold": bool(acting) and may_change(visitor, chosen),
        "may_release": bool(acting) and may_change(visitor, chosen, "admin"),
    }
    return render(request, "removals.html", {"roots": roots, "root": chosen, "upcoming": days, **shown, **may})


@removing.get("/removals/why")
def why(request: Request, visitor: Visiting, job: str, path: str) -> Response:
    """Shows the settings of a dataset under retention, each with its file and line."""
    found = asked(request, visitor.identity, "retention/{job}/explain", job=job, path=path, limit=ROWS)
    return render(request, "why.html", {"job": job, "dataset": path, "explained": found})


@removing.post("/removals/hold")
def hold(request: Request, visitor: Acting, fields: Fields) -> Response:
    """Adds a legal hold on a pending removal, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    hold_removal(request, visitor.identity, body_of(RemovalAsk, fields, given, "on", "until", "reason"))
    return RedirectResponse(f"/removals?root={quote(chosen.place if chosen else '', safe='')}", 303)


@removing.post("/legal-holds/{name}/release")
def release(request: Request, visitor: Acting, fields: Fields, name: str) -> Response:
    """Releases a legal hold, so that jobs may remove what it covered, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    release_legal_hold(request, visitor.identity, name, body_of(RootAsk, fields, given, "reason"))
    return RedirectResponse(f"/removals?root={quote(chosen.place if chosen else '', safe='')}", 303)


# ---- purges -------------------------------------------------------------------------------------------------------


@removing.get("/purges")
def purges(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """Shows what purges erased, their backups, and certificates."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    shown: dict[str, Any] = {"purges": Said(), "backups": Said(), "record": Said()}
    if chosen:
        config, where = config_of(request), chosen.place
        shown = {
            "purges": asked(request, visitor.identity, "purges", root=chosen.name, limit=ROWS),
            "backups": said(lambda: purge_backups(cmroot=where, config=config)),
            "record": said(lambda: audit_ls(cmroot=where, job="purge", limit=ROWS, config=config)),
        }
    record: Said = shown["record"]
    rows = list(reversed(record.found.found)) if record.found else []
    shown |= {
        "rows": [each for each in rows if each.what not in ("file", "certificate")],
        "certificates": [
            {"by": each, "says": msgspec.json.decode(each.detail)}
            for each in rows
            if each.what == "certificate" and each.detail
        ],
    }
    return render(request, "purges.html", {"roots": roots, "root": chosen, **shown})


@removing.get("/purges/{purge}")
def one_purge(request: Request, visitor: Visiting, purge: str, root: str = "", policy: str = "") -> Response:
    """Shows a purge: its progress, and its newest certificate."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    name = chosen.name if chosen else None
    shown = {
        "detail": asked(request, visitor.identity, "purges/{purge}", root=name, purge=purge),
        "certificate": asked(request, visitor.identity, "purges/{purge}/certificate", root=name, purge=purge),
    }
    return render(request, "purge.html", {"purge": purge, "roots": roots, "root": chosen, **shown})


def _by_day(items: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(day, list(some)) for day, some in groupby(items, lambda each: each["at"][:10])]
