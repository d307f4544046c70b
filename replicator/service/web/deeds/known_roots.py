"""Roots that may be named over HTTP: those of policies and of `[defaults]`; never by their places."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import HTTPException, Request

from replicator.core.config import Config
from replicator.service.api_tokens import Role
from replicator.service.web.deeds.recorded import serving_of
from replicator.service.web.permission import Who, require

DEFAULTS, TARGET = "defaults", ":target"


@dataclass(frozen=True)
class KnownRoot:
    """name: `P` for the root of a policy's source, `P:target` for that of its target, `defaults` for that of
    `[defaults]`. policies: all that use it."""

    name: str
    place: str
    policies: tuple[str, ...]


def known_roots(config: Config) -> dict[str, KnownRoot]:
    """By name; a place that several policies use has several. A policy called `defaults` has that name."""
    places: dict[str, str] = {DEFAULTS: config.defaults.cmroot} if config.defaults.cmroot else {}
    for name, policy in config.policies.items():
        places |= {name: policy.cmroot, name + TARGET: policy.target_cmroot}
    users: dict[str, list[str]] = {}
    for name, policy in config.policies.items():
        for place in dict.fromkeys((policy.cmroot, policy.target_cmroot)):
            users.setdefault(place, []).append(name)
    return {name: KnownRoot(name, place, tuple(users.get(place, ()))) for name, place in places.items()}


def root_for(request: Request, who: Who, role: Role, name: str) -> KnownRoot:
    """A root that somebody may do something with: with all policies that use it. Raises HTTPException 404, and as
    `require`."""
    found = known_roots(serving_of(request).config).get(name)
    if found is None:
        require(who, role, name.removesuffix(TARGET))
        raise HTTPException(404, f"no root is called {name!r} here: write a policy's name, P{TARGET} or {DEFAULTS}")
    for policy in found.policies or ("",):
        require(who, role, policy)
    return found
