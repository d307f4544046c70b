"""The thrift client against a real metastore: every call of the protocol, and what a server that goes away does."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from counting_proxy import counting
from waiting import CEILING

from replicator.core.connections import MetastoreConfig, addresses
from replicator.core.model import (
    EXTERNAL,
    Column,
    ColumnStatistic,
    Database,
    Function,
    Partition,
    Serde,
    Skew,
    Statistics,
    Storage,
    Table,
    partition_name,
)
from replicator.errors import (
    CommitOutcomeUnknown,
    MetastoreError,
    MetastoreUnreachable,
    NotAMetastore,
    NotificationLogOff,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from replicator.metastore import connection
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.metastore.transport import CALL

TEXT = Storage(
    columns=(Column(name="a", type="int", comment="größe 🦆"), Column(name="b", type="array<string>")),
    input_format="org.apache.hadoop.mapred.TextInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
    serde=Serde(library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", parameters={"serialization.format": "1"}),
)
BY_P = (Column(name="p", type="string"),)
LONG = {"2": {"rec": {"1": {"i64": -1}, "2": {"i64": 9}, "3": {"i64": 0}, "4": {"i64": 5}}}}


@pytest.fixture
def db(metastore: Metastore) -> str:
    """A database of the test's own."""
    name = f"db_{uuid.uuid4().hex}"
    metastore.create_database(Database(name=name))
    return name


def at(location: str | Path, storage: Storage = TEXT) -> Storage:
    return msgspec.structs.replace(storage, location=str(location))


def partitions_at(directory: Path, values: list[str]) -> list[Partition]:
    """Partitions with directories of their own, which exist."""
    made = []
    for i, value in enumerate(values):
        place = directory / f"x{i}"
        place.mkdir(parents=True)
        made.append(Partition(values=(value,), storage=at(place), parameters={"numFiles": "3", "totalSize": "42"}))
    return made


def path_of(location: str | None) -> Path:
    assert location is not None
    return Path(location.removeprefix("file:"))


# --- databases


def test_a_database_is_made_changed_and_dropped_but_its_directory_stays(
    metastore: Metastore, source_metastore: Running
) -> None:
    place = source_metastore.warehouse / "elsewhere"
    made = Database(
        name="made",
        description="Überblick 🦆",
        location=f"file:{place}",
        parameters={"ключ": "значение"},
        owner="o",
        owner_type="ROLE",
    )
    metastore.create_database(made)
    assert metastore.database("made") == made
    assert "made" in metastore.database_names()
    with pytest.raises(ObjectExists):
        metastore.create_database(made)
    changed = msgspec.structs.replace(made, parameters={"a": "b"}, owner="p", owner_type="USER")
    metastore.alter_database("made", changed)
    assert metastore.database("made") == changed
    (place / "file").write_text("x")
    metastore.drop_database("made")
    assert (place / "file").read_text() == "x"


def test_a_database_with_tables_is_not_dropped(metastore: Metastore, db: str) -> None:
    metastore.create_table(Table(db=db, name="t", storage=TEXT))
    with pytest.raises(MetastoreError, match="not empty"):
        metastore.drop_database(db)


# --- tables


def test_a_table_comes_back_as_it_was_sent(metastore: Metastore, db: str, tmp_path: Path) -> None:
    storage = msgspec.structs.replace(
        at(f"file:{tmp_path / 't'}"), buckets=2, bucket_columns=("a",), sort_columns=(("a", 1),), parameters={"x": "ü"}
    )
    made = Table(
        db=db,
        name="t",
        owner="öwner",
        retention=5,
        storage=storage,
        partition_keys=BY_P,
        parameters={"comment": "含む 🦆", "numFiles": "7", "transient_lastDdlTime": "5"},
    )
    metastore.create_table(made)
    read = metastore.table(db, "t")
    assert read.create_time > 0  # the server's own time, whatever is sent
    assert read == msgspec.structs.replace(made, create_time=read.create_time, rewrite_enabled=False)
    assert metastore.tables(db, ["t", "gone"]) == [read]
    assert metastore.table_names(db) == ["t"]
    with pytest.raises(ObjectExists, match=f"create table {db}.t"):
        metastore.create_table(made)


