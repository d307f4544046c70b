"""Every format that can be purged keeps what it says of all others; and what is refused is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from purges import DESCRIPTOR, Warehouse

pytestmark = pytest.mark.removals

FORMATS = {
    "parquet_of_spark": "(id INT, v STRING, k INT) USING parquet PARTITIONED BY (k)",
    "parquet_unpartitioned": "(id BIGINT, v STRING, k INT) USING parquet",
    "orc": "(id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS ORC",
    "orc_with_times": "(id BIGINT, v STRING, t TIMESTAMP) PARTITIONED BY (k INT) STORED AS ORC",
    "text": "(v STRING, id INT) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' ESCAPED BY '\\\\'",
    "hive_csv": "(v STRING, id STRING) PARTITIONED BY (k INT)"
    " ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
    "spark_csv": "(v STRING, id BIGINT, k INT) USING csv OPTIONS (header 'true', sep ';') PARTITIONED BY (k)",
    "json": "(v STRING, id BIGINT, k INT) USING json PARTITIONED BY (k)",
    "avro": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS AVRO",
    "rcfile": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS RCFILE",
    "sequencefile": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS SEQUENCEFILE",
    "char": "(v STRING, id CHAR(6)) PARTITIONED BY (k INT) STORED AS PARQUET",
    "bucketed": "(id BIGINT, v STRING, k INT) USING parquet CLUSTERED BY (v) SORTED BY (v) INTO 3 BUCKETS",
}


def test_every_format_is_purged_in_its_own_way(warehouse: Warehouse) -> None:
    warehouse.sql("CREATE DATABASE f")
    before = {}
    for name, definition in FORMATS.items():
        warehouse.sql(f"CREATE TABLE f.{name} {definition} TBLPROPERTIES ({DESCRIPTOR})")
        columns = warehouse.session.table(f"f.{name}").columns
        warehouse.sql(
            f"INSERT INTO f.{name} SELECT {', '.join(columns)} FROM (SELECT id, timestamp '2026-06-01 01:02:03' AS t,"
            " if(id % 7 = 0, 'a,b|c;\"d', concat('v', id)) AS v, int(id DIV 100) AS k FROM range(0, 200, 1, 1))"
        )
        before[name] = warehouse.rows(f"f.{name}")
    one = "SELECT id FROM f.bucketed WHERE v = 'v101'"

    def buckets() -> list[str]:
        """How Spark reads them."""
        return re.findall(r"Bucketed: [^,]*|SelectedBucketsCount: [^,]*", warehouse.sql(f"EXPLAIN {one}")[0][0])

    read_before = buckets()

    done = warehouse.purge(warehouse.root("formats"), warehouse.ids, "f")

    assert done.status == "done", [table for table in done.tables if table.failed or table.error]
    for name, rows in before.items():
        at = warehouse.session.table(f"f.{name}").columns.index("id")
        wanted = [row for row in rows if int(row[at]) >= 100 or int(row[at]) % 10]
        assert len(wanted) == 190 and warehouse.rows(f"f.{name}") == wanted, name
    location = warehouse.metastore.table("f", "bucketed").location
    assert location and "/_purge-" in location
    names = {path.name for path in Path(location.removeprefix("file:")).glob("*.parquet")}
    assert len({re.search(r"_(\d{5})\.", name)[1] for name in names}) == 3  # type: ignore[index]  # bucket numbers
    assert warehouse.sql(one) == [(101,)] and buckets() == read_before
