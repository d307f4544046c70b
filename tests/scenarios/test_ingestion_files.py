"""Files of a drop zone, landed in a real warehouse: what lies there is read with pyarrow, and by Spark as users do."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dropping import Dropping
from purges import Warehouse
from waiting import eventually

import replicator
from replicator.errors import MetastoreUnreachable
from replicator.ingestion import drop_directory
from replicator.ingestion.landing import file_steps, landing_steps


@pytest.fixture
def dropping(warehouse: Warehouse, tmp_path: Path) -> Iterator[Dropping]:
    made = Dropping(warehouse, tmp_path)
    made.create_asset()
    yield made


def test_text_with_its_description_lands_as_it_says(dropping: Dropping) -> None:
    columns = [
        {"name": "Id", "type": "bigint"},
        {"name": "name"},
        {"name": "born", "type": "date", "format": "dd.MM.yyyy"},
        {"name": "paid", "type": "decimal(12,2)"},
        {"name": "at", "type": "timestamp"},
    ]
    dropping.describe("people", format="csv", delimiter=";", columns=columns)
    head = "Id;name;born;paid;at\n"
    dropping.write("people", "a.csv", head + '1;"Zoë; ""X""";31.12.1999;1.50;2024-01-01 12:00:00\n2;;;;\n')
    dropping.write("people", "b/c.csv.gz", gzip.compress((head + '3;"";01.01.2000;-7;\n').encode()))
    dropping.write("people", "empty.csv", "")

    done = dropping.land("people")

    assert (done.status, done.rows) == ("done", 3), done
    found = [(row["id"], row["name"], row["born"], row["paid"]) for row in dropping.rows("people")]
    assert sorted(found) == [
        (1, 'Zoë; "X"', date(1999, 12, 31), Decimal("1.50")),
        (2, None, None, None),
        (3, None, date(2000, 1, 1), Decimal("-7.00")),
    ]
    dropping.write("people", "d.csv", "Id;born;name;paid;at\n")
    assert "d.csv does not match its description" in dropping.land("people").errors[0]
    (dropping.drop / "day/people/d.csv").unlink()
    dropping.write("people", "a.csv", head + "1;x;31.12.1999;1.555;\n9;x;1999;;\n")
    (text,) = dropping.land("people").errors
    assert "born (date) has 1 values that do not fit, such as '1999'" in text
    assert "paid (decimal(12,2)) has 1 values that do not fit, such as '1.555'" in text
    dropping.write("people", "a.csv", head + "1;x\n")
    assert "such as '1;x' in a.csv" in dropping.land("people").errors[0]
    assert len(dropping.rows("people")) == 3, "what was there stays"


def test_headers_of_csv_are_mapped_to_columns(dropping: Dropping) -> None:
    dropping.create_asset()
    columns = [{"name": "customer_no", "type": "bigint", "header": "Customer No."}, {"name": "full_name"}]
    dropping.describe("people", format="csv", columns=columns)
    dropping.write("people", "a.csv", "Customer No.,full_name\n1,Ann\n")
    assert dropping.land("people").done == 1
    assert [tuple(row.values()) for row in dropping.rows("people")] == [(1, "Ann")]
    dropping.write("people", "b.csv", "CUSTOMER-NO,Full  Name \n2,Bob\n")
    assert '`"header_match": "loose"` would accept it' in dropping.land("people").errors[0]
    dropping.describe("people", format="csv", columns=columns, header_match="loose")
    dropping.write("people", "c.csv", '\ufeff"customer  no",FULL_NAME\n3,Eve\n')
    assert dropping.land("people").done == 1
    assert [tuple(row.values()) for row in dropping.rows("people")] == [(1, "Ann"), (2, "Bob"), (3, "Eve")]
    dropping.write("people", "d.csv", "full_name,customer_no\n4,4\n")
    assert "d.csv does not match its description: its header is" in dropping.land("people").errors[0]


@pytest.mark.parametrize("null", ["", "NA"])
def test_an_empty_text_in_quotes_is_told_from_null(dropping: Dropping, null: str) -> None:
    dropping.create_asset()
    columns = [{"name": "id", "type": "bigint"}, {"name": "a"}, {"name": "b", "type": "decimal(9,2)"}]
    dropping.describe("t", format="csv", columns=columns, null=null, quoted_empty="text")
    dropping.write("t", "a.csv", f'id,a,b\n1,"",1.5\n2,,\n3,{null},{null}\n4,"{null}",2\n5,"x",\n6," ",3\n')
    done = dropping.land("t")
    assert done.done == 1, done.errors
    quoted = "" if null == "" else None
    found = [(row["id"], row["a"]) for row in dropping.rows("t")]
    assert found == [(1, ""), (2, None), (3, None), (4, quoted), (5, "x"), (6, " ")]
    dropping.write("t", "b.csv", 'id,a,b\n7,x,""\n')
    assert "column b (decimal(9,2)) has 1 values that do not fit, such as ''" in dropping.land("t").errors[0]


