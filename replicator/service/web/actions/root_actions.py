"""Actions on roots: holds, slots, legal holds, items of housekeeping, the undo of a removal."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.routing import APIRoute

from replicator.commands.audit import legal_hold_add, legal_hold_release
from replicator.commands.cm import cm_hold, cm_release, cm_slots_drop
from replicator.commands.housekeeping import housekeeping_cancel, housekeeping_rearm
from replicator.service.store import AdHocRun
from replicator.service.web.actions.bodies import (
    Consent,
    HoldAsk,
    Id,
    LegalHoldAsk,
    RemovalAsk,
    RootAsk,
    UndoAsk,
    consented,
    options_of,
)
from replicator.service.web.actions.recorded import (
    UNDO,
    KnownRoot,
    What,
    do_once,
    known_roots,
    queue_once,
    root_for,
    serving_of,
)
from replicator.service.web.queries.router import within
from replicator.service.web.serving import Who, require
from replicator.service.web.views import Ask, Asked

Number = Annotated[int, Path(ge=1, le=2**53)]

SECONDS = 90.0
"""Time limit of an action that calls a command: some wait a minute for a run in progress."""


class ActionRoute(APIRoute):
    """A route whose actions call commands within a time limit. A call that exceeds it continues; its record contains
    the outcome."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        bounded = within(SECONDS, _place_of, lambda request: request.app.state.deed_askers)
        super().__init__(path, bounded(endpoint), **more)


def _place_of(given: dict[str, Any]) -> str:
    """Returns the location of the root in the path or the body; "" for none."""
    name = given.get("root") or given["ask"].root
    found = known_roots(_config(given["request"])).get(name)
    return found.place if found else ""


root_actions = APIRouter(prefix="/api/v1", route_class=ActionRoute)


@root_actions.post("/cmroots/{root}/holds", status_code=201)
def add_root_hold(request: Request, who: Who, root: str, ask: HoldAsk) -> dict[str, Any]:
    """Holds a recovery point, as `replicator cm hold`."""
    found = root_for(request, who, "operator", root)

    def do() -> Any:
        return cm_hold(
            ask.name, cmroot=found.place, at=ask.at, reason=_signed(who, ask.reason), config=_config(request)
        ).to_dict()

    return _given(do_once(request, who, What("hold", f"{root}/{ask.name}", ask.reason), do))


@root_actions.post("/cmroots/{root}/holds/{name}:release")
def release_root_hold(request: Request, who: Who, root: str, name: Id, ask: Ask) -> dict[str, Any]:
    """Releases a hold, as `replicator cm release`; contents that only it requires are removed by the next expiry."""
    found = root_for(request, who, "operator", root)

    def do() -> Any:
        return cm_release(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("release hold", f"{root}/{name}", ask.reason), do))


@root_actions.post("/cmroots/{root}/slots/{name}:drop")
def drop_slot(request: Request, who: Who, root: str, name: Id, ask: Consent) -> dict[str, Any]:
    """Drops the slot of a consumer, as `replicator cm slots drop`; confirm: the slot. For admins."""
    found = root_for(request, who, "admin", root)
    consented(ask, name, f"the drop of slot {name}")

    def do() -> Any:
        return cm_slots_drop(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("drop slot", f"{root}/{name}", ask.reason), do))


@root_actions.post("/legal-holds", status_code=201)
def add_legal_hold(request: Request, who: Who, ask: LegalHoldAsk) -> dict[str, Any]:
    """Forbids all jobs to remove objects, as `replicator legal-hold add`."""
    return _legal_hold(request, who, ask, ask.name, "legal hold")


@root_actions.post("/removals:hold", status_code=201)
def hold_removal(request: Request, who: Who, ask: RemovalAsk) -> dict[str, Any]:
    """Adds a legal hold, with a generated name, on a pending removal."""
    return _legal_hold(request, who, ask, f"removal-{uuid.uuid4().hex[:12]}", "hold removal")


@root_actions.post("/legal-holds/{name}:release")
def release_legal_hold(request: Request, who: Who, name: Id, ask: RootAsk) -> dict[str, Any]:
    """Releases a legal hold, so that jobs may remove what it covered, as `replicator legal-hold release`. For
    admins."""
    found = root_for(request, who, "admin", ask.root)

    def do() -> Any:
        return legal_hold_release(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("release legal hold", f"{ask.root}/{name}", ask.reason), do))


@root_actions.post("/housekeeping/items/{item}:cancel")
def cancel_item(request: Request, who: Who, item: Number, ask: RootAsk) -> dict[str, Any]:
    """Cancels the removal of an item, as `replicator housekeeping cancel`. Waits up to a minute for a run in progress
    (409)."""
    found = _of_items(request, who, ask)

    def do() -> Any:
        reason = _signed(who, ask.reason)
        return housekeeping_cancel([item], cmroot=found.place, reason=reason, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("cancel item", f"{ask.root}/{item}", ask.reason), do))


@root_actions.post("/housekeeping/items/{item}:rearm")
def rearm_item(request: Request, who: Who, item: Number, ask: RootAsk) -> dict[str, Any]:
    """Allows another try of an item, as `replicator housekeeping rearm`. Waits up to a minute for a run in progress
    (409)."""
    found = _of_items(request, who, ask)

    def do() -> Any:
        return housekeeping_rearm([item], cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("rearm item", f"{ask.root}/{item}", ask.reason), do))


@root_actions.post("/audit/{run}:undo", status_code=202)
def undo_removal(request: Request, who: Who, run: Id, ask: UndoAsk) -> Asked:
    """Restores the files that a run removed, as `replicator audit undo`; confirm: the run."""
    found = root_for(request, who, "operator", ask.root)
    if not ask.dry_run:
        consented(ask, run, f"the undo of {run}")
    arguments = ("audit", "undo", f"--cmroot={found.place}", f"--run={run}", *options_of(ask))
    ad_hoc_run = AdHocRun(f"{UNDO}{ask.root}", arguments, _policy(found))
    return queue_once(request, who, What("undo", f"{ask.root}/{run}", ask.reason), ad_hoc_run)


def _legal_hold(request: Request, who: Who, ask: RemovalAsk, name: str, action: str) -> dict[str, Any]:
    found = root_for(request, who, "operator", ask.root)
    subject = f"{ask.root}/{ask.on if action == 'hold removal' else name}"

    def do() -> Any:
        return legal_hold_add(
            name,
            cmroot=found.place,
            pattern=ask.on,
            reason=_signed(who, ask.reason),
            until=ask.until or "",
            config=_config(request),
        ).to_dict()

    return _given(do_once(request, who, What(action, subject, ask.reason), do))


def _of_items(request: Request, who: Who, ask: RootAsk) -> KnownRoot:
    """Returns the root of an item; a store named in [housekeeping] has the items of all policies."""
    if _config(request).housekeeping.store:
        require(who, "operator", "")
    return root_for(request, who, "operator", ask.root)


def _policy(root: KnownRoot) -> str:
    """Returns the policy of the run, which must not run concurrently with another run of that policy."""
    return root.policies[0] if root.policies else ""


def _signed(who: Who, reason: str) -> str:
    """Appends the user's name to a reason: the holds and items themselves know this process only."""
    return f"{reason} ({who.name})".strip()


def _config(request: Request) -> Any:
    return serving_of(request).config


def _given(answer: Any) -> dict[str, Any]:
    """Returns a response, new or stored."""
    found: dict[str, Any] = answer
    return found
