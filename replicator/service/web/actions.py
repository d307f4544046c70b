"""Actions over HTTP: their bodies; each is done once per Idempotency-Key, and recorded: who, from where, what, why.

A field of a body that corresponds to a command's option has the option's name; no field names a file or a location that
a command would open. The record of a run is written in the transaction that queues the run: a killed server leaves both
or neither. That of a call is written before it, and its response after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from fastapi import HTTPException, Request
from pydantic import Field, TypeAdapter, ValidationError

from replicator.core.config import Config
from replicator.core.source_config import MatchRule
from replicator.errors import Error, Refused, UsageError
from replicator.ingestion.ingestion_request import Classification
from replicator.service.api_tokens import Identity, Role
from replicator.service.jobs import Job
from replicator.service.runs import ServiceRun
from replicator.service.store import (
    UNFINISHED,
    Action,
    AdHocRun,
    ServiceStore,
    action_of,
    is_open,
    open_action,
    recording,
    reopen_action,
    set_answer,
)
from replicator.service.web.endpoint import normal_place
from replicator.service.web.responses import Ask, Asked, Words
from replicator.service.web.serving import Serving, Who, require

T = TypeVar("T")

Named = Annotated[str, Field(pattern=r"^[^\x00-\x1f/.]{1,256}$")]
"""The name of a database or table."""

Names = Annotated[tuple[Named, ...], Field(max_length=200)]

Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,400}$")]
Lines = Annotated[tuple[Line, ...], Field(max_length=200)]

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

Partitions = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\x00-\x1f/=]{1,256}=[^\x00-\x1f]{1,4000}$")], ...], Field(max_length=200)
]
"""`k=v` or `k=v/k2=v2`; no path is built from it."""

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""The name of a hold, slot or run; cannot begin like an option."""

Quantity = Annotated[str, Field(pattern=r"^[0-9][0-9.]{0,19} ?[A-Za-z]{0,3}$")]
"""A duration or a size."""

_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{1,15})?(Z|[+-][0-9]{2}:?[0-9]{2})?"
Moment = Annotated[str, Field(pattern=rf"^(@?[0-9]{{1,18}}|{_TIME}|-[0-9]{{1,6}}[a-z]{{1,2}}|yesterday)$")]
"""An event id, `@POSITION`, a time, or a time back from now; not a dump, which would be a path."""

A = TypeVar("A", bound=Ask)

BESIDE = frozenset({"reason", "confirm", "policy", "root"})
"""Fields that are not options."""


@dataclass(frozen=True)
class Consent(Ask):
    """A body with consent. confirm: the name of the changed object, typed again; required unless nothing is changed."""

    confirm: Words = ""


@dataclass(frozen=True)
class VerifyAsk(Ask):
    """The options of `replicator verify`."""

    db: Names = ()
    level: Literal["metadata", "size", "crc", "checksum"] | None = None
    sample: Annotated[int | None, Field(ge=1, le=10**9)] = None
    sample_bytes: Quantity | None = None


@dataclass(frozen=True)
class DrillAsk(Ask):
    """The options of `replicator drill`; db: by the replica's names."""

    db: Names = ()
    sample: Annotated[int | None, Field(ge=0, le=10**9)] = None
    keep: bool = False
    clean: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class PlanAsk(Ask):
    """The options of `replicator plan`."""

    adopt: bool = False
    drop_left: bool = False


@dataclass(frozen=True)
class ApplyAsk(Consent):
    """The options of `replicator apply`; confirm: the policy."""

    allow_removals: bool = False


@dataclass(frozen=True)
class RepairAsk(Consent):
    """The options of `replicator repair`; confirm: the policy."""

    db: Named | None = None
    table: Names = ()
    level: Literal["metadata", "size", "crc", "checksum"] | None = None
    drop_extra: bool = False
    allow_removals: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class SwitchoverAsk(Consent):
    """The options of `replicator switchover`; confirm: the policy."""

    to: Literal["source", "target"] | None = None
    abort: bool = False
    force: bool = False
    drain_timeout: Quantity | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class FailoverAsk(Consent):
    """The options of `replicator failover`: without `force` only a report; confirm: the policy."""

    force: bool = False
    allow_partial: bool = False
    look: bool = False


