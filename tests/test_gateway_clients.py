"""Clients of the gateway: what passes it unchanged, those that misbehave, and how it begins and ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateways import FILES, Guarded, contents, guarded
from metastores import MetastoreFactory
from raw_thrift import RawClient, message, struct
from story import Answer, command

from cmroot.root import create_or_open
from replicator.errors import LeaseHeld, NotificationLogOff, UsageError
from replicator.gateway.server import opened, parse_listen
from replicator.metastore.embedded import Running


@pytest.fixture
def guard(source_metastore: Running, tmp_path: Path) -> Iterator[Guarded]:
    with guarded(source_metastore, tmp_path) as made:
        yield made


# ---- what passes ----------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_metastore(guard: Guarded) -> None:
    guard.database.partitioned("t", {str(number): {"f": "x"} for number in range(50)})
    with RawClient(guard.running.uri) as direct:
        for name, *arguments in (
            ("get_all_databases",), ("get_database", guard.db), ("get_table", guard.db, "t"),
            ("get_table", guard.db, "no"),
            ("get_partition_names", guard.db, "t"), ("get_partitions_by_names", guard.db, "t", ["p=1", "p=2"]),
            ("no_such_method", "x"), ("drop_function", guard.db, "no"), ("getName",),
        ):  # fmt: skip
            assert guard.client.call(name, *arguments) == direct.call(name, *arguments), name


def test_a_message_of_30_megabytes_passes_both_ways(guard: Guarded) -> None:
    """set_ugi gives back what it is told."""
    groups = [f"{number:05}" * 200 for number in range(30_000)]
    said = guard.call("set_ugi", "someone", groups)
    assert [item.decode() for item in said.fields[0].value.items] == groups


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
                said = client.call("get_table", guard.db, f"t{number}")
                assert f"t{number}".encode() in (field.value for field in said.fields[0].value)
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
        b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x00\x00\x00\x10\x80\x01\x00\x01",
        b"\x80\x01\x00\x02\x00\x00\x00\x01x\x00\x00\x00\x01", b"\xff" * 100,
        message("drop_table", ())[:-1] + b"\x63\x00\x01",
        message("drop_table", ())[:-1] + b"\x0b\x00\x01\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_garbage_ends_its_own_connection_only(guard: Guarded, garbage: bytes) -> None:
    with RawClient(guard.uri) as client:
        client.socket.sendall(garbage)
        said = client.receive()
        assert said.protocol_error and "cannot read this" in said.message
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()
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
        said = client.send(
            message("get_all_databases", ()) + message("drop_table", struct({1: guard.db, 2: "t", 3: True}))
        )
        assert said.protocol_error and "one call at a time" in said.message
    assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == FILES


# ---- beginning and end ----------------------------------------------------------------------------------------------


def test_being_stopped_waits_for_the_call_at_work(source_metastore: Running, tmp_path: Path) -> None:
    root = tmp_path / "cmroot"
    with guarded(source_metastore, tmp_path, cmroot=root) as guard:
        for number in range(2000):
            (guard.place("t") / f"{number:04}").parent.mkdir(parents=True, exist_ok=True)
            (guard.place("t") / f"{number:04}").write_text(str(number))
        guard.database.table("t")
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(guard.client.call("drop_table", guard.db, "t", True)))
        asking.start()
        deadline = time.monotonic() + 30
        while not any((root / "taking").iterdir()) and time.monotonic() < deadline:
            time.sleep(0.001)
        idle = RawClient(guard.uri)
        report = guard.gateway.stop()
        asking.join(30)
        assert not answers[0].failed and report.files == 2000
        with pytest.raises((EOFError, ConnectionResetError)):
            idle.call("get_all_databases")
        assert guard.is_settled() and len(guard.taken()) == 2000
    assert (report.status, report.intercepted, report.undecided) == ("stopped", 1, 0)


def test_there_is_one_gateway_for_each_cmroot(guard: Guarded) -> None:
    with pytest.raises(LeaseHeld), opened(guard.direct, guard.root, "127.0.0.1:0"):
        pass


def test_an_address_in_use_is_told(guard: Guarded, tmp_path: Path) -> None:
    taken = guard.uri.removeprefix("thrift://")
    other = create_or_open(str(tmp_path / "other"))
    with pytest.raises(UsageError, match="cannot listen"), opened(guard.direct, other, taken):
        pass


def test_a_metastore_without_an_event_log_is_refused(metastore_factory: MetastoreFactory, tmp_path: Path) -> None:
    silent = metastore_factory("silent", settings={
        "hive.metastore.transactional.event.listeners": "", "hive.metastore.event.listeners": "",
    })  # fmt: skip
    with pytest.raises(NotificationLogOff), guarded(silent, tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9083", ("127.0.0.1", 9083)), (":0", ("", 0)), ("[::1]:5", ("::1", 5)),
        ("localhost", ("localhost", 9083)),
        ("thrift://0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)  # fmt: skip
def test_addresses_are_read_as_people_write_them(text: str, parsed: tuple[str, int]) -> None:
    assert parse_listen(text) == parsed


def test_an_address_without_a_number_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        parse_listen("host:port")


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_where_it_listens_and_what_it_did(source_metastore: Running, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = ["gateway", "--source", source_metastore.uri, "--cmroot", str(tmp_path / "cmroot"), "--listen",
                 "127.0.0.1:0", "--ready-file", str(ready), "--json"]  # fmt: skip
    command_line = [sys.executable, "-m", "replicator.cli.main", *arguments]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr and child.stderr.readline().startswith("listening on thrift://127.0.0.1:")
        while not ready.exists():
            time.sleep(0.01)
        with RawClient(ready.read_text().strip()) as client:
            assert not client.call("get_all_databases").failed
            child.terminate()
            out, _ = child.communicate(timeout=60)
    import json

    said = json.loads(out)
    assert child.returncode == 143
    assert (said["status"], said["exit_code"], said["calls"], said["connections"]) == ("stopped", 143, 1, 1)
    assert said["uri"] == ready.read_text().strip()


def test_a_metastore_that_is_away_is_told_at_the_start(tmp_path: Path) -> None:
    answer: Answer = command("gateway", "--source", "thrift://127.0.0.1:1", "--cmroot", str(tmp_path / "cmroot"),
                             "--listen", "127.0.0.1:0")  # fmt: skip
    assert (answer.code, answer.error) == (75, "MetastoreUnreachable") and answer.said["hint"]
