"""A question as an endpoint: who may ask, what is refused, its page, its time limit, and its description."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from replicator.core.report import Report
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.web.known_parameters import refuse_unknown_parameters
from replicator.service.web.permission import Who, require
from replicator.service.web.problems import problem, status_of_kind
from replicator.service.web.questions.cursors import cursor_to, digest, read_cursor
from replicator.service.web.questions.named_roots import refuse_none_yet, root_for
from replicator.service.web.questions.question import LARGEST, PAGE, TEXT, Asking, CommandFailed, Parameter, Question
from replicator.service.web.questions.time_limits import GRACE, Askers, Late
from replicator.service.web.serving import Serving

SCHEMAS = "#/components/schemas/"
INFINITY = float("inf")
PARTIAL = 3.0  # seconds that a command may need to end

_POLICY = Parameter("policy", str, "A policy's name in the configuration.", ..., in_path=True)
_ROOT = Parameter(
    "root",
    Annotated[str, Query(max_length=TEXT)] | None,
    "A root of the configuration by its name, as `roots` lists them; without it, that of [defaults], or the only one.",
)
_PAGING = (
    Parameter("cursor", Annotated[str, Query(max_length=400)] | None, "`next` of the page before."),
    Parameter("limit", Annotated[int, Query(ge=1, le=LARGEST)], "Entries of a page.", PAGE),
)


def router_of(questions: Sequence[Question]) -> APIRouter:
    """Their endpoints. `add_schemas` gives the description the schemas that they refer to."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(refuse_unknown_parameters)])
    for each in questions:
        router.add_api_route(
            f"/{each.path}",
            _endpoint(each),
            methods=["GET"],
            summary=each.summary,
            operation_id=each.path.replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
            response_model=None,
            responses={200: {"description": each.summary, "content": {"application/json": {"schema": _schema(each)}}}},
            tags=list(each.tags),
        )
    return router


def parameters_of(question: Question) -> list[Parameter]:
    found = [_POLICY] if question.of == "policy" else [_ROOT] if question.of == "root" else []
    return [*found, *question.parameters, *(_PAGING if question.listed else ())]


def _endpoint(question: Question) -> Callable[..., Awaitable[Response]]:
    async def endpoint(**given: Any) -> Response:
        request, who = given.pop("request"), given.pop("who")
        askers: Askers = request.app.state.askers
        asking = _asking(question, request, who, given)
        about = asking.given_root.place if asking.given_root else asking.policy.name if asking.given_policy else ""
        try:
            found = await askers.ask(
                about, question.seconds + GRACE + PARTIAL, lambda: _answer(question, asking), process=question.process
            )
        except Late as late:
            return _late(question, late)
        except CommandFailed as failed:
            return _failed(question, failed)
        return Response(msgspec.json.encode(found), media_type="application/json")

    endpoint.__signature__ = _signature(question)  # type: ignore[attr-defined]
    endpoint.__name__, endpoint.__doc__ = question.path, question.summary
    return endpoint


def _signature(question: Question) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    found = [
        inspect.Parameter("request", keyword, annotation=Request),
        inspect.Parameter("who", keyword, annotation=Who),
    ]
    for each in parameters_of(question):
        about = Path if each.in_path else Query
        kind: Any = Annotated[each.kind, about(description=each.says)]
        default = inspect.Parameter.empty if each.default is ... else each.default
        found.append(inspect.Parameter(each.name, keyword, annotation=kind, default=default))
    return inspect.Signature(found)


def _asking(question: Question, request: Request, who: Any, given: dict[str, Any]) -> Asking:
    serving: Serving = request.app.state.serving
    policy = root = None
    if question.whole:
        require(who, "viewer", "")
    if question.of == "policy":
        name = given.pop("policy")
        require(who, "viewer", name)
        policy = serving.config.policies.get(name)
        if policy is None:
            known = ", ".join(sorted(serving.config.policies)) or "none is configured"
            raise ObjectNotFound(f"{name!r} is no policy", hint=f"policies: {known}")
    elif question.of == "root":
        root = root_for(serving.config, who, given.pop("root"))
    limit, cursor = given.pop("limit", PAGE), given.pop("cursor", None)
    if not question.listed:
        return Asking(serving, who, given, policy, root, seconds=question.seconds)
    at = read_cursor(cursor, _asked(question, given, policy, root, limit), str if question.keyed else int)
    after, offset = (at, 0) if question.keyed else ("", at)
    return Asking(serving, who, given, policy, root, offset, limit, after, question.seconds)


