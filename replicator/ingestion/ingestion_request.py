"""Assets and requests as values: who may bring data in, and what somebody wants to be landed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from replicator.captures.events.scope import Patterns
from replicator.core.model import Value
from replicator.core.policy import matching_databases
from replicator.core.source_config import ClassConfig, IngestionConfig
from replicator.errors import Refused, UsageError

Classification = Literal["public", "internal", "confidential", "personal"]
Mode = Literal["overwrite", "append", "merge"]
SchemaPolicy = Literal["fail", "recreate", "add_columns"]
Format = Literal["parquet", "orc"]

NAME = re.compile(r"[a-z0-9_]{1,128}", re.ASCII)
"""Of a database or a table, as every metastore takes it."""


def is_text(text: str) -> bool:
    """Whether every database can keep it: no NUL, and nothing that is not UTF-8."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


class Asset(Value, frozen=True, omit_defaults=True):
    """The unit of management. owner, producers, consumers: names of users or groups. sources: names of
    `[ingestion.sources]`. erasure_ids, erasure_column: "db.table:column" of the ids of erased people, and the column of
    landed tables that holds such an id; `exemption`: why a personal asset has none. retention: a duration, for the
    versions of its landing tables. approved_by: empty until somebody else than who made it has approved it."""

    name: str
    owner: str
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    classification: Classification = "internal"
    erasure_ids: str | None = None
    erasure_column: str | None = None
    exemption: str = ""
    retention: str | None = None
    note: str = ""
    created_by: str = ""
    approved_by: str = ""


class NotApproved(Refused):
    """Nobody has approved an asset as it is now."""


def is_same_person(one: str, other: str) -> bool:
    """Whether two users are one person, who may be known by the machine, and by the proxy as `proxy:NAME`."""
    return one.removeprefix("proxy:") == other.removeprefix("proxy:")


def check_approved(asset: Asset) -> None:
    """Raises NotApproved."""
    if not asset.approved_by:
        hint = f"somebody else than {asset.created_by} runs `replicator asset approve {asset.name}`"
        raise NotApproved(f"asset {asset.name} is not approved yet", hint=hint)


OF_A_CLASS = ("retention", "erasure_ids", "erasure_column")
"""What an asset has of its classification, where it says nothing."""


def with_class(asset: Asset, ingestion: IngestionConfig) -> Asset:
    """An asset with what `[ingestion.classes]` gives it: what it says itself wins, and one with an exemption is not
    given a way to erase people."""
    given = ingestion.classes.get(asset.classification, ClassConfig())
    names = [name for name in OF_A_CLASS if name == "retention" or not asset.exemption.strip()]
    found = {name: getattr(given, name) for name in names if getattr(asset, name) is None}
    return msgspec.structs.replace(asset, **found)


class Split(Value, frozen=True, omit_defaults=True):
    """In which ranges a table is read. column: None: the first column of the primary key, or none. readers: None: as
    the source says."""

    column: str | None = None
    readers: int | None = None


class Request(Value, frozen=True, omit_defaults=True):
    """schema, table: at the source. mode: overwrite: all rows, instead of those that are there; append: rows whose
    `watermark` is greater than all that were landed, as a partition of their own; merge: these, instead of rows with
    the same `key`."""

    asset: str
    source: str
    schema: str
    table: str
    mode: Mode = "overwrite"
    watermark: str | None = None
    key: tuple[str, ...] = ()
    split: Split = Split()
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    requested_by: str = ""
    note: str = ""

    @property
    def identity(self) -> str:
        """Of its source: requests with the same one are about the same landing table."""
        return msgspec.json.encode([self.asset, self.source, self.schema, self.table]).decode()

    @property
    def place(self) -> str:
        """Where it comes from, for people and the log."""
        return f"{self.source}:{self.schema}.{self.table}"

    @property
    def target(self) -> tuple[str, str]:
        """Database and table of the landing table. Raises UsageError for names that a metastore does not take."""
        database, table = f"{self.asset}_{self.schema}".lower(), self.table.lower()
        for what, name in (("database", database), ("table", table)):
            if not NAME.fullmatch(name):
                raise UsageError(
                    f"{self.place}: its landing {what} cannot be called {name!r}",
                    hint="a metastore takes up to 128 letters, digits and underscores; make a view of such a name in "
                    "the source",
                )
        return database, table


class PartRequest(Request, frozen=True, omit_defaults=True):
    """For a table that nested rows were taken apart into. whole: the table of the rows; part: its name among them, in
    lower case."""

    whole: str = ""
    part: str = ""

    @property
    def place(self) -> str:
        """Never that of a table of this name at the source."""
        return f"{self.source}:{self.schema}.{self.whole}#{self.part}"


# ---- replication scope -----------------------------------------------------------------------------------------------
# Which policies replicate a landing table, and which of them its classification lets: `[ingestion.classes]`. Pure.


class OutOfScope(Refused):
    """A policy replicates a landing table that the classification of its asset does not let it have."""


def allowed_policies(asset: Asset, ingestion: IngestionConfig) -> tuple[str, ...] | None:
    """Names of policies that may replicate what lands of an asset; None: all."""
    return ingestion.classes.get(asset.classification, ClassConfig()).policies


def beyond_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> dict[str, list[str]]:
    """By policy, those of a database's landing tables that it replicates and may not."""
    allowed, found = allowed_policies(asset, ingestion), {}
    for policy in ingestion.replicating if allowed is not None else ():
        if policy.name not in (allowed or ()) and matching_databases(policy, [db]):
            patterns = Patterns.parse(policy.include, policy.exclude)
            if its := [table for table in tables if patterns.match(table)]:
                found[policy.name] = its
    return found


