"""Conversions of metadata objects: thrift, TJSON and values agree; nothing a newer server sends is lost."""

from __future__ import annotations

import importlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import hive_metastore.ThriftHiveMetastore as NewerService
import hive_metastore.ttypes as newer
import msgspec
import pymetastore.hive_metastore.ThriftHiveMetastore as NewishService
import pymetastore.hive_metastore.ttypes as newish
import pytest
from hmsclient.genthrift.hive_metastore import ttypes
from hypothesis import given, settings
from hypothesis import strategies as st
from thrift.protocol.TBase import TBase
from thrift.protocol.TBinaryProtocol import TBinaryProtocol, TBinaryProtocolAccelerated
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.Thrift import TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TMemoryBuffer, TTransportException
from waiting import CEILING

from replicator.core.connections import MetastoreConfig
from replicator.core.model import (
    EXTERNAL,
    HIVE,
    Column,
    ColumnStatistic,
    Database,
    Function,
    NotificationEvent,
    Partition,
    Serde,
    Skew,
    Statistics,
    Storage,
    Table,
)
from replicator.errors import FormatError, ObjectNotFound
from replicator.metastore import fields, interface_rows, objects, requests
from replicator.metastore.connection import Connections
from replicator.metastore.thrift import ThriftMetastore

CONTROL = re.compile(r"[\x00-\x1f]")  # the server escapes them, thrift for Python does not
PROTOCOLS = [TBinaryProtocol, TBinaryProtocolAccelerated]


def over_the_wire(struct: Any, protocol: Any) -> Any:
    written = TMemoryBuffer()
    struct.write(protocol(written))
    read = type(struct)()
    read.read(protocol(TBufferedTransport(TMemoryBuffer(written.getvalue()))))
    return read


def as_text(struct: Any) -> str:
    written = TMemoryBuffer()
    struct.write(TJSONProtocol(written))
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", written.getvalue().decode())