def test_a_skewed_table_comes_back_with_its_locations(metastore: Metastore, db: str, tmp_path: Path) -> None:
    skew = Skew(columns=("a",), values=(("1",), ("2",)), locations=((("1",), f"file:{tmp_path}/a=1"),))
    metastore.create_table(Table(db=db, name="t", storage=msgspec.structs.replace(TEXT, skew=skew)))
    storage = metastore.table(db, "t").storage
    assert storage is not None and storage.skew == skew


def test_a_view_comes_back_with_its_texts(metastore: Metastore, db: str) -> None:
    metastore.create_table(
        Table(
            db=db, name="v", kind="VIRTUAL_VIEW", storage=TEXT, view_original="select 'é'", view_expanded="SELECT 'é'"
        )
    )
    read = metastore.table(db, "v")
    assert (read.kind, read.view_original, read.view_expanded) == ("VIRTUAL_VIEW", "select 'é'", "SELECT 'é'")


def test_an_external_table_stays_external_and_drops_keep_data(metastore: Metastore, db: str, tmp_path: Path) -> None:
    for kind in (EXTERNAL, "MANAGED_TABLE"):
        place = tmp_path / kind
        metastore.create_table(Table(db=db, name="t", kind=kind, storage=at(f"file:{place}")))
        read = metastore.table(db, "t")
        assert (read.kind, read.is_external) == (kind, kind == EXTERNAL)
        (place / "file").write_text("x")
        metastore.drop_table(db, "t")
        assert (place / "file").read_text() == "x"


def test_statistics_of_an_altered_table_are_those_sent(metastore: Metastore, db: str, tmp_path: Path) -> None:
    metastore.create_table(Table(db=db, name="t", storage=at(f"file:{tmp_path}/t")))
    (tmp_path / "t/file").write_text("x")
    read = metastore.table(db, "t")
    parameters = {**read.parameters, "numFiles": "7", "totalSize": "70", "ünal": "ö"}
    columns = (*TEXT.columns, Column(name="c", type="date"))
    assert read.storage is not None
    changed = msgspec.structs.replace(
        read, parameters=parameters, storage=msgspec.structs.replace(read.storage, columns=columns)
    )
    metastore.alter_table(db, "t", changed)
    assert metastore.table(db, "t") == changed


def test_a_renamed_table_takes_its_directory_along(metastore: Metastore, db: str) -> None:
    metastore.create_table(Table(db=db, name="old", storage=TEXT))
    old = metastore.table(db, "old")
    (path_of(old.location) / "file").write_text("x")
    metastore.alter_table(db, "old", msgspec.structs.replace(old, name="new"))
    new = path_of(metastore.table(db, "new").location)
    assert (new.name, (new / "file").read_text()) == ("new", "x")
    with pytest.raises(ObjectNotFound):
        metastore.table(db, "old")


# --- partitions

