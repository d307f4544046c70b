"""The gateway when things go wrong: a full root, a metastore that dies in a call, a gateway that is killed.

Afterwards a table is either whole, or dropped with every byte kept and recorded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import Fault, Steps, install
from gateways import FILES, Guarded, Wire, contents, guarded
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from raw_thrift import RawClient
from waiting import CEILING, eventually

from cmroot.keep.content import locate
from cmroot.keep.journal import InterceptSource, Journal, write_journal
from cmroot.log.references import read_intercepted, undecided_since
from cmroot.root import create_or_open
from replicator.captures.gateways.drops import Counts, Drops
from replicator.captures.gateways.security import GatewaySettings
from replicator.captures.gateways.server import Gateway, opened
from replicator.errors import FormatError
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect

KEPT = {"t/one": FILES["one"], "t/two": FILES["two"]}


@pytest.fixture
def guard(guard: Guarded) -> Guarded:
    guard.database.table("t", FILES)
    return guard


# ---- $cmroot ------------------------------------------------------------------------------------------------------


def refuses_drop(guard: Guarded, says: str) -> None:
    """A drop of `t` fails with a declared error, and `t` is as it was."""
    state = contents(guard.place("t"))
    output = guard.client.call("drop_table", guard.db, "t", True)
    assert output.failed and not output.protocol_error
    assert says in output.message and "nothing was dropped" in output.message, output.message
    assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == state
    guard.call("get_table", guard.db, "t")


def test_a_drop_is_refused_while_cmroot_is_full(
    source_metastore: Running, tmp_path: Path, small: Callable[[str], Path]
) -> None:
    with guarded(source_metastore, tmp_path, cmroot=small("size=400k") / "cmroot") as guard:
        guard.database.table("t", {**FILES, "large": "x" * 1_000_000})
        refuses_drop(guard, "No space left")
        small("size=8m")
        guard.call("drop_table", guard.db, "t", True)
        assert guard.taken() == {**KEPT, "t/large": "x" * 1_000_000}
        assert not guard.place("t").exists() and guard.is_settled()


@pytest.mark.parametrize("directory", ["taking", "files"])
def test_a_drop_is_refused_while_cmroot_cannot_be_written(guard: Guarded, directory: str) -> None:
    part = Path(guard.root.place, directory)
    part.rename(part.with_name("aside"))
    part.write_text("in the way")
    refuses_drop(guard, str(part))
    part.unlink()
    part.with_name("aside").rename(part)
    guard.call("drop_table", guard.db, "t", True)
    assert guard.taken() == KEPT and guard.is_settled()


def test_a_cmroot_on_the_same_device_that_fills_up_refuses_too(
    source_metastore: Running, tmp_path: Path, small: Callable[[str], Path]
) -> None:
    """Warehouse and root on one filesystem, which has no room for a journal."""
    home = small("size=2m,nr_inodes=100")
    with guarded(source_metastore, tmp_path, cmroot=home / "cmroot") as guard:
        database = PlainDatabase(guard.direct, guard.db + "x", home)
        database.create()
        database.table("t", FILES)
        with suppress(OSError):
            for number in range(200):
                (home / f"filler{number}").touch()
        output = guard.client.call("drop_table", database.name, "t", True)
        assert output.failed and "No space left" in output.message
        assert contents(database.home / "t") == FILES and guard.direct.table_names(database.name) == ["t"]
        for filler in home.glob("filler*"):
            filler.unlink()
        guard.call("drop_table", database.name, "t", True)
        assert not (database.home / "t").exists() and guard.is_settled()


# ---- the metastore ------------------------------------------------------------------------------------------------


@pytest.fixture
def wire(source_metastore: Running) -> Iterator[Wire]:
    made = Wire(source_metastore.uri)
    yield made
    made.close()


@pytest.mark.parametrize("way", ["cut", "swallow"])
def test_a_connection_that_dies_in_a_drop_is_told_and_settled(
    source_metastore: Running, tmp_path: Path, wire: Wire, way: str
) -> None:
    """Cut before the metastore has seen the call, the table is whole; after, it is dropped and kept."""
    with guarded(source_metastore, tmp_path, upstream=wire.uri) as guard:
        guard.database.table("t", FILES)
        wire.on_call = lambda data: way if b"drop_table" in data else None
        output = guard.client.call("drop_table", guard.db, "t", True)
        assert output.failed and "connection to the metastore was lost" in output.message and not output.protocol_error
        wire.on_call = lambda data: None
        assert guard.is_settled()
        if way == "cut":
            assert "nothing was dropped" in output.message
            assert guard.direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == FILES
            with RawClient(guard.uri) as client:
                assert not client.call("drop_table", guard.db, "t", True).failed
        else:
            assert "the drop happened" in output.message
        assert guard.direct.table_names(guard.db) == [] and guard.taken() == KEPT
        assert {guard.events()[event] for _, event in guard.entries()} == {"DROP_TABLE"}


def test_a_call_that_passes_is_told_when_the_metastore_goes_away(
    source_metastore: Running, tmp_path: Path, wire: Wire
) -> None:
    with guarded(source_metastore, tmp_path, upstream=wire.uri) as guard:
        wire.on_call = lambda data: "cut" if b"get_table" in data else None
        output = guard.client.call("get_table", guard.db, "t")
        assert output.protocol_error and "connection to the metastore was lost during get_table" in output.message
        with pytest.raises((EOFError, ConnectionResetError)):
            guard.client.receive()
        with RawClient(guard.uri) as client:
            assert not client.call("get_all_databases").failed


def test_a_metastore_that_is_down_is_told_to_each_call(
    metastore_factory: MetastoreFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that is killed in a drop, with no answer to be had for a while: the drop waits in $cmroot."""
    running = metastore_factory("dying")
    wire = Wire(running.uri)
    with guarded(running, tmp_path, upstream=wire.uri, grace=timedelta(seconds=1)) as guard:
        guard.database.table("t", FILES)

        def kill(data: bytes) -> str | None:
            if b"drop_table" in data:
                os.kill(running.pid, signal.SIGKILL)
                return "cut"
            return None

        wire.on_call = kill
        output = guard.client.call("drop_table", guard.db, "t", True)
        assert output.failed and "not known whether" in output.message
        assert not guard.place("t").exists() and not guard.is_settled()
        assert undecided_since(guard.root.place) is not None
        wire.close()
        eventually(lambda: f"drop_table of {guard.db}.t is not finished yet" in caplog.text)
        with RawClient(guard.uri) as client:
            output = client.call("get_all_databases")
            assert output.protocol_error and "does not answer" in output.message
        with RawClient(guard.uri) as client:
            output = client.call("drop_table", guard.db, "t", True)
            assert output.failed and "does not answer" in output.message
        again = embedded.start(running.directory, env=os.environ)
        wire.open_again(again.uri)
        with connect(again.uri) as direct:
            eventually(guard.is_settled)
            assert direct.table_names(guard.db) == ["t"] and contents(guard.place("t")) == FILES


