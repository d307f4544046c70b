"""The application: API, metrics, health and the pages behind the same limits and headers. And the API's description:
OpenAPI 3.1 at /openapi.json, and the same as a page that requires no script and no other server.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from replicator.service import metric_families
from replicator.service.alert_conditions import first_wanted, overdue
from replicator.service.metrics import remembered_comparisons, remembered_roots
from replicator.service.pages.ingestion import ingesting, ingestion_actions
from replicator.service.pages.page_routes import pages, removing
from replicator.service.pages.policy_routes import forms, of_policies, plans
from replicator.service.pages.rendering import EDITION, PageRoute, Visiting, signing_in
from replicator.service.pages.root_routes import of_logs, of_roots, tables
from replicator.service.schema import counts
from replicator.service.web.api import api, run_events
from replicator.service.web.beekeeper import beekeeper
from replicator.service.web.catalogue import ENDPOINTS
from replicator.service.web.endpoint import Endpoint
from replicator.service.web.policy_actions import plan_actions, policy_actions
from replicator.service.web.removals import root_actions
from replicator.service.web.responses import ETags, add_problems, problem
from replicator.service.web.router import router_of, schemas_of, too_late
from replicator.service.web.serving import VERSION, Askers, Late, Serving, SharedAnswers, Who, require

# ---- description of the API ------------------------------------------------------------------------------------------


BEEKEEPERS = "/api/v1/database/"

LARGE = 10**12
"""A limit above this is of no use to a reader."""

PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "description": "Problem details (RFC 9457). exit_code: that of the command line; transient: a retry may succeed.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": "string"},
        "exit_code": {"type": ["integer", "null"]},
        "transient": {"type": "boolean"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}

WORDS = {
    "policy": "A policy's name in the configuration.",
    "job": "A job's name: in [service.jobs], or that of its policy.",
    "run": "A run's id.",
    "state": "Only runs in this state; may be given several times.",
    "cursor": "`next` of the previous page.",
    "who": "Only by this user or token.",
    "action": "Only actions of this name.",
    "subject": "Only on this subject.",
    "since": 'Only from this time on: ISO 8601, or relative to now: "-1d", "yesterday".',
    "until": "Only up to this time.",
    "limit": "Entries per page.",
    "database": "A database's name, regardless of case.",
    "table": "A table's name, regardless of case.",
    **dict.fromkeys(("path", "partition_name", "housekeeping_status", "lifecycle_type"), "A filter, as in Beekeeper."),
    **dict.fromkeys(("deleted_before", "deleted_after"), "A time without a zone (UTC), as in Beekeeper."),
    **dict.fromkeys(("registered_before", "registered_after"), "A time without a zone (UTC), as in Beekeeper."),
    "page": "The page number, from 0.",
    "size": "Items per page.",
    "sort": "NAME or NAME,desc; may be given several times.",
    "last-event-id": "The id of the last event received: later events are sent.",
    "root": "A root's name: a policy's (`P`, `P:target`), or `defaults`.",
    "name": "The name of a hold or slot.",
    "plan": "The id of the run that created the plan.",
    "item": "The id of an item of housekeeping.",
}
"""Descriptions of parameters that their endpoints do not describe."""

_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages"), autoescape=select_autoescape(), undefined=StrictUndefined
)


def describe(app: FastAPI, endpoints: Sequence[Endpoint]) -> None:
    """Adds response schemas, problem details and the documentation page to the application's OpenAPI description."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            schemas = found.setdefault("components", {}).setdefault("schemas", {})
            schemas |= {name: each for name, each in schemas_of(endpoints).items() if name not in schemas}
            schemas["Problem"] = PROBLEM
            for path, _, operation in _operations(found):
                _tell_problems(path, operation)
                for each in operation.get("parameters", ()):
                    each.setdefault("description", WORDS.get(each["name"], ""))
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    pages = APIRouter(route_class=PageRoute, include_in_schema=False)

    @app.get("/openapi.json", include_in_schema=False)
    def description(visitor: Visiting) -> JSONResponse:
        return JSONResponse(app.openapi())

    @pages.get("/docs")
    def page(visitor: Visiting) -> HTMLResponse:
        found = app.openapi()
        shown = {"title": found["info"]["title"], "version": found["info"]["version"], "edition": EDITION}
        shown["groups"] = groups_of(found)
        return HTMLResponse(_PAGES.get_template("api.html").render(shown))

    app.include_router(pages)


