"""Tables of Avro and SequenceFile through the command: what only the files know stays, and they keep their names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
import xxhash
from purges import DESCRIPTOR, Warehouse
from pyarrow import orc
from record_files import SequenceFile

from replicator.core.model import Column
from replicator.lifecycle.purge import spark_work
from replicator.lifecycle.purge.ids import ColumnsTask, run_columns_task
from replicator.lifecycle.purge.run import Purged

FORMATS = ("AVRO", "SEQUENCEFILE")
NESTED = """'dataset.descriptor'='{"privacy": {"column": "header.id"}}'"""


@pytest.fixture
def db(warehouse: Warehouse, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:60] + str(abs(hash(request.node.name)))[:4]
    warehouse.sql(f"CREATE DATABASE {name}")
    return name


def replace_columns(warehouse: Warehouse, db: str, name: str, *columns: tuple[str, str]) -> None:
    """As Hive's ALTER TABLE .. REPLACE COLUMNS: the partitions keep theirs."""
    table = warehouse.metastore.table(db, name)
    assert table.storage is not None
    storage = msgspec.structs.replace(table.storage, columns=tuple(Column(*each) for each in columns))
    parameters = {key: value for key, value in table.parameters.items() if not key.startswith("spark.sql.")}
    warehouse.metastore.alter_table(db, name, msgspec.structs.replace(table, storage=storage, parameters=parameters))
    warehouse.sql(f"REFRESH TABLE {db}.{name}")


def files(warehouse: Warehouse, db: str, name: str) -> dict[str, bytes]:
    """By name, of all partitions."""
    table = warehouse.metastore.table(db, name)
    keys = warehouse.metastore.partition_names(db, name) if table.is_partitioned else []
    parts = [part for batch in warehouse.metastore.partitions(db, name, keys) for part in batch] or [table]
    places = [Path((part.location or "").removeprefix("file:")) for part in parts]
    found = [path for place in places for path in place.rglob("*") if path.is_file() and path.name[0] not in "._"]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}


def whole(done: Purged) -> Purged:
    assert done.status == "done", [table for table in done.tables if table.failed or table.error]
    return done


@pytest.mark.parametrize("partitioned", [True, False])
def test_columns_that_the_table_does_not_know_stay(warehouse: Warehouse, db: str, partitioned: bool) -> None:
    by = "PARTITIONED BY (k INT)" if partitioned else ""
    columns = (("v", "string"), ("id", "bigint"), ("later", "double"))
    for name in FORMATS:
        warehouse.sql(
            f"CREATE TABLE {db}.{name} ({', '.join(map(' '.join, columns))}) {by} STORED AS {name}"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.{name} SELECT concat('v', id), id, id / 3"
            f"{', int(id DIV 100) AS k' if partitioned else ''} FROM range(0, 200, 1, 2)",
        )
    before = {name: warehouse.rows(f"{db}.{name}") for name in FORMATS}
    names = {name: set(files(warehouse, db, name)) for name in FORMATS}
    for name in FORMATS:
        replace_columns(warehouse, db, name, *columns[:2])

    assert whole(warehouse.purge(warehouse.root(db), warehouse.ids, db)).rows_erased == 20

    for name in FORMATS:
        replace_columns(warehouse, db, name, *columns)
        rows = [row for row in before[name] if row[1] >= 100 or row[1] % 10]
        assert len(rows) == 190 and all(row[2] is not None for row in rows)
        assert warehouse.rows(f"{db}.{name}") == rows and set(files(warehouse, db, name)) == names[name]


