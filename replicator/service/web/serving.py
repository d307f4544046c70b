"""What a server serves: the store, the scheduler's view of the configuration, the measured lag."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

from anyio.to_thread import run_sync
from fastapi import Depends, HTTPException, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replicator.core.config import Config
from replicator.core.policy import Policy
from replicator.policies.lag import Lag
from replicator.service.auth.api_tokens import NOBODY, Identity, Role, bearer_of, identify
from replicator.service.jobs import Job
from replicator.service.lag_watch import LagWatch, MeasuredLag
from replicator.service.run_history import iso
from replicator.service.scheduler import Scheduler
from replicator.service.store import ALL, ServiceStore
from replicator.service.web.views import JobView, PolicyView, ServiceStatus

VERSION = version("replicator")


@dataclass(frozen=True)
class Serving:
    """One server. Several threads may use it. at_work: ids of the actions that it does now."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    at_work: set[int] = field(default_factory=set, compare=False)

    @property
    def config(self) -> Config:
        return self.scheduler.config

    @property
    def scheduled(self) -> Mapping[str, Job]:
        """Jobs by name."""
        return self.scheduler.jobs

    def directory(self, run: str) -> Path:
        """Of a run's output."""
        return self.scheduler.directory(run)

    def jobs(self) -> list[JobView]:
        """By name."""
        with self.store.together():
            states, last = self.store.jobs(), self.store.newest()
        return [JobView.of(job, states.get(name), last.get(name)) for name, job in sorted(self.scheduled.items())]

    def policies(self) -> list[PolicyView]:
        """By name."""
        return [_view(each, self.watch.found.get(name)) for name, each in sorted(self.config.policies.items())]

    def status(self) -> ServiceStatus:
        """Raises StoreUnreachable."""
        with self.store.together():
            leader, epoch, led = self.store.leader()
            states = [each.state for each in self.store.open_runs()]
            known = self.store.jobs()
        health = self.scheduler.health
        return ServiceStatus(
            here=self.scheduler.name,
            leader=leader,
            epoch=epoch,
            led=led,
            paused=ALL in known and known[ALL].paused,
            trouble=tuple(each for each in (health.trouble, health.configuration) if each),
            running=states.count("running"),
            queued=states.count("queued"),
            version=VERSION,
        )


def _trouble(lag: Lag) -> tuple[str, ...]:
    return (*(f"{side}: {why}" for side, why in lag.unreachable.items()), *lag.blocks)


def _view(policy: Policy, measured: MeasuredLag | None) -> PolicyView:
    lag = measured.lag if measured else None
    trouble = (measured.error,) if measured and measured.error else ()
    return PolicyView(
        name=policy.name,
        source=policy.source,
        target=policy.target,
        databases=policy.databases,
        schedule_seconds=policy.schedule.total_seconds(),
        status=lag.status if lag else "unknown",
        lag_events=lag.events if lag else None,
        lag_seconds=lag.seconds if lag else None,
        lag_bytes=lag.bytes if lag else None,
        objective_seconds=policy.max_lag.total_seconds() if policy.max_lag else None,
        headroom_seconds=lag.headroom_seconds if lag else None,
        measured=iso(measured.at) if measured else None,
        trouble=trouble + (_trouble(lag) if lag else ()),
    )


# ---- permission ------------------------------------------------------------------------------------------------------
# Who asks, and whether it may: a proxy's user, or a bearer token. Without one a request may look, where the service is
# on loopback.


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


# ---- shared answers --------------------------------------------------------------------------------------------------
# Answers of a moment: what many ask at once is made once, and given to all of them.
#
# For pages and lists that read the store; those about roots, and all that a session or a proxy's user sees, are made
# each time. An answer is at most a second old, and never older than what this server has written since.


MOMENT = 1.0  # seconds
LARGEST = 1 << 20
"""Bytes of an answer that is kept."""
MOST = 256
"""Answers that are kept."""

_SHARED = re.compile(r"/(|jobs|runs|policies/[^/]+|api/v1/(status|policies|jobs|runs)(/[^/:]+)?|api/v1/database/.+)")

Key = tuple[str, bytes, str, str]


@dataclass
class _Kept:
    """messages: of the answer, once it is there. changes: of the store, before it was made."""

    at: float
    changes: int
    made: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] = field(default_factory=list)


class SharedAnswers:
    """An ASGI application before another. changes: counts what this server has written. The event loop's thread uses
    it."""

    def __init__(self, app: ASGIApp, changes: Callable[[], int], seconds: float = MOMENT) -> None:
        self.app = app
        self._changes, self._seconds = changes, seconds
        self._kept: dict[Key, _Kept] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope) if self._seconds else None
        if key is None or not await _is_known(scope):
            await self.app(scope, receive, send)
            return
        kept = self._kept.get(key)
        if kept is None or kept.changes != self._changes() or time.monotonic() - kept.at > self._seconds:
            await self._make(key, scope, receive, send)
            return
        await kept.made.wait()
        if not kept.messages:  # nothing that may be kept came of it
            await self.app(scope, receive, send)
            return
        for each in kept.messages:
            await send({**each, "headers": list(each["headers"])} if "headers" in each else each)

    async def _make(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        self._forget()
        kept = self._kept[key] = _Kept(time.monotonic(), self._changes())
        said: list[Message] = []

        async def sent(message: Message) -> None:
            said.append({**message, "headers": list(message["headers"])} if "headers" in message else message)
            await send(message)

        try:
            await self.app(scope, receive, sent)
            size = sum(len(each.get("body", b"")) for each in said)
            if said and said[0].get("status") == 200 and size <= LARGEST and not _is_private(said[0]):
                kept.messages = said
        finally:
            kept.made.set()
            if not kept.messages and self._kept.get(key) is kept:
                del self._kept[key]

    def _forget(self) -> None:
        """What is too old, and when there are too many all that is made."""
        now = time.monotonic()
        for key, each in list(self._kept.items()):
            if each.made.is_set() and (now - each.at > self._seconds or len(self._kept) >= MOST):
                del self._kept[key]


def _key_of(scope: Scope) -> Key | None:
    """What makes an answer the same; None: it is somebody's own."""
    if scope["type"] != "http" or scope["method"] != "GET" or not _SHARED.fullmatch(scope["path"]):
        return None
    headers = Headers(scope=scope)
    if "cookie" in headers or scope["state"]["sender"].user:
        return None
    return scope["path"], scope["query_string"], headers.get("authorization", ""), headers.get("hx-request", "")


async def _is_known(scope: Scope) -> bool:
    """Whether a token still holds, which is asked each time. Without one the application says whether it needs one."""
    request = Request(scope)
    if "authorization" not in request.headers:
        return True
    try:
        await run_sync(of_request, request)
    except HTTPException:
        return False
    return True


def _is_private(start: Message) -> bool:
    return "set-cookie" in Headers(raw=start["headers"])
