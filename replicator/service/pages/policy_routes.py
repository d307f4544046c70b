"""Pages about policies: one policy with what to do about it, its forms, recovery points, role changes, results of
checks, and plans; and forms about jobs and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup

from cmroot.root import open_existing
from replicator.captures.dumps.table_moments import TableMoment
from replicator.commands.policies import history
from replicator.core.policy import KEYS, Policy
from replicator.errors import Error
from replicator.policies.lag import DatabaseLag, Lag
from replicator.policies.memory import Memory, RoleChange, ShownHistory
from replicator.service.alerts import open_alerts
from replicator.service.pages.attention import Context, attention_items, behind_text, differences_of
from replicator.service.pages.chart import NARROW, POINTS, RANGES, WIDE, LagPoint, Range, chart_of
from replicator.service.pages.rendering import Acting, Fields, PageRoute, Visiting, render, seconds_of
from replicator.service.pages.runbook import Runbook, filled, runbook_html, runbook_names, values_of
from replicator.service.series import lag_peaks
from replicator.service.web import api
from replicator.service.web.actions import ApplyAsk, PlanAsk, body_of
from replicator.service.web.endpoint import Asking
from replicator.service.web.moment_queries import PointTables, last_moments, point_tables
from replicator.service.web.policy_actions import (
    PLANNING,
    POLICY_ACTIONS,
    Does,
    apply_plan,
    approve_plan,
    list_plans,
    queue_action,
    refuse_plan,
    show_plan,
)
from replicator.service.web.policy_queries import CheckView, RestorePoints, checks, has_root, restore_points
from replicator.service.web.responses import Ask, JobView, PolicyView, RunView
from replicator.service.web.serving import Askers, Late, Serving, require

T = TypeVar("T")

RUNS = 100
"""Runs of a policy's history that the chart shows: files of its root, which may be remote."""

PATIENCE = 5.0
"""Seconds to read data of a root: the page shows the rest without it."""

CHANGES = 500
"""Maximum changes of a plan on a page; the filter finds the others."""

TABLES = 20  # tables on the page of a policy
MOMENTS = 200
"""Maximum recovery points of a page; the API has all."""

LISTED = frozenset({"db", "table"})
"""Fields of forms with several names, separated by commas or blanks."""

FORMS = frozenset({"verify", "drill", "repair"})
"""Actions of the API that are forms here."""

of_policies = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class Remembered:
    """The state of a policy that is stored in its target's root, or why it is not known. unfinished: a role change that
    has not ended."""

    error: str = ""
    runs: ShownHistory | None = None
    unfinished: RoleChange | None = None
    role_changes: list[RoleChange] = field(default_factory=list)


def serving_of(request: Request) -> Serving:
    """Returns this server's `Serving`."""
    serving: Serving = request.app.state.serving
    return serving


async def asked(request: Request, about: str, do: Callable[[], T]) -> T | str:
    """Reads data from a root. Returns it, or why it cannot be read: the root may hang."""
    askers: Askers = request.app.state.askers
    try:
        return await askers.ask(about, PATIENCE, do)
    except Late:
        return f"its root did not answer within {PATIENCE:g} s"
    except Error as error:
        return error.message


async def remembered_of(request: Request, visitor: Visiting, policy: str) -> Remembered:
    """Returns the runs and role changes of one policy."""
    require(visitor.identity, "viewer", policy)
    found = serving_of(request).config.policies.get(policy)
    if found is None:
        return Remembered()
    config = serving_of(request).config

    def read() -> Remembered:
        runs, memory = history(policy, limit=RUNS, config=config), memory_of(found)
        return Remembered(runs=runs, unfinished=memory.unfinished_role_change() if memory else None)

    said = await asked(request, policy, read)
    return Remembered(said) if isinstance(said, str) else said


async def all_role_changes(request: Request, visitor: Visiting) -> dict[str, Remembered]:
    """Returns the role changes of all policies that the user may view, by name."""

    def read(policy: Policy) -> Remembered:
        memory = memory_of(policy)
        if memory is None:
            return Remembered()
        return Remembered(unfinished=memory.unfinished_role_change(), role_changes=memory.role_changes())

    mine = [
        each
        for name, each in sorted(serving_of(request).config.policies.items())
        if visitor.identity.may("viewer", name)
    ]
    said = await asyncio.gather(*(asked(request, each.name, lambda each=each: read(each)) for each in mine))  # type: ignore[misc]
    return {
        each.name: Remembered(found) if isinstance(found, str) else found
        for each, found in zip(mine, said, strict=True)
    }