def test_buckets_keep_their_numbers(warehouse: Warehouse, db: str) -> None:
    for name in FORMATS:
        warehouse.sql(
            f"CREATE TABLE {db}.{name} (v STRING, id BIGINT) CLUSTERED BY (v) SORTED BY (v) INTO 3 BUCKETS"
            f" STORED AS {name} TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.{name} SELECT concat('v', id), id FROM range(0, 200, 1, 2)",
        )
    before = {name: (warehouse.rows(f"{db}.{name}"), files(warehouse, db, name)) for name in FORMATS}
    whole(warehouse.purge(warehouse.root(db), warehouse.ids, db))
    for name, (rows, found) in before.items():
        assert warehouse.rows(f"{db}.{name}") == [row for row in rows if row[1] >= 100 or row[1] % 10]
        assert {each.split("/")[1] for each in files(warehouse, db, name)} == {each.split("/")[1] for each in found}
        assert len(found) >= 3


CODECS = ("null", "deflate", "snappy", "bzip2", "zstandard", "xz")
VALUES = {
    "date": "date_add(date'2026-01-01', int(id))",
    "binary": "encode(string(id), 'UTF-8')",
    "timestamp": "timestamp_millis(id * 1001 + 1700000000000)",
}
TYPES = ("bigint", "int", "string", "decimal(20,3)", "double", "varchar(9)", "char(9)", *VALUES)


@pytest.mark.long
def test_avro_codecs_and_types_of_ids(warehouse: Warehouse, db: str, tmp_path: Path) -> None:
    """As Hive's serde writes them, and a reader of Java sees each record."""
    gone = ("v0", "v77", "v78", "v4999")
    for at, type_ in enumerate(TYPES):
        codec, name = CODECS[at % len(CODECS)], f"{db}.t{at}"
        warehouse.sql(
            f"SET hive.exec.compress.output={codec != 'null'}",
            f"SET avro.output.codec={codec}",
            f"CREATE TABLE {name} (v STRING, id {type_}, m MAP<STRING, ARRAY<DOUBLE>>) STORED AS AVRO"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {name} SELECT concat('v', id), {VALUES.get(type_, f'CAST(id AS {type_})')},"
            " map('a', array(id / 3)) FROM range(0, 5000, 1, 1)",
            f"CREATE TABLE {db}.ids{at} AS SELECT id FROM {name} WHERE v IN {gone}",
        )
        (data,) = files(warehouse, db, f"t{at}").values()
        assert codec == "null" or codec.encode() in data[:2000]
        before = as_text(warehouse, data, tmp_path)
        whole(warehouse.purge(warehouse.root(f"{db}{at}"), f"{db}.ids{at}:id", f"{db}.t{at}"))
        (data,) = files(warehouse, db, f"t{at}").values()
        wanted = [each for each in before if not each.startswith(tuple(f'{{"v": "{each}"' for each in gone))]
        assert len(wanted) == 4996 and as_text(warehouse, data, tmp_path) == wanted, type_


def as_text(warehouse: Warehouse, data: bytes, directory: Path) -> list[str]:
    path = directory / f"{xxhash.xxh3_64_hexdigest(data)}.avro"
    path.write_bytes(data)
    class_, text = "org.apache.avro.mapred.AvroAsTextInputFormat", "org.apache.hadoop.io.Text"
    return [key for key, _ in warehouse.session.sparkContext.hadoopFile(str(path), class_, text, text).collect()]


def test_an_id_may_be_in_a_struct_of_avro(warehouse: Warehouse, db: str) -> None:
    warehouse.sql(
        f"CREATE TABLE {db}.t (v STRING, header STRUCT<at: STRING, id: BIGINT>) STORED AS AVRO"
        f" TBLPROPERTIES ({NESTED})",
        f"INSERT INTO {db}.t SELECT concat('v', id), named_struct('at', 'x', 'id', if(id % 7 = 0, null, id))"
        " FROM range(0, 200, 1, 1)",
        f"INSERT INTO {db}.t VALUES ('none', null)",
    )
    before = warehouse.rows(f"{db}.t")
    whole(warehouse.purge(warehouse.root(db), warehouse.ids, db))
    wanted = [row for row in before if row[1] is None or row[1].id is None or row[1].id >= 100 or row[1].id % 10]
    assert len(wanted) == 201 - 8 and warehouse.rows(f"{db}.t") == wanted


