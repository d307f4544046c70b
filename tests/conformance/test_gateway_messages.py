"""Thrift messages as trees, and what the gateway makes of the calls that delete data. No server."""

from __future__ import annotations

import struct as packing
from itertools import pairwise
from typing import Any

import pytest
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from hypothesis import given
from hypothesis import strategies as st
from raw_thrift import message, struct
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TMemoryBuffer

from replicator.captures.gateways.drops import refusal
from replicator.captures.gateways.messages import (
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    SHAPES,
    STRING,
    STRUCT,
    Drop,
    Field,
    Fields,
    Garbage,
    ListValue,
    Mapped,
    MessageHeader,
    NotUnderstood,
    application_error,
    declared_error,
    find,
    flag,
    parse_header,
    read_from,
    read_struct,
    text,
    understand,
    with_field,
    without_deletion,
    write_struct,
)
from replicator.captures.gateways.targets import Extent, MethodNames, is_truncation
from replicator.captures.gateways.upstream import handling
from replicator.core.model import NotificationEvent

SIZES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
KINDS = st.sampled_from([*SIZES, STRING, STRUCT, MAP, SET, LIST])


def values(kind: int, depth: int) -> st.SearchStrategy[Any]:
    if kind in SIZES:
        return st.binary(min_size=SIZES[kind], max_size=SIZES[kind])
    if kind == STRING:
        return st.binary(max_size=20)
    inner = st.sampled_from(list(SIZES)) if depth == 0 else KINDS
    if kind == STRUCT:
        return structs(depth - 1) if depth else st.just(())
    if kind == MAP:
        return st.tuples(inner, inner).flatmap(
            lambda kinds: st.lists(st.tuples(values(kinds[0], depth - 1), values(kinds[1], depth - 1)), max_size=3).map(
                lambda pairs: Mapped(*kinds, tuple(pairs))
            )
        )
    return inner.flatmap(
        lambda each: st.lists(values(each, depth - 1), max_size=3).map(lambda items: ListValue(each, tuple(items)))
    )


def structs(depth: int = 2) -> st.SearchStrategy[Fields]:
    field = KINDS if depth > 0 else st.sampled_from([*SIZES, STRING])
    return st.lists(
        st.tuples(st.integers(-32768, 32767), field).flatmap(
            lambda head: values(head[1], max(depth, 0)).map(lambda value: Field(*head, value))
        ),
        max_size=5,
    ).map(tuple)


def parsed(data: bytes) -> tuple[MessageHeader, Fields]:
    header = parse_header(data)
    assert header is not None
    read, position = read_from(data, header.size)
    fields = read_struct(read)
    assert position() == len(data)
    return header, fields


@given(structs())
def test_what_was_read_is_written_again_byte_for_byte(fields: Fields) -> None:
    data = write_struct(fields)
    read, position = read_from(data, 0)
    assert read_struct(read) == fields and position() == len(data)
    assert write_struct(fields) == data


@given(structs(), st.data())
def test_a_message_that_is_cut_off_is_never_taken_for_a_whole_one(fields: Fields, data: st.DataObject) -> None:
    whole = write_struct(fields)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(EOFError):
        read_struct(read_from(cut, 0)[0])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_an_error(data: bytes) -> None:
    try:
        fields = read_struct(read_from(data, 0)[0])
    except (EOFError, Garbage):
        return
    assert data.startswith(write_struct(fields))


def ends_at(data: bytes, cuts: list[int]) -> int | None:
    """Where the struct ends, found in pieces that are cut there; None when it does not, or is none."""
    extent, at = Extent(), 0
    for begin, end in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]):
        try:
            at += extent.feed(memoryview(data)[begin:end])
        except Garbage:
            return None
        if extent.ended:
            return at
    return None


@given(structs(), st.binary(max_size=20), st.lists(st.integers(min_value=0), max_size=8))
def test_the_end_of_a_message_is_found_however_its_bytes_arrive(fields: Fields, more: bytes, cuts: list[int]) -> None:
    whole = write_struct(fields)
    assert ends_at(whole + more, cuts) == len(whole)
    assert ends_at(whole[:-1], cuts) is None
    extent = Extent()
    extent.feed(whole)
    assert extent.fields == [field.id for field in fields]


