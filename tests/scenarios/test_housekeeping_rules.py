"""What a run of housekeeping may take: only where deletion was allowed, no more than a share of the table's own; and
what an owner's switch, a link in a path and a legal hold mean."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from housekeeping import DROPS, EXPIRED, UNREFERENCED, House

from replicator.cli.main import run as command
from replicator.core.model import EXTERNAL
from replicator.errors import Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.removal.removal import Limits

_numbers = itertools.count(1)
SWITCH = "beekeeper.remove.unreferenced.data"


@pytest.fixture(scope="module")
def metastore(source_metastore: Running) -> Iterator[ThriftMetastore]:
    with connect(source_metastore.uri) as client:
        yield client


@pytest.fixture
def house(metastore: ThriftMetastore, tmp_path: Path) -> House:
    return House(metastore, f"ruled{next(_numbers)}", tmp_path)


def run(house: House, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    words = ("--metastore", house.metastore.uri, "--cmroot", house.root.place, "--db", house.db.name)
    return called(capsys, "housekeeping", "run", *words, "--engine", "local", *more)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


# ---- where deletion was allowed -------------------------------------------------------------------------------------


def test_the_data_of_a_dropped_table_stays_unless_its_deletion_was_enabled(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.table("stays", kind=EXTERNAL, properties=EXPIRED)
    house.table("goes", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    house.table("went", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    assert run(house, capsys)[0] == 0
    house.unset("went", *DROPS)
    for name in ("stays", "goes", "went"):
        house.metastore.drop_table(house.db.name, name)
    assert run(house, capsys)[0] == 0
    code, planned = run(house, capsys, "--dry-run", "--at", "2030-01-01")
    assert (code, [each["object"] for each in planned["plan"]]) == (0, [f"{house.db.name}.goes"])
    assert house.run(31).removed == 1
    assert not house.place("goes").exists() and house.place("stays/a").exists() and house.place("went/a").exists()
    (stays,) = house.items(table="stays")
    assert stays.status == "DISABLED" and "its data stays" in stays.reason

    house.table("stays", {}, kind=EXTERNAL, properties=EXPIRED)  # over the same place
    assert house.run(90).removed == 0 and house.place("stays/a").exists()


def test_who_says_so_lets_the_data_of_a_dropped_table_go(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.table("t", kind=EXTERNAL, properties=EXPIRED)
    house.run()
    house.metastore.drop_table(house.db.name, "t")
    house.run()
    (one,) = house.items(table="t")
    assert called(capsys, "housekeeping", "rearm", str(one.id), "--cmroot", house.root.place)[0] == 0
    assert house.run(31).removed == 1 and house.keeps("rows of t")


# ---- how much --------------------------------------------------------------------------------------------------------


def test_a_share_is_one_of_the_tables_own_partitions(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.partitioned("t", ["1", "2", "3", "4"], **EXPIRED)
    for number in range(17):
        house.table(f"other{number}")
    house.partitioned("large", [str(number) for number in range(20)])
    assert run(house, capsys)[1]["due"] == 0
    while time.time() <= max(each.created for each in house.items()) + 1:
        time.sleep(0.1)
    house.db.alter("t", **{"beekeeper.expired.data.retention.period": "PT1S"})
    code, answer = run(house, capsys, "--max-share", "0.2")
    assert (code, answer["removals"], answer["total"]) == (6, 4, 4), answer
    assert f"partitions of {house.db.name}.t" in answer["message"] and house.values("t") == ["1", "2", "3", "4"]
    assert run(house, capsys, "--max-share", "1")[1]["removed"] == 4


def test_a_share_is_one_of_the_runs_own_places(house: House, metastore: ThriftMetastore, tmp_path: Path) -> None:
    outside = House(metastore, f"{house.db.name}_outside", tmp_path / "outside")
    for number in range(20):
        outside.table(f"t{number}")
    for number in range(3):
        house.table(f"t{number}", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    house.table("young")
    house.run()
    with pytest.raises(Refused, match=r"3 of 4 places of the databases that are captured would go, 75%"):
        house.run(31, limits=Limits(max_share=0.5))
    assert house.run(31, limits=Limits(max_share=0.75)).removed == 3


def test_what_is_a_small_share_goes(house: House) -> None:
    house.partitioned("t", [str(number) for number in range(10)], **EXPIRED)
    house.run()
    house.metastore.drop_partitions(house.db.name, "t", ["p=0"])
    house.db.add("t", {"later": {"a": "x"}})
    house.table("u", properties=UNREFERENCED)
    house.run()
    house.relocate("u", house.write("u2"))
    house.run()
    done = house.run(4, limits=Limits(max_share=0.2))
    assert done.removed == 1 and not house.place("u").exists()


# ---- switches --------------------------------------------------------------------------------------------------------


def test_a_property_that_is_set_again_takes_up_what_it_had_let_go_of(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.table("t", properties=UNREFERENCED)
    house.partitioned("p", ["1"], **UNREFERENCED)
    house.run()
    for place in ("b", "c", "d"):
        house.relocate("t", house.write(place))
    house.relocate_partition("p", "1", house.write("p/elsewhere"))
    house.run()
    wanted = house.items(path=str(house.place("b")))[0]
    assert called(capsys, "housekeeping", "cancel", str(wanted.id), "--cmroot", house.root.place)[0] == 0
    for table in ("t", "p"):
        house.unset(table, SWITCH)
    house.run()
    assert {status for _, status in house.states()} == {"DISABLED"}
    house.relocate("t", house.place("c"))  # it refers to one of them again while it does not ask
    for table in ("t", "p"):
        house.db.alter(table, **{SWITCH: "true"})
    assert run(house, capsys)[0] == 0
    waits = {Path(each.place).name: each for each in house.items(status="scheduled")}
    assert waits.keys() == {"t", "p=1"}
    assert waits["t"].cleanup - waits["t"].created == 3 * 86_400 and waits["t"].created > wanted.created - 1
    assert house.run(2.9).removed == 0
    assert house.run(3.1).removed == 2
    assert not house.place("t").exists() and not house.place("p/p=1").exists()
    assert house.place("b/a").exists() and house.place("c/a").exists()


# ---- spellings -------------------------------------------------------------------------------------------------------


def test_items_are_found_by_any_spelling_of_their_path(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    (house.here / "link").symlink_to(house.db.home)
    house.table("t", properties=UNREFERENCED)
    house.table("u", properties=UNREFERENCED)
    house.relocate("u", house.here / "link" / "far")
    house.run()
    house.relocate("t", house.write("t2"))
    house.relocate("u", house.write("u2"))
    house.run()
    home = str(house.db.home)
    for table, path in (
        ("t", f"{home}/t"),
        ("t", f"file:{home}/t/"),
        ("t", f"{home}//x/../t"),
        ("t", f"{house.here}/link/t"),
        ("t", f"file://{home}/t"),
        ("t", f"{home}/T"),
        ("u", f"{home}/far"),
        ("u", f"{house.here}/link/far"),
        ("", f"{home}/none"),
    ):
        code, answer = called(capsys, "housekeeping", "ls", "--cmroot", house.root.place, "--path", path)
        assert code == 0 and [each["tableName"] for each in answer["content"]] == [table] * bool(table), path
        assert answer["totalElements"] == bool(table)


def test_a_hold_that_is_over_before_it_begins_is_refused(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("legal-hold", "add", "case", "--cmroot", house.root.place, "--on", "a.b", "--reason", "r", "--until")
    for past in ("2020-01-01", "2020-01-01T00:00:00Z"):
        code, answer = called(capsys, *words, past)
        assert (code, answer["error"]) == (2, "UsageError") and "is over" in answer["message"] and answer["hint"]
    assert called(capsys, "legal-hold", "ls", "--cmroot", house.root.place)[1]["holds"] == []
    assert called(capsys, *words, "2999-01-01")[0] == 0
