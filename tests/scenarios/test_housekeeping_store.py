"""The store of housekeeping items in both databases, and what is decided without a metastore: periods, properties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmroot.root import ChangeRoot, create_or_open
from replicator.core.model import VIEW, Table
from replicator.core.text import parse_period
from replicator.errors import FormatError, UsageError
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.settings import (
    DEFAULT_EVENTS,
    EXPIRED,
    UNREFERENCED,
    LifecycleDefaults,
    read_settings,
)
from replicator.lifecycle.housekeeping.store import DELETED, HEAD, Item, ItemStore, iso, item, store_url

DAY = 86_400
P1D = parse_period("P1D")


@pytest.fixture
def root(tmp_path: Path) -> ChangeRoot:
    return create_or_open(str(tmp_path / "cmroot"))


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, root: ChangeRoot) -> Iterator[ItemStore]:
    url = request.getfixturevalue("postgres").database() if request.param == "postgresql" else None
    with ItemStore(store_url(root.place, url)) as opened:
        opened.prepare(root)
        yield opened


def path(place: str, **more: Any) -> Item:
    made = {"created": 0, "modified": 0, "delay": "P1D", "lifecycle": UNREFERENCED, "db": "d", "table": "t", **more}
    return Item(path=f"file:{place}", place=place, cleanup=made["created"] + DAY, **made)


def put(store: ItemStore, *items: Item, **more: Any) -> int:
    with store.transaction() as work:
        return writing.put(work, items, P1D, **more)


def test_a_store_is_prepared_once_and_belongs_to_one_root(store: ItemStore, root: ChangeRoot, tmp_path: Path) -> None:
    store.prepare(root)
    store.check()
    with pytest.raises(UsageError, match="another"):
        store.prepare(create_or_open(str(tmp_path / "other")))
    with store.transaction() as work:
        work.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(FormatError, match="9999"):
        store.prepare(root)


def test_migrations_make_exactly_the_tables_of_the_schema(store: ItemStore) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from replicator.lifecycle.housekeeping.store import metadata

    with store.transaction() as work:
        context = MigrationContext.configure(work, opts={"compare_type": True})
        differences = [each for each in compare_metadata(context, metadata) if "alembic" not in str(each)]
    assert differences == []


def test_an_object_has_one_open_item_and_its_time_begins_once(store: ItemStore) -> None:
    partition = {"lifecycle": EXPIRED, "partition": "p=1"}
    assert (
        put(store, path("/w/t/p=1", created=100, **partition), path("/w/t/p=2", lifecycle=EXPIRED, partition="p=2"))
        == 2
    )
    assert put(store, path("/w/new", created=900, **partition)) == 0
    one = store.find(item.c.partition_name == "p=1")[0]
    assert (one.path, one.created, one.cleanup) == ("file:/w/new", 100, 100 + DAY)
    assert put(store, path("/w/new", created=900, **partition), restarted=True) == 0
    assert store.find(item.c.partition_name == "p=1")[0].created == 900
    with store.transaction() as work:
        assert writing.detach(work, "d", "t", ["p=1"], 5) == 1
    assert put(store, path("/w/new", created=950, **partition)) == 1, "the one before is that of an object that is gone"


def test_due_items_come_by_time_each_once_whatever_changes_meanwhile(store: ItemStore) -> None:
    put(store, *(path(f"/w/t/{number}", created=number % 7) for number in range(50)))
    put(store, path("/w/later", created=DAY), path("/w/t", lifecycle=EXPIRED, created=0))
    seen: list[Item] = []
    for page in store.due(DAY + 10, tables=False, page=8):
        seen += page
        with store.transaction() as work:
            ended = {"status": DELETED, "attempts": 1, "begun": 1, "ended": 2, "modified": DAY}
            writing.settle_each(work, [msgspec.structs.replace(one, **ended) for one in page[::2]])
    assert len({one.id for one in seen}) == len(seen) == 50
    assert [one.cleanup for one in seen] == sorted(one.cleanup for one in seen)
    assert [one.place for page in store.due(DAY + 10, tables=True) for one in page] == ["/w/t"]


@pytest.mark.parametrize("name", ["t", "t" * (HEAD - 4), "t" * (HEAD - 3), "t" * (HEAD - 2), "t" * (HEAD + 50), "ü%_"])
def test_what_waits_below_a_path_is_found(store: ItemStore, name: str) -> None:
    above = f"/w/{name}"
    put(store, path(above), path(f"{above}/in/it", created=10), path(f"{above}2/beside", created=10), path(f"{above}!"))
    items = {one.place: one for one in store.find()}
    asked = [items[above], items[f"{above}!"]]
    assert store.waiting_below(asked, DAY + 5) == {items[above].id: f"file:{above}/in/it"}
    assert store.waiting_below(asked, DAY + 50) == {}, "it is due itself"


def test_a_rename_takes_items_and_paths_that_moved_along(store: ItemStore) -> None:
    put(store, path("/w/t/p=1", lifecycle=EXPIRED, partition="p=1"), path("/w/t/old"), path("/w/tt/old"))
    with store.transaction() as work:
        assert writing.follow(work, ("d", "t", None), ("e", "u", None), ("file:/w/t", "file:/x/u"), 5) == 3
    found = {(one.db, one.table, one.partition, one.path) for one in store.find()}
    assert found == {
        ("e", "u", "p=1", "file:/x/u/p=1"),
        ("e", "u", "", "file:/x/u/old"),
        ("e", "u", "", "file:/w/tt/old"),
    }
    assert put(store, path("/x/u/p=1", lifecycle=EXPIRED, partition="p=1", db="e", table="u")) == 0, "the same item"


def test_old_items_are_forgotten_when_they_have_ended(store: ItemStore) -> None:
    put(store, path("/w/a"), path("/w/b"))
    with store.transaction() as work:
        writing.disable(work, "d", "t", UNREFERENCED, "no more", 100)
        writing.put(work, [path("/w/c")], P1D)
        assert writing.forget(work, 100) == 0
        assert writing.forget(work, 101) == 2
    assert [one.place for one in store.find()] == ["/w/c"]


# ---- without a store ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("P3D", "1970-01-04T00:00:00Z"),
        ("p2w", "1970-01-15T00:00:00Z"),
        ("PT36H", "1970-01-02T12:00:00Z"),
        ("P1Y2M3DT4H5M6S", "1971-03-04T04:05:06Z"),
        ("PT1.5S", "1970-01-01T00:00:01Z"),
        ("+P1D", "1970-01-02T00:00:00Z"),
        ("P-1DT48H", "1970-01-02T00:00:00Z"),
        ("P999999Y", "9999-12-31T23:59:59Z"),
    ],
)
def test_periods_are_read_as_java_reads_them(text: str, end: str) -> None:
    period = parse_period(text)
    assert period.is_positive and iso(period.end(0)) == end


@pytest.mark.parametrize(
    "text", ["", "3", "P", "P3", "P3Q", "P1M2Y", "T3H", "P1DT", "P1.5D", " P1D", "P1D ", "PT", "1D", "P١D", "P1D2W"]
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_period(text)


@pytest.mark.parametrize("text", ["PT0S", "P0D", "-P3D", "P-1D", "P1DT-24H"])
def test_periods_that_leave_no_time_are_no_positive_ones(text: str) -> None:
    assert not parse_period(text).is_positive


def test_the_end_of_a_month_clamps() -> None:
    leap = 1706659200  # 2024-01-31
    assert iso(parse_period("P1M").end(leap)) == "2024-02-29T00:00:00Z"
    assert iso(parse_period("P1MT12H").end(leap)) == "2024-02-29T12:00:00Z"


@given(st.integers(0, 2_000_000_000), st.integers(0, 5000), st.integers(0, 100_000))
def test_fixed_periods_are_as_long_as_they_say(moment: int, days: int, seconds: int) -> None:
    period = parse_period(f"P{days}DT{seconds}S")
    assert period.fixed is not None and period.end(moment) == moment + period.fixed


def test_properties_as_owners_write_them() -> None:
    def settings(kind: str = "MANAGED_TABLE", **given: str) -> Any:
        names = {
            "u": "beekeeper.remove.unreferenced.data",
            "up": "beekeeper.unreferenced.data.retention.period",
            "e": "beekeeper.remove.expired.data",
            "ep": "beekeeper.expired.data.retention.period",
            "w": "beekeeper.hive.event.whitelist",
            "d": "beekeeper.expired.data.table.deletion.enabled",
        }
        parameters = {names.get(key, key): value for key, value in given.items()}
        return read_settings(Table(db="d", name="t", kind=kind, parameters=parameters), LifecycleDefaults())

    both = settings(u="TRUE", e=" true ")
    assert (both.unreferenced.text, both.expired.text, both.events) == ("P3D", "P30D", DEFAULT_EVENTS)
    assert not both.drops_table and not both.problems
    assert settings(u="true", w="Drop_Table, , nonsense").events >= {"drop_table"}
    assert not settings(u="true", w="").events & DEFAULT_EVENTS
    assert settings(up="P9D").unreferenced is None and settings(u="false", up="nonsense").problems == {}
    assert set(settings(u="yes", e="true").problems) == {UNREFERENCED}
    assert set(settings(e="true", ep="P", u="true").problems) == {EXPIRED}
    assert set(settings(e="true", d="maybe").problems) == {EXPIRED}
    assert set(settings(e="true", table_type="ICEBERG").problems) == {EXPIRED}
    assert set(settings(e="true", u="true", transactional="true").problems) == {UNREFERENCED}
    assert settings(kind=VIEW, e="true", u="true").expired is None