def _asked(question: Question, given: Mapping[str, Any], policy: Any, root: Any, limit: int) -> str:
    about = policy.name if policy else root.name if root else ""
    return digest(question.path, {**given, "": [about, limit]})


def _answer(question: Question, asking: Asking) -> Any:
    place = asking.given_root.place if asking.given_root else getattr(asking.given_policy, question.reads, "")
    if place and not question.may_be_none_yet:
        refuse_none_yet(place)
    found = question.ask(asking)
    said = found.to_dict() if isinstance(found, Report) else msgspec.to_builtins(found)
    if not question.listed:
        return said
    rows = said[question.listed]
    if not (question.pages or question.keyed):
        rows = rows[asking.offset : asking.offset + asking.limit + 1]
    page, following = rows[: asking.limit], None
    if len(rows) > asking.limit:
        at = question.keyed(page[-1]) if question.keyed else asking.offset + asking.limit
        following = cursor_to(at, _asked(question, asking.values, asking.given_policy, asking.given_root, asking.limit))
    return {**said, question.listed: page, "next": following}


def _late(question: Question, late: Late) -> JSONResponse:
    more = {"hint": question.instead, "exit_code": 75, "transient": True}
    if late.begun:
        return problem(504, "NotReached", f"no answer within {question.seconds:g} s", **more)
    answer = problem(503, "NotReached", "others are asked all the time", **more)
    answer.headers["Retry-After"] = "5"
    return answer


def _failed(question: Question, failed: CommandFailed) -> JSONResponse:
    said = failed.said
    kind = next((each for each in _kinds(Error) if each.__name__ == said.get("error")), Error)
    fields = {"hint": said.get("hint") or question.instead, "exit_code": failed.code, "transient": kind.transient}
    message = str(said.get("message") or f"the command ended with {failed.code} and no answer")
    return problem(status_of_kind(kind), kind.__name__, message, **fields)


def _kinds(kind: type[Error]) -> Iterator[type[Error]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def answer_to(question: Question, request: Request, who: Any, given: Mapping[str, Any]) -> Any:
    """What a question answers, for a page: its JSON. given: parameters by name, the others have their defaults. Raises
    as the endpoint answers problems: HTTPException, Error, Late, CommandFailed."""
    defaults = {each.name: None if each.default is ... else each.default for each in parameters_of(question)}
    for name, value in given.items():
        if "\0" in str(value):
            raise UsageError(f"{name} has a NUL character", hint="leave it out")
    return _answer(question, _asking(question, request, who, {**defaults, **given}))


# ---- description --------------------------------------------------------------------------------------------------


def _schema(question: Question) -> dict[str, Any]:
    answer = {"$ref": f"{SCHEMAS}{question.answer.__name__}"}
    if not question.listed:
        return answer
    following = {"type": ["string", "null"], "description": "The cursor of the following page; null: this is the last."}
    return {"allOf": [answer, {"type": "object", "properties": {"next": following}, "required": ["next"]}]}


def schemas_of(questions: Sequence[Question]) -> dict[str, Any]:
    """Of all answers, by name."""
    kinds = list(dict.fromkeys(each.answer for each in questions))
    _, found = msgspec.json.schema_components(kinds, ref_template=f"{SCHEMAS}{{name}}")
    return {name: _finite(each) for name, each in found.items()}


def _finite(schema: Any) -> Any:
    """Without defaults that JSON cannot say."""
    if isinstance(schema, dict):
        there = {name: each for name, each in schema.items() if name != "default" or each not in (INFINITY, -INFINITY)}
        return {name: _finite(each) for name, each in there.items()}
    return [_finite(each) for each in schema] if isinstance(schema, list) else schema