def test_who_waits_for_a_table_hears_that_the_gateway_gives_up(guard: Guarded) -> None:
    drops = Drops(guard.direct, guard.root.place, Counts())
    locks = drops._locks

    def wait() -> bool:
        with locks.hold("db", "") as held:
            return held

    with ThreadPoolExecutor(1) as pool, locks.hold("db", "t"):
        waiter = pool.submit(wait)
        eventually(lambda: bool(locks._changed._waiters))  # type: ignore[attr-defined]
        drops.give_up()
        assert waiter.result(CEILING) is False


def test_a_stopped_gateway_leaves_no_descriptor_open(source_metastore: Running, tmp_path: Path) -> None:
    root = create_or_open(str(tmp_path / "cmroot"))
    with connect(source_metastore.uri) as direct:
        direct.current_event_id()  # the connection is open
        before = set(os.listdir("/proc/self/fd"))
        assert Gateway(direct, root, "127.0.0.1:0").stop().cut_off == 0
        assert set(os.listdir("/proc/self/fd")) == before


# ---- the gateway itself, killed at every step -----------------------------------------------------------------------

SPAWN = multiprocessing.get_context("forkserver")


def _gateway(uri: str, root: str, fault: Fault, pipe: Connection) -> None:
    """Runs in a child: a gateway that is killed at a step. It never ends by itself."""
    with connect(uri) as upstream:
        gateway = Gateway(upstream, create_or_open(root), "127.0.0.1:0", GatewaySettings(grace=timedelta(0)))
        install(Steps(fault))
        pipe.send(gateway.uri)
        pipe.recv()


