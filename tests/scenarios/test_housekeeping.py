"""Housekeeping on a real metastore: what goes, what stays, and that nothing goes that something refers to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from housekeeping import ALL_EVENTS, DROPS, EXPIRED, UNREFERENCED, LifecycleFixture
from names import unique
from spark_sql import SparkSql

from cmroot.errors import KeepError
from cmroot.lease import acquire
from replicator.core.model import EXTERNAL
from replicator.core.text import parse_period
from replicator.errors import CommitOutcomeUnknown, LeaseHeld, Refused
from replicator.lifecycle.removal.removal import LegalHold, Limits, add_hold
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore


@pytest.fixture
def fixture(metastore: ThriftMetastore, tmp_path: Path) -> LifecycleFixture:
    return LifecycleFixture(metastore, unique("house"), tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_fixture(request: pytest.FixtureRequest, metastore: ThriftMetastore, tmp_path: Path) -> LifecycleFixture:
    """With its items in either database."""
    url = request.getfixturevalue("postgres").database() if request.param == "postgresql" else None
    return LifecycleFixture(metastore, unique("house"), tmp_path, url)


# ---- data that was left behind --------------------------------------------------------------------------------------


def test_an_old_location_goes_when_its_time_has_come(any_fixture: LifecycleFixture) -> None:
    fixture = any_fixture
    fixture.table("t", properties=UNREFERENCED)
    fixture.table("plain")
    fixture.run()
    fixture.relocate("t", fixture.write("t_new", "new rows"))
    fixture.relocate("plain", fixture.write("plain_new"))

    first = fixture.run()
    assert (first.status, first.scheduled, first.due, first.removed) == ("done", 1, 0, 0)
    (item,) = fixture.items()
    assert (item.status, item.lifecycle, item.delay, item.path) == (
        "SCHEDULED",
        "UNREFERENCED",
        "P3D",
        f"file:{fixture.place('t')}",
    )
    assert item.cleanup - item.created == 3 * 86_400

    assert fixture.run(2.9).due == 0
    assert fixture.place("t").exists()
    planned = fixture.run(3.1, rehearse=True)
    assert (planned.status, planned.removed, planned.files, planned.bytes) == ("planned", 1, 1, len("rows of t"))
    assert "P3D" in planned.plan[0]["reason"] and fixture.place("t").exists()

    done = fixture.run(3.1)
    assert (done.status, done.removed, done.files) == ("done", 1, 1)
    assert not fixture.place("t").exists() and fixture.keeps("rows of t")
    assert (fixture.place("t_new") / "a").read_text() == "new rows"
    assert (fixture.place("plain") / "a").exists()
    assert fixture.states() == [("t", "DELETED")]
    (row,) = [each for each in fixture.audit() if each.what == "path"]
    assert (row.object, row.files, row.bytes) == (f"{fixture.db.name}.t", 1, 9) and "unreferenced since" in row.reason
    assert fixture.run(9).due == 0


def test_old_locations_of_partitions_go_and_the_partitions_stay(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1", "2"], **UNREFERENCED)
    fixture.run()
    fixture.relocate_partition("t", "1", fixture.write("t/p=1/v2", "new rows"))
    fixture.relocate_partition("t", "2", fixture.write("elsewhere/2", "other rows"))
    outside = fixture.write("elsewhere/2")
    assert fixture.run().scheduled == 2

    done = fixture.run(4)
    assert done.removed == 1 and not fixture.place("t/p=2").exists()
    assert (fixture.place("t/p=1/v2") / "a").read_text() == "new rows", (
        "it lies in the old location of the same partition"
    )
    assert "in use" in done.refused[0] and (fixture.place("t/p=1") / "a").exists()
    assert fixture.values("t") == ["1", "2"] and (outside / "a").exists()
    assert fixture.states(partition="p=1") == [("t/p=1", "SCHEDULED")], "it goes when nothing lies in it any more"

    fixture.relocate_partition("t", "1", fixture.write("elsewhere/1"))
    fixture.run(4.1)
    fixture.run(8)
    assert not fixture.place("t/p=1").exists()


def test_drops_leave_data_behind_only_where_the_table_lists_them(fixture: LifecycleFixture) -> None:
    fixture.partitioned("some", ["1"], **UNREFERENCED)
    fixture.partitioned("all", ["1", "2"], **UNREFERENCED, **ALL_EVENTS)
    fixture.relocate_partition("all", "2", fixture.write("elsewhere/2"))
    fixture.run()
    fixture.metastore.drop_partitions(fixture.db.name, "some", ["p=1"])
    fixture.metastore.drop_partitions(fixture.db.name, "all", ["p=1"])
    assert fixture.run().scheduled == 1
    fixture.metastore.drop_table(fixture.db.name, "some")
    fixture.metastore.drop_table(fixture.db.name, "all")
    assert fixture.run().scheduled == 2, "the table's directory, and that of a partition elsewhere"
    fixture.run(4)
    assert fixture.place("some/p=1/a").exists()
    assert not fixture.place("all").exists() and not fixture.place("elsewhere/2").exists()
    assert {status for _, status in fixture.states()} == {"DELETED"}


def test_a_location_that_is_taken_again_stays(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.run()
    fixture.relocate("t", fixture.place("t"))
    assert fixture.run().cancelled == 1
    assert fixture.states() == [("t", "DISABLED"), ("t", "SCHEDULED")], "the way back leaves the other place behind"
    fixture.run(5)
    assert fixture.place("t/a").exists() and not fixture.place("b").exists()


def test_a_location_that_is_taken_again_unseen_stays(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.run()
    fixture.relocate("t", fixture.place("t"))
    done = fixture.run(4, captures=False)
    assert done.removed == 0 and "in use" in done.refused[0] and fixture.place("t/a").exists()
    (refused,) = fixture.audit("refused")
    assert refused.detail.startswith("in use")


def test_a_removed_property_cancels_what_waits(any_fixture: LifecycleFixture) -> None:
    fixture = any_fixture
    fixture.table("t", properties={**UNREFERENCED, **EXPIRED, **DROPS})
    fixture.partitioned("p", ["1"], **EXPIRED)
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.run()
    assert fixture.states(status="scheduled") == [("p/p=1", "SCHEDULED"), ("t", "SCHEDULED"), ("t", "SCHEDULED")]
    fixture.unset("t", "beekeeper.remove.unreferenced.data", "beekeeper.remove.expired.data")
    fixture.db.alter("p", **{"beekeeper.remove.expired.data": "FALSE"})
    assert fixture.run(40, captures=False).removed == 0, "the metastore is asked again before anything goes"
    fixture.run(80)
    assert {status for _, status in fixture.states()} == {"DISABLED"}
    assert fixture.place("t/a").exists() and fixture.place("b/a").exists() and fixture.values("p") == ["1"]


def test_a_changed_period_counts_from_the_beginning(any_fixture: LifecycleFixture) -> None:
    fixture = any_fixture
    fixture.partitioned("p", ["1"], **EXPIRED)
    fixture.run()
    begins = fixture.items(partition="p=1")[0]
    for period, days in (("P10D", 10), ("P1M", None), ("p2w", 14)):
        fixture.db.alter("p", **{"beekeeper.expired.data.retention.period": period})
        fixture.run()
        (item,) = fixture.items(partition="p=1")
        assert (item.id, item.created, item.delay) == (begins.id, begins.created, period)
        if days is not None:
            assert item.cleanup == item.created + days * 86_400
    assert fixture.run(13.9).removed == 0
    assert fixture.run(14.1).removed == 1 and fixture.values("p") == []


# ---- time to live ---------------------------------------------------------------------------------------------------


def test_partitions_that_existed_before_the_property_was_set_expire(any_fixture: LifecycleFixture) -> None:
    fixture = any_fixture
    fixture.partitioned("t", ["1", "2", "a b/ü"])
    fixture.run()
    fixture.db.alter("t", **EXPIRED)
    assert fixture.run().scheduled == 4, "with the table itself, which stays"
    assert fixture.run(29.9).due == 0
    done = fixture.run(30.1)
    assert (done.removed, done.partitions_dropped, done.tables_dropped) == (3, 3, 0)
    assert fixture.values("t") == [] and fixture.live("t") and not list(fixture.place("t").rglob("a"))
    assert all(fixture.keeps(f"rows of t/{value}") for value in ("1", "2"))
    fixture.db.add("t", {"9": {"a": "later"}})
    assert fixture.run(29).scheduled == 1, "new partitions of a table that was quiet are seen"
    dropped = [each for each in fixture.audit("done") if each.what == "drop partitions"]
    assert len(dropped) == 1 and "p=2" in dropped[0].detail


def test_an_expired_table_is_dropped_only_where_that_is_allowed_and_after_its_partitions(
    fixture: LifecycleFixture,
) -> None:
    fixture.table("stays", properties=EXPIRED)
    fixture.table("goes", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    fixture.partitioned("parts", ["1"], **EXPIRED, **DROPS)
    fixture.run()
    assert fixture.states(status="SKIPPED") == [("stays", "SKIPPED")]
    fixture.relocate_partition("parts", "1", fixture.write("elsewhere"))
    done = fixture.run(31)
    assert (done.tables_dropped, done.partitions_dropped) == (2, 1)
    assert fixture.metastore.table_names(fixture.db.name) == ["stays"]
    assert fixture.place("stays/a").exists()
    assert (
        not fixture.place("goes").exists()
        and not fixture.place("parts").exists()
        and not fixture.place("elsewhere").exists()
    )
    fixture.db.alter("stays", **DROPS)
    fixture.run(31.1)
    assert fixture.metastore.table_names(fixture.db.name) == [] and fixture.keeps("rows of stays")


def test_a_table_waits_for_partitions_that_are_younger(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **EXPIRED, **DROPS)
    fixture.run()
    fixture.db.add("t", {"2": {"a": "younger"}})  # unseen by the log
    done = fixture.run(31, captures=False)
    assert (
        done.partitions_dropped == 1
        and done.tables_dropped == 0
        and fixture.values("t") == ["2"]
        and fixture.place("t/p=2/a").exists()
    )


def test_data_of_what_a_user_dropped_goes_at_its_time(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1", "2"], **EXPIRED)
    fixture.table("u", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    fixture.relocate_partition("t", "2", fixture.write("elsewhere/2", "outside"))
    fixture.run()
    fixture.metastore.drop_partitions(fixture.db.name, "t", ["p=1"])
    fixture.run()
    fixture.metastore.drop_table(fixture.db.name, "t")
    fixture.metastore.drop_table(fixture.db.name, "u")
    assert fixture.run().detached >= 2
    assert fixture.run(29).due == 0 and fixture.place("t/p=1/a").exists()
    done = fixture.run(31)
    assert done.status == "done" and done.partitions_dropped == 0
    assert not any(fixture.place(name).exists() for name in ("t/p=1", "elsewhere/2", "u"))
    assert fixture.keeps("outside") and fixture.keeps("rows of u") and fixture.keeps("rows of t/1")


def test_data_that_another_table_took_over_after_a_drop_stays(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties={**EXPIRED, **DROPS}, kind=EXTERNAL)
    fixture.run()
    fixture.metastore.drop_table(fixture.db.name, "t")
    fixture.run()
    fixture.table("heir", kind=EXTERNAL)
    fixture.relocate("heir", fixture.place("t"))
    fixture.run()
    assert ("t", "DISABLED") in fixture.states()
    fixture.run(60)
    assert fixture.place("t/a").exists()


def test_a_renamed_table_lives_on_under_its_new_name(any_fixture: LifecycleFixture) -> None:
    fixture = any_fixture
    fixture.partitioned("old", ["1"], **EXPIRED, **UNREFERENCED)
    fixture.run()
    fixture.relocate_partition("old", "1", fixture.write("old/v2"))
    fixture.run()
    before = {each.id: each.cleanup for each in fixture.items()}
    fixture.db.rename("old", "new")  # the server moves the directory, and what was left behind in it
    assert fixture.place("new/p=1/a").exists()
    assert fixture.run().scheduled == 0
    assert {each.id: each.cleanup for each in fixture.items()} == before, "the time goes on"
    assert [path for each in fixture.items() if "/old" in (path := each.path)] == []
    assert {each.table for each in fixture.items()} == {"new"}
    fixture.run(3.1)
    assert not fixture.place("new/p=1").exists() and fixture.place("new/v2/a").exists()
    fixture.run(30.1)
    assert fixture.values("new") == [] and not fixture.place("new/v2").exists() and fixture.live("new")


def test_tables_that_spark_writes_and_reads(fixture: LifecycleFixture, source_metastore: Running) -> None:
    spark = SparkSql(source_metastore.uri, source_metastore.warehouse)
    try:
        db, properties = fixture.db.name, {**UNREFERENCED, **EXPIRED}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        spark.run(
            f"CREATE TABLE {db}.s (a INT, p STRING) USING parquet PARTITIONED BY (p) TBLPROPERTIES ({listed})",
            f"INSERT INTO {db}.s VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        )
        fixture.run()
        before = fixture.place("s/p=x")
        spark.run(
            f"CREATE TABLE {db}.copy USING parquet LOCATION '{fixture.place('moved')}' AS SELECT 10 AS a",
            f"ALTER TABLE {db}.s PARTITION (p='x') SET LOCATION '{fixture.place('moved')}'",
            f"ALTER TABLE {db}.s DROP PARTITION (p='y')",
        )
        assert fixture.run().scheduled == 1
        done = fixture.run(4)
        assert done.removed == 1 and not before.exists()
        assert sorted(spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s")) == [[3, "z"], [10, "x"]]
        done = fixture.run(31)
        assert done.partitions_dropped == 1 and "in use" in done.refused[0], "another table has the moved directory"
        assert spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s") == [[10, "x"]]
        spark.run(f"DROP TABLE {db}.copy")
        fixture.run(32)
        assert spark.run(f"REFRESH TABLE {db}.s", f"SELECT * FROM {db}.s") == [] and not fixture.place("moved").exists()
    finally:
        spark.close()


def test_a_store_that_is_lost_is_filled_again_from_the_log(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.table("u", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("u", fixture.write("b"))
    fixture.run(4)
    before = [(each.name, each.path, each.created, each.cleanup) for each in fixture.items()]
    for name in os.listdir(fixture.root.place):
        if name.startswith("housekeeping.sqlite"):
            os.unlink(f"{fixture.root.place}/{name}")
    assert fixture.run().records > 0
    assert [(each.name, each.path, each.created, each.cleanup) for each in fixture.items()] == before
    fixture.run(4)
    assert fixture.states(table="u") == [("u", "DELETED")] and fixture.values("t") == ["1"]


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_properties_that_cannot_be_understood_stop_one_table_only_and_are_told_once(fixture: LifecycleFixture) -> None:
    fixture.partitioned("bad", ["1"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "30 days"})
    fixture.table("worse", properties={**UNREFERENCED, "beekeeper.unreferenced.data.retention.period": "P0D"})
    fixture.partitioned("good", ["1"], **EXPIRED)
    first = fixture.run()
    assert len(first.invalid) == 2 and "'30 days'" in first.invalid[0] and first.status == "incomplete"
    assert fixture.states(status="INVALID_CONFIG") == [("bad", "INVALID_CONFIG"), ("worse", "INVALID_CONFIG")]
    again = fixture.run(40)
    assert again.invalid == [] and again.status == "done"
    assert fixture.values("good") == [] and fixture.values("bad") == ["1"]
    fixture.db.alter("bad", **EXPIRED)
    fixture.run(40)
    assert fixture.values("bad") == [] and fixture.states(status="INVALID_CONFIG") == [("worse", "INVALID_CONFIG")]


def test_other_defaults_hold_for_tables_that_are_known(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **{"beekeeper.remove.expired.data": "true"})
    fixture.partitioned("now", ["1"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "PT0S"})
    assert len(fixture.run().invalid) == 1
    assert fixture.run(8).due == 0
    done = fixture.run(8, expired=parse_period("P1W"), allow_immediate=True)
    assert done.partitions_dropped == 2 and fixture.values("t") == fixture.values("now") == []
    assert fixture.states(status="INVALID_CONFIG") == []


def test_a_period_that_becomes_wrong_stops_what_was_scheduled(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.run()
    fixture.db.alter("t", **{"beekeeper.expired.data.retention.period": "P"})
    assert len(fixture.run().invalid) == 1
    assert fixture.run(40).removed == 0 and fixture.values("t") == ["1"]


def test_what_two_tables_share_stays_while_one_of_them_does(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.table("twin", files={})
    fixture.relocate("twin", f"file:{fixture.place('t')}/")
    fixture.partitioned("p", ["1"], **EXPIRED)
    fixture.partitioned("q", ["1"])
    fixture.relocate_partition("q", "1", fixture.place("p/p=1"))
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.run()
    done = fixture.run(31)
    assert done.removed == 0 and len(done.refused) == 2 and done.partitions_dropped == 0
    assert fixture.place("t/a").exists() and fixture.values("p") == ["1"]
    fixture.metastore.drop_table(fixture.db.name, "twin")
    fixture.metastore.drop_table(fixture.db.name, "q")
    assert fixture.run(32).removed == 2


def test_links_and_the_tables_in_them_stay(fixture: LifecycleFixture) -> None:
    fixture.table("target")
    fixture.table("t", files={}, properties=UNREFERENCED)
    fixture.table("above", files={"a": "x"}, properties=UNREFERENCED)
    fixture.table("inner")
    inner = fixture.write("above/deep/inner")
    fixture.relocate("inner", inner)
    shutil.rmtree(fixture.place("t"), ignore_errors=True)
    fixture.place("t").symlink_to(fixture.place("target"))
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.relocate("above", fixture.write("c"))
    fixture.run()
    done = fixture.run(4)
    assert done.removed == 0 and len(done.refused) == 2
    assert fixture.place("target/a").exists() and (inner / "a").exists() and fixture.place("above/a").exists()


def test_what_is_not_due_yet_keeps_what_lies_above_it(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.table("u", files={}, properties={**UNREFERENCED, "beekeeper.unreferenced.data.retention.period": "P9D"})
    fixture.relocate("u", fixture.write("t/inner", "younger"))
    fixture.run()
    fixture.relocate("u", fixture.write("u2"))
    fixture.relocate("t", fixture.write("t2"))
    fixture.run()
    done = fixture.run(4)
    assert done.waiting == 1 and fixture.place("t/inner/a").exists()
    fixture.run(10)
    assert not fixture.place("t").exists() and fixture.keeps("younger")


def test_limits_refuse_the_whole_run_and_holds_single_paths(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1", "2", "3"], **EXPIRED)
    fixture.run()
    for limits, reported in ((Limits(max_bytes=20), "bytes"), (Limits(max_share=0.01), "%")):
        with pytest.raises(Refused, match=reported):
            fixture.run(31, limits=limits)
    assert fixture.values("t") == ["1", "2", "3"]
    add_hold(
        fixture.root.place,
        LegalHold(name="case", pattern=f"{fixture.db.name}.t/p=2", reason="case 17", by="me", created="2026-01-01"),
    )
    done = fixture.run(31, limits=Limits(max_bytes=100, protected=(str(fixture.place("t/p=3")),)))
    assert fixture.values("t") == ["2", "3"] and len(done.refused) == 2 and not done.is_whole
    assert any("case 17" in each for each in done.refused) and any("protected" in each for each in done.refused)


def test_a_rehearsal_measures_what_goes(fixture: LifecycleFixture) -> None:
    """Hidden files go, too; a link goes, and what it leads to stays."""
    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.run()
    fixture.write("elsewhere", "1234567")
    fixture.place("t/p=1/.a.crc").write_text("12345")
    fixture.place("t/p=1/link").symlink_to(fixture.place("elsewhere/a"))
    planned, done = fixture.run(31, rehearse=True), fixture.run(31)
    assert (planned.files, planned.bytes) == (done.files, done.bytes) == (2, len("rows of t/1") + 5)
    assert fixture.place("elsewhere/a").exists()


def test_only_one_run_at_a_time(fixture: LifecycleFixture) -> None:
    with acquire(f"{fixture.root.place}/housekeeping", "another run"), pytest.raises(LeaseHeld):
        fixture.run()


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


def test_a_table_that_is_dropped_meanwhile_is_no_error(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.run()
    meddler: Any = Meddler(
        fixture.metastore, "drop_partitions", before=lambda: fixture.metastore.drop_table(fixture.db.name, "t")
    )
    done = fixture.run(31, metastore=meddler)
    assert done.status == "done" and done.removed == 1 and not fixture.place("t/p=1").exists()


def test_a_partition_that_comes_back_at_once_keeps_its_data(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.run()
    meddler: Any = Meddler(
        fixture.metastore, "drop_partitions", after=lambda: fixture.db.add("t", {"1": {"b": "come back"}})
    )
    done = fixture.run(31, metastore=meddler)
    assert done.removed == 0 and "in use" in done.refused[0]
    assert fixture.values("t") == ["1"] and fixture.place("t/p=1/a").exists()
    fixture.run(31.2)
    assert fixture.values("t") == [] or fixture.place("t/p=1/a").exists()


def test_a_run_that_was_taken_over_drops_nothing_more(
    fixture: LifecycleFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before the drop: the page was begun under a lease that was held."""
    from replicator.lifecycle.housekeeping import writing

    fixture.partitioned("t", ["1"], **EXPIRED)
    fixture.run()
    begun = writing.settle_each

    def taken_over(*arguments: Any) -> None:
        begun(*arguments)
        Path(fixture.root.place, "housekeeping", "lease").unlink()

    monkeypatch.setattr(writing, "settle_each", taken_over)
    with pytest.raises(LeaseHeld):
        fixture.run(31)
    assert fixture.values("t") == ["1"] and ("t/p=1", "SCHEDULED") in fixture.states(lifecycle="expired")


