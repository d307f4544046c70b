"""Files whose columns are not those of their table: what a search cannot see has no certificate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purges import Warehouse
from pyarrow import orc

from replicator.core.model import Column
from replicator.lifecycle.purge import file_columns
from replicator.lifecycle.purge.options import PurgeOptions


def described(**ids: Any) -> str:
    text = json.dumps({"privacy": {"column": "customer"}, **({"ids": ids} if ids else {})})
    return f"TBLPROPERTIES ('dataset.descriptor'='{text}')"


@pytest.fixture
def people(warehouse: Warehouse, tmp_path: Path) -> Any:
    """Makes a table of a format over a directory that already has files with the column `cust`."""
    warehouse.sql("CREATE DATABASE IF NOT EXISTS col")

    def make(name: str, stored: str, **ids: Any) -> Path:
        home = tmp_path / name
        warehouse.sql(
            f"CREATE TABLE col.old_{name} (cust BIGINT, v STRING) {stored} LOCATION '{home}'",
            f"INSERT INTO col.old_{name} SELECT id, concat('before', id) FROM range(0, 30, 1, 1)",
            f"DROP TABLE col.old_{name}",
            f"CREATE TABLE col.{name} (customer BIGINT, v STRING) {stored} LOCATION '{home}' {described(**ids)}",
            f"INSERT INTO col.{name} SELECT id, concat('after', id) FROM range(0, 30, 1, 1)",
        )
        return home

    yield make
    warehouse.drop("col")


def certified(warehouse: Warehouse, root: Any, table: str) -> Any:
    asked = PurgeOptions(warehouse.ids, table, "privacy.column")
    return warehouse.certify(root, asked, run="latest", expedited=True)


FORMATS = {
    "parquet": "STORED AS PARQUET",
    "spark_parquet": "USING parquet",
    "orc": "STORED AS ORC",
    "avro": "STORED AS AVRO",
    "json": "USING json",
}


@pytest.mark.parametrize("name", FORMATS)
def test_files_from_before_a_rename_of_the_column_are_not_certified(
    warehouse: Warehouse, people: Any, name: str
) -> None:
    people(name, FORMATS[name])
    root = warehouse.root(f"renamed_{name}")

    done = warehouse.purge(root, warehouse.ids, f"col.{name}")

    assert done.gaps and done.tables[0].rows_erased == 3
    reasons = " ".join(gap["reason"] for gap in done.gaps)
    assert re.search(r"customer\b.*\bcust\b", reasons), reasons
    certificate = certified(warehouse, root, f"col.{name}")
    assert certificate.status == "gaps" and not certificate.searched, certificate


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_former_column_is_searched_where_another_column_was_widened(
    warehouse: Warehouse, tmp_path: Path, kind: str
) -> None:
    home = tmp_path / "t"
    home.mkdir()
    write = pq.write_table if kind == "parquet" else orc.write_table
    old = {"cust": pa.array([10, 11]), "n": pa.array([1, 2], pa.int32())}
    write(pa.table(old), home / f"old.{kind}")
    write(pa.table({"customer": pa.array([20, 21]), "n": pa.array([3, 4], pa.int64())}), home / f"new.{kind}")
    warehouse.sql(
        "CREATE DATABASE IF NOT EXISTS wide",
        f"CREATE TABLE wide.{kind} (customer BIGINT, n BIGINT) STORED AS {kind} LOCATION '{home}'"
        f" {described(former=['cust'])}",
    )
    root = warehouse.root(f"wide_{kind}")
    done = warehouse.purge(root, warehouse.ids, f"wide.{kind}")
    assert (done.status, done.rows_erased, done.gaps) == ("done", 2, []), done
    assert sorted(row[1] for row in warehouse.rows(f"wide.{kind}")) == [2, 4]
    assert certified(warehouse, root, f"wide.{kind}").status == "certified"


@pytest.mark.parametrize("name", ["avro", "json"])
def test_a_former_column_of_avro_and_json_is_searched_and_its_rows_are_erased(
    warehouse: Warehouse, people: Any, name: str
) -> None:
    home = people(name, FORMATS[name], former=["cust"])
    root = warehouse.root(f"former_{name}")
    if name != "avro":
        (home / "mixed.json").write_text(
            '{"cust":10,"v":"before10"}\n{"customer":20}\n{"cust":null}\n{"v":"before11"}\n'
        )

    done = warehouse.purge(root, warehouse.ids, f"col.{name}")

    assert done.status == "done" and done.tables[0].rows_erased == (6 if name == "avro" else 8), done
    assert not done.gaps
    words = [row[1] for row in warehouse.rows(f"col.{name}")]
    kept = [number for number in range(30) if number % 10]
    assert {f"{word}{number}" for number in kept for word in ("before", "after")} == {word for word in words if word}
    assert len(words) == 2 * len(kept) + (0 if name == "avro" else 2)
    assert certified(warehouse, root, f"col.{name}").status == "certified"


def test_a_record_with_both_columns_is_a_gap(warehouse: Warehouse, people: Any) -> None:
    home = people("both", FORMATS["json"], former=["cust"])
    (home / "both.json").write_text('{"cust":10,"customer":11}\n')
    done = warehouse.purge(warehouse.root("both"), warehouse.ids, "col.both")
    assert "several fields of ids: customer, cust" in done.gaps[0]["reason"], done.gaps


def test_a_schema_of_its_own_hides_former_columns_of_avro(warehouse: Warehouse, people: Any) -> None:
    home = people("schema", "STORED AS AVRO", former=["cust"])
    fields = [{"name": "customer", "type": ["null", "long"], "default": None}]
    literal = json.dumps({"type": "record", "name": "r", "fields": fields})
    warehouse.sql(f"ALTER TABLE col.schema SET TBLPROPERTIES ('avro.schema.literal'='{literal}')")
    done = warehouse.purge(warehouse.root("schema"), warehouse.ids, "col.schema")
    assert home and "without a column customer" in done.gaps[0]["reason"], done.gaps


@pytest.mark.parametrize("name", ["parquet", "spark_parquet", "orc"])
def test_a_former_column_is_searched_and_its_rows_are_erased(warehouse: Warehouse, people: Any, name: str) -> None:
    people(name, FORMATS[name], former=["cust"])
    root = warehouse.root(f"former_{name}")

    done = warehouse.purge(root, warehouse.ids, f"col.{name}")

    assert done.status == "done" and done.tables[0].rows_erased == 6, done
    read = pq.read_table if "parquet" in name else orc.read_table
    left: dict[str, list[int]] = {}
    for path in Path(warehouse.home_of(f"col.{name}")).glob("part-*"):
        table = read(path)
        left[table.column_names[0]] = table.column(0).to_pylist()
    kept = [number for number in range(30) if number % 10]
    assert left == {"cust": kept, "customer": kept}
    assert certified(warehouse, root, f"col.{name}").status == "certified"


def write_parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_columns_that_the_table_lost_are_named_where_they_hold_ids(warehouse: Warehouse, tmp_path: Path) -> None:
    warehouse.sql("CREATE DATABASE lost")
    numbers = pa.array([1, 2, 3])
    for name, values in {"ids": [10, 11, 12], "others": [111, 112, 113]}.items():
        write_parquet(tmp_path / name / "one.parquet", customer=numbers, friend=pa.array(values))
        warehouse.sql(
            f"CREATE TABLE lost.{name} (customer BIGINT) STORED AS PARQUET LOCATION '{tmp_path / name}' {described()}"
        )
    write_parquet(tmp_path / "nested" / "one.parquet", customer=numbers, more=pa.array([[10], [], []]))
    warehouse.sql(
        f"CREATE TABLE lost.nested (customer BIGINT) STORED AS PARQUET LOCATION '{tmp_path / 'nested'}' {described()}"
    )
    done = warehouse.purge(warehouse.root("lost"), warehouse.ids, "lost")
    reasons = {gap["table"]: gap["reason"] for gap in done.gaps}
    assert set(reasons) == {"lost.ids", "lost.nested"}, reasons
    assert "friend" in reasons["lost.ids"] and "holds ids" in reasons["lost.ids"]
    assert "a column more" in reasons["lost.nested"]


def test_files_without_the_column_are_gaps_until_the_descriptor_says_that_they_hold_none(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.sql("CREATE DATABASE without")
    for name, ids in {"unsaid": {}, "declared": {"former": []}}.items():
        write_parquet(tmp_path / name / "old.parquet", v=pa.array(["a"]))
        write_parquet(tmp_path / name / "new.parquet", customer=pa.array([10, 11]), v=pa.array(["b", "c"]))
        warehouse.sql(
            f"CREATE TABLE without.{name} (customer BIGINT, v STRING) STORED AS PARQUET LOCATION '{tmp_path / name}'"
            f" {described(**ids)}"
        )
    done = warehouse.purge(warehouse.root("without"), warehouse.ids, "without")
    (gap,) = done.gaps
    assert gap["table"] == "without.unsaid" and "old.parquet without a column customer" in gap["reason"], gap
    assert [table.rows_erased for table in done.tables] == [1, 1]


def test_files_of_a_large_directory_are_shared_by_tasks(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_columns, "FILES", 10)
    for number in range(25):
        column = "cust" if number in (3, 17) else "customer"
        write_parquet(tmp_path / "t" / f"{number:02}.parquet", **{column: pa.array([number])})
    warehouse.sql(
        "CREATE DATABASE large",
        f"CREATE TABLE large.t (customer BIGINT) STORED AS PARQUET LOCATION '{tmp_path / 't'}' {described()}",
    )
    done = warehouse.purge(warehouse.root("large"), warehouse.ids, "large.t")
    reason = done.gaps[0]["reason"]
    assert "03.parquet without a column customer" in reason and "17.parquet without a column customer" in reason
    assert done.tables[0].rows_erased == 3


def test_files_whose_columns_cannot_be_compared_are_gaps(warehouse: Warehouse, tmp_path: Path) -> None:
    """Readers find JSON of several lines by names, too, and no name of these files is looked at."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.json").write_text('[{"cust":\n10}]')
    warehouse.sql(
        "CREATE DATABASE lines",
        f"CREATE TABLE lines.t (customer BIGINT) USING json OPTIONS (multiLine 'true') LOCATION '{tmp_path / 't'}'"
        f" {described()}",
    )
    root = warehouse.root("lines")
    done = warehouse.purge(root, warehouse.ids, "lines.t")
    assert "columns are not compared with the table's: JSON with the option multiline" in done.gaps[0]["reason"]
    assert certified(warehouse, root, "lines.t").status == "gaps"


