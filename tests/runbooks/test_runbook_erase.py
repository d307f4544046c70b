"""The page docs/runbooks/erase-a-person.md, run as it stands, and the first example of docs/purge.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab import Lab
from purges import Warehouse
from runbooks import play

from replicator.metastore.embedded.running import Running


def test_the_page_ends_with_a_certificate(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    db = replication.db()
    text = "".join(f"{number}\x01person {number}\n" for number in range(20))
    db.partitioned("orders", {"old": {"part-0": text}, "new": {"part-0": "77\x01somebody\n"}})
    db.alter("orders", **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    db.table("requests", {"part-0": "".join(f"{number}\x01\n" for number in range(10))})
    replication.sync()
    before = replication.replica().shown()

    play(
        "erase-a-person",
        {
            "metastore": source_metastore.uri,
            "cmroot": replication.policy.cmroot,
            "ids": f"{db.name}.requests:a",
            "tables": f"{db.name}.orders",
            "policy": replication.name,
            "config": replication.config(),
        },
    )

    replication.are_same()
    after = replication.replica().shown()
    assert after["orders/p=new"] == before["orders/p=new"] and after["orders/p=old"] != before["orders/p=old"]
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and b"person 3\n" in path.read_bytes()]
    assert not holding


def test_the_first_example_of_the_manual_erases_and_certifies(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/purge.md").read_text()
    example = page[page.index("## A first purge") : page.index("## Describe a table")]
    made, cleared = re.findall(r"```sql\n(.*?)```", example, re.DOTALL)
    warehouse.sql(
        "CREATE DATABASE sales",
        "CREATE TABLE sales.orders (customer BIGINT, item STRING) PARTITIONED BY (day INT) STORED AS PARQUET",
        "INSERT INTO sales.orders VALUES (4711, 'tea', 1), (815, 'cup', 1), (815, 'pot', 1), (1, 'tin', 1)",
        "INSERT INTO sales.orders VALUES (2, 'x', 2)",
        *filter(None, map(str.strip, made.split(";"))),
    )
    (tmp_path / "replicator.toml").write_text(f'[metastores.prod]\nuri = "{warehouse.running.uri}"\n')
    (tmp_path / "page.md").write_text(example.replace("/cm", str(tmp_path / "cm")))
    monkeypatch.chdir(tmp_path)

    play(tmp_path / "page.md", {})

    warehouse.sql(*filter(None, map(str.strip, cleared.split(";"))))
    assert warehouse.rows("gdpr.requests") == []
    assert warehouse.rows("sales.orders") == [(1, "tin", 1), (2, "x", 2)]
    assert not list((tmp_path / "cm/purge").rglob("ids/*")), "the run's own copy of the ids"
