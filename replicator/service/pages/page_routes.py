"""Pages to read: overview, jobs, runs, actions. Each is what the API answers, for a person."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from replicator.errors import Error
from replicator.service.alerts.alert_store import open_alerts
from replicator.service.children import answer_of
from replicator.service.pages.needing import behind_text, needs
from replicator.service.pages.policy_routes import beside_of
from replicator.service.pages.rendering import ASSETS, BYTES, render
from replicator.service.pages.run_progress import about_of, figures_of, steps_of, tasks_of
from replicator.service.pages.visiting import PageRoute, Visiting
from replicator.service.service_run import RunState
from replicator.service.web import api
from replicator.service.web.actions.known_roots import sees
from replicator.service.web.permission import require
from replicator.service.web.serving import Serving
from replicator.service.web.views import RunView

AT_WORK = 20
"""Runs of the overview that are queued or at work."""

STATES = ("queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost")

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@pages.get("/assets/{name}")
def asset(name: str) -> Response:
    """A file of the pages; its address changes with it."""
    if name not in ASSETS:
        raise HTTPException(404, "there is no such file")
    return Response(
        BYTES[name], media_type=ASSETS[name], headers={"Cache-Control": "public, max-age=31536000, immutable"}
    )


@pages.get("/")
def overview(request: Request, visitor: Visiting) -> Response:
    """Is everything well; if not, what, since when, and what now; what comes next."""
    who, serving = visitor.identity, _serving(request)
    store, policies = serving.store, api.policies(request, who).items
    with store.together():
        status, jobs, alerts = api.status(request, who), api.jobs(request, who).items, open_alerts(store)
        at_work = [RunView.of(each) for each in store.open_runs() if sees(serving.config, who, each)]
        beside = beside_of(serving, policies, jobs, whole=who.may("viewer"))
    mine = {each.name for each in policies} | {each.name for each in jobs}
    alerts = [each for each in alerts if who.may("viewer") or each.subject.split("/")[0] in mine]
    ill = needs(status, policies, jobs, alerts, beside)
    shown = {
        "status": status,
        "needs": ill,
        "fresh": [each for each in policies if each.status == "none" or not each.measured],
        "policies": [(each, behind_text(each)) for each in policies],
        "jobs": {each.name: each for each in jobs},
        "of_policies": {each.policy: each for each in jobs if each.syncs},
        "compared_of": {name: each for name, each in serving.watch.compared.items() if who.may("viewer", name)},
        "differences": beside.differences,
        "next_runs": sorted((each for each in jobs if each.next and not each.paused), key=lambda each: each.next or "")[
            :8
        ],
        "paused": [each for each in jobs if each.paused],
        "running": at_work[:AT_WORK],
    }
    return render(request, "overview.html", shown)


@pages.get("/jobs")
def all_jobs(request: Request, visitor: Visiting) -> Response:
    """Jobs with their schedules."""
    shown = {"jobs": api.jobs(request, visitor.identity).items, "status": api.status(request, visitor.identity)}
    return render(request, "jobs.html", shown)


@pages.get("/jobs/{job:path}")
def one_job(request: Request, visitor: Visiting, job: str) -> Response:
    """A job and its last runs."""
    found = next((each for each in api.jobs(request, visitor.identity).items if each.name == job), None)
    if found is None:
        raise HTTPException(404, f"there is no job {job!r}")
    runs = api.runs(request, visitor.identity, api.RunFilters(job=job), limit=20)
    return render(request, "job.html", {"job": found, "runs": runs.items})


@pages.get("/runs")
def all_runs(
    request: Request,
    visitor: Visiting,
    job: str = "",
    state: RunState | Literal[""] = "",
    cursor: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """Runs, newest first."""
    filters = api.RunFilters(job=job, state=[state] if state else None)
    found = api.runs(request, visitor.identity, filters, cursor=cursor, limit=50)
    names = [each.name for each in api.jobs(request, visitor.identity).items]
    shown = {"runs": found.items, "next": found.next, "job": job, "state": state, "jobs": names, "states": STATES}
    return render(request, "runs.html", shown)


@pages.get("/runs/{run}")
def one_run(request: Request, visitor: Visiting, run: str) -> Response:
    """A run: what it was, how it went, its log and its answer."""
    found = api.run(request, visitor.identity, run)
    directory = _serving(request).directory(found.id)
    answer, log, missing = answer_of(directory), "", ""
    try:
        log = api.log(request, visitor.identity, run)
    except Error as error:
        missing = f"{error.message}: {error.hint}" if error.hint else error.message
    shown = {
        "run": found,
        "answer": answer,
        "tasks": tasks_of(directory, time.time()) if found.state == "running" else [],
        "steps": steps_of(answer),
        "figures": figures_of(answer),
        "about": about_of(answer),
        "log": log,
        "missing": missing,
    }
    return render(request, "run.html", shown)


@pages.get("/actions")
def all_actions(request: Request, visitor: Visiting, cursor: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
    """What people and programs did over HTTP."""
    require(visitor.identity, "admin", "")
    found = api.list_actions(request, visitor.identity, api.ActionFilters(), cursor=cursor, limit=50)
    return render(request, "actions.html", {"actions": found.items, "next": found.next})


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving
