"""A drop zone and landing tables on S3 that answers 503 to 15 % of all requests. Spark and the metastore see the
server's own directories, everything else asks the server; boto3 looks, past the proxy."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from busy_bucket import busy_bucket
from dropping import Dropping
from metastores import MetastoreFactory
from purges import Warehouse
from s3_path import S3Path
from stores import s3a_as_directories
from versity import ON_VERSITYGW, Versity

import replicator

pytestmark = [*ON_VERSITYGW]


def test_files_land_from_a_bucket_in_a_bucket(
    versitygw: Versity, metastore_factory: MetastoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy_bucket(versitygw, monkeypatch) as here:
        mounted = s3a_as_directories(versitygw.directory / "objects", [f"s3a://{here.bucket}"])
        warehouse = Warehouse(metastore_factory("source", settings=mounted), tmp_path)
        hadoop = warehouse.session.sparkContext._jsc.hadoopConfiguration()
        for key, value in mounted.items():
            hadoop.set(key, value)
        try:
            dropping = Dropping(warehouse, tmp_path, here / "lake")
            dropping.create_asset()
            dropping.describe("orders", format="json", days={"layout": "%Y/%m/%d"})
            for day in ("2026/01/01", "2026/01/02"):
                dropping.write("orders", f"{day}/a.json", json.dumps({"no": int(day[-2:]), "items": [{"sku": "x"}]}))
            done = dropping.land("orders", mode="append")
            assert (done.status, done.rows) == ("done", 2), done
            dropping.write("orders", "2026/01/02/late.json", json.dumps({"no": 3, "items": []}))
            assert dropping.land("orders", mode="append").rows == 2
            shown = dropping.sql(
                "SELECT o.day, o.no, i.sku FROM {db}.orders o LEFT JOIN {db}.orders__items i ON i.parent_id = o.row_id"
                " ORDER BY 2"
            )
            first, second = date(2026, 1, 1), date(2026, 1, 2)
            assert shown == [(first, 1, "x"), (second, 2, "x"), (second, 3, None)]
            dropping.write("orders", "2026/01/03/b.json", '{"no": ')
            (text,) = dropping.land("orders", mode="append").errors
            assert "b.json" in text
            lies = {file.name for file in (here / "lake/landing" / dropping.asset / "day").rglob("*")}
            assert not [name for name in lies if name.startswith("st-")]
            jobs = {
                name.split("-")[1] for each in ("orders", "orders__items") for name in versions(here, dropping, each)
            }
            assert jobs == {"1", "2"}, "the refused one has left nothing"
            states = sorted(job.state for job in replicator.ingest_ls(config=dropping.config).jobs)
            assert states == ["done", "done", "failed_user"]
        finally:
            warehouse.close()


def versions(here: S3Path, dropping: Dropping, table: str) -> set[str]:
    """Directories of a landing table with objects in them."""
    home = here / "lake/landing" / dropping.asset / "day" / table
    return {str(file).removeprefix(f"{home}/").partition("/")[0] for file in home.rglob("*")}
