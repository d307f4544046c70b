"""Decoding notification events, and reading the log without passing a hole.

No golden messages: a real 2.3 metastore writes each kind of event, and what is decoded is compared with what the
metastore itself answers. Layouts of newer servers are made of the same objects. (A log that was really cleaned:
test_bad_input.)
"""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hmsclient.genthrift.hive_metastore import ttypes
from hypothesis import given
from hypothesis import strategies as st

from replicator.core.model import Column, Database, Function, NotificationEvent, Partition, Serde, Storage, Table
from replicator.errors import Refused
from replicator.metastore.events import record as kinds
from replicator.metastore.events.notification_log import (
    KEPT_MESSAGE,
    LOOK_BACK,
    MESSAGE_BYTES,
    Decoded,
    decode,
    find_hole,
    read_events,
)
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import comparable
from replicator.metastore.thrift import ThriftMetastore

TEXT = Storage(
    columns=(Column(name="a", type="int", comment="größe 🦆"), Column(name="b", type="map<string,array<int>>")),
    input_format="org.apache.hadoop.mapred.TextInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
    serde=Serde(name="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", parameters={"field.delim": "\t", "x": ""}),
    parameters={"k": 'quote " backslash \\ line\nend'},
)
KEYS = (Column(name="p", type="string"), Column(name="Q", type="int"))


@pytest.fixture
def db(metastore: ThriftMetastore) -> str:
    name = f"db_{uuid.uuid4().hex[:8]}"
    metastore.create_database(Database(name=name))
    return name


@pytest.fixture
def events(metastore: ThriftMetastore) -> Callable[[], list[NotificationEvent]]:
    """Each call: the events since the call before."""
    cursor = [metastore.current_event_id()]

    def newer() -> list[NotificationEvent]:
        found = metastore.next_events(cursor[0])
        cursor[0] = found[-1].id if found else cursor[0]
        return found

    return newer


Events = Callable[[], list[NotificationEvent]]


def decoded(events: Sequence[NotificationEvent], kind: type[Change], type_: str) -> Decoded:
    """The only event, decoded; the same from its packed form."""
    (event,) = events
    assert event.type == type_
    found = decode(event)
    assert isinstance(found.change, kind), found
    assert decode(packed(event)) == found
    return found


def packed(event: NotificationEvent) -> NotificationEvent:
    """As Hive 4 writes it."""
    message = base64.b64encode(gzip.compress((event.message or "").encode())).decode()
    return msgspec.structs.replace(event, message=message, format="gzip(json-2.0)")


def table_of(db: str, *, partitioned: bool = False) -> Table:
    return Table(
        db=db,
        name="t",
        owner="o",
        retention=3,
        storage=TEXT,
        partition_keys=KEYS if partitioned else (),
        parameters={"k": "v", "empty": ""},
    )


def partition_of(*values: str) -> Partition:
    return Partition(values=values, storage=TEXT, parameters={"k": values[0]})


def only(metastore: ThriftMetastore, db: str, name: str) -> Partition:
    (found,) = [each for batch in metastore.partitions(db, "t", [name]) for each in batch]
    return found


def write(location: str | None, name: str = "part-0") -> None:
    place = Path((location or "").removeprefix("file:"))
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("1\n")


# ---- each kind of event -------------------------------------------------------------------------------------------


def test_databases(metastore: ThriftMetastore, events: Events) -> None:
    name = f"db_{uuid.uuid4().hex[:8]}"
    metastore.create_database(Database(name=name, description="größe"))
    found = decoded(events(), kinds.CreateDatabase, "CREATE_DATABASE")
    assert found.change == kinds.CreateDatabase(database=Database(name=name))  # 2.3 tells the name only
    metastore.drop_database(name)
    assert decoded(events(), kinds.DropDatabase, "DROP_DATABASE").change == kinds.DropDatabase(db=name)


