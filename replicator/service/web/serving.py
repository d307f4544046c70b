"""The state that a server serves, permissions, time limits of queries, and shared responses.

The state: the store, the scheduler's current configuration, the measured lag. Each query runs in a thread of its own
that is abandoned after its limit, so that a store or metastore that hangs blocks neither the server nor queries about
others; a long one runs in a process that is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from anyio.to_thread import run_sync
from fastapi import Depends, HTTPException, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replicator.core.config import Config
from replicator.core.policy import Policy
from replicator.policies.lag import Lag
from replicator.service.api_tokens import NOBODY, Identity, Role, bearer_of, identify
from replicator.service.jobs import Job
from replicator.service.measuring import LagWatch, MeasuredLag
from replicator.service.runs import Child, answer_of, iso
from replicator.service.scheduler import Scheduler
from replicator.service.store import ALL, ServiceStore
from replicator.service.web.responses import JobView, PolicyView, ServiceStatus

VERSION = version("replicator")


@dataclass(frozen=True)
class Serving:
    """The state of one server. Several threads may use it. at_work: ids of the actions that it is doing. sums: totals
    by policy, each with what it is valid for."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    at_work: set[int] = field(default_factory=set, compare=False)
    sums: dict[str, tuple[object, object]] = field(default_factory=dict, compare=False)

    @property
    def config(self) -> Config:
        return self.scheduler.config

    @property
    def scheduled(self) -> Mapping[str, Job]:
        """Jobs by name."""
        return self.scheduler.jobs

    def directory(self, run: str) -> Path:
        """Returns the directory of a run's output."""
        return self.scheduler.directory(run)

    def jobs(self) -> list[JobView]:
        """Returns jobs by name."""
        with self.store.together():
            states, last = self.store.jobs(), self.store.newest()
        return [JobView.of(job, states.get(name), last.get(name)) for name, job in sorted(self.scheduled.items())]

    def policies(self) -> list[PolicyView]:
        """Returns policies by name."""
        return [_view(each, self.watch.found.get(name)) for name, each in sorted(self.config.policies.items())]

    def version(self) -> str:
        """Returns a text that changes when a run is queued, begins or ends, the status of a policy changes, or this
        server writes: open pages then load their contents again. Raises StoreUnreachable."""
        runs = [(each.id, each.state) for each in self.store.open_runs()]
        policies = [(each.name, each.status, each.trouble) for each in self.policies()]
        stale = sorted(name for name, each in self.watch.found.items() if each.stale)
        health = self.scheduler.health
        here = (health.epoch, health.trouble, health.damage, health.configuration)
        return hashlib.sha256(repr((runs, policies, stale, here, self.store.changes)).encode()).hexdigest()[:16]

    def status(self) -> ServiceStatus:
        """Returns the state of the service. Raises StoreUnreachable."""
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
            trouble=tuple(each for each in (health.trouble, health.damage, health.configuration) if each),
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
        lag_seconds_bound=lag.seconds_bound if lag else None,
        covered_until=iso(lag.covered_until) if lag else None,
        lag_bytes=lag.bytes if lag else None,
        objective_seconds=policy.max_lag.total_seconds() if policy.max_lag else None,
        headroom_seconds=lag.headroom_seconds if lag else None,
        measured=iso(measured.at) if measured else None,
        trouble=trouble + (_trouble(lag) if lag else ()),
    )


# ---- permission ------------------------------------------------------------------------------------------------------
# The identity and permissions of a client: a proxy's user, or a bearer token. Without one a request may read if the
# service is on loopback.


NEEDED = "a token is required: `replicator token create`"


def of_request(request: Request) -> Identity:
    """Returns the identity of a request. Raises HTTPException 401 for an invalid token, and without one if reading
    requires it; 403 for a proxy's user in no group with permissions."""
    state, sender = request.app.state, request.state.sender
    if sender.user:
        if sender.identity is None:
            raise HTTPException(403, f"{sender.user} is not a member of any group in service.proxy.groups")
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
    """Raises HTTPException 401 without an identity, 403 without the role. policy: "" for objects that belong to no
    policy."""
    if who is NOBODY and role != "viewer":
        raise HTTPException(401, NEEDED)
    if not who.may(role, policy):
        raise HTTPException(403, f"{who.name} does not have the role {role} for {policy or 'the service'}")


# ---- shared answers --------------------------------------------------------------------------------------------------
# Shared responses: what many clients request at once is computed once, and sent to all of them.
#
# For pages and lists that read the store; those about roots, and all that a session or a proxy's user sees, are
# computed each time. A response is at most a second old, and never older than the last write of this server.


