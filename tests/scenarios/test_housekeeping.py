"""Housekeeping on a real metastore: what goes, what stays, and that nothing goes that something refers to."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from housekeeping import ALL_EVENTS, DROPS, EXPIRED, UNREFERENCED, House
from postgres import Postgres, running_postgres
from spark_sql import SparkSql

from cmroot.errors import KeepError
from cmroot.lease import acquire
from replicator.core.model import EXTERNAL
from replicator.errors import CommitOutcomeUnknown, LeaseHeld, Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.removal.legal import LegalHold, add_hold
from replicator.removal.removal import Limits
from replicator.text.period import parse_period

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def metastore(source_metastore: Running) -> Iterator[ThriftMetastore]:
    with connect(source_metastore.uri) as client:
        yield client


@pytest.fixture
def house(metastore: ThriftMetastore, tmp_path: Path) -> House:
    return House(metastore, f"house{next(_numbers)}", tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_house(request: pytest.FixtureRequest, metastore: ThriftMetastore, tmp_path: Path) -> House:
    """With its items in either database."""
    url = request.getfixturevalue("postgres").database() if request.param == "postgresql" else None
    return House(metastore, f"house{next(_numbers)}", tmp_path, url)


# ---- data that was left behind --------------------------------------------------------------------------------------


def test_an_old_location_goes_when_its_time_has_come(any_house: House) -> None:
    house = any_house
    house.table("t", properties=UNREFERENCED)
    house.table("plain")
    house.run()
    house.relocate("t", house.write("t_new", "new rows"))
    house.relocate("plain", house.write("plain_new"))

    first = house.run()
    assert (first.status, first.scheduled, first.due, first.removed) == ("done", 1, 0, 0)
    (item,) = house.items()
    assert (item.status, item.lifecycle, item.delay, item.path) == (
        "SCHEDULED",
        "UNREFERENCED",
        "P3D",
        f"file:{house.place('t')}",
    )
    assert item.cleanup - item.created == 3 * 86_400

    assert house.run(2.9).due == 0
    assert house.place("t").exists()
    planned = house.run(3.1, rehearse=True)
    assert (planned.status, planned.removed, planned.files, planned.bytes) == ("planned", 1, 1, len("rows of t"))
    assert "P3D" in planned.plan[0]["reason"] and house.place("t").exists()

    done = house.run(3.1)
    assert (done.status, done.removed, done.files) == ("done", 1, 1)
    assert not house.place("t").exists() and house.keeps("rows of t")
    assert (house.place("t_new") / "a").read_text() == "new rows"
    assert (house.place("plain") / "a").exists()
    assert house.states() == [("t", "DELETED")]
    (row,) = [each for each in house.audit() if each.what == "path"]
    assert (row.object, row.files, row.bytes) == (f"{house.db.name}.t", 1, 9) and "unreferenced since" in row.reason
    assert house.run(9).due == 0


def test_old_locations_of_partitions_go_and_the_partitions_stay(house: House) -> None:
    house.partitioned("t", ["1", "2"], **UNREFERENCED)
    house.run()
    house.relocate_partition("t", "1", house.write("t/p=1/v2", "new rows"))
    house.relocate_partition("t", "2", house.write("elsewhere/2", "other rows"))
    outside = house.write("elsewhere/2")
    assert house.run().scheduled == 2

    done = house.run(4)
    assert done.removed == 1 and not house.place("t/p=2").exists()
    assert (house.place("t/p=1/v2") / "a").read_text() == "new rows", (
        "it lies in the old location of the same partition"
    )
    assert "in use" in done.refused[0] and (house.place("t/p=1") / "a").exists()
    assert house.values("t") == ["1", "2"] and (outside / "a").exists()
    assert house.states(partition="p=1") == [("t/p=1", "SCHEDULED")], "it goes when nothing lies in it any more"

    house.relocate_partition("t", "1", house.write("elsewhere/1"))
    house.run(4.1)
    house.run(8)
    assert not house.place("t/p=1").exists()


def test_drops_leave_data_behind_only_where_the_table_lists_them(house: House) -> None:
    house.partitioned("some", ["1"], **UNREFERENCED)
    house.partitioned("all", ["1", "2"], **UNREFERENCED, **ALL_EVENTS)
    house.relocate_partition("all", "2", house.write("elsewhere/2"))
    house.run()
    house.metastore.drop_partitions(house.db.name, "some", ["p=1"])
    house.metastore.drop_partitions(house.db.name, "all", ["p=1"])
    assert house.run().scheduled == 1
    house.metastore.drop_table(house.db.name, "some")
    house.metastore.drop_table(house.db.name, "all")
    assert house.run().scheduled == 2, "the table's directory, and that of a partition elsewhere"
    house.run(4)
    assert house.place("some/p=1/a").exists()
    assert not house.place("all").exists() and not house.place("elsewhere/2").exists()
    assert {status for _, status in house.states()} == {"DELETED"}


def test_a_location_that_is_taken_again_stays(house: House) -> None:
    house.table("t", properties=UNREFERENCED)
    house.run()
    house.relocate("t", house.write("b"))
    house.run()
    house.relocate("t", house.place("t"))
    assert house.run().cancelled == 1
    assert house.states() == [("t", "DISABLED"), ("t", "SCHEDULED")], "the way back leaves the other place behind"
    house.run(5)
    assert house.place("t/a").exists() and not house.place("b").exists()


def test_a_location_that_is_taken_again_unseen_stays(house: House) -> None:
    house.table("t", properties=UNREFERENCED)
    house.run()
    house.relocate("t", house.write("b"))
    house.run()
    house.relocate("t", house.place("t"))
    done = house.run(4, captures=False)
    assert done.removed == 0 and "in use" in done.refused[0] and house.place("t/a").exists()
    (refused,) = house.audit("refused")
    assert refused.detail.startswith("in use")


def test_a_removed_property_cancels_what_waits(any_house: House) -> None:
    house = any_house
    house.table("t", properties={**UNREFERENCED, **EXPIRED, **DROPS})
    house.partitioned("p", ["1"], **EXPIRED)
    house.run()
    house.relocate("t", house.write("b"))
    house.run()
    assert house.states(status="scheduled") == [("p/p=1", "SCHEDULED"), ("t", "SCHEDULED"), ("t", "SCHEDULED")]
    house.unset("t", "beekeeper.remove.unreferenced.data", "beekeeper.remove.expired.data")
    house.db.alter("p", **{"beekeeper.remove.expired.data": "FALSE"})
    assert house.run(40, captures=False).removed == 0, "the metastore is asked again before anything goes"
    house.run(80)
    assert {status for _, status in house.states()} == {"DISABLED"}
    assert house.place("t/a").exists() and house.place("b/a").exists() and house.values("p") == ["1"]


def test_a_changed_period_counts_from_the_beginning(any_house: House) -> None:
    house = any_house
    house.partitioned("p", ["1"], **EXPIRED)
    house.run()
    begins = house.items(partition="p=1")[0]
    for period, days in (("P10D", 10), ("P1M", None), ("p2w", 14)):
        house.db.alter("p", **{"beekeeper.expired.data.retention.period": period})
        house.run()
        (item,) = house.items(partition="p=1")
        assert (item.id, item.created, item.delay) == (begins.id, begins.created, period)
        if days is not None:
            assert item.cleanup == item.created + days * 86_400
    assert house.run(13.9).removed == 0
    assert house.run(14.1).removed == 1 and house.values("p") == []


# ---- time to live ---------------------------------------------------------------------------------------------------


def test_partitions_that_existed_before_the_property_was_set_expire(any_house: House) -> None:
    house = any_house
    house.partitioned("t", ["1", "2", "a b/ü"])
    house.run()
    house.db.alter("t", **EXPIRED)
    assert house.run().scheduled == 4, "with the table itself, which stays"
    assert house.run(29.9).due == 0
    done = house.run(30.1)
    assert (done.removed, done.partitions_dropped, done.tables_dropped) == (3, 3, 0)
    assert house.values("t") == [] and house.live("t") and not list(house.place("t").rglob("a"))
    assert all(house.keeps(f"rows of t/{value}") for value in ("1", "2"))
    house.db.add("t", {"9": {"a": "later"}})
    assert house.run(29).scheduled == 1, "new partitions of a table that was quiet are seen"
    dropped = [each for each in house.audit("done") if each.what == "drop partitions"]
    assert len(dropped) == 1 and "p=2" in dropped[0].detail


def test_an_expired_table_is_dropped_only_where_that_is_allowed_and_after_its_partitions(house: House) -> None:
    house.table("stays", properties=EXPIRED)
    house.table("goes", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    house.partitioned("parts", ["1"], **EXPIRED, **DROPS)
    house.run()
    assert house.states(status="SKIPPED") == [("stays", "SKIPPED")]
    house.relocate_partition("parts", "1", house.write("elsewhere"))
    done = house.run(31)
    assert (done.tables_dropped, done.partitions_dropped) == (2, 1)
    assert house.metastore.table_names(house.db.name) == ["stays"]
    assert house.place("stays/a").exists()
    assert (
        not house.place("goes").exists() and not house.place("parts").exists() and not house.place("elsewhere").exists()
    )
    house.db.alter("stays", **DROPS)
    house.run(31.1)
    assert house.metastore.table_names(house.db.name) == [] and house.keeps("rows of stays")


def test_a_table_waits_for_partitions_that_are_younger(house: House) -> None:
    house.partitioned("t", ["1"], **EXPIRED, **DROPS)
    house.run()
    house.db.add("t", {"2": {"a": "younger"}})  # unseen by the log
    done = house.run(31, captures=False)
    assert (
        done.partitions_dropped == 1
        and done.tables_dropped == 0
        and house.values("t") == ["2"]
        and house.place("t/p=2/a").exists()
    )


def test_data_of_what_a_user_dropped_goes_at_its_time(house: House) -> None:
    house.partitioned("t", ["1", "2"], **EXPIRED)
    house.table("u", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    house.relocate_partition("t", "2", house.write("elsewhere/2", "outside"))
    house.run()
    house.metastore.drop_partitions(house.db.name, "t", ["p=1"])
    house.run()
    house.metastore.drop_table(house.db.name, "t")
    house.metastore.drop_table(house.db.name, "u")
    assert house.run().detached >= 2
    assert house.run(29).due == 0 and house.place("t/p=1/a").exists()
    done = house.run(31)
    assert done.status == "done" and done.partitions_dropped == 0
    assert not any(house.place(name).exists() for name in ("t/p=1", "elsewhere/2", "u"))
    assert house.keeps("outside") and house.keeps("rows of u") and house.keeps("rows of t/1")


def test_data_that_another_table_took_over_after_a_drop_stays(house: House) -> None:
    house.table("t", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    house.run()
    house.metastore.drop_table(house.db.name, "t")
    house.run()
    house.table("heir", kind=EXTERNAL)
    house.relocate("heir", house.place("t"))
    house.run()
    assert ("t", "DISABLED") in house.states()
    house.run(60)
    assert house.place("t/a").exists()


def test_a_renamed_table_lives_on_under_its_new_name(any_house: House) -> None:
    house = any_house
    house.partitioned("old", ["1"], **EXPIRED, **UNREFERENCED)
    house.run()
    house.relocate_partition("old", "1", house.write("old/v2"))
    house.run()
    before = {each.id: each.cleanup for each in house.items()}
    house.db.rename("old", "new")  # the server moves the directory, and what was left behind in it
    assert house.place("new/p=1/a").exists()
    assert house.run().scheduled == 0
    assert {each.id: each.cleanup for each in house.items()} == before, "the time goes on"
    assert [path for each in house.items() if "/old" in (path := each.path)] == []
    assert {each.table for each in house.items()} == {"new"}
    house.run(3.1)
    assert not house.place("new/p=1").exists() and house.place("new/v2/a").exists()
    house.run(30.1)
    assert house.values("new") == [] and not house.place("new/v2").exists() and house.live("new")


def test_tables_that_spark_writes_and_reads(house: House, source_metastore: Running) -> None:
    spark = SparkSql(source_metastore.uri, source_metastore.warehouse)
    try:
        db, properties = house.db.name, {**UNREFERENCED, **EXPIRED}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        spark.run(
            f"CREATE TABLE {db}.s (a INT, p STRING) USING parquet PARTITIONED BY (p) TBLPROPERTIES ({listed})",
            f"INSERT INTO {db}.s VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        )
        house.run()
        before = house.place("s/p=x")
        spark.run(
            f"CREATE TABLE {db}.copy USING parquet LOCATION '{house.place('moved')}' AS SELECT 10 AS a",
            f"ALTER TABLE {db}.s PARTITION (p='x') SET LOCATION '{house.place('moved')}'",
            f"ALTER TABLE {db}.s DROP PARTITION (p='y')",
        )
        assert house.run().scheduled == 1
        done = house.run(4)
        assert done.removed == 1 and not before.exists()
        assert sorted(spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s")) == [[3, "z"], [10, "x"]]
        done = house.run(31)
        assert done.partitions_dropped == 1 and "in use" in done.refused[0], "another table has the moved directory"
        assert spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s") == [[10, "x"]]
        spark.run(f"DROP TABLE {db}.copy")
        house.run(32)
        assert spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s") == [] and not house.place("moved").exists()
    finally:
        spark.close()


def test_a_store_that_is_lost_is_filled_again_from_the_log(house: House) -> None:
    house.partitioned("t", ["1"], **EXPIRED)
    house.table("u", properties=UNREFERENCED)
    house.run()
    house.relocate("u", house.write("b"))
    house.run(4)
    before = [(each.name, each.path, each.created, each.cleanup) for each in house.items()]
    for name in os.listdir(house.root.place):
        if name.startswith("housekeeping.sqlite"):
            os.unlink(f"{house.root.place}/{name}")
    assert house.run().records > 0
    assert [(each.name, each.path, each.created, each.cleanup) for each in house.items()] == before
    house.run(4)
    assert house.states(table="u") == [("u", "DELETED")] and house.values("t") == ["1"]


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_properties_that_cannot_be_understood_stop_one_table_only_and_are_told_once(house: House) -> None:
    house.partitioned("bad", ["1"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "30 days"})
    house.table("worse", properties={**UNREFERENCED, "beekeeper.unreferenced.data.retention.period": "P0D"})
    house.partitioned("good", ["1"], **EXPIRED)
    first = house.run()
    assert len(first.invalid) == 2 and "'30 days'" in first.invalid[0] and first.status == "incomplete"
    assert house.states(status="INVALID_CONFIG") == [("bad", "INVALID_CONFIG"), ("worse", "INVALID_CONFIG")]
    again = house.run(40)
    assert again.invalid == [] and again.status == "done"
    assert house.values("good") == [] and house.values("bad") == ["1"]
    house.db.alter("bad", **EXPIRED)
    house.run(40)
    assert house.values("bad") == [] and house.states(status="INVALID_CONFIG") == [("worse", "INVALID_CONFIG")]


def test_other_defaults_hold_for_tables_that_are_known(house: House) -> None:
    house.partitioned("t", ["1"], **{"beekeeper.remove.expired.data": "true"})
    house.partitioned("now", ["1"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "PT0S"})
    assert len(house.run().invalid) == 1
    assert house.run(8).due == 0
    done = house.run(8, expired=parse_period("P1W"), allow_immediate=True)
    assert done.partitions_dropped == 2 and house.values("t") == house.values("now") == []
    assert house.states(status="INVALID_CONFIG") == []


def test_a_period_that_becomes_wrong_stops_what_was_scheduled(house: House) -> None:
    house.partitioned("t", ["1"], **EXPIRED)
    house.run()
    house.db.alter("t", **{"beekeeper.expired.data.retention.period": "P"})
    assert len(house.run().invalid) == 1
    assert house.run(40).removed == 0 and house.values("t") == ["1"]


def test_what_two_tables_share_stays_while_one_of_them_does(house: House) -> None:
    house.table("t", properties=UNREFERENCED)
    house.table("twin", files={})
    house.relocate("twin", f"file:{house.place('t')}/")
    house.partitioned("p", ["1"], **EXPIRED)
    house.partitioned("q", ["1"])
    house.relocate_partition("q", "1", house.place("p/p=1"))
    house.run()
    house.relocate("t", house.write("b"))
    house.run()
    done = house.run(31)
    assert done.removed == 0 and len(done.refused) == 2 and done.partitions_dropped == 0
    assert house.place("t/a").exists() and house.values("p") == ["1"]
    house.metastore.drop_table(house.db.name, "twin")
    house.metastore.drop_table(house.db.name, "q")
    assert house.run(32).removed == 2


def test_links_and_the_tables_in_them_stay(house: House) -> None:
    house.table("target")
    house.table("t", files={}, properties=UNREFERENCED)
    house.table("above", files={"a": "x"}, properties=UNREFERENCED)
    house.table("inner")
    inner = house.write("above/deep/inner")
    house.relocate("inner", inner)
    shutil.rmtree(house.place("t"), ignore_errors=True)
    house.place("t").symlink_to(house.place("target"))
    house.run()
    house.relocate("t", house.write("b"))
    house.relocate("above", house.write("c"))
    house.run()
    done = house.run(4)
    assert done.removed == 0 and len(done.refused) == 2
    assert house.place("target/a").exists() and (inner / "a").exists() and house.place("above/a").exists()


def test_what_is_not_due_yet_keeps_what_lies_above_it(house: House) -> None:
    house.table("t", properties=UNREFERENCED)
    house.table("u", files={}, properties={**UNREFERENCED, "beekeeper.unreferenced.data.retention.period": "P9D"})
    house.relocate("u", house.write("t/inner", "younger"))
    house.run()
    house.relocate("u", house.write("u2"))
    house.relocate("t", house.write("t2"))
    house.run()
    done = house.run(4)
    assert done.waiting == 1 and house.place("t/inner/a").exists()
    house.run(10)
    assert not house.place("t").exists() and house.keeps("younger")


def test_limits_refuse_the_whole_run_and_holds_single_paths(house: House) -> None:
    house.partitioned("t", ["1", "2", "3"], **EXPIRED)
    house.run()
    for limits, reported in ((Limits(max_bytes=20), "bytes"), (Limits(max_share=0.01), "%")):
        with pytest.raises(Refused, match=reported):
            house.run(31, limits=limits)
    assert house.values("t") == ["1", "2", "3"]
    add_hold(
        house.root.place,
        LegalHold(name="case", pattern=f"{house.db.name}.t/p=2", reason="case 17", by="me", created="2026-01-01"),
    )
    done = house.run(31, limits=Limits(max_bytes=100, protected=(str(house.place("t/p=3")),)))
    assert house.values("t") == ["2", "3"] and len(done.refused) == 2 and not done.is_whole
    assert any("case 17" in each for each in done.refused) and any("protected" in each for each in done.refused)


def test_only_one_run_at_a_time(house: House) -> None:
    with acquire(f"{house.root.place}/housekeeping", "another run"), pytest.raises(LeaseHeld):
        house.run()


# ---- while others are at work ---------------------------------------------------------------------------------------


class Meddler:
    """A metastore in front of which something happens `before` or `after` its n-th change of a kind."""

    def __init__(
        self,
        metastore: ThriftMetastore,
        call: str,
        *,
        before: Callable[[], Any] = lambda: None,
        after: Callable[[], Any] = lambda: None,
    ) -> None:
        self._metastore, self._call, self._before, self._after = metastore, call, before, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._metastore, name)
        if name != self._call:
            return real

        def meddled(*arguments: Any) -> Any:
            self._before()
            answer = real(*arguments)
            self._after()
            return answer

        return meddled


def test_a_table_that_is_dropped_meanwhile_is_no_error(house: House) -> None:
    house.partitioned("t", ["1"], **EXPIRED)
    house.run()
    meddler: Any = Meddler(
        house.metastore, "drop_partitions", before=lambda: house.metastore.drop_table(house.db.name, "t")
    )
    done = house.run(31, metastore=meddler)
    assert done.status == "done" and done.removed == 1 and not house.place("t/p=1").exists()


def test_a_partition_that_comes_back_at_once_keeps_its_data(house: House) -> None:
    house.partitioned("t", ["1"], **EXPIRED)
    house.run()
    meddler: Any = Meddler(
        house.metastore, "drop_partitions", after=lambda: house.db.add("t", {"1": {"b": "come back"}})
    )
    done = house.run(31, metastore=meddler)
    assert done.removed == 0 and "in use" in done.refused[0]
    assert house.values("t") == ["1"] and house.place("t/p=1/a").exists()
    house.run(31.2)
    assert house.values("t") == [] or house.place("t/p=1/a").exists()


@pytest.mark.parametrize("keeps_property", [True, False])
def test_a_metastore_that_goes_away_after_a_drop_leaves_nothing_behind(house: House, keeps_property: bool) -> None:
    house.partitioned("t", ["1", "2"], **EXPIRED, **UNREFERENCED, **ALL_EVENTS)
    house.run()

    def gone() -> None:
        raise CommitOutcomeUnknown("the connection broke")

    broken: Any = Meddler(house.metastore, "drop_partitions", after=gone)
    with pytest.raises(CommitOutcomeUnknown):
        house.run(31, metastore=broken)
    assert house.values("t") == [] and house.place("t/p=1/a").exists()
    if not keeps_property:
        house.unset("t", *EXPIRED, *UNREFERENCED)
    done = house.run(31.1)
    assert done.removed == 2 and not house.place("t/p=1").exists() and house.keeps("rows of t/2")
    assert house.items(lifecycle="unreferenced") == [], "our own drop is no event"


def test_failures_are_tried_again_ever_later_and_given_up_at_last(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    import replicator.removal.remove as remove

    house.table("t", properties=UNREFERENCED)
    house.table("u", properties=UNREFERENCED)
    house.run()
    house.relocate("t", house.write("b"))
    house.relocate("u", house.write("c"))
    house.run()
    real = remove.recycle_tree

    def failing(root: str, directory: str, **more: Any) -> Sequence[Any]:
        if directory.endswith("/t"):
            raise KeepError(f"{directory}: the disk says no")
        return real(root, directory, **more)

    monkeypatch.setattr(remove, "recycle_tree", failing)
    done = house.run(4)
    assert done.removed == 1 and "the disk says no" in done.failed[0]
    assert house.run(4).due == 0, "not at once"
    day = 4.0
    for _ in range(9):
        day += 1.1
        house.run(day, captures=False)
    (item,) = house.items(status="exhausted")
    assert (item.table, item.attempts) == ("t", 10) and house.run(day + 50).due == 0
    monkeypatch.undo()
    assert house.place("t/a").exists()


def test_files_whose_names_are_no_text_go_like_others(house: House) -> None:
    house.table("t", properties=UNREFERENCED)
    house.run()
    Path(os.fsdecode(os.fsencode(house.place("t")) + b"/bad\xff")).write_bytes(b"no text")
    house.relocate("t", house.write("t_new", "new rows"))
    assert house.run().scheduled == 1
    done = house.run(4)
    assert (done.removed, done.failed, done.files) == (1, [], 2)
    assert not house.place("t").exists() and house.keeps("no text")