async def points_of(request: Request, visitor: Visiting, policy: str) -> RestorePoints | str:
    """Returns the recovery points of a policy's primary."""
    view = api.policy(request, visitor.identity, policy)  # raises if it is unknown, or may not be viewed
    serving = serving_of(request)
    asking = Asking(serving, visitor.identity, {}, serving.config.policies[view.name])
    return await asked(request, policy, lambda: restore_points(asking))


async def tables_at(request: Request, visitor: Visiting, policy: str, at: str = "") -> PointTables | str | None:
    """Returns the states of a policy's tables at a recovery point, or why they cannot be read; None if none is asked
    for."""
    view = api.policy(request, visitor.identity, policy)
    serving = serving_of(request)
    given = serving.config.policies[view.name]
    asking = Asking(serving, visitor.identity, {"at": at}, given, seconds=PATIENCE)
    return await asked(request, policy, lambda: point_tables(asking)) if at else None


async def moments_of(request: Request, visitor: Visiting, policy: str) -> list[TableMoment] | str:
    """Returns the states of the first tables of a policy as of its last capture, or why they cannot be read."""
    require(visitor.identity, "viewer", policy)
    if policy not in serving_of(request).config.policies:
        return []
    return await asked(request, policy, lambda: last_moments(serving_of(request), policy, TABLES + 1))


@of_policies.get("/policies/{policy}")
def one_policy(
    request: Request,
    visitor: Visiting,
    policy: str,
    remembered: Annotated[Remembered, Depends(remembered_of)],
    tables: Annotated[list[TableMoment] | str, Depends(moments_of)],
    range: Range = "1d",
) -> Response:
    """Shows a policy's state, what to do about it, its lag, runs and configuration."""
    view = api.policy(request, visitor.identity, policy)
    serving = serving_of(request)
    lag = lags_of(serving).get(policy)
    runs = remembered.runs.runs if remembered.runs else []
    ends = [
        LagPoint(seconds_of(each.ended), each.lag_seconds_bound, each.status in ("failed", "killed"), each.status)
        for each in runs
        if each.ended
    ]
    jobs = [each for each in api.jobs(request, visitor.identity).items if each.policy == policy]
    context = context_of(serving, [view], jobs)
    alerts = [each for each in open_alerts(serving.store) if each.subject.split("/")[0] == policy]
    ill = attention_items(api.status(request, visitor.identity), [view], jobs, alerts, context)
    mine = [each for each in ill if each.subject]
    kinds = list(dict.fromkeys(kind for each in mine for kind in each.runbooks))
    samples = samples_of(serving, policy, RANGES[range])
    shown = {
        "policy": view,
        "needs": mine,
        "runbooks": [book for kind in kinds if (book := runbook_of(serving, policy, kind, remembered.unfinished))],
        "sentence": behind_text(view),
        "lag": lag,
        "differs": context.differences.get(policy),
        "charts": [chart_of(samples, ends, view.objective_seconds, each, RANGES[range]) for each in (WIDE, NARROW)],
        "ranges": list(RANGES),
        "range": range,
        "runs": runs[:20],
        "missing": remembered.error,
        "tables": [] if isinstance(tables, str) else tables[:TABLES],
        "more_tables": len(tables) > TABLES,
        "job": next((each for each in jobs if each.syncs), None),
        "keys": _keys(serving.config.policies[policy]),
        "file": serving.config.looked_for,
    }
    return render(request, "policy.html", shown)


@of_policies.post("/policies/{policy}/{action}")
def act(request: Request, visitor: Acting, fields: Fields, policy: str, action: str) -> Response:
    """Queues the API's action of this name, and redirects to its run."""
    found = next((each for each in POLICY_ACTIONS if each.name == action and action in FORMS), None)
    if found is None:
        raise HTTPException(404, f"no form exists for {action!r}")
    given: dict[str, object] = {name: value for name, value in fields.items() if value.strip() and name != "csrf"}
    for name in LISTED & set(given):
        names = str(given[name]).replace(",", " ").split()
        given[name] = names[0] if (action, name) == ("repair", "db") and len(names) == 1 else names
    asked_run = queue_action(found, request, visitor.identity, policy, body_of(found.body, given))
    return RedirectResponse(f"/runs/{asked_run.run}", 303)


