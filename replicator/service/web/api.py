"""`/api/v1`: jobs, runs, policies, the scheduler. Reads the store and the reports of commands; actions are records in
the store, which the scheduler processes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute

from replicator.errors import ObjectNotFound, UsageError
from replicator.service.children import LOG, answer_of
from replicator.service.jobs import Job
from replicator.service.run_history import RunFilter, RunState, ServiceRun
from replicator.service.store import ALL, ActionFilter, actions
from replicator.service.web.actions.recorded import What, do_once, queue_once, refuse_unseen, sees
from replicator.service.web.queries.of_policies import moment
from replicator.service.web.serving import Serving, Who, require
from replicator.service.web.views import (
    ActionList,
    ActionView,
    Ask,
    Asked,
    JobList,
    PolicyList,
    PolicyView,
    RunList,
    RunView,
    ServiceStatus,
)

# ---- known parameters ------------------------------------------------------------------------------------------------
# Unknown query parameters are refused: a misspelled filter must not return everything.


def refuse_unknown_parameters(request: Request) -> None:
    """Refuses unknown query parameters; a dependency of routers. Raises UsageError."""
    route = request.scope.get("route")
    known = list(_names(route.dependant)) if isinstance(route, APIRoute) else []
    for name, value in (*request.query_params.multi_items(), *request.path_params.items()):
        if "\0" in name or "\0" in str(value):
            raise UsageError("a parameter has a NUL character", hint="leave it out")
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            there = ", ".join(known) or "none"
            hint = (f"did you mean {near[0]}? " if near else "") + f"parameters: {there}"
            raise UsageError(f"there is no parameter {name[:100]!r} here", hint=hint)


def _names(dependant: Any) -> Iterator[str]:
    """Yields the parameters of an endpoint and of its dependencies."""
    for each in dependant.query_params:
        yield each.alias
    for each in dependant.dependencies:
        yield from _names(each)


# ---- api -------------------------------------------------------------------------------------------------------------


TAIL = 256 << 10
"""Bytes of a log's end that are shown."""

api = APIRouter(prefix="/api/v1", dependencies=[Depends(refuse_unknown_parameters)])


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


@api.get("/status")
def status(request: Request, who: Who) -> ServiceStatus:
    """Shows the state of the service."""
    return _serving(request).status()


@api.get("/policies")
def policies(request: Request, who: Who) -> PolicyList:
    """Lists all policies with their last measured lag."""
    serving = _serving(request)
    return PolicyList([each for each in serving.policies() if who.may("viewer", each.name)])


@api.get("/policies/{policy}")
def policy(request: Request, who: Who, policy: str) -> PolicyView:
    """Shows one policy."""
    require(who, "viewer", policy)
    return next((each for each in _serving(request).policies() if each.name == policy), None) or _missing(policy)


@api.get("/jobs")
def jobs(request: Request, who: Who) -> JobList:
    """Lists all jobs by name."""
    return JobList([each for each in _serving(request).jobs() if who.may("viewer", each.policy)])


@api.post("/jobs/{job}:run", status_code=202)
def run_job(request: Request, who: Who, job: str, ask: Ask) -> Asked:
    """Runs a job now, paused or not; its schedule is unchanged. If a run of the job has not ended, returns that run."""
    _, wanted = _wanted(request, who, job)
    return queue_once(request, who, What("run", job, ask.reason), wanted)


@api.post("/jobs/{job}:pause", status_code=204)
def pause_job(request: Request, who: Who, job: str, ask: Ask) -> None:
    """Stops scheduled runs of the job until `resume`, also across restarts; a run that is running continues."""
    serving, wanted = _wanted(request, who, job)
    _done(request, who, ("pause", job, ask.reason), lambda: serving.store.pause(wanted.name, who.name, ask.reason))


@api.post("/jobs/{job}:resume", status_code=204)
def resume_job(request: Request, who: Who, job: str, ask: Ask | None = None) -> None:
    """Resumes a job. A time that was missed since then is made up for once."""
    serving, wanted = _wanted(request, who, job)
    _done(request, who, ("resume", job, ask.reason if ask else ""), lambda: serving.store.resume(wanted.name))


@api.post("/scheduler:pause", status_code=204)
def pause_all(request: Request, who: Who, ask: Ask) -> None:
    """Stops scheduled runs of all jobs until `resume`."""
    require(who, "admin", "")
    store = _serving(request).store
    _done(request, who, ("pause", ALL, ask.reason), lambda: store.pause(ALL, who.name, ask.reason))