def write_avro(path: Path, schema: Mapping[str, Any], records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, schema, records)


def test_files_older_than_the_schema_of_the_table(warehouse: Warehouse, db: str, tmp_path: Path) -> None:
    """The column had another name, which an alias says; another one is gone from the schema."""
    record: dict[str, Any] = {"type": "record", "name": "R", "namespace": "n"}
    old = {**record, "fields": [{"name": "memberId", "type": "int"}, {"name": "gone", "type": "string"}]}
    now = {
        **record,
        "fields": [
            {"name": "Id", "type": "long", "aliases": ["memberId"]},
            {"name": "v", "type": "string", "default": "-"},
        ],
    }
    write_avro(tmp_path / "t/k=1/old.avro", old, [{"memberId": at, "gone": f"g{at}"} for at in range(50)])
    write_avro(tmp_path / "t/k=2/new.avro", now, [{"Id": at, "v": f"v{at}"} for at in range(50)])
    warehouse.sql(
        f"CREATE EXTERNAL TABLE {db}.t (id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS AVRO"
        f" LOCATION '{tmp_path}/t' TBLPROPERTIES ({DESCRIPTOR}, 'avro.schema.literal'='{json.dumps(now)}')",
        f"MSCK REPAIR TABLE {db}.t",
    )
    assert len(warehouse.rows(f"{db}.t")) == 100
    whole(warehouse.purge(warehouse.root(db), warehouse.ids, db))
    assert [row for row in warehouse.rows(f"{db}.t") if row[0] % 10 == 0] == []
    (data,) = (data for name, data in files(warehouse, db, "t").items() if name.endswith("/old.avro"))
    (tmp_path / "found").write_bytes(data)
    with (tmp_path / "found").open("rb") as file:
        assert list(fastavro.reader(file)) == [{"memberId": at, "gone": f"g{at}"} for at in range(50) if at % 10]


def test_rows_of_other_serdes_in_sequence_files(warehouse: Warehouse, db: str) -> None:
    serde, hadoop = "org.apache.hadoop.hive.serde2", "org.apache.hadoop"
    stored = (
        f"STORED AS INPUTFORMAT '{hadoop}.mapred.SequenceFileInputFormat'"
        f" OUTPUTFORMAT '{hadoop}.hive.ql.io.HiveSequenceFileOutputFormat'"
    )
    for name, class_ in (("csv", "OpenCSVSerde"), ("binary", "lazybinary.LazyBinarySerDe")):
        warehouse.sql(
            f"CREATE TABLE {db}.{name} (v STRING, id STRING) ROW FORMAT SERDE '{serde}.{class_}' {stored}"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.{name} SELECT 'a,\"b', string(id) FROM range(0, 200, 1, 1)",
        )
    before = warehouse.rows(f"{db}.csv")
    done = warehouse.purge(warehouse.root(db), warehouse.ids, db)
    binary, csv = sorted(done.tables, key=lambda table: table.table)
    assert (csv.rows_erased, csv.failed) == (10, 0)
    assert warehouse.rows(f"{db}.csv") == [row for row in before if int(row[1]) >= 100 or int(row[1]) % 10]
    why = f"files of {serde}.lazybinary.LazyBinarySerDe cannot be rewritten"
    assert [unit.get("reason") for unit in binary.units] == [why]
    assert (done.status, len(warehouse.rows(f"{db}.binary"))) == ("partial", 200)