def test_a_value_that_would_be_changed_is_refused_in_each_format(dropping: Dropping) -> None:
    bad = {"paid": "1.239", "at": "12:30:00", "far": "1e400", "born": "2020-12-31", "short": "long"}
    columns: list[dict[str, Any]] = [
        {"name": "paid", "type": "decimal(12,2)"},
        {"name": "at", "type": "timestamp"},
        {"name": "far", "type": "double"},
        {"name": "born", "type": "date", "format": "yyyy-dd-MM"},
        {"name": "short", "type": "varchar(3)"},
    ]
    tags = "".join(f"<{name}>{value}</{name}>" for name, value in bad.items())
    head, line = ",".join(bad), ",".join(bad.values())
    for said, text in (
        ({"format": "csv"}, f"{head}\n{line}\n"),
        ({"format": "json"}, json.dumps({**bad, "paid": 1.239})),
        ({"format": "xml", "row": "o"}, f"<all><o>{tags}</o></all>"),
    ):
        dropping.describe("t", columns=columns, **said)
        dropping.write("t", "a", text)
        told = dropping.refused("t")
        for value in bad.values():
            assert f"has 1 values that do not fit, such as '{value}'" in told, told
        (job, *_) = replicator.ingest_ls(config=dropping.config).jobs
        assert job.state == "failed_type"
    for format_, text in ((None, "2020-02-01 10:00:00.1234567"), ("yyyyMMdd.SSSSSSSSS", "20200201.123456789")):
        dropping.describe("t", format="csv", columns=[{"name": "at", "type": "timestamp", "format": format_}])
        dropping.write("t", "a", f"at\n{text}\n")
        assert f"has 1 values that do not fit, such as '{text}'" in dropping.refused("t")
    dropping.describe("t", format="csv", columns=[{"name": "at", "type": "timestamp", "format": "HHmmssSSSSSSSSS"}])
    assert "more than six digits of a second" in dropping.refused("t")
    dropping.describe("t", format="json", columns=[{"name": "a", "type": "array<struct<paid:decimal(12,2)>>"}])
    dropping.write("t", "a", '{"a": [{"paid": 1.124}, {"paid": 1.126}]}')
    assert "has 1 values that do not fit, such as '1.124'" in dropping.refused("t")
    large = "9" * 30
    columns = [{"name": "n", "type": "decimal(38,0)"}, {"name": "p", "type": "decimal(12,2)"}, columns[3]]
    dropping.describe("t", format="json", columns=columns)
    dropping.write("t", "a", f'{{"n": {large}, "p": 120e-2, "born": "2020-02-01"}}\n{{"p": 0E-18}}\n')
    assert dropping.land("t").rows == 2
    assert dropping.rows("t")[0] == {"n": Decimal(large), "p": Decimal("1.20"), "born": date(2020, 1, 2)}


def test_a_value_of_which_spark_keeps_one_of_two_is_refused(dropping: Dropping) -> None:
    """Where the table has a list for them, all are kept."""
    dropping.write("t", "a", '{"a": 1, "b": {"c": 1, "c": 2}}\n')
    for columns, told in (
        ([], "`c` already exists"),
        ([{"name": "a", "type": "int"}, {"name": "b", "type": "struct<c: int>"}], "'c' occurs twice in an object"),
    ):
        dropping.describe("t", format="json", columns=columns)
        found = dropping.refused("t")
        assert told in found and "correct" in found, found
    dropping.describe("t", format="xml", row="o", columns=[{"name": "a"}, {"name": "b", "type": "struct<c: int>"}])
    dropping.write("t", "a", "<all><o><a>1</a><b><c>1</c></b></o><o><a>1</a><A>2</A></o></all>")
    assert "the tag a occurs more than once where one value is expected" in dropping.refused("t")
    dropping.write("t", "a", "<all><o><a>1</a><b><c>1</c><c>2</c></b></o></all>")
    assert "the tag b.c occurs more than once" in dropping.refused("t")
    items = {"name": "i", "type": "array<struct<q: int>>"}
    dropping.describe("t", format="xml", row="o", columns=[{"name": "a"}, items])
    dropping.write("t", "a", "<all><o><a>1</a><i><q>1</q></i><i><q>2</q><q>3</q></i></o></all>")
    assert "the tag q occurs more than once" in dropping.refused("t")
    dropping.write("t", "a", "<all><o><a>1</a><x/><x/><i><q>1</q></i><i><q>2</q></i></o></all>")
    assert dropping.land("t").status == "done"
    assert dropping.sql("SELECT q FROM {db}.t__i ORDER BY 1") == [(1,), (2,)]