@pytest.mark.parametrize("kind", ["table", pytest.param("partition", marks=pytest.mark.long)])
def test_a_gateway_killed_at_any_step_leaves_a_table_or_its_bytes(
    source_metastore: Running, tmp_path: Path, kind: str
) -> None:
    SPAWN.set_forkserver_preload(
        ["replicator.captures.gateways.server", "cmroot.store.remote", "faults", "pyarrow.parquet"]
    )
    root = create_or_open(str(tmp_path / "cmroot")).place
    with connect(source_metastore.uri) as direct:
        database = PlainDatabase(direct, f"killed_{kind}", source_metastore.warehouse)
        database.create()
        kept = {}
        for number in range(1, 200):
            table = f"t{number}"
            database.partitioned(table, {"a": {"f": f"a of {table}"}, "b": {"f": f"b of {table}"}})
            arguments = [database.name, table, True] if kind == "table" else [database.name, table, ["a"], True]
            killed = drop_with(source_metastore.uri, root, Fault("after", "any", "", number), f"drop_{kind}", arguments)
            settle(direct, root)
            names = direct.partition_names(database.name, table) if table in direct.table_names(database.name) else []
            there = {name: (database.home / table / name / "f") for name in ("p=a", "p=b")}
            for name, file in there.items():
                assert file.exists() == (name in names), (number, name)
                if name not in names:
                    kept[f"{table}/{name}"] = f"{name[-1]} of {table}"
            if kind == "partition":
                assert "p=b" in names
            assert recorded(root) == kept, number
            if not killed:
                assert number > 15
                return
    raise AssertionError("it is killed again and again")


def drop_with(uri: str, root: str, fault: Fault, name: str, arguments: list[object]) -> bool:
    """A drop through a gateway of its own; whether that was killed."""
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_gateway, args=(uri, root, fault, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        with RawClient(ours.recv()) as client:
            assert not client.call(name, *arguments).failed
        return False
    except (EOFError, ConnectionResetError):
        child.join(CEILING)
        assert child.exitcode == -signal.SIGKILL
        return True
    finally:
        child.kill()
        child.join()
        ours.close()


def settle(direct: ThriftMetastore, root: str, grace: timedelta = timedelta(0)) -> None:
    """The next start puts right what the last one left."""
    with opened(direct, create_or_open(root), "127.0.0.1:0", GatewaySettings(grace=grace)):
        eventually(lambda: not any((Path(root) / "taking").iterdir()))


def recorded(root: str) -> dict[str, str]:
    found = {}
    for taken in read_intercepted(root, 1 << 62):
        for row in taken.rows().to_pylist():
            key = f"{row['table']}/{row['partition']}"
            assert key not in found
            found[key] = Path(locate(root, row["checksum"], row["size"])).read_text()
    return found


def test_a_gateway_killed_before_it_heard_of_a_drop_finds_it_done(source_metastore: Running, tmp_path: Path) -> None:
    """The metastore had the call when the gateway died, and went on with it."""
    root = str(tmp_path / "cmroot")
    with guarded(source_metastore, tmp_path, cmroot=Path(root)) as guard:
        guard.database.table("t", FILES)
    wire = Wire(source_metastore.uri)
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_gateway, args=(wire.uri, root, Fault("after", "link", "never"), theirs), daemon=True)
    child.start()
    uri = ours.recv()

    def kill(data: bytes) -> str | None:
        if b"drop_table" not in data:
            return None
        child.kill()
        child.join()
        return "swallow"

    wire.on_call = kill
    with RawClient(uri) as client, pytest.raises((EOFError, ConnectionResetError)):
        client.call("drop_table", guard.db, "t", True)
    wire.on_call = lambda data: None
    with connect(source_metastore.uri) as direct:
        settle(direct, root, timedelta(seconds=CEILING))
        assert direct.table_names(guard.db) == []
    assert recorded_files(root) == KEPT
    wire.close()