@given(st.binary(max_size=60), st.lists(st.integers(min_value=0), max_size=4))
def test_any_bytes_end_where_they_are_read_to_end(data: bytes, cuts: list[int]) -> None:
    read, position = read_from(data, 0)
    try:
        read_struct(read)
        expected = position()
    except (EOFError, Garbage):
        expected = None
    assert ends_at(data, cuts) == expected


@given(st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(min_value=0), max_size=6))
def test_the_name_of_a_deleting_call_is_found_wherever_it_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    names = MethodNames(SHAPES)
    for name in ("drop_table", "truncate_table_req"):
        data = before + len(name).to_bytes(4, "big") + name.encode() + after
        seen, found = b"", []
        for begin, end in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]):
            found.append(names.find(seen, data[begin:end]))
            seen = names.tail(seen, data[begin:end])
        assert name in found
    assert names.find(b"", before + b"drop_table" + after) is None


@given(st.text(min_size=1, max_size=40), st.integers(-(2**31), 2**31 - 1), st.data())
def test_a_header_is_found_however_its_bytes_arrive(name: str, sequence: int, data: st.DataObject) -> None:
    encoded = MessageHeader(1, name, sequence, 0).encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert parse_header(encoded[:cut]) is None
    header = parse_header(encoded + b"rest")
    assert header == MessageHeader(1, name, sequence, len(encoded))


@pytest.mark.parametrize(
    ("begin", "guess"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "strict"),
        (b"\x00\x00\x00\x0cget_database", "strict"),
        (b"\x80\x01\x00\x09\x00\x00\x00\x01x\x00\x00\x00\x00", "kind"),
        (b"\x80\x01\x00\x01\xff\xff\xff\xff", "name"),
        (b"\x80\x01\x00\x01\x7f\xff\xff\xff", "name"),
        (b"\x80\x01\x00\x01\x00\x00\x00\x01\xff\x00\x00\x00\x00", "UTF-8"),
    ],
)
def test_what_is_no_message_says_why(begin: bytes, guess: str) -> None:
    with pytest.raises(Garbage, match=guess):
        parse_header(begin)


def test_a_length_that_cannot_be_allocates_nothing() -> None:
    bomb = packing.pack(">BhBi", LIST, 1, STRUCT, 2**31 - 1)
    with pytest.raises(Garbage, match="length"):
        read_struct(read_from(bomb, 0)[0])
    deep = packing.pack(">Bh", STRUCT, 1) * 10_000
    with pytest.raises(Garbage, match="nested"):
        read_struct(read_from(deep, 0)[0])


# ---- against the bindings: what a client sends is what is understood ----------------------------------------------


def sent(name: str, *arguments: Any) -> tuple[MessageHeader, Fields]:
    """The message of a call as Hive's own bindings write it."""
    buffer = TMemoryBuffer()
    client = ThriftHiveMetastore.Client(TBinaryProtocol(buffer))
    getattr(client, f"send_{name}")(*arguments)
    return parsed(buffer.getvalue())


CONTEXT = ttypes.EnvironmentContext(properties={"ifPurge": "TRUE"})


def request(**parts: Any) -> Any:
    return ttypes.DropPartitionsRequest(dbName="Sales", tblName="T", parts=ttypes.RequestPartsSpec(**parts))


