"""Pages to read: overview, policies, jobs, runs, alerts, tokens, actions; and removals: pending ones by day and reason,
each with a form to hold it, legal holds, and the audit. Each shows the API's response.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.guard import audit_ls, legal_hold_ls
from replicator.errors import Error
from replicator.service.alerts import OpenAlert, channels_of, open_alerts
from replicator.service.api_tokens import tokens
from replicator.service.pages.attention import attention_items, behind_text
from replicator.service.pages.policy_routes import context_of
from replicator.service.pages.rendering import (
    ASSETS,
    BYTES,
    ZIPPED,
    Acting,
    Fields,
    PageRoute,
    Visiting,
    Visitor,
    render,
    seconds_of,
)
from replicator.service.pages.root_routes import (
    RootPage,
    Said,
    Text,
    acting_name,
    asked,
    body_of,
    chosen_root,
    config_of,
    may_change,
    said,
)
from replicator.service.runs import PROGRESS, RunState, answer_of
from replicator.service.web import api
from replicator.service.web.actions import LegalHoldAsk, RemovalAsk, RootAsk, sees
from replicator.service.web.policy_actions import list_plans
from replicator.service.web.removals import add_legal_hold, hold_removal, release_legal_hold
from replicator.service.web.responses import RunView
from replicator.service.web.serving import Serving, require

# ---- run progress ----------------------------------------------------------------------------------------------------
# The progress of a run, from the file to which it is written; and its results, from its report. Pure, except for that
# file.


QUIET = 30.0
"""Seconds without progress of a run after which a page shows it."""

FIGURES = (
    ("records", "records"),
    ("files_copied", "files copied"),
    ("bytes_copied", "size copied"),
    ("files_from_source", "files from the source"),
    ("files_from_cmroot", "files from $cmroot"),
    ("files_from_target", "files that the target had elsewhere"),
    ("files_skipped", "files already in place"),
    ("files_removed", "files removed"),
    ("objects_changed", "objects changed"),
    ("difference_count", "differences"),
    ("lag_seconds", "lag at its end"),
)
"""Fields of reports that are counts, with their labels."""

ABOUT = (
    *("warnings", "findings", "differing", "remaining", "missing", "dropped", "left", "bootstrapped"),
    *("not_replicated", "tables"),
)
"""Fields of reports that list objects by name."""

MOST = 200
"""Maximum names of one field that are shown; the JSON has all."""


@dataclass(frozen=True)
class TaskAtWork:
    """A task that is open. done, of: bytes if they are reported (unit "bytes"), else files or steps; of: None: not
    known. rate: of these, per second; left: seconds until all is done; quiet: since its last report, if long."""

    title: str
    unit: str
    done: int
    of: int | None
    steps: int
    of_steps: int | None
    files: int
    of_files: int | None
    seconds: float
    rate: float
    left: float | None
    quiet: float | None


def tasks_of(directory: Path, now: float) -> list[TaskAtWork]:
    """Returns the open tasks of a run, the outermost first; empty if it has reported none, or runs on another server.
    now: seconds since 1970."""
    file = directory / PROGRESS
    try:
        age = max(0.0, now - file.stat().st_mtime)
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return []
    tasks = said.get("tasks") if isinstance(said, dict) else None
    return [_task(each, age) for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else []


def _task(said: Mapping[str, Any], age: float) -> TaskAtWork:
    unit = next((each for each in ("bytes", "files") if said.get(f"of_{each}") or said.get(each)), "steps")
    done, of = int(said.get(unit) or 0), said.get(f"of_{unit}")
    seconds = float(said.get("seconds") or 0.0) + age
    rate = done / seconds if seconds else 0.0
    return TaskAtWork(
        title=str(said.get("title", "")),
        unit=unit,
        done=done,
        of=of,
        steps=int(said.get("steps") or 0),
        of_steps=said.get("of_steps"),
        files=int(said.get("files") or 0),
        of_files=said.get("of_files"),
        seconds=seconds,
        rate=rate,
        left=max(0.0, of - done) / rate if of and rate else None,
        quiet=age if age > QUIET else None,
    )


def steps_of(answer: Mapping[str, object]) -> dict[str, float]:
    """Returns seconds by step, of a report that has them."""
    steps = answer.get("steps")
    found: dict[str, float] = {}
    for name, seconds in (steps if isinstance(steps, dict) else {}).items():
        with contextlib.suppress(TypeError, ValueError):
            found[str(name)] = float(seconds)
    return found


def figures_of(answer: Mapping[str, object]) -> list[tuple[str, str, float]]:
    """Returns name, label and value of the counts in a report, without zeros."""
    found = []
    for name, words in FIGURES:
        value = answer.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            found.append((name, words, value))
    return found


def about_of(answer: Mapping[str, object]) -> dict[str, list[str]]:
    """Returns what a report lists by name, in lines."""
    found = {}
    for name in ABOUT:
        value = answer.get(name)
        rows = [f"{key}: {each}" for key, each in value.items()] if isinstance(value, dict) else value
        if isinstance(rows, list) and rows:
            found[name] = [_line(each) for each in rows[:MOST]]
            if len(rows) > MOST:
                found[name].append(f"and {len(rows) - MOST:,} more")
    return found


def _line(row: object) -> str:
    return ", ".join(f"{key} {each}" for key, each in row.items() if each) if isinstance(row, dict) else str(row)


# ---- page routes -----------------------------------------------------------------------------------------------------


AT_WORK = 20
"""Maximum runs of the overview that are queued or running."""

PLANS = 5
"""Newest plans of which the overview shows those that wait for approval."""

STATES = ("queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost")

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@pages.get("/assets/{name}")
def asset(request: Request, name: str) -> Response:
    """Returns a file of the pages; its URL changes with its contents."""
    if name not in ASSETS:
        raise HTTPException(404, "this file does not exist")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(BYTES[name], media_type=ASSETS[name], headers=headers)
    return Response(ZIPPED[name], media_type=ASSETS[name], headers={**headers, "Content-Encoding": "gzip"})


@pages.get("/")
def overview(request: Request, visitor: Visiting) -> Response:
    """Shows whether everything is well; if not, what, since when, and what to do; and the next runs."""
    return render(request, "overview.html", _overview(request, visitor))


@pages.get("/policies")
def all_policies(request: Request, visitor: Visiting) -> Response:
    """Shows policies with their states."""
    return render(request, "policies.html", _overview(request, visitor))


def _overview(request: Request, visitor: Visitor) -> dict[str, Any]:
    who, serving = visitor.identity, _serving(request)
    store, policies = serving.store, api.policies(request, who).items
    with store.together():
        status, jobs = api.status(request, who), api.jobs(request, who).items
        alerts = _alerts(request, visitor, {each.name for each in policies} | {each.name for each in jobs})
        at_work = [RunView.of(each) for each in store.open_runs() if sees(serving.config, who, each)]
        context = context_of(serving, policies, jobs, whole=who.may("viewer"))
    ill = attention_items(status, policies, jobs, alerts, context)
    plans = list_plans(request, who, limit=PLANS)
    planned = sorted((each for each in jobs if each.next and not each.paused), key=lambda each: each.next or "")
    return {
        "status": status,
        "needs": ill,
        "fresh": [each for each in policies if each.status == "none" or not each.measured],
        "policies": [(each, behind_text(each)) for each in policies],
        "states": {each.subject: each.word for each in ill},
        "jobs": {each.name: each for each in jobs},
        "of_policies": {each.policy: each for each in jobs if each.syncs},
        "compared_of": {name: each for name, each in serving.watch.compared.items() if who.may("viewer", name)},
        "differences": context.differences,
        "next_runs": planned[:8],
        "paused": [each for each in jobs if each.paused],
        "plans": [each for each in plans.items if each.state == "planned"],
        "plans_of": len(plans.items) if plans.next else 0,
        "running": at_work[:AT_WORK],
    }


def _alerts(request: Request, visitor: Visitor, subjects: Collection[str]) -> list[OpenAlert]:
    """Returns the alerts that a user may view. subjects: policies and jobs that the user may view."""
    found = open_alerts(_serving(request).store)
    return [each for each in found if visitor.identity.may("viewer") or each.subject.split("/")[0] in subjects]


@pages.get("/alerts")
def all_alerts(request: Request, visitor: Visiting) -> Response:
    """Shows the alerts that are not over, and the channels that were notified."""
    policies, jobs = api.policies(request, visitor.identity).items, api.jobs(request, visitor.identity).items
    mine = {each.name for each in policies} | {each.name for each in jobs}
    found = [each for each in _alerts(request, visitor, mine) if each.over is None]
    shown = {"alerts": found, "channels": sorted(channels_of(_serving(request).config.alerts))}
    return render(request, "alerts.html", shown)


@pages.get("/tokens")
def all_tokens(request: Request, visitor: Visiting) -> Response:
    """Shows tokens by name, without their secrets."""
    require(visitor.identity, "admin", "")
    return render(request, "tokens.html", {"tokens": tokens(_serving(request).store)})


@pages.get("/jobs")
def all_jobs(request: Request, visitor: Visiting) -> Response:
    """Shows jobs with their schedules."""
    shown = {"jobs": api.jobs(request, visitor.identity).items, "status": api.status(request, visitor.identity)}
    return render(request, "jobs.html", shown)


@pages.get("/jobs/{job:path}")
def one_job(request: Request, visitor: Visiting, job: str) -> Response:
    """Shows a job and its last runs."""
    found = next((each for each in api.jobs(request, visitor.identity).items if each.name == job), None)
    if found is None:
        raise HTTPException(404, f"job {job!r} does not exist")
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
    """Shows runs, newest first."""
    filters = api.RunFilters(job=job, state=[state] if state else None)
    found = api.runs(request, visitor.identity, filters, cursor=cursor, limit=50)
    names = [each.name for each in api.jobs(request, visitor.identity).items]
    runs = [*found.items, *_by_hand(request, visitor, job, state, cursor, found.next or "")]
    runs.sort(key=lambda each: each.queued or "", reverse=True)
    shown = {"runs": runs, "next": found.next, "job": job, "state": state, "jobs": names, "states": STATES}
    return render(request, "runs.html", shown)


def _by_hand(request: Request, visitor: Visitor, job: str, state: str, cursor: str, next: str) -> Iterator[RunView]:
    """Yields the newest runs of policies that no service started, of the time that a page of runs shows. cursor, next:
    ids of runs, which begin with milliseconds."""
    serving = _serving(request)
    for name, measured in serving.watch.found.items():
        syncs = [each.name for each in serving.scheduled.values() if each.policy == name]
        for run in measured.by_hand if visitor.identity.may("viewer", name) and job in ("", *syncs) else ():
            view = RunView.by_hand(run)
            at = f"{seconds_of(run.started) * 1000:013.0f}"
            if state in ("", view.state) and (not cursor or at < cursor) and at >= next:
                yield view


@pages.get("/runs/{run}")
def one_run(request: Request, visitor: Visiting, run: str) -> Response:
    """Shows a run: its command, its course, its log and its report."""
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
    """Shows actions of users and programs over HTTP."""
    require(visitor.identity, "admin", "")
    found = api.list_actions(request, visitor.identity, api.ActionFilters(), cursor=cursor, limit=50)
    return render(request, "actions.html", {"actions": found.items, "next": found.next})


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


# ---- removals --------------------------------------------------------------------------------------------------------


ROWS = 500
"""Maximum rows of a list; the command line has all of them."""

ITEMS = 100
"""Maximum pending removals of a page."""

Cursor = Annotated[str, Query(max_length=400)]

removing = APIRouter(route_class=RootPage, include_in_schema=False)


@removing.get("/removals")
def removals(request: Request, visitor: Visiting, root: str = "", policy: str = "", cursor: Cursor = "") -> Response:
    """Shows pending removals, by day and one by one, with what holds them back."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    days = asked(request, visitor.identity, "removals/upcoming", limit=ROWS)
    shown: dict[str, Any] = {"items": Said(), "days": [], "next": None}
    if chosen:
        items = asked(request, visitor.identity, "removals/items", root=chosen.name, limit=ITEMS, cursor=cursor or None)
        shown |= {
            "items": items,
            "days": _by_day(items.found["items"]) if items.found else [],
            "next": items.found["next"] if items.found else None,
        }
    may = {"may_hold": bool(acting_name(config_of(request), chosen)) and may_change(visitor, chosen)}
    return render(request, "removals.html", {"roots": roots, "root": chosen, "upcoming": days, **shown, **may})


