"""Purges tables with times in a process of its own, whose zone is TZ's: `python purge_in_a_zone.py METASTORE WAREHOUSE
HOME`. What every reader says of the rows that stay is compared with what it said before."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from purges import DESCRIPTOR, Warehouse

from replicator.metastore.embedded import Running
from replicator.purge import parquet_footer
from replicator.purge.compact import BINARY

TIMES = (
    "if(id % 3 = 0, timestamp'1500-03-01 01:02:03', if(id % 3 = 1, timestamp'9999-12-31 23:59:59',"
    " timestamp'2026-03-08 12:00:00.123456')) AS t, date'1500-03-01' AS d"
)
READINGS = {
    "Spark": {},
    "Spark that converts": {"spark.sql.parquet.int96TimestampConversion": "true"},
    "Spark in UTC": {"spark.sql.session.timeZone": "UTC"},
    "Spark row by row": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "Hive": {"spark.sql.hive.convertMetastoreParquet": "false"},
}  # fmt: skip


def read(warehouse: Warehouse, table: str, how: dict[str, str]) -> list[tuple[Any, ...]]:
    """All rows but those of the ids; the times as texts, as the session's zone says them."""
    kept = {key: warehouse.session.conf.get(key) for key in how}
    try:
        for key, value in how.items():
            warehouse.session.conf.set(key, value)
        columns = [f"string({name})" for name in warehouse.session.table(table).columns]
        rows = warehouse.sql(f"REFRESH TABLE {table}", f"SELECT {', '.join(columns)} FROM {table}")
    finally:
        for key, value in kept.items():
            warehouse.session.conf.set(key, value)
    return sorted((row for row in rows if int(row[0]) >= 100 or int(row[0]) % 10), key=str)


def readings(warehouse: Warehouse, table: str) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for name, how in READINGS.items():
        if name != "Hive" or not table.endswith("micros"):  # its SerDe of 2.3 knows INT96 only
            found[name] = read(warehouse, table, how)
    return found


def written_by(path: Path, table: pa.Table, writer: str) -> None:
    """A file of pyarrow, as if another program had written it."""
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    start, footer = parquet_footer.of_end(path.read_bytes())
    footer[parquet_footer.CREATED_BY] = (BINARY, writer.encode())
    path.write_bytes(start + parquet_footer.as_end(footer))


def times_of_parquet(warehouse: Warehouse) -> None:
    columns = "(id BIGINT, t TIMESTAMP, d DATE) PARTITIONED BY (k INT) STORED AS PARQUET"
    conf = warehouse.session.conf
    for name, kind in (("int96", "INT96"), ("micros", "TIMESTAMP_MICROS")):
        warehouse.sql(f"CREATE TABLE z.{name} {columns} TBLPROPERTIES ({DESCRIPTOR})")
        conf.set("spark.sql.parquet.outputTimestampType", kind)
        for first, mode in ((0, "CORRECTED"), (50, "LEGACY")):
            conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
            conf.set("spark.sql.parquet.int96RebaseModeInWrite", mode)
            rows = f"range({first}, {first + 50}, 1, 1)"
            warehouse.sql(f"INSERT INTO z.{name} SELECT id, {TIMES}, 1 AS k FROM {rows}")
    conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    warehouse.sql(f"INSERT INTO z.int96 SELECT id, {TIMES}, 1 AS k FROM range(1000, 1010, 1, 1)")  # will be linked
    conf.set("spark.sql.hive.convertMetastoreParquet", "false")
    warehouse.sql(f"INSERT INTO z.int96 SELECT id, {TIMES}, 1 AS k FROM range(0, 50, 1, 1)")
    conf.set("spark.sql.hive.convertMetastoreParquet", "true")
    (place,) = Path(warehouse.metastore.table("z", "int96").location.removeprefix("file:")).glob("k=1")
    noon = pa.array([1_773_000_000_000_000_000 + number for number in range(20)], pa.timestamp("ns"))
    days = pa.array([20_000] * 20, pa.date32())
    foreign = pa.table({"id": pa.array(range(20), pa.int64()), "t": noon, "d": days})
    for number, writer in enumerate(("impala version 2.12.0", "parquet-mr version 1.6.0 (build x)")):
        written_by(place / f"foreign-{number}.parquet", foreign, writer)


def main(uri: str, warehouse_place: str, home: str) -> None:
    running = Running(uri, Path(warehouse_place), 0, Path(home), Path(home))
    warehouse = Warehouse(running, Path(home))
    zone = warehouse.session._jvm.java.util.TimeZone.getDefault().getID()
    assert zone == os.environ["TZ"], zone
    warehouse.sql("CREATE DATABASE z")
    times_of_parquet(warehouse)
    tables = [f"z.{name}" for name in ("int96", "micros")]
    before = {table: readings(warehouse, table) for table in tables}
    done = warehouse.purge(warehouse.root("zones"), warehouse.ids, "z")
    assert done.status == "done", done
    for table in tables:
        for reader, rows in readings(warehouse, table).items():
            wanted = before[table][reader]
            differing = [pair for pair in zip(wanted, rows, strict=False) if pair[0] != pair[1]]
            assert rows == wanted, (table, reader, len(wanted), len(rows), differing[:3])
            assert len(rows) > 80
    warehouse.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
