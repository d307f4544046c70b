"""Routes for the endpoints of the catalogue: permission, validation, paging, time limit and OpenAPI description."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from replicator.core.not_replicated import Report
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.web.api import refuse_unknown_parameters
from replicator.service.web.endpoint import (
    LARGEST,
    PAGE,
    TEXT,
    Asking,
    CommandFailed,
    Endpoint,
    Parameter,
    cursor_to,
    digest,
    read_cursor,
    refuse_none_yet,
    root_for,
)
from replicator.service.web.responses import problem, status_of_kind
from replicator.service.web.serving import GRACE, Askers, Late, Serving, Who, require

SCHEMAS = "#/components/schemas/"
INFINITY = float("inf")
PARTIAL = 3.0  # seconds that a command may take to end

_POLICY = Parameter("policy", str, "A policy's name in the configuration.", ..., in_path=True)
_ROOT = Parameter(
    "root",
    Annotated[str, Query(max_length=TEXT)] | None,
    "The name of a configured root, as listed by `roots`; default: that of [defaults], or the only one.",
)
_PAGING = (
    Parameter("cursor", Annotated[str, Query(max_length=TEXT)] | None, "`next` of the previous page."),
    Parameter("limit", Annotated[int, Query(ge=1, le=LARGEST)], "Entries per page.", PAGE),
)


def router_of(endpoints: Sequence[Endpoint]) -> APIRouter:
    """Returns the routes of endpoints. `api_page.describe` adds the schemas to which they refer."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(refuse_unknown_parameters)])
    for each in endpoints:
        router.add_api_route(
            f"/{each.path.replace('{table}', '{table:path}')}",  # a name may contain a slash
            _handler(each),
            methods=["GET"],
            summary=each.summary,
            operation_id=each.path.replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
            response_model=None,
            responses={200: {"description": each.summary, "content": {"application/json": {"schema": _schema(each)}}}},
            tags=list(each.tags),
        )
    return router


def parameters_of(endpoint: Endpoint) -> list[Parameter]:
    found = [_POLICY] if endpoint.of == "policy" else [_ROOT] if endpoint.of == "root" else []
    return [*found, *endpoint.parameters, *(_PAGING if endpoint.listed else ())]


def limit_of(endpoint: Endpoint) -> float:
    """Returns the seconds after which a query is answered with 504; a command that is late then has time to end."""
    return endpoint.seconds + (GRACE + PARTIAL if endpoint.process else 0.0)


def _handler(endpoint: Endpoint) -> Callable[..., Awaitable[Response]]:
    async def handler(**given: Any) -> Response:
        request, who = given.pop("request"), given.pop("who")
        askers: Askers = request.app.state.askers
        asking = _asking(endpoint, request, who, given)
        about = asking.given_root.place if asking.given_root else asking.policy.name if asking.given_policy else ""
        try:
            found = await askers.ask(
                about, limit_of(endpoint), lambda: _answer(endpoint, asking), process=endpoint.process
            )
        except Late as late:
            return _late(endpoint, late)
        except CommandFailed as failed:
            return _failed(endpoint, failed)
        return Response(msgspec.json.encode(found), media_type="application/json")

    handler.__signature__ = _signature(endpoint)  # type: ignore[attr-defined]
    handler.__name__, handler.__doc__ = endpoint.path, endpoint.summary
    return handler


def _signature(endpoint: Endpoint) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = [
        inspect.Parameter("request", keyword, annotation=Request),
        inspect.Parameter("who", keyword, annotation=Who),
    ]
    for each in parameters_of(endpoint):
        about = Path if each.in_path else Query
        kind: Any = Annotated[each.kind, about(description=each.says)]
        default = inspect.Parameter.empty if each.default is ... else each.default
        found.append(inspect.Parameter(each.name, keyword, annotation=kind, default=default))
    return inspect.Signature(found)


def _asking(endpoint: Endpoint, request: Request, who: Any, given: dict[str, Any]) -> Asking:
    serving: Serving = request.app.state.serving
    policy = root = None
    if endpoint.whole:
        require(who, "viewer", "")
    if endpoint.of == "policy":
        name = given.pop("policy")
        require(who, "viewer", name)
        policy = serving.config.policies.get(name)
        if policy is None:
            known = ", ".join(sorted(serving.config.policies)) or "none is configured"
            raise ObjectNotFound(f"policy {name!r} is not configured", hint=f"policies: {known}")
    elif endpoint.of == "root":
        root = root_for(serving.config, who, given.pop("root"))
    limit, cursor = given.pop("limit", PAGE), given.pop("cursor", None)
    if not endpoint.listed:
        return Asking(serving, who, given, policy, root, seconds=endpoint.seconds)
    at = read_cursor(cursor, _asked(endpoint, given, policy, root, limit), str if endpoint.keyed else int)
    after, offset = (at, 0) if endpoint.keyed else ("", at)
    return Asking(serving, who, given, policy, root, offset, limit, after, endpoint.seconds)