@removing.get("/removals/why")
def why(request: Request, visitor: Visiting, job: str, path: str) -> Response:
    """Shows the settings of a dataset under retention, each with its file and line."""
    found = asked(request, visitor.identity, "retention/{job}/explain", job=job, path=path, limit=ROWS)
    return render(request, "why.html", {"job": job, "dataset": path, "explained": found})


@removing.post("/removals/hold")
def hold(request: Request, visitor: Acting, fields: Fields) -> Response:
    """Adds a legal hold on a pending removal, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    hold_removal(request, visitor.identity, body_of(RemovalAsk, fields, given, "on", "until", "reason"))
    return RedirectResponse(f"/removals?root={quote(chosen.place if chosen else '', safe='')}", 303)


@removing.get("/legal-holds")
def legal_holds(request: Request, visitor: Visiting, root: str = "", policy: str = "", on: Text = "") -> Response:
    """Shows objects that no job removes, with forms to add and to release a hold. on: what the form proposes."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    holds = said(lambda: legal_hold_ls(cmroot=chosen.place, config=config_of(request))) if chosen else Said()
    acting = bool(acting_name(config_of(request), chosen))
    may = {
        "may_hold": acting and may_change(visitor, chosen),
        "may_release": acting and may_change(visitor, chosen, "admin"),
    }
    return render(request, "legal_holds.html", {"roots": roots, "root": chosen, "holds": holds, "on": on, **may})


