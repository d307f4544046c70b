"""A purge that is killed loses nothing, and the same command takes it up again; two at once exclude each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Fault, run_with
from purges import DESCRIPTOR, Warehouse

from replicator.cli.main import run
from replicator.errors import LeaseHeld
from replicator.metastore.embedded.running import Running
from replicator.purge.state import runs


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    yield found
    found.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "link", "/_purge-"),
        Fault("after", "thrift", r"alter \d+ partition"),
    ],
    ids=lambda fault: str(fault).replace(" ", "-"),
)
def test_a_killed_purge_is_taken_up_again(warehouse: Warehouse, fault: Fault, request: pytest.FixtureRequest) -> None:
    db = f"c{request.node.callspec.indices['fault']}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, int(id DIV 200) FROM range(0, 400, 1, 4)",
    )
    wanted = [row for row in warehouse.rows(f"{db}.t") if row[0] >= 100 or row[0] % 10]
    root = warehouse.root(db)
    arguments = [
        "purge", "run", "--metastore", warehouse.running.uri, "--cmroot", root.place, "--ids", warehouse.ids,
        "--table-whitelist", db, "--field-path", "privacy.column", "--master", "local[2]",
    ]  # fmt: skip
    assert run_with(fault, arguments).killed
    assert warehouse.rows(f"{db}.t") == wanted or len(warehouse.rows(f"{db}.t")) == 400

    again = warehouse.purge(root, warehouse.ids, db)

    assert again.status == "done" and again.resumed
    assert warehouse.rows(f"{db}.t") == wanted
    assert [directory.read_run().status for directory in runs(root.place)] == ["done"]
    (unit,) = [unit for unit in runs(root.place)[0].units().values() if unit.backup]
    assert (unit.state, unit.partition) == ("DONE", "k=0")
    home = Path(warehouse.metastore.table(db, "t").location.removeprefix("file:"))  # type: ignore[union-attr]
    assert {path.name for path in home.rglob("_purge-*")} == {Path(unit.new).parent.name}


def test_a_second_purge_is_told_of_the_first(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    from cmroot.lease import acquire
    from cmroot.store.place import join, store_for

    root = warehouse.root("two")
    store_for(root.place).mkdirs(join(root.place, "purge"))
    with acquire(join(root.place, "purge"), "purge"):
        with pytest.raises(LeaseHeld):
            warehouse.purge(root, warehouse.ids, "nowhere")
        arguments = ["purge", "run", "--metastore", warehouse.running.uri, "--cmroot", root.place, "--ids", "a.b:c"]
        assert run([*arguments, "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["error"] == "LeaseHeld"
