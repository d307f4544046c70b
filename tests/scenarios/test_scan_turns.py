"""Scans of limited time: each looks at some tables, and the next one goes on after them, so that none is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from counting_proxy import counting
from engines import local_runtime
from plain_tables import PlainDatabase, plain_database
from waiting import Clock

import replicator
from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.recording import Captured
from replicator.core.model import ColumnStatistic, Statistics
from replicator.errors import UsageError
from replicator.metastore.concurrency import TABLE_BATCH
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

TABLES = 2 * TABLE_BATCH + 10
SHORT = timedelta(0)  # one batch


@pytest.fixture(scope="module")
def many(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainDatabase]:
    with plain_database(source_metastore.uri, "turns", tmp_path_factory.mktemp("turns")) as db:
        for number in range(TABLES):
            db.table(f"t{number:03}", {"f": "x"})
        yield db


def _changed(root: str, after: int) -> list[str]:
    """Tables that later records are about."""
    records = replicator.show(root).records()
    return sorted({each.change.touched[1] for each in records if each.position > after and each.change.touched})


def test_each_turn_looks_at_other_tables_until_all_were_seen(many: PlainDatabase, tmp_path: Path) -> None:
    """What left no event (files, and on 2.3 statistics) is found when its table's turn comes, once."""
    root = str(tmp_path / "cm")
    replicator.capture(source=many.metastore.uri, cmroot=root, db=many.name)
    changed = ["t000", f"t{TABLE_BATCH + 50}", f"t{TABLES - 1}"]
    for name in changed:
        many.write(name, {"new": "without an event"})
    data = {"2": {"rec": {"1": {"i64": 1}, "2": {"i64": 9}, "3": {"i64": 0}, "4": {"i64": 3}}}}
    columns = (ColumnStatistic(column="a", type="int", data=data),)
    many.metastore.set_table_statistics(Statistics(db=many.name, table=changed[1], columns=columns))
    turns: list[tuple[Captured, list[str]]] = []
    with counting(many.metastore.uri) as proxy:
        for _ in range(4):
            proxy.forget()
            captured = replicator.capture(source=proxy.uri, cmroot=root, scan_time=SHORT)
            assert proxy.count()["get_table_objects_by_name_req"] == 1
            turns.append((captured, _changed(root, captured.first_position - 1)))
    looked = [each.scanned.tables for each, _ in turns if each.scanned]
    assert looked == [TABLE_BATCH, TABLE_BATCH, TABLES - 2 * TABLE_BATCH, TABLE_BATCH]
    assert [found for _, found in turns] == [[changed[0]], [changed[1]], [changed[2]], []]
    since = [each.scanned.since or 0 for each, _ in turns if each.scanned]
    assert since[0] and since == sorted(since)


def test_new_and_dropped_tables_without_events_are_found_in_every_turn(
    forgetful: Callable[..., Running], tmp_path: Path
) -> None:
    root = str(tmp_path / "cm")
    with connect(forgetful().uri) as client:
        db = PlainDatabase(client, "turns", tmp_path / "turns")
        db.create()
        for name in ("gone", "stays"):
            db.table(name, {"f": "x"})
        replicator.capture(source=client.uri, cmroot=root, db=db.name)
    with connect(forgetful(**{"hive.metastore.transactional.event.listeners": ""}).uri) as client:
        db = PlainDatabase(client, "turns", tmp_path / "turns")
        client.drop_table(db.name, "gone")
        db.table("new", {"f": "x"})
    captured = replicator.capture(source=forgetful().uri, cmroot=root, scan_time=SHORT)
    assert _changed(root, captured.first_position - 1) == ["gone", "new"]
    assert captured.scanned is None, "two tables are one batch"


def test_a_paced_scan_takes_a_tenth_of_the_time_since_the_one_before(many: PlainDatabase, tmp_path: Path) -> None:
    """After an hour, all tables; at once, some, until each had its turn. --deep compares all."""
    root, clock = create_or_open(str(tmp_path / "cm")), Clock(1_900_000_000.0)
    last = f"t{TABLES - 1}"

    def paced(**options: Any) -> Captured:
        with connect(many.metastore.uri) as source:
            return capture(
                source, root, CaptureSettings([many.name], paced=True, **options), local_runtime(clock=clock)
            )

    assert paced().scanned is None
    many.write(last, {"newer": "without an event"})
    clock.now += 3600
    later = paced()
    assert later.scanned is None and _changed(root.place, later.first_position - 1) == [last]
    many.write(last, {"newest": "without an event"})
    turns = [paced() for _ in range(TABLES // TABLE_BATCH + 1)]
    assert all(each.scanned is None or each.scanned.tables >= TABLE_BATCH for each in turns)
    assert _changed(root.place, turns[0].first_position - 1) == [last]
    many.write(last, {"deep": "without an event"})
    deep = paced(deep=True)
    assert deep.scanned is None and _changed(root.place, deep.first_position - 1) == [last]


def test_a_time_for_no_scan_is_refused(many: PlainDatabase, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-scan skips it"):
        replicator.capture(
            source=many.metastore.uri, cmroot=str(tmp_path / "cm"), db=many.name, scan=False, scan_time=SHORT
        )
