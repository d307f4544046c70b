"""Assets and requests as values: who may ingest data, and which table a request wants landed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from replicator.core.model import Value
from replicator.core.policy import matching_databases
from replicator.core.source_config import ClassConfig, IngestionConfig, MatchRule
from replicator.errors import Refused, UsageError
from replicator.metastore.events.scope import Patterns

Classification = Literal["public", "internal", "confidential", "personal"]
Mode = Literal["overwrite", "append", "merge"]
SchemaPolicy = Literal["fail", "recreate", "add_columns"]
Format = Literal["parquet", "orc"]

NAME = re.compile(r"[a-z0-9_]{1,128}", re.ASCII)
"""A name of a database or table that every metastore accepts."""


def is_text(text: str) -> bool:
    """Returns True if every database can store the text: it has no NUL and is encodable as UTF-8."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


class Asset(Value, frozen=True, omit_defaults=True):
    """The unit of management. owner, producers, consumers: names of users or groups. sources: names of
    `[ingestion.sources]`. erasure_ids, erasure_column: "db.table:column" of the ids of erased data subjects, and the
    column of landed tables that contains such an id; erasure_match: the rules by which both are equal, as of a purge;
    without any, values of the column's type are compared; `exemption`: the reason why a personal asset has none.
    retention: a duration, for the versions of its landing tables. approved_by: empty until a user other than its
    creator has approved it."""

    name: str
    owner: str
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    classification: Classification = "internal"
    erasure_ids: str | None = None
    erasure_column: str | None = None
    erasure_match: tuple[MatchRule, ...] | None = None
    exemption: str = ""
    retention: str | None = None
    note: str = ""
    created_by: str = ""
    approved_by: str = ""


class NotApproved(Refused):
    """The current definition of an asset has not been approved."""


def is_same_person(one: str, other: str) -> bool:
    """Returns True if two names denote the same user, who may be known by the machine, and by the proxy as
    `proxy:NAME`."""
    return one.removeprefix("proxy:") == other.removeprefix("proxy:")


SINGLE_USER = "for trying only: [ingestion] single_user lets users approve assets that they created"
"""The warning of all reports and pages in single-user mode."""


def is_approved(asset: Asset, ingestion: IngestionConfig) -> bool:
    """Returns True if the asset is approved. An approval by its creator counts in single-user mode only."""
    own = is_same_person(asset.created_by, asset.approved_by)
    return bool(asset.approved_by) and (ingestion.single_user or not own)


def as_approved(asset: Asset, ingestion: IngestionConfig) -> Asset:
    """Returns the asset as reports show it: without an approval that does not count."""
    return asset if is_approved(asset, ingestion) else msgspec.structs.replace(asset, approved_by="")


def check_approved(asset: Asset, ingestion: IngestionConfig) -> None:
    """Raises NotApproved if the asset is not approved."""
    if is_approved(asset, ingestion):
        return
    hint = f"another user than {asset.created_by} must run `replicator asset approve {asset.name}`"
    if asset.approved_by:
        told = f"asset {asset.name} was approved in single-user mode, by {asset.approved_by}, who created it"
        raise NotApproved(told, hint=hint)
    if ingestion.single_user:
        hint = f"run `replicator asset approve {asset.name}`"
    raise NotApproved(f"asset {asset.name} is not approved yet", hint=hint)


OF_A_CLASS = ("retention", "erasure_ids", "erasure_column", "erasure_match")
"""Fields that an asset inherits from its classification if it does not set them."""


def with_class(asset: Asset, ingestion: IngestionConfig) -> Asset:
    """Returns the asset with the defaults of `[ingestion.classes]`. Its own values take precedence; an asset with an
    exemption does not inherit erasure settings."""
    given = ingestion.classes.get(asset.classification, ClassConfig())
    names = [name for name in OF_A_CLASS if name == "retention" or not asset.exemption.strip()]
    found = {name: getattr(given, name) for name in names if getattr(asset, name) is None}
    if asset.erasure_column is None and not found.get("erasure_column"):
        found.pop("erasure_match", None)  # rules of a class are for those of its assets that have ids
    return msgspec.structs.replace(asset, **found)


class Split(Value, frozen=True, omit_defaults=True):
    """The ranges in which a table is read. column: None: the first column of the primary key, if there is one. readers:
    None: as configured for the source."""

    column: str | None = None
    readers: int | None = None