def check_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> None:
    """Raises OutOfScope for landing tables that a policy replicates and may not."""
    for policy, its in beyond_scope(asset, db, tables, ingestion).items():
        raise OutOfScope(
            f"policy {policy} would replicate {db}.{its[0]}, and may not: asset {asset.name} is {asset.classification}",
            hint=f"leave {db} out of [policies.{policy}], or name the policy in "
            f"[ingestion.classes.{asset.classification}] policies",
        )


# ---- ingestion job ---------------------------------------------------------------------------------------------------
# Jobs as values: their states and steps, what a controller holds, how one fails and when it is tried again. Pure.


State = Literal[
    "queued",
    "running",
    "published",
    "done",
    "failed",
    "failed_user",
    "failed_type",
    "superseded",
    "cancelled",
    "expired",
]
"""published: readers see what it landed, and the steps after that are still to be done. failed: it is tried again;
failed_user, failed_type: it waits for another request. superseded: another request took its place."""

WAITING = ("queued", "failed", "failed_user", "failed_type")
"""States of a job that a new request of its identity takes the place of."""

STEPS = ("describe", "copy", "verify", "settle", "publish", "constrain", "grant", "clean")
"""In their order; each may be repeated."""

UNPUBLISHED_STEPS = ("", *STEPS[: STEPS.index("publish")])
"""A job is at one of these before anything of it can be published: its holder tells the store before it publishes."""

LEFT = ("superseded", "cancelled", "expired", "failed_user", "failed_type")
"""States in which nobody works on a job any more, and that say nothing of a publication."""

Kind = Literal["component", "lock", "user", "type"]
"""component: something between here and there does not work at present. lock: others hold what the job needs, such as
an approval. user: the request, or what it leads to, is wrong. type: a column's values fit no type."""

QUICK = (60.0, 240.0, 960.0)
"""Seconds to the next try after the first failures of a component."""

LATER = 3600.0
"""Seconds to the next try after further ones."""

UNLOCKED = 300.0
"""Seconds to the next try of a job that found a lock."""

JITTER = 0.2
"""The share by which a delay may be longer: what failed together is not tried again together."""


def following(step: str) -> str:
    """The step after `step`; after the last one that one again."""
    return STEPS[min(STEPS.index(step) + 1, len(STEPS) - 1)]


def delay(kind: Kind, failures: int, chance: float) -> float:
    """Seconds from a failure to the next try. failures: of components, in a row, with this one; chance: 0 to 1."""
    if kind == "lock":
        seconds = UNLOCKED
    else:
        seconds = QUICK[failures - 1] if kind == "component" and failures <= len(QUICK) else LATER
    return seconds * (1 + JITTER * chance)


@dataclass(frozen=True)
class Failure:
    """text: for who asked: short, without a stack trace: what, where, why, what to do. detail: all of it."""

    kind: Kind
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Submitted:
    """position: in the queue, from 1. replaces: the job that this one took the place of. unchecked: why the source was
    not asked for its table; empty: it was."""

    job: int
    state: State
    position: int
    replaces: int | None = None
    unchecked: str = ""


@dataclass(frozen=True)
class Claimed:
    """A job that a holder works on. attempt: counts from 1. fence: a number that grows with every claim of any job: of
    two writers the one with the lower number is late. step: the first that is not done, "" when none is. facts: what
    the completed steps have found. cancelled: it was cancelled when it may have been published already: it continues
    only if it was."""

    job: int
    attempt: int
    fence: int
    holder: str
    request: Request
    step: str
    facts: dict[str, Any]
    cancelled: bool = False


class IngestionJob(Value, frozen=True, omit_defaults=False):
    """A job as it is shown. source: SOURCE:SCHEMA.TABLE. target: DATABASE.TABLE. Times: seconds since 1970. due: when
    it is tried next; None: never. rows, bytes, files: that it landed."""

    job: int
    asset: str
    source: str
    target: str
    mode: Mode
    state: State
    step: str
    attempt: int
    requested_by: str
    approved_by: str
    queued: float
    due: float | None
    begun: float | None
    ended: float | None
    holder: str
    rows: int | None
    bytes: int | None
    files: int | None
    event_id: int | None
    error_kind: str
    error_text: str
    cancelled_by: str


@dataclass(frozen=True)
class JobFilter:
    """Which jobs; what is empty filters nothing. target: DATABASE.TABLE."""

    asset: str = ""
    source: str = ""
    target: str = ""
    requester: str = ""
    states: tuple[str, ...] = ()


class JobChange(Value, frozen=True, omit_defaults=False):
    """A change of a job's state or step, as a row of the log. id: grows in the order of changes. step: that it is at.
    actor: who changed it. schema_hash, checksum, ...: as far as known."""

    id: int
    job: int
    attempt: int
    asset: str
    source: str
    target: str
    requester: str
    approver: str
    mode: str
    state: str
    step: str
    actor: str
    at: float
    rows: int | None
    bytes: int | None
    files: int | None
    splits: int | None
    consistent: bool | None
    erased_rows: int | None
    schema_hash: str | None
    checksum: str | None
    event_id: int | None
    error_kind: str
    error_text: str


class JobDetail(Value, frozen=True, omit_defaults=False):
    """All of a job. facts: what its steps have found. changes: oldest first."""

    job: IngestionJob
    request: Request
    facts: dict[str, Any]
    error_detail: str
    changes: tuple[JobChange, ...]


COUNTED = ("rows", "bytes", "files", "splits", "consistent", "erased_rows", "schema_hash", "checksum")
"""Facts that are columns of the log."""
