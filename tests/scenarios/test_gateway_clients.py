"""Clients of the gateway: what passes it unchanged, those that misbehave, and how it begins and ends."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from queue import Queue
from struct import pack

import pytest
from command_line import Answer, command
from gateways import FILES, Guarded, Wire, contents, guarded
from raw_thrift import RawClient, message, struct
from waiting import CEILING, eventually

import replicator
from cmroot.keep.store_lock import removing
from cmroot.root import create_or_open
from replicator.captures.gateways import server
from replicator.captures.gateways.messages import BOOL, I64, LIST, STRING, Field, Fields, ListValue
from replicator.captures.gateways.relay import MANY as MANY_VALUES
from replicator.captures.gateways.security import Timeouts
from replicator.captures.gateways.server import opened, parse_listen
from replicator.errors import LeaseHeld, NotificationLogOff, UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.metastore.transport import CALL as GREETING

# ---- what passes ----------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_metastore(guard: Guarded) -> None:
    guard.database.partitioned("t", {str(number): {"f": "x"} for number in range(50)})
    with RawClient(guard.running.uri) as direct:
        for name, *arguments in (
            ("get_all_databases",),
            ("get_database", guard.db),
            ("get_table", guard.db, "t"),
            ("get_table", guard.db, "no"),
            ("get_partition_names", guard.db, "t"),
            ("get_partitions_by_names", guard.db, "t", ["p=1", "p=2"]),
            ("get_no_such_method", "x"),
            ("drop_function", guard.db, "no"),
            ("getName",),
        ):
            assert guard.client.call(name, *arguments) == direct.call(name, *arguments), name


def test_a_message_of_30_megabytes_passes_both_ways(guard: Guarded) -> None:
    """set_ugi gives back what it is reported."""
    groups = [f"{number:05}" * 200 for number in range(30_000)]
    output = guard.call("set_ugi", "someone", groups)
    assert [item.decode() for item in output.fields[0].value.items] == groups


def test_a_call_may_arrive_byte_by_byte(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    for data in (
        message("get_database", struct({1: guard.db})),
        message("drop_table", struct({1: guard.db, 2: "t", 3: True})),
    ):
        for at in range(len(data)):
            guard.client.socket.sendall(data[at : at + 1])
        assert not guard.client.receive().failed
    assert guard.taken().keys() == {"t/one", "t/two"}


def test_sixteen_clients_at_once_each_get_their_own_answers(guard: Guarded) -> None:
    for number in range(16):
        guard.database.table(f"t{number}", {"f": f"of {number}"})

    def work(number: int) -> None:
        with RawClient(guard.uri) as client:
            for _ in range(10):
                output = client.call("get_table", guard.db, f"t{number}")
                assert f"t{number}".encode() in (field.value for field in output.fields[0].value)
            assert not client.call("drop_table", guard.db, f"t{number}", True).failed

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert guard.taken() == {f"t{number}/f": f"of {number}" for number in range(16)}
    events = guard.events()
    assert {events[event] for _, event in guard.entries()} == {"DROP_TABLE"}
    assert len({event for _, event in guard.entries()}) == 16 and guard.is_settled()


def test_one_table_dropped_by_many_is_dropped_once(guard: Guarded) -> None:
    guard.database.table("t", FILES)

    def drop(_: int) -> bool:
        with RawClient(guard.uri) as client:
            return client.call("drop_table", guard.db, "t", True).failed

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(drop, range(6))) == [False] + [True] * 5
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}


def test_more_clients_than_threads_wait_for_their_turn(source_metastore: Running, tmp_path: Path) -> None:
    with guarded(source_metastore, tmp_path, threads=2) as guard:
        guard.call("get_all_databases")

        def ask(_: int) -> bool:
            with RawClient(guard.uri) as client:
                return not client.call("get_database", guard.db).failed

        with ThreadPoolExecutor(5) as pool:
            assert all(pool.map(ask, range(5)))


# ---- clients that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x80\x01\x00\x02\x00\x00\x00\x01x\x00\x00\x00\x01",
        b"\xff" * 100,
        message("drop_table", ())[:-1] + b"\x63\x00\x01",
        message("drop_table", ())[:-1] + b"\x0b\x00\x01\xff\xff\xff\xff",
    ],
)
def test_garbage_ends_its_own_connection_only(guard: Guarded, garbage: bytes) -> None:
    with RawClient(guard.uri) as client:
        client.socket.sendall(garbage)
        output = client.receive()
        assert output.protocol_error and "cannot parse this" in output.message
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()
    guard.call("get_database", guard.db)


@pytest.mark.parametrize(
    ("begin", "answer", "why"),
    [
        (b"POST /metastore HTTP/1.1\r\n\r\n", b"HTTP/1.1 501 ", b"HTTP?"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x15\x03", b""),
        (b"\x01\0\0\0\x06GSSAPI", b"\x03\0", b"Kerberos?"),
        (b"\x00\x00\x00\x10" + message("getName", ()), b"\0\0", b"framed"),
    ],
    ids=["http", "tls", "sasl", "framed"],
)
def test_other_transports_are_refused_in_their_own_words(
    guard: Guarded, begin: bytes, answer: bytes, why: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", int(guard.uri.rpartition(":")[2])), CEILING) as client:
        client.sendall(begin)
        said = b"".join(iter(lambda: client.recv(1 << 12), b""))
    assert said.startswith(answer) and why in said
    guard.call("get_database", guard.db)


def test_a_client_that_goes_away_in_the_middle_disturbs_nobody(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    whole = message("drop_table", struct({1: guard.db, 2: "t", 3: True}))
    for data in (whole[:5], whole[:-3], message("get_database", struct({1: guard.db}))[:-2]):
        with RawClient(guard.uri) as client:
            client.socket.sendall(data)
    guard.call("get_database", guard.db)
    assert contents(guard.place("t")) == FILES and guard.is_settled()


def test_a_call_sent_behind_another_is_not_let_through_unseen(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    with RawClient(guard.uri) as client:
        output = client.send(
            message("get_all_databases", ()) + message("drop_table", struct({1: guard.db, 2: "t", 3: True}))
        )
        assert output.protocol_error and "one call at a time" in output.message
    assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == FILES


def drop_of(guard: Guarded) -> bytes:
    return message("drop_table", struct({1: guard.db, 2: "t", 3: True}))


HARMLESS = {
    "small": message("get_all_databases", ()),
    "large": message("set_ugi", struct({1: "someone", 2: ["x" * 100] * 1000})),
    "larger": message("set_ugi", struct({1: "someone", 2: ["x" * 300_000, "y" * 300_000]})),
}


@pytest.mark.parametrize("first", HARMLESS)
@pytest.mark.parametrize("way", ["same packet", "next packet", "within the first"])
def test_a_call_sent_before_an_answer_is_not_let_through_unseen(
    source_metastore: Running, tmp_path: Path, first: str, way: str
) -> None:
    """The answer to the first call is held back until the gateway has reacted to the second."""
    wire, reacted = Wire(source_metastore.uri), threading.Event()
    calls: list[bytes] = []

    def hold(data: bytes) -> None:
        if data.startswith(GREETING):  # the gateway's own, before the first call
            return
        calls.append(data)
        assert reacted.wait(CEILING)

    with guarded(source_metastore, tmp_path, upstream=wire.uri) as guard, RawClient(guard.uri) as client:
        guard.database.table("t", FILES)
        call, drop = HARMLESS[first], drop_of(guard)
        cut = {"same packet": 0, "next packet": len(call), "within the first": len(call) - 1}[way]
        wire.on_call = hold
        if cut:
            client.socket.sendall(call[:cut])
            eventually(lambda: calls)
        client.socket.sendall(call[cut:] + drop)
        select.select([client.socket], [], [], CEILING)
        reacted.set()
        output = client.receive()
        assert output.protocol_error and "one call at a time" in output.message
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()
        assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == FILES
    assert not any(b"drop_table" in data for data in calls)
    wire.close()


def test_a_call_hidden_in_another_by_a_wrong_type_is_not_let_through(guard: Guarded) -> None:
    """A server reads a list as its declaration says, whatever its head does: eight bytes of a number are two empty
    names to it, and what comes after these is its next call."""
    guard.database.partitioned("t", {"a": {"f": "a"}})
    drop = drop_of(guard)
    hidden = b"\0" + drop
    hidden += bytes(-len(hidden) % 4)
    size = len(hidden) // 4
    listed = pack(">Bhbi", LIST, 3, I64, size) + bytes(4 * size) + hidden
    call = message("get_partitions_by_names", struct({1: guard.db, 2: "t"}))[:-1] + listed + b"\0"
    with RawClient(guard.uri) as client, suppress(EOFError, ConnectionResetError):
        client.send(call)
        client.receive()
    assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == {"p=a/f": "a"}


# ---- who takes too long ----------------------------------------------------------------------------------------------

SOON, LATE = timedelta(seconds=3), timedelta(days=1)


def is_served(guard: Guarded) -> None:
    """A new client is, though one that is too slow is not."""

    def gets_an_answer() -> bool:
        with suppress(EOFError, ConnectionError), RawClient(guard.uri, timeout=CEILING) as client:
            return not client.call("get_database", guard.db).failed
        return False

    eventually(gets_an_answer)


def test_clients_that_send_no_more_leave_their_places(source_metastore: Running, tmp_path: Path) -> None:
    """Each has taken one place, and gives it back."""
    impatient = Timeouts(client=timedelta(seconds=1))
    with guarded(source_metastore, tmp_path, threads=4, timeouts=impatient) as guard, ExitStack() as stack:
        guard.client.close()
        nothing, part_of_a_name, part_of_a_drop = b"", drop_of(guard)[:9], drop_of(guard)[:-3]
        silent = []
        for sent in (nothing, part_of_a_name, part_of_a_drop, HARMLESS["large"][:-7]):
            silent.append(stack.enter_context(RawClient(guard.uri, timeout=CEILING)))
            silent[-1].socket.sendall(sent)
        for client in silent:
            with pytest.raises((EOFError, ConnectionError)):
                client.receive()
        is_served(guard)


def test_clients_that_are_idle_leave_their_places(
    source_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_LIMIT", timedelta(seconds=0.5))
    with guarded(source_metastore, tmp_path, threads=3, timeouts=Timeouts(client=LATE)) as guard, ExitStack() as stack:
        guard.client.close()
        for _ in range(3):
            client = stack.enter_context(RawClient(guard.uri))
            assert not client.send(HARMLESS["small"]).failed
        is_served(guard)


def test_clients_that_do_not_read_leave_their_places(source_metastore: Running, tmp_path: Path) -> None:
    groups = [f"{number:05}" * 200 for number in range(20_000)]  # the answer repeats them: more than buffers hold
    with guarded(source_metastore, tmp_path, threads=3, timeouts=Timeouts(client=SOON)) as guard, ExitStack() as stack:
        guard.client.close()
        for _ in range(3):
            client = stack.enter_context(RawClient(guard.uri))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.sendall(message("set_ugi", struct({1: "someone", 2: groups})))
        is_served(guard)


@pytest.mark.parametrize("name", ["get_table", "drop_table"])
def test_a_metastore_that_hangs_is_lost_after_a_while(source_metastore: Running, tmp_path: Path, name: str) -> None:
    """The drop is put back, and its table and the kept files are nobody's any more."""
    wire, over = Wire(source_metastore.uri), threading.Event()
    impatient = Timeouts(client=LATE, answer=timedelta(seconds=1), stop=LATE)
    with guarded(source_metastore, tmp_path, upstream=wire.uri, timeouts=impatient) as guard:
        guard.database.table("t", FILES)
        hung: list[bytes] = []

        def hang(data: bytes) -> str | None:
            if name.encode() not in data or hung:
                return None
            hung.append(data)
            assert over.wait(CEILING)
            return "cut"

        wire.on_call = hang
        output = guard.client.call(name, *[guard.db, "t", True][: 2 if name == "get_table" else 3])
        assert hung and output.failed and "no answer in time" in output.message
        assert contents(guard.place("t")) == FILES and guard.is_settled()
        with removing(guard.root.place, patience=timedelta(seconds=CEILING)):
            pass

        def can_be_dropped() -> bool:
            with RawClient(guard.uri) as client:
                client.call("drop_table", guard.db, "t", True)
            return guard.direct.table_names(guard.db) == []

        eventually(can_be_dropped)
        over.set()
    wire.close()


