"""Actions that are done once per Idempotency-Key, and recorded: who, from where, what, why.

The record of an action that is a run is written in the transaction that queues the run: a killed server leaves both or
neither. That of a call is written before it, and its response after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request

from replicator.core.config import Config
from replicator.errors import Error, Refused
from replicator.service.auth.api_tokens import Identity, Role
from replicator.service.jobs import Job
from replicator.service.run_history import ServiceRun
from replicator.service.store import (
    UNFINISHED,
    Action,
    AdHocRun,
    ServiceStore,
    action_of,
    is_open,
    open_action,
    recording,
    reopen_action,
    set_answer,
)
from replicator.service.web.queries.endpoint import normal_place
from replicator.service.web.serving import Serving, Who, require
from replicator.service.web.views import Asked

KEY = 200
"""Maximum characters of an Idempotency-Key."""

LONG = 120.0
"""Seconds after which an open action that this server is not doing counts as killed."""

AT_WORK = "a request with this Idempotency-Key is running; ask again later"


@dataclass(frozen=True)
class What:
    """An action's name, its subject and its reason."""

    action: str
    subject: str
    reason: str


def serving_of(request: Request) -> Serving:
    """Returns this server's `Serving`."""
    serving: Serving = request.app.state.serving
    return serving


def do_once(request: Request, who: Who, what: What, do: Callable[[], Any]) -> Any:
    """Does an action, whose response is JSON. A request with the same key receives the stored response, and nothing is
    done; an action that failed or was killed is done again, by one of several requests. Raises HTTPException 409 if the
    key belongs to another action, or the request is running; 422 if the key was used with another body."""
    serving = serving_of(request)
    store = serving.store
    wanted = _wanted(request, who, what)
    before = _before(store, wanted)
    if before is not None and not is_open(before):
        return before.answer
    id = _again(serving, before) if before is not None else _first(store, wanted)
    serving.at_work.add(id)
    try:
        answer = do()
    except Exception as error:
        set_answer(store, id, {"failed": error.message if isinstance(error, Error) else type(error).__name__})
        raise
    else:
        set_answer(store, id, answer)
    finally:
        serving.at_work.discard(id)
    return answer


def queue_once(request: Request, who: Who, what: What, queued: Job | AdHocRun) -> Asked:
    """Queues a run and records it in one transaction. Raises HTTPException as `do_once`, and as
    `ServiceStore.enqueue`."""
    store = serving_of(request).store
    wanted = _wanted(request, who, what)
    for last in (False, True):
        before = _before(store, wanted)
        if before is not None:
            return Asked(**before.answer)
        try:
            beside = recording(store, wanted)
            return Asked(*store.enqueue(queued, store.now(), by=who.name, reason=what.reason, beside=beside))
        except Error as error:  # also if the same request was recorded concurrently
            if last or isinstance(error, Refused):
                raise
    raise AssertionError("not reached")


def _first(store: ServiceStore, wanted: Action) -> int:
    try:
        return open_action(store, wanted)
    except Error:
        if wanted.key and action_of(store, wanted.who, wanted.key):  # the same request arrived twice at once
            raise HTTPException(409, AT_WORK) from None
        raise


def _again(serving: Serving, before: Action) -> int:
    young = before.answer == UNFINISHED and serving.store.now() - before.at < LONG
    if young or before.id in serving.at_work or not reopen_action(serving.store, before):
        raise HTTPException(409, AT_WORK)
    return before.id


def _wanted(request: Request, who: Who, what: What) -> Action:
    key = request.headers.get("Idempotency-Key") or None
    if key is not None and len(key) > KEY:
        raise HTTPException(400, f"an Idempotency-Key has at most {KEY} characters")
    address = request.client.host if request.client else ""
    body: str = request.state.body
    return Action(0, 0.0, who.name, address, what.action, what.subject, what.reason, key, None, body if key else "")


def _before(store: ServiceStore, wanted: Action) -> Action | None:
    found = action_of(store, wanted.who, wanted.key) if wanted.key else None
    if found is not None and (found.action, found.subject) != (wanted.action, wanted.subject):
        raise HTTPException(409, f"this Idempotency-Key was that of `{found.action} {found.subject}`")
    if found is not None and found.digest and found.digest != wanted.digest:
        raise HTTPException(422, "this Idempotency-Key came with another body before")
    return found


# ---- known roots -----------------------------------------------------------------------------------------------------
# Roots that may be named over HTTP: those of policies and of `[defaults]`; never by their paths.


DEFAULTS, TARGET = "defaults", ":target"
UNDO = "undo:"
"""Prefix of the root's name in the name of an ad-hoc run."""


@dataclass(frozen=True)
class KnownRoot:
    """A root by its name over HTTP. name: `P` for the root of a policy's source, `P:target` for that of its target,
    `defaults` for that of `[defaults]`. policies: all that use it, however they write its path."""

    name: str
    place: str
    policies: tuple[str, ...]


def known_roots(config: Config) -> dict[str, KnownRoot]:
    """Returns roots by name; a location that several policies use has several names. A policy called `defaults` has
    that name."""
    places = {DEFAULTS: normal_place(config.defaults.cmroot)} if config.defaults.cmroot else {}
    users: dict[str, list[str]] = {}
    for name, policy in config.policies.items():
        mine = {name: normal_place(policy.cmroot), name + TARGET: normal_place(policy.target_cmroot)}
        places |= mine
        for place in dict.fromkeys(mine.values()):
            users.setdefault(place, []).append(name)
    return {name: KnownRoot(name, place, tuple(users.get(place, ()))) for name, place in places.items()}


def sees(config: Config, who: Identity, run: ServiceRun) -> bool:
    """Returns True if the user may view a run."""
    return all(who.may("viewer", each) for each in _policies_of(config, run))


def refuse_unseen(config: Config, who: Identity, run: ServiceRun) -> None:
    """Raises as `require` if the user may not view a run."""
    for each in _policies_of(config, run):
        require(who, "viewer", each)


def _policies_of(config: Config, run: ServiceRun) -> tuple[str, ...]:
    """Returns the policies whose data a run may show: for an undo, all that use its root."""
    root = known_roots(config).get(run.job.removeprefix(UNDO)) if run.job.startswith(UNDO) else None
    return (run.policy, *root.policies) if root else (run.policy,)


def root_for(request: Request, who: Who, role: Role, name: str) -> KnownRoot:
    """Returns a root on which the user may act: the role is required for all policies that use it. Raises HTTPException
    404, and as `require`."""
    found = known_roots(serving_of(request).config).get(name)
    if found is None:
        require(who, role, name.removesuffix(TARGET))
        raise HTTPException(404, f"no root is called {name!r} here: write a policy's name, P{TARGET} or {DEFAULTS}")
    for policy in found.policies or ("",):
        require(who, role, policy)
    return found
