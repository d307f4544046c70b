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
from pyarrow import orc

from replicator.lifecycle.purge.rewrite import orc_footer, parquet_footer
from replicator.lifecycle.purge.rewrite.parquet_footer import BINARY
from replicator.metastore.embedded.running import Running

TIMES = (
    "if(id % 3 = 0, timestamp'1500-03-01 01:02:03', if(id % 3 = 1, timestamp'9999-12-31 23:59:59',"
    " timestamp'2026-03-08 12:00:00.123456')) AS t, date'1500-03-01' AS d"
)
WALL_CLOCKS = (
    "CASE id % 6 WHEN 0 THEN timestamp'1850-01-01 00:00:00' WHEN 1 THEN timestamp_seconds(1793521800)"
    " WHEN 2 THEN timestamp_seconds(1793525400) WHEN 3 THEN timestamp'2026-07-01 12:00:00.123456'"
    " WHEN 4 THEN timestamp'1969-12-31 23:59:59' ELSE null END AS t, date'1500-03-01' AS d,"
    " 'abc' AS c, concat('v', id) AS v"
)
"""Before zones had hours, both hours of one name in autumn, in summer, right before 1970."""
COLUMNAR = "org.apache.hadoop.hive.serde2.columnar.ColumnarSerDe"
READINGS = {
    "Spark": {},
    "Spark that converts": {"spark.sql.parquet.int96TimestampConversion": "true"},
    "Spark in UTC": {"spark.sql.session.timeZone": "UTC"},
    "Spark row by row": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "Spark's ORC row by row": {"spark.sql.orc.enableVectorizedReader": "false"},
    "Hive": {"spark.sql.hive.convertMetastoreParquet": "false", "spark.sql.hive.convertMetastoreOrc": "false"},
}


def read(warehouse: Warehouse, table: str, how: dict[str, str]) -> list[tuple[Any, ...]]:
    """All rows but those of the ids; the times as texts, as the session's zone says them."""
    how = {"spark.sql.readSideCharPadding": "true", **how}
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


def times_of_orc(warehouse: Warehouse) -> None:
    conf = warehouse.session.conf
    columns = "(id BIGINT, t TIMESTAMP, d DATE, c CHAR(5), v VARCHAR(7)) PARTITIONED BY (k INT) STORED AS ORC"
    warehouse.sql(f"CREATE TABLE z.orc {columns} TBLPROPERTIES ({DESCRIPTOR}, 'orc.compress'='ZLIB')")
    for first, converted in ((0, "true"), (50, "false"), (1000, "true")):  # the last one will be linked
        conf.set("spark.sql.hive.convertMetastoreOrc", converted)
        warehouse.sql(f"INSERT INTO z.orc SELECT id, {WALL_CLOCKS}, 1 AS k FROM range({first}, {first + 50}, 1, 1)")
    conf.set("spark.sql.hive.convertMetastoreOrc", "true")
    skipped = pa.array([1_772_937_000_000_000_000 + number for number in range(20)], pa.timestamp("ns"))  # 02:30
    table = pa.table(
        {
            "id": pa.array(range(20), pa.int64()),
            "t": skipped,
            "d": pa.array([20_000] * 20, pa.date32()),
            "c": ["x"] * 20,
            "v": ["y"] * 20,
        }
    )
    orc.write_table(table, place_of(warehouse, "z.orc") / "k=1" / "foreign.orc", compression="lz4")
    for format_ in ("avro", "rcfile"):  # instants
        warehouse.sql(
            f"CREATE TABLE z.{format_} (id BIGINT, t TIMESTAMP, d DATE) PARTITIONED BY (k INT) STORED AS {format_}"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO z.{format_} SELECT id, t, d, 1 AS k FROM (SELECT id, {WALL_CLOCKS} FROM range(0, 120, 1, 1))",
        )
    for name, format_, time in (
        ("far", "STORED AS ORC", "9999-12-31 00:00:00"),
        ("early", "STORED AS ORC", "1969-12-31 23:59:59.5"),
        ("columnar", f"ROW FORMAT SERDE '{COLUMNAR}' STORED AS RCFILE", "2026-01-01 00:00:00"),
    ):
        rows = f"SELECT id, timestamp'{time}' AS t FROM range(0, 20, 1, 1)"
        warehouse.sql(f"CREATE TABLE z.{name} {format_} TBLPROPERTIES ({DESCRIPTOR}) AS {rows}")