# Every character that Hive escapes in a partition name, some that it does not, and the empty value.
ODD = [*(chr(c) for c in range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^", " ", "}", ",", "&", "é", "🦆", "..", "a=b/c=d%"]


def test_partition_values_with_every_escaped_character_round_trip(
    metastore: Metastore, db: str, tmp_path: Path
) -> None:
    metastore.create_table(Table(db=db, name="t", storage=TEXT, partition_keys=BY_P))
    sent = partitions_at(tmp_path, [f"<{odd}>" for odd in ODD])
    metastore.add_partitions(db, "t", sent)
    names = metastore.partition_names(db, "t")
    assert sorted(names) == sorted(partition_name(BY_P, partition.values) for partition in sent)
    assert {unquote(name.removeprefix("p=")) for name in names} == {partition.values[0] for partition in sent}
    read = [partition for batch in metastore.partitions(db, "t", names) for partition in batch]
    assert {partition.values: partition.location for partition in read} == {
        partition.values: f"file:{partition.location}" for partition in sent
    }
    metastore.drop_partitions(db, "t", names)
    assert metastore.partition_names(db, "t") == []


def test_partitions_are_added_once_altered_renamed_and_dropped(metastore: Metastore, db: str, tmp_path: Path) -> None:
    metastore.create_table(Table(db=db, name="t", kind=EXTERNAL, storage=TEXT, partition_keys=BY_P))
    sent = partitions_at(tmp_path, ["a", "b", "c"])
    metastore.add_partitions(db, "t", sent[:2])
    metastore.add_partitions(db, "t", sent)  # those that exist are left as they are
    names = metastore.partition_names(db, "t")
    assert names == ["p=a", "p=b", "p=c"]
    [read] = metastore.partitions(db, "t", ["p=a", "p=gone"])
    assert [(read[0].parameters["numFiles"], read[0].parameters["totalSize"])] == [("3", "42")]

    altered = msgspec.structs.replace(read[0], parameters={**read[0].parameters, "numFiles": "9", "é": "ü"})
    metastore.alter_partitions(db, "t", [altered])
    assert list(metastore.partitions(db, "t", ["p=a"])) == [[altered]]
    missing = msgspec.structs.replace(altered, values=("gone",))
    with pytest.raises(MetastoreError):
        metastore.alter_partitions(db, "t", [msgspec.structs.replace(altered, parameters={}), missing])
    assert list(metastore.partitions(db, "t", ["p=a"])) == [[altered]]

    metastore.rename_partition(db, "t", ["a"], msgspec.structs.replace(altered, values=("z",)))
    assert metastore.partition_names(db, "t") == ["p=b", "p=c", "p=z"]
    for partition in sent:
        (path_of(partition.location) / "file").write_text("x")
    metastore.drop_partitions(db, "t", ["p=b", "p=gone", "p=z"])
    assert metastore.partition_names(db, "t") == ["p=c"]
    metastore.add_partitions(db, "t", [])
    metastore.alter_partitions(db, "t", [])
    metastore.drop_partitions(db, "t", [])
    assert all((path_of(partition.location) / "file").read_text() == "x" for partition in sent)


def test_managed_partitions_keep_their_data_when_dropped(metastore: Metastore, db: str, tmp_path: Path) -> None:
    metastore.create_table(Table(db=db, name="t", storage=TEXT, partition_keys=BY_P))
    [sent] = partitions_at(tmp_path, ["a"])
    metastore.add_partitions(db, "t", [sent])
    (path_of(sent.location) / "file").write_text("x")
    metastore.drop_partitions(db, "t", ["p=a"])
    assert (path_of(sent.location) / "file").read_text() == "x"


def test_thousands_of_partitions_are_read_in_batches_and_reading_may_stop_early(
    metastore: Metastore, db: str, tmp_path: Path
) -> None:
    metastore.create_table(Table(db=db, name="t", kind=EXTERNAL, storage=TEXT, partition_keys=BY_P))
    sent = partitions_at(tmp_path, [f"{i:05}" for i in range(2100)])
    for start in range(0, len(sent), PARTITION_BATCH):
        metastore.add_partitions(db, "t", sent[start : start + PARTITION_BATCH])
    names = metastore.partition_names(db, "t")
    batches = list(metastore.partitions(db, "t", names))
    assert [len(batch) for batch in batches] == [PARTITION_BATCH, PARTITION_BATCH, 100]
    read = [partition for batch in batches for partition in batch]
    assert sorted(partition.values for partition in read) == [(f"{i:05}",) for i in range(2100)]
    first = read[0].storage
    assert first is not None
    assert all(partition.storage and partition.storage.columns is first.columns for partition in read)

    before = _settled()
    early = iter(metastore.partitions(db, "t", names))
    assert len(next(early)) == PARTITION_BATCH
    early.close()  # type: ignore[attr-defined]
    assert _settled() == before


def _settled() -> int:
    """The number of threads, once readers that were stopped have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("read"):
            thread.join(CEILING)
    return threading.active_count()


# --- functions and statistics


def test_a_function_is_made_changed_and_dropped(metastore: Metastore, db: str) -> None:
    made = Function(
        db=db,
        name="f",
        class_name="org.example.F",
        owner="o",
        owner_type="USER",
        resources=(("JAR", "file:/é.jar"), ("FILE", "file:/f"), ("ARCHIVE", "file:/a.zip")),
    )
    metastore.create_function(made)
    with pytest.raises(ObjectExists):
        metastore.create_function(made)
    [read] = metastore.functions(db)
    assert read == msgspec.structs.replace(made, create_time=read.create_time)
    metastore.alter_function(msgspec.structs.replace(read, class_name="org.example.G"))
    assert [function.class_name for function in metastore.functions(db)] == ["org.example.G"]
    metastore.drop_function(db, "f")
    assert metastore.function_names(db) == []


def test_column_statistics_are_set_and_read(metastore: Metastore, db: str, tmp_path: Path) -> None:
    metastore.create_table(Table(db=db, name="u", storage=TEXT))
    metastore.create_table(Table(db=db, name="p", kind=EXTERNAL, storage=TEXT, partition_keys=BY_P))
    metastore.add_partitions(db, "p", partitions_at(tmp_path, ["x", "y=", "z"]))
    assert metastore.table_statistics(db, "u", ["a"]) is None
    assert metastore.table_statistics(db, "u", []) is None
    of_a = (ColumnStatistic(column="a", type="int", data=LONG),)
    of_table = Statistics(db=db, table="u", columns=of_a)
    metastore.set_table_statistics(of_table)
    assert metastore.table_statistics(db, "u", ["a", "b"]) == of_table
    names = metastore.partition_names(db, "p")
    assert metastore.partition_statistics(db, "p", ["a"], names) == []
    of_partitions = [Statistics(db=db, table="p", partition=name, columns=of_a) for name in names[:2]]
    metastore.set_partition_statistics(of_partitions)
    read = metastore.partition_statistics(db, "p", ["a"], names)
    assert sorted(read, key=lambda found: found.partition or "") == of_partitions
    assert metastore.partition_statistics(db, "p", [], names) == []


# --- events


def test_events_are_read_after_an_id(metastore: Metastore, db: str) -> None:
    before = metastore.current_event_id()
    metastore.create_table(Table(db=db, name="t", storage=TEXT))
    metastore.drop_table(db, "t")
    events = metastore.next_events(before)
    assert [(event.type, event.db, event.table) for event in events] == [
        ("CREATE_TABLE", db, "t"),
        ("DROP_TABLE", db, "t"),
    ]
    assert [event.id for event in events] == [before + 1, before + 2]
    assert metastore.current_event_id() == before + 2
    assert "größe 🦆" in (events[0].message or "")
    assert metastore.next_events(before, 1) == events[:1]
    assert metastore.next_events(before + 2) == []


def test_a_server_without_a_listener_keeps_no_log(without_log: Running) -> None:
    with connect(without_log.uri) as quiet, pytest.raises(NotificationLogOff) as raised:
        quiet.current_event_id()
    assert "hive.metastore.transactional.event.listeners" in raised.value.hint
    assert "hive.metastore.event.listeners" in raised.value.hint


# --- what is not there


@pytest.mark.parametrize(
    "ask",
    [
        lambda m, db: m.database("nope"),
        lambda m, db: m.alter_database("nope", Database(name="nope")),
        lambda m, db: m.drop_database("nope"),
        lambda m, db: m.table_names("nope"),
        lambda m, db: m.table(db, "nope"),
        lambda m, db: m.table("nope", "nope"),
        lambda m, db: m.tables("nope", ["nope"]),
        lambda m, db: m.drop_table(db, "nope"),
        lambda m, db: m.partition_names(db, "nope"),
        lambda m, db: list(m.partitions(db, "nope", ["p=1"])),
        lambda m, db: m.drop_partitions(db, "nope", ["p=1"]),
        lambda m, db: m.drop_function(db, "nope"),
        lambda m, db: m.table_statistics(db, "nope", ["a"]),
    ],
)
def test_what_is_missing_is_said_to_be_missing(metastore: Metastore, ask: Callable[..., object]) -> None:
    with pytest.raises(ObjectNotFound):
        ask(metastore, "default")


def test_a_long_error_of_the_server_is_shortened(metastore: Metastore, db: str) -> None:
    with pytest.raises(MetastoreError) as raised:
        metastore.create_table(Table(db=db, name="t" * 5000, storage=TEXT))
    assert len(raised.value.message) < 6000 and "characters)" in raised.value.message


# --- many threads, and a server that goes away


def test_threads_that_share_a_client_get_their_own_answers(metastore: Metastore, db: str) -> None:
    names = [f"t{i}" for i in range(8)]
    for name in names:
        metastore.create_table(Table(db=db, name=name, storage=TEXT))
    asked = names * 50
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: metastore.table(db, name).name, asked)) == asked


def size_of_greeting(uri: str) -> int:
    """Bytes of a metastore's first answer."""
    host, _, port = uri.removeprefix("thrift://").rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(CALL)
        return len(client.recv(1024))


class Proxy:
    """A TCP proxy to a metastore. Each new connection is cut after as many bytes of answers as `cuts` says next."""

    def __init__(self, uri: str, cuts: list[int]) -> None:
        host, _, port = uri.removeprefix("thrift://").rpartition(":")
        self._server = (host, int(port))
        self.cuts = cuts
        self.connections = 0
        self._clients: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def cut_all(self) -> None:
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._clients.append(client)
            left = self.cuts.pop(0) if self.cuts else 2**60
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pump, args=(client, server, 2**60), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, left), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(65536)):
                sink.sendall(data[:left])
                left -= len(data)
        for end in (source, sink):
            with suppress(OSError):  # the other direction did it
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(source_metastore: Running) -> Iterator[Proxy]:
    between = Proxy(source_metastore.uri, [])
    yield between
    between.close()