class Request(Value, frozen=True, omit_defaults=True):
    """A request to land a table. schema, table: at the source. mode: overwrite: all rows, replacing the existing ones;
    append: rows whose `watermark` is greater than all landed values, as a partition of their own; merge: these rows,
    replacing rows with the same `key`. late: how long after greater values of the watermark a row may become visible,
    as a duration: rows of that time are read again; "0s": never; None: running transactions of the source tell.
    max_loss: the share of the landed rows that an overwrite may remove, 0 to 1; None: that of `[ingestion]`. backfill:
    rows are read again from this value of the watermark on, and land once, by their key. rebuild: all rows are read,
    and replace those of a table that is appended to or merged. columns: those that land; empty: all. where: a condition
    of the rows that land, see `reading.request_selection`. masks: by column, the rule by which its values are hidden.
    least_rows, not_null, unique: what the landing table must have after the publication; a text of `unique` has one
    column, or several with commas."""

    asset: str
    source: str
    schema: str
    table: str
    mode: Mode = "overwrite"
    watermark: str | None = None
    late: str | None = None
    key: tuple[str, ...] = ()
    split: Split = Split()
    max_loss: float | None = None
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    requested_by: str = ""
    note: str = ""
    backfill: str | None = None
    rebuild: bool = False
    columns: tuple[str, ...] = ()
    where: str | None = None
    masks: dict[str, str] = msgspec.field(default_factory=dict)
    least_rows: int | None = None
    not_null: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()

    @property
    def uniques(self) -> list[tuple[str, ...]]:
        """The columns, in lower case, of each text of `unique`."""
        return [tuple(name.strip().lower() for name in each.split(",")) for each in self.unique]

    @property
    def identity(self) -> str:
        """The identity of asset and source table: requests with the same identity have the same landing table."""
        return msgspec.json.encode([self.asset, self.source, self.schema, self.table]).decode()

    @property
    def place(self) -> str:
        """The source table as SOURCE:SCHEMA.TABLE, for users and the log."""
        return f"{self.source}:{self.schema}.{self.table}"

    @property
    def target(self) -> tuple[str, str]:
        """Database and table of the landing table. Raises UsageError for names that a metastore does not accept."""
        database, table = f"{self.asset}_{self.schema}".lower(), self.table.lower()
        for what, name in (("database", database), ("table", table)):
            if not NAME.fullmatch(name):
                raise UsageError(
                    f"{self.place}: its landing {what} cannot be named {name!r}",
                    hint="a metastore accepts up to 128 letters, digits and underscores; create a view with such a "
                    "name in the source",
                )
        return database, table


class PartRequest(Request, frozen=True, omit_defaults=True):
    """A request for a table into which nested rows were flattened. whole: the table of the rows; part: the name of the
    nested part, in lower case."""

    whole: str = ""
    part: str = ""

    @property
    def place(self) -> str:
        """The part's address; never equal to that of a source table with the same name."""
        return f"{self.source}:{self.schema}.{self.whole}#{self.part}"


# ---- replication scope -----------------------------------------------------------------------------------------------
# The policies that replicate a landing table, and those that its classification permits: `[ingestion.classes]`. Pure.


class OutOfScope(Refused):
    """A policy replicates a landing table although the classification of the asset does not permit it."""


def allowed_policies(asset: Asset, ingestion: IngestionConfig) -> tuple[str, ...] | None:
    """Returns the names of policies that may replicate the asset's landing tables; None: all."""
    return ingestion.classes.get(asset.classification, ClassConfig()).policies


def beyond_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> dict[str, list[str]]:
    """Returns, by policy, the landing tables of a database that it replicates without permission."""
    allowed, found = allowed_policies(asset, ingestion), {}
    for policy in ingestion.replicating if allowed is not None else ():
        if policy.name not in (allowed or ()) and matching_databases(policy, [db]):
            patterns = Patterns.parse(policy.include, policy.exclude)
            if its := [table for table in tables if patterns.match(table)]:
                found[policy.name] = its
    return found


def check_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> None:
    """Raises OutOfScope for landing tables that a policy replicates without permission."""
    for policy, its in beyond_scope(asset, db, tables, ingestion).items():
        told = f"policy {policy} would replicate {db}.{its[0]} without permission"
        raise OutOfScope(
            f"{told}: asset {asset.name} is {asset.classification}",
            hint=f"exclude {db} from [policies.{policy}], or name the policy in "
            f"[ingestion.classes.{asset.classification}] policies",
        )


