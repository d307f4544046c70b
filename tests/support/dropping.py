"""A drop zone of files, and an asset of it whose tables land. `replicator` runs in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from names import unique
from purges import Warehouse

import replicator
from replicator.core.config import Config, parse_config
from replicator.errors import UsageError


class Dropping:
    """A drop zone, an asset of it, and the warehouse in which its files land."""

    def __init__(self, warehouse: Warehouse, here: Path, lake: Any = None) -> None:
        """lake: the directory of both zones; None: `here`."""
        self.warehouse, self.here, self.lake = warehouse, here, lake or here
        self.drop = self.lake / "drop"
        self.asset = unique("sales")
        self.config: Config = parse_config(
            {
                "ingestion": {
                    "metastore": warehouse.running.uri,
                    "landing": str(self.lake / "landing"),
                    "store": f"sqlite:///{here / 'jobs.sqlite'}",
                    "log": f"{self.asset}.ingestion_log",
                    "sources": {"drop": {"path": str(self.drop)}},
                }
            },
            "test",
        )

    def create_asset(self, **more: Any) -> None:
        given = {"owner": "ann", "sources": ["drop"], "by": "ann", **more}
        replicator.asset_create(self.asset, config=self.config, **given)
        replicator.asset_approve(self.asset, config=self.config, by="bob")

    def write(self, table: str, name: str, content: str | bytes) -> Any:
        place = self.drop / "day" / table / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def describe(self, table: str, **description: Any) -> None:
        self.write(table, "_description.json", json.dumps(description))

    def land(self, table: str, **more: Any) -> Any:
        replicator.ingest_request(f"drop:day.{table}", asset=self.asset, config=self.config, by="ann", **more)
        return replicator.ingest_run(config=self.config, spark=self.warehouse.session)

    def refused(self, table: str, **more: Any) -> str:
        """The error of a request, or of a job that waits for another one, and of which nothing is left."""
        try:
            done = self.land(table, **more)
        except UsageError as error:
            return error.message
        (text,) = done.errors
        assert (done.status, done.failed) == ("partial", 1)
        lies = self.lake / "landing" / self.asset / "day" / table
        assert not lies.exists() or not list(lies.iterdir())
        return str(text)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.warehouse.sql(text.replace("{db}", f"{self.asset}_day"))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """As they lie, by pyarrow."""
        place = str(self.warehouse.metastore.table(f"{self.asset}_day", table).location)
        return sorted(ds.dataset(place.removeprefix("file:"), format="parquet").to_table().to_pylist(), key=repr)
