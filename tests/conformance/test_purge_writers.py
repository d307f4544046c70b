"""Files of other writers than Spark, through the command: rows that stay are as they were, by other readers, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from parquet_writers import WRITERS, comparable, footer_of, of_duck
from purges import DESCRIPTOR, Warehouse


def test_parquet_of_other_writers_is_purged_with_columns_that_spark_cannot_read(warehouse: Warehouse) -> None:
    """One partition for each writer; the table knows the ids alone."""
    warehouse.sql(
        "CREATE DATABASE x",
        f"CREATE TABLE x.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
    )
    home = Path(warehouse.metastore.table("x", "t").location.removeprefix("file:"))  # type: ignore[union-attr]
    old = {}
    for number, write in enumerate(WRITERS.values()):
        warehouse.sql(f"ALTER TABLE x.t ADD PARTITION (k = {number})")
        old[number] = home / f"k={number}" / "a.parquet"
        old[number].parent.mkdir(exist_ok=True)
        write(old[number])

    done = warehouse.purge(warehouse.root("writers"), warehouse.ids, "x")

    assert done.status == "done", [(table.error, table.units) for table in done.tables]
    names = [f"k={number}" for number in old]
    for partition in (each for batch in warehouse.metastore.partitions("x", "t", names) for each in batch):
        (unit,) = [each for each in done.tables[0].units if each["partition"] == f"k={partition.values[0]}"]
        before = Path(unit["aside"].removeprefix("file:")) / "a.parquet"
        after = Path((partition.location or "").removeprefix("file:")) / "a.parquet"
        assert after == old[int(partition.values[0])]
        assert comparable(of_duck(after)).equals(comparable(of_duck(before, "id >= 100 OR id % 10 <> 0"))), before
        assert pq.read_schema(after).equals(pq.read_schema(before), check_metadata=True)
        assert [footer_of(after).get(number) for number in (1, 2, 5, 6)] == [
            footer_of(before).get(number) for number in (1, 2, 5, 6)
        ]