def test_tables(metastore: ThriftMetastore, db: str, events: Events) -> None:
    location = f"{metastore.database(db).location}/t"
    write(location)
    metastore.create_table(table_of(db))
    found = decoded(events(), kinds.CreateTable, "CREATE_TABLE")
    assert isinstance(found.change, kinds.CreateTable)
    created = metastore.table(db, "t")
    assert comparable(found.change.table) == comparable(created)
    assert [(file.uri, file.partition) for file in found.files] == [(f"{location}/part-0", None)]

    metastore.alter_table(db, "t", msgspec.structs.replace(created, parameters=created.parameters | {"n": "1"}))
    change = decoded(events(), kinds.AlterTable, "ALTER_TABLE").change
    assert isinstance(change, kinds.AlterTable)
    assert comparable(change.table) == comparable(metastore.table(db, "t"))
    assert (change.name, change.renames, change.moved, change.location_before) == ("t", False, False, location)

    metastore.alter_table(db, "t", msgspec.structs.replace(metastore.table(db, "t"), name="u"))
    change = decoded(events(), kinds.AlterTable, "ALTER_TABLE").change
    assert isinstance(change, kinds.AlterTable)
    assert comparable(change.table) == comparable(metastore.table(db, "u"))
    assert (change.name, change.renames, change.moved, change.location_before) == ("t", True, True, location)

    metastore.drop_table(db, "u")
    assert decoded(events(), kinds.DropTable, "DROP_TABLE").change == kinds.DropTable(db=db, name="u")


def test_views(metastore: ThriftMetastore, db: str, events: Events) -> None:
    view = Table(db=db, name="v", kind="VIRTUAL_VIEW", storage=TEXT, view_original="SELECT 1", view_expanded="SELECT 1")
    metastore.create_table(view)
    change = decoded(events(), kinds.CreateTable, "CREATE_TABLE").change
    assert isinstance(change, kinds.CreateTable)
    assert comparable(change.table) == comparable(metastore.table(db, "v"))


def test_partitions(metastore: ThriftMetastore, db: str, events: Events) -> None:
    metastore.create_table(table_of(db, partitioned=True))
    table = metastore.table(db, "t")
    write(f"{table.location}/p=a%2Fb/q=1")
    events()
    metastore.add_partitions(db, "t", [partition_of("a/b", "1"), partition_of("größe 🦆", "2")])
    found = decoded(events(), kinds.AddPartitions, "ADD_PARTITION")
    assert isinstance(found.change, kinds.AddPartitions)
    names = list(found.change.partition_names)
    assert names == ["p=a%2Fb/q=1", "p=größe 🦆/q=2"] == sorted(metastore.partition_names(db, "t"))
    for name, partition in zip(names, found.change.partitions, strict=True):
        assert comparable(partition) == comparable(only(metastore, db, name))
    assert [(file.uri, file.partition) for file in found.files] == [
        (f"{table.location}/p=a%2Fb/q=1/part-0", "p=a%2Fb/q=1")
    ]
    metastore.add_partitions(db, "t", [partition_of("a/b", "1")])  # nothing new: an event with an empty list
    assert decoded(events(), kinds.ChangeFiles, "ADD_PARTITION").change == kinds.ChangeFiles(db=db, table="t")

    there = only(metastore, db, "p=a%2Fb/q=1")
    metastore.alter_partitions(db, "t", [msgspec.structs.replace(there, parameters={"n": "2"})])
    change = decoded(events(), kinds.AlterPartition, "ALTER_PARTITION").change
    assert isinstance(change, kinds.AlterPartition)
    assert comparable(change.partition) == comparable(only(metastore, db, "p=a%2Fb/q=1"))
    assert (change.before, change.name, change.moved) == ("p=a%2Fb/q=1", "p=a%2Fb/q=1", False)

    metastore.rename_partition(db, "t", ["a/b", "1"], msgspec.structs.replace(there, values=("c=d", "9")))
    change = decoded(events(), kinds.AlterPartition, "ALTER_PARTITION").change
    assert isinstance(change, kinds.AlterPartition)
    assert comparable(change.partition) == comparable(only(metastore, db, "p=c%3Dd/q=9"))
    assert (change.before, change.name, change.moved) == ("p=a%2Fb/q=1", "p=c%3Dd/q=9", True)
    assert change.location_before == there.location

    metastore.drop_partitions(db, "t", ["p=c%3Dd/q=9"])
    change = decoded(events(), kinds.DropPartitions, "DROP_PARTITION").change
    assert change == kinds.DropPartitions(db=db, table="t", names=("p=c%3Dd/q=9",))