def as_tjson(struct: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(as_text(struct))
    return decoded


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
maybe = st.none() | text
seconds = st.integers(0, 2**31 - 1)
parameters = st.dictionaries(text, text, max_size=3)
columns = st.lists(st.builds(Column, name=text, type=text, comment=maybe), max_size=3).map(tuple)
texts = st.lists(text, max_size=2).map(tuple)
owners = st.sampled_from([None, "USER", "ROLE", "GROUP"])
serdes = st.builds(
    Serde,
    name=maybe,
    library=maybe,
    parameters=parameters,
    extra=st.sampled_from([{}, {"4": {"str": "déscription"}, "7": {"i32": 1}}]),
)
skews = st.builds(
    Skew,
    columns=st.lists(text, min_size=1, max_size=2).map(tuple),
    values=st.lists(texts, max_size=2).map(tuple),
    locations=st.dictionaries(texts, text, max_size=2).map(lambda found: tuple(sorted(found.items()))),
)
storages = st.builds(
    Storage,
    columns=columns,
    location=maybe,
    input_format=maybe,
    output_format=maybe,
    compressed=st.booleans(),
    buckets=st.integers(-1, 64),
    bucket_columns=texts,
    sort_columns=st.lists(st.tuples(text, st.sampled_from([0, 1])), max_size=2).map(tuple),
    serde=serdes,
    parameters=parameters,
    skew=st.none() | skews,
    subdirectories=st.booleans(),
)
PRIVILEGES = {"1": {"map": ["str", "lst", 1, {"ünal": ["rec", 1, {"1": {"str": "SELECT"}, "5": {"tf": 1}}]}]}}
STATISTICS = {"1": {"rec": {"1": {"tf": 1}, "2": {"str": "d"}, "3": {"str": "t"}}}, "2": {"lst": ["rec", 0]}}
NEW_IN_TABLE: dict[str, Any] = {
    "16": {"rec": {"1": {"str": "hive"}, "2": {"str": "d"}, "3": {"str": "t"}, "4": {"set": ["str", 1, "d.t"]}}},
    "19": {"i64": 2**40},
    "20": {"tf": 0},
    "21": {"rec": STATISTICS},
    "22": {"i8": 8},
    "23": {"lst": ["str", 2, "a", "b"]},
    "26": {"rec": {"1": {"i8": 1}, "3": {"lst": ["str", 1, "AP8="]}}},
    "27": {"rec": {"1": {"map": ["str", "lst", 1, {"k": ["str", 1, "AP8="]}]}}},
}
databases = st.builds(
    Database,
    name=text,
    description=maybe,
    location=maybe,
    parameters=parameters,
    owner=maybe,
    owner_type=owners,
    managed_location=maybe,
    connector=maybe,
    extra=st.sampled_from([{}, {"5": {"rec": PRIVILEGES}}]),
)
tables = st.builds(
    Table,
    db=text,
    name=text,
    kind=st.sampled_from(["MANAGED_TABLE", EXTERNAL, "VIRTUAL_VIEW"]),
    owner=maybe,
    owner_type=owners,
    create_time=seconds,
    last_access_time=seconds,
    retention=seconds,
    storage=st.none() | storages,
    partition_keys=columns,
    parameters=parameters,
    view_original=maybe,
    view_expanded=maybe,
    rewrite_enabled=st.sampled_from([None, False, True]),
    temporary=st.booleans(),
    privileges=st.sampled_from([None, PRIVILEGES]),
    extra=st.sampled_from([{}, NEW_IN_TABLE]),
)
partitions = st.builds(
    Partition,
    values=texts,
    create_time=seconds,
    last_access_time=seconds,
    storage=st.none() | storages,
    parameters=parameters,
    extra=st.sampled_from([{}, {"8": {"rec": PRIVILEGES}, "10": {"i64": -1}}]),
)
functions = st.builds(
    Function,
    db=text,
    name=text,
    class_name=text,
    owner=maybe,
    owner_type=owners,
    create_time=seconds,
    resources=st.lists(st.tuples(st.sampled_from(["JAR", "FILE", "ARCHIVE"]), text), max_size=2).map(tuple),
    extra=st.just({}),
)
statistics = st.builds(
    Statistics,
    db=text,
    table=text,
    partition=maybe,
    last_analyzed=seconds,
    columns=st.lists(
        st.builds(
            ColumnStatistic,
            column=text,
            type=text,
            data=st.sampled_from(
                [
                    {"2": {"rec": {"1": {"i64": -5}, "2": {"i64": 9}, "3": {"i64": 0}, "5": {"str": "SExM/wA="}}}},
                    {"3": {"rec": {"1": {"dbl": 0.5}, "2": {"dbl": "NaN"}, "3": {"i64": 1}, "4": {"i64": 2}}}},
                    {"6": {"rec": {"1": {"rec": {"1": {"str": "AQ=="}, "3": {"i16": 2}}}, "3": {"i64": 0}}}},
                    {"8": {"rec": {"1": {"rec": {"1": {"i64": 5}}}, "3": {"i64": 1}, "4": {"i64": 2}}}},
                ]
            ),
        ),
        max_size=2,
    ).map(tuple),
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(deadline=None)
@given(data=st.data())
def test_a_value_survives_the_wire(protocol: Any, data: st.DataObject) -> None:
    database = data.draw(databases)
    assert requests.database_from_thrift(over_the_wire(requests.database_to_thrift(database), protocol)) == database
    table = data.draw(tables)
    assert requests.table_from_thrift(over_the_wire(requests.table_to_thrift(table), protocol)) == table
    partition = data.draw(partitions)
    thrift = over_the_wire(requests.partition_to_thrift("d", "t", partition), protocol)
    assert (thrift.dbName, thrift.tableName, requests.partition_from_thrift(thrift)) == ("d", "t", partition)
    function = data.draw(functions)
    assert requests.function_from_thrift(over_the_wire(requests.function_to_thrift(function), protocol)) == function
    of_columns = data.draw(statistics)
    thrift = over_the_wire(requests.statistics_to_thrift(of_columns, HIVE), protocol)
    assert requests.column_statistics_from_thrift(thrift.statsObj) == of_columns.columns
    told = thrift.statsDesc
    assert (told.dbName, told.tableName, told.partName) == (of_columns.db, of_columns.table, of_columns.partition)
    assert (told.lastAnalyzed, told.isTblLevel) == (of_columns.last_analyzed, of_columns.partition is None)


@settings(deadline=None)
@given(databases, tables, partitions, functions)
def test_the_text_in_a_message_reads_as_the_same_value_skew_locations_included(
    database: Database, table: Table, partition: Partition, function: Function
) -> None:
    assert requests.database_from_text(as_text(requests.database_to_thrift(database))) == database
    assert requests.table_from_text(as_text(requests.table_to_thrift(table))) == table
    assert requests.function_from_text(as_text(requests.function_to_thrift(function))) == function
    text = as_text(requests.partition_to_thrift("d", "t", partition))
    assert requests.partition_from_text(text) == partition
    assert requests.place_from_text(text) == (partition.values, partition.location)


@settings(deadline=None)
@given(tables, partitions)
def test_ids_that_nobody_knows_are_kept_wherever_they_are_and_change_nothing_else(
    table: Table, partition: Partition
) -> None:
    for value, write, read, where in (
        (table, requests.table_to_thrift, requests.table_from_text, "7"),
        (partition, lambda each: requests.partition_to_thrift("d", "t", each), requests.partition_from_text, "6"),
    ):
        known = msgspec.structs.replace(value, storage=without_skew_locations(value.storage))
        message = as_tjson(write(known))
        for each in (message, *in_storage(message, where)):
            each["99"] = {"lst": ["i64", 1, 5]}
        found = read(json.dumps(message))
        assert found == with_unknown(known)
        lost = msgspec.structs.replace(found, storage=None)  # what the field table does not know is not sent
        assert "99" not in over_the_wire(write(lost), TBinaryProtocolAccelerated).__dict__


def in_storage(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The fields of the storage descriptor, and of its serde."""
    if where not in message:
        return []
    storage = message[where]["rec"]
    return [storage, storage["7"]["rec"]]


def with_unknown(value: Any) -> Any:
    """The same with a field that has no row, there and below."""
    below = {}
    if getattr(value, "storage", None) is not None:
        below["storage"] = with_unknown(value.storage)
    if isinstance(value, Storage):
        below["serde"] = with_unknown(value.serde)
    return msgspec.structs.replace(value, extra=value.extra | {"99": {"lst": ["i64", 1, 5]}}, **below)


CALLED = {
    Database: "locationUri=location ownerName=owner ownerType=owner_type managedLocationUri=managed_location"
    " connector_name=connector",
    Table: "tableName=name dbName=db createTime=create_time lastAccessTime=last_access_time sd=storage tableType=kind"
    " partitionKeys=partition_keys viewOriginalText=view_original viewExpandedText=view_expanded"
    " rewriteEnabled=rewrite_enabled ownerType=owner_type",
    Partition: "dbName=_db tableName=_table createTime=create_time lastAccessTime=last_access_time sd=storage",
    Storage: "cols=columns inputFormat=input_format outputFormat=output_format numBuckets=buckets serdeInfo=serde"
    " bucketCols=bucket_columns sortCols=sort_columns skewedInfo=skew storedAsSubDirectories=subdirectories",
    Serde: "serializationLib=library",
    Skew: "skewedColNames=columns skewedColValues=values skewedColValueLocationMaps=locations",
    Function: "functionName=name dbName=db className=class_name ownerName=owner ownerType=owner_type"
    " createTime=create_time functionType=kind resourceUris=resources",
    Statistics: "dbName=db tableName=table partName=partition lastAnalyzed=last_analyzed",
    ColumnStatistic: "colName=column colType=type statsData=data",
    NotificationEvent: "eventId=id eventTime=time eventType=type dbName=db tableName=table messageFormat=format"
    " catName=catalog",
}
"""The names that differ; both conversions are made of one table, so a wrong row would be wrong both ways."""


@pytest.mark.parametrize("model", objects.OBJECTS)
def test_each_attribute_is_the_field_that_it_is_called_after(model: Any) -> None:
    struct, rows = objects.OBJECTS[model]
    other = dict(reversed(each.split("=")) for each in CALLED[model].split() if "=" in each)
    found = {name: struct.thrift_spec[field][2] for name, (field, _) in rows.items()}
    assert found == {name: other.get(name, name) for name in rows}


@pytest.mark.parametrize("model", objects.OBJECTS)
def test_each_attribute_has_one_row_and_each_row_another_field(model: Any) -> None:
    struct, rows = objects.OBJECTS[model]
    assert set(model.__struct_fields__) - {"extra"} - ({"columns", "others"} if model is Statistics else set()) == {
        name for name in rows if not name.startswith("_")
    }
    fields = [field for field, _ in rows.values()]
    assert len(set(fields)) == len(fields)
    assert all(struct.thrift_spec[field] is not None for field in fields)


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"1":{"str":"t"}', "{}", "[]", '{"1":5}'])
def test_text_that_is_no_object_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError):
        requests.table_from_text(text)


def without_skew_locations(storage: Storage | None) -> Storage | None:
    """TJSON cannot hold them: their keys are lists."""
    if storage is None or storage.skew is None:
        return storage
    return msgspec.structs.replace(storage, skew=msgspec.structs.replace(storage.skew, locations=()))


def test_a_field_nobody_knows_is_kept() -> None:
    read = requests.table_from_text('{"1":{"str":"t"},"2":{"str":"d"},"99":{"lst":["i64",1,5]}}')
    assert read == Table(db="d", name="t", storage=None, extra={"99": {"lst": ["i64", 1, 5]}})
    assert requests.table_from_thrift(requests.table_to_thrift(read)).extra == {}


@pytest.mark.parametrize("read", [requests.table_from_text, requests.partition_from_text, requests.function_from_text])
@pytest.mark.parametrize(
    "field",
    [
        '"7":{"rec":{"1":{"lst":["rec",1,{"1":{"str":"a"}}]}}}',
        '"8":{"lst":["rec",1,{"1":{"i32":1}}]}',
        '"6":{"rec":5}',
        '"99":5,"6":{"rec":5}',
    ],
)
def test_an_object_with_a_part_that_is_none_is_a_format_error(read: Any, field: str) -> None:
    with pytest.raises(FormatError):
        read(f'{{"1":{{"str":"f"}},"2":{{"str":"d"}},"3":{{"str":"c"}},{field}}}')


def test_null_maps_lists_and_values_of_maps_are_read() -> None:
    bare = ttypes.Table(
        tableName="t", dbName="d", parameters={"a": None, "b": "c"}, sd=ttypes.StorageDescriptor(), partitionKeys=None
    )
    table = requests.table_from_thrift(bare)
    assert table == Table(db="d", name="t", parameters={"b": "c"})
    unsendable = Table(db="d", name="t", parameters={"a": None, "b": "c"})  # type: ignore[dict-item]
    assert over_the_wire(requests.table_to_thrift(unsendable), TBinaryProtocolAccelerated).parameters == {"b": "c"}
    for unknown in ("", ',"99":{"i32":1}'):
        text = f'{{"1":{{"str":"t"}},"2":{{"str":"d"}},"9":{{"map":["str","str",2,{{"a":null,"b":"c"}}]}}{unknown}}}'
        assert requests.table_from_text(text).parameters == {"b": "c"}


def test_the_skew_that_the_server_sends_with_every_table_is_none() -> None:
    empty = ttypes.SkewedInfo(skewedColNames=[], skewedColValues=[], skewedColValueLocationMaps={})
    storage = requests.table_from_thrift(
        ttypes.Table(tableName="t", dbName="d", sd=ttypes.StorageDescriptor(skewedInfo=empty))
    ).storage
    assert storage is not None and storage.skew is None


def test_equal_columns_are_one_object() -> None:
    storage = Storage(columns=tuple(Column(name=f"c{i}", type="int") for i in range(20)))
    structs = [requests.partition_to_thrift("d", "t", Partition(values=(str(i),), storage=storage)) for i in range(2)]
    read = [requests.partition_from_thrift(over_the_wire(struct, TBinaryProtocolAccelerated)) for struct in structs]
    reported = [requests.partition_from_text(as_text(struct)) for struct in structs]
    of = [part.storage for part in read + reported]
    assert len({id(storage.columns) for storage in of if storage}) == 1
    assert len({id(storage.serde) for storage in of if storage}) == 1


# --- the field table against two independent sets of bindings

IN_NONE_OF_THEM = {
    ("NotificationEventRequest", 4),
    ("NotificationEventRequest", 5),
    ("NotificationEventRequest", 6),
    ("NotificationEventRequest", 7),
    ("DoubleColumnStatsData", 6),
    ("LongColumnStatsData", 6),
    ("DecimalColumnStatsData", 6),
    ("DateColumnStatsData", 6),
    ("TimestampColumnStatsData", 6),
}


def shape(kind: int, args: Any) -> Any:
    """Types without what bindings may choose: text or bytes, lists or tuples."""
    if kind == TType.STRUCT:
        return args[0].__name__
    if kind in (TType.LIST, TType.SET):
        return kind, shape(args[0], args[1])
    if kind == TType.MAP:
        return kind, shape(args[0], args[1]), shape(args[2], args[3])
    return kind


def row_of(bindings: Any, struct: str, field: int) -> Any:
    spec = getattr(getattr(bindings, struct, None), "thrift_spec", ())
    row = spec[field] if field < len(spec) else None
    return row and (row[2], shape(row[1], row[3]))


ROWS = [
    (struct, field)
    for table in (interface_rows.NEW_STRUCTS, interface_rows.NEW_FIELDS, interface_rows.RETYPED)
    for struct, rows in table.items()
    for field in rows
]


@pytest.mark.parametrize(("struct", "field"), ROWS)
def test_each_row_is_what_other_bindings_say(struct: str, field: int) -> None:
    ours = row_of(ttypes, struct, field)
    theirs = {row for bindings in (newer, newish) if (row := row_of(bindings, struct, field))}
    assert theirs == (set() if (struct, field) in IN_NONE_OF_THEM else {ours})


@pytest.mark.parametrize("name", interface_rows.METHODS)
def test_each_method_is_what_other_bindings_say(name: str) -> None:
    ours = [rows_of(struct) for struct in fields.structs(name)]
    theirs = [
        [rows_of(getattr(service, f"{name}_{part}")) for part in ("args", "result")]
        for service in (NewerService, NewishService)
        if hasattr(service, f"{name}_args")
    ]
    assert ours in theirs
    for arguments, result in theirs:  # older ones lack the last argument
        assert (arguments, result) == (ours[0][: len(arguments)], ours[1])


def rows_of(struct: Any) -> list[Any]:
    return [(row[0], row[2], shape(row[1], row[3])) for row in struct.thrift_spec if row]


@pytest.mark.parametrize("struct", ["Database", "Table", "Partition", "StorageDescriptor", "SerDeInfo", "Function"])
def test_no_field_of_a_carried_object_is_left_out(struct: str) -> None:
    known = {row[0] for row in getattr(ttypes, struct).thrift_spec if row}
    assert {row[0] for row in getattr(newer, struct).thrift_spec if row} <= known


def test_the_field_table_may_be_applied_twice() -> None:
    before = ttypes.Table.thrift_spec
    importlib.reload(fields)
    assert ttypes.Table.thrift_spec == before


# --- a server of the 4.x line, in this process


class TableOfTomorrow(newer.Table):  # type: ignore[misc]
    """A 4.x table with one field more than anybody here knows."""

    thrift_spec = (*newer.Table.thrift_spec, (29, TType.STRING, "tomorrow", "UTF8", None))
    tomorrow: str | None = "x"
    write = TBase.write


class Server4:
    """What a 4.x server answers: no `get_table`, 4.x structs, and it keeps what it is sent."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.database = newer.Database(
            name="d", catalogName="hive", managedLocationUri="file:/m", createTime=5, type=1, parameters={}
        )
        self.written: list[Any] = []

    def get_table_req(self, req: Any) -> Any:
        return newer.GetTableResult(table=self.tables[req.tblName])

    def get_table_objects_by_name_req(self, req: Any) -> Any:
        return newer.GetTablesResult(tables=[self.tables[name] for name in req.tblNames])

    def alter_table_with_environment_context(self, dbname: str, name: str, table: Any, context: Any) -> None:
        self.written.append(table)

    def get_check_constraints(self, request: Any) -> Any:
        if request.tbl_name == "gone":
            raise newer.NoSuchObjectException("gone")
        found = newer.SQLCheckConstraint(table_name=request.tbl_name, column_name="ä", rely_cstr=True)
        return newer.CheckConstraintsResponse(checkConstraints=[found])

    def add_check_constraint(self, req: Any) -> None:
        self.written.append(req)

    def get_database(self, name: str) -> Any:
        return self.database

    def alter_database(self, name: str, database: Any) -> None:
        self.written.append(database)


@pytest.fixture
def server4() -> Iterator[tuple[Server4, str]]:
    handler = Server4()
    processor = NewerService.Processor(handler)
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        peer = TSocket()
        peer.setHandle(connection)
        protocol = TBinaryProtocol(TBufferedTransport(peer))
        try:
            while True:
                processor.process(protocol, protocol)
        except TTransportException:
            connection.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield handler, f"thrift://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def table_of_4(cls: Any = newer.Table) -> Any:
    return cls(
        tableName="t",
        dbName="d",
        owner="o",
        createTime=1,
        lastAccessTime=2,
        retention=3,
        sd=newer.StorageDescriptor(
            cols=[newer.FieldSchema(name="a", type="int", comment="ü")],
            location="file:/w/t",
            serdeInfo=newer.SerDeInfo(
                name="s", serializationLib="l", parameters={}, description="d", serializerClass="s", serdeType=2
            ),
            parameters={},
            numBuckets=-1,
            compressed=False,
            bucketCols=[],
            sortCols=[],
            storedAsSubDirectories=False,
        ),
        partitionKeys=[],
        parameters={"k": "v"},
        tableType="MANAGED_TABLE",
        catName="spark",
        ownerType=2,
        writeId=7,
        isStatsCompliant=True,
        creationMetadata=newer.CreationMetadata(
            catName="hive", dbName="d", tblName="t", tablesUsed={"d.x"}, materializationTime=9, sourceTables=[]
        ),
        accessType=8,
        requiredReadCapabilities=["HIVEFULLACIDREAD"],
        id=11,
        fileMetadata=newer.FileMetadata(type=1, version=1, data=[b"\x00\xff"]),
        dictionary=newer.ObjectDictionary(values={"k": [b"\xff"]}),
        txnId=12,
        temporary=False,
    )


def test_a_table_of_a_4x_server_is_read_and_written_back_whole(server4: tuple[Server4, str]) -> None:
    server, uri = server4
    server.tables["t"] = sent = table_of_4()
    with ThriftMetastore(uri) as metastore:
        table = metastore.table("d", "t")
        assert (table.owner_type, table.extra["17"], table.extra["19"]) == ("ROLE", {"str": "hive"}, {"i64": 7})
        assert metastore.tables("d", ["t"]) == [table]
        metastore.alter_table("d", "t", table)
        metastore.alter_database("d", metastore.database("d"))
        assert metastore.unknown_fields() == {}
    sent.catName = server.database.catalogName = None  # the server knows which catalog is its default one
    assert server.written == [sent, server.database]


def test_a_field_that_would_be_lost_is_reported(server4: tuple[Server4, str]) -> None:
    server, uri = server4
    server.tables["t"] = table_of_4(TableOfTomorrow)
    with ThriftMetastore(uri) as metastore:
        assert metastore.unknown_fields() == {}
        metastore.table("d", "t")
        assert metastore.unknown_fields() == {"Table": [29]}
        server.tables["t"] = table_of_4()
        metastore.table("d", "t")
        assert metastore.unknown_fields() == {"Table": [29]}


def test_a_method_that_hmsclient_lacks_is_called(server4: tuple[Server4, str]) -> None:
    server, uri = server4
    connections = Connections(MetastoreConfig(uri), timeout=CEILING, retries=0)
    ask = ttypes.CheckConstraintsRequest(catName="hive", db_name="d", tbl_name="t")
    answer = connections.read("constraints", fields.method("get_check_constraints", ask))
    found = answer.checkConstraints[0]
    assert (found.table_name, found.column_name, found.rely_cstr, found.dc_name) == ("t", "ä", True, None)
    request = ttypes.AddCheckConstraintRequest(checkConstraintCols=[found])
    assert connections.change("add", fields.method("add_check_constraint", request)) is None
    assert server.written[0].checkConstraintCols[0].column_name == "ä"
    with pytest.raises(ObjectNotFound):
        gone = ttypes.CheckConstraintsRequest(catName="hive", db_name="d", tbl_name="gone")
        connections.read("constraints", fields.method("get_check_constraints", gone))
    connections.close()


def test_a_database_of_an_earlier_release_has_its_fields() -> None:
    """Two fields were without a home. One that is there twice, or is no text, is left for the reader to refuse."""

    def read(extra: str) -> Database:
        return msgspec.json.decode(f'{{"name":"d","extra":{extra}}}', type=Database)

    old = read('{"10":{"str":"file:/m"},"12":{"str":"c"},"11":{"i32":1}}')
    assert old == Database(name="d", managed_location="file:/m", connector="c", extra={"11": {"i32": 1}})
    for odd in ('{"10":{"i32":1}}', '{"10":{"str":"file:/m"},"12":{"rec":{}}}'):
        assert not objects.HOMES[Database].isdisjoint(read(odd).extra)
    both = Database(name="d", managed_location="file:/a", extra={"10": {"str": "file:/b"}})
    assert (both.managed_location, list(both.extra)) == ("file:/a", ["10"])