@pytest.mark.parametrize("keeps_property", [True, False])
def test_a_metastore_that_goes_away_after_a_drop_leaves_nothing_behind(
    fixture: LifecycleFixture, keeps_property: bool
) -> None:
    fixture.partitioned("t", ["1", "2"], **EXPIRED, **UNREFERENCED, **ALL_EVENTS)
    fixture.run()

    def gone() -> None:
        raise CommitOutcomeUnknown("the connection broke")

    broken: Any = Meddler(fixture.metastore, "drop_partitions", after=gone)
    with pytest.raises(CommitOutcomeUnknown):
        fixture.run(31, metastore=broken)
    assert fixture.values("t") == [] and fixture.place("t/p=1/a").exists()
    if not keeps_property:
        fixture.unset("t", *EXPIRED, *UNREFERENCED)
    done = fixture.run(31.1)
    assert done.removed == 2 and not fixture.place("t/p=1").exists() and fixture.keeps("rows of t/2")
    assert fixture.items(lifecycle="unreferenced") == [], "our own drop is no event"


def test_failures_are_tried_again_ever_later_and_given_up_at_last(
    fixture: LifecycleFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from replicator.lifecycle.removal import job as remove

    fixture.table("t", properties=UNREFERENCED)
    fixture.table("u", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    fixture.relocate("u", fixture.write("c"))
    fixture.run()
    real = remove.recycle_tree

    def failing(root: str, directory: str, **more: Any) -> Sequence[Any]:
        if directory.endswith("/t"):
            raise KeepError(f"{directory}: the disk says no")
        return real(root, directory, **more)

    monkeypatch.setattr(remove, "recycle_tree", failing)
    done = fixture.run(4)
    assert done.removed == 1 and "the disk says no" in done.failed[0]
    assert fixture.run(4).due == 0, "not at once"
    day = 4.0
    for _ in range(9):
        day += 1.1
        fixture.run(day, captures=False)
    (item,) = fixture.items(status="exhausted")
    assert (item.table, item.attempts) == ("t", 10) and fixture.run(day + 50).due == 0
    monkeypatch.undo()
    assert fixture.place("t/a").exists()


def test_files_whose_names_are_no_text_go_like_others(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    fixture.run()
    Path(os.fsdecode(os.fsencode(fixture.place("t")) + b"/bad\xff")).write_bytes(b"no text")
    fixture.relocate("t", fixture.write("t_new", "new rows"))
    assert fixture.run().scheduled == 1
    done = fixture.run(4)
    assert (done.removed, done.failed, done.files) == (1, [], 2)
    assert not fixture.place("t").exists() and fixture.keeps("no text")
