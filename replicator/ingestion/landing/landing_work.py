"""A claimed job at work: all that its steps work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cmroot.store.place import Place, join, name_of
from replicator.core.engine import AutoEngine
from replicator.core.model import Column
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.errors import Error
from replicator.ingestion.ingestion_request import Asset, Claimed, PartRequest, Request
from replicator.ingestion.landing.landing_schema import RowsRefused, landed_columns
from replicator.ingestion.landing.publishing import columns_of, landing_of
from replicator.metastore.client import Metastore

Facts = dict[str, Any]
"""What the steps of a job have found so far: JSON."""


class CopyDiffers(Error):
    """The rows that arrived are not those of the source."""

    exit_code = 75
    transient = True


@dataclass(frozen=True)
class Work:
    """A claimed job, and all that its steps work with. session: a Spark session on the landing warehouse, of this job's
    own. remembered: what the newest published job of the same request has found. kept: of another job, by its number,
    the directories that are to stay once it has ended; None: all of them."""

    claimed: Claimed
    asset: Asset
    config: IngestionConfig
    metastore: Metastore
    engines: AutoEngine
    session: Any
    remembered: Facts
    kept: Callable[[int], frozenset[str] | None]

    @property
    def request(self) -> Request:
        return self.claimed.request

    @property
    def home(self) -> str:
        """The directory of the landing table."""
        return join(self.config.landing, self.asset.name.lower(), self.request.schema.lower(), self.request.target[1])

    @property
    def settles(self) -> bool:
        """Whether rows are not published as they came."""
        return self.request.mode == "merge" or bool(self.asset.erasure_ids and self.asset.erasure_column)

    @property
    def source(self) -> SourceConfig:
        return self.config.sources[self.request.source]

    def part(self, name: str) -> Work:
        """The same for a table that nested rows were taken apart into."""
        table = f"{self.request.table}__{name}".lower()
        given = msgspec.structs.asdict(self.request) | {"table": table}
        asked = PartRequest(**given, whole=self.request.table, part=name.lower())
        return replace(self, claimed=replace(self.claimed, request=asked))

    def directory(self, kind: str) -> str:
        """Of this claim: "v", what is published, "in", rows as they came, or "st", rows not yet taken apart."""
        return join(self.home, f"{kind}-{self.claimed.job}-{self.claimed.fence}")


def sizes_of(directory: str) -> dict[str, int]:
    """Files below a directory, and their bytes; without those that readers do not see."""
    files = bytes_ = 0
    for child in Place(directory).children():
        name = name_of(child.path)
        if name.startswith(("_", ".")):
            continue
        if child.is_directory:
            below = sizes_of(join(directory, name))
            files, bytes_ = files + below["files"], bytes_ + below["bytes"]
        else:
            files, bytes_ = files + 1, bytes_ + child.size
    return {"files": files, "bytes": bytes_}


def columns_for(work: Work, found: Sequence[Column]) -> list[list[str]]:
    """The columns that the landing table will have, of those of its source. Raises SchemaRefused, and RowsRefused for a
    column that the request or the asset names and that is not there."""
    wanted = landed_columns(found)
    names = {column.name for column in wanted}
    erased = work.asset.erasure_column if work.asset.erasure_ids else None
    for name in filter(None, (*work.request.key, work.request.watermark, erased)):
        if name.lower() not in names:
            told = f"{work.request.schema}.{work.request.table} has no column {name}"
            raise RowsRefused(told, hint=f"it has {', '.join(sorted(names))}")
    table = landing_of(work.metastore, work.asset, work.request)
    return [[column.name, column.type] for column in columns_of(table, wanted, work.request)]