def test_inserts(metastore: ThriftMetastore, db: str, events: Events) -> None:
    metastore.create_table(table_of(db, partitioned=True))
    metastore.add_partitions(db, "t", [partition_of("x", "1")])
    events()

    def fire(values: list[str], files: list[str]) -> None:
        inserted = ttypes.InsertEventRequestData(filesAdded=files, filesAddedChecksum=["abc"] * len(files))
        data = ttypes.FireEventRequestData(insertData=inserted)
        request = ttypes.FireEventRequest(True, data, dbName=db, tableName="t", partitionVals=values)
        metastore._change("fire", lambda client: client.fire_listener_event(request))

    fire(["x", "1"], ["file:/w/t/p=x/q=1/f"])
    found = decoded(events(), kinds.ChangeFiles, "INSERT")
    assert found.change == kinds.ChangeFiles(db=db, table="t", partition="p=x/q=1")
    assert [(file.uri, file.checksum) for file in found.files] == [("file:/w/t/p=x/q=1/f", "abc")]
    fire(["x", "1"], [])
    assert decoded(events(), kinds.ChangeFiles, "INSERT").files == ()


def test_functions(metastore: ThriftMetastore, db: str, events: Events) -> None:
    made = Function(
        db=db, name="f", class_name="a.B", owner="o", owner_type="USER", resources=(("JAR", "file:/f.jar"),)
    )
    metastore.create_function(made)
    change = decoded(events(), kinds.CreateFunction, "CREATE_FUNCTION").change
    assert [change] == [kinds.CreateFunction(function=each) for each in metastore.functions(db)]
    metastore.drop_function(db, "f")
    assert decoded(events(), kinds.DropFunction, "DROP_FUNCTION").change == kinds.DropFunction(db=db, name="f")


def test_indexes(metastore: ThriftMetastore, db: str, events: Events) -> None:
    """Hive 2.3 alone has them. They are recorded and never replayed."""
    metastore.create_table(table_of(db))
    sd = metastore._read("table", lambda client: client.get_table(db, "t")).sd
    index = ttypes.Index(
        indexName="i",
        indexHandlerClass="h",
        dbName=db,
        origTableName="t",
        indexTableName="t_i",
        sd=sd,
        parameters={},
        deferredRebuild=True,
        createTime=1,
        lastAccessTime=1,
    )
    own = ttypes.Table(tableName="t_i", dbName=db, sd=sd, tableType="INDEX_TABLE", parameters={}, partitionKeys=[])
    events()
    metastore._change("add", lambda client: client.add_index(index, own))
    found = [decode(each).change for each in events() if each.type == "CREATE_INDEX"]
    assert [(each.db, each.table, each.name) for each in found if isinstance(each, kinds.AlterIndex)] == [
        (db, "t", "i")
    ]
    index.parameters = {"n": "1"}
    metastore._change("alter", lambda client: client.alter_index(db, "t", "i", index))
    found = [decode(each).change for each in events() if each.type == "ALTER_INDEX"]
    assert [(each.db, each.table, each.name) for each in found if isinstance(each, kinds.AlterIndex)] == [
        (db, "t", "i")
    ]
    metastore._change("drop", lambda client: client.drop_index_by_name(db, "t", "i", True))
    found = [decode(each).change for each in events() if each.type == "DROP_INDEX"]
    assert found == [kinds.AlterIndex(db=db, table="t", name="i", index=None)]