def _operations(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _tell_problems(path: str, operation: dict[str, Any]) -> None:
    """Replaces FastAPI's description of errors, which are different here."""
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    content: dict[str, Any] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    if path.startswith(BEEKEEPERS):
        content = {"application/json": {}, **content}  # Beekeeper's format; a problem for requests unknown to it
    responses["default"] = {"description": "A problem, with a hint.", "content": content}


# ---- the page -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ShownParameter:
    name: str
    where: str
    kind: str
    needed: bool
    says: str


@dataclass(frozen=True)
class _ShownField:
    name: str
    kind: str


@dataclass(frozen=True)
class _Shown:
    """An endpoint on the page. fields: of its response."""

    method: str
    path: str
    summary: str
    parameters: list[_ShownParameter]
    answer: str
    fields: list[_ShownField]


def groups_of(found: dict[str, Any]) -> dict[str, list[_Shown]]:
    """Groups endpoints by the first word of their path."""
    groups: dict[str, list[_Shown]] = {}
    schemas = found["components"]["schemas"]
    for path, method, operation in sorted(_operations(found), key=lambda each: (each[0], each[1])):
        word = path.removeprefix("/api/v1/").partition("/")[0].partition(":")[0]
        groups.setdefault(word, []).append(_shown(path, method, operation, schemas))
    return groups


def _shown(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> _Shown:
    parameters = [
        _ShownParameter(
            each["name"],
            each["in"],
            _kind(each["schema"]).removesuffix(" or null"),
            each.get("required", False),
            each.get("description") or each["schema"].get("description", ""),
        )
        for each in operation.get("parameters", ())
    ]
    good: dict[str, Any] = next((each for code, each in operation["responses"].items() if code.startswith("2")), {})
    schema: dict[str, Any] = next((each.get("schema", {}) for each in good.get("content", {}).values()), {})
    named = [each["$ref"].rpartition("/")[2] for each in (schema, *schema.get("allOf", ())) if "$ref" in each]
    about = schemas.get(named[0], {}) if named else {}
    fields = [_ShownField(name, _kind(each)) for name, each in about.get("properties", {}).items()]
    if "allOf" in schema:
        fields.append(_ShownField("next", "string or null"))
    summary = operation.get("description") or operation.get("summary", "")
    return _Shown(method, path, summary, parameters, about.get("description", ""), fields)


def _kind(schema: dict[str, Any]) -> str:
    """Describes a schema in few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        text += f", {least} or more" if most is None or most > LARGE else f", {least} to {most}"
    return text


# ---- metrics ---------------------------------------------------------------------------------------------------------
# `/metrics`: Prometheus' text of the service, its jobs, its policies and their roots.


def metrics_of(serving: Serving) -> bytes:
    """Returns all current metrics. Raises StoreUnreachable."""
    with serving.store.together():
        return metric_families.text_of(_all(serving))


def _all(serving: Serving) -> Iterator[Metric]:
    yield from _service(serving)
    yield from _jobs(serving)
    with serving.store.transaction() as connection:
        yield from metric_families.of_counts(counts(connection))
    now = serving.store.now()
    known = {**remembered_comparisons(serving.store), **serving.watch.compared}
    yield from metric_families.of_policies(serving.config.policies, serving.watch.found, known, now)
    yield from metric_families.of_disks(serving.watch.disks)
    yield from metric_families.of_ingestion(serving.watch.queue)
    yield from metric_families.of_roots(remembered_roots(serving.store), now)


def _service(serving: Serving) -> Iterator[Metric]:
    status, health = serving.status(), serving.scheduler.health
    build = GaugeMetricFamily("replicator_build_info", "Always 1; the release.", labels=["version"])
    build.add_metric([status.version], 1)
    yield build
    yield _gauge("replicator_scheduler_leader", "1 if this server schedules.", status.leader == status.here)
    yield _gauge("replicator_scheduler_led", "1 if any server schedules.", status.led)
    yield _gauge("replicator_scheduler_epoch", "Changes of the server that schedules.", status.epoch)
    yield _gauge("replicator_scheduler_paused", "1 if all schedules are paused.", status.paused)
    yield _gauge("replicator_scheduler_trouble", "Problems that keep this server from working.", len(status.trouble))
    age = time.monotonic() - health.step
    yield _gauge("replicator_scheduler_step_age_seconds", "Time since the last step of this server's scheduler.", age)
    yield _gauge("replicator_runs_running", "Runs in progress.", status.running)
    yield _gauge("replicator_queue_length", "Queued runs.", status.queued)


def _jobs(serving: Serving) -> Iterator[Metric]:
    store, labels = serving.store, ["job_name"]
    now, states, successes, queued = store.now(), store.jobs(), store.successes(), store.first_runs()
    ended = GaugeMetricFamily(
        "replicator_last_success_timestamp_seconds", "End of the newest run in state done.", labels=labels
    )
    for name, moment in sorted(successes.items()):
        ended.add_metric([name], moment)
    yield ended
    paused = GaugeMetricFamily("replicator_job_paused", "1 if the job is paused.", labels=labels)
    text = "Time since alerts.missed_periods periods passed without a success; 0 before, and while the job is paused."
    late = GaugeMetricFamily("replicator_job_overdue_seconds", text, labels=labels)
    text = "1 if the newest certificate is incomplete: something is left, or was not searched."
    gaps = GaugeMetricFamily("replicator_certificate_incomplete", text, labels=labels)
    for name, job in sorted(serving.scheduled.items()):
        state = states.get(name)
        stopped = state is not None and state.paused
        paused.add_metric([name], stopped)
        success = successes.get(name, first_wanted(state, queued.get(name), now))
        periods = serving.config.alerts.missed_periods
        late.add_metric([name], 0.0 if stopped else overdue(job, success, periods, now))
        if job.arguments[:2] == ("purge", "certify"):
            for last in store.runs(job_name=name, states=("done", "partial"), limit=1):
                gaps.add_metric([name], last.state == "partial")
    yield from (paused, late, gaps)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


# ---- app -------------------------------------------------------------------------------------------------------------


LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of hosts under which a service may be read without tokens; not other names, by which a foreign page could send
requests."""

STALE = 30.0  # seconds without a step of the scheduler
READY = 5.0  # seconds in which a reachable store answers
PROBED = 1.0  # seconds for which a successful write proves that it takes others
OWN = ("style-src", "script-src", "connect-src", "form-action")  # only from this server, and nothing inline
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; "
    + "".join(f"{each} 'self'; " for each in OWN)
    + "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def make_app(serving: Serving, *, open_to_all: bool, moment: float = 0.0) -> FastAPI:
    """Creates the application. open_to_all: requests without a token may read. moment: seconds for which a response may
    be shared."""
    app = FastAPI(title="replicator", version=VERSION, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.serving, app.state.store, app.state.open_to_all = serving, serving.store, open_to_all
    app.state.streams = Counter()  # open streams of events, by sender
    app.state.askers, app.state.deed_askers, readiness = Askers(), Askers(), Askers()
    add_problems(app)
    app.include_router(api)
    for router in (run_events, policy_actions, plan_actions, root_actions, ingestion_actions):
        app.include_router(router)
    app.include_router(beekeeper)
    app.include_router(router_of(ENDPOINTS))
    describe(app, ENDPOINTS)
    for router in (signing_in, forms, plans, of_policies, pages, of_roots, of_logs, removing, tables, ingesting):
        app.include_router(router)

    wrote = -math.inf

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> JSONResponse:
        """Returns whether the scheduler continues: its last step ended recently, successful or not. Requires no
        thread."""
        health = serving.scheduler.health
        still = time.monotonic() - health.step < STALE
        return JSONResponse({"alive": still}, 200 if still else 503)

    @app.get("/readyz", include_in_schema=False)
    async def ready() -> JSONResponse:
        """Returns whether runs can be scheduled and recorded: the store takes a write, and the scheduler's last step
        succeeded. Raises StoreUnreachable, NoSpace, and HTTPException if the store does not answer in time."""

        def probe() -> bool:
            nonlocal wrote
            if time.monotonic() - wrote > PROBED:  # whoever asks, without a token, causes no more writes
                serving.store.check_writable()
                wrote = time.monotonic()
            return serving.store.leader()[2]

        try:
            led = await readiness.ask("", READY, probe)
        except Late as late:
            raise too_late(late, READY) from None
        health = serving.scheduler.health
        trouble = [each for each in (health.trouble, health.damage) if each]
        return JSONResponse({"ready": not trouble, "led": led, "trouble": trouble}, 503 if trouble else 200)

    @app.get("/metrics", include_in_schema=False)
    def metrics(who: Who) -> Response:
        """Returns the metrics of all policies: not for a token of some."""
        require(who, "viewer", "")
        return Response(metrics_of(serving), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_middleware(SharedAnswers, changes=lambda: serving.store.changes, seconds=moment)
    app.add_middleware(ETags)
    if open_to_all:
        app.add_middleware(_OwnNames)
    return app


class _OwnNames:
    """A middleware that refuses requests under other names than this host's own: where no token is required, a foreign
    page could send requests under its name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and Request(scope).url.hostname not in LOOPBACK:
            await problem(
                421, "UsageError", "without tokens, only requests to a loopback name of this host are served"
            )(scope, receive, send)
        else:
            await self.app(scope, receive, send)