@of_policies.get("/policies/{policy}/restore-points")
def moments(
    request: Request,
    visitor: Visiting,
    policy: str,
    found: Annotated[RestorePoints | str, Depends(points_of)],
    there: Annotated[PointTables | str | None, Depends(tables_at)],
) -> Response:
    """Shows recovery points, newest first, each with its command; and the states of tables at one of them."""
    error = found if isinstance(found, str) else ""
    points = [] if isinstance(found, str) else found.points
    serving = serving_of(request)
    values = values_of(serving.config.policies[policy], "", lags_of(serving).get(policy))
    shown = {
        "policy": policy,
        "error": error,
        "found": None if error else found,
        "points": points[:MOMENTS],
        "more": len(points) > MOMENTS,
        "there": None if isinstance(there, str) else there,
        "unknown": there if isinstance(there, str) else "",
        "shown": MOMENTS,
        "db": values["db"],
    }
    return render(request, "restore_points.html", shown)


@of_policies.get("/restore-points")
def choose_policy(request: Request, visitor: Visiting) -> Response:
    """Shows the policies, each with its recovery points; of only one, redirects there."""
    names = [each.name for each in api.policies(request, visitor.identity).items]
    if len(names) == 1 and request.query_params.get("format") != "json":
        return RedirectResponse(f"/policies/{quote(names[0])}/restore-points", 303)
    return render(request, "restore_points_of.html", {"policies": names})


@of_policies.get("/turns")
def role_changes(
    request: Request, visitor: Visiting, remembered: Annotated[dict[str, Remembered], Depends(all_role_changes)]
) -> Response:
    """Shows which side is primary, the role changes that have not ended, and those that have."""
    serving = serving_of(request)
    lags = lags_of(serving)
    checked = {each.policy: each for each in checks(Asking(serving, visitor.identity, {})).checks if each.at}
    views = {each.name: each for each in api.policies(request, visitor.identity).items}
    shown = [
        PolicyRoleChanges(
            name,
            behind_text(views[name]),
            checked.get(name),
            lags[name].databases if name in lags else [],
            found,
            runbook_of(serving, name, found.unfinished.verb, found.unfinished) if found.unfinished else None,
        )
        for name, found in remembered.items()
    ]
    return render(request, "role_changes.html", {"policies": shown})


@of_policies.get("/checks")
def all_checks(request: Request, visitor: Visiting) -> Response:
    """Shows the results of the newest check of each policy, the most severe first."""
    found = checks(Asking(serving_of(request), visitor.identity, {}))
    return render(request, "checks.html", {"checks": found.checks, "without": found.without})


@of_policies.get("/runbooks/{name}")
def runbook_page(request: Request, visitor: Visiting, name: str) -> Response:
    """Shows a page of docs/runbooks, which the wheel contains."""
    if name not in runbook_names():
        raise HTTPException(404, f"no runbook {name}")
    return render(request, "runbook.html", {"name": name, "text": Markup(runbook_html(name))})


@dataclass(frozen=True)
class PolicyRoleChanges:
    """The roles of a policy. behind: how far its target is. checked: its newest check. databases: with the roles of
    both sides, as last measured. runbook: how to resume an unfinished role change."""

    policy: str
    behind: str
    checked: CheckView | None
    databases: list[DatabaseLag]
    remembered: Remembered
    runbook: Runbook | None


def context_of(
    serving: Serving, policies: Sequence[PolicyView], jobs: Sequence[JobView], *, whole: bool = False
) -> Context:
    """Returns additional state of policies and jobs. whole: also of ingestion."""
    watch = serving.watch
    unsaid = [each.name for each in jobs if each.last and each.last.state in ("queued", "running", "cancelled")]
    ended = serving.store.newest_ended(unsaid)
    return Context(
        now=serving.store.now(),
        ended={name: RunView.of(each) for name, each in ended.items()},
        lags=lags_of(serving),
        differences=differences_of(serving, [each.name for each in policies]),
        queue=watch.queue.queue if whole and watch.queue else None,
        queue_trouble=watch.queue_trouble if whole else "",
    )


def lags_of(serving: Serving) -> dict[str, Lag]:
    """Returns the last measured lag by policy."""
    return {name: each.lag for name, each in list(serving.watch.found.items()) if each.lag}


def runbook_of(serving: Serving, policy: str, kind: str, change: RoleChange | None) -> Runbook:
    """Returns a runbook with the policy's values."""
    config = serving.config
    return filled(kind, values_of(config.policies[policy], config.looked_for, lags_of(serving).get(policy), change))


def memory_of(policy: Policy) -> Memory | None:
    """Returns the memory of a policy; None: no run has created the root yet."""
    place = policy.target_cmroot
    return Memory(open_existing(place), policy.name) if has_root(place) else None


def samples_of(serving: Serving, policy: str, seconds: float) -> list[LagPoint]:
    """Returns the measured lag of the last `seconds`."""
    since = serving.store.now() - seconds
    return [LagPoint(*each) for each in lag_peaks(serving.store, policy, since=since, parts=POINTS)]


