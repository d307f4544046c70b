"""Many small tables of a real metastore, read side by side: calls counted by a proxy before the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from counting_proxy import CountingProxy, counting
from metastores import MetastoreFactory
from plain_tables import KEYS, PlainDatabase, plain_database, text_storage
from waiting import CEILING

import replicator
from replicator.core.model import Partition
from replicator.errors import MetastoreUnreachable, ObjectNotFound
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore import traffic
from replicator.metastore.client import PARTITION_BATCH
from replicator.metastore.concurrency import side_by_side
from replicator.metastore.connection import limit_metastores
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.metastore.traffic import Limit, Width

TABLES, PARTITIONS = 60, 3


@pytest.fixture(scope="module")
def many(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainDatabase]:
    """TABLES tables of PARTITIONS partitions, a file each, and a plain one."""
    with plain_database(source_metastore.uri, "many", tmp_path_factory.mktemp("many")) as db:
        for number in range(TABLES):
            files = {str(value): {"f": f"{number} {value}"} for value in range(PARTITIONS)}
            db.partitioned(f"t{number:03}", files)
        db.table("plain", {"f": "x"})
        yield db


@pytest.fixture
def large(source_metastore: Running, tmp_path: Path) -> Iterator[PlainDatabase]:
    with plain_database(source_metastore.uri, "large", tmp_path) as db:
        yield db


def _add(db: PlainDatabase, table: str, count: int) -> None:
    """So many partitions at one place, which the server need not make."""
    place = db.home / "one"
    place.mkdir(exist_ok=True)
    db.table(table, partition_keys=KEYS)
    for start in range(0, count, PARTITION_BATCH):
        made = [Partition(values=(f"{n:05} ü/",), storage=text_storage(place)) for n in range(start, count)]
        db.metastore.add_partitions(db.name, table, made[:PARTITION_BATCH])


@pytest.mark.parametrize(
    "count",
    [0, 1, PARTITION_BATCH, PARTITION_BATCH + 1, pytest.param(2 * PARTITION_BATCH + 10, marks=pytest.mark.long)],
)
def test_all_partitions_are_those_by_name(large: PlainDatabase, count: int) -> None:
    _add(large, "t", count)
    client, names = large.metastore, large.metastore.partition_names(large.name, "t")
    by_name = [each for batch in client.partitions(large.name, "t", names) for each in batch]
    found = [each for batch in client.all_partitions(large.name, "t") for each in batch]
    assert len(found) == count and sorted(found, key=repr) == sorted(by_name, key=repr)
    few = client.few_partitions(large.name, "t")
    assert (few is None) == (count > PARTITION_BATCH)
    assert few is None or sorted(few, key=repr) == sorted(by_name, key=repr)


def test_a_table_that_is_not_there_is_told(large: PlainDatabase) -> None:
    for read in (lambda: list(large.metastore.all_partitions(large.name, "no")), lambda: _few(large, "no")):
        with pytest.raises(ObjectNotFound):
            read()


def _few(db: PlainDatabase, table: str) -> object:
    return db.metastore.few_partitions(db.name, table)


def test_a_server_that_limits_partitions_of_a_call_gives_no_fewer(
    metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    server = metastore_factory("limited", settings={"hive.metastore.limit.partition.request": "3"})
    with connect(server.uri) as client:
        db = PlainDatabase(client, "limited", tmp_path)
        db.create()
        db.partitioned("t", {str(value): {"f": "x"} for value in range(5)})
        assert sum(len(batch) for batch in client.all_partitions(db.name, "t")) == 5
        few = client.few_partitions(db.name, "t")
        assert few is None or len(few) == 5
        captured = replicator.capture(source=server.uri, cmroot=str(tmp_path / "cm"), db=db.name)
        assert captured.files == 5


# ---- walks ----------------------------------------------------------------------------------------------------------


def test_a_small_table_takes_one_call(many: PlainDatabase, tmp_path: Path) -> None:
    with counting(many.metastore.uri) as proxy:
        captured = replicator.capture(source=proxy.uri, cmroot=str(tmp_path / "cm"), db=many.name)
        calls = proxy.count()
    assert captured.files == TABLES * PARTITIONS + 1
    assert calls["get_partitions"] <= TABLES + 1 and not calls["get_partition_names"]
    assert calls["get_all_tables"] == 1  # what was just walked is not compared again
    assert sum(calls.values()) - _constraints(calls) <= TABLES + 30


def _constraints(calls: Counter[str]) -> int:
    """One call for each table, and one for a database."""
    return calls["get_primary_keys"] + calls["get_all_table_constraints"]


def test_a_verify_asks_both_sides_once_for_a_small_table(
    many: PlainDatabase, target_metastore: Running, tmp_path: Path
) -> None:
    out = str(tmp_path / "dump")
    replicator.dump(source=many.metastore.uri, cmroot=str(tmp_path / "cm"), db=many.name, out=out)
    replicator.load(out, target=target_metastore.uri, target_cmroot=str(tmp_path / "tcm"))
    with counting(many.metastore.uri) as here, counting(target_metastore.uri) as there:
        found = replicator.verify(source=here.uri, target=there.uri, db=many.name)
        assert (found.status, found.objects) == ("same", 1 + TABLES * (1 + PARTITIONS) + 1)
        for proxy in (here, there):
            calls = proxy.count()
            assert calls["get_partitions"] <= TABLES + 1 and not calls["get_partition_names"]
            assert sum(calls.values()) - _constraints(calls) <= TABLES + 30


def test_a_verify_reads_both_sides_at_the_same_time(
    many: PlainDatabase, target_metastore: Running, tmp_path: Path
) -> None:
    """The first call for partitions of each side is answered when the other side was asked, too."""
    rename = {many.name: f"{many.name}_copy"}
    out = str(tmp_path / "dump")
    replicator.dump(source=many.metastore.uri, cmroot=str(tmp_path / "cm"), db=many.name, out=out)
    replicator.load(out, target=target_metastore.uri, target_cmroot=str(tmp_path / "tcm"), rename_db=rename)
    meeting, met = threading.Barrier(2), list[int]()
    with counting(many.metastore.uri) as here, counting(target_metastore.uri) as there:
        limit_metastores([(proxy.uri, Limit(connections=1)) for proxy in (here, there)])
        for proxy in (here, there):

            def meet(call: str, proxy: CountingProxy = proxy) -> None:
                if call == "get_partitions":
                    proxy.before = lambda _: None
                    with suppress(threading.BrokenBarrierError):
                        met.append(meeting.wait(timeout=CEILING))

            proxy.before = meet
        found = replicator.verify(source=here.uri, target=there.uri, db=many.name, rename_db=rename)
        assert found.status == "same"
        assert (here.busiest, there.busiest, sorted(met)) == (1, 1, [0, 1])


def test_many_connections_and_one_write_the_same_log(
    many: PlainDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many calls at once bring something is `test_width`'s. Here the first eight wait for each other."""
    monkeypatch.setattr(traffic, "Width", lambda: Width(8))
    meeting, comers = threading.Barrier(8), iter(range(8))

    def meet(call: str) -> None:
        if call == "get_partitions" and next(comers, None) is not None:
            meeting.wait(timeout=CEILING)

    with counting(many.metastore.uri) as proxy:
        proxy.before = meet
        replicator.capture(source=proxy.uri, cmroot=str(tmp_path / "wide"), db=many.name)
        assert next(comers, None) is None and not meeting.broken
        proxy.forget()
        limit_metastores([(proxy.uri, Limit(connections=1))])
        replicator.capture(source=proxy.uri, cmroot=str(tmp_path / "narrow"), db=many.name)
        assert proxy.busiest == 1
    assert _records(tmp_path / "wide") == _records(tmp_path / "narrow")


