"""Events of Hive 3.1, 4.0 and 4.2: each kind made by a real call, and read."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engines import local_runtime
from hive_metastore import ttypes
from lab import Lab
from metastores import MetastoreFactory
from newer_calls import newer_client, partition, table

from cmroot.log.captured import segments
from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.manifest import read_records
from replicator.core.model import Database, NotificationEvent
from replicator.core.roles import ROLE
from replicator.errors import NotificationRefused
from replicator.metastore.embedded.running import Running, stop
from replicator.metastore.events import record as kinds
from replicator.metastore.events.notification_log import decode
from replicator.metastore.events.scope import IRRELEVANT, KINDS, NAMED, UnreadEvents, waiting_events
from replicator.metastore.thrift import connect
from replicator.policies.checks.metastores import log_is_on
from replicator.policies.lag import lag
from replicator.policies.status import status

Hives = Callable[..., Running]
Events = Callable[[], list[NotificationEvent]]


class Server:
    """A metastore of one version with a database of its own, and a client of the 4.x interface."""

    def __init__(self, running: Running, client: Any, place: Path) -> None:
        self.uri, self.client, self.place = running.uri, client, f"file:{place}"
        self.version = running.hive
        self.metastore = connect(running.uri)
        self.db = f"db_{uuid.uuid4().hex[:8]}"
        self._cursor = self.metastore.current_event_id()

    def events(self) -> list[NotificationEvent]:
        """Those since the last call."""
        found = self.metastore.next_events(self._cursor)
        self._cursor = found[-1].id if found else self._cursor
        return found

    def transactions(self, count: int) -> None:
        """As so many queries open and end them, one after the other."""
        for _ in range(count):
            opened = self.client.open_txns(ttypes.OpenTxnRequest(num_txns=1, user="u", hostname="h")).txn_ids
            self.client.commit_txn(ttypes.CommitTxnRequest(txnid=opened[0]))


@pytest.fixture(scope="module")
def hives(metastore_factory: MetastoreFactory) -> Hives:
    """Servers of this module alone: it compares all events that a server has."""

    @cache
    def start(hive: str, name: str = "source") -> Running:
        return metastore_factory(f"{name}-{hive}", hive=hive, host="0.0.0.0" if hive == "3.1" else "127.0.0.1")

    return start


@pytest.fixture(params=["3.1", "4.0", "4.2"])
def server(request: pytest.FixtureRequest, hives: Hives, tmp_path: Path) -> Iterator[Server]:
    running = hives(request.param)
    with newer_client(running.uri) as client:
        yield Server(running, client, tmp_path)


def test_each_kind_of_event_is_read(server: Server) -> None:
    client, db, place = server.client, server.db, server.place
    newest = server.version == "4.2"
    client.create_database(ttypes.Database(name=db, locationUri=f"{place}/{db}"))
    client.alter_database(db, ttypes.Database(name=db, locationUri=f"{place}/{db}", parameters={"k": "v"}))
    created, altered = (decode(event).change for event in server.events())
    assert isinstance(created, kinds.CreateDatabase) and created.database.location == f"{place}/{db}"
    assert isinstance(altered, kinds.AlterDatabase) and altered.database.parameters["k"] == "v"

    client.create_table(table(db, "t", f"{place}/t"))
    client.create_table(table(db, "p", f"{place}/p", "d"))
    client.add_partitions([partition(db, "p", f"{place}/p/d={value}", value) for value in "123"])
    assert read(server) == [
        ("CREATE_TABLE", kinds.CreateTable, (db, "t"), ()),
        ("CREATE_TABLE", kinds.CreateTable, (db, "p"), ()),
        ("ADD_PARTITION", kinds.AddPartitions, (db, "p"), ("d=1", "d=2", "d=3")),
    ]

    client.alter_partition(db, "p", partition(db, "p", f"{place}/p/d=1", "1", z="1"))
    two = [partition(db, "p", f"{place}/p/d={value}", value, z=value) for value in "23"]
    client.alter_partitions(db, "p", two)
    client.rename_partition(db, "p", ["3"], partition(db, "p", f"{place}/p/d=4", "4"))
    several = (
        [("ALTER_PARTITIONS", kinds.AddPartitions, (db, "p"), ("d=2", "d=3"))]
        if newest
        else [("ALTER_PARTITION", kinds.AlterPartition, (db, "p"), (f"d={value}",)) for value in "23"]
    )
    assert read(server) == [
        ("ALTER_PARTITION", kinds.AlterPartition, (db, "p"), ("d=1",)),
        *several,
        ("ALTER_PARTITION", kinds.AlterPartition, (db, "p"), ("d=3", "d=4")),
    ]

    spec = ttypes.RequestPartsSpec(names=["d=2"])
    client.drop_partitions_req(ttypes.DropPartitionsRequest(dbName=db, tblName="p", parts=spec, deleteData=False))
    client.drop_partition(db, "p", ["4"], False)
    assert read(server) == [
        ("DROP_PARTITION", kinds.DropPartitions, (db, "p"), ("d=2",)),
        ("DROP_PARTITION", kinds.DropPartitions, (db, "p"), ("d=4",)),
    ]

    renamed = client.get_table_req(ttypes.GetTableRequest(dbName=db, tblName="t")).table
    renamed.tableName = "u"
    client.alter_table(db, "t", renamed)
    for name, values in (("u", None), ("p", ["1"])):
        inserted = ttypes.InsertEventRequestData(filesAdded=[f"{place}/f"], filesAddedChecksum=["c"], replace=True)
        data = ttypes.FireEventRequestData(insertData=inserted)
        client.fire_listener_event(ttypes.FireEventRequest(True, data, dbName=db, tableName=name, partitionVals=values))
    assert read(server) == [
        ("ALTER_TABLE", kinds.AlterTable, (db, "u"), ()),
        ("INSERT", kinds.ChangeFiles, (db, "u"), ()),
        ("INSERT", kinds.ChangeFiles, (db, "p"), ("d=1",)),
    ]

    managed = table(db, "m", f"{place}/m", "d")
    managed.tableType, managed.parameters = "MANAGED_TABLE", {}
    client.create_table(managed)
    client.add_partitions([partition(db, "m", f"{place}/m/d=1", "1")])
    client.truncate_table(db, "m", ["d=1"])
    truncated = ("ALTER_PARTITIONS", kinds.AddPartitions) if newest else ("ALTER_PARTITION", kinds.AlterPartition)
    assert set(read(server)[2:]) == {(*truncated, (db, "m"), ("d=1",))}  # 3.1 and 4.0 say it twice

    function = ttypes.Function("f", db, "x.Y", "o", ttypes.PrincipalType.USER, 1, ttypes.FunctionType.JAVA, [])
    client.create_function(function)
    client.drop_function(db, "f")
    client.drop_table(db, "m", False)
    client.drop_database(db, False, True)
    assert [(kind, change) for kind, change, *_ in read(server)] == [
        ("CREATE_FUNCTION", kinds.CreateFunction),
        ("DROP_FUNCTION", kinds.DropFunction),
        ("DROP_TABLE", kinds.DropTable),
        ("DROP_TABLE", kinds.DropTable),
        ("DROP_TABLE", kinds.DropTable),
        ("DROP_DATABASE", kinds.DropDatabase),
    ]


def read(server: Server) -> list[tuple[str, type[kinds.Change], tuple[str, str] | None, tuple[str, ...]]]:
    """Of each new event: its kind, the change, the table, and partitions."""
    found = []
    for event in server.events():
        change = decode(event).change
        about = change.partition_names or change.written_partitions
        partition = getattr(change, "partition", None)
        if isinstance(change, kinds.ChangeFiles) and partition:
            about = (partition,)
        found.append((event.type, type(change), change.touched, about))
    return found


def test_transactions_and_other_catalogs_are_known_and_no_backlog(server: Server, tmp_path: Path) -> None:
    client, db, place = server.client, server.db, server.place
    client.create_database(ttypes.Database(name=db, locationUri=f"{place}/{db}"))
    root = create_or_open(str(tmp_path / "cmroot"))
    capture(server.metastore, root, CaptureSettings([db]), local_runtime())
    server.events()

    server.transactions(20)
    opened = client.open_txns(ttypes.OpenTxnRequest(num_txns=2, user="u", hostname="h")).txn_ids
    client.create_table(table(db, "t", f"{place}/t"))
    write = ttypes.AllocateTableWriteIdsRequest(dbName=db, tableName="t", txnIds=opened[:1])
    client.allocate_table_write_ids(write)
    client.abort_txn(ttypes.AbortTxnRequest(txnid=opened[0]))
    client.abort_txns(ttypes.AbortTxnsRequest(txn_ids=opened[1:]))
    other = f"c{db}"
    client.create_catalog(ttypes.CreateCatalogRequest(ttypes.Catalog(other, "", f"{place}/{other}")))
    client.create_database(ttypes.Database(name=db, locationUri=f"{place}/{other}/{db}", catalogName=other))
    client.create_table(table(db, "t", f"{place}/{other}/t", catalog=other))
    client.drop_table(f"@{other}#{db}", "t", False)
    client.drop_database(f"@{other}#{db}", False, True)
    client.drop_catalog(ttypes.DropCatalogRequest(other))
    events = server.events()
    assert {"OPEN_TXN", "COMMIT_TXN", "ABORT_TXN", "ALLOC_WRITE_ID_EVENT"} <= {each.type for each in events}
    assert {each.catalog for each in events} >= {other}
    told = [decode(each).change for each in events]
    assert [each.touched for each in told if not each.is_marker] == [(db, "t"), (db, "t")]

    before = events[0].id - 1
    waiting = waiting_events(server.metastore, before, events[-1].id).events
    assert [each.type for each in waiting] == ["CREATE_TABLE", "ALLOC_WRITE_ID_EVENT"]
    captured = capture(server.metastore, root, CaptureSettings([db], scan=False), local_runtime())
    assert (captured.unknown, captured.unknown_kinds, captured.records) == ([], {}, 2)
    assert (captured.events, captured.through_event) == (len(events), events[-1].id)


def test_a_database_that_is_altered_is_recorded_once_and_a_role_never(server: Server, tmp_path: Path) -> None:
    """The event does not tell the catalog, which the server does."""
    client, db, place = server.client, server.db, server.place
    client.create_database(ttypes.Database(name=db, locationUri=f"{place}/{db}"))
    root = create_or_open(str(tmp_path / "cmroot"))
    capture(server.metastore, root, CaptureSettings([db]), local_runtime())
    records = []
    for parameters in ({"k": "v"}, {"k": "v", ROLE: "primary"}, {"k": "v", ROLE: "fenced"}):
        there = server.metastore.database(db)
        server.metastore.alter_database(db, msgspec.structs.replace(there, parameters=parameters))
        captured = capture(server.metastore, root, CaptureSettings([db]), local_runtime())
        records.append((captured.records, captured.observed, captured.events))
    assert records == [(1, 0, 1), (1, 0, 1), (1, 0, 1)]  # of a role the marker
    log = [record.change for segment in segments(root.place) for record in read_records(segment)]
    assert [type(each) for each in log[-3:]] == [kinds.AlterDatabase, kinds.EventsRead, kinds.EventsRead]


def test_an_idle_cluster_with_queries_is_not_behind(hives: Hives, source_metastore: Running, tmp_path: Path) -> None:
    pair = Lab(hives("4.2"), source_metastore, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    pair.sync()
    with newer_client(pair.source_uri) as client:
        Server.transactions(type("One", (), {"client": client})(), 30)  # type: ignore[arg-type]
        found = lag(pair.policy, pair.source.metastore, pair.target.metastore)
        assert (found.status, found.events, found.warnings) == ("current", 0, [])
        shown = status(pair.target.metastore, f"{pair.name}_a", source=pair.source.metastore)
        assert (shown.status, shown.lag_events, shown.lag_seconds) == ("current", 0, 0.0)
        before = pair.source.metastore.current_event_id()
        run = pair.sync()
        assert (run.moved, run.to_event) == (False, before)
        pair.db("a").table("u", {"second": "2"})
        behind = status(pair.target.metastore, f"{pair.name}_a", source=pair.source.metastore)
        assert behind.status == "behind" and 0 < (behind.lag_events or 0) < 5


def test_a_refused_log_says_what_to_grant(metastore_factory: MetastoreFactory) -> None:
    asking = {"hive.metastore.event.db.notification.api.auth": "true"}
    refusing = metastore_factory("refusing", hive="4.2", settings=asking)
    with connect(refusing.uri) as metastore:
        for ask in (metastore.current_event_id, lambda: metastore.next_events(0)):
            with pytest.raises(NotificationRefused, match="does not let this user") as refused:
                ask()
            assert "core-site.xml" in refused.value.hint and "event.db.notification.api.auth" in refused.value.hint
        found = log_is_on(metastore, ["default"])
        assert found.health == "critical" and "hadoop.proxyuser.<user>.hosts" in found.hint
        metastore.create_database(Database(name="granted"))
    user = getpass.getuser()
    granted = {f"hadoop.proxyuser.{user}.hosts": "*", f"hadoop.proxyuser.{user}.groups": "*"}
    stop(refusing.directory)
    granting = metastore_factory(directory=refusing.directory, settings=asking | granted)
    with connect(granting.uri) as metastore:
        assert log_is_on(metastore, ["default"]).health == "ok" and metastore.next_events(0)


def test_unread_events_are_counted_by_kind_and_the_first_are_named() -> None:
    unread = UnreadEvents()
    for number in range(5000):
        unread.add(number, f"NEW_{number % 40}")
    assert unread.first == [f"event {number}: NEW_{number}" for number in range(NAMED)]
    assert len(unread.kinds) == KINDS + 1 and unread.kinds["NEW_0"] == 125 and len(unread) == 5000
    assert len(unread.listed()) == NAMED + 1 and len(unread.listed()[-1]) < 1000
    assert not IRRELEVANT & set(unread.kinds)