def test_being_stopped_does_not_wait_for_what_does_not_end(source_metastore: Running, tmp_path: Path) -> None:
    """Nothing else ends these calls."""
    wire, over = Wire(source_metastore.uri), threading.Event()
    later = Timeouts(client=LATE, answer=LATE, stop=timedelta(seconds=1))
    with (
        guarded(source_metastore, tmp_path, upstream=wire.uri, timeouts=later) as guard,
        RawClient(guard.uri) as half,
        RawClient(guard.uri) as passing,
        RawClient(guard.uri) as dropping,
    ):
        guard.database.table("t", FILES)
        asked: list[bytes] = []

        def hang(data: bytes) -> str | None:
            if b"set_ugi" not in data and b"drop_table" not in data:
                return None
            asked.append(data)
            assert over.wait(CEILING)
            return "cut"

        wire.on_call = hang
        half.socket.sendall(drop_of(guard)[:-3])
        passing.socket.sendall(message("set_ugi", struct({1: "someone", 2: ["a"]})))
        dropping.socket.sendall(drop_of(guard))
        eventually(lambda: len(asked) == 2)
        assert guard.gateway.stop().cut_off >= 2
        output = dropping.receive()
        assert output.failed and "nothing was dropped" in output.message
        assert contents(guard.place("t")) == FILES and guard.is_settled()
        over.set()
    wire.close()


