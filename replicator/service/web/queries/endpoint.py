"""A endpoint: a path, what may be asked, of what, and what answers it. Most are a verb of `replicator/commands`, whose
fields are the parameters, with the ranges and words that its options have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import Query

from replicator.commands.base import Options
from replicator.commands.ranges import Between
from replicator.core.policy import Policy
from replicator.core.report import Report
from replicator.core.text.quantity import parse_duration
from replicator.errors import UsageError
from replicator.service.auth.api_tokens import Identity
from replicator.service.web.queries.named_roots import NamedRoot
from replicator.service.web.queries.time_limits import run_command
from replicator.service.web.serving import Serving

Of = Literal["service", "policy", "root"]

SECONDS = 15.0
"""For an answer that this process gives."""

PAGE, LARGEST = 100, 1000
"""Entries of a page, and the most."""

TEXT = 4000  # characters of a parameter


@dataclass(frozen=True)
class Parameter:
    """One of the query, or of the path. kind: an annotation as FastAPI reads it."""

    name: str
    kind: Any
    says: str
    default: Any = None
    in_path: bool = False


@dataclass(frozen=True)
class Asking:
    """One request. values: what the client gave, by the parameters' names. offset, limit: of the page, for an endpoint
    with a list; after: the key of the last entry before it, for one that has keys. seconds: the time limit."""

    serving: Serving
    who: Identity
    values: Mapping[str, Any]
    given_policy: Policy | None = None
    given_root: NamedRoot | None = None
    offset: int = 0
    limit: int = PAGE
    after: str = ""
    seconds: float = SECONDS

    @property
    def enough(self) -> int:
        """Entries up to the end of the page, and one more."""
        return self.offset + self.limit + 1

    @property
    def policy(self) -> Policy:
        assert self.given_policy is not None
        return self.given_policy

    @property
    def root(self) -> NamedRoot:
        assert self.given_root is not None
        return self.given_root


@dataclass(frozen=True)
class Endpoint:
    """path: below /api/v1. ask: from a request to a report, or what msgspec makes JSON of; its thread's alone. answer:
    the type that describes it. listed: its field that is a list, of which a page is given. `ask` gives it from `offset`
    on if it `pages`, else from its beginning, and one entry more than wanted where there are more. keyed: pages follow
    the key of an entry, which this tells. may_be_none_yet: the root need not be there. reads: the root
    of a policy that must be: its key. process: it runs a command. whole: tokens of some policies may not ask.
    seconds: the time limit; instead: what to do beyond it."""

    path: str
    summary: str
    ask: Callable[[Asking], Any]
    answer: type
    of: Of = "service"
    parameters: Sequence[Parameter] = ()
    listed: str = ""
    pages: bool = False
    keyed: Callable[[Any], str] | None = None
    may_be_none_yet: bool = False
    reads: str = ""
    process: bool = False
    whole: bool = False
    seconds: float = SECONDS
    instead: str = "ask again later, or for less"
    tags: Sequence[str] = field(default=("questions",))


def asked_of_verb(
    verb: Any, names: Sequence[str] = (), *, limited: bool = False, **fixed: Any
) -> Callable[[Asking], Report]:
    """Calls a verb with what the client gave, and with its policy or root. limited: it takes the newest or first so
    many."""

    def ask(asking: Asking) -> Report:
        given = {name: asking.values[name] for name in names if asking.values[name] is not None}
        if limited:
            given["limit"] = asking.enough
        found: Report = verb(**_scope(asking), **fixed, **given, config=asking.serving.config)
        return found

    return ask


def _scope(asking: Asking) -> dict[str, Any]:
    if asking.given_root is not None:
        return {"cmroot": asking.given_root.place}
    return {"policy": asking.given_policy.name} if asking.given_policy is not None else {}


def asked_of_command(
    command: Sequence[str], names: Sequence[str], more: Sequence[str] = (), *, limited: bool = False
) -> Callable[[Asking], Any]:
    """Runs a command line about the root, for what may read much: its memory and time are its own. limited: as of
    `asked_of_verb`."""

    def ask(asking: Asking) -> Any:
        line = ["--config", str(asking.serving.scheduler.config_file), *command, f"--cmroot={asking.root.place}", *more]
        for name in names:
            if asking.values[name] is not None:
                line.append(f"--{name.replace('_', '-')}={asking.values[name]}")
        if limited:
            line.append(f"--limit={asking.enough}")
        code, said = run_command(line, asking.seconds)
        if code in (0, 3, 4) and said:
            return said
        raise CommandFailed(code, said)

    return ask


class CommandFailed(Exception):
    """How a command ended. code: None: by a signal. said: its JSON, or nothing."""

    def __init__(self, code: int | None, said: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code, self.said = code, said


# ---- parameters ---------------------------------------------------------------------------------------------------


def of_options(kind: type[Options], *names: str) -> list[Parameter]:
    """Fields of a command's options as parameters: with their ranges, defaults and descriptions."""
    hints, there = get_type_hints(kind, include_extras=True), {each.name: each for each in fields(kind)}
    found = []
    for name in names:
        one = there[name]
        default = None if one.default in (MISSING, "", None) else one.default
        if isinstance(default, timedelta):
            default = None
        found.append(Parameter(name, _kind(hints[name]), _says(kind, name), default))
    return found


def text(name: str, says: str, *, needed: bool = False) -> Parameter:
    kind: Any = Annotated[str, Query(max_length=TEXT)]
    return Parameter(name, kind if needed else kind | None, says, ... if needed else None)


def _kind(hint: Any) -> Any:
    """What FastAPI reads: of a union the first member that a text can say."""
    members = [each for each in _members(hint) if each is not type(None)]
    chosen = members[0]
    if get_origin(chosen) is Annotated:
        kind, limits = get_args(chosen)
        if isinstance(limits, Between):
            return Annotated[kind, Query(ge=limits.least, le=limits.most)] | None
    if get_origin(chosen) is Literal or chosen in (bool, int, float):
        return chosen | None
    return Annotated[str, Query(max_length=TEXT)] | None


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _says(kind: type[Options], name: str) -> str:
    """As its options describe a field: `name: ...`, or `one, name: ...`, and lines that go on."""
    for each in inspect.getmro(kind):
        match = re.search(rf"^ *(?:\w+, )*{name}(?:, \w+)*: (.+(?:\n {{4,}}  .+)*)", each.__doc__ or "", re.MULTILINE)
        if match:
            said = " ".join(match[1].split())
            return said[0].upper() + said[1:]
    return ""


def duration_of(name: str, given: str) -> timedelta:
    """Raises UsageError."""
    try:
        return parse_duration(given)
    except ValueError as error:
        raise UsageError(f"{name}: {error}", hint="write a duration such as 15m, 2h or 30d") from error