@removing.post("/legal-holds")
def add_hold(request: Request, visitor: Acting, fields: Fields) -> Response:
    """Adds a legal hold, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    ask = body_of(LegalHoldAsk, fields, given, "name", "on", "until", "reason")
    add_legal_hold(request, visitor.identity, ask)
    return RedirectResponse(f"/legal-holds?root={quote(chosen.place if chosen else '', safe='')}", 303)


@removing.post("/legal-holds/{name}/release")
def release(request: Request, visitor: Acting, fields: Fields, name: str) -> Response:
    """Releases a legal hold, so that jobs may remove what it covered, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    release_legal_hold(request, visitor.identity, name, body_of(RootAsk, fields, given, "reason"))
    return RedirectResponse(f"/legal-holds?root={quote(chosen.place if chosen else '', safe='')}", 303)


@dataclass(frozen=True)
class AuditFilters:
    """The filters of the audit: as `replicator audit ls` has them. since: the last week by default."""

    object: Text = ""
    who: Text = ""
    job: Literal["", "housekeeping", "retention", "purge"] = ""
    outcome: Literal["", "removed", "refused", "failed", "intended", "done"] = ""
    since: Annotated[str, Query(max_length=100)] = "-7d"


@removing.get("/audit")
def audit(
    request: Request, visitor: Visiting, only: Annotated[AuditFilters, Depends()], root: str = "", policy: str = ""
) -> Response:
    """Shows who removed what, when and why, newest first."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    filters = {name: value for name, value in asdict(only).items() if value}
    found = Said()
    if chosen:
        found = said(
            lambda: audit_ls(cmroot=chosen.place, newest=True, limit=ROWS, config=config_of(request), **filters)
        )
    rows = found.found.found if found.found else []
    shown = {"roots": roots, "root": chosen, "found": found, "rows": rows, "only": only}
    return render(request, "audit.html", shown)


def _by_day(items: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(day, list(some)) for day, some in groupby(items, lambda each: each["at"][:10])]
