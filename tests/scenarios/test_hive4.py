"""Every command between two metastores of Hive 4.2, whose tables a server has made external by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from engines import client_of_hive_4
from gateways import FILES, contents, guarded
from hive_objects import FULL_ACID, INSERT_ONLY, hive_client
from lab import Lab
from lost_primary import lose, nobody
from plain_tables import PlainDatabase
from raw_thrift import struct
from waiting import eventually

from replicator.core.model import Column, Serde, Storage, Table
from replicator.metastore.embedded.running import Running

PARQUET = "org.apache.hadoop.hive.ql.io.parquet"


@pytest.fixture
def pair(hives: Callable[..., Running], tmp_path: Path) -> Lab:
    pair = Lab(hives("4.2", "source"), hives("4.2", "target"), tmp_path)
    pair.db("a").table("t", {"first": "1\x01one\n"})
    pair.db("a").partitioned("days", {"1": {"x": "1\x01one\n"}, "2": {"x": "2\x01two\n"}})
    return pair


def by_policy(pair: Lab, verb: str, *more: str) -> Answer:
    return command("--config", str(pair.config()), *verb.split(), *more)


def parquet(database: PlainDatabase, name: str, rows: dict[str, pa.Array], **parameters: str) -> None:
    """A table of one file."""
    types = {"int64": "bigint", "string": "string"}
    data = pa.table(rows)
    columns = tuple(Column(each.name, types[str(each.type)]) for each in data.schema)
    serde = Serde(library=f"{PARQUET}.serde.ParquetHiveSerDe")
    formats = {f"{kind}_format": f"{PARQUET}.Mapred{kind.title()}Format" for kind in ("input", "output")}
    place = database.home / name
    storage = Storage(columns=columns, location=f"file:{place}", serde=serde, **formats)
    database.metastore.create_table(Table(db=database.name, name=name, storage=storage, parameters=parameters))
    pq.write_table(data, place / "part-0.parquet")


def test_sync_verify_and_repair(pair: Lab) -> None:
    assert by_policy(pair, "sync", pair.name).code == 0
    a = pair.db("a")
    assert a.metastore.table(a.name, "t").is_external, "a server of Hive 4 makes a managed table external"
    a.rename("days", "weeks")
    a.add("weeks", {"3": {"x": "3\x01three\n"}})
    a.drop_partitions("weeks", ["1"])
    a.alter("t", note="new")
    done = by_policy(pair, "sync", pair.name)
    assert (done.code, done.output["kind"]) == (0, "incremental")
    pair.are_same()
    same = by_policy(pair, "verify", pair.name)
    assert (same.code, same.output["status"]) == (0, "same")
    (pair.replica().home / "t" / "first").write_text("damaged")
    assert by_policy(pair, "verify", pair.name).code == 4
    assert by_policy(pair, "repair", pair.name).code == 0
    assert by_policy(pair, "verify", pair.name).code == 0
    a.drop("t")
    assert by_policy(pair, "sync", pair.name).code == 0
    assert "t" not in pair.target.metastore.table_names(a.name)


def test_tables_lie_where_a_server_puts_their_database(hives: Callable[..., Running], tmp_path: Path) -> None:
    """In a server's own warehouse it takes no other place than its own: the first load and later ones heed it."""
    source, target = hives("4.2", "source"), hives("4.2", "target")
    fixture = Lab(source, target, tmp_path, warehouse=target.warehouse / "below")
    fixture.source.create()
    fixture.source.table("t", {"first": "1"})
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    fixture.source.table("late", {"first": "2"})
    assert (fixture.dump(since=fixture.last).code, fixture.load().code) == (0, 0)
    home = fixture.target.metastore.database(fixture.name).location
    assert home and home != f"file:{fixture.target.home}", "asked for, and not what the server gives"
    assert not fixture.target.home.exists()
    for name, text in (("t", "1"), ("late", "2")):
        place = fixture.target.metastore.table(fixture.name, name).location
        assert place == f"{home}/{name}"
        assert Path(place.removeprefix("file:"), "first").read_text() == text


def test_a_gateway_keeps_what_a_truncation_takes(hives: Callable[..., Running], tmp_path: Path) -> None:
    with guarded(hives("4.2", "source"), tmp_path) as guard:
        guard.database.table("t", FILES)
        guard.call("truncate_table_req", struct({1: guard.db, 2: "t"}))
        assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}
        assert contents(guard.place("t")) == {} and guard.place("t").exists() and guard.is_settled()