@pytest.mark.parametrize(
    ("call", "understood"),
    [
        (("drop_table", "Sales", "T", True), Drop("drop_table", "table", "sales", "t")),
        (("drop_table", "Sales", "T", False), Drop("drop_table", "table", "sales", "t", deletes=False)),
        (
            ("drop_table_with_environment_context", "@hive#Sales", "T", True, CONTEXT),
            Drop("drop_table_with_environment_context", "table", "sales", "t"),
        ),
        (
            ("drop_partition", "sales", "t", ["1", "x y"], True),
            Drop("drop_partition", "partitions", "sales", "t", values=("1", "x y")),
        ),
        (
            ("drop_partition_with_environment_context", "sales", "t", ["1"], True, CONTEXT),
            Drop("drop_partition_with_environment_context", "partitions", "sales", "t", values=("1",)),
        ),
        (
            ("drop_partition_by_name", "sales", "t", "p=1/q=%2F", True),
            Drop("drop_partition_by_name", "partitions", "sales", "t", name="p=1/q=%2F"),
        ),
        (
            ("drop_partition_by_name_with_environment_context", "sales", "t", "p=1", False, CONTEXT),
            Drop("drop_partition_by_name_with_environment_context", "partitions", "sales", "t", False, name="p=1"),
        ),
        (
            ("drop_partitions_req", request(names=["p=1", "p=2"])),
            Drop("drop_partitions_req", "partitions", "sales", "t", names=("p=1", "p=2")),
        ),
        (
            ("drop_partitions_req", request(exprs=[ttypes.DropPartitionsExpr(expr=b"\x01\x00\xff")])),
            Drop("drop_partitions_req", "partitions", "sales", "t", expressions=(b"\x01\x00\xff",)),
        ),
        (("drop_database", "Sales", True, True), Drop("drop_database", "database", "sales", cascade=True)),
        (("drop_database", "sales", True, False), Drop("drop_database", "database", "sales")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_a_client_asks_for_is_understood(call: tuple[Any, ...], understood: Drop) -> None:
    header, arguments = sent(*call)
    assert handling(header.name) == "intercept"
    assert understand(header.name, arguments) == understood
    changed, rest = parsed(without_deletion(header, arguments))
    assert (changed.name, changed.sequence, changed.kind) == (header.name, header.sequence, header.kind)
    off = understand(header.name, rest)
    assert not off.deletes
    assert Drop(**{**vars(off), "deletes": understood.deletes}) == understood, "nothing else has changed"


def test_fields_of_newer_releases_survive() -> None:
    header, arguments = sent("drop_table", "sales", "t", True)
    extended = (*arguments, Field(77, STRUCT, (Field(1, STRING, b"new"),)), Field(-3, I64, b"\0" * 8))
    _, rest = parsed(without_deletion(header, extended))
    assert rest == with_field(extended, 3, BOOL, b"\0")


def test_requests_of_newer_servers_are_understood() -> None:
    """drop_table_req, drop_database_req, drop_partition_req: Hive 4."""
    table = struct({1: struct({1: "hive", 2: "Sales", 3: "T", 4: True, 6: True})})
    assert understand("drop_table_req", table) == Drop("drop_table_req", "table", "sales", "t")
    silent = struct({1: struct({2: "sales", 3: "t"})})
    assert not understand("drop_table_req", silent).deletes, "the server takes an absent deleteData for no"
    database = struct({1: struct({1: "sales", 3: False, 4: True, 5: True})})
    assert understand("drop_database_req", database) == Drop("drop_database_req", "database", "sales", cascade=True)
    partition = struct({1: struct({2: "sales", 3: "t", 4: "p=1", 6: True})})
    assert understand("drop_partition_req", partition) == Drop(
        "drop_partition_req", "partitions", "sales", "t", name="p=1"
    )
    for name, arguments, number in (
        ("drop_table_req", table, 4),
        ("drop_database_req", database, 4),
        ("drop_partition_req", partition, 6),
    ):
        _, rest = parsed(without_deletion(MessageHeader(1, name, 5, 0), arguments))
        assert flag(find(rest, 1, STRUCT), number) is False


def test_an_absent_delete_data_of_a_request_means_yes() -> None:
    header, arguments = sent("drop_partitions_req", request(names=["p=1"]))
    assert flag(find(arguments, 1, STRUCT), 4) is None and understand(header.name, arguments).deletes
    _, rest = parsed(without_deletion(header, arguments))
    assert flag(find(rest, 1, STRUCT), 4) is False


def test_a_truncation_asks_newer_servers_to_leave_the_files() -> None:
    whole = struct({1: struct({1: "sales", 2: "t"})})
    assert understand("truncate_table_req", whole) == Drop("truncate_table_req", "truncate", "sales", "t")
    some = struct({1: struct({1: "sales", 2: "t", 3: ["p=1"]})})
    assert understand("truncate_table_req", some).names == ("p=1",)
    _, rest = parsed(without_deletion(MessageHeader(1, "truncate_table_req", 5, 0), some))
    properties = find(find(find(rest, 1, STRUCT), 6, STRUCT), 1, MAP)
    assert properties.items == ((b"truncateSkipDataDeletion", b"true"),)
    assert not understand("truncate_table_req", rest).deletes
    old = understand("truncate_table", struct({1: "sales", 2: "t"}))
    assert (old.names, old.deletes) == (None, True)
    assert understand("truncate_table", struct({1: "sales", 2: "t", 3: []})).names == ()


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("drop_table", {1: "@other#sales", 2: "t", 3: True}, "catalog other"),
        ("drop_table", {1: "sales", 3: True}, "does not name a table"),
        ("drop_database", {2: True}, "does not name a database"),
        ("drop_partition", {1: "sales", 2: "t", 4: True}, "does not name its partitions"),
        ("drop_partitions_req", {1: struct({1: "s", 2: "t", 3: struct({7: "new"})})}, "does not name its partitions"),
        ("drop_partitions_req", {}, "does not name a"),
    ],
)
def test_what_is_not_understood_says_why(name: str, arguments: dict[int, Any], why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        understand(name, struct(arguments))


TWICE = (*struct({1: "sales", 2: "t", 3: False}), Field(3, BOOL, b"\1"))
LYING = (*struct({1: "sales", 2: "t", 4: False}), Field(3, LIST, ListValue(I64, (bytes(8),))))
UNION = struct({1: "s", 2: "t", 3: struct({1: ["p=1"], 2: [struct({1: b"x"})]}), 4: False})
CONTEXT_LYING = Field(4, STRUCT, (Field(1, MAP, Mapped(I64, I64, ((bytes(8), bytes(8)),))),))


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("drop_table", TWICE, "twice"),
        ("drop_partition", LYING, "neither strings nor structs"),
        ("drop_partitions_req", struct({1: UNION}), "two ways"),
        ("drop_table_with_environment_context", (*struct({1: "s", 2: "t", 3: False}), CONTEXT_LYING), "a map"),
        ("truncate_table", struct({1: "s", 2: "t", 3: [struct({1: "p=1"})]}), "does not name its partitions"),
    ],
)
def test_what_a_server_may_read_otherwise_is_not_understood(name: str, arguments: Fields, why: str) -> None:
    """Each would have been a drop without deletion here, and one with it there."""
    with pytest.raises(NotUnderstood, match=why):
        understand(name, arguments)


