"""Ingestion over HTTP: actions on assets and requests, and pages about its state and queue, an asset, a job.

The user is the token's name, or the proxy's user; permissions to request are defined by the roles of the assets, not by
policies. Users who may not view the whole service see the jobs that were requested in their name. A separate store may
not answer, or hang: each page has a time limit, and shows what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute

from replicator.commands.asset import asset_approve, asset_create, asset_show
from replicator.commands.ingest import ingest_cancel
from replicator.commands.ingest_request import ingest_request
from replicator.errors import UsageError
from replicator.ingestion.ingestion_request import Format, Mode, SchemaPolicy, State, is_same_person
from replicator.ingestion.intake import Requester
from replicator.service.api_tokens import NOBODY
from replicator.service.pages.rendering import Acting, Fields, PageRoute, Visiting, Visitor, render
from replicator.service.pages.root_routes import Said, asked, config_of, said
from replicator.service.web.actions import (
    ApproveAssetAsk,
    AssetAsk,
    Count,
    Line,
    Lines,
    Quantity,
    Share,
    What,
    do_once,
    fields_of,
    serving_of,
)
from replicator.service.web.responses import Ask, Words
from replicator.service.web.router import within
from replicator.service.web.router import within as limited
from replicator.service.web.serving import NEEDED, Who, require

# ---- actions ---------------------------------------------------------------------------------------------------------


Number = Annotated[int, Path(ge=1, le=2**53, description="A job's number.")]
Name = Annotated[str, Path(pattern=r"^[a-z0-9_]{1,64}$", description="An asset's name.")]

SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class LandingAsk(Ask):
    """The options of `replicator ingest request`. table: SOURCE:SCHEMA.TABLE."""

    table: Line
    asset: Line
    mode: Mode = "overwrite"
    watermark: Line | None = None
    key: Lines = ()
    split_column: Line | None = None
    readers: Count | None = None
    max_loss: Share | None = None
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    late: Quantity | None = None
    backfill: Line | None = None
    rebuild: bool = False
    columns: Lines = ()
    where: Words | None = None
    masks: Lines = ()
    least_rows: Count | None = None
    not_null: Lines = ()
    unique: Lines = ()
    note: Words = ""


class IngestionRoute(APIRoute):
    """A route whose actions query the ingestion store within a time limit."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        bounded = within(SECONDS, lambda _: "ingestion", lambda request: request.app.state.deed_askers)
        super().__init__(path, bounded(endpoint), **more)


ingestion_actions = APIRouter(prefix="/api/v1", route_class=IngestionRoute)


@ingestion_actions.post("/assets", status_code=201)
def create_asset(request: Request, who: Who, ask: AssetAsk) -> dict[str, Any]:
    """Creates or changes an asset, as `replicator asset create`. For admins."""
    require(who, "admin", "")

    def do() -> Any:
        return asset_create(**fields_of(ask), by=who.name, groups=who.groups, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("create asset", ask.name, ask.reason), do))


@ingestion_actions.post("/assets/{asset}:approve")
def approve_asset(request: Request, who: Who, asset: Name, ask: ApproveAssetAsk) -> dict[str, Any]:
    """Allows requests for an asset, as `replicator asset approve`; not by the user who created or changed it. Requires
    its `digest`: an unseen change is not approved. For admins."""
    require(who, "admin", "")
    if not ask.digest:
        raise UsageError(
            f"approving asset {asset} requires its digest", hint=f"send the digest that GET assets/{asset} returns"
        )

    def do() -> Any:
        return asset_approve(
            asset, digest=ask.digest, by=who.name, groups=who.groups, config=_config(request)
        ).to_dict()

    return _given(do_once(request, who, What("approve asset", asset, ask.reason), do))


@ingestion_actions.post("/ingestion/requests", status_code=202)
def request_landing(request: Request, who: Who, ask: LandingAsk) -> dict[str, Any]:
    """Requests the landing of a table, as `replicator ingest request`. For the asset's owner and producers."""
    _acts(who)
    if "." not in ask.table:  # tables of a schema may have to be listed by Spark
        raise UsageError(f"{ask.table!r} is not a table of a source", hint="write SOURCE:SCHEMA.TABLE")

    def do() -> Any:
        return ingest_request(**fields_of(ask), by=who.name, groups=who.groups, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("request landing", f"{ask.asset}/{ask.table}", ask.reason), do))


@ingestion_actions.post("/ingestion/requests/{job}:cancel")
def cancel_request(request: Request, who: Who, job: Number, ask: Ask) -> dict[str, Any]:
    """Cancels a job, as `replicator ingest cancel`. For its requester, and the asset's owner and producers."""
    _acts(who)

    def do() -> Any:
        return ingest_cancel(job, by=who.name, groups=who.groups, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("cancel landing", str(job), ask.reason), do))


def _acts(who: Who) -> None:
    """Raises HTTPException 401 without an identity, 403 for a user who may only read. The asset defines who may act on
    it."""
    if who is NOBODY:
        raise HTTPException(401, NEEDED)
    if all(role == "viewer" for role in (who.role, *(role for role, _ in who.also))):
        raise HTTPException(403, f"{who.name} has read-only access")


def _config(request: Request) -> Any:
    return serving_of(request).config


def _given(answer: Any) -> dict[str, Any]:
    """Returns a response, new or stored."""
    found: dict[str, Any] = answer
    return found


# ---- pages -----------------------------------------------------------------------------------------------------------


PATIENCE = 20.0
"""Seconds for a page."""

ASSETS, JOBS = 200, 50
"""Maximum assets and jobs of a page; the API and the command line have all."""

ENDED = ("done", "superseded", "cancelled", "expired", "published")
"""States in which jobs cannot be cancelled."""

Window = Literal["1d", "7d", "31d"]
Cursor = Annotated[str, Query(max_length=400)]


class IngestionPage(PageRoute):
    """A route whose pages query the ingestion store in a thread of its own, as queries do; its forms as actions do."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        acts = "POST" in (more.get("methods") or ())
        bounded = limited(
            SECONDS if acts else PATIENCE,
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
    """Shows an asset: its permissions, its approval, its schedules, its slots and its jobs."""
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
        "schedules": said(lambda: [each for each in serving_of(request).jobs() if each.asset == asset]),
        "queue": next((each for each in queues if each["asset"] == asset), None),
        "may_approve": acts and bool(mine) and _may_approve(mine, visitor),
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


def _may_approve(mine: Mapping[str, Any], visitor: Visitor) -> bool:
    own = is_same_person(mine["created_by"], visitor.name)
    return not mine["approved_by"] and (mine["single_user"] or not own)


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