def test_columns_that_hive_reads_by_position_and_spark_by_name_are_gaps(warehouse: Warehouse, tmp_path: Path) -> None:
    warehouse.sql("CREATE DATABASE pos")
    write_parquet(tmp_path / "t" / "one.parquet", v=pa.array(["a", "b"]), customer=pa.array([10, 11]))
    warehouse.sql(
        f"CREATE TABLE pos.t (customer BIGINT, v STRING) STORED AS PARQUET LOCATION '{tmp_path / 't'}' {described()}",
        "ALTER TABLE pos.t SET TBLPROPERTIES ('parquet.column.index.access'='true')",
    )
    done = warehouse.purge(warehouse.root("pos"), warehouse.ids, "pos.t")
    assert "in which Hive reads the ids by position, from the column v" in done.gaps[0]["reason"], done.gaps


def test_fields_of_json_in_another_case_are_gaps(warehouse: Warehouse, tmp_path: Path) -> None:
    warehouse.sql("CREATE DATABASE cased")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.json").write_text('{"customer":10,"v":"a"}\n{"v":"none"}\n')
    warehouse.sql(
        f"CREATE TABLE cased.t (customer BIGINT, v STRING) USING json LOCATION '{tmp_path / 't'}' {described()}"
    )
    root = warehouse.root("cased")
    assert warehouse.purge(root, warehouse.ids, "cased.t").status == "done"
    home = Path(warehouse.home_of("cased.t"))
    (home / "b.json").write_text('{"Customer":20,"v":"b"}\n')
    done = warehouse.purge(root, warehouse.ids, "cased.t")
    assert "Customer" in " ".join(gap["reason"] for gap in done.gaps), done.gaps