def place_of(warehouse: Warehouse, table: str) -> Path:
    return Path(warehouse.metastore.table(*table.split(".")).location.removeprefix("file:"))


def of_pyarrow(warehouse: Warehouse) -> tuple[list[Any], list[Any]]:
    """Rows of z.orc with their nanoseconds, and what the footers say."""
    ((partition,),) = warehouse.metastore.partitions("z", "orc", ["k=1"])
    rows, output = [], []
    for path in Path(partition.location.removeprefix("file:")).iterdir():
        if path.suffix == ".crc" or path.name.startswith("_"):
            continue
        table = orc.read_table(path)
        times = table["t"].cast(pa.int64()).to_pylist()
        rows += zip(table["id"].to_pylist(), times, table["d"].to_pylist(), table["v"].to_pylist(), strict=True)
        with path.open("rb") as file:
            tail = orc_footer.read_tail(file)
            output.append(
                (
                    path.name,
                    orc_footer.zones_and_blooms(file, tail),
                    [each for each in tail.footer if each[0] in (4, 5, 11)],
                )
            )
    return sorted((row for row in rows if row[0] >= 100 or row[0] % 10), key=str), sorted(output, key=str)


def check_filters(warehouse: Warehouse) -> None:
    """The statistics leave out no row that a filter wants."""
    times = "SELECT DISTINCT string(t) FROM z.orc WHERE t IS NOT NULL"
    for zone in ("America/Los_Angeles", "UTC"):
        warehouse.session.conf.set("spark.sql.session.timeZone", zone)
        for (text,) in warehouse.sql(times):
            counts = []
            for pushed in ("false", "true"):
                warehouse.session.conf.set("spark.sql.orc.filterPushdown", pushed)
                counts += warehouse.sql(f"SELECT count(*) FROM z.orc WHERE t = timestamp'{text}'")
            assert counts[0] == counts[1] and counts[0][0], (zone, text, counts)
    warehouse.session.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")


def main(uri: str, warehouse_place: str, home: str) -> None:
    running = Running(uri, Path(warehouse_place), 0, Path(home), Path(home))
    warehouse = Warehouse(running, Path(home))
    zone = warehouse.session._jvm.java.util.TimeZone.getDefault().getID()
    assert zone == os.environ["TZ"], zone
    warehouse.sql("CREATE DATABASE z")
    times_of_parquet(warehouse)
    times_of_orc(warehouse)
    tables = [f"z.{name}" for name in ("int96", "micros", "orc", "avro", "rcfile")]
    before = {table: readings(warehouse, table) for table in tables}
    of_orc = of_pyarrow(warehouse)
    check_filters(warehouse)
    done = warehouse.purge(warehouse.root("zones"), warehouse.ids, "z")
    reasons = {
        table.table: [unit["reason"] for unit in table.units if unit["state"] != "DONE"] for table in done.tables
    }
    for name in ("z.far", "z.early", "z.columnar"):
        assert "run with TZ=UTC" in reasons.pop(name)[0]
    assert not any(reasons.values()), reasons
    assert of_pyarrow(warehouse) == of_orc
    check_filters(warehouse)
    for table in tables:
        for reader, rows in readings(warehouse, table).items():
            wanted = before[table][reader]
            differing = [pair for pair in zip(wanted, rows, strict=False) if pair[0] != pair[1]]
            assert rows == wanted, (table, reader, len(wanted), len(rows), differing[:3])
            assert len(rows) > 80
    warehouse.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
