"""Pages to read: overview, jobs, runs, actions; and removals: pending ones by day and reason, each with a form to hold
it, purges and their certificates. Each shows the API's response.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.guard import audit_ls, legal_hold_ls
from replicator.commands.purge import purge_backups
from replicator.errors import Error
from replicator.service.alerts import open_alerts
from replicator.service.pages.attention import attention_items, behind_text
from replicator.service.pages.policy_routes import context_of
from replicator.service.pages.rendering import ASSETS, BYTES, Acting, Fields, PageRoute, Visiting, render
from replicator.service.pages.root_routes import (
    RootPage,
    Said,
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
from replicator.service.web.actions import RemovalAsk, RootAsk, sees
from replicator.service.web.removals import hold_removal, release_legal_hold
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

STATES = ("queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost")

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@pages.get("/assets/{name}")
def asset(name: str) -> Response:
    """Returns a file of the pages; its URL changes with its contents."""
    if name not in ASSETS:
        raise HTTPException(404, "this file does not exist")
    return Response(
        BYTES[name], media_type=ASSETS[name], headers={"Cache-Control": "public, max-age=31536000, immutable"}
    )


@pages.get("/")
def overview(request: Request, visitor: Visiting) -> Response:
    """Shows whether everything is well; if not, what, since when, and what to do; and the next runs."""
    who, serving = visitor.identity, _serving(request)
    store, policies = serving.store, api.policies(request, who).items
    with store.together():
        status, jobs, alerts = api.status(request, who), api.jobs(request, who).items, open_alerts(store)
        at_work = [RunView.of(each) for each in store.open_runs() if sees(serving.config, who, each)]
        context = context_of(serving, policies, jobs, whole=who.may("viewer"))
    mine = {each.name for each in policies} | {each.name for each in jobs}
    alerts = [each for each in alerts if who.may("viewer") or each.subject.split("/")[0] in mine]
    ill = attention_items(status, policies, jobs, alerts, context)
    shown = {
        "status": status,
        "needs": ill,
        "fresh": [each for each in policies if each.status == "none" or not each.measured],
        "policies": [(each, behind_text(each)) for each in policies],
        "states": {each.subject: each.word for each in ill},
        "jobs": {each.name: each for each in jobs},
        "of_policies": {each.policy: each for each in jobs if each.syncs},
        "compared_of": {name: each for name, each in serving.watch.compared.items() if who.may("viewer", name)},
        "differences": context.differences,
        "next_runs": sorted((each for each in jobs if each.next and not each.paused), key=lambda each: each.next or "")[
            :8
        ],
        "paused": [each for each in jobs if each.paused],
        "running": at_work[:AT_WORK],
    }
    return render(request, "overview.html", shown)


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
    shown = {"runs": found.items, "next": found.next, "job": job, "state": state, "jobs": names, "states": STATES}
    return render(request, "runs.html", shown)


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
    """Shows pending removals, by day and one by one, with what holds them back; and removals of the last week."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    days = asked(request, visitor.identity, "removals/upcoming", limit=ROWS)
    shown: dict[str, Any] = {"items": Said(), "holds": Said(), "gone": Said(), "days": [], "next": None}
    if chosen:
        week = (datetime.now(UTC) - timedelta(days=7)).isoformat(timespec="seconds")
        config, where = config_of(request), chosen.place
        items = asked(request, visitor.identity, "removals/items", root=chosen.name, limit=ITEMS, cursor=cursor or None)
        shown |= {
            "items": items,
            "days": _by_day(items.found["items"]) if items.found else [],
            "next": items.found["next"] if items.found else None,
            "holds": said(lambda: legal_hold_ls(cmroot=where, config=config)),
            "gone": said(lambda: audit_ls(cmroot=where, outcome="removed", since=week, limit=ROWS, config=config)),
        }
    acting = acting_name(config_of(request), chosen)
    may = {
        "may_hold": bool(acting) and may_change(visitor, chosen),
        "may_release": bool(acting) and may_change(visitor, chosen, "admin"),
    }
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


@removing.post("/legal-holds/{name}/release")
def release(request: Request, visitor: Acting, fields: Fields, name: str) -> Response:
    """Releases a legal hold, so that jobs may remove what it covered, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    given = {"root": acting_name(config_of(request), chosen)}
    release_legal_hold(request, visitor.identity, name, body_of(RootAsk, fields, given, "reason"))
    return RedirectResponse(f"/removals?root={quote(chosen.place if chosen else '', safe='')}", 303)


# ---- purges -------------------------------------------------------------------------------------------------------


@removing.get("/purges")
def purges(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """Shows what purges erased, their backups, and certificates."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    shown: dict[str, Any] = {"purges": Said(), "backups": Said(), "record": Said()}
    if chosen:
        config, where = config_of(request), chosen.place
        shown = {
            "purges": asked(request, visitor.identity, "purges", root=chosen.name, limit=ROWS),
            "backups": said(lambda: purge_backups(cmroot=where, config=config)),
            "record": said(lambda: audit_ls(cmroot=where, job="purge", limit=ROWS, config=config)),
        }
    record: Said = shown["record"]
    rows = list(reversed(record.found.found)) if record.found else []
    shown |= {
        "rows": [each for each in rows if each.what not in ("file", "certificate")],
        "certificates": [
            {"by": each, "says": msgspec.json.decode(each.detail)}
            for each in rows
            if each.what == "certificate" and each.detail
        ],
    }
    return render(request, "purges.html", {"roots": roots, "root": chosen, **shown})


@removing.get("/purges/{purge}")
def one_purge(request: Request, visitor: Visiting, purge: str, root: str = "", policy: str = "") -> Response:
    """Shows a purge: its progress, and its newest certificate."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    name = chosen.name if chosen else None
    shown = {
        "detail": asked(request, visitor.identity, "purges/{purge}", root=name, purge=purge),
        "certificate": asked(request, visitor.identity, "purges/{purge}/certificate", root=name, purge=purge),
    }
    return render(request, "purge.html", {"purge": purge, "roots": roots, "root": chosen, **shown})


def _by_day(items: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(day, list(some)) for day, some in groupby(items, lambda each: each["at"][:10])]
