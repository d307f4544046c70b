"""What a purge must not do, and what it must say instead."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.core.cluster import spark_failed
from replicator.errors import Refused
from replicator.lifecycle.purge import tables
from replicator.lifecycle.purge.certificate_file import as_text
from replicator.lifecycle.purge.options import PurgeOptions, WhiteList
from replicator.lifecycle.removal.removal import LegalHold, Limits, add_hold


def test_no_ids_and_no_tables_are_refused(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE r",
        "CREATE TABLE r.empty (id BIGINT)",
        "CREATE TABLE r.nulls AS SELECT bigint(null) AS id",
        f"CREATE TABLE r.t (id BIGINT) TBLPROPERTIES ({DESCRIPTOR})",
        "CREATE TABLE r.lists AS SELECT array(10L) AS id",
    )
    root = warehouse.root("refused")
    for ids, whitelist in (
        ("r.missing:id", "r"),
        ("r.empty:id", "r"),
        ("r.nulls:id", "r"),
        (warehouse.ids.replace("member", "x"), "r"),
        (warehouse.ids, "r.nulls"),
        ("nothing", "r"),
        ("r.lists:id", "r"),
    ):
        with pytest.raises(Refused):
            warehouse.purge(root, ids, whitelist)
    assert warehouse.purge(root, warehouse.ids, "r.t").resumed is False


def test_ids_that_a_column_cannot_hold_are_named_and_the_others_erased(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE l",
        "CREATE TABLE l.words AS SELECT explode(array('10', 'ten')) AS id",
        "CREATE TABLE l.large AS SELECT explode(array(10, 300)) AS id",
        f"CREATE TABLE l.t (id TINYINT) TBLPROPERTIES ({DESCRIPTOR})",
        "CREATE TABLE l.none AS SELECT 'ten' AS id",
    )
    for ids, output in (("l.words:id", "1 of 2 ids, such as 'ten'"), ("l.large:id", "1 of 2 ids, such as 300")):
        warehouse.sql("INSERT OVERWRITE l.t VALUES (10), (11)")
        root = warehouse.root("lossy")
        done = warehouse.purge(root, ids, "l.t")
        wanted = {
            "table": "l.t",
            "reason": f"{output}, are no tinyint, the type of id: no row was searched for them",
            "invalid": False,
        }
        assert done.gaps == [wanted] and done.rows_erased == 1, done
        assert warehouse.rows("l.t") == [(11,)]
        certificate = warehouse.certify(root, PurgeOptions(ids, "l.t", "privacy.column"), run="latest", expedited=True)
        assert certificate.status == "gaps" and not certificate.searched
    done = warehouse.purge(warehouse.root("lossy"), "l.none:id", "l.t")
    assert done.tables[0].error == "1 of 1 ids, such as 'ten', are no tinyint: nothing can be searched"


def test_ids_in_collections_are_gaps_by_name(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE cl",
        f"CREATE TABLE cl.list (id ARRAY<BIGINT>) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"CREATE TABLE cl.pairs (id MAP<BIGINT, STRING>) STORED AS ORC TBLPROPERTIES ({DESCRIPTOR})",
        f"CREATE TABLE cl.plain (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO cl.plain VALUES (10), (11)",
    )
    root = warehouse.root("collections")
    done = warehouse.purge(root, warehouse.ids, "cl")
    reasons = {gap["table"]: gap["reason"] for gap in done.gaps}
    assert set(reasons) == {"cl.list", "cl.pairs"} and done.rows_erased == 1, done
    assert "array<bigint> cannot be compared with an id" in reasons["cl.list"]
    assert "map<bigint,string> cannot be compared with an id" in reasons["cl.pairs"]
    asked = PurgeOptions(warehouse.ids, "cl", "privacy.column")
    certificate = warehouse.certify(root, asked, run="latest", expedited=True)
    assert certificate.status == "gaps" and certificate.searched == ["cl.plain"], certificate


@pytest.mark.parametrize("stored", ["STORED AS PARQUET", "STORED AS ORC", "USING parquet", "USING json", "USING csv"])
def test_a_column_with_a_dot_in_its_name_is_searched(warehouse: Warehouse, stored: str) -> None:
    descriptor = DESCRIPTOR.replace('"id"', '"`a.b`"')
    type_, value = ("STRING", "id") if "csv" in stored else ("STRUCT<b: BIGINT>", "named_struct('b', id + 1)")
    warehouse.sql(
        "CREATE DATABASE dot",
        f"CREATE TABLE dot.t (`a.b` BIGINT, a {type_}) {stored} TBLPROPERTIES ({descriptor})",
        f"INSERT INTO dot.t SELECT id, {value} FROM range(0, 30)",
    )
    root = warehouse.root(f"dot_{''.join(filter(str.isalpha, stored))}")
    done = warehouse.purge(root, warehouse.ids, "dot.t")
    asked = PurgeOptions(warehouse.ids, "dot.t", "privacy.column")
    certificate = warehouse.certify(root, asked, run="latest", expedited=True)
    left = [row[0] for row in warehouse.rows("dot.t")]
    warehouse.drop("dot")
    assert (done.status, done.rows_erased, done.gaps) == ("done", 3, []), done
    assert sorted(left) == [number for number in range(30) if number % 10]
    assert certificate.status == "certified", certificate


def test_ids_that_no_table_has_are_counted_in_the_certificate(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE nf",
        "CREATE TABLE nf.gone AS SELECT explode(array('1', '2', '7', 'Ann')) AS id",
        f"CREATE TABLE nf.numbers (id BIGINT) TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO nf.numbers VALUES (1), (1), (5)",
        f"CREATE TABLE nf.words (id STRING) TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO nf.words VALUES ('2'), ('ann'), ('07')",
    )
    root = warehouse.root("never")
    done = warehouse.purge(root, "nf.gone:id", "nf.numbers|words")
    assert (done.ids, done.ids_never_found, done.rows_erased) == (4, 2, 3)
    left = Path(root.place) / "purge" / done.run / "matched" / "1"  # of a killed run: ids, which are personal data
    left.mkdir(parents=True)
    asked = PurgeOptions("nf.gone:id", "nf.numbers|words", "privacy.column")
    certificate = warehouse.certify(root, asked, run="latest", expedited=True, allow_gaps=True)
    assert certificate.erased == {"nf.numbers": 2, "nf.words": 1} and certificate.never_found == 2
    assert not left.parent.exists()
    text = as_text(certificate)
    assert "2 of them were found in no table" in text and "nf.numbers: 2 rows" in text


def test_places_that_are_not_a_partitions_own_are_left_alone(warehouse: Warehouse, tmp_path: Path) -> None:
    warehouse.sql(
        "CREATE DATABASE o",
        f"CREATE TABLE o.t (id BIGINT) PARTITIONED BY (k STRING) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO o.t SELECT id, k FROM range(0, 200, 1, 1) LATERAL VIEW"
        " explode(split('plain shared linked outside parent held changing', ' ')) x AS k",
        "CREATE TABLE o.other (id BIGINT) STORED AS PARQUET",
        "CREATE TABLE o.below (id BIGINT) STORED AS PARQUET",
        "CREATE TABLE o.wrong (id BIGINT) TBLPROPERTIES ('dataset.descriptor'='{not json')",
        f"CREATE TABLE o.elsewhere (x BIGINT) TBLPROPERTIES ({DESCRIPTOR})",
        f"CREATE TABLE o.words (id DATE) TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO o.words SELECT date '2026-01-01'",
    )
    metastore, root = warehouse.metastore, warehouse.root("places")
    home = Path(metastore.table("o", "t").location.removeprefix("file:"))  # type: ignore[union-attr]
    for table, place in (("other", home / "k=shared"), ("below", home / "k=parent" / "deep")):
        place.mkdir(exist_ok=True)
        found = metastore.table("o", table)
        storage = msgspec.structs.replace(found.storage, location=f"file:{place}")  # type: ignore[type-var]
        metastore.alter_table("o", table, msgspec.structs.replace(found, storage=storage))
    (file,) = (home / "k=linked").glob("*.parquet")
    file.rename(tmp_path / file.name)
    file.symlink_to(tmp_path / file.name)
    (home / "k=outside").rename(tmp_path / "outside")
    warehouse.sql(f"ALTER TABLE o.t PARTITION (k = 'outside') SET LOCATION 'file:{tmp_path}/outside'")
    add_hold(root.place, LegalHold(name="case", pattern="o.t/k=held", reason="a case", by="me", created="2026-01-01"))

    done = warehouse.purge(root, warehouse.ids, "o")

    assert done.status == "partial"
    assert {gap["table"]: gap["invalid"] for gap in done.gaps} == {
        "o.below": False,
        "o.other": False,
        "o.elsewhere": True,
        "o.wrong": True,
    }
    by_table = {table.table: table for table in done.tables}
    assert "cannot be converted to date" in by_table["o.words"].error
    states = {unit["partition"]: (unit["state"], unit.get("reason", "")) for unit in by_table["o.t"].units}
    assert {name for name, (state, _) in states.items() if state == "DONE"} == {"k=plain", "k=outside", "k=changing"}
    assert "shares its location with o.other" in states["k=shared"][1]
    assert "o.below" in states["k=parent"][1]
    assert "symbolic link" in states["k=linked"][1]
    assert "legal hold case" in states["k=held"][1]
    assert len(warehouse.rows("o.t")) == 7 * 200 - 3 * 10


def test_rows_that_come_meanwhile_are_not_lost(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse.sql(
        "CREATE DATABASE m",
        f"CREATE TABLE m.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO m.t SELECT id, 1 FROM range(0, 200, 1, 1)",
    )
    real, turns = tables.replace_parts, []

    def inserted_meanwhile(*arguments: object) -> object:
        """A writer comes between the writing and the swap: its ALTER_PARTITION changes the metadata."""
        if not turns:
            warehouse.sql(
                "INSERT INTO m.t VALUES (40, 1), (7000, 1)", "ANALYZE TABLE m.t PARTITION (k) COMPUTE STATISTICS"
            )
        turns.append(1)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "replace_parts", inserted_meanwhile)
    done = warehouse.purge(warehouse.root("meanwhile"), warehouse.ids, "m")
    assert (done.status, done.rows_erased, len(turns)) == ("done", 11, 2)
    assert (7000, 1) in warehouse.rows("m.t") and (40, 1) not in warehouse.rows("m.t")

    def dropped_meanwhile(*arguments: object) -> object:
        warehouse.metastore.drop_table("m", "t")
        return real(*arguments)  # type: ignore[arg-type]

    warehouse.sql("INSERT INTO m.t VALUES (50, 1)")
    monkeypatch.setattr(tables, "replace_parts", dropped_meanwhile)
    done = warehouse.purge(warehouse.root("dropped"), warehouse.ids, "m")
    assert done.status == "partial" and "dropped" in str(done.tables[0])


def test_more_than_a_run_may_touch_is_refused(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE e",
        f"CREATE TABLE e.t (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO e.t SELECT id FROM range(0, 200, 1, 1)",
    )
    for limits in (Limits(max_share=0.5), Limits(max_bytes=10)):
        with pytest.raises(Refused):
            warehouse.purge(warehouse.root("excess"), warehouse.ids, "e", limits=limits)
    assert len(warehouse.rows("e.t")) == 200


def test_white_lists_are_the_old_ones() -> None:
    listed = WhiteList.parse("a.x|y*, b, c.*")
    assert [listed.has(*name.split(".")) for name in ("a.x", "A.Yes", "a.z", "b.any", "c.any", "d.x")] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert WhiteList.parse("").has("any", "thing")


def test_counts_of_the_table_and_words_for_what_cannot_be_written(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE n",
        f"CREATE TABLE n.t (id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS TEXTFILE"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO n.t SELECT id, 'x', id % 2 FROM range(0, 200, 1, 1)",
        "CREATE TABLE n.pattern (id STRING, v STRING) ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.RegexSerDe'"
        f" WITH SERDEPROPERTIES ('input.regex'='([0-9]+) (.*)') STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
    )
    (Path(warehouse.home_of("n.pattern")) / "part-0").write_text("10 a\n11 b\n")
    metastore = warehouse.metastore
    table = metastore.table("n", "t")
    counts = {"numRows": "200", "spark.sql.statistics.numRows": "200", "totalSize": "900", "numFiles": "2"}
    parameters = {**table.parameters, **counts, "spark.sql.statistics.totalSize": "3"}
    metastore.alter_table("n", "t", msgspec.structs.replace(table, parameters=parameters))

    done = warehouse.purge(warehouse.root("counts"), warehouse.ids, "n")

    pattern, counted = done.tables
    assert counted.rows_erased == 10 and pattern.failed == 1
    assert "no writer exists" in pattern.units[0]["reason"]
    after = metastore.table("n", "t").parameters
    assert (after["numRows"], after["spark.sql.statistics.numRows"], after["numFiles"]) == ("190", "190", "2")
    gone = sum(len(f"{each}\x01x\n") for each in range(0, 100, 10))
    assert after["totalSize"] == str(900 - gone) and "spark.sql.statistics.totalSize" not in after


def test_a_store_that_spark_cannot_reach_is_told_with_what_it_lacks(warehouse: Warehouse) -> None:
    """`$cmroot` on S3 and a Spark without Hadoop's client of it."""
    with pytest.raises(Exception) as raised:
        warehouse.session.range(1).write.parquet("s3a://bucket/ids")
    error = spark_failed(raised.value)
    assert "S3AFileSystem" in error.message and "\n" not in error.message
    assert error.hint and "hadoop-aws" in error.hint