ORDERS = [
    {
        "no": 1,
        "who": {"name": "ann", "city": None},
        "items": [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b"}],
        "n": [7],
    },
    {"no": 2, "who": {"name": "bob", "city": "Ulm"}, "items": [], "n": None},
    {"no": 3, "items": [{"sku": "c", "tags": []}, None]},
]


def test_nested_rows_become_tables_that_join_back(dropping: Dropping) -> None:
    dropping.describe("orders", format="json")
    dropping.write("orders", "a.json", "\n".join(map(json.dumps, ORDERS)))
    done = dropping.land("orders")
    assert (done.status, done.rows) == ("done", 3), done
    names = {f"orders{each}" for each in ("", "__items", "__items__tags", "__n")}
    assert set(dropping.warehouse.metastore.table_names(f"{dropping.asset}_day")) >= names
    joined = dropping.sql(
        "SELECT o.no, o.who_name, o.who_city, i.position, i.sku, t.position, t.value FROM {db}.orders o"
        " LEFT JOIN {db}.orders__items i ON i.parent_id = o.row_id"
        " LEFT JOIN {db}.orders__items__tags t ON t.parent_id = i.row_id ORDER BY 1, 4, 6"
    )
    assert joined == [
        (1, "ann", None, 0, "a", 0, "x"),
        (1, "ann", None, 0, "a", 1, "y"),
        (1, "ann", None, 1, "b", None, None),
        (2, "bob", "Ulm", None, None, None, None),
        (3, None, None, 0, "c", None, None),
        (3, None, None, 1, None, None, None),
    ]
    constraints = dropping.warehouse.metastore.constraints(f"{dropping.asset}_day", ["orders__items"])
    assert {(each.kind, each.columns) for each in constraints["orders__items"]} == {
        ("PRIMARY KEY", ("row_id",)),
        ("FOREIGN KEY", ("parent_id",)),
    }
    dropping.write("orders", "b.json", '{"no": 4, "items": [{"sku": ')
    (text,) = dropping.land("orders").errors
    assert "1 rows do not match the description" in text and "in b.json" in text


def test_erased_people_take_what_belongs_to_them_along(warehouse: Warehouse, tmp_path: Path) -> None:
    dropping = Dropping(warehouse, tmp_path)
    warehouse.sql(f"CREATE DATABASE {dropping.asset}_gdpr")
    warehouse.sql(f"CREATE TABLE {dropping.asset}_gdpr.gone AS SELECT 1 AS id")
    dropping.create_asset(erasure_ids=f"{dropping.asset}_gdpr.gone:id", erasure_column="no")
    dropping.describe("orders", format="json")
    dropping.write("orders", "a.json", "\n".join(map(json.dumps, ORDERS)))
    assert dropping.land("orders").rows == 2
    assert dropping.sql("SELECT sku FROM {db}.orders__items ORDER BY 1") == [(None,), ("c",)]
    assert dropping.rows("orders__items__tags") == []
    dropping.describe("daily", format="json", days={"layout": "%Y-%m-%d"})
    dropping.write("daily", "2026-01-01/a.json", '{"no": 1, "items": [1]}')
    assert dropping.land("daily", mode="append").done == 1, "a day of which nobody stays"
    dropping.write("daily", "2026-01-02/a.json", '{"no": 2, "items": [2]}')
    assert dropping.land("daily", mode="append").rows == 1
    assert dropping.sql("SELECT day, value FROM {db}.daily__items") == [(date(2026, 1, 2), 2)]
    family = [{"no": 2, "members": [{"no": 1, "pets": ["rex"]}, {"no": 7, "pets": ["ada"]}]}]
    dropping.write("families", "a.json", "\n".join(map(json.dumps, family)))
    dropping.describe("families", format="json")
    assert dropping.land("families").rows == 1
    assert dropping.sql("SELECT no FROM {db}.families__members") == [(7,)], "also within what is somebody else's"
    assert dropping.sql("SELECT value FROM {db}.families__members__pets") == [("ada",)]
    (job, *_) = replicator.ingest_ls(config=dropping.config).jobs
    assert replicator.ingest_show(job.job, config=dropping.config).detail.facts["erased_rows"] == 1


def test_days_land_when_they_are_closed_and_again_when_files_come_late(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping.describe("clicks", format="json", days={"layout": "%Y/%m/%d", "watermark": "_written", "lateness": "1h"})
    for day, number in (("2026/01/01", 1), ("2026/01/02", 2), ("2026/01/03", 3)):
        dropping.write("clicks", f"{day}/a.json", json.dumps({"n": number}) + "\n")
    dropping.write("clicks", "_written", "2026-01-03T00:30:00Z")
    asked = {"mode": "append"}
    assert dropping.land("clicks", **asked).rows == 1, "the second is over, and not yet its lateness"
    dropping.write("clicks", "_written", "2026-01-03T02:00:00Z")
    dropping.write("clicks", "2026/01/01/late.json", json.dumps({"n": 10}) + "\n")
    assert dropping.land("clicks", **asked).rows == 3
    shown = [(date(2026, 1, 1), 1), (date(2026, 1, 1), 10), (date(2026, 1, 2), 2)]
    assert dropping.sql("SELECT day, n FROM {db}.clicks ORDER BY 1, 2") == shown
    assert dropping.land("clicks", **asked).rows == 0
    dropping.describe("tagged", format="json", days={"layout": "%Y-%m-%d"})
    dropping.write("tagged", "2026-01-01/a.json", '{"n": 1, "tags": ["a"]}')
    dropping.create_asset(consumers=["readers"], overwrite=True)
    assert dropping.land("tagged", **asked).rows == 1
    metastore, db = dropping.warehouse.metastore, f"{dropping.asset}_day"
    assert all(("GROUP", "readers") in metastore.readers(db, name) for name in ("tagged", "tagged__tags"))
    dropping.create_asset(overwrite=True)
    assert dropping.land("tagged", **asked).rows == 0
    assert not any(("GROUP", "readers") in metastore.readers(db, name) for name in ("tagged", "tagged__tags"))
    dropping.write("tagged", "2026-01-01/a.json", '{"n": 2, "tags": []}')
    assert dropping.land("tagged", **asked).rows == 1
    assert dropping.sql("SELECT * FROM {db}.tagged__tags") == [], "lists that are empty after a job without a day"
    dropping.write("clicks", "2026/01/02/day/clicks/2026/01/01/copy.json", json.dumps({"n": 20}) + "\n")
    assert dropping.land("clicks", **asked).rows == 2
    shown.append((date(2026, 1, 2), 20))
    assert dropping.sql("SELECT day, n FROM {db}.clicks ORDER BY 1, 2") == shown, "of the directory's day"
    monkeypatch.setattr(drop_directory, "MOST", 2)
    dropping.write("clicks", "_written", "2026-01-04T02:00:00Z")
    assert dropping.land("clicks", **asked).rows == 1, "files of days that have landed are none of this job"
    assert "has more than 2 files to land" in dropping.land("clicks").errors[0]
    dropping.write("clicks", "elsewhere.json", "{}")
    assert "elsewhere.json is not in a directory of a day" in dropping.land("clicks", **asked).errors[0]


def test_a_field_that_no_row_of_a_day_has_stays_a_column_of_the_others(dropping: Dropping) -> None:
    dropping.describe("calls", format="json", days={"layout": "%Y-%m-%d"})
    asked: dict[str, Any] = {"mode": "append", "schema_policy": "recreate"}
    dropping.write("calls", "2026-01-01/a.json", '{"n": 1, "note": "x", "legs": [{"to": 1, "via": "y"}]}')
    assert dropping.land("calls", **asked).rows == 1
    for day, line in enumerate(('{"n": 2, "legs": [{"to": 2}]}', '{"n": 3, "new": 7}'), 2):
        dropping.write("calls", f"2026-01-0{day}/a.json", line)
        done = dropping.land("calls", **asked)
        assert done.done == 1, done.errors
    assert dropping.sql("SELECT n, note, new FROM {db}.calls ORDER BY 1") == [
        (1, "x", None),
        (2, None, None),
        (3, None, 7),
    ]
    assert dropping.sql("SELECT to, via FROM {db}.calls__legs ORDER BY 1") == [(1, "y"), (2, None)]
    dropping.write("calls", "2026-01-04/a.json", '{"n": 4, "note": "z", "new": 8}')
    assert dropping.land("calls", mode="append").status == "done", "a day without lists changes nothing"
    joined = "SELECT n, to FROM {db}.calls c LEFT JOIN {db}.calls__legs l ON l.parent_id = c.row_id ORDER BY 1"
    assert dropping.sql(joined) == [(1, 1), (2, 2), (3, None), (4, None)]
    assert dropping.sql("SELECT count(DISTINCT row_id) FROM {db}.calls") == [(4,)]


def test_days_of_a_widened_table_are_complete_if_its_job_publishes_late(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of its lists: the rows are settled once more."""
    dropping.describe("prices", format="json", days={"layout": "%Y-%m-%d"})
    asked: dict[str, Any] = {"mode": "append", "schema_policy": "recreate"}
    dropping.write("prices", "2026-01-01/a.json", '{"n": 1, "tags": [1]}')
    assert dropping.land("prices", **asked).rows == 1
    dropping.write("prices", "2026-01-02/a.json", '{"n": 0.5, "tags": [0.5]}')
    monkeypatch.setattr(landing_steps, "SETTLED", -1.0)
    assert dropping.land("prices", **asked).done == 1
    assert dropping.sql("SELECT day, n FROM {db}.prices ORDER BY 1") == [(date(2026, 1, 1), 1), (date(2026, 1, 2), 0.5)]
    tags = "SELECT day, value FROM {db}.prices__tags ORDER BY 1"
    assert dropping.sql(tags) == [(date(2026, 1, 1), 1), (date(2026, 1, 2), 0.5)]
    assert dropping.land("prices", **asked).rows == 0, "each day lands once"
    dropping.write("prices", "2026-01-03/a.json", '{"n": "free", "tags": ["free"]}')
    add = type(dropping.warehouse.metastore).add_partitions

    def away(metastore: Any, db: str, name: str, parts: Any) -> None:
        if name == "prices":
            raise MetastoreUnreachable("away")
        add(metastore, db, name, parts)

    with monkeypatch.context() as patch:
        patch.setattr(type(dropping.warehouse.metastore), "add_partitions", away)
        assert dropping.land("prices", **asked).failed == 1
    with sqlite3.connect(dropping.here / "jobs.sqlite") as jobs:
        jobs.execute("UPDATE ingestion_job SET due = 0 WHERE state = 'failed'")
    assert replicator.ingest_run(config=dropping.config, spark=dropping.warehouse.session).done == 1
    assert [row[0].day for row in dropping.sql("SELECT day, n FROM {db}.prices ORDER BY 1")] == [1, 2, 3]
    assert [row[0].day for row in dropping.sql(tags)] == [1, 2, 3], "also if its new table is empty so far"


def test_numbers_of_json_without_a_declared_type_are_never_rounded(dropping: Dropping) -> None:
    dropping.describe("numbers", format="json")
    rows = [
        '{"price": 1234567890123456.78, "mixed": 9007199254740993, "half": 0.5, "fine": {"parts": [1, 0.1]}}',
        '{"price": 10, "mixed": 0.5, "half": 2e10, "fine": {"parts": [0.12345678901234567890123456789]}}',
        '{"whole": 9007199254740993}',
    ]
    dropping.write("numbers", "a.json", "\n".join(rows))

    assert dropping.land("numbers").status == "done"

    shown = dropping.warehouse.sql(f"SELECT price, mixed, half, whole FROM {dropping.asset}_day.numbers ORDER BY price")
    assert shown == [
        (None, None, None, 9007199254740993),
        (Decimal(10), Decimal("0.5"), 2e10, None),
        (Decimal("1234567890123456.78"), Decimal(9007199254740993), 0.5, None),
    ]
    parts = dropping.warehouse.sql(f"SELECT value FROM {dropping.asset}_day.numbers__fine_parts")
    assert sorted(parts) == [("0.1",), ("0.12345678901234567890123456789",), ("1",)]
    declared = [{"name": "price", "type": "decimal(30,9)"}]
    for table, encoding, columns in (("of_utf16", "UTF-16LE", []), ("declared", "UTF-8", declared)):
        dropping.describe(table, format="json", encoding=encoding, multiline=True, columns=columns)
        dropping.write(table, "a.json", '[{"price": 1234567890123456.78}]'.encode(encoding))
        assert dropping.land(table).status == "done"
        (row,) = dropping.warehouse.sql(f"SELECT price FROM {dropping.asset}_day.{table}")
        assert row == (Decimal("1234567890123456.78"),)


def test_each_format_is_read_and_compared(dropping: Dropping) -> None:
    rows = [{"id": number, "paid": Decimal(number) / 4} for number in range(100)]
    table = pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("paid", pa.decimal128(12, 2))]))
    place = dropping.write("packed", "a.parquet", b"")
    pq.write_table(table, place)
    dropping.describe("packed", format="parquet")
    assert dropping.land("packed").rows == 100
    assert dropping.rows("packed") == sorted(table.to_pylist(), key=repr)

    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}}],
    }
    with dropping.write("avro", "a.avro", b"").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), [{"id": n, "tags": ["x"] * n} for n in range(4)])
    dropping.describe("avro", format="avro")
    assert dropping.land("avro").rows == 4
    assert len(dropping.rows("avro__tags")) == 6

    dropping.describe("orders", format="xml", row="order")
    dropping.write("orders", "a.xml", '<all><order id="1"><item q="1"/><item q="2"/></order><order id="2"/></all>')
    assert dropping.land("orders").rows == 2
    assert dropping.sql(
        "SELECT o._id, i._q FROM {db}.orders o JOIN {db}.orders__item i ON i.parent_id = o.row_id ORDER BY 2"
    ) == [(1, 1), (1, 2)]


def test_files_without_form_land_with_what_describes_them(dropping: Dropping) -> None:
    dropping.write("scans", "a.pdf", b"\x00\x01")
    dropping.write("scans", "b.pdf", b"two")
    dropping.describe("scans", format="binary", files={"a.pdf": {"contract": "17"}})
    assert "file b.pdf has no description" in dropping.refused("scans")
    dropping.describe("scans", format="binary", values={"team": "claims"}, files={"a.pdf": {"contract": "17"}})
    assert dropping.land("scans").rows == 2
    found = [(row["name"], row["content"], row["contract"], row["team"]) for row in dropping.rows("scans")]
    assert sorted(found) == [("a.pdf", b"\x00\x01", "17", "claims"), ("b.pdf", b"two", None, "claims")]


def test_a_drop_zone_that_lies_is_refused(dropping: Dropping) -> None:
    assert "day/nothing does not exist" in dropping.refused("nothing")
    dropping.write("bare", "a.csv", "1\n")
    assert "_description.json" in dropping.refused("bare")
    for said, told in (
        ({"format": "csv"}, "csv requires `columns`"),
        ({"format": "csv", "header": False, "columns": [{"name": "a", "header": "A"}]}, "the files have no header"),
        ({"format": "json", "quoted_empty": "text"}, "have no header and no quotes"),
        ({"format": "csv", "header_match": "any", "columns": [{"name": "a"}]}, "Invalid enum value 'any'"),
        ({"format": "json", "delimeter": ";"}, "delimeter"),
        ({"format": "csv", "columns": [{"name": "a", "type": "struct<a:int>"}]}, "is not a scalar type"),
        ({"format": "json", "days": {"layout": "../%Y/%m/%d"}}, "layout"),
        ({"format": "json", "columns": [{"name": "a", "type": "int", "format": "yyyy"}]}, "type int takes no format"),
    ):
        dropping.describe("bare", **said)
        assert told in dropping.refused("bare")
    dropping.describe("bare", format="csv", header=False, columns=[{"name": "a"}])
    assert "files are appended by day" in dropping.refused("bare", mode="append")
    description = dropping.drop / "day/bare/_description.json"
    description.unlink()
    description.symlink_to(dropping.here / "elsewhere.json")
    assert "is a symbolic link" in dropping.refused("bare")
    description.unlink()
    dropping.describe("bare", format="csv", header=False, columns=[{"name": "a"}])
    secret = dropping.here / "secret"
    secret.write_text("s3cr3t\n")
    os.symlink(secret, dropping.drop / "day/bare/b.csv")
    assert "is a symbolic link" in dropping.refused("bare")
    (dropping.drop / "day/bare/b.csv").unlink()
    dropping.write("bare", "_metadata/b.csv", "1\n")
    assert "bare/_metadata has an ambiguous name" in dropping.refused("bare")
    shutil.rmtree(dropping.drop / "day/bare/_metadata")
    os.symlink(secret, dropping.drop / "day/bare/_a=b.csv")
    dropping.write("bare", "c.csv._COPYING_", "2\n")
    assert "bare/_a=b.csv has an ambiguous name" in dropping.refused("bare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_directory, "_refuse_what_spark_reads", lambda *_: None)
        assert "had 1 files when listed, 2 when read" in dropping.land("bare").errors[0], "what Spark reads is counted"
    (dropping.drop / "day/bare/_a=b.csv").unlink()
    dropping.land("bare")
    assert dropping.rows("bare") == [{"a": "1"}], "what is not written to its end is hidden"


def test_what_changes_while_it_is_read_or_is_too_much_is_not_landed(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping.describe("t", format="csv", header=False, columns=[{"name": "a", "type": "int"}])
    dropping.write("t", "1.csv", "1\n")
    read = file_steps.rows_of

    def meanwhile(*given: Any) -> Any:
        monkeypatch.undo()
        found = read(*given)
        dropping.write("t", "2.csv", "2\n")
        return found

    monkeypatch.setattr(file_steps, "rows_of", meanwhile)
    assert "files were added or changed while they were read" in dropping.land("t").errors[0]
    (job,) = replicator.ingest_ls(config=dropping.config).jobs
    assert job.state == "failed" and job.due is not None, "it is tried again"
    assert dropping.land("t").rows == 2
    monkeypatch.setattr(drop_directory, "MOST", 1)
    assert "has more than 1 files to land" in dropping.land("t").errors[0]


def test_a_job_that_fails_between_the_tables_of_nested_rows_goes_on(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lists that no row has any more leave an empty table."""
    dropping.describe("orders", format="json")
    dropping.write("orders", "a.json", json.dumps({"no": 1, "items": [{"sku": "a"}]}))
    assert dropping.land("orders").rows == 1
    dropping.write("orders", "a.json", json.dumps({"no": 2, "items": [{"sku": "b"}], "more": [1, 2]}))
    published = list[str]()

    def failing(metastore: Any, asset: Any, request: Any, landed: Any) -> Any:
        if len(published) == 2:
            monkeypatch.undo()
            raise ConnectionError("the network is gone")
        published.append(request.table)
        return publish(metastore, asset, request, landed)

    publish = landing_steps.publish
    monkeypatch.setattr(landing_steps, "publish", failing)
    assert dropping.land("orders").failed == 1
    assert published == ["orders__items", "orders__more"] and dropping.rows("orders")[0]["no"] == 1
    with sqlite3.connect(dropping.here / "jobs.sqlite") as jobs:
        jobs.execute("UPDATE ingestion_job SET due = 0 WHERE state = 'failed'")
    assert replicator.ingest_run(config=dropping.config, spark=dropping.warehouse.session).done == 1
    assert dropping.sql(
        "SELECT no, sku, value FROM {db}.orders o JOIN {db}.orders__items i ON i.parent_id = o.row_id"
        " JOIN {db}.orders__more m ON m.parent_id = o.row_id ORDER BY 3"
    ) == [(2, "b", 1), (2, "b", 2)]
    dropping.write("orders", "a.json", json.dumps({"no": 3, "items": []}))
    assert dropping.land("orders", schema_policy="recreate").rows == 1
    assert (dropping.rows("orders__items"), dropping.rows("orders__more")) == ([], [])
    keys = dropping.warehouse.metastore.constraints(f"{dropping.asset}_day", ["orders__more"])["orders__more"]
    assert {key.kind for key in keys} == {"FOREIGN KEY", "PRIMARY KEY"}, "also those to a table that was altered"
    homes = sorted((dropping.here / "landing" / dropping.asset / "day").iterdir())
    assert {each.name.partition("-")[0] for home in homes for each in home.iterdir()} == {"v"}


# ---- two requests of one table of a list ----------------------------------------------------------------------------


def nested(dropping: Dropping, table: str) -> None:
    """A table with two lists, and another one with the name of the second list's table."""
    dropping.describe(table, format="json")
    dropping.write(table, "a.json", json.dumps({"no": 1, "aaa": [1], "items": [{"sku": "nested"}]}))
    dropping.describe(f"{table}__items", format="json")
    dropping.write(f"{table}__items", "a.json", json.dumps({"sku": "own"}))


def lands_now(dropping: Dropping, table: str) -> None:
    """A job lands a table while another one is running; either's controller may have claimed it."""
    dropping.land(table)

    def landed() -> bool:
        jobs = replicator.ingest_ls(config=dropping.config).jobs
        return any(job.state == "done" and job.target.endswith(table) for job in jobs)

    eventually(landed)


def skus(dropping: Dropping, table: str) -> list[str]:
    return [each["sku"] for each in dropping.rows(f"{table}__items")]


def tables(dropping: Dropping) -> set[str]:
    return set(dropping.warehouse.metastore.table_names(f"{dropping.asset}_day"))


def test_one_after_the_other_lands_the_first_and_refuses_the_second_as_a_whole(dropping: Dropping) -> None:
    nested(dropping, "orders")
    assert dropping.land("orders").status == "done"
    (told,) = dropping.land("orders__items").errors
    assert "orders__items is landed from" in told and skus(dropping, "orders") == ["nested"]
    nested(dropping, "later")
    assert dropping.land("later__items").status == "done"
    (told,) = dropping.land("later").errors
    assert "later__items is landed from" in told and skus(dropping, "later") == ["own"]
    assert tables(dropping) == {"orders", "orders__aaa", "orders__items", "later__items"}


def test_a_table_that_another_job_has_made_since_the_copy_is_refused_before_any_publication(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = landing_steps.make_database

    def another_lands(*given: Any) -> None:
        monkeypatch.undo()
        lands_now(dropping, "orders__items")
        make(*given)

    nested(dropping, "orders")
    monkeypatch.setattr(landing_steps, "make_database", another_lands)
    (told,) = dropping.land("orders").errors
    assert "orders__items is landed from" in told and skus(dropping, "orders") == ["own"]
    assert tables(dropping) == {"orders__items"}, "the list that is published first is not, either"


def test_of_two_publications_at_one_moment_one_has_the_table_and_the_other_is_completed_by_its_next_landing(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = landing_steps.publish

    def another_lands(metastore: Any, asset: Any, request: Any, landed: Any) -> Any:
        if request.table == "orders__items":
            monkeypatch.undo()
            lands_now(dropping, "orders__items")
        return publish(metastore, asset, request, landed)

    nested(dropping, "orders")
    monkeypatch.setattr(landing_steps, "publish", another_lands)
    (told,) = dropping.land("orders").errors
    assert "orders__items is landed from" in told and skus(dropping, "orders") == ["own"]
    assert tables(dropping) == {"orders__aaa", "orders__items"}
    failed = next(job for job in replicator.ingest_ls(config=dropping.config).jobs if job.state != "done")
    assert (failed.state, failed.target) == ("failed_user", f"{dropping.asset}_day.orders")
    dropping.warehouse.metastore.drop_table(f"{dropping.asset}_day", "orders__items")
    assert dropping.land("orders").status == "done"
    joined = "SELECT no, value, sku FROM {db}.orders o JOIN {db}.orders__aaa a ON a.parent_id = o.row_id"
    joined += " JOIN {db}.orders__items i ON i.parent_id = o.row_id"
    assert dropping.sql(joined) == [(1, 1, "nested")]


def test_a_dry_run_of_files_reads_them_and_lands_nothing(dropping: Dropping) -> None:
    dropping.create_asset()
    dropping.describe("orders", format="json")
    dropping.write(
        "orders", "a.json", '{"no": 1, "who": {"city": "X"}, "items": [{"sku": "a"}, {"sku": "b"}]}\n{"no": 2}\n'
    )
    dropping.describe("paid", format="csv", columns=[{"name": "id", "type": "int"}, {"name": "b", "type": "date"}])
    dropping.write("paid", "a.csv", "id,b\n1,2020-01-01\n2,soon\n")
    given: dict[str, Any] = {"asset": dropping.asset, "config": dropping.config, "by": "ann", "dry_run": True}

    done = replicator.ingest_request("drop:day", spark=dropping.warehouse.session, **given)

    orders, paid = done.tables
    assert orders.plan and (orders.plan.rows, orders.plan.exact, orders.plan.parts) == (2, True, ["orders__items"])
    assert [(each.source, each.name, each.type) for each in orders.plan.columns] == [
        ("no", "no", "bigint"),
        ("who.city", "who_city", "string"),
        ("items: sku", "sku", "string"),
    ]
    assert (done.status, paid.status) == ("partial", "refused") and "such as 'soon'" in paid.error
    assert not (dropping.here / "landing").exists() or not list((dropping.here / "landing").rglob("*.parquet"))
    assert replicator.ingest_ls(config=dropping.config).jobs == []
