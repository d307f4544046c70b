"""Who asks, and whether it may: a proxy's user, or a bearer token. Without one a request may look, where the service is
on loopback."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request

from replicator.service.auth.api_tokens import NOBODY, Identity, Role, bearer_of, identify
from replicator.service.store import ServiceStore

NEEDED = "a token is needed: `replicator token create`"


def of_request(request: Request) -> Identity:
    """Raises HTTPException 401 for a token that is none, and without one where looking needs one; 403 for a proxy's
    user in no group that may anything."""
    state, sender = request.app.state, request.state.sender
    if sender.user:
        if sender.identity is None:
            raise HTTPException(403, f"{sender.user} is in no group of service.proxy.groups")
        return cast(Identity, sender.identity)
    given = bearer_of(request.headers.get("Authorization", ""))
    if given is None:
        if state.open_to_all:
            return NOBODY
        raise HTTPException(401, NEEDED)
    store: ServiceStore = state.store
    found = identify(store, given) if given else None
    if found is None:
        raise HTTPException(401, "this token is wrong, revoked or expired")
    sender.recognised()
    return found


Who = Annotated[Identity, Depends(of_request)]


def require(who: Identity, role: Role, policy: str) -> None:
    """Raises HTTPException 401 for nobody, 403 for somebody who may not. policy: "" for what belongs to none."""
    if who is NOBODY and role != "viewer":
        raise HTTPException(401, NEEDED)
    if not who.may(role, policy):
        raise HTTPException(403, f"{who.name} is not {role} of {policy or 'the service'}")
