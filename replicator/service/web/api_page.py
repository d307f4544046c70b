"""The description of the API: OpenAPI 3.1 at /openapi.json, and the same as a page that requires no script and no other
server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from replicator.service.pages.rendering import PageRoute, Visiting
from replicator.service.web.endpoint import Endpoint
from replicator.service.web.router import schemas_of

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
        shown = {"title": found["info"]["title"], "version": found["info"]["version"], "groups": _groups(found)}
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


def _groups(found: dict[str, Any]) -> dict[str, list[_Shown]]:
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