# ---- what is too large, and what is logged ---------------------------------------------------------------------------


MANY = Field(9, LIST, ListValue(BOOL, (b"\1",) * 300_000))


@pytest.mark.parametrize(
    "arguments", [(*struct({1: "db", 2: "t", 3: True}), MANY), struct({1: "db", 2: "t", 3: True, 9: b"x" * (17 << 20)})]
)
def test_a_call_that_is_read_whole_has_a_limit(guard: Guarded, arguments: Fields) -> None:
    with RawClient(guard.uri) as client, suppress(BrokenPipeError, ConnectionResetError):
        output = client.send(message("drop_table", arguments))
        assert output.failed and "too large" in output.message
    is_served(guard)


def test_a_call_of_thousands_of_values_is_not_too_large(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    more = Field(9, LIST, ListValue(STRING, (b"",) * (MANY_VALUES + 1)))
    assert not guard.client.send(message("drop_table", (*struct({1: guard.db, 2: "t", 3: True}), more))).failed
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}


def test_what_clients_send_stays_on_its_line_in_the_log(guard: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    forged = "drop_x\n2026-01-01 00:00:00,000 WARNING all is well\x1b]0;title\x07\x9b2J"
    assert guard.client.call(forged).failed
    assert guard.client.call("drop_table", f"@other\n\x1b[2J#{guard.db}", "t", True).failed
    output = [record.getMessage() for record in caplog.records]
    assert len(output) == 2 and all(line.isprintable() for line in output)
    assert "all is well" in output[0] and "other" in output[1]


# ---- beginning and end ----------------------------------------------------------------------------------------------


def test_being_stopped_waits_for_the_call_at_work(source_metastore: Running, tmp_path: Path) -> None:
    wire, asked, may_go_on = Wire(source_metastore.uri), threading.Event(), threading.Event()
    with guarded(source_metastore, tmp_path, upstream=wire.uri) as guard, ThreadPoolExecutor(2) as pool:
        guard.database.table("t", FILES)

        def hold(data: bytes) -> None:
            if b"drop_table" in data:
                asked.set()
                assert may_go_on.wait(CEILING)

        wire.on_call = hold
        with RawClient(guard.uri) as idle:
            assert not idle.call("get_all_databases").failed
            dropping = pool.submit(guard.client.call, "drop_table", guard.db, "t", True)
            assert asked.wait(CEILING)
            stopping = pool.submit(guard.gateway.stop)
            with pytest.raises((EOFError, ConnectionResetError)):
                idle.receive()  # it is being stopped
        assert not stopping.done()
        may_go_on.set()
        assert not dropping.result().failed
        report = stopping.result()
        assert guard.is_settled() and guard.taken().keys() == {"t/one", "t/two"}
    assert (report.status, report.intercepted, report.undecided, report.files) == ("stopped", 1, 0, 2)
    wire.close()


def test_there_is_one_gateway_for_each_cmroot(guard: Guarded) -> None:
    with pytest.raises(LeaseHeld), opened(guard.direct, guard.root, "127.0.0.1:0"):
        pass


def test_an_address_in_use_is_told(guard: Guarded, tmp_path: Path) -> None:
    taken = guard.uri.removeprefix("thrift://")
    other = create_or_open(str(tmp_path / "other"))
    with pytest.raises(UsageError, match="cannot listen"), opened(guard.direct, other, taken):
        pass


def test_a_metastore_without_an_event_log_is_refused(without_log: Running, tmp_path: Path) -> None:
    with pytest.raises(NotificationLogOff), guarded(without_log, tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9083", ("127.0.0.1", 9083)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
        ("localhost", ("localhost", 9083)),
        ("thrift://0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, parsed: tuple[str, int]) -> None:
    assert parse_listen(text) == parsed


def test_an_address_without_a_number_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        parse_listen("host:port")


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_where_it_listens_and_what_it_did(source_metastore: Running, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = [
        "gateway",
        "--source",
        source_metastore.uri,
        "--cmroot",
        str(tmp_path / "cmroot"),
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        str(ready),
        "--json",
    ]
    command_line = [sys.executable, "-m", "replicator.cli.main", *arguments]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr and child.stderr.readline().startswith("listening on thrift://127.0.0.1:")
        eventually(ready.exists)
        with RawClient(ready.read_text().strip()) as client:
            assert not client.call("get_all_databases").failed
            child.terminate()
            out, _ = child.communicate(timeout=CEILING)
    import json

    output = json.loads(out)
    assert child.returncode == 143
    assert (output["status"], output["exit_code"], output["calls"], output["connections"]) == ("stopped", 143, 1, 1)
    assert output["uri"] == ready.read_text().strip()


def test_a_metastore_that_is_away_is_told_at_the_start(tmp_path: Path) -> None:
    answer: Answer = command(
        "gateway", "--source", "thrift://127.0.0.1:1", "--cmroot", str(tmp_path / "cmroot"), "--listen", "127.0.0.1:0"
    )
    assert (answer.code, answer.error) == (75, "MetastoreUnreachable") and answer.output["hint"]


def test_a_gateway_in_python_serves_until_its_event_is_set(source_metastore: Running, tmp_path: Path) -> None:
    uris, stop = Queue[str](), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(
            replicator.gateway,
            source=source_metastore.uri,
            cmroot=str(tmp_path / "cmroot"),
            listen="127.0.0.1:0",
            ready_file=tmp_path / "ready",
            ready=uris.put,
            stop=stop,
        )
        try:
            uri = uris.get(timeout=CEILING)
            with connect(uri) as client:
                assert "default" in client.database_names()
        finally:
            stop.set()
        report = serving.result(timeout=CEILING)
    assert (report.uri, report.status, report.connections, report.exit_code) == (uri, "stopped", 1, 0)
    assert (tmp_path / "ready").read_text() == uri + "\n"
    assert list(report.to_dict())[-2:] == ["status", "exit_code"]