def _keys(policy: Policy) -> dict[str, Any]:
    """Returns a policy's keys that are set. Metastores are shown as addresses, without credentials."""
    written = {key: getattr(policy, key) for key in KEYS if hasattr(policy, key)}
    found = {key: msgspec.to_builtins(value, str_keys=True, enc_hook=str) for key, value in written.items()}
    return {key: value for key, value in found.items() if value not in (None, [], {}, ())}


# ---- plan routes -----------------------------------------------------------------------------------------------------
# Plans on pages: what the next run of a policy would do, for review, decision and application. Each form does and
# records what the API's action does.


plans = APIRouter(route_class=PageRoute, include_in_schema=False)


@plans.get("/plans")
def all_plans(request: Request, visitor: Visiting, policy: str = "", cursor: Annotated[str, Query()] = "") -> Response:
    """Shows plans, newest first."""
    found = list_plans(request, visitor.identity, policy, cursor)
    names = [each.name for each in api.policies(request, visitor.identity).items]
    shown = {"plans": found.items, "next": found.next, "policy": policy, "policies": names}
    return render(request, "plans.html", shown)


@plans.get("/plans/{plan}")
def one_plan(
    request: Request, visitor: Visiting, plan: str, does: Does | Literal[""] = "", search: str = ""
) -> Response:
    """Shows a plan: its cost, what it creates, alters, copies and drops by name, the decisions, and the outcome."""
    found = show_plan(request, visitor.identity, plan)
    mine = [each for each in found.changes if does in ("", each.does) and search.strip().lower() in each.object.lower()]
    counts = {each: sum(one.does == each for one in found.changes) for each in get_args(Does)}
    shown = {"plan": found, "changes": mine[:CHANGES], "more": len(mine) - len(mine[:CHANGES]), "counts": counts}
    return render(request, "plan.html", {**shown, "does": does, "search": search})


@plans.post("/policies/{policy}/plan")
def make_plan(request: Request, visitor: Acting, fields: Fields, policy: str) -> Response:
    """Creates a plan, and redirects to it."""
    asked = queue_action(PLANNING, request, visitor.identity, policy, PlanAsk(_reason(fields)))
    return RedirectResponse(f"/plans/{asked.run}", 303)


@plans.post("/plans/{plan}/approve")
def approve(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """Allows a plan to be applied."""
    approve_plan(request, visitor.identity, plan, Ask(_reason(fields)))
    return RedirectResponse(f"/plans/{plan}", 303)


@plans.post("/plans/{plan}/refuse")
def refuse(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """Forbids a plan to be applied."""
    refuse_plan(request, visitor.identity, plan, Ask(_reason(fields)))
    return RedirectResponse(f"/plans/{plan}", 303)


@plans.post("/plans/{plan}/apply")
def apply(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """Applies a plan, with the policy's name typed again, and redirects to the run."""
    given = {name: value for name, value in fields.items() if value and name != "csrf"}
    asked = apply_plan(request, visitor.identity, plan, body_of(ApplyAsk, given))
    return RedirectResponse(f"/runs/{asked.run}", 303)


def _reason(fields: dict[str, str]) -> str:
    return fields.get("reason", "")[:500]


# ---- form routes -----------------------------------------------------------------------------------------------------
# Forms about jobs and runs: each does and records what the API's action does, and redirects to a page.


forms = APIRouter(route_class=PageRoute, include_in_schema=False)


@forms.post("/jobs/{job:path}/run")
def run_now(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Runs a job now, and redirects to the run."""
    found = api.run_job(request, visitor.identity, job, Ask(_reason(fields)))
    return RedirectResponse(f"/runs/{found.run}", 303)


@forms.post("/jobs/{job:path}/pause")
def pause(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Pauses a job."""
    api.pause_job(request, visitor.identity, job, Ask(_reason(fields)))
    return RedirectResponse(f"/jobs/{quote(job)}", 303)


@forms.post("/jobs/{job:path}/resume")
def resume(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Resumes a job."""
    api.resume_job(request, visitor.identity, job, Ask(_reason(fields)))
    return RedirectResponse(f"/jobs/{quote(job)}", 303)


@forms.post("/runs/{run}/cancel")
def cancel(request: Request, visitor: Acting, fields: Fields, run: str) -> Response:
    """Requests the end of a run."""
    api.cancel(request, visitor.identity, run, Ask(_reason(fields)))
    return RedirectResponse(f"/runs/{run}", 303)