@dataclass(frozen=True)
class FailbackAsk(Consent):
    """The options of `replicator failback`; confirm: the policy."""

    switch: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class RestoreAsk(Consent):
    """The options of `replicator restore POLICY`. Over an existing database (`force`) both `into` and confirm are its
    name."""

    policy: Words
    db: Named
    to: Moment
    table: Names = ()
    partition: Partitions = ()
    into: Named | None = None
    force: bool = False
    allow_missing: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class UndoAsk(Consent):
    """The options of `replicator audit undo`. root: as in `cmroots/ROOT`; confirm: the run."""

    root: Words = "defaults"
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class HoldAsk(Ask):
    """The options of `replicator cm hold`."""

    name: Id
    at: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class AssetAsk(Ask):
    """The options of `replicator asset create`; a list for repeated options."""

    name: Line
    owner: Line
    producers: Lines = ()
    consumers: Lines = ()
    sources: Lines = ()
    classification: Classification = "internal"
    erasure_ids: Line | None = None
    erasure_column: Line | None = None
    erasure_match: tuple[MatchRule, ...] = ()
    exemption: Words = ""
    retention: Quantity | None = None
    note: Words = ""
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ApproveAssetAsk(Ask):
    """An approval. digest: of the approved definition, as in `assets/A`."""

    digest: Words = ""


@dataclass(frozen=True)
class RootAsk(Ask):
    """A body that names a root. root: as in `cmroots/ROOT`."""

    root: Words = "defaults"


