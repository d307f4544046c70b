"""A rewriter that changes a row which stays, or lets the wrong one go, is found out before the swap, by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from purges import DESCRIPTOR, Warehouse
from pyarrow import orc

from replicator.lifecycle.purge import spark_work
from replicator.lifecycle.purge.rewrite import rewrite_task

FORMATS = {
    "parquet": "(id BIGINT, v STRING, m MAP<STRING,ARRAY<DATE>>) PARTITIONED BY (k STRING) STORED AS PARQUET",
    "parquet_of_spark": "(id INT, v STRING, m MAP<STRING,ARRAY<DATE>>, k STRING) USING parquet PARTITIONED BY (k)",
    "orc": "(id BIGINT, v STRING, m MAP<STRING,ARRAY<DATE>>) PARTITIONED BY (k STRING) STORED AS ORC",
    "text": "(v STRING, id INT, m MAP<STRING,ARRAY<DATE>>) PARTITIONED BY (k STRING) ROW FORMAT DELIMITED",
    "hive_csv": "(v STRING, id STRING) PARTITIONED BY (k STRING)"
    " ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
    "spark_csv": "(v STRING, id BIGINT, k STRING) USING csv OPTIONS (header 'true') PARTITIONED BY (k)",
    "json": "(v STRING, id BIGINT, k STRING) USING json PARTITIONED BY (k)",
}
STAYS, OTHER = "stays-31", "stays-13"


@pytest.fixture(scope="module")
def warehouse(warehouse: Warehouse) -> Warehouse:
    made = "map('a', array(date '2026-01-01', null))"
    warehouse.sql("CREATE DATABASE p")
    for name, definition in FORMATS.items():
        warehouse.sql(f"CREATE TABLE p.{name} {definition} TBLPROPERTIES ({DESCRIPTOR})")
        columns = warehouse.session.table(f"p.{name}").columns
        warehouse.sql(
            f"INSERT INTO p.{name} SELECT /*+ COALESCE(1) */ {', '.join(columns)} FROM (SELECT id, {made} AS m,"
            " concat('stays-', id) AS v, if(id DIV 10 % 2 = 0, 'a b%', '{c}*') AS k FROM range(0, 200, 1, 1))"
        )
    return warehouse


def changed(path: Path) -> None:
    """One value of a row that stays, in any file that has it; the number of rows is as before."""
    if path.read_bytes()[:4] in (b"PAR1", b"ORC\0") or path.read_bytes()[:3] == b"ORC":
        is_orc = path.read_bytes()[:3] == b"ORC"
        table = orc.read_table(path) if is_orc else pq.ParquetFile(path).read()
        at = table.schema.get_field_index("v")
        column = pc.replace_substring_regex(table["v"], f"^{STAYS}$", OTHER)
        assert pa.types.is_string(column.type)
        table = table.set_column(at, "v", column)
        orc.write_table(table, path) if is_orc else pq.write_table(table, path)
    else:
        path.write_bytes(path.read_bytes().replace(STAYS.encode(), OTHER.encode()))


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the rewriting of files wrong in a way that no count shows."""
    right = rewrite_task._rewrite

    def rewrite(task: rewrite_task.FilesTask, work: rewrite_task.FileWork) -> rewrite_task.FileDone:
        done = right(task, work)
        changed(Path(work.target.removeprefix("file:")))
        return done

    return lambda: monkeypatch.setattr(rewrite_task, "_rewrite", rewrite)


def test_a_row_that_was_changed_is_found_in_every_format(warehouse: Warehouse, wrong: Callable[[], None]) -> None:
    before = {name: warehouse.rows(f"p.{name}") for name in FORMATS}
    wrong()
    done = warehouse.purge(warehouse.root("wrong"), warehouse.ids, "p")
    assert done.status == "partial"
    for table in done.tables:
        units = {unit["partition"]: unit for unit in table.units}
        odd, even = units["k=%7Bc}%2A"], units["k=a b%25"]
        assert odd["state"] == "SKIPPED" and "a row that was to be kept was changed" in odd["reason"], odd
        assert even["state"] == "DONE" and table.files_proved == 2, even
        name = table.table.removeprefix("p.")
        at = warehouse.session.table(table.table).columns.index("id")
        left = [row for row in before[name] if row[-1] == "{c}*" or int(row[at]) % 10 or int(row[at]) >= 100]
        assert warehouse.rows(table.table) == left


def test_many_files_of_a_partition_are_read_as_its_directory(
    warehouse: Warehouse, wrong: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_work, "FEW", 0)
    warehouse.sql(
        "CREATE DATABASE many",
        f"CREATE TABLE many.t (id INT, v STRING) STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO many.t SELECT /*+ REPARTITION(3) */ id, concat('stays-', id) FROM range(0, 200)",
    )
    before = warehouse.rows("many.t")
    wrong()
    done = warehouse.purge(warehouse.root("many"), warehouse.ids, "many")
    assert done.status == "partial" and "was changed" in done.tables[0].units[0]["reason"]
    assert warehouse.rows("many.t") == before


def hashes(warehouse: Warehouse, *values: str) -> int:
    """The number of different ones."""
    rows = warehouse.session.sql(" UNION ALL ".join(f"SELECT {value} AS c" for value in values))
    rows = rows.selectExpr(f"xxhash64({spark_work._with_nulls('c', rows.schema.fields[0].dataType, 0)})")
    return len({tuple(row) for row in rows.collect()})


