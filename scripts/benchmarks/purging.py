"""purge: erasing 1% of the rows of a partition, against a plain rewrite of it by Spark; and erasing where 5% of the
partitions have a row, against rewriting all of them.

Ours is a whole run: search, rewrite, count, compare, swap. Both use one warm Spark session.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, ratio, s, timed
from cmroot.root import create_or_open
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.runtime import Runtime
from replicator.core.spark import hive_settings
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.lifecycle.purge.run import Purge
from replicator.metastore.thrift import ThriftMetastore

ROWS = {"small": 4_000_000, "full": 40_000_000}
PARTITIONS = 100
WANTED = 0.05
FILES = 8
COLUMNS = (
    "id, id * 7 % 1000003 AS amount, rand(1) AS price, concat('customer-', id % 100000) AS customer,"
    " sha2(string(id), 256) AS token, date_add(date '2020-01-01', int(id % 2000)) AS day"
)
DESCRIBED = """TBLPROPERTIES ('dataset.descriptor'='{"column": "id"}')"""


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(["what", "rows", "bytes", "Spark rewrites", "purge", "ratio", "wanted"])
    with ground.metastore(directory) as client:
        spark = ground.spark()
        engines = AutoEngine(LocalEngine(), spark)
        session = engines.session(hive_settings(client.uri, str(ground.warehouse(client))))
        try:
            _tables(session, ROWS[size])
            for table, said, wanted in (
                ("b.one", "1% of the rows of one partition, in all files", "<= 1.15"),
                ("b.many", f"rows in {WANTED:.0%} of {PARTITIONS} partitions", "<= 0.15"),
            ):
                measured = _measure(client, session, Runtime(engines), directory, table, runs)
                outcome.rows.append([said, *measured, wanted])
        finally:
            engines.stop()
    return outcome


def _tables(session: Any, rows: int) -> None:
    session.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
    session.sql("CREATE DATABASE b")
    for name, partitions in (("one", 1), ("many", PARTITIONS)):
        session.sql(
            f"CREATE TABLE b.{name} (id BIGINT, amount BIGINT, price DOUBLE, customer STRING, token STRING, day DATE)"
            f" PARTITIONED BY (p INT) STORED AS PARQUET {DESCRIBED}"
        )
        session.sql(
            f"INSERT INTO b.{name} SELECT {COLUMNS}, int(id DIV {-(-rows // partitions)}) AS p"
            f" FROM range(0, {rows}, 1, {max(FILES, partitions)})"
        )


def _measure(
    client: ThriftMetastore, session: Any, runtime: Runtime, directory: Path, table: str, runs: int
) -> list[str]:
    files = list((ground.warehouse(client) / "b.db" / table.partition(".")[2]).rglob("*.parquet"))
    size = sum(path.stat().st_size for path in files)
    total = session.table(table).count()
    share = WANTED if table == "b.many" else 1.0

    def rewrite(number: int) -> float:
        out = directory / "rewritten"
        ground.settle(directory)
        frame = session.table(table)
        seconds = timed(lambda: frame.drop("p").write.parquet(f"file:{out}"))
        shutil.rmtree(out)
        return seconds

    def ours(number: int) -> float:
        ids = f"b.ids_{table.partition('.')[2]}_{number}"
        session.sql(f"CREATE TABLE {ids} AS SELECT id FROM range({number}, {int(total * share)}, 100)")
        root = create_or_open(str(directory / f"root-{table}-{number}"))
        ground.settle(directory)
        options = PurgeOptions(f"{ids}:id", table)
        found = []
        with Purge(root=root, metastore=client, runtime=runtime, options=options) as purge:
            seconds = timed(lambda: found.append(purge.run()))
        assert found[0].status == "done" and found[0].rows_erased, found[0]
        for done in found[0].tables:
            for unit in done.units:
                shutil.rmtree(unit["old"].removeprefix("file:"))
        return seconds

    rewrite(99)  # both warm: code is compiled, files are in the page cache
    ours(99)
    took = interleaved(runs, {"rewrite": rewrite, "ours": ours})
    return [
        f"{total:,}",
        f"{size / 1e6:,.0f} MB",
        s(took["rewrite"]),
        s(took["ours"]),
        ratio(took["ours"], took["rewrite"]),
    ]