# ---- what newer servers write -------------------------------------------------------------------------------------


@pytest.fixture
def objects(metastore: ThriftMetastore, db: str, events: Events) -> dict[str, Any]:
    """A message of ADD_PARTITION: texts of a table and of its partitions."""
    metastore.create_table(table_of(db, partitioned=True))
    metastore.add_partitions(db, "t", [partition_of("x", "1"), partition_of("y", "2")])
    found: dict[str, Any] = json.loads(next(each for each in events() if each.type == "ADD_PARTITION").message or "")
    return found


def newer(type_: str, **message: Any) -> NotificationEvent:
    about = {"server": "", "servicePrincipal": "", "timestamp": 1, **message}
    event = NotificationEvent(id=1, time=1, type=type_, db=message.get("db"), message=json.dumps(about))
    return packed(event)


def test_a_batch_of_altered_partitions_leaves_known_files(objects: dict[str, Any], db: str) -> None:
    texts, table = objects["partitionListJson"], objects["tableObjJson"]
    event = newer(
        "ALTER_PARTITIONS",
        cat="hive",
        db=db,
        table="t",
        tableType="MANAGED_TABLE",
        tableObjJson=table,
        isTruncateOp="false",
        writeId=0,
        partitions=objects["partitions"],
        partitionListJson=texts,
    )
    change = decode(event).change
    assert isinstance(change, kinds.AddPartitions)
    assert (change.partition_names, change.replace) == (("p=x/q=1", "p=y/q=2"), False)


def test_an_insert_with_objects_names_its_partition(objects: dict[str, Any], db: str) -> None:
    event = newer(
        "INSERT",
        db=db,
        table="t",
        tableType="MANAGED_TABLE",
        tableObjJson=objects["tableObjJson"],
        ptnObjJson=objects["partitionListJson"][1],
        replace="true",
        files=["hdfs://n/t/f#sum#hdfs://n/cm#base_1"],
    )
    found = decode(event)
    assert found.change == kinds.ChangeFiles(db=db, table="t", partition="p=y/q=2")
    assert [(file.uri, file.partition, file.checksum) for file in found.files] == [("hdfs://n/t/f", "p=y/q=2", "sum")]


def test_databases_come_whole(db: str) -> None:
    text = json.dumps({"1": {"str": db}, "2": {"str": "größe"}, "4": {"map": ["str", "str", 1, {"k": "v"}]}})
    wanted = Database(name=db, description="größe", parameters={"k": "v"})
    event = newer("ALTER_DATABASE", db=db, dbObjBeforeJson=text, dbObjAfterJson=text)
    assert decode(event).change == kinds.AlterDatabase(database=wanted)
    assert decode(newer("CREATE_DATABASE", db=db, dbJson=text)).change == kinds.CreateDatabase(database=wanted)


def test_null_parameters_and_fields_do_not_disturb(objects: dict[str, Any], db: str) -> None:
    table = json.loads(objects["tableObjJson"])
    table.pop("9")  # parameters
    table.pop("3", None)  # owner
    for name in ("5", "6"):
        table["7"]["rec"].pop(name, None)  # compressed, buckets
    event = newer("CREATE_TABLE", db=db, table="t", tableObjJson=json.dumps(table), files=None)
    change = decode(event).change
    assert isinstance(change, kinds.CreateTable)
    assert (change.table.name, change.table.parameters, change.table.owner) == ("t", {}, None)
    table["9"] = {"map": ["str", "str", 1, {"k": None}]}
    change = decode(newer("CREATE_TABLE", db=db, table="t", tableObjJson=json.dumps(table))).change
    assert isinstance(change, kinds.CreateTable)


