"""Bodies of actions. A field that corresponds to a command's option has the option's name; no field names a file or a
location that a command would open."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from replicator.errors import UsageError
from replicator.ingestion.adapters.intake import READERS
from replicator.ingestion.ingestion_request import Classification, Format, Mode, SchemaPolicy
from replicator.service.web.views import Ask, Words

T = TypeVar("T")

Named = Annotated[str, Field(pattern=r"^[^\x00-\x1f/.]{1,256}$")]
"""The name of a database or table."""

Names = Annotated[tuple[Named, ...], Field(max_length=200)]

Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,400}$")]
Lines = Annotated[tuple[Line, ...], Field(max_length=200)]

Partitions = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\x00-\x1f/=]{1,256}=[^\x00-\x1f]{1,4000}$")], ...], Field(max_length=200)
]
"""`k=v` or `k=v/k2=v2`; no path is built from it."""

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""The name of a hold, slot or run; cannot begin like an option."""

Quantity = Annotated[str, Field(pattern=r"^[0-9][0-9.]{0,19} ?[A-Za-z]{0,3}$")]
"""A duration or a size."""

_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{1,15})?(Z|[+-][0-9]{2}:?[0-9]{2})?"
Moment = Annotated[str, Field(pattern=rf"^([0-9]{{1,18}}|{_TIME}|-[0-9]{{1,6}}[a-z]{{1,2}}|yesterday)$")]
"""An event id, a time, or a time back from now; not a dump, which would be a path."""

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
    exemption: Words = ""
    retention: Quantity | None = None
    note: Words = ""
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ApproveAssetAsk(Ask):
    """An approval. digest: of the approved definition, as in `assets/A`."""

    digest: Words = ""


@dataclass(frozen=True, kw_only=True)
class LandingAsk(Ask):
    """The options of `replicator ingest request`. table: SOURCE:SCHEMA.TABLE."""

    table: Line
    asset: Line
    mode: Mode = "overwrite"
    watermark: Line | None = None
    key: Lines = ()
    split_column: Line | None = None
    readers: Annotated[int | None, Field(ge=1, le=READERS)] = None
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    note: Words = ""


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
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", hint="mend the field") from error


def consented(ask: Consent, name: str, what: str) -> None:
    """Raises UsageError if the name was not typed."""
    if ask.confirm != name:
        raise UsageError(f"{what} needs consent", hint=f'when it is meant, send "confirm": "{name}"')


def only(wanted: Sequence[str], known: Sequence[str], policy: str) -> None:
    """Raises UsageError for a database that does not belong to the policy."""
    foreign = [name for name in wanted if name.lower() not in known]
    if foreign:
        raise UsageError(f"{foreign[0]} is no database of policy {policy}", hint="see `databases` of the policy")


def fields_of(ask: Ask) -> dict[str, Any]:
    """Returns the fields for a verb that has the same ones, without those that are only recorded."""
    return {each.name: getattr(ask, each.name) for each in dataclasses.fields(ask) if each.name not in BESIDE}