def _asked(endpoint: Endpoint, given: Mapping[str, Any], policy: Any, root: Any, limit: int) -> str:
    about = policy.name if policy else root.name if root else ""
    return digest(endpoint.path, {**given, "": [about, limit]})


def _answer(endpoint: Endpoint, asking: Asking) -> Any:
    place = asking.given_root.place if asking.given_root else getattr(asking.given_policy, endpoint.reads, "")
    if place and not endpoint.may_be_none_yet:
        refuse_none_yet(place)
    found = endpoint.ask(asking)
    said = found.to_dict() if isinstance(found, Report) else msgspec.to_builtins(found)
    if not endpoint.listed:
        return said
    rows = said[endpoint.listed]
    if not (endpoint.pages or endpoint.keyed):
        rows = rows[asking.offset : asking.offset + asking.limit + 1]
    page, following = rows[: asking.limit], None
    if len(rows) > asking.limit:
        at = endpoint.keyed(page[-1]) if endpoint.keyed else asking.offset + asking.limit
        following = cursor_to(at, _asked(endpoint, asking.values, asking.given_policy, asking.given_root, asking.limit))
    return {**said, endpoint.listed: page, "next": following}


def _late(endpoint: Endpoint, late: Late) -> JSONResponse:
    more = {"hint": endpoint.instead, "exit_code": 75, "transient": True}
    if late.begun:
        return problem(504, "NotReached", f"no answer within {endpoint.seconds:g} s", **more)
    answer = problem(503, "NotReached", "too many concurrent queries", **more)
    answer.headers["Retry-After"] = "5"
    return answer


def _failed(endpoint: Endpoint, failed: CommandFailed) -> JSONResponse:
    said = failed.said
    kind = next((each for each in _kinds(Error) if each.__name__ == said.get("error")), Error)
    fields = {"hint": said.get("hint") or endpoint.instead, "exit_code": failed.code, "transient": kind.transient}
    message = str(said.get("message") or f"the command ended with exit code {failed.code} and no answer")
    return problem(status_of_kind(kind), kind.__name__, message, **fields)


def _kinds(kind: type[Error]) -> Iterator[type[Error]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def answer_to(endpoint: Endpoint, request: Request, who: Any, given: Mapping[str, Any]) -> Any:
    """Calls an endpoint for a page and returns its JSON. given: parameters by name; others have their defaults. Raises
    what the endpoint answers as problems: HTTPException, Error, Late, CommandFailed."""
    defaults = {each.name: None if each.default is ... else each.default for each in parameters_of(endpoint)}
    for name, value in given.items():
        if "\0" in str(value):
            raise UsageError(f"{name} contains a NUL character", hint="remove it")
    return _answer(endpoint, _asking(endpoint, request, who, {**defaults, **given}))


# ---- description --------------------------------------------------------------------------------------------------


def _schema(endpoint: Endpoint) -> dict[str, Any]:
    answer = {"$ref": f"{SCHEMAS}{endpoint.answer.__name__}"}
    if not endpoint.listed:
        return answer
    following = {"type": ["string", "null"], "description": "The cursor of the next page; null on the last page."}
    return {"allOf": [answer, {"type": "object", "properties": {"next": following}, "required": ["next"]}]}


def schemas_of(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Returns the schemas of all responses, by name."""
    kinds = list(dict.fromkeys(each.answer for each in endpoints))
    _, found = msgspec.json.schema_components(kinds, ref_template=f"{SCHEMAS}{{name}}")
    return {name: _finite(each) for name, each in found.items()}


def _finite(schema: Any) -> Any:
    """Removes defaults that JSON cannot represent."""
    if isinstance(schema, dict):
        there = {name: each for name, each in schema.items() if name != "default" or each not in (INFINITY, -INFINITY)}
        return {name: _finite(each) for name, each in there.items()}
    return [_finite(each) for each in schema] if isinstance(schema, list) else schema


# ---- within ----------------------------------------------------------------------------------------------------------
# Endpoints that call commands: each call runs in a thread of its own and within a time limit, as queries do, never in
# the threads that all other requests share.


About = Callable[[dict[str, Any]], str]


def within(
    seconds: float, about: About, askers: Callable[[Request], Askers], *, process: bool = False
) -> Callable[[Any], Any]:
    """Returns a decorator that makes an endpoint of a function with a `request`. about: returns the queried root or
    policy from its arguments. process: it runs a command in a process. Raises HTTPException 504 after the time limit,
    while the call continues; 503 if no thread became free."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):  # it does not block; or it is such an endpoint already
            return function

        @functools.wraps(function)
        async def endpoint(**given: Any) -> Any:
            try:
                asked = askers(given["request"])
                return await asked.ask(about(given), seconds, lambda: function(**given), process=process)
            except Late as late:
                raise too_late(late, seconds) from None

        return endpoint

    return decorate


def too_late(late: Late, seconds: float) -> HTTPException:
    if late.begun:
        return HTTPException(504, f"no answer within {seconds:g} s")
    return HTTPException(503, "too many concurrent queries")
