"""What a server serves: the store, the scheduler's view of the configuration, the measured lag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request

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