def test_what_spark_would_lose_is_refused(warehouse: Warehouse, db: str, tmp_path: Path) -> None:
    """Columns that only the files have, of formats that Spark alone can write: by file, in a struct; and an id that
    lies elsewhere in the partition."""
    for name, by in (("rc_order", "PARTITIONED BY (k INT)"), ("rc", "")):
        warehouse.sql(
            f"CREATE TABLE {db}.{name} (v BIGINT, id BIGINT, w STRING) {by} STORED AS RCFILE"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.{name} SELECT 300 - id, id, 'w' {', 1' if by else ''} FROM range(0, 200, 1, 1)",
        )
    replace_columns(warehouse, db, "rc", ("v", "bigint"), ("id", "bigint"))
    replace_columns(warehouse, db, "rc_order", ("id", "bigint"), ("v", "bigint"), ("w", "string"))
    warehouse.sql(f"INSERT INTO {db}.rc_order PARTITION (k = 1) SELECT id, 0, 'w' FROM range(0, 20, 1, 1)")
    written = "SELECT id, timestamp'1500-01-01' AS t, named_struct('a', 1, 'b', 2) AS s FROM range(0, 200, 1, 1)"
    warehouse.session.sql(written).write.orc(str(tmp_path / "written"))
    for name, columns in (
        ("orc", "id BIGINT, t TIMESTAMP"),
        ("orc_struct", "id BIGINT, t TIMESTAMP, s STRUCT<a: INT>"),
    ):
        shutil.copytree(tmp_path / "written", tmp_path / name)
        warehouse.sql(
            f"CREATE EXTERNAL TABLE {db}.{name} ({columns}) STORED AS ORC LOCATION '{tmp_path}/{name}'"
            f" TBLPROPERTIES ({DESCRIPTOR})"
        )
    before = {name: files(warehouse, db, name) for name in ("orc", "orc_struct", "rc", "rc_order")}

    done = warehouse.purge(warehouse.root(db), warehouse.ids, db)

    found = {table.table.rpartition(".")[2]: table.units[0].get("reason", "") for table in done.tables}
    assert {name: files(warehouse, db, name) for name in found} == before
    output = {
        "orc": "its table has no s, s.a, s.b; only Spark can rewrite this file, and it would lose the rest",
        "orc_struct": "its table has no s.b; only Spark can rewrite this file, and it would lose the rest",
        "rc": "its table has 2 of its 3 columns; only Spark can rewrite this file, and it would lose the rest",
        "rc_order": "cannot be rewritten where the partition's column id has another type or position than its table's",
    }
    assert all(found[name].endswith(why) for name, why in output.items()) and len(found) == len(output), found


def test_a_partition_that_spark_writes_keeps_its_own_columns(warehouse: Warehouse, db: str) -> None:
    """Also those that the table has no more, and may get again."""
    text = "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.columnar.ColumnarSerDe'"
    for name, serde in (("binary", ""), ("plain", text)):
        warehouse.sql(
            f"CREATE TABLE {db}.{name} (key STRING, id BIGINT, w STRING) PARTITIONED BY (k INT) {serde}"
            f" STORED AS RCFILE TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.{name} SELECT concat('00', id), id, 'w', 1 FROM range(0, 200, 1, 1)",
        )
        (Path(warehouse.home_of(f"{db}.{name}")) / "k=1" / "empty").touch()
    before = warehouse.rows(f"{db}.plain")
    metastore, counted = warehouse.metastore, len(files(warehouse, db, "plain"))
    table = metastore.table(db, "plain")
    parameters = {**table.parameters, "numFiles": str(counted)}
    metastore.alter_table(db, "plain", msgspec.structs.replace(table, parameters=parameters))
    for name in ("binary", "plain"):
        replace_columns(warehouse, db, name, ("key", "string"), ("id", "bigint"))
    whole(warehouse.purge(warehouse.root(db), warehouse.ids, db))
    now = len(files(warehouse, db, "plain"))
    assert metastore.table(db, "plain").parameters["numFiles"] == str(now) == str(counted), "each in its own place"
    for name in ("binary", "plain"):
        assert [row[1] for row in warehouse.rows(f"{db}.{name}") if row[1] < 100 and row[1] % 10 == 0] == []
        replace_columns(warehouse, db, name, ("key", "string"), ("id", "bigint"), ("w", "string"))
        assert warehouse.rows(f"{db}.{name}") == [row for row in before if row[1] >= 100 or row[1] % 10]


