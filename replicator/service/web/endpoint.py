"""Endpoints of queries: path, parameters, subject and response. Most are a verb of `replicator/commands`, whose
fields are the parameters, with the ranges and values of its options.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from fastapi import Query

from cmroot.root import FORMAT
from cmroot.store.place import as_written
from replicator.commands.base import Options
from replicator.core.config import Config, nearest
from replicator.core.not_replicated import Report
from replicator.core.option import Between, declared_fields
from replicator.core.policy import Policy
from replicator.core.service_config import option_of
from replicator.core.text import parse_duration
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.api_tokens import Identity
from replicator.service.web.serving import Serving, require, run_command

# ---- named roots -----------------------------------------------------------------------------------------------------
# The `$cmroot`s that may be queried: those of the configuration, by the names of their keys. Clients send no path.


OPTIONS = ("cmroot", "source_cmroot", "target_cmroot")


@dataclass(frozen=True)
class NamedRoot:
    """A root of the configuration. name: such as "policies/west/cmroot". policies: those with a key that names this
    location."""

    name: str
    place: str
    policies: tuple[str, ...]

    def may(self, who: Identity) -> bool:
        """Returns True if the user may view everything in the root."""
        return all(who.may("viewer", each) for each in self.policies or ("",))


def roots_of(config: Config) -> list[NamedRoot]:
    """Returns roots by name: of policies, of [defaults], and of jobs with such an option."""
    places = dict(_places(config))
    found = []
    for name, place in sorted(places.items()):
        users = {
            other.split("/")[1] for other, each in places.items() if each == place and other.startswith("policies/")
        }
        found.append(NamedRoot(name, place, tuple(sorted(users))))
    return found


def _places(config: Config) -> Iterator[tuple[str, str]]:
    for name, policy in config.policies.items():
        yield f"policies/{name}/cmroot", normal_place(policy.cmroot)
        yield f"policies/{name}/target_cmroot", normal_place(policy.target_cmroot)
    for option in OPTIONS:
        place = getattr(config.defaults, option)
        if place:
            yield f"defaults/{option}", normal_place(place)
    for name, job in config.service.jobs.items():
        for option in OPTIONS:
            given = option_of(job.command, f"--{option.replace('_', '-')}")
            if given:
                yield f"jobs/{name}/{option}", normal_place(given)


def normal_place(place: str) -> str:
    """Normalises a location of the configuration: roots are equal if their normalised locations are. An invalid
    location is returned unchanged."""
    try:
        return str(as_written(place))
    except (Error, OSError):
        return place


def root_for(config: Config, who: Identity, name: str | None) -> NamedRoot:
    """Returns the root of a name; None: that of [defaults], else the only one that the user may view. Raises
    HTTPException 401 or 403, ObjectNotFound for an unknown name, UsageError if several are possible."""
    there = roots_of(config)
    if name is None:
        wanted = [each for each in there if each.name == "defaults/cmroot"] or [each for each in there if each.may(who)]
        if len({each.place for each in wanted}) != 1:
            names = ", ".join(each.name for each in wanted) or "none is configured"
            raise UsageError("the parameter root is required", hint=f"root=NAME, one of: {names}")
        found = wanted[0]
    else:
        named = next((each for each in there if each.name == name), None)
        if named is None:
            if who.policies:  # do not disclose which names exist
                require(who, "viewer", "")
            known = ", ".join(each.name for each in there) or "none is configured"
            hint = nearest(name, [each.name for each in there]) + f"use a name, not a path: {known}"
            raise ObjectNotFound(f"no configured root is named {name!r}", hint=hint)
        found = named
    for each in found.policies or ("",):
        require(who, "viewer", each)
    return found


def refuse_none_yet(place: str) -> None:
    """Raises ObjectNotFound if the root was not created yet."""
    if not (as_written(place) / FORMAT).exists():
        raise ObjectNotFound(f"{place} is not a $cmroot yet", hint="the first run that writes to it creates it")


# ---- endpoint --------------------------------------------------------------------------------------------------------


Of = Literal["service", "policy", "root"]

SECONDS = 15.0
"""Time limit of a query that this process answers."""

PAGE, LARGEST = 100, 1000
"""Entries of a page by default, and at most."""

TEXT = 4000  # maximum characters of a parameter


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or of the path. kind: an annotation as FastAPI reads it."""

    name: str
    kind: Any
    says: str
    default: Any = None
    in_path: bool = False


