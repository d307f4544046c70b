"""Actions on assets and requests of ingestion. The user is the token's name, or the proxy's user; permissions to
request are defined by the roles of the assets, not by policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request
from fastapi.routing import APIRoute

from replicator.commands.asset import asset_approve, asset_create
from replicator.commands.ingest import ingest_cancel, ingest_request
from replicator.errors import UsageError
from replicator.service.api_tokens import NOBODY
from replicator.service.web.actions import ApproveAssetAsk, AssetAsk, LandingAsk, What, do_once, fields_of, serving_of
from replicator.service.web.responses import Ask
from replicator.service.web.router import within
from replicator.service.web.serving import NEEDED, Who, require

Number = Annotated[int, Path(ge=1, le=2**53, description="A job's number.")]
Name = Annotated[str, Path(pattern=r"^[a-z0-9_]{1,64}$", description="An asset's name.")]

SECONDS = 30.0


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
