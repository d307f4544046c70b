"""Fast replay: what many events say one by one is committed in few calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from lab import Lab
from metastores import MetastoreFactory

from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import Partition, Table
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.metastore.concurrency import RETRY_INTERVAL, locks_event_ids, may_write_at_once
from replicator.metastore.connection import limit_metastores
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.metastore.traffic import Limit
from replicator.policies.run import Remembering, sync_once
from replicator.replay.squash import Called, Lineage, Named, gathered


def lineage(name: str) -> Lineage:
    return Lineage(before=("db", name), names=[Called(0, "db", name, None)])


def named(*numbers: int) -> Named:
    return [(f"p={number}", Partition(values=(str(number),))) for number in numbers]


def test_partitions_of_many_records_come_in_full_batches_and_in_their_order() -> None:
    one, other = lineage("one"), lineage("other")
    stream = [pair for number in range(10) for pair in ((one, named(number)), (other, named(number)))]
    batches = [(table.names[0].table, [name for name, _ in some]) for table, some in gathered(stream, size=4)]
    in_order = [f"p={number}" for number in range(10)]
    assert [len(some) for _, some in batches] == [4, 4, 4, 4, 2, 2]
    for table in ("one", "other"):
        assert [name for called, some in batches if called == table for name in some] == in_order


def test_a_record_of_more_than_a_batch_is_cut_and_nothing_waits_beyond_the_bound() -> None:
    assert [len(some) for _, some in gathered([(lineage("t"), named(*range(10)))], size=4)] == [4, 4, 2]
    taken: list[int] = []

    def stream() -> Iterator[tuple[Lineage, Named]]:
        for number in range(6):
            taken.append(number)
            yield lineage(str(number)), named(number)

    held = gathered(stream(), size=4, waiting=3)
    next(held)
    assert taken == [0, 1, 2]
    assert len(list(held)) == 5


def test_partitions_added_and_altered_one_by_one_are_committed_together(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    db = pair.db("a")
    db.partitioned("t", {"old": {"f": "1"}})
    db.partitioned("u", {"old": {"f": "1"}})
    pair.sync()
    before = pair.target.metastore.current_event_id()
    for number in range(12):
        for table in ("t", "u"):
            db.add(table, {f"{number:02d}": {"f": str(number)}})
            db.alter_partition(table, f"{number:02d}", note=str(number), totalSize="1")
    db.alter_partition("t", "old", note="altered")
    run = pair.sync()
    assert (run.status, run.records) == ("synced", 49)
    made = Counter((event.type, event.table) for event in pair.target.metastore.next_events(before))
    assert made["ADD_PARTITION", "t"] == made["ADD_PARTITION", "u"] == 1
    pair.are_same("a")


def test_a_range_reads_of_the_target_only_what_it_names(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    """A warehouse has tens of thousands of tables beside the one that changed."""
    pair = Lab(source_metastore, target_metastore, tmp_path)
    db = pair.db("a")
    for name in ("t", "u", "v"):
        db.table(name, {"f": "1"})
    db.function("f")
    pair.sync()
    fetched: list[str] = []
    tables, functions = pair.target.metastore.tables, pair.target.metastore.functions
    pair.target.metastore.tables = lambda db, names: fetched.extend(names) or tables(db, names)  # type: ignore[method-assign]
    pair.target.metastore.functions = lambda db: fetched.append("functions") or functions(db)  # type: ignore[method-assign]
    db.alter("t", note="1")
    db.rename("u", "w")
    pair.sync()
    assert sorted(set(fetched)) == ["t", "t__replicator_swap", "u", "u__replicator_swap", "w", "w__replicator_swap"]
    names = pair.target.metastore.table_names
    pair.target.metastore.table_names = lambda db: fetched.append(db) or names(db)  # type: ignore[method-assign]
    fetched.clear()
    db.function("g")
    pair.sync()
    assert fetched == ["functions"]
    fetched.clear()
    db.alter("t", note="2")
    pair.sync()
    assert set(fetched) <= {"t", "t__replicator_swap"}
    pair.are_same("a")


def test_many_tables_are_made_in_one_call_each_and_read_back_together(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    db = pair.db("a")
    for number in range(30):
        db.table(f"t{number}", {"f": str(number)})
    calls: Counter[str] = Counter()
    for name in ("table", "tables", "create_table", "alter_table"):
        setattr(
            pair.target.metastore, name, partial(_counted, calls, db.name, name, getattr(pair.target.metastore, name))
        )
    limit_metastores([(pair.target_uri, Limit(connections=1))])  # reads and writes wait for each other
    try:
        pair.sync()
    finally:
        limit_metastores([(pair.target_uri, Limit())])
    once = {"create_table": 30, "alter_table": 30}
    assert calls == once | {"tables": 2}, "read together once, and once more when all is done"
    pair.are_same("a")


def _counted(calls: Counter[str], db: str, name: str, call: Callable[..., object], *given: object) -> object:
    """Those about `db`: a load reads the tables of other databases too, of which earlier tests left some."""
    about = given[0].db if isinstance(given[0], Table) else given[0]
    calls[name] += about == db
    return call(*given)


@pytest.mark.long
def test_writers_wait_for_each_other_where_a_server_would_have_one_of_them_sleep(
    source_metastore: Running, metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    racing = metastore_factory("racing", hive="2.3", settings={RETRY_INTERVAL: "2000ms"})
    pair = Lab(source_metastore, racing, tmp_path)
    db = pair.db("a")
    for number in range(40):
        db.partitioned(f"t{number}", {"x": {"f": str(number)}})
    pair.sync()
    pair.are_same("a")
    assert "Retrying HMSHandler" not in racing.log.read_text()
    assert not may_write_at_once(pair.target.metastore)
    assert may_write_at_once(pair.source.metastore)  # which sleeps for milliseconds


@pytest.mark.parametrize("version", ["2.3", "3.1", "4.0", "4.2"])
def test_servers_that_allot_event_ids_in_turn_are_known(version: str, hives: Callable[..., Running]) -> None:
    with connect(hives(version).uri) as metastore:
        assert locks_event_ids(metastore) == (version != "2.3")


def test_a_log_that_is_larger_than_memory_is_captured_page_by_page(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    db = pair.db("a")
    db.partitioned("t", {"old": {"f": "1"}})
    pair.sync()
    before = pair.source.metastore.current_event_id()
    pages: list[int] = []
    for number in range(20):
        db.add("t", {f"{number:02d}": {"f": str(number)}})
    db.drop_partitions("t", ["03", "old"])  # one of them is added on an earlier page
    db.rename("t", "u")
    db.partitioned("t", {"new": {"f": "2"}})
    events = pair.source.metastore.next_events
    pair.source.metastore.next_events = lambda after, limit: pages.append(limit) or events(after, limit)  # type: ignore[method-assign]
    for place in (
        "replicator.metastore.events.notification_log.EVENT_BATCH",
        "replicator.captures.capture.EVENT_BATCH",
    ):
        monkeypatch.setattr(place, 5)
    monkeypatch.setattr("replicator.metastore.events.notification_log.LOOK_BACK", 2)
    written = pair.source.metastore.current_event_id() - before
    run = pair.sync()
    assert written > 20 and (run.status, run.records) == ("synced", written)
    assert len(pages) >= 6 and set(pages) == {5}
    pair.are_same("a")


def test_a_small_increment_does_not_wait_for_spark(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    def never() -> dict[str, str]:
        raise AssertionError("Spark was started")

    pair = Lab(source_metastore, target_metastore, tmp_path)
    db, kept = pair.db("a"), Remembering(pair.policy)
    engines = AutoEngine(LocalEngine(2), SparkEngine("local[2]", environment=never))
    for number in range(3):
        db.partitioned(f"t{number}", {str(each): {"f": str(each)} for each in range(20)})
        run = sync_once(replace(pair.sides(), runtime=Runtime(engines)), remembering=kept)
        assert (run.status, run.files_copied) == ("synced", 20)
    assert engines.start_seconds == 0
