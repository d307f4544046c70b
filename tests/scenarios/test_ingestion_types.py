"""Files whose inferred types change from day to day, or from request to request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from dropping import Dropping
from purges import Warehouse

import replicator
from replicator.errors import MetastoreUnreachable
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

APPEND: dict[str, Any] = {"mode": "append"}
RECREATE: dict[str, Any] = {"mode": "append", "schema_policy": "recreate"}


@pytest.fixture
def dropping(warehouse: Warehouse, tmp_path: Path) -> Iterator[Dropping]:
    made = Dropping(warehouse, tmp_path)
    made.create_asset()
    yield made


def day(dropping: Dropping, table: str, number: int, *rows: dict[str, Any]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in rows)
    dropping.write(table, f"2026-01-{number:02}/a.json", text)


def shown(dropping: Dropping, table: str, column: str = "price") -> list[Any]:
    name = f"{dropping.asset}_day.{table}"
    rows = dropping.warehouse.sql(f"REFRESH TABLE {name}", f"SELECT {column} FROM {name} ORDER BY day, {column}")
    return [row[0] for row in rows]


def type_of(dropping: Dropping, table: str, column: str = "price") -> str:
    found = dropping.warehouse.metastore.table(f"{dropping.asset}_day", table)
    return next(each.type for each in found.storage.columns if each.name == column)


def test_days_of_other_inferred_types_widen_the_table_and_narrower_ones_do_not_change_it(
    dropping: Dropping, target_metastore: Running, tmp_path: Path
) -> None:
    db, uri, root = f"{dropping.asset}_day", dropping.warehouse.running.uri, str(tmp_path / "cmroot")
    dropping.describe("orders", format="json", days={"layout": "%Y-%m-%d"})
    day(dropping, "orders", 1, {"price": 10, "tags": [1]}, {"price": None})
    day(dropping, "orders", 2, {"price": 20})
    assert dropping.land("orders", **APPEND).rows == 3
    replicator.dump(source=uri, cmroot=root, db=db, out=str(tmp_path / "d1"))
    event = dropping.warehouse.metastore.current_event_id()
    day(dropping, "orders", 3, {"price": 10.5, "tags": [1.5]})
    refused = dropping.land("orders", **APPEND)
    assert "price was bigint and is double" in refused.errors[0] and "recreate" in refused.errors[0], refused
    assert shown(dropping, "orders") == [None, 10, 20]
    (dropping.drop / "day/orders/2026-01-01/a.json").unlink()  # what has landed does not need its files

    done = dropping.land("orders", **RECREATE)

    assert done.status == "done", done
    assert (type_of(dropping, "orders"), shown(dropping, "orders")) == ("double", [None, 10.0, 20.0, 10.5])
    assert shown(dropping, "orders__tags", "value") == [1.0, 1.5]
    assert replicator.ingest_watch(config=dropping.config).status == "quiet"
    day(dropping, "orders", 4, {"price": 7, "tags": [2]})
    day(dropping, "orders", 5, {"price": None})
    assert dropping.land("orders", **APPEND).status == "done", "a narrower type changes nothing"
    assert shown(dropping, "orders") == [None, 10.0, 20.0, 10.5, 7.0, None]
    day(dropping, "orders", 6, {"price": 1234567890123456.78}, {"price": 0.1})
    text = '{"price": 1234567890123456.78}\n{"price": 0.1}\n'
    dropping.write("orders", "2026-01-06/a.json", text)
    assert "and is decimal(38,18)" in dropping.land("orders", **APPEND).errors[0]
    assert dropping.land("orders", **RECREATE).status == "done"
    assert shown(dropping, "orders")[-2:] == [Decimal("0.1"), Decimal("1234567890123456.78")]
    day(dropping, "orders", 7, {"price": "free"})
    assert dropping.land("orders", **RECREATE).status == "done"
    assert type_of(dropping, "orders") == "string" and shown(dropping, "orders")[-1] == "free"
    day(dropping, "orders", 8, {"price": 1})
    assert dropping.land("orders", **APPEND).status == "done" and shown(dropping, "orders")[-1] == "1"
    replicator.dump(source=uri, cmroot=root, db=db, since=event, out=str(tmp_path / "d2"))
    replicator.restore(cmroot=root, db=db, to=event, target=target_metastore.uri, into=f"{db}_then")
    with connect(target_metastore.uri) as replica:
        former = replica.table(f"{db}_then", "orders")
        assert former.storage is not None and ("price", "bigint") in {(c.name, c.type) for c in former.storage.columns}


def test_a_table_of_days_is_complete_after_a_death_while_it_is_widened(
    dropping: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping.describe("orders", format="json", days={"layout": "%Y-%m-%d"})
    day(dropping, "orders", 1, {"price": 10})
    day(dropping, "orders", 2, {"price": 20})
    dropping.land("orders", **APPEND)
    day(dropping, "orders", 3, {"price": 10.5})
    metastore = type(dropping.warehouse.metastore)
    for call in ("create_table", "add_partitions"):
        with monkeypatch.context() as patch:
            patch.setattr(metastore, call, _away)
            assert dropping.land("orders", **RECREATE).failed == 1
    assert dropping.land("orders", **RECREATE).status == "done"
    assert shown(dropping, "orders") == [10.0, 20.0, 10.5]


def _away(*_: Any) -> None:

    raise MetastoreUnreachable("away")


def test_merged_files_of_other_inferred_types_widen_the_table(dropping: Dropping) -> None:
    merge: dict[str, Any] = {"mode": "merge", "key": "id"}
    dropping.describe("orders", format="json")
    dropping.write("orders", "a.json", '{"id": 1, "price": 10}\n{"id": 2, "price": 20}\n')
    assert dropping.land("orders", **merge).rows == 2
    dropping.write("orders", "a.json", '{"id": 2, "price": 10.5}\n')
    assert "price was bigint and is double" in dropping.land("orders", **merge).errors[0]
    assert dropping.land("orders", schema_policy="recreate", **merge).status == "done"
    dropping.write("orders", "a.json", '{"id": 3, "price": 7}\n')
    assert dropping.land("orders", **merge).status == "done"
    assert dropping.sql("SELECT id, price FROM {db}.orders ORDER BY id") == [(1, 10.0), (2, 10.5), (3, 7.0)]
