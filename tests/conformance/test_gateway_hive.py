"""The gateway before metastores of Hive 3 and 4: their own calls that drop, sent by bindings of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateways import FILES, Guarded, contents, guarded
from hive_metastore import ThriftHiveMetastore, ttypes
from lab import Lab
from plain_tables import PlainDatabase
from raw_thrift import struct
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from replicator.metastore.embedded.running import Running

Hives = Callable[..., Running]
PURGE = ttypes.EnvironmentContext(properties={"ifPurge": "true"})


@contextmanager
def bindings(uri: str) -> Iterator[Any]:
    """A client of Hive 4's interface that is not ours."""
    transport = TBufferedTransport(TSocket("127.0.0.1", int(uri.rpartition(":")[2])))
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def partitions_request(db: str, *names: str) -> Any:
    parts = ttypes.RequestPartsSpec(names=list(names))
    return ttypes.DropPartitionsRequest(
        dbName=db, tblName="parts", parts=parts, deleteData=True, catName="hive", environmentContext=PURGE
    )


def drops(guard: Guarded, client: Any, hive: str) -> Iterator[tuple[str, Callable[[], Any], set[str]]]:
    """(table to make, call, what it takes)."""
    db, raw = guard.db, guard.call
    yield "t1", lambda: client.drop_table(f"@hive#{db}", "t1", True), {"t1/one", "t1/two"}
    yield "t2", lambda: client.drop_table_with_environment_context(db, "t2", True, PURGE), {"t2/one", "t2/two"}
    part = "parts/p={}/f".format
    yield "", lambda: client.drop_partition(db, "parts", ["a"], True), {part("a")}
    yield "", lambda: client.drop_partition_by_name(f"@hive#{db}", "parts", "p=b", True), {part("b")}
    yield "", lambda: client.drop_partitions_req(partitions_request(db, "p=c", "p=d")), {part("c"), part("d")}
    if hive > "4":
        table = struct({1: "hive", 2: db, 3: "t3", 4: True, 6: True})
        yield "t3", lambda: raw("drop_table_req", table), {"t3/one", "t3/two"}
        partition = struct({1: "hive", 2: db, 3: "parts", 4: "p=e", 6: True})
        yield "", lambda: raw("drop_partition_req", partition), {part("e")}
        some = ttypes.TruncateTableRequest(dbName=f"@hive#{db}", tableName="parts", partNames=["p=g"])
        yield "", lambda: client.truncate_table_req(some), {part("g")}
        whole = ttypes.TruncateTableRequest(dbName=db, tableName="t4")
        yield "t4", lambda: client.truncate_table_req(whole), {"t4/one", "t4/two"}
    yield "t5", lambda: client.truncate_table(db, "t5", None), {"t5/one", "t5/two"}


@pytest.mark.parametrize("hive", ["3.1", pytest.param("4.0", marks=pytest.mark.long), "4.2"])
def test_what_newer_calls_drop_is_kept(hives: Hives, tmp_path: Path, hive: str) -> None:
    with guarded(hives(hive), tmp_path) as guard, bindings(guard.uri) as client:
        guard.database.partitioned("parts", {value: {"f": value} for value in "abcdefgh"})
        for table, call, taken in drops(guard, client, hive):
            if table:
                guard.database.table(table, FILES)
            before = guard.taken().keys()
            call()
            assert guard.taken().keys() - before == taken
            assert not table or contents(guard.place(table)) == {}
        events = guard.events()
        assert {event for _, event in guard.entries()} <= set(events) and guard.is_settled()
        assert contents(guard.place("parts")) == {
            f"p={value}/f": value for value in "fh" + ("eg" if hive < "4" else "")
        }


