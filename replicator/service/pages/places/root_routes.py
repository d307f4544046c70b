"""Pages about change-management roots and drills, by the commands that look at them. They run on this server's own
engine, never in a Spark of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.cm.kept import cm_ls
from replicator.commands.cm.pins import cm_slots
from replicator.commands.drill import drill
from replicator.core.config import Config
from replicator.policies.drills.drill_record import ShownDrills
from replicator.service.pages.chart import NARROW, LagPoint, size_chart_of
from replicator.service.pages.places.root_asking import (
    LogPage,
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
from replicator.service.pages.rendering import render
from replicator.service.pages.visiting import Acting, Fields, Visiting
from replicator.service.web.actions.bodies import HoldAsk
from replicator.service.web.actions.root_actions import add_root_hold, release_root_hold
from replicator.service.web.queries.endpoint import LARGEST, SECONDS
from replicator.service.web.queries.time_limits import Askers, Late
from replicator.service.web.views import Ask

SINCE = "-30d"
"""Of the size that the chart shows; measured once an hour, as a rule."""

FOUND = 100
"""Files of a search."""

Text = Annotated[str, Query(max_length=4000)]

of_roots = APIRouter(route_class=RootPage, include_in_schema=False)
of_logs = APIRouter(route_class=LogPage, include_in_schema=False)


@of_roots.get("/cmroot")
def one_root(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """A root's size over time, and who needs what it keeps: slots, holds and dumps."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    shown: dict[str, Any] = {"pins": Said(), "sizes": [], "drawings": [None]}
    if chosen:
        pins = said(lambda: cm_slots(cmroot=chosen.place, held=False, config=config_of(request)))
        size = asked(request, visitor.identity, "cmroot/size", root=chosen.name, since=SINCE, limit=LARGEST)
        points = size.found["points"] if size.found else []
        samples = [LagPoint(datetime.fromisoformat(each["at"]).timestamp(), each["bytes"]) for each in points]
        drawings = [size_chart_of(samples), size_chart_of(samples, NARROW)]
        shown = {"pins": pins, "sizes": points, "drawings": drawings}
    may = bool(acting_name(config_of(request), chosen)) and may_change(visitor, chosen)
    return render(request, "cmroot.html", {"roots": roots, "root": chosen, "may_hold": may, **shown})


@of_roots.get("/cmroot/usage")
def usage(request: Request, visitor: Visiting, root: str) -> Response:
    """What a root keeps, by who needs it; reads the whole log."""
    _, chosen = chosen_root(request, visitor.identity, root, "")
    where, config = chosen.place if chosen else "", config_of(request)
    kept = said(lambda: cm_ls(cmroot=where, limit=20, engine="local", config=config))
    return render(request, "usage.html", {"root": chosen, "kept": kept})


@of_logs.get("/cmroot/expiry")
def expiry(request: Request, visitor: Visiting, root: str, older_than: Text = "") -> Response:
    """What the next expiry would remove, and what holds back the rest; reads the whole log."""
    _, chosen = chosen_root(request, visitor.identity, root, "")
    name = chosen.name if chosen else None
    found = asked(request, visitor.identity, "cmroot/expiry", root=name, older_than=older_than or None)
    return render(request, "expiry.html", {"root": chosen, "planned": found, "older_than": older_than})


@of_logs.get("/cmroot/find")
def find(request: Request, visitor: Visiting, root: str = "", path: Text = "", table: Text = "") -> Response:
    """Files that the source had, by path or table, and whether their bytes are kept; reads the whole log."""
    roots, chosen = chosen_root(request, visitor.identity, root, "")
    found = Said()
    if chosen and (path or table):
        given = {"root": chosen.name, "path": path or None, "table": table or None, "limit": FOUND}
        found = asked(request, visitor.identity, "cmroot/find", **given)
    return render(request, "find.html", {"roots": roots, "root": chosen, "path": path, "table": table, "found": found})


@of_roots.post("/cmroot/hold")
def hold(request: Request, visitor: Acting, fields: Fields) -> Response:
    """Keeps a moment, and leads back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    name, ask = acting_name(config_of(request), chosen), body_of(HoldAsk, fields, {}, "name", "at", "reason")
    add_root_hold(request, visitor.identity, name, ask)
    return RedirectResponse(f"/cmroot?root={quote(chosen.place if chosen else '', safe='')}", 303)


@of_roots.post("/cmroot/holds/{name}/release")
def release(request: Request, visitor: Acting, fields: Fields, name: str) -> Response:
    """Lets go of a hold, and leads back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    known = acting_name(config_of(request), chosen)
    release_root_hold(request, visitor.identity, known, name, body_of(Ask, fields, {}, "reason"))
    return RedirectResponse(f"/cmroot?root={quote(chosen.place if chosen else '', safe='')}", 303)


@of_roots.get("/drills")
async def drills(request: Request, visitor: Visiting) -> Response:
    """Drills of all policies with their measured recovery times. A root that hangs keeps no other waiting."""
    config = config_of(request)
    names = [name for name in sorted(config.policies) if visitor.identity.may("viewer", name)]
    found = await asyncio.gather(*(_in_time(request, name, partial(_listed, name, config)) for name in names))
    return render(request, "drills.html", {"policies": dict(zip(names, found, strict=True))})


async def _in_time(request: Request, policy: str, ask: Callable[[], object]) -> Said:
    """As `said`, within a time limit."""
    askers: Askers = request.app.state.askers
    try:
        return await askers.ask(policy, SECONDS, lambda: said(ask))
    except Late:
        return Said(None, f"no answer within {SECONDS:g} s")


def _listed(policy: str, config: Config) -> ShownDrills:
    return cast("ShownDrills", drill(policy, listing=True, config=config))