@pytest.mark.parametrize(
    ("ids", "reported"), [({"former": 7}, "ids.former"), ({"former": ["v"]}, "the table has such a column")]
)
def test_a_descriptor_with_wrong_former_columns_is_refused(
    warehouse: Warehouse, ids: dict[str, Any], reported: str
) -> None:
    name = f"t{len(str(ids))}"
    warehouse.sql(
        "CREATE DATABASE IF NOT EXISTS wrong",
        f"CREATE TABLE IF NOT EXISTS wrong.good (customer BIGINT) STORED AS PARQUET {described()}",
        f"CREATE TABLE wrong.{name} (customer BIGINT, v STRING) STORED AS PARQUET {described(**ids)}",
    )
    done = warehouse.purge(warehouse.root(f"wrong_{name}"), warehouse.ids, f"wrong.{name}|good")
    assert reported in done.gaps[0]["reason"] and done.gaps[0]["invalid"]


@pytest.mark.parametrize("stored", ["ORC", "PARQUET"])
def test_partitions_whose_column_had_another_type(warehouse: Warehouse, stored: str) -> None:
    """Hive and Spark read ORC as the new type, but Spark's filter does not fit the statistics; Parquet nobody reads."""
    db = f"typed_{stored.lower()}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.gone AS SELECT explode(array('10', '20')) AS member",
        f"CREATE TABLE {db}.t (customer INT, v STRING) PARTITIONED BY (k INT) STORED AS {stored} {described()}",
        f"INSERT INTO {db}.t SELECT id, 'a', 1 FROM range(0, 30, 1, 1)",
    )
    table = warehouse.metastore.table(db, "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, columns=(Column("customer", "string"), Column("v", "string")))
    parameters = {name: value for name, value in table.parameters.items() if not name.startswith("spark.sql")}
    warehouse.metastore.alter_table(db, "t", msgspec.structs.replace(table, storage=storage, parameters=parameters))
    warehouse.sql(f"REFRESH TABLE {db}.t", f"INSERT INTO {db}.t SELECT id, 'b', 2 FROM range(0, 30, 1, 1)")
    root = warehouse.root(db)

    done = warehouse.purge(root, f"{db}.gone:member", f"{db}.t")

    asked = PurgeOptions(f"{db}.gone:member", f"{db}.t", "privacy.column")
    certificate = warehouse.certify(root, asked, run="latest", expedited=True)
    if stored == "ORC":
        assert (done.status, done.rows_erased, done.gaps) == ("done", 4, []), done
        assert sorted({row[0] for row in warehouse.rows(f"{db}.t")} & {"10", "20", "11"}) == ["11"]
        assert certificate.status == "certified", certificate
    else:
        assert "the cause: " in done.tables[0].error and "customer" in done.tables[0].error
        assert certificate.status == "gaps"