DECLARED = [name for name in SHAPES if hasattr(getattr(ThriftHiveMetastore, f"{name}_result", None), "thrift_spec")]


@pytest.mark.parametrize("name", DECLARED)
def test_a_refusal_is_an_error_that_its_method_declares(name: str) -> None:
    output = refusal(MessageHeader(1, name, 7, 0), "no space")
    client = ThriftHiveMetastore.Client(TBinaryProtocol(TMemoryBuffer(output)))
    with pytest.raises(ttypes.MetaException, match="no space"):
        getattr(client, f"recv_{name}")()


@pytest.mark.parametrize(
    ("type", "message", "truncated"),
    [
        ("ALTER_TABLE", '{"isTruncateOp":"true"}', True),
        ("ALTER_PARTITION", '{"isTruncateOp":true}', True),
        ("ALTER_TABLE", '{"isTruncateOp":"false"}', False),
        ("ALTER_TABLE", "{}", False),
        ("ALTER_TABLE", '{"isTruncateOp":', False),
        ("ALTER_TABLE", "neither", False),
        ("INSERT", '{"isTruncateOp":"true"}', False),
    ],
)
def test_only_an_alteration_that_says_so_is_a_truncation(type: str, message: str, truncated: bool) -> None:
    assert is_truncation(NotificationEvent(1, 1, type, "db", "t", message)) == truncated


def test_errors_are_what_the_bindings_raise() -> None:
    header = MessageHeader(1, "drop_table", 7, 0)
    for data, kind in (
        (declared_error(header, 2, "no space"), ttypes.MetaException),
        (application_error(header, 6, "no space"), Exception),
    ):
        client = ThriftHiveMetastore.Client(TBinaryProtocol(TMemoryBuffer(data)))
        with pytest.raises(kind, match="no space"):
            client.recv_drop_table()
    answered, fields = parsed(application_error(None, 7, "what"))
    assert (answered.name, answered.kind, text(fields, 1)) == ("", 3, "what")
    assert message("x", ()).endswith(b"\0")