@dataclass(frozen=True)
class Asking:
    """A request. values: of the client, by the parameters' names. offset, limit: of the page, for an endpoint with a
    list; after: the key of the last entry before it, for one that has keys. seconds: the time limit."""

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
    """A query. path: below /api/v1. ask: returns a report, or a value that msgspec encodes as JSON, for a request;
    called in a thread of its own. answer: the type that describes the response. listed: its field with a list, of which
    a page is returned. `ask` returns the list from `offset` on if it `pages`, else from its beginning, and one entry
    more than requested if there are more. keyed: returns the key of an entry, which pages follow. may_be_none_yet: the
    root need not exist. reads: the key of the policy's root that must exist. process: it runs a command. whole: refused
    for tokens of some policies. seconds: the time limit; instead: the hint when it is exceeded."""

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
    instead: str = "try again later, or query less"
    tags: Sequence[str] = field(default=("questions",))


def asked_of_verb(
    verb: Any, names: Sequence[str] = (), *, limited: bool = False, **fixed: Any
) -> Callable[[Asking], Report]:
    """Returns a function that calls a verb with the client's values, and with its policy or root. limited: the verb has
    a limit of newest or first entries."""

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
    """Returns a function that runs a command line about the root, for queries that may read much: its memory and time
    are its own. limited: as in `asked_of_verb`."""

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
    """The failure of a command. code: None: ended by a signal. said: its JSON, or empty."""

    def __init__(self, code: int | None, said: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code, self.said = code, said


# ---- parameters ---------------------------------------------------------------------------------------------------


def of_options(kind: type[Options], *names: str) -> list[Parameter]:
    """Returns fields of a command's options as parameters, with their ranges, defaults and descriptions."""
    there, found = {each.name: each for each in declared_fields(kind)}, []
    for name in names:
        one = there[name]
        default = None if one.default in (MISSING, "", None) else one.default
        if isinstance(default, timedelta):
            default = None
        found.append(Parameter(name, _kind(one.values), one.option.help, default))
    return found


def text(name: str, says: str, *, needed: bool = False) -> Parameter:
    kind: Any = Annotated[str, Query(max_length=TEXT)]
    return Parameter(name, kind if needed else kind | None, says, ... if needed else None)


def _kind(values: Sequence[Any]) -> Any:
    """Returns the annotation for FastAPI: of several types the first one."""
    chosen = values[0]
    if get_origin(chosen) is Annotated:
        kind, limits = get_args(chosen)
        if isinstance(limits, Between):
            return Annotated[kind, Query(ge=limits.least, le=limits.most)] | None
    if get_origin(chosen) is Literal or chosen in (bool, int, float):
        return chosen | None
    return Annotated[str, Query(max_length=TEXT)] | None


def duration_of(name: str, given: str) -> timedelta:
    """Parses a duration. Raises UsageError."""
    try:
        return parse_duration(given)
    except ValueError as error:
        raise UsageError(f"{name}: {error}", hint="write a duration such as 15m, 2h or 30d") from error


# ---- cursors ---------------------------------------------------------------------------------------------------------
# Cursors: where the next page of a list begins. Opaque to clients, and bound to the query that returned them. Pure.


FARTHEST = 100_000
"""Maximum entries of a list that pages reach."""


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    asked: str
    at: int | str


def cursor_to(at: int | str, asked: str) -> str:
    """Returns a cursor. at: an offset, or the key of the last entry. asked: from `digest`."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(asked, at))).decode().rstrip("=")


def read_cursor(text: str | None, asked: str, kind: type[int] | type[str] = int) -> Any:
    """Returns the position of a cursor; 0 or "" for none. Raises UsageError for an invalid cursor, and for that of
    another endpoint."""
    if not text:
        return kind()
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(data, type=_Cursor)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise UsageError("invalid cursor", hint="use `next` of the previous page, or omit it") from error
    if found.asked == asked and isinstance(found.at, int) and found.at > FARTHEST:
        raise UsageError(f"paging ends after {FARTHEST:,} entries of a list", hint="filter the list")
    if found.asked != asked or type(found.at) is not kind or (isinstance(found.at, int) and found.at < 0):
        hint = "keep filters and limit unchanged, or omit the cursor to start again"
        raise UsageError("this cursor belongs to another query", hint=hint)
    return found.at


def digest(path: str, values: Mapping[str, Any]) -> str:
    """Returns a digest of the parameters of a query, except its cursor."""
    said = {name: value for name, value in sorted(values.items()) if name != "cursor"}
    return hashlib.sha256(msgspec.json.encode([path, said])).hexdigest()[:16]
