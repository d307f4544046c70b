"""Pages to read: overview, policies, jobs, runs, actions. Each is what the API answers, for a person."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response

from replicator.commands.lag import history
from replicator.core.policy import KEYS, Policy
from replicator.errors import Error
from replicator.policies.memory import ShownHistory
from replicator.service.alerts.alert_store import open_alerts
from replicator.service.children import answer_of
from replicator.service.pages.chart import LagPoint, chart_of
from replicator.service.pages.needing import behind_text, needs
from replicator.service.pages.rendering import ASSETS, BYTES, render, seconds_of
from replicator.service.pages.visiting import PageRoute, Visiting
from replicator.service.series.series_store import FINE, lag_samples
from replicator.service.store import RunState
from replicator.service.web import api
from replicator.service.web.permission import require
from replicator.service.web.questions.time_limits import Askers, Late
from replicator.service.web.serving import Serving
from replicator.service.web.views import RunView

RUNS = 100
"""Of a policy's history that the chart shows: files of its root, which may be far away."""

PATIENCE = 5.0  # seconds for that history: the page shows the rest without it

AT_WORK = 20
"""Runs of the overview that are queued or at work."""

SAMPLES = 5_000
"""Of a day of a policy's lag: more than there are."""

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
    who, store = visitor.identity, _serving(request).store
    with store.together():
        status, jobs, alerts = api.status(request, who), api.jobs(request, who).items, open_alerts(store)
        at_work = [RunView.of(each) for each in store.open_runs() if who.may("viewer", each.policy)]
    policies = api.policies(request, who).items
    mine = {each.name for each in policies} | {each.name for each in jobs}
    alerts = [each for each in alerts if not who.policies or each.subject.split("/")[0] in mine]
    ill = needs(status, policies, jobs, alerts)
    shown = {
        "status": status,
        "needs": ill,
        "fresh": [each for each in policies if each.status == "none" or not each.measured],
        "policies": [(each, behind_text(each)) for each in policies],
        "jobs": {each.name: each for each in jobs},
        "of_policies": {each.policy: each for each in jobs if each.policy},
        "compared_of": _serving(request).watch.compared,
        "next_runs": sorted((each for each in jobs if each.next and not each.paused), key=lambda each: each.next or "")[
            :8
        ],
        "paused": [each for each in jobs if each.paused],
        "running": at_work[:AT_WORK],
    }
    return render(request, "overview.html", shown)


async def history_of(request: Request, visitor: Visiting, policy: str) -> tuple[ShownHistory | None, str]:
    """A policy's runs, or why they cannot be read: its root may hang."""
    require(visitor.identity, "viewer", policy)
    config = _serving(request).config
    if policy not in config.policies:
        return None, ""
    askers: Askers = request.app.state.askers
    try:
        return await askers.ask(policy, PATIENCE, lambda: history(policy, limit=RUNS, config=config)), ""
    except Late:
        return None, f"the root of its target did not answer within {PATIENCE:g} s"
    except Error as error:
        return None, error.message


History = Annotated[tuple[ShownHistory | None, str], Depends(history_of)]


@pages.get("/policies/{policy}")
def one_policy(request: Request, visitor: Visiting, policy: str, remembered: History) -> Response:
    """A policy's state, lag, runs and configuration."""
    view = api.policy(request, visitor.identity, policy)
    serving = _serving(request)
    measured = serving.watch.found.get(policy)
    runs, missing = remembered
    ends = [
        LagPoint(seconds_of(each.ended), each.lag_seconds, each.status in ("failed", "killed"))
        for each in (runs.runs if runs else [])
        if each.ended and each.lag_seconds is not None
    ]
    job = next((each for each in api.jobs(request, visitor.identity).items if each.policy == policy), None)
    alerts = [each for each in open_alerts(serving.store) if each.subject.split("/")[0] == policy]
    ill = needs(api.status(request, visitor.identity), [view], [job] if job else [], alerts)
    shown = {
        "policy": view,
        "causes": [cause for each in ill if each.subject == policy for cause in each.causes],
        "sentence": behind_text(view),
        "lag": measured.lag if measured else None,
        "chart": chart_of(_samples(serving, policy), ends, view.objective_seconds),
        "runs": runs.runs[:20] if runs else [],
        "missing": missing,
        "job": job,
        "keys": _keys(serving.config.policies[policy]),
        "file": serving.config.looked_for,
    }
    return render(request, "policy.html", shown)


def _samples(serving: Serving, policy: str) -> list[LagPoint]:
    """As it was measured over the last day."""
    since = serving.store.now() - FINE
    found = lag_samples(serving.store, policy, since=since, after=0.0, limit=SAMPLES)
    return [LagPoint(each.at, each.seconds) for each in found]


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
    runs = api.runs(request, visitor.identity, job=job, limit=20)
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
    found = api.runs(request, visitor.identity, job=job, state=[state] if state else None, cursor=cursor, limit=50)
    names = [each.name for each in api.jobs(request, visitor.identity).items]
    shown = {"runs": found.items, "next": found.next, "job": job, "state": state, "jobs": names, "states": STATES}
    return render(request, "runs.html", shown)


@pages.get("/runs/{run}")
def one_run(request: Request, visitor: Visiting, run: str) -> Response:
    """A run: what it was, how it went, its log and its answer."""
    found = api.run(request, visitor.identity, run)
    answer = answer_of(_serving(request).directory(found.id))
    log, missing = "", ""
    try:
        log = api.log(request, visitor.identity, run)
    except Error as error:
        missing = f"{error.message}: {error.hint}" if error.hint else error.message
    shown = {"run": found, "answer": answer, "steps": _steps(answer), "log": log, "missing": missing}
    return render(request, "run.html", shown)


@pages.get("/actions")
def all_actions(request: Request, visitor: Visiting, cursor: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
    """What people and programs did over HTTP."""
    require(visitor.identity, "admin", "")
    found = api.list_actions(request, visitor.identity, cursor=cursor, limit=50)
    return render(request, "actions.html", {"actions": found.items, "next": found.next})


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


def _steps(answer: Mapping[str, object]) -> dict[str, float]:
    """Seconds by step, of an answer that has them."""
    steps = answer.get("steps")
    found: dict[str, float] = {}
    for name, seconds in (steps if isinstance(steps, dict) else {}).items():
        with contextlib.suppress(TypeError, ValueError):
            found[str(name)] = float(seconds)
    return found


def _keys(policy: Policy) -> dict[str, Any]:
    """A policy's keys that are set. Metastores are their addresses, without what is needed to sign in there."""
    written = {key: getattr(policy, key) for key in KEYS if hasattr(policy, key)}
    found = {key: msgspec.to_builtins(value, str_keys=True, enc_hook=str) for key, value in written.items()}
    return {key: value for key, value in found.items() if value not in (None, [], {}, ())}
