"""Every format that can be purged keeps what it says of all others; and what is refused is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from purges import DESCRIPTOR, Warehouse

FORMATS = {
    "parquet_of_spark": "(id INT, v STRING, k INT) USING parquet PARTITIONED BY (k)",
    "orc": "(id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS ORC",
    "text": "(v STRING, id INT) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' ESCAPED BY '\\\\'",
    "hive_csv": "(v STRING, id STRING) PARTITIONED BY (k INT)"
    " ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
    "spark_csv": "(v STRING, id BIGINT, k INT) USING csv OPTIONS (header 'true', sep ';') PARTITIONED BY (k)",
    "json": "(v STRING, id BIGINT, k INT) USING json PARTITIONED BY (k)",
    "avro": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS AVRO",
    "rcfile": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS RCFILE",
    "sequencefile": "(v STRING, id BIGINT) PARTITIONED BY (k INT) STORED AS SEQUENCEFILE",
    "bucketed": "(id BIGINT, v STRING, k INT) USING parquet CLUSTERED BY (v) SORTED BY (v) INTO 3 BUCKETS",
}
KINDS = {
    "parquet_unpartitioned": "(id BIGINT, v STRING, k INT) USING parquet",
    "orc_with_times": "(id BIGINT, v STRING, t TIMESTAMP) PARTITIONED BY (k INT) STORED AS ORC",
    "char": "(v STRING, id CHAR(6)) PARTITIONED BY (k INT) STORED AS PARQUET",
}
"""Of tables, in formats that are above."""


def made(warehouse: Warehouse, db: str, formats: dict[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of tables that it makes."""
    warehouse.sql(f"CREATE DATABASE {db}")
    found = {}
    for name, definition in formats.items():
        warehouse.sql(f"CREATE TABLE {db}.{name} {definition} TBLPROPERTIES ({DESCRIPTOR})")
        columns = warehouse.session.table(f"{db}.{name}").columns
        warehouse.sql(
            f"INSERT INTO {db}.{name} SELECT {', '.join(columns)} FROM (SELECT id, timestamp '2026-06-01 01:02:03' AS"
            " t, if(id % 7 = 0, 'a,b|c;\"d', concat('v', id)) AS v, int(id DIV 100) AS k FROM range(0, 200, 1, 1))"
        )
        found[name] = warehouse.rows(f"{db}.{name}")
    return found


def is_purged(warehouse: Warehouse, db: str, before: dict[str, list[tuple[Any, ...]]]) -> None:
    """Purges them, and compares what is left."""
    done = warehouse.purge(warehouse.root(db), warehouse.ids, db)
    assert done.status == "done", [table for table in done.tables if table.failed or table.error]
    for name, rows in before.items():
        at = warehouse.session.table(f"{db}.{name}").columns.index("id")
        wanted = [row for row in rows if int(row[at]) >= 100 or int(row[at]) % 10]
        assert len(wanted) == 190 and warehouse.rows(f"{db}.{name}") == wanted, name


def test_every_format_is_purged_in_its_own_way(warehouse: Warehouse) -> None:
    before = made(warehouse, "f", FORMATS)
    one = "SELECT id FROM f.bucketed WHERE v = 'v101'"

    def buckets() -> list[str]:
        """How Spark reads them."""
        return re.findall(r"Bucketed: [^,]*|SelectedBucketsCount: [^,]*", warehouse.sql(f"EXPLAIN {one}")[0][0])

    read_before = buckets()
    is_purged(warehouse, "f", before)
    location = warehouse.metastore.table("f", "bucketed").location
    assert location and "/_purge-" not in location
    names = {path.name for path in Path(location.removeprefix("file:")).glob("*.parquet")}
    assert len({re.search(r"_(\d{5})\.", name)[1] for name in names}) == 3  # type: ignore[index]  # bucket numbers
    assert warehouse.sql(one) == [(101,)] and buckets() == read_before


def test_kinds_of_tables_are_purged_as_their_format(warehouse: Warehouse) -> None:
    is_purged(warehouse, "kinds", made(warehouse, "kinds", KINDS))