@dataclass(frozen=True, kw_only=True)
class RemovalAsk(RootAsk):
    """A hold on a removal. on: a location, or a glob for DB.TABLE or DB.TABLE/PARTITION. until: ISO 8601; None: for
    ever."""

    on: Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,4000}$")]
    reason: Annotated[str, Field(pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", max_length=2000)] = field()  # required
    until: Annotated[str, Field(pattern=rf"^{_TIME}$")] | None = None


@dataclass(frozen=True, kw_only=True)
class LegalHoldAsk(RemovalAsk):
    """The options of `replicator legal-hold add`."""

    name: Id


def body_from(kind: type[T], given: Mapping[str, Any]) -> T:
    """Builds a body from a form's fields. Raises UsageError for input that the API would refuse."""
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(wrong, hint="go back, and correct it in the form") from None


def options_of(ask: Ask) -> tuple[str, ...]:
    """Returns the options of a command line, each in one argument: a value cannot become another option."""
    found: list[str] = []
    for each in dataclasses.fields(ask):
        value, name = getattr(ask, each.name), "--" + each.name.replace("_", "-")
        if each.name in BESIDE or value is None or value is False:
            continue
        if value is True:
            found.append(name)
        else:
            found += [f"{name}={one}" for one in (value if isinstance(value, tuple) else (value,))]
    return tuple(found)


def body_of(kind: type[A], given: Mapping[str, object]) -> A:
    """Builds a body from a form's fields. Raises UsageError for input that the API refuses, too."""
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", hint="fix the field") from error


def consented(ask: Consent, name: str, what: str) -> None:
    """Raises UsageError if the name was not typed."""
    if ask.confirm != name:
        raise UsageError(f"{what} requires confirmation", hint=f'to confirm, send "confirm": "{name}"')


def only(wanted: Sequence[str], known: Sequence[str], policy: str) -> None:
    """Raises UsageError for a database that does not belong to the policy."""
    foreign = [name for name in wanted if name.lower() not in known]
    if foreign:
        raise UsageError(f"policy {policy} has no database {foreign[0]}", hint="see `databases` of the policy")


def fields_of(ask: Ask) -> dict[str, Any]:
    """Returns the fields for a verb that has the same ones, without those that are only recorded."""
    return {each.name: getattr(ask, each.name) for each in dataclasses.fields(ask) if each.name not in BESIDE}


# ---- recorded actions ------------------------------------------------------------------------------------------------


KEY = 200
"""Maximum characters of an Idempotency-Key."""

LONG = 120.0
"""Seconds after which an open action that this server is not doing counts as killed."""

AT_WORK = "a request with this Idempotency-Key is running; try again later"


@dataclass(frozen=True)
class What:
    """An action's name, its subject and its reason."""

    action: str
    subject: str
    reason: str


def serving_of(request: Request) -> Serving:
    """Returns this server's `Serving`."""
    serving: Serving = request.app.state.serving
    return serving


def do_once(request: Request, who: Who, what: What, do: Callable[[], Any]) -> Any:
    """Does an action, whose response is JSON. A request with the same key receives the stored response, and nothing is
    done; an action that failed or was killed is done again, by one of several requests. Raises HTTPException 409 if the
    key belongs to another action, or the request is running; 422 if the key was used with another body."""
    serving = serving_of(request)
    store = serving.store
    wanted = _wanted(request, who, what)
    before = _before(store, wanted)
    if before is not None and not is_open(before):
        return before.answer
    id = _again(serving, before) if before is not None else _first(store, wanted)
    serving.at_work.add(id)
    try:
        answer = do()
    except Exception as error:
        set_answer(store, id, {"failed": error.message if isinstance(error, Error) else type(error).__name__})
        raise
    else:
        set_answer(store, id, answer)
    finally:
        serving.at_work.discard(id)
    return answer


def queue_once(request: Request, who: Who, what: What, queued: Job | AdHocRun) -> Asked:
    """Queues a run and records it in one transaction. Raises HTTPException as `do_once`, and as
    `ServiceStore.enqueue`."""
    store = serving_of(request).store
    wanted = _wanted(request, who, what)
    for last in (False, True):
        before = _before(store, wanted)
        if before is not None:
            return Asked(**before.answer)
        try:
            also = recording(store, wanted)
            return Asked(*store.enqueue(queued, store.now(), by=who.name, reason=what.reason, also=also))
        except Error as error:  # also if the same request was recorded concurrently
            if last or isinstance(error, Refused):
                raise
    raise AssertionError("not reached")


def _first(store: ServiceStore, wanted: Action) -> int:
    try:
        return open_action(store, wanted)
    except Error:
        if wanted.key and action_of(store, wanted.who, wanted.key):  # the same request arrived twice at once
            raise HTTPException(409, AT_WORK) from None
        raise


def _again(serving: Serving, before: Action) -> int:
    young = before.answer == UNFINISHED and serving.store.now() - before.at < LONG
    if young or before.id in serving.at_work or not reopen_action(serving.store, before):
        raise HTTPException(409, AT_WORK)
    return before.id


def _wanted(request: Request, who: Who, what: What) -> Action:
    key = request.headers.get("Idempotency-Key") or None
    if key is not None and len(key) > KEY:
        raise HTTPException(400, f"an Idempotency-Key has at most {KEY} characters")
    address = request.client.host if request.client else ""
    body: str = request.state.body
    return Action(0, 0.0, who.name, address, what.action, what.subject, what.reason, key, None, body if key else "")


def _before(store: ServiceStore, wanted: Action) -> Action | None:
    found = action_of(store, wanted.who, wanted.key) if wanted.key else None
    if found is not None and (found.action, found.subject) != (wanted.action, wanted.subject):
        raise HTTPException(409, f"this Idempotency-Key was already used for `{found.action} {found.subject}`")
    if found is not None and found.digest and found.digest != wanted.digest:
        raise HTTPException(422, "this Idempotency-Key was already used with another body")
    return found


# ---- known roots -----------------------------------------------------------------------------------------------------
# Roots that may be named over HTTP: those of policies and of `[defaults]`; never by their paths.


DEFAULTS, TARGET = "defaults", ":target"
UNDO = "undo:"
"""Prefix of the root's name in the name of an ad-hoc run."""


@dataclass(frozen=True)
class KnownRoot:
    """A root by its name over HTTP. name: `P` for the root of a policy's source, `P:target` for that of its target,
    `defaults` for that of `[defaults]`. policies: all that use it, however they write its path."""

    name: str
    place: str
    policies: tuple[str, ...]


def known_roots(config: Config) -> dict[str, KnownRoot]:
    """Returns roots by name; a location that several policies use has several names. A policy called `defaults` has
    that name."""
    places = {DEFAULTS: normal_place(config.defaults.cmroot)} if config.defaults.cmroot else {}
    users: dict[str, list[str]] = {}
    for name, policy in config.policies.items():
        mine = {name: normal_place(policy.cmroot), name + TARGET: normal_place(policy.target_cmroot)}
        places |= mine
        for place in dict.fromkeys(mine.values()):
            users.setdefault(place, []).append(name)
    return {name: KnownRoot(name, place, tuple(users.get(place, ()))) for name, place in places.items()}


def sees(config: Config, who: Identity, run: ServiceRun) -> bool:
    """Returns True if the user may view a run."""
    return all(who.may("viewer", each) for each in _policies_of(config, run))


def refuse_unseen(config: Config, who: Identity, run: ServiceRun) -> None:
    """Raises as `require` if the user may not view a run."""
    for each in _policies_of(config, run):
        require(who, "viewer", each)


def _policies_of(config: Config, run: ServiceRun) -> tuple[str, ...]:
    """Returns the policies whose data a run may show: for an undo, all that use its root."""
    root = known_roots(config).get(run.job.removeprefix(UNDO)) if run.job.startswith(UNDO) else None
    return (run.policy, *root.policies) if root else (run.policy,)


def root_for(request: Request, who: Who, role: Role, name: str) -> KnownRoot:
    """Returns a root on which the user may act: the role is required for all policies that use it. Raises HTTPException
    404, and as `require`."""
    found = known_roots(serving_of(request).config).get(name)
    if found is None:
        require(who, role, name.removesuffix(TARGET))
        raise HTTPException(404, f"no root is named {name!r}: use a policy's name, P{TARGET} or {DEFAULTS}")
    for policy in found.policies or ("",):
        require(who, role, policy)
    return found
