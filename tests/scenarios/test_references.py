"""Every reference in the captured log ends: adds less releases are what the source has. And what was taken before an
event is recorded with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from warehouse import Pair, Sides

from cmroot.keep.keepers import recycle_tree
from cmroot.log.captured import ADD, RELEASE, segments
from cmroot.log.references import read_intercepted, write_intercepted
from cmroot.store.listing import hidden
from replicator.captures.manifest import open_manifest
from replicator.metastore.embedded.running import Running


@pytest.fixture(scope="module")
def sides(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    made = Sides(source_metastore, target_metastore, tmp_path_factory.mktemp("outside"))
    yield made
    made.close()


def references(pair: Pair) -> tuple[Counter[str], Counter[str]]:
    """Live contents by the log's own account, and those that the manifest has."""
    live: Counter[str] = Counter()
    for segment in segments(pair.root.place):
        for batch in segment.file_batches():
            for row in batch.to_pylist():
                if row["checksum"] is not None:
                    live[row["checksum"]] += {ADD: 1, RELEASE: -1}[row["op"]]
                    if row["op"] == RELEASE:
                        assert row["since"] <= row["position"] and row["size"] is not None
    with open_manifest(pair.root) as manifest:
        had = Counter(row[6] for name in manifest.table_names(pair.db) for row in manifest.table_files(pair.db, name))
    return +live, had


def test_what_was_added_and_not_released_is_what_there_is(sides: Sides) -> None:
    pair = sides.pair()
    pair.create()
    pair.sql(
        "CREATE TABLE kept (a INT) STORED AS PARQUET",
        "INSERT INTO kept VALUES (1)",
        "CREATE TABLE parts (a INT) PARTITIONED BY (p INT) STORED AS PARQUET",
        "INSERT INTO parts PARTITION (p = 1) VALUES (1)",
        "INSERT INTO parts PARTITION (p = 2) VALUES (2)",
        "CREATE TABLE gone (a INT) STORED AS PARQUET",
        "INSERT INTO gone VALUES (3)",
    )
    pair.capture()
    live, had = references(pair)
    assert live == had and len(had) >= 3
    for statement in (
        "INSERT OVERWRITE kept VALUES (4)",
        "ALTER TABLE parts DROP PARTITION (p = 1)",
        "ALTER TABLE parts PARTITION (p = 2) RENAME TO PARTITION (p = 3)",
        "ALTER TABLE parts RENAME TO renamed",
        "INSERT INTO renamed PARTITION (p = 3) VALUES (5)",
        "DROP TABLE gone",
        "TRUNCATE TABLE kept",
        "CREATE TABLE gone (a INT) STORED AS PARQUET",
        "INSERT INTO gone VALUES (6)",
        "DROP TABLE renamed",
    ):
        pair.sql(statement)
        pair.capture()
        live, had = references(pair)
        assert live == had, statement
    assert had, "the last statement made one file"


def test_a_partition_made_and_taken_between_two_captures_is_recorded_with_its_bytes(sides: Sides) -> None:
    """Rubber-banding without a capture in between: who drops it takes the bytes first."""
    pair = sides.pair()
    pair.create()
    pair.sql("CREATE TABLE t (a STRING) PARTITIONED BY (p INT) STORED AS TEXTFILE")
    pair.bootstrap()
    first = f"A of {pair.db}"  # bytes that the target has kept of no other test
    pair.sql(f"INSERT INTO t PARTITION (p = 1) VALUES ('{first}')")
    made = pair.source.current_event_id()
    take_and_drop(pair, "t", "p=1")
    pair.sql("INSERT INTO t PARTITION (p = 1) VALUES ('B')")
    pair.capture()
    assert read_intercepted(pair.root.place, 1 << 62) == []
    live, had = references(pair)
    assert live == had
    loaded = pair.load(pair.dump(since=pair.last.dump, until=str(made)))
    assert (loaded.files_from_cmroot, loaded.missing) == (1, [])
    assert pair.rows("target", "t") == [[first, 1]]
    pair.catch_up()
    assert pair.rows("target", "t") == [["B", 1]]
    assert not pair.differences()


def take_and_drop(pair: Pair, table: str, partition: str) -> None:
    """What a deleter does that keeps bytes: move, drop without data, leave the entries of what a listing shows."""
    location = f"{pair.source.table(pair.db, table).location}/{partition}"
    taken = recycle_tree(pair.root.place, location)
    pair.source.drop_partitions(pair.db, table, [partition])
    rows = [
        {
            "db": pair.db,
            "table": table,
            "partition": partition,
            "location": location,
            "kept": True,
            "path": file.path.rpartition("/")[2],
            "size": file.kept.size,
            "mtime_ns": file.kept.mtime_ns,
            "identity": file.kept.identity,
            "checksum": file.kept.checksum,
        }
        for file in taken
        if not hidden(file.path.rpartition("/")[2])
    ]
    write_intercepted(pair.root.place, pair.source.current_event_id(), pa.Table.from_pylist(rows))