def recorded_files(root: str) -> dict[str, str]:
    return {
        f"{row['table']}/{row['path']}": Path(locate(root, row["checksum"], row["size"])).read_text()
        for taken in read_intercepted(root, 1 << 62)
        for row in taken.rows().to_pylist()
    }


def by_hand(root: Path, here: Path, **changes: Any) -> Path:
    """An intercept whose journal nobody but we wrote; `0` in it is a directory."""
    id = uuid.uuid4().hex
    intercept = root / "taking" / id
    (intercept / "0").mkdir(parents=True)
    (intercept / "0" / "authorized_keys").write_text("mine")
    source = InterceptSource(f"file:{here / 'elsewhere'}", "t", "0")
    journal = Journal(1, id, "taking", 0, "drop_table", "sales", "t", "2026-01-01T00:00:00+00:00", (source,), ())
    write_journal(str(intercept), msgspec.structs.replace(journal, **changes))
    return intercept


def test_a_journal_made_by_hand_moves_and_removes_nothing(
    source_metastore: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(create_or_open(str(tmp_path / "cmroot")).place)
    victim, empty = tmp_path / "victim", tmp_path / "empty"
    victim.mkdir()
    empty.mkdir()
    (victim / "f").write_text("theirs")
    link = source_metastore.warehouse / "link"
    link.symlink_to(victim.parent)
    inside = f"file:{source_metastore.warehouse}/t"

    def source(place: str, entry: str) -> dict[str, Any]:
        return {"sources": (InterceptSource(place, "t", entry),)}

    made = [
        by_hand(root, tmp_path),
        by_hand(root, tmp_path, **source(inside, "../../../victim")),
        by_hand(root, tmp_path, **source(inside, str(victim))),
        by_hand(root, tmp_path, **source(f"{inside}/../../victim/f", "0")),
        by_hand(root, tmp_path, **source(f"file:{link}/moved", "0")),
        by_hand(root, tmp_path, state="done", events={"t": 1}, **source(f"file:{victim}", "")),
        by_hand(root, tmp_path, state="gone"),
        by_hand(root, tmp_path, **source("elsewhere", "0")),
        by_hand(root, tmp_path, **source("file:/" + "x" * 5000, "0")),
        by_hand(root, tmp_path, **source(inside, "0"), about={"emptied": [f"file:{empty}"]}),
    ]
    before = {str(path): path.stat().st_ino for path in tmp_path.rglob("*") if "gateway" not in path.parts}
    with guarded(source_metastore, tmp_path) as guard:
        guard.database.table("t", FILES)
        guard.call("drop_table", guard.db, "t", True)
        assert guard.taken() == KEPT
    after = {str(path): path.stat().st_ino for path in tmp_path.rglob("*")}
    assert before.items() <= after.items() and not (tmp_path / "elsewhere").exists()
    named = [record.getMessage() for record in caplog.records if "not applied" in record.getMessage()]
    assert len(named) == len(made) and all(any(intercept.name in line for line in named) for intercept in made)


def test_a_damaged_journal_stops_the_start_by_name(source_metastore: Running, tmp_path: Path) -> None:
    root = create_or_open(str(tmp_path / "cmroot"))
    (tmp_path / "cmroot" / "taking" / "one").mkdir()
    (tmp_path / "cmroot" / "taking" / "one" / "journal.json").write_text("{")
    with (
        connect(source_metastore.uri) as direct,
        pytest.raises(FormatError, match=r"one/journal\.json"),
        opened(direct, root, "127.0.0.1:0"),
    ):
        pass