def test_a_reader_that_takes_ids_for_others_is_found_out(
    warehouse: Warehouse, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows go as the search found, and of other ids."""
    warehouse.sql(
        f"CREATE TABLE {db}.t (v STRING, id BIGINT) STORED AS RCFILE TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT 'v', id FROM range(0, 200, 1, 1)",
    )
    before, right = warehouse.rows(f"{db}.t"), spark_work.by_serde

    def wrong(*arguments: Any) -> Any:
        return right(*arguments).selectExpr("v", "CASE id WHEN 10 THEN 11L WHEN 21 THEN 20L ELSE id END AS id")

    monkeypatch.setattr(spark_work, "by_serde", wrong)
    done = warehouse.purge(warehouse.root(db), warehouse.ids, db)
    (unit,) = done.tables[0].units
    assert (done.status, unit["reason"]) == (
        "partial",
        "for 2 ids, Spark found other numbers of rows than were left out",
    )
    assert warehouse.rows(f"{db}.t") == before


def notes(**texts: str) -> bytes:
    output = (SequenceFile.text(each.encode()) for pair in texts.items() for each in pair)
    return len(texts).to_bytes(4, "big") + b"".join(output) + bytes(16)


THREE = notes(**{"other": "9", "hive.io.rcfile.column.number": "3"})
CLASSES = b"".join(map(SequenceFile.text, (b"org.apache.hadoop.hive.ql.io.RCFile$KeyBuffer", b"...ValueBuffer")))


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b"RCF\1\0" + THREE, "its table has 2 of its 3 columns"),
        (b"RCF\1\1\5codec" + THREE, "its table has 2 of its 3 columns"),
        (b"SEQ\6" + CLASSES + b"\0\0" + THREE, "its table has 2 of its 3 columns"),
        (b"RCF\1\0" + notes(**{"hive.io.rcfile.column.number": "2"}), ""),
        (b"RCF\1\0" + notes(other="3"), "it is not an RCFile"),
        (b"RCF\1\0" + THREE[:20], "bytes are declared"),
        (b"PAR1" * 9, "it is not a SequenceFile"),
    ],
)
def test_columns_that_an_rcfile_says(tmp_path: Path, data: bytes, output: str) -> None:
    (tmp_path / "f").write_bytes(data)
    place = str(tmp_path / "f")
    serde = "org.apache.hadoop.hive.serde2.columnar.ColumnarSerDe"
    found = run_columns_task(ColumnsTask(serde, ("a", "b"), frozenset("ab"), (place,)))
    assert output in found and bool(output) == bool(found)


@pytest.mark.parametrize(
    ("names", "lost"),
    [(("_col0", "_col1"), ""), (("_col0", "_col2"), "_col2"), (("A", "B"), ""), (("_col0", "b"), "_col0")],
)
def test_columns_of_orc_may_go_by_position(tmp_path: Path, names: tuple[str, str], lost: str) -> None:
    nested = pa.array([[{"X": {"k": 1}}]], pa.list_(pa.struct({"X": pa.map_(pa.string(), pa.int32())})))
    orc.write_table(pa.table([pa.array([1]), nested], list(names)), tmp_path / "f")
    known = frozenset(("a", "b", "b[]", "b[].x", "b[].x{k}", "b[].x{v}"))
    task = ColumnsTask("org.apache.hadoop.hive.ql.io.orc.OrcSerde", ("a", "b"), known, (str(tmp_path / "f"),))
    found = run_columns_task(task)
    assert re.search(f"its table has no {lost}[,;]", found) if lost else not found
    fewer = msgspec.structs.replace(task, known=known - {"b[].x{v}"})
    assert lost or re.search(r"its table has no [bB]\[\]\.X\{v\}; ", run_columns_task(fewer))
