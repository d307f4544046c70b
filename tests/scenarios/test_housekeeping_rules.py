"""What a run of housekeeping may take: only where deletion was allowed, no more than a share of the table's own; and
what an owner's switch, a link in a path and a legal hold mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from housekeeping import DROPS, EXPIRED, UNREFERENCED, LifecycleFixture
from names import unique
from waiting import pause

from replicator.cli.main import run as command
from replicator.core.model import EXTERNAL
from replicator.errors import Refused
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.thrift import ThriftMetastore

SWITCH = "beekeeper.remove.unreferenced.data"


@pytest.fixture
def fixture(metastore: ThriftMetastore, tmp_path: Path) -> LifecycleFixture:
    return LifecycleFixture(metastore, unique("ruled"), tmp_path)


def run(fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    words = ("--metastore", fixture.metastore.uri, "--cmroot", fixture.root.place, "--db", fixture.db.name)
    return called(capsys, "housekeeping", "run", *words, "--engine", "local", *more)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


# ---- where deletion was allowed -------------------------------------------------------------------------------------


def test_the_data_of_a_dropped_table_stays_unless_its_deletion_was_enabled(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.table("stays", kind=EXTERNAL, properties=EXPIRED)
    fixture.table("goes", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    fixture.table("went", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    assert run(fixture, capsys)[0] == 0
    fixture.unset("went", *DROPS)
    for name in ("stays", "goes", "went"):
        fixture.metastore.drop_table(fixture.db.name, name)
    assert run(fixture, capsys)[0] == 0
    code, planned = run(fixture, capsys, "--dry-run", "--at", "2030-01-01")
    assert (code, [each["object"] for each in planned["plan"]]) == (0, [f"{fixture.db.name}.goes"])
    assert fixture.run(31).removed == 1
    assert not fixture.place("goes").exists() and fixture.place("stays/a").exists() and fixture.place("went/a").exists()
    (stays,) = fixture.items(table="stays")
    assert stays.status == "DISABLED" and "its data is kept" in stays.reason

    fixture.table("stays", {}, kind=EXTERNAL, properties=EXPIRED)  # over the same place
    assert fixture.run(90).removed == 0 and fixture.place("stays/a").exists()


def test_who_says_so_lets_the_data_of_a_dropped_table_go(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.table("t", kind=EXTERNAL, properties=EXPIRED)
    fixture.run()
    fixture.metastore.drop_table(fixture.db.name, "t")
    fixture.run()
    (one,) = fixture.items(table="t")
    assert called(capsys, "housekeeping", "rearm", str(one.id), "--cmroot", fixture.root.place)[0] == 0
    assert fixture.run(31).removed == 1 and fixture.keeps("rows of t")


# ---- how much --------------------------------------------------------------------------------------------------------


def test_a_share_is_one_of_the_tables_own_partitions(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.partitioned("t", ["1", "2", "3", "4"], **EXPIRED)
    for number in range(17):
        fixture.table(f"other{number}")
    fixture.partitioned("large", [str(number) for number in range(20)])
    assert run(fixture, capsys)[1]["due"] == 0
    pause(2, "the period of a second, by the clock of a command")
    fixture.db.alter("t", **{"beekeeper.expired.data.retention.period": "PT1S"})
    code, answer = run(fixture, capsys, "--max-share", "0.2")
    assert (code, answer["removals"], answer["total"]) == (6, 4, 4), answer
    assert f"partitions of {fixture.db.name}.t" in answer["message"] and fixture.values("t") == ["1", "2", "3", "4"]
    assert run(fixture, capsys, "--max-share", "1")[1]["removed"] == 4


def test_a_share_is_one_of_the_runs_own_places(
    fixture: LifecycleFixture, metastore: ThriftMetastore, tmp_path: Path
) -> None:
    outside = LifecycleFixture(metastore, f"{fixture.db.name}_outside", tmp_path / "outside")
    for number in range(20):
        outside.table(f"t{number}")
    for number in range(3):
        fixture.table(f"t{number}", kind=EXTERNAL, properties={**EXPIRED, **DROPS})
    fixture.table("young")
    fixture.run()
    with pytest.raises(Refused, match=r"3 of 4 locations of the captured databases would be removed, 75%"):
        fixture.run(31, limits=Limits(max_share=0.5))
    assert fixture.run(31, limits=Limits(max_share=0.75)).removed == 3


def test_what_is_a_small_share_goes(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", [str(number) for number in range(10)], **EXPIRED)
    fixture.run()
    fixture.metastore.drop_partitions(fixture.db.name, "t", ["p=0"])
    fixture.db.add("t", {"later": {"a": "x"}})
    fixture.table("u", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("u", fixture.write("u2"))
    fixture.run()
    done = fixture.run(4, limits=Limits(max_share=0.2))
    assert done.removed == 1 and not fixture.place("u").exists()


# ---- switches --------------------------------------------------------------------------------------------------------


def test_a_property_that_is_set_again_takes_up_what_it_had_let_go_of(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.partitioned("p", ["1"], **UNREFERENCED)
    fixture.run()
    for place in ("b", "c", "d"):
        fixture.relocate("t", fixture.write(place))
    fixture.relocate_partition("p", "1", fixture.write("p/elsewhere"))
    fixture.run()
    wanted = fixture.items(path=str(fixture.place("b")))[0]
    assert called(capsys, "housekeeping", "cancel", str(wanted.id), "--cmroot", fixture.root.place)[0] == 0
    for table in ("t", "p"):
        fixture.unset(table, SWITCH)
    fixture.run()
    assert {status for _, status in fixture.states()} == {"DISABLED"}
    fixture.relocate("t", fixture.place("c"))  # it refers to one of them again while it does not ask
    for table in ("t", "p"):
        fixture.db.alter(table, **{SWITCH: "true"})
    assert run(fixture, capsys)[0] == 0
    waits = {Path(each.place).name: each for each in fixture.items(status="scheduled")}
    assert waits.keys() == {"t", "p=1"}
    assert waits["t"].cleanup - waits["t"].created == 3 * 86_400 and waits["t"].created > wanted.created - 1
    assert fixture.run(2.9).removed == 0
    assert fixture.run(3.1).removed == 2
    assert not fixture.place("t").exists() and not fixture.place("p/p=1").exists()
    assert fixture.place("b/a").exists() and fixture.place("c/a").exists()


# ---- spellings -------------------------------------------------------------------------------------------------------


def test_items_are_found_by_any_spelling_of_their_path(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (fixture.here / "link").symlink_to(fixture.db.home)
    fixture.table("t", properties=UNREFERENCED)
    fixture.table("u", properties=UNREFERENCED)
    fixture.relocate("u", fixture.here / "link" / "far")
    fixture.run()
    fixture.relocate("t", fixture.write("t2"))
    fixture.relocate("u", fixture.write("u2"))
    fixture.run()
    home = str(fixture.db.home)
    for table, path in (
        ("t", f"{home}/t"),
        ("t", f"file:{home}/t/"),
        ("t", f"{home}//x/../t"),
        ("t", f"{fixture.here}/link/t"),
        ("t", f"file://{home}/t"),
        ("t", f"{home}/T"),
        ("u", f"{home}/far"),
        ("u", f"{fixture.here}/link/far"),
        ("", f"{home}/none"),
    ):
        code, answer = called(capsys, "housekeeping", "ls", "--cmroot", fixture.root.place, "--path", path)
        assert code == 0 and [each["tableName"] for each in answer["content"]] == [table] * bool(table), path
        assert answer["totalElements"] == bool(table)


def test_a_hold_that_is_over_before_it_begins_is_refused(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("legal-hold", "add", "case", "--cmroot", fixture.root.place, "--on", "a.b", "--reason", "r", "--until")
    for past in ("2020-01-01", "2020-01-01T00:00:00Z"):
        code, answer = called(capsys, *words, past)
        assert (code, answer["error"]) == (2, "UsageError") and "is in the past" in answer["message"] and answer["hint"]
    assert called(capsys, "legal-hold", "ls", "--cmroot", fixture.root.place)[1]["holds"] == []
    assert called(capsys, *words, "2999-01-01")[0] == 0