def test_a_hash_tells_every_null_and_no_order_of_a_map(warehouse: Warehouse) -> None:
    """Spark's ORC writer sorts a map's entries, and others leave them as they came."""
    maps = "map('a', array(1, null))", "map('a', array(1))", "map('a', array(null, 1))", "map('a', null)"
    assert hashes(warehouse, "map('b', array(1, null), 'a', null)", "map('a', null, 'b', array(1, null))") == 1
    assert hashes(warehouse, *maps) == 4
    arrays = "array('x')", "array('x', null)", "array(null, 'x')", "array()", "null"
    assert hashes(warehouse, *arrays) == 5
    some = [f"named_struct('p', {p}, 'q', {q})" for p, q in ((1, "int(null)"), ("int(null)", 1), (1, 1))]
    assert hashes(warehouse, *some, "null") == 4
    assert hashes(warehouse, *(f"array({one})" for one in some), "array(null)") == 4


VARIANTS = "(id BIGINT, v VARIANT, n STRUCT<a: ARRAY<VARIANT>, m: MAP<STRING, VARIANT>>, k STRING)"


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_rows_with_variants_are_purged_and_proved(warehouse: Warehouse, format_: str) -> None:
    """Spark hashes no VARIANT, at no depth."""
    name = f"variants_{format_}.t"
    warehouse.sql(
        f"CREATE DATABASE variants_{format_}",
        f"CREATE TABLE {name} {VARIANTS} USING {format_} PARTITIONED BY (k) TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {name} SELECT id, v, named_struct('a', array(v, null), 'm', map('x', v)), if(id < 50, 'a', 'b')"
        ' FROM (SELECT id, if(id = 31, null, parse_json(concat(\'{"number":\', id, \',"list":[null,"stays-\', id,'
        " '\"]}'))) AS v FROM range(0, 100, 1, 1))",
    )
    texts = f"SELECT id, to_json(v), to_json(n), k FROM {name} WHERE id % 10 <> 0 ORDER BY id"
    kept = warehouse.sql(texts)
    done = warehouse.purge(warehouse.root(f"variant_{format_}"), warehouse.ids, name)
    assert [table.error for table in done.tables] == [""], done
    assert {unit["partition"]: unit["state"] for unit in done.tables[0].units} == {"k=a": "DONE", "k=b": "DONE"}, done
    assert done.status == "done" and done.tables[0].files_proved == 2
    warehouse.sql(f"REFRESH TABLE {name}")
    assert warehouse.sql(texts) == kept and warehouse.sql(f"SELECT count(*) FROM {name}") == [(90,)]


POINT = "st_geomfromwkb(unhex('0101000000000000000000F03F0000000000000040'), 4326)"
OTHER_POINT = "st_geomfromwkb(unhex('0101000000000000000000F03F0000000000000840'), 4326)"


def test_rows_with_geometries_are_purged_and_proved(warehouse: Warehouse) -> None:
    """Spark hashes neither GEOMETRY nor GEOGRAPHY, at no depth."""
    warehouse.sql(
        "CREATE DATABASE shapes",
        "CREATE TABLE shapes.t (id BIGINT, g GEOMETRY(4326), h GEOGRAPHY(4326), n STRUCT<a: ARRAY<GEOMETRY(4326)>>)"
        f" USING parquet TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO shapes.t SELECT id, if(id = 31, null, {POINT}), st_geogfromwkb(st_asbinary({POINT})),"
        f" named_struct('a', array({POINT}, null)) FROM range(0, 100, 1, 1)",
    )
    read = "SELECT id, st_asbinary(g), st_asbinary(h), st_asbinary(n.a[0]) FROM shapes.t WHERE id % 10 <> 0 ORDER BY id"
    kept = warehouse.sql(read)
    done = warehouse.purge(warehouse.root("shapes"), warehouse.ids, "shapes.t")
    assert [table.error for table in done.tables] == [""], done
    assert done.status == "done" and done.tables[0].files_proved == 1
    warehouse.sql("REFRESH TABLE shapes.t")
    assert warehouse.sql(read) == kept and warehouse.sql("SELECT count(*) FROM shapes.t") == [(90,)]


def test_a_hash_tells_every_geometry(warehouse: Warehouse) -> None:
    values = [POINT, OTHER_POINT, f"st_setsrid({POINT}, 3857)", "st_geomfromwkb(null)"]
    assert [hashes(warehouse, one, one) for one in values] == [1] * 4
    assert hashes(warehouse, values[0], values[1]) == hashes(warehouse, values[0], "st_geomfromwkb(null, 4326)") == 2


def test_a_hash_tells_every_value_and_type_of_a_variant(warehouse: Warehouse) -> None:
    texts = ["1", "1.0", '"1"', "null", '{"a":1,"b":[2]}', '{"a":1,"b":[2,null]}', "[]", "{}"]
    values = [*(f"parse_json('{text}')" for text in texts), "variant_get(parse_json('1'), '$', 'variant')"]
    assert hashes(warehouse, *values, "cast(null as variant)", "cast(cast(1 as int) as variant)") == len(texts) + 1
    assert hashes(warehouse, """parse_json('{"a":1,"b":2}')""", """parse_json('{"b":2,"a":1}')""") == 1
    nested = [f"array(map('k', parse_json('{text}')))" for text in texts]
    assert hashes(warehouse, *nested, "array(map('k', cast(null as variant)))") == len(texts) + 1