def test_a_read_is_repeated_when_the_answer_breaks_off(proxy: Proxy, metastore: Metastore) -> None:
    proxy.cuts = [3, 40]
    with connect(proxy.uri) as broken:
        assert broken.database_names() == metastore.database_names()
    assert proxy.connections == 3


def test_a_read_that_keeps_breaking_off_is_given_up(proxy: Proxy) -> None:
    proxy.cuts = [3] * 10
    with ThriftMetastore(proxy.uri, retries=2) as broken, pytest.raises(MetastoreUnreachable, match="connection broke"):
        broken.database_names()
    assert proxy.connections == 3


def test_a_change_whose_answer_breaks_off_is_not_repeated(proxy: Proxy, metastore: Metastore) -> None:
    proxy.cuts = [size_of_greeting(metastore.uri) + 3]
    with connect(proxy.uri) as broken:
        with pytest.raises(CommitOutcomeUnknown) as raised:
            broken.create_database(Database(name="perhaps"))
        assert proxy.connections == 1
        assert broken.database("perhaps").name == "perhaps"  # it happened, and the client goes on
    assert raised.value.transient and raised.value.hint


def test_a_connection_that_was_closed_while_idle_does_not_spoil_a_change(proxy: Proxy, metastore: Metastore) -> None:
    with connect(proxy.uri) as client:
        client.database_names()
        proxy.cut_all()
        client.create_database(Database(name="afterwards"))
    assert proxy.connections == 2
    assert metastore.database("afterwards").name == "afterwards"