def test_a_message_of_tens_of_megabytes(objects: dict[str, Any], db: str) -> None:
    texts = objects["partitionListJson"][:1] * 30_000
    big = newer("ADD_PARTITION", db=db, table="t", tableObjJson=objects["tableObjJson"], partitionListJson=texts)
    change = decode(big).change
    assert isinstance(change, kinds.AddPartitions)
    assert len(change.partitions) == 30_000
    assert sum(map(len, texts)) > 20_000_000


# ---- what cannot be read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        NotificationEvent(id=1, time=1, type="NEW_KIND", db="d", message='{"ids": [1]}', format="json-0.2"),
        NotificationEvent(id=1, time=1, type="CREATE_TABLE", db="d", table="t", message='{"db": "d", '),
        NotificationEvent(id=1, time=1, type="CREATE_TABLE", db="d", table="t", message="{}"),
        NotificationEvent(id=1, time=1, type="CREATE_TABLE", db="d", table="t", message='{"tableObjJson": "[1, 2]"}'),
        NotificationEvent(id=1, time=1, type="CREATE_TABLE", db="d", table="t", message='{"tableObjJson": 7}'),
        NotificationEvent(id=1, time=1, type="ADD_PARTITION", db="d", table="t", message='{"partitionListJson": null}'),
        NotificationEvent(id=1, time=1, type="DROP_TABLE", db="d", message="[]"),
        NotificationEvent(id=1, time=1, type="DROP_TABLE", db="d", message=None),
        NotificationEvent(id=1, time=1, type="DROP_TABLE", db="d", message="bm90IGd6aXA=", format="gzip"),
        NotificationEvent(id=1, time=1, type="DROP_TABLE", db="d", message="H4sIAAAA!", format="gzip(json-2.0)"),
    ],
)
def test_what_cannot_be_read_is_kept_as_it_came(event: NotificationEvent) -> None:
    kept = kinds.UnknownEvent(
        type=event.type, db=event.db, table=event.table, message=event.message, format=event.format
    )
    assert decode(event) == Decoded(change=kept)


# ---- the log ------------------------------------------------------------------------------------------------------


class Log:
    """Rows of a notification log, newest id `newest`; what a reader asks of a metastore."""

    def __init__(self, ids: Sequence[int], newest: int | None = None) -> None:
        self.rows = [row(number) for number in ids]
        self._newest = max(ids, default=0) if newest is None else newest
        self.uri = "thrift://log"

    def current_event_id(self) -> int:
        return self._newest

    def next_events(self, after: int, limit: int = 10_000) -> list[NotificationEvent]:
        return [each for each in self.rows if each.id > after][:limit]


def row(number: int, table: str = "t") -> NotificationEvent:
    return NotificationEvent(id=number, time=0, type="DROP_TABLE", db="d", table=table, message="{}")


@given(st.integers(0, 20), st.sets(st.integers(1, 30)), st.integers(0, 5))
def test_a_hole_is_found_exactly_when_an_id_is_missing(cursor: int, ids: set[int], more: int) -> None:
    newest = max([*ids, cursor]) + more
    hole = find_hole(cursor, [row(number) for number in sorted(ids) if number > cursor], newest)
    missing = [number for number in range(cursor + 1, newest + 1) if number not in ids]
    if not missing:
        assert hole is None
        return
    assert hole is not None
    after, following = hole
    assert after == missing[0] - 1
    assert following == min([number for number in ids if number > missing[0]], default=newest + 1)


def test_an_empty_answer_while_the_newest_id_moved_on_is_a_hole() -> None:
    assert read_events(Log([], newest=9), 5, {}).hole == (5, 10)  # type: ignore[arg-type]
    assert read_events(Log([], newest=5), 5, {}).hole is None  # type: ignore[arg-type]