@pytest.mark.parametrize("hive", ["3.1", "4.0", "4.2"])
def test_what_cannot_be_protected_is_refused_and_the_rest_passes(hives: Hives, tmp_path: Path, hive: str) -> None:
    with guarded(hives(hive), tmp_path) as guard, bindings(guard.uri) as client:
        db = guard.db
        catalog = ttypes.Catalog(name=f"other{db}", locationUri=f"file:{tmp_path}/other")
        client.create_catalog(ttypes.CreateCatalogRequest(catalog))
        guard.database.table("t", FILES)
        with pytest.raises(TApplicationException, match="cannot protect"):
            client.drop_catalog(ttypes.DropCatalogRequest(f"other{db}"))
        with pytest.raises(ttypes.MetaException, match="in catalog other"):
            client.drop_table(f"@other{db}#{db}", "t", True)
        request = ttypes.DropPartitionsRequest(
            dbName=db, tblName="t", parts=ttypes.RequestPartsSpec(names=["p=a"]), catName=f"other{db}"
        )
        with pytest.raises(ttypes.MetaException, match="in catalog other"):
            client.drop_partitions_req(request)
        assert contents(guard.place("t")) == FILES and guard.taken() == {}
        assert f"other{db}" in client.get_catalogs().names
        if hive > "4":
            table = client.get_table_req(ttypes.GetTableRequest(dbName=db, tblName="t")).table
            table.tableName = "renamed"
            client.alter_table_req(ttypes.AlterTableRequest(dbName=db, tableName="t", table=table))
            table.tableName, table.sd.location = "new", f"file:{guard.database.home}/new"
            client.create_table_req(ttypes.CreateTableRequest(table=table))
        else:
            table = client.get_table(db, "t")
            table.tableName = "renamed"
            client.alter_table(db, "t", table)
        assert contents(home_of(guard.database, "renamed")) == FILES and guard.taken() == {}


@pytest.mark.parametrize("hive", ["4.0", "4.2"])
def test_a_database_dropped_by_a_request_is_kept_table_by_table(hives: Hives, tmp_path: Path, hive: str) -> None:
    with guarded(hives(hive), tmp_path) as guard, bindings(guard.uri) as client:
        guard.database.table("t", FILES)
        guard.database.partitioned("parts", {"a": {"f": "a"}})
        request = ttypes.DropDatabaseRequest(
            name=guard.db, catalogName="hive", ignoreUnknownDb=False, deleteData=True, cascade=True
        )
        client.drop_database_req(request)
        assert guard.taken().keys() == {"t/one", "t/two", "parts/p=a/f"}
        assert guard.db not in guard.direct.database_names() and not guard.database.home.exists()
        other, homes = f"other{guard.db}", [tmp_path / "external", tmp_path / "managed"]
        places = {"locationUri": f"file:{homes[0]}", "managedLocationUri": f"file:{homes[1]}"}
        client.create_database(ttypes.Database(other, parameters={}, **places))
        assert homes[1].is_dir()
        client.drop_database(other, True, True)
        assert not any(home.exists() for home in homes)


def home_of(database: PlainDatabase, name: str) -> Path:
    storage = database.metastore.table(database.name, name).storage
    assert storage and storage.location
    return Path(storage.location.removeprefix("file:"))


def test_drops_on_4_2_are_replicated_with_their_bytes(hives: Hives, tmp_path: Path) -> None:
    """All between two captures: what is loaded at a moment before a drop has the files that the drop took."""
    fixture = Lab(hives("4.2"), hives("4.2", "target"), tmp_path)
    source: PlainDatabase = fixture.source
    source.create()
    source.table("t", FILES)
    source.table("emptied", FILES)
    source.partitioned("parts", {"a": {"f": "first a"}, "b": {"f": "b"}})
    fixture.bootstrap()
    with guarded(hives("4.2"), tmp_path, cmroot=fixture.cmroot) as guard, bindings(guard.uri) as client:
        source.add("parts", {"x": {"f": "A"}})
        source.table("young", {"f": "young"})
        made = source.metastore.current_event_id()
        client.drop_partitions_req(
            ttypes.DropPartitionsRequest(
                dbName=fixture.name, tblName="parts", parts=ttypes.RequestPartsSpec(names=["p=x"]), deleteData=True
            )
        )
        source.add("parts", {"x": {"f": "B"}})
        client.drop_table(fixture.name, "young", True)
        client.truncate_table_req(ttypes.TruncateTableRequest(dbName=fixture.name, tableName="emptied"))
        first = fixture.last
        dumped = fixture.dump("--until", str(made), since=first)
        assert dumped.code == 0, dumped
        loaded = fixture.load()
        assert (loaded.code, loaded.output["missing"]) == (0, []), loaded
        target = fixture.target
        parts, young, emptied = (home_of(target, name) for name in ("parts", "young", "emptied"))
        assert contents(young) == {"f": "young"} and contents(emptied) == FILES
        assert (parts / "p=x/f").read_text() == "A"
        fixture.catch_up()
        assert (parts / "p=x/f").read_text() == "B" and contents(emptied) == {}
        assert "young" not in target.metastore.table_names(fixture.name)
        assert guard.entries() == [], "the capture has recorded them"