@api.post("/scheduler:resume", status_code=204)
def resume_all(request: Request, who: Who, ask: Ask | None = None) -> None:
    """Resumes all jobs, except those that were paused individually."""
    require(who, "admin", "")
    store = _serving(request).store
    _done(request, who, ("resume", ALL, ask.reason if ask else ""), lambda: store.resume(ALL))


@dataclass
class ActionFilters:
    by: Annotated[str, Query(alias="who", max_length=300)] = ""
    action: Annotated[str, Query(max_length=30)] = ""
    subject: Annotated[str, Query(max_length=4000)] = ""
    since: Annotated[str, Query(max_length=40)] = ""


@api.get("/actions")
def list_actions(
    request: Request,
    who: Who,
    filters: Annotated[ActionFilters, Depends()],
    cursor: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ActionList:
    """Lists actions over HTTP, newest first: who, from where, what, why. For admins."""
    require(who, "admin", "")
    store = _serving(request).store
    since = moment("since", filters.since, store.now)
    wanted = ActionFilter(filters.by, filters.action, filters.subject, since)
    found = actions(store, before=cursor, limit=limit + 1, wanted=wanted)
    following = found[limit - 1].id if len(found) > limit else None
    return ActionList([ActionView.of(each) for each in found[:limit]], following)


@dataclass
class RunFilters:
    job: str = ""
    policy: str = ""
    state: Annotated[list[RunState] | None, Query()] = None
    since: Annotated[str, Query(max_length=40)] = ""
    until: Annotated[str, Query(max_length=40)] = ""


@api.get("/runs")
def runs(
    request: Request,
    who: Who,
    filters: Annotated[RunFilters, Depends()],
    cursor: Annotated[str, Query(pattern=r"^(\d{13}-[0-9a-f]{12})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RunList:
    """Lists runs, newest first. cursor: `next` of the page before."""
    serving = _serving(request)
    since, until = (moment(name, getattr(filters, name), serving.store.now) for name in ("since", "until"))
    wanted = RunFilter((filters.job,) if filters.job else (), filters.policy, filters.state or (), since, until)
    found = serving.store.runs_where(wanted, before=cursor, limit=limit + 1)
    shown = [RunView.of(each) for each in found[:limit] if sees(serving.config, who, each)]
    return RunList(shown, found[limit - 1].id if len(found) > limit else None)


@api.get("/runs/{run}")
def run(request: Request, who: Who, run: str) -> RunView:
    """Shows one run."""
    return RunView.of(_run(request, who, run)[1])


@api.get("/runs/{run}/answer")
def answer(request: Request, who: Who, run: str) -> JSONResponse:
    """Returns the report of the run's command, as with `--json`; {} before its end."""
    directory, _ = _run(request, who, run)
    return JSONResponse(answer_of(directory))


@api.get("/runs/{run}/log", response_class=PlainTextResponse)
def log(request: Request, who: Who, run: str) -> str:
    """Returns the end of its log, at most 256 KiB; it is stored on the server that ran it."""
    directory, found = _run(request, who, run)
    try:
        with (directory / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        raise ObjectNotFound(
            f"run {run} has no log here", hint=f"it ran on {found.server}" if found.server else "it has not begun"
        ) from None


@api.post("/runs/{run}:cancel", status_code=202)
def cancel(request: Request, who: Who, run: str, ask: Ask | None = None) -> RunView:
    """Requests the end of a run: SIGTERM, and SIGKILL after `service.grace`. The next run completes what it has
    begun."""
    _, found = _run(request, who, run)
    require(who, "operator", found.policy)
    store = _serving(request).store
    _done(request, who, ("cancel", run, ask.reason if ask else ""), lambda: store.cancel(run, who.name) and None)
    return RunView.of(store.run(run))


def _done(request: Request, who: Who, what: tuple[str, str, str], do: Callable[[], Any]) -> Any:
    return do_once(request, who, What(*what), do)


def _wanted(request: Request, who: Who, job: str) -> tuple[Serving, Job]:
    serving = _serving(request)
    wanted = serving.scheduled.get(job)
    require(who, "operator", wanted.policy if wanted else "")
    return serving, wanted or _missing(job)


def _run(request: Request, who: Who, run: str) -> tuple[Path, ServiceRun]:
    serving = _serving(request)
    found = serving.store.run(run)
    refuse_unseen(serving.config, who, found)
    return serving.directory(found.id), found


def _missing(name: str) -> Any:
    raise HTTPException(404, f"nothing is called {name!r} here")