def test_rows_that_appear_behind_the_reader_are_late() -> None:
    log = Log(range(1, 11))
    first = read_events(log, 0, {})  # type: ignore[arg-type]
    assert ([each.id for each in first.events], first.late, first.hole) == (list(range(1, 11)), [], None)
    log.rows.append(row(7, "twin"))  # 2.3 gives an id twice, and the second row commits later
    log.rows.append(row(11))
    log._newest = 11
    second = read_events(log, 10, first.seen)  # type: ignore[arg-type]
    assert [each.id for each in second.events] == [11]
    assert [(each.id, each.table) for each in second.late] == [(7, "twin")]
    assert read_events(log, 11, second.seen).late == []  # type: ignore[arg-type]


def test_a_long_log_is_read_in_pages_and_remembered_shortly() -> None:
    log = Log(range(1, 25_001))
    reading = read_events(log, 0, {})  # type: ignore[arg-type]
    assert [each.id for each in reading.events] == list(range(1, 25_001))
    assert reading.hole is None
    assert len(reading.seen) == LOOK_BACK


@given(st.lists(st.integers(1, 60)), st.integers(0, 5), st.integers(1, 20))
def test_a_log_read_some_at_a_time_is_the_same_log(ids: list[int], more: int, limit: int) -> None:
    log = Log(sorted(ids), newest=max([*ids, 0]) + more)
    for number, twin in enumerate(log.rows):
        log.rows[number] = msgspec.structs.replace(twin, table=f"t{number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "replicator.metastore.events.notification_log.EVENT_BATCH", 70
        )  # no page is smaller than the rows of one id
        whole = read_events(log, 0, {})  # type: ignore[arg-type]
        some, cursor, seen = [], 0, dict[str, int]()
        holes, going = [], True
        patch.setattr(
            "replicator.metastore.events.notification_log.EVENT_BATCH", 1 + max(map(ids.count, ids), default=0)
        )
        while going:
            reading = read_events(log, cursor, seen, limit=limit)  # type: ignore[arg-type]
            some += reading.events
            holes += [reading.hole] if reading.hole else []
            assert not (reading.more and not reading.events)
            cursor, seen, going = reading.events[-1].id if reading.events else cursor, reading.seen, reading.more
    assert some == whole.events
    assert holes[:1] == ([whole.hole] if whole.hole else [])


def test_rows_that_share_an_id_at_the_end_of_a_page_are_not_cut_apart() -> None:
    log = Log([*range(1, 10_001), 10_000, 10_001])
    log.rows[10_000] = row(10_000, "twin")
    log.rows.sort(key=lambda each: each.id)
    reading = read_events(log, 0, {})  # type: ignore[arg-type]
    assert [each.id for each in reading.events] == sorted([*range(1, 10_001), 10_000, 10_001])


def test_a_log_that_is_shorter_than_before_is_another_one() -> None:
    with pytest.raises(Refused, match="newest event is 3"):
        read_events(Log([1, 2, 3]), 5, {})  # type: ignore[arg-type]


def test_a_message_that_unpacks_to_more_than_any_has_is_kept_unread() -> None:
    """Small as it came, and all of the memory when unpacked: its table is compared instead."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b'{"a": "') + b"".join(packer.compress(b" " * (1 << 20)) for _ in range(400))
    message = base64.b64encode(packed + packer.compress(b'"}') + packer.flush()).decode()
    event = NotificationEvent(
        id=7, time=1, type="DROP_TABLE", db="d", table="t", message=message, format="gzip(json-2.0)"
    )
    tracemalloc.start()
    decoded = decode(event)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded.change == kinds.UnknownEvent(
        type="DROP_TABLE", db="d", table="t", message=message, format=event.format
    )
    assert peak < 1.2 * MESSAGE_BYTES


def test_of_a_message_that_cannot_be_read_only_so_much_is_kept() -> None:
    event = NotificationEvent(id=7, time=1, type="DROP_TABLE", db="d", table="t", message="x" * (KEPT_MESSAGE + 5))
    change = decode(event).change
    assert isinstance(change, kinds.UnknownEvent) and change.message == "x" * KEPT_MESSAGE
