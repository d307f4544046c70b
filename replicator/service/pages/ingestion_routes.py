"""Pages about ingestion: its state and queue, an asset, a job. Users who may not view the whole service see the jobs
that were requested in their name.

A separate store may not answer, or hang: each page has a time limit, and shows what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.asset import asset_show
from replicator.ingestion.ingestion_request import State, is_same_person
from replicator.ingestion.intake import Requester
from replicator.service.pages.rendering import Acting, Fields, PageRoute, Visiting, Visitor, render
from replicator.service.pages.root_routes import Said, asked, config_of, said
from replicator.service.web.actions import ApproveAssetAsk
from replicator.service.web.ingestion_actions import SECONDS as ACTING
from replicator.service.web.ingestion_actions import Name, approve_asset, cancel_request
from replicator.service.web.responses import Ask
from replicator.service.web.router import within as limited
from replicator.service.web.serving import require

PATIENCE = 20.0
"""Seconds for a page."""

ASSETS, JOBS = 200, 50
"""Maximum assets and jobs of a page; the API and the command line have all."""

ENDED = ("done", "superseded", "cancelled", "expired", "published")
"""States in which jobs cannot be cancelled."""

Window = Literal["1d", "7d", "31d"]
Number = Annotated[int, Path(ge=1, le=2**53)]
Cursor = Annotated[str, Query(max_length=400)]


class IngestionPage(PageRoute):
    """A route whose pages query the ingestion store in a thread of its own, as queries do; its forms as actions do."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        acts = "POST" in (more.get("methods") or ())
        bounded = limited(
            ACTING if acts else PATIENCE,
            lambda _: "ingestion",
            lambda request: request.app.state.deed_askers if acts else request.app.state.askers,
        )
        super().__init__(path, bounded(endpoint), **more)


ingesting = APIRouter(route_class=IngestionPage, include_in_schema=False)


@ingesting.get("/ingestion")
def ingestion(
    request: Request, visitor: Visiting, within: Window = "7d", state: State | Literal[""] = "", cursor: Cursor = ""
) -> Response:
    """Shows which requests wait and for how long, how soon they are published, what landed; assets and jobs."""
    who, config = visitor.identity, config_of(request).ingestion
    shown: dict[str, Any] = {
        "configured": bool(config.metastore or config.sources),
        "whole": who.may("viewer"),
        "within": within,
        "windows": get_args(Window),
        "stats": Said(),
        "assets": Said(),
        **_jobs(request, visitor, state, cursor),
    }
    if shown["whole"]:
        shown["stats"] = asked(request, who, "ingestion/stats", within=within)
        shown["assets"] = asked(request, who, "assets", limit=ASSETS)
    return render(request, "ingestion.html", shown)


@ingesting.get("/ingestion/assets/{asset}")
def one_asset(
    request: Request, visitor: Visiting, asset: Name, state: State | Literal[""] = "", cursor: Cursor = ""
) -> Response:
    """Shows an asset: its permissions, its approval, its slots and its jobs."""
    require(visitor.identity, "viewer", "")
    found = asked(request, visitor.identity, "assets/{asset}", asset=asset)
    stats = asked(request, visitor.identity, "ingestion/stats", within="1d")
    queues = stats.found["queue"]["assets"] if stats.found else []
    mine = found.found or {}
    acts = bool(visitor.csrf) and visitor.identity.may("admin")
    shown = {
        "name": asset,
        "asset": found,
        "stats": stats,
        "queue": next((each for each in queues if each["asset"] == asset), None),
        "may_approve": acts
        and bool(mine)
        and not mine["approved_by"]
        and not is_same_person(mine["created_by"], visitor.name),
        **_jobs(request, visitor, state, cursor, asset=asset),
    }
    return render(request, "ingestion_asset.html", shown)


@ingesting.get("/ingestion/jobs/{job}")
def one_landing(request: Request, visitor: Visiting, job: Number) -> Response:
    """Shows a job: its request, each change, its findings, its error in detail."""
    found = asked(request, visitor.identity, "ingestion/requests/{job}", job=job)
    shown = {"number": job, "detail": found, "may_cancel": bool(found.found) and _may_cancel(request, visitor, found)}
    return render(request, "ingestion_job.html", shown)


@ingesting.post("/ingestion/assets/{asset}/approve")
def approve(request: Request, visitor: Acting, fields: Fields, asset: Name) -> Response:
    """Approves an asset, and redirects back."""
    ask = ApproveAssetAsk(_ask(fields).reason, digest=fields.get("digest", "")[:100])
    approve_asset(request, visitor.identity, asset, ask)
    return RedirectResponse(f"/ingestion/assets/{quote(asset)}", 303)


@ingesting.post("/ingestion/jobs/{job}/cancel")
def cancel_landing(request: Request, visitor: Acting, fields: Fields, job: Number) -> Response:
    """Cancels a job, and redirects back."""
    cancel_request(request, visitor.identity, job, _ask(fields))
    return RedirectResponse(f"/ingestion/jobs/{job}", 303)


def _jobs(request: Request, visitor: Visitor, state: str, cursor: str, **more: str) -> dict[str, Any]:
    """Returns a page of jobs, newest first."""
    given = {**more, "state": state or None, "cursor": cursor or None, "limit": JOBS}
    found = asked(request, visitor.identity, "ingestion/requests", **given)
    return {"jobs": found, "state": state, "states": get_args(State)}


def _may_cancel(request: Request, visitor: Visitor, detail: Said) -> bool:
    """Returns True if the form is shown; the action checks again."""
    job, who = detail.found["job"], visitor.identity
    roles = (who.role, *(role for role, _ in who.also))
    if not visitor.csrf or job["state"] in ENDED or all(role == "viewer" for role in roles):
        return False
    parties = said(lambda: _parties(request, job["asset"])).found or ()
    return Requester(visitor.name).is_one_of((job["requested_by"], *parties))


def _parties(request: Request, asset: str) -> tuple[str, ...]:
    found = asset_show(asset, config=config_of(request)).asset
    return (found.owner, *found.producers)


def _ask(fields: dict[str, str]) -> Ask:
    return Ask(fields.get("reason", "")[:500])