def _records(root: Path) -> list[tuple[int, str]]:
    """What each record says, in the order of the log."""
    return [(each.position, repr(each.change)) for each in replicator.show(str(root)).records()]


def test_a_table_that_goes_away_takes_no_other_from_the_living_references(large: PlainDatabase) -> None:
    for name in ("a", "b", "c"):
        large.partitioned(name, {"1": {"f": "x"}})
    with counting(large.metastore.uri) as proxy, connect(proxy.uri) as client, LiveLocations(client) as live:

        def drop(call: str) -> None:
            if call in ("get_partitions", "get_partition_names"):
                proxy.before = lambda _: None
                large.metastore.drop_table(large.name, "a")

        proxy.before = drop
        assert [live.partitions(large.name, name) for name in ("a", "b", "c")] == [0, 1, 1]


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_the_first_error_is_the_last_call(many: PlainDatabase) -> None:
    client, begun = many.metastore, list[str]()

    def read(name: str) -> object:
        begun.append(name)
        return client.table(many.name, name if name != "t007" else "no such table")

    names = [f"t{number:03}" for number in range(TABLES)]
    with pytest.raises(ObjectNotFound, match="no such table"):
        list(side_by_side(client.traffic, read, names))
    assert len(begun) < TABLES


def test_a_caller_that_stops_leaves_no_thread(many: PlainDatabase) -> None:
    client = many.metastore
    walk = side_by_side(client.traffic, client.database, [many.name] * 1000)
    assert next(walk).name == many.name
    walk.close()
    _wait_for_readers()


def test_a_server_that_hangs_holds_no_interrupted_walk(many: PlainDatabase) -> None:
    with counting(many.metastore.uri) as proxy, connect(proxy.uri) as client:
        walk = side_by_side(client.traffic, client.database, [many.name] * 1000)
        assert next(walk).name == many.name
        proxy.stalled = True
        walk.close()  # as an interruption does
        client.close()
        _wait_for_readers()  # the server answers none of them
        proxy.stalled = False


def test_a_call_that_is_still_connecting_ends_when_its_client_is_closed(many: PlainDatabase) -> None:
    with counting(many.metastore.uri) as proxy:
        client, closed = ThriftMetastore(proxy.uri, retries=0), threading.Event()

        def close(_: str) -> None:
            if not closed.is_set():
                closed.set()
                client.close()

        proxy.before = close  # at the greeting, before there is a connection
        with pytest.raises(MetastoreUnreachable):
            client.database(many.name)
        assert client.database(many.name).name == many.name  # a later call opens a new one
        client.close()


def _wait_for_readers() -> None:
    for each in threading.enumerate():
        if each.name.startswith("read_"):
            each.join(timeout=CEILING)
            assert not each.is_alive()


def test_a_server_that_goes_away_ends_a_walk_with_its_error(many: PlainDatabase) -> None:
    proxy = CountingProxy(many.metastore.uri)
    client = ThriftMetastore(proxy.uri, retries=1)
    with proxy:
        walk = side_by_side(client.traffic, client.database, [many.name] * 1000)
        assert next(walk).name == many.name
    with pytest.raises(MetastoreUnreachable):
        list(walk)