DAY = 86_400.0


@contextmanager
def answering(answer: bytes, over: ssl.SSLContext | None = None) -> Iterator[str]:
    """A port that says so after it has read something, or speaks TLS, and says nothing more. Its URI."""
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                kept.append(client)
                with suppress(OSError):
                    if over is not None:
                        over.wrap_socket(client, server_side=True)
                    client.recv(64)
                    client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"thrift://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    for client in kept:
        client.close()


@pytest.mark.parametrize(("limit", "first_answer"), [(0.5, DAY), (DAY, 0.5)])
def test_a_server_that_does_not_answer_in_time_is_unreachable(
    limit: float, first_answer: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer has twenty seconds, or the limit of all. It is asked for once; of a change nothing was sent."""
    assert connection.FIRST_ANSWER == 20
    monkeypatch.setattr(connection, "FIRST_ANSWER", first_answer)
    with answering(b"") as uri, counting(uri) as proxy, ThriftMetastore(proxy.uri, timeout=limit) as client:
        with pytest.raises(MetastoreUnreachable, match=r"no answer within 0\.5 s"):
            client.database_names()
        with pytest.raises(MetastoreUnreachable, match=r"no answer within 0\.5 s"):
            client.drop_table("d", "t")
        assert proxy.count() == {"getName": 2}


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"\x04\x00\x00\x00\x13Invalid status -128", "SASL"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0"),
        (b"\x00\x00\x00\x20\x80\x01\x00\x02", "framed"),
    ],
)
def test_a_port_that_speaks_something_else_is_told_by_what_it_says(
    answer: bytes, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the time for an answer is over, which nobody can wait out here."""
    monkeypatch.setattr(connection, "FIRST_ANSWER", DAY)
    with (
        answering(answer) as uri,
        ThriftMetastore(uri, timeout=DAY) as client,
        pytest.raises(NotAMetastore, match=output),
    ):
        client.database_names()


def test_a_web_server_and_a_tls_port_are_told_at_once(tmp_path: Path) -> None:
    """Real ones: Python's web server, which waits for the end of a line, and OpenSSL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        with (
            connect(f"thrift://127.0.0.1:{web.server_address[1]}") as client,
            pytest.raises(NotAMetastore, match="HTTP"),
        ):
            client.database_names()
        web.shutdown()
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(b"", over=context) as uri, connect(uri) as client, pytest.raises(MetastoreError, match="TLS"):
        client.database_names()


def test_one_address_that_is_something_else_is_passed_over(metastore: Metastore) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as uri, connect(f"{uri},{metastore.uri}") as client:
        assert client.database_names() == metastore.database_names()


def test_a_killed_server_is_unreachable_at_once_and_found_again(
    metastore_factory: Callable[..., Running], source_metastore: Running, tmp_path: Path
) -> None:
    running = metastore_factory(directory=tmp_path / "killed")
    both = connect(f"{running.uri},{source_metastore.uri}")
    patient = MetastoreConfig(running.uri, connect_timeout="1d", answer_timeout="1d")  # no time-out tells it
    with connect(patient) as client, both:
        client.create_database(Database(name="only_here"))
        assert both.database("only_here").name == "only_here"
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(MetastoreUnreachable) as raised:
            client.database_names()
        with pytest.raises(MetastoreUnreachable):
            client.create_database(Database(name="never_sent"))
        assert running.uri in raised.value.hint
        with pytest.raises(ObjectNotFound):
            both.database("only_here")  # the second server answers now
        assert metastore_factory(directory=tmp_path / "killed").uri == running.uri
        assert client.database("only_here").name == "only_here"


@pytest.mark.parametrize("uri", ["", "http://h:1", "thrift://", "thrift://h:port", "thrift://h:0", "thrift://h:1,"])
def test_a_bad_uri_is_a_usage_error(uri: str) -> None:
    with pytest.raises(UsageError, match="metastore URI"):
        connect(uri)


def test_addresses_may_leave_out_scheme_and_port() -> None:
    assert addresses("thrift://a:1, b ,thrift://[::1]:2,[::1]") == [("a", 1), ("b", 9083), ("::1", 2), ("::1", 9083)]
