"""Roots that may be named over HTTP: those of policies and of `[defaults]`; never by their places."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import HTTPException, Request

from replicator.core.config import Config
from replicator.service.auth.api_tokens import Identity, Role
from replicator.service.service_run import ServiceRun
from replicator.service.web.actions.recorded import serving_of
from replicator.service.web.permission import Who, require
from replicator.service.web.queries.named_roots import normal_place

DEFAULTS, TARGET = "defaults", ":target"
UNDO = "undo:"
"""Before the root's name, the name of an ad-hoc run."""


@dataclass(frozen=True)
class KnownRoot:
    """name: `P` for the root of a policy's source, `P:target` for that of its target, `defaults` for that of
    `[defaults]`. policies: all that use it, however they spell it."""

    name: str
    place: str
    policies: tuple[str, ...]


def known_roots(config: Config) -> dict[str, KnownRoot]:
    """By name; a place that several policies use has several. A policy called `defaults` has that name."""
    places = {DEFAULTS: normal_place(config.defaults.cmroot)} if config.defaults.cmroot else {}
    users: dict[str, list[str]] = {}
    for name, policy in config.policies.items():
        mine = {name: normal_place(policy.cmroot), name + TARGET: normal_place(policy.target_cmroot)}
        places |= mine
        for place in dict.fromkeys(mine.values()):
            users.setdefault(place, []).append(name)
    return {name: KnownRoot(name, place, tuple(users.get(place, ()))) for name, place in places.items()}


def sees(config: Config, who: Identity, run: ServiceRun) -> bool:
    """Whether somebody may look at a run."""
    return all(who.may("viewer", each) for each in _policies_of(config, run))


def refuse_unseen(config: Config, who: Identity, run: ServiceRun) -> None:
    """Raises as `require` where somebody may not."""
    for each in _policies_of(config, run):
        require(who, "viewer", each)


def _policies_of(config: Config, run: ServiceRun) -> tuple[str, ...]:
    """Those whose data it may show: of an undo all that use its root."""
    root = known_roots(config).get(run.job.removeprefix(UNDO)) if run.job.startswith(UNDO) else None
    return (run.policy, *root.policies) if root else (run.policy,)


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
