"""What commands about assets and jobs report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from replicator.core.connections.source_config import IngestionConfig
from replicator.core.report import Report, Rows
from replicator.ingestion.ingestion_job import IngestionJob, JobDetail, Submitted
from replicator.ingestion.ingestion_request import OF_A_CLASS, Asset, with_class
from replicator.ingestion.job_figures import LandingFigures, QueueFigures
from replicator.ingestion.job_rows import digest_of
from replicator.ingestion.notices.outbox import Undelivered
from replicator.ingestion.replication_scope import allowed_policies


def _asset_fields(asset: Asset) -> dict[str, Any]:
    """Those with defaults, too."""
    return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(asset).items()}


@dataclass
class AssetShown(Report):
    """An asset, with what its class gives it. status: "created", "unchanged", "changed", "approved" or "shown".
    given_by: where retention and erasure come from: "asset", or "class NAME"; without those that it has not.
    policies: those that may replicate what lands of it, as its class says; None: all. not_made: of what an approval
    makes. digest: of the definition without its class, by which an approval names it."""

    status: str
    asset: Asset
    given_by: dict[str, str] = field(default_factory=dict)
    policies: tuple[str, ...] | None = None
    not_made: list[str] = field(default_factory=list)
    digest: str = ""

    @classmethod
    def of(cls, status: str, asset: Asset, ingestion: IngestionConfig) -> Self:
        whole, said = with_class(asset, ingestion), {}
        for name in OF_A_CLASS:
            if getattr(whole, name) is not None:
                said[name] = "asset" if getattr(asset, name) is not None else f"class {asset.classification}"
        return cls(status, whole, said, allowed_policies(asset, ingestion), digest=digest_of(asset))

    def to_dict(self) -> dict[str, Any]:
        policies = None if self.policies is None else list(self.policies)
        more = {"given_by": self.given_by, "policies": policies, "not_made": self.not_made}
        return {"status": self.status, **_asset_fields(self.asset), **more, "digest": self.digest}


@dataclass
class AssetsShown(Rows):
    """Assets, by name."""

    status: str
    assets: list[Asset]
    listed: ClassVar[str] = "assets"

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, "assets": list(map(_asset_fields, self.assets))}


@dataclass
class IngestionRequested(Report):
    """A request that is queued. position: in the queue, from 1. replaces: the job whose place it took. target: the
    landing table. checked: whether the source says that the table and its columns are there; unchecked: why it was not
    asked."""

    status: str
    job: int
    position: int
    replaces: int | None
    source: str
    target: str
    checked: bool = True
    unchecked: str = ""


@dataclass
class IngestionJobs(Rows):
    """Jobs, newest first."""

    status: str
    jobs: list[IngestionJob]
    listed: ClassVar[str] = "jobs"


@dataclass
class IngestionJobShown(Report):
    """A job with its request, its error in detail, and its changes, oldest first. undelivered: messages about it that
    receivers have not got yet."""

    status: str
    detail: JobDetail
    undelivered: list[Undelivered] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        found = msgspec.to_builtins(self.detail)
        return {
            "status": self.status,
            **found.pop("job"),
            **found,
            "undelivered": msgspec.to_builtins(self.undelivered),
        }


@dataclass
class RequestAnswer:
    """What became of one request. name: of its file, or its row's number; error, hint: why it was refused. checked,
    unchecked: as of `IngestionRequested`."""

    name: str
    requested_by: str
    job: int | None = None
    position: int | None = None
    checked: bool | None = None
    unchecked: str = ""
    error: str = ""
    hint: str = ""

    def queued(self, found: Submitted) -> None:
        self.job, self.position = found.job, found.position
        self.checked, self.unchecked = not found.unchecked, found.unchecked


@dataclass
class RequestsTaken(Rows):
    """Requests of a directory or of a table, in their order."""

    status: str
    place: str
    requests: list[RequestAnswer] = field(default_factory=list)
    listed: ClassVar[str] = "requests"


@dataclass
class DropZone(Report):
    """The SQL that lets a database's users make requests."""

    status: str
    sql: str


@dataclass
class IngestionStats(Report):
    """How ingestion does. slots: of all controllers; cap: of them that one asset may have. queue: jobs that are not
    over. landed: what was published in the time that was asked about."""

    status: str
    slots: int
    cap: int
    queue: QueueFigures
    landed: LandingFigures
