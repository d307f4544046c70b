"""Truncation by the metastore. 2.3 has no such call, so a small server in front of a real one plays a newer release: it
empties directories itself, as Hive 3 does, unless it is asked to leave the files, as Hive 4 can be."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from gateways import FILES, Guarded, guarded
from raw_thrift import struct

from replicator.captures.gateways.messages import (
    MAP,
    REPLY,
    STRUCT,
    Fields,
    Garbage,
    MessageHeader,
    find,
    parse_header,
    read_struct,
    text,
    texts,
    write_struct,
)
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect


class Newer:
    """A metastore that truncates, or `fails` to."""

    def __init__(self, real: ThriftMetastore) -> None:
        self._real = real
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self.fails = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self._real.uri.removeprefix("thrift://").rpartition(":")
        with client, suppress(OSError, EOFError, Garbage), socket.create_connection((host, int(port))) as upstream:
            while True:
                header, arguments = _message(client)
                if header.name.startswith("truncate_table"):
                    client.sendall(self._truncate(header, arguments))
                    continue
                upstream.sendall(header.encode() + write_struct(arguments))
                answer, fields = _message(upstream)
                client.sendall(answer.encode() + write_struct(fields))

    def _truncate(self, header: MessageHeader, arguments: Fields) -> bytes:
        request = find(arguments, 1, STRUCT) if header.name == "truncate_table_req" else arguments
        db, table, names = text(request, 1) or "", text(request, 2) or "", texts(request, 3)
        if self.fails:
            return header.encode(REPLY) + write_struct(struct({1: struct({1: "not today"})}))
        properties = find(find(request, 6, STRUCT) or (), 1, MAP)
        if properties is None or (b"truncateSkipDataDeletion", b"true") not in properties.items:
            for place in self._places(db, table, names):
                assert place.is_dir(), "the server asks for the directory's owner first"
                shutil.rmtree(place)
                place.mkdir()
        before = self._real.table(db, table)
        parameters = {**before.parameters, "numFiles": "0"}
        self._real.alter_table(db, table, msgspec.structs.replace(before, parameters=parameters))
        return header.encode(REPLY) + b"\0"

    def _places(self, db: str, table: str, names: list[str] | None) -> list[Path]:
        found = self._real.table(db, table)
        if not found.is_partitioned:
            return [Path((found.location or "").removeprefix("file:"))]
        names = self._real.partition_names(db, table) if names is None else names
        return [
            Path((each.location or "").removeprefix("file:"))
            for batch in self._real.partitions(db, table, names)
            for each in batch
        ]

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _message(connection: socket.socket) -> tuple[MessageHeader, Fields]:
    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    begin = b""
    while (header := parse_header(begin)) is None:
        begin += read(1)
    return header, read_struct(read)


@pytest.fixture
def newer(source_metastore: Running) -> Iterator[Newer]:
    with connect(source_metastore.uri) as real:
        made = Newer(real)
        yield made
        made.close()


@pytest.fixture
def guard(source_metastore: Running, tmp_path: Path, newer: Newer) -> Iterator[Guarded]:
    with guarded(source_metastore, tmp_path, upstream=newer.uri) as made:
        yield made


@pytest.mark.parametrize("name", ["truncate_table", "truncate_table_req"])
@pytest.mark.parametrize("kind", ["MANAGED_TABLE", "EXTERNAL_TABLE"])
def test_what_a_truncation_removes_is_kept(guard: Guarded, name: str, kind: str) -> None:
    """External tables, too: the server does as it is reported."""
    guard.database.table("t", FILES, kind=kind)
    guard.place("t").chmod(0o750)
    arguments = [guard.db, "t"] if name == "truncate_table" else [struct({1: guard.db, 2: "t"})]
    guard.call(name, *arguments)
    assert list(guard.place("t").iterdir()) == []
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}
    assert guard.is_settled() and guard.direct.table_names(guard.db) == ["t"]
    guard.database.write("t", {"after": "new"})
    assert [path.name for path in guard.place("t").iterdir()] == ["after"]


def test_a_truncation_of_some_partitions_takes_these(guard: Guarded) -> None:
    guard.database.partitioned("t", {value: {"f": value} for value in "abc"})
    guard.call("truncate_table", guard.db, "t", ["p=a", "p=c"])
    assert guard.taken() == {"t/p=a/f": "a", "t/p=c/f": "c"}
    assert (guard.place("t") / "p=a").is_dir() and (guard.place("t") / "p=b" / "f").read_text() == "b"
    guard.call("truncate_table", guard.db, "t")
    assert guard.taken().keys() == {"t/p=a/f", "t/p=b/f", "t/p=c/f"}


def test_a_truncation_that_fails_puts_everything_back(guard: Guarded, newer: Newer) -> None:
    guard.database.table("t", FILES)
    inode = (guard.place("t") / "one").stat().st_ino
    newer.fails = True
    output = guard.client.call("truncate_table", guard.db, "t")
    assert output.failed and output.message == "not today"
    assert {path.name: path.read_text() for path in guard.place("t").iterdir()} == FILES
    assert (guard.place("t") / "one").stat().st_ino == inode and guard.entries() == []


def test_a_truncation_without_deletion_passes_unchanged(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    context = struct({1: {"truncateSkipDataDeletion": "true"}})
    guard.call("truncate_table_req", struct({1: guard.db, 2: "t", 6: context}))
    assert {path.name: path.read_text() for path in guard.place("t").iterdir()} == FILES and guard.entries() == []