def test_a_switchover_and_its_way_back(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"second": "2\x01two\n"})
    assert by_policy(pair, "switchover", pair.name).code == 0
    pair.replica().write("t", {"third": "3\x01three\n"})
    pair.replica().rename("days", "weeks")
    assert by_policy(pair, "sync", pair.name).code == 0
    assert (pair.db("a").home / "t" / "third").read_text() == "3\x01three\n"
    pair.are_same()
    assert by_policy(pair, "switchover", pair.name).code == 0
    pair.db("a").write("t", {"fourth": "4\x01four\n"})
    assert by_policy(pair, "sync", pair.name).code == 0
    pair.are_same()


def test_a_failover(pair: Lab) -> None:
    pair.sync()
    lose(pair, nobody())
    assert by_policy(pair, "failover", pair.name).code == 6
    done = by_policy(pair, "failover", pair.name, "--force")
    assert (done.code, done.output["status"]) == (0, "done"), done.output
    assert pair.target.metastore.database(f"{pair.name}_a").parameters["replicator.role"].startswith("primary")


def test_a_drill_asks_spark_with_a_client_of_hive_4(pair: Lab) -> None:
    pair.sync()
    before = pair.replica().everything()
    query = f"SELECT max(b) FROM {pair.name}_a.t"
    done = by_policy(pair, "drill", pair.name, *client_of_hive_4(), "--query", query)
    assert done.code == 0, done.output
    assert pair.replica().everything() == before


def test_a_restore(pair: Lab) -> None:
    event = pair.sync().to_event
    pair.db("a").drop("t")
    pair.db("a").rename("days", "weeks")
    pair.sync()
    done = by_policy(pair, "restore", pair.name, "--to", str(event), "--into", f"{pair.name}_then")
    assert done.code == 0, done.output
    restored = pair.source.metastore.database(f"{pair.name}_then")
    assert sorted(pair.source.metastore.table_names(restored.name)) == ["days", "t"]
    place = pair.source.metastore.table(restored.name, "t").location
    assert place and (Path(place.removeprefix("file:")) / "first").read_text() == "1\x01one\n"


def test_housekeeping(pair: Lab) -> None:
    a = pair.db("a")
    a.alter("days", **{"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "PT1S"})
    more = ("--metastore", pair.source_uri, "--cmroot", str(pair.here / "hk"), "--db", a.name)

    def removed() -> bool:
        done = command("housekeeping", "run", *more)
        assert done.code == 0, done.output
        return not a.metastore.partition_names(a.name, "days")

    eventually(removed)
    assert not list((a.home / "days").rglob("x")) and a.metastore.table(a.name, "days")
    kept = {path.read_text() for path in (pair.here / "hk" / "files").rglob("*") if path.is_file()}
    assert {"1\x01one\n", "2\x01two\n"} <= kept, "what was removed is in the root"


def test_a_purge_reads_plain_and_transactional_tables(pair: Lab, hives: Callable[..., Running]) -> None:
    a = pair.db("a")
    descriptor = {"dataset.descriptor": '{"privacy": {"column": "id"}}'}
    parquet(a, "people", {"id": pa.array(range(100)), "v": pa.array([f"v{id}" for id in range(100)])}, **descriptor)
    parquet(a, "gone", {"member": pa.array([3, 5])})
    with hive_client(hives("4.2")) as client:
        for name, parameters in (("full", FULL_ACID), ("inserts", INSERT_ONLY)):
            client.table(a.name, name, parameters | descriptor)
    ask = (
        *("purge", "run", "--metastore", pair.source_uri, "--cmroot", str(pair.here / "purge")),
        *("--ids", f"{a.name}.gone:member", "--table-whitelist", a.name, "--field-path", "privacy.column"),
    )
    done = command(*ask, *client_of_hive_4())
    assert (done.code, done.output["rows_erased"]) == (3, 2), done.output
    assert {gap["table"].split(".")[1] for gap in done.output["gaps"]} == {"days", "t"}  # not described
    assert {each["table"].split(".")[1] for each in done.output["tables"]} == {"full", "inserts", "people"}
    place = a.metastore.table(a.name, "people").location
    assert place
    rows = pq.read_table(place.removeprefix("file:")).column("id").to_pylist()
    assert sorted(rows) == [id for id in range(100) if id not in (3, 5)]