MOMENT = 1.0  # seconds
LARGEST = 1 << 20
"""Maximum bytes of a stored response."""
MOST = 256
"""Maximum stored responses."""

_SHARED = re.compile(r"/(|jobs|runs|policies(/[^/]+)?|api/v1/(status|policies|jobs|runs)(/[^/:]+)?|api/v1/database/.+)")

Key = tuple[str, bytes, str, str]


@dataclass
class _Kept:
    """A stored response. messages: of the response, once available. changes: of the store, before it was computed."""

    at: float
    changes: int
    made: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] = field(default_factory=list)


class SharedAnswers:
    """An ASGI middleware. changes: returns the count of this server's writes. Used by the event loop's thread."""

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
        if not kept.messages:  # the response may not be shared
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
        """Drops responses that are too old, and if there are too many, all that are complete."""
        now = time.monotonic()
        for key, each in list(self._kept.items()):
            if each.made.is_set() and (now - each.at > self._seconds or len(self._kept) >= MOST):
                del self._kept[key]


def _key_of(scope: Scope) -> Key | None:
    """Returns the key of equal responses; None: the response is specific to the user."""
    if scope["type"] != "http" or scope["method"] != "GET" or not _SHARED.fullmatch(scope["path"]):
        return None
    headers = Headers(scope=scope)
    if "cookie" in headers or scope["state"]["sender"].user:
        return None
    return scope["path"], scope["query_string"], headers.get("authorization", ""), headers.get("hx-request", "")


async def _is_known(scope: Scope) -> bool:
    """Returns True if a token is valid, which is checked each time. Without one the application checks whether it
    requires one."""
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


# ---- time limits of queries ------------------------------------------------------------------------------------------


T = TypeVar("T")

log = logging.getLogger(__name__)

AT_ONCE, OF_ONE = 24, 6
"""Maximum concurrent queries; of these, about one root or policy."""

PROCESSES = 2
"""Maximum concurrent queries in processes."""

GRACE = 2.0  # seconds from SIGTERM to SIGKILL
LOOK = 0.02  # seconds between polls of a process


class Late(Exception):
    """An exceeded time limit. begun: False: other queries were running all the time."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__(begun)
        self.begun = begun


class Askers:
    """Threads for queries. Used by one event loop."""

    def __init__(self) -> None:
        self._all, self._processes = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(PROCESSES)
        self._of: dict[tuple[str, bool], asyncio.Semaphore] = {}

    async def ask(self, about: str, seconds: float, do: Callable[[], T], *, process: bool = False) -> T:
        """Returns or raises what `do` returns or raises. about: a root, a policy or "", about which the number of
        concurrent queries is limited. process: it runs a command. Raises Late; then `do` continues, and occupies its
        capacity until it ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        mine = self._of.setdefault((about, process), asyncio.Semaphore(OF_ONE))
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout_at(deadline):
                for each in (mine, self._processes if process else self._all):
                    await each.acquire()
                    taken.append(each)
        except TimeoutError:
            _release(taken)
            raise Late(begun=False) from None
        except asyncio.CancelledError:
            _release(taken)
            raise
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: Callable[[], T]) -> None:
            _release(taken)
            if not future.done():
                try:
                    future.set_result(result())
                except BaseException as error:
                    future.set_exception(error)

        def work() -> None:
            result = _outcome(do)
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(finish, result)

        try:
            threading.Thread(target=work, name=f"asks {about}", daemon=True).start()
        except RuntimeError as error:  # too many threads or processes exist
            _release(taken)
            log.warning("%s is not queried: %s", about, error)
            raise Late(begun=False) from error
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise Late(begun=True) from None


def _release(taken: list[asyncio.Semaphore]) -> None:
    for each in taken:
        each.release()


def _outcome(do: Callable[[], T]) -> Callable[[], T]:
    """Calls `do`. Returns a function that returns its result or raises its error."""
    try:
        found = do()
    except BaseException as error:
        said = error

        def again() -> T:
            raise said

        return again
    return lambda: found


def run_command(arguments: Sequence[str], seconds: float) -> tuple[int | None, Any]:
    """Runs a command line in a process of its own. Returns its exit code and its `--json` report. Raises Late after
    ending the process."""
    deadline, late = time.monotonic() + seconds, False
    with tempfile.TemporaryDirectory(prefix="replicator-query-") as made:
        child = Child("a query", [*arguments, "--json"], Path(made), GRACE)
        while (ended := child.ended()) is None:
            if time.monotonic() > deadline:
                late = True
                child.stop("it took too long")
            time.sleep(LOOK)
        if late:
            raise Late(begun=True)
        return ended.exit_code, answer_of(Path(made))