# ---- ingestion job ---------------------------------------------------------------------------------------------------
# Jobs as values: states and steps, what a controller claims, kinds of failure, and when a job is retried. Pure.


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
"""published: readers see the landed rows, and later steps are still to be done. failed: the job is retried;
failed_user, failed_type: it waits for another request. superseded: a newer request replaced it."""

WAITING = ("queued", "failed", "failed_user", "failed_type")
"""States of a job that a new request of the same identity replaces."""

STEPS = ("describe", "copy", "verify", "settle", "publish", "constrain", "grant", "clean")
"""In order of execution; each may run twice."""

UNPUBLISHED_STEPS = ("", *STEPS[: STEPS.index("publish")])
"""Steps before publication: a job at one of these has published nothing, because its holder records the step `publish`
in the store before it publishes."""

LEFT = ("superseded", "cancelled", "expired", "failed_user", "failed_type")
"""States in which no controller works on a job any more, and that do not determine whether it was published."""

Kind = Literal["component", "lock", "user", "type"]
"""component: a component between source and warehouse is unavailable at present. lock: another process or user holds
what the job requires, such as a lock or an approval. user: the request, or its result, is invalid. type: values of a
column fit no type."""

QUICK = (60.0, 240.0, 960.0)
"""Seconds to the next attempt after each of the first failures of a component."""

LATER = 3600.0
"""Seconds to the next attempt after further failures."""

UNLOCKED = 300.0
"""Seconds to the next attempt of a job that was blocked by a lock."""

JITTER = 0.2
"""The maximum fraction by which a delay is extended, so that jobs that failed together are not retried together."""


def following(step: str) -> str:
    """Returns the step after `step`; the last step follows itself."""
    return STEPS[min(STEPS.index(step) + 1, len(STEPS) - 1)]


def delay(kind: Kind, failures: int, chance: float) -> float:
    """Returns the seconds from a failure to the next attempt. failures: of components, in a row, with this one; chance:
    0 to 1."""
    if kind == "lock":
        seconds = UNLOCKED
    else:
        seconds = QUICK[failures - 1] if kind == "component" and failures <= len(QUICK) else LATER
    return seconds * (1 + JITTER * chance)


@dataclass(frozen=True)
class Failure:
    """A failure of a job. text: a short message for the requester, without a stack trace: what, where, why, what to do.
    detail: the complete error."""

    kind: Kind
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Submitted:
    """The result of a submission. position: in the queue, from 1. replaces: the job that this one superseded.
    unchecked: the reason why the source was not queried for its table; empty: it was."""

    job: int
    state: State
    position: int
    replaces: int | None = None
    unchecked: str = ""


@dataclass(frozen=True)
class Claimed:
    """A job that a holder works on. attempt: counts from 1. fence: a number that grows with every claim of any job: of
    two writers the one with the lower number is stale. step: the first incomplete one, "" if none is complete. facts:
    results of completed steps. cancelled: it was cancelled when it may have been published already: it continues only
    if it was."""

    job: int
    attempt: int
    fence: int
    holder: str
    request: Request
    step: str
    facts: dict[str, Any]
    cancelled: bool = False


class IngestionJob(Value, frozen=True, omit_defaults=False):
    """A job as displayed. source: SOURCE:SCHEMA.TABLE. target: DATABASE.TABLE. Times: seconds since 1970. due: time of
    the next attempt; None: never. rows, bytes, files: landed by it."""

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
    """A filter of jobs; an empty field matches all. target: DATABASE.TABLE."""

    asset: str = ""
    source: str = ""
    target: str = ""
    requester: str = ""
    states: tuple[str, ...] = ()


class JobChange(Value, frozen=True, omit_defaults=False):
    """A change of a job's state or step, as a row of the log. id: grows in the order of changes. step: the current one.
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
    """All details of a job. facts: results of its steps. changes: oldest first."""

    job: IngestionJob
    request: Request
    facts: dict[str, Any]
    error_detail: str
    changes: tuple[JobChange, ...]


COUNTED = ("rows", "bytes", "files", "splits", "consistent", "erased_rows", "schema_hash", "checksum")
"""Facts that are columns of the log."""


def places_of(facts: Mapping[str, Any]) -> list[str]:
    """Returns the directories that may have been published, of a job that has determined the location of its rows."""
    tables = [facts, *facts.get("parts", {}).values()]
    return [each for table in tables for each in (table.get("location"), *table.get("left", [])) if each]
