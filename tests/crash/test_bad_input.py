"""What is wrong with the world must be reported by name, with a hint, leave everything as it was, and be no obstacle
to the next correct run. Everything goes through the command line, as those do who meet it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import msgspec
import pytest
from command_line import Answer, command
from faults import Fault, run_with, standing
from lab import Lab
from plain_tables import PlainDatabase
from waiting import CEILING, eventually

from cmroot.keep.content import is_kept, locate
from cmroot.store.checksum import checksum_file
from replicator.core.model import Database, Table
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import free_port

TEXT = "1\x01one\n2\x01two\n"


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A source with a table and a partitioned one; nothing is dumped yet."""
    fixture.source.table("t", {"first": TEXT, "second": "3\x01three\n"})
    fixture.source.partitioned("parts", {"a": {"file": "1\x01a\n"}, "b": {"file": "1\x01b\n"}})
    return fixture


@pytest.fixture
def pending(fixture: Lab) -> Lab:
    """The same, loaded, with an incremental dump to come: one that adds, replaces and removes."""
    fixture.bootstrap()
    fixture.source.write("t", {"third": "4\x01four\n", "second": "3\x01other\n"})
    fixture.source.drop_partitions("parts", ["b"])
    fixture.source.add("parts", {"c": {"file": "1\x01c\n"}})
    fixture.source.table("new", {"file": TEXT})
    fixture.source.alter_partition("parts", "a", note="altered")
    assert fixture.dump(since=fixture.last).code == 0
    return fixture


def fails(answer: Answer, code: int, error: str, *named: str) -> None:
    """The one JSON object tells what happened to which thing, and what to do."""
    assert (answer.code, answer.error) == (code, error), answer.output
    for name in named:
        assert str(name) in answer.message, answer.message
    assert answer.output["exit_code"] == code and answer.output["status"] == "failed"
    assert answer.output["hint"]


@contextlib.contextmanager
def untouched(*databases: PlainDatabase) -> Iterator[None]:
    """Nothing of these databases changes: no object, no file, no mark."""
    before = [database.everything() for database in databases]
    yield
    assert [database.everything() for database in databases] == before


# ---- dumps --------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def lift_version(path: Path) -> None:
    path.write_text(path.read_text().replace('"version":1', '"version":99'))


def empty(path: Path) -> None:
    path.write_bytes(b"")


RECORDS, TABLES, FILES = "_metadata/records-00000.jsonl.gz", "_metadata/tables.jsonl.gz", "_files/bucket-0000.parquet"


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    ("_finished_dump", Path.unlink),
    ("_finished_dump", lift_version),
    ("_finished_dump", empty),
    ("_dumpmetadata", Path.unlink),
    ("_dumpmetadata", flip),
    ("_dumpmetadata", cut),
    (RECORDS, Path.unlink),
    (RECORDS, flip),
    (RECORDS, cut),
    (TABLES, flip),
    (FILES, Path.unlink),
    (FILES, flip),
    (FILES, cut),
]


def test_a_damaged_dump_is_named_and_loads_once_it_is_restored(pending: Lab) -> None:
    for part, damage in DAMAGE:
        place = pending.last / part
        good = place.read_bytes()
        damage(place)
        named = [str(pending.last), "_finished_dump" if damage is Path.unlink and part == "_finished_dump" else ""]
        if damage is lift_version:
            named.append("version 99")
        elif part != "_finished_dump":
            named.append(part)
        with untouched(pending.source, pending.target):
            fails(pending.load(), 1, "FormatError", *named)
        place.write_bytes(good)
    assert pending.load().code == 0
    pending.is_same()


def test_a_directory_that_is_no_dump_is_refused(fixture: Lab, tmp_path: Path) -> None:
    fails(fixture.load(tmp_path / "nowhere"), 1, "FormatError", str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists() and not fixture.target.exists()


def test_a_dump_goes_only_into_a_new_or_empty_directory(fixture: Lab, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "letter").write_text("dear reader")
    fails(fixture.dump(out=taken), 2, "UsageError", str(taken))
    assert [path.name for path in taken.iterdir()] == ["letter"]
    fixture.bootstrap()
    fails(fixture.dump(out=fixture.last), 2, "UsageError", str(fixture.last))
    assert fixture.load().output["status"] == "already loaded"


def test_a_damaged_segment_of_the_captured_log_is_named(pending: Lab) -> None:
    segment = sorted((pending.cmroot / "log").iterdir())[-1]
    part = next(segment.glob("records-*"))
    good = part.read_bytes()
    flip(part)
    fails(pending.dump(since=pending.here / "dump1"), 1, "FormatError", str(part))
    assert not pending.last.exists() or not (pending.last / "_finished_dump").exists()
    part.write_bytes(good)
    pending.dumps -= 1
    assert pending.load().code == 0
    pending.is_same()


def test_a_damaged_manifest_is_made_anew_when_it_is_removed(pending: Lab) -> None:
    manifest = pending.cmroot / "manifest.sqlite"
    manifest.write_bytes(b"no database" * 1000)
    with untouched(pending.source, pending.target):
        fails(pending.capture(), 1, "FormatError", manifest)
    for path in pending.cmroot.glob("manifest.sqlite*"):
        path.unlink()
    assert pending.load().code == 0
    pending.catch_up()


def test_a_dump_of_what_is_captured_needs_no_manifest(pending: Lab) -> None:
    """One that is folded again knows no directories: that does not mean that there are none."""
    assert pending.capture().code == 0
    for path in pending.cmroot.glob("manifest.sqlite*"):
        path.unlink()
    dumped = pending.dump("--no-capture")
    assert (dumped.code, dumped.output["missing_directories"]) == (0, [])


# ---- metastores ---------------------------------------------------------------------------------------------------


def test_a_metastore_that_does_not_answer_is_a_reason_to_try_again(pending: Lab) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    gone = f"thrift://{nobody}"
    with untouched(pending.source, pending.target):
        fails(pending.capture(source=gone), 75, "MetastoreUnreachable", nobody)
        fails(pending.dump(source=gone, out=pending.here / "none"), 75, "MetastoreUnreachable", nobody)
        fails(pending.load(target=gone), 75, "MetastoreUnreachable", nobody)
    assert not (pending.here / "none").exists()
    assert pending.load().code == 0
    pending.is_same()


class CuttingProxy:
    """Passes thrift through to a metastore until `call` is asked for the n-th time; then it goes away for good.

    `when`: the "request" is not passed on, or the "answer" is not, or "half" of the answer is."""

    def __init__(self, uri: str, call: str, when: str, nth: int = 1) -> None:
        host, _, port = uri.removeprefix("thrift://").partition(":")
        self._server = (host, int(port))
        self._call, self._when, self._left = call.encode(), when, nth
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._asking: socket.socket | None = None  # the server's side of the connection on which the call was made
        self.cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    if self._call in data[:80]:
                        self._left -= 1
                        if self._left == 0:
                            self._asking = server
                            if self._when == "request":
                                self.go_away()
                                break
                server.sendall(data)
        _shut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if server is self._asking:
                    if self._when == "half":
                        client.sendall(data[: len(data) // 2])
                    self.go_away()
                    break
                client.sendall(data)
        _shut(client, server)

    def go_away(self) -> None:
        self.cut = True
        _shut(self._listener, *self._sockets)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.mark.parametrize(
    "call", ["get_current_notificationEventId", "get_database", "get_table_objects_by_name", "get_partitions"]
)
def test_a_metastore_that_goes_away_in_the_middle_of_a_capture(fixture: Lab, call: str) -> None:
    proxy = CuttingProxy(fixture.source_uri, call, "half")
    with untouched(fixture.source):
        fails(fixture.capture(source=proxy.uri), 75, "MetastoreUnreachable", proxy.uri.removeprefix("thrift://"))
    assert proxy.cut
    assert list((fixture.cmroot / "log").iterdir()) == []
    fixture.bootstrap()


READING = ["get_all_tables", "get_partitions_by_names"]
CHANGING = ["alter_database", "drop_partitions", "create_table", "alter_table", "add_partitions", "alter_partitions"]
"""In the order in which a load calls them."""


@pytest.mark.parametrize(
    "faults",
    [
        [(call, "half", 1) for call in READING] + [(call, "request", 1) for call in CHANGING],
        [(call, "answer", 1) for call in CHANGING],
        [("alter_database", when, 2) for when in ("request", "half")],
    ],
    ids=["calls that do not arrive", "calls whose answer is lost", "the checkpoint"],
)
def test_a_metastore_that_goes_away_in_the_middle_of_a_load(pending: Lab, faults: list[tuple[str, str, int]]) -> None:
    """A change that was sent has an unknown outcome; running the load again resolves it. Each run gets one fault
    further."""
    for call, when, nth in faults:
        proxy = CuttingProxy(pending.target_uri, call, when, nth)
        error = "MetastoreUnreachable" if call in READING else "CommitOutcomeUnknown"
        fails(pending.load(target=proxy.uri), 75, error, proxy.uri.removeprefix("thrift://"))
        assert proxy.cut, call
    assert pending.load().code == 0
    pending.is_same()


def test_a_metastore_without_a_notification_log_and_one_that_forgot_it(
    forgetful: Callable[..., Running], target_metastore: Running, tmp_path: Path
) -> None:
    silent = forgetful(**{"hive.metastore.transactional.event.listeners": ""})
    fixture = Lab(silent, target_metastore, tmp_path)
    fixture.source.create()
    fixture.source.table("t", {"first": TEXT})
    fails(fixture.capture(), 1, "NotificationLogOff", silent.uri)
    fails(fixture.dump(), 1, "NotificationLogOff", silent.uri)
    assert not (fixture.last / "_finished_dump").exists() and list((fixture.cmroot / "log").iterdir()) == []

    talking = forgetful()
    assert talking.uri == silent.uri
    fixture.source.table("seen", {"first": TEXT})  # no bootstrap is at event 0
    fixture.bootstrap()
    first, other = fixture.last, tmp_path / "other"
    assert fixture.dump(cmroot=other).code == 0
    others = fixture.last
    nightly = [
        *fixture.capture_arguments(cmroot=tmp_path / "third"),
        "--with-data",
        "--into",
        str(tmp_path / "nightly"),
    ]
    nightly[0] = "dump"
    assert command(*nightly).output["kind"] == "bootstrap"

    fixture.source.table("unseen", {"first": TEXT})
    fixture.source.drop("t")
    newest = fixture.source.metastore.current_event_id()
    forgetful(**{"hive.metastore.event.db.listener.timetolive": "1s"})  # cleans at its start
    eventually(lambda: not fixture.source.metastore.next_events(newest - 1))
    assert fixture.source.metastore.current_event_id() == newest

    with untouched(fixture.source, fixture.target):
        fails(fixture.capture(), 5, "BootstrapNeeded", str(newest))
        fails(fixture.dump(since=first), 5, "BootstrapNeeded", str(newest))
        fails(fixture.dump(since=others, cmroot=other), 5, "BootstrapNeeded", str(newest))
    repaired = fixture.capture("--repair")
    assert repaired.code == 0 and repaired.output["observed"] >= 2 and repaired.output["warnings"]
    assert fixture.dump(since=first).code == 0
    assert fixture.load().code == 0
    fixture.is_same()
    fails(fixture.dump(since="0"), 5, "BootstrapNeeded", "--since 0")
    begun = command(*nightly)
    assert (begun.code, begun.output["kind"]) == (0, "bootstrap"), begun
    assert begun.output["warnings"][0].startswith("a new chain begins: ")
    assert len([path for path in (tmp_path / "nightly").iterdir() if (path / "_finished_dump").exists()]) == 2

    healed = fixture.dump(cmroot=other)
    assert healed.code == 0 and healed.output["kind"] == "bootstrap" and healed.output["warnings"]
    again = PlainDatabase(fixture.target.metastore, fixture.name + "_healed", fixture.warehouse)
    assert fixture.load(None, "--rename-db", f"{fixture.name}={fixture.name}_healed").code == 0
    assert again.shown() == fixture.source.shown()


# ---- $cmroot ------------------------------------------------------------------------------------------------------


def test_a_cmroot_below_a_file_cannot_be_written(fixture: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    below = tmp_path / "file" / "cmroot"
    with untouched(fixture.source):
        fails(fixture.capture(cmroot=below), 1, "NotWritable", tmp_path / "file")
        fails(fixture.dump(cmroot=below), 1, "NotWritable", tmp_path / "file")
    fixture.dumps = 0
    fixture.bootstrap()


def test_a_cmroot_in_a_directory_of_something_else_is_refused(fixture: Lab, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter").write_text("dear reader")
    fails(fixture.capture(cmroot=tmp_path / "letters"), 1, "NotWritable", tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["letter"]


def test_a_cmroot_on_a_read_only_mount_cannot_be_written(fixture: Lab, small: Callable[[str], Path]) -> None:
    fixture.cmroot = small("size=8m") / "cmroot"
    fixture.bootstrap()
    fixture.source.table("new", {"file": TEXT})
    small("ro")
    with untouched(fixture.source, fixture.target):
        fails(fixture.capture(), 1, "NotWritable", fixture.cmroot)
    small("rw")
    fixture.catch_up()


def test_a_full_cmroot_says_so_and_goes_on_when_there_is_space(fixture: Lab, small: Callable[[str], Path]) -> None:
    fixture.cmroot = small("size=600k") / "cmroot"
    fixture.source.table("large", {"file": "x" * 1_000_000})
    with untouched(fixture.source):
        fails(fixture.capture(), 1, "NoSpace", fixture.cmroot)
    assert list((fixture.cmroot / "log").iterdir()) == []
    small("size=8m")
    fixture.bootstrap()


@pytest.mark.parametrize("limit", [3_000, 30_000, 300_000])
def test_a_file_size_limit_is_told_like_a_full_disk(fixture: Lab, limit: int) -> None:
    """Whatever is written when it is reached: a kept file, the log, the manifest."""
    fixture.source.table("large", {"file": "x" * 1_000_000})
    arguments = [*fixture.capture_arguments(), "--keeper", "copy", "--json"]
    with untouched(fixture.source):
        done = subprocess.run(
            [sys.executable, "-m", "replicator.cli.main", *arguments],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
    fails(Answer(done.returncode, msgspec.json.decode(done.stdout)), 1, "NoSpace", fixture.cmroot)
    assert list((fixture.cmroot / "log").iterdir()) == []
    fixture.bootstrap()


@contextlib.contextmanager
def held(root: Path) -> Iterator[None]:
    """Another process holds the lease of a root."""
    work = (
        "import sys; from cmroot.lease import acquire\n"
        "with acquire(sys.argv[1], 'test'): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", work, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "held\n"
        yield
        other.stdin.close()


def test_a_cmroot_in_use_is_left_to_its_user(pending: Lab) -> None:
    with untouched(pending.source, pending.target):
        with held(pending.cmroot):
            fails(pending.capture(), 7, "LeaseHeld", pending.cmroot)
            fails(pending.dump(out=pending.here / "none", since=pending.last), 7, "LeaseHeld", pending.cmroot)
        with held(pending.target_cmroot):
            fails(pending.load(), 7, "LeaseHeld", pending.target_cmroot)
    assert not (pending.here / "none" / "_finished_dump").exists()
    assert pending.load().code == 0
    pending.is_same()


# ---- files --------------------------------------------------------------------------------------------------------


def kept(cmroot: Path, file: Path) -> Path:
    """Where a file's bytes are kept."""
    return Path(locate(str(cmroot), *checksum_file(str(file))))


def test_a_file_that_is_gone_everywhere_is_named(pending: Lab) -> None:
    file = pending.source.home / "t" / "third"
    kept(pending.cmroot, file).unlink()
    file.unlink()
    shown = pending.target.shown()
    answer = pending.load()
    fails(answer, 1, "FilesMissing", pending.target.home / "t" / "third", "position", pending.cmroot)
    assert pending.target.shown() == shown
    assert pending.dump(since=pending.here / "dump1").code == 0  # names it no longer
    assert pending.load().code == 0
    pending.is_same()


def test_a_bootstrap_with_a_file_that_is_gone_shows_nothing(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    file = fixture.source.home / "t" / "first"
    kept(fixture.cmroot, file).unlink()
    file.unlink()
    fails(fixture.load(), 1, "FilesMissing", fixture.target.home / "t" / "first", "position")
    assert not fixture.target.exists() or fixture.target.shown() == {}
    assert fixture.dump().code == 0
    assert fixture.load().code == 0
    fixture.is_same()


@pytest.mark.parametrize("keeper", ["link", "copy"])
def test_bytes_written_over_in_place_are_never_published(fixture: Lab, keeper: str) -> None:
    """A link shares its bytes with the source, so both have the wrong ones; a copy has those that were recorded."""
    assert fixture.dump("--keeper", keeper).code == 0
    file = fixture.source.home / "t" / "first"
    with open(file, "r+") as opened:
        opened.write("9")
    answer = fixture.load()
    if keeper == "link":
        fails(answer, 1, "FilesMissing", fixture.target.home / "t" / "first", "other bytes")
        assert not (fixture.target.home / "t" / "first").exists()
        assert not fixture.target.exists() or fixture.target.shown() == {}
    else:
        assert answer.code == 0 and answer.output["files_from_cmroot"] == 1
        assert (fixture.target.home / "t" / "first").read_text() == TEXT
    fixture.source.write("t", {"another": TEXT})  # its directory has changed: all of it is looked at again
    assert fixture.dump("--keeper", keeper).code == 0
    assert fixture.load().code == 0
    fixture.is_same()


def test_a_partition_without_its_directory_is_named_and_the_rest_goes_on(fixture: Lab) -> None:
    missing = fixture.source.home / "parts" / "p=b"
    shutil.rmtree(missing)
    dumped = fixture.dump()
    assert (dumped.code, dumped.output["status"]) == (3, "incomplete")
    (named,) = dumped.output["missing_directories"]
    assert str(missing) in named and f"{fixture.name}.parts/p=b" in named
    loaded = fixture.load()
    assert (loaded.code, loaded.output["status"]) == (3, "incomplete")
    for output in (dumped.output, loaded.output):
        (lacking,) = output["not_replicated"]
        assert (lacking["object"], lacking["partition"]) == (f"{fixture.name}.parts", "p=b")
        assert str(missing) in lacking["reason"]
    fixture.is_same()
    fixture.source.write("parts/p=b", {"file": "1\x01late\n"})
    fixture.catch_up()


def test_a_disk_that_fills_while_files_are_copied(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, small: Callable[[str], Path]
) -> None:
    fixture = Lab(source_metastore, target_metastore, tmp_path, warehouse=small("size=1m"))
    fixture.source.create()
    fixture.source.table("large", {f"file{number}": str(number) * 300_000 for number in range(6)})
    assert fixture.dump().code == 0
    fails(fixture.load(), 1, "NoSpace", fixture.warehouse)
    assert fixture.target.shown() == {}
    whole = {path.name: path.read_bytes() for path in (fixture.source.home / "large").iterdir()}
    for path in (fixture.target.home / "large").iterdir():
        assert path.name.startswith(".") or path.read_bytes() == whole[path.name]
    small("size=8m")
    loaded = fixture.load()
    assert loaded.code == 0 and loaded.output["files_skipped"] > 0
    fixture.is_same()


# ---- who may write where ------------------------------------------------------------------------------------------


def test_a_table_made_by_hand_is_replaced_only_when_told(fixture: Lab) -> None:
    fixture.bootstrap()
    fixture.source.table("new", {"file": TEXT})
    fixture.target.table("new", {"mine": "1\x01mine\n"})
    mine = checksum_file(str(fixture.target.home / "new" / "mine"))
    assert fixture.dump(since=fixture.last).code == 0
    with untouched(fixture.source, fixture.target):
        fails(fixture.load(), 6, "Refused", f"{fixture.name}.new")
    assert fixture.load(None, "--overwrite").code == 0
    fixture.is_same()
    assert is_kept(str(fixture.target_cmroot), *mine)


def test_a_database_made_by_hand_is_refused(fixture: Lab) -> None:
    fixture.target.create()
    fixture.target.table("mine", {"file": "1\x01mine\n"})
    assert fixture.dump().code == 0
    with untouched(fixture.source, fixture.target):
        fails(fixture.load(), 6, "Refused", fixture.name)


def test_a_target_that_is_newer_than_the_dump_is_taken_back_only_when_told(pending: Lab) -> None:
    before = pending.target.shown()
    assert pending.load().code == 0
    with untouched(pending.target):
        fails(pending.load(pending.here / "dump1"), 6, "Refused", "position", pending.name)
    assert pending.load().output["status"] == "already loaded"
    dumped = msgspec.json.decode((pending.here / "dump1" / "_finished_dump").read_bytes())["id"]
    for table in ("t", "parts"):  # left by a load that was killed after its checkpoint
        mark = pending.target_cmroot / "loads" / dumped / f"{pending.name}.{table}"
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_bytes(b"")
    (pending.target.home / "parts" / "p=a" / "stray").write_text("of no dump")
    assert pending.load(pending.here / "dump1", "--overwrite").code == 0
    assert pending.target.shown() == before
    assert pending.load().code == 0
    pending.is_same()


def test_a_file_that_is_gone_is_noticed_before_another_is_shown(fixture: Lab) -> None:
    """Also where nothing is replaced: half of what was inserted is not what the source ever had."""
    fixture.bootstrap()
    fixture.source.write("t", {f"added{number}": f"{number}" for number in range(5)})
    assert fixture.dump(since=fixture.last).code == 0
    file = fixture.source.home / "t" / "added4"
    kept(fixture.cmroot, file).unlink()
    file.unlink()
    shown = fixture.target.shown()
    fails(fixture.load(), 1, "FilesMissing", fixture.target.home / "t" / "added4")
    assert fixture.target.shown() == shown
    assert fixture.dump(since=fixture.here / "dump1").code == 0
    assert fixture.load().code == 0
    fixture.is_same()


def test_an_incremental_dump_needs_the_bootstrap_before_it(pending: Lab) -> None:
    rename = ("--rename-db", f"{pending.name}={pending.name}_other")
    fails(pending.load(None, *rename), 5, "BootstrapNeeded", "position")
    assert f"{pending.name}_other" not in pending.target.metastore.database_names()
    assert pending.load(pending.here / "dump1", *rename).code == 0
    assert pending.load(None, *rename).code == 0
    other = PlainDatabase(pending.target.metastore, f"{pending.name}_other", pending.warehouse)
    assert other.shown() == pending.source.shown()


def test_a_replica_takes_no_dump_of_another_source(fixture: Lab) -> None:
    fixture.bootstrap()
    assert fixture.dump(cmroot=fixture.here / "other").code == 0
    with untouched(fixture.target):
        fails(fixture.load(), 6, "Refused", fixture.name)


def test_the_source_is_not_its_own_target(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    with untouched(fixture.source):
        own = [
            "load",
            str(fixture.last),
            "--target",
            fixture.source_uri,
            "--warehouse",
            str(fixture.source.home.parent),
        ]
        fails(command(*own, "--cmroot", str(fixture.here / "own")), 6, "Refused", fixture.name)


# ---- the command line ---------------------------------------------------------------------------------------------


def test_what_a_command_line_asks_for_must_exist(pending: Lab, tmp_path: Path) -> None:
    """Nothing of it begins, and no directory is left where the dump would have been."""
    none = tmp_path / "none"

    def dumping(*more: str, **given: Any) -> Answer:
        answer = pending.dump(*more, out=none, **given)
        assert not none.exists() or list(none.iterdir()) == []
        return answer

    other = Lab.__new__(Lab)
    other.__dict__ |= pending.__dict__ | {"name": "nowhere", "dumps": 0}
    with untouched(pending.source, pending.target):
        fails(dumping("--include", "no_such_table"), 2, "UsageError", "no table", pending.name)
        fails(dumping("--include", "("), 2, "UsageError", "'('")
        fails(dumping("--exclude", "["), 2, "UsageError", "'['")
        fails(dumping(since="999999999"), 2, "UsageError", "999999999")
        fails(dumping(since="garbage"), 2, "UsageError", "garbage")
        fails(dumping(since=tmp_path), 2, "UsageError", tmp_path)
        fails(dumping("--until", "garbage"), 2, "UsageError", "garbage")
        fails(dumping("--until", "2000-01-01"), 2, "UsageError", "2000-01-01")
        fails(dumping(since=pending.last, cmroot=tmp_path / "other"), 2, "UsageError", pending.last)
        fails(other.capture(), 1, "ObjectNotFound", "nowhere")
        fails(other.dump(out=none), 1, "ObjectNotFound", "nowhere")
        fails(pending.load(None, "--rename-db", "nowhere=x"), 2, "UsageError", "nowhere")
        fails(pending.load(None, "--rename-db", "x"), 2, "UsageError", "'x'")
        fails(pending.load(None, "--map-location", "/a"), 2, "UsageError", "'/a'")
        fails(pending.load(None, "--map-location", "/a=/b", "--map-location", "/a=/c"), 2, "UsageError", "/a")
        fails(pending.load(target="nobody"), 2, "UsageError", "nobody")
        fails(pending.load(target="http://x:1/y"), 2, "UsageError", "http://x:1/y")
    assert pending.load().code == 0
    pending.is_same()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--json"),
        (["load"], "DUMP"),
        (["load", "x"], "--target"),
        (["load", "x", "--json=yes"], "--json"),
        (["no-such-command"], "no-such-command"),
        (["dump", "--no-such-option"], "--no-such-option"),
        (["load", "x", "--target", "t", "--jobs", "many"], "many"),
        (["capture", "--source", "s", "--cmroot", "c", "--keeper", "shelf"], "shelf"),
    ],
)
def test_a_wrong_command_line_is_told_as_json_too(arguments: list[str], named: str) -> None:
    fails(command(*arguments), 2, "UsageError", named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[defaults]\ncmrot = '/x'", "cmrot"),
        ("[default]\ncmroot = '/x'", "default"),
        ("[metastores.a]\nurl = 'thrift://a'", "url"),
        ("[defaults]\njobs = 'many'", "jobs"),
        ("cmroot = ", "TOML"),
    ],
)
def test_a_wrong_configuration_names_its_key(tmp_path: Path, text: str, named: str) -> None:
    config = tmp_path / "replicator.toml"
    config.write_text(text)
    fails(command("--config", str(config), "show", "x"), 2, "ConfigError", config, named)


def test_a_configuration_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    fails(command("--config", str(tmp_path / "none"), "show", "x"), 2, "ConfigError", tmp_path / "none")


# ---- what a 2.3 server does not do -----------------------------------------------------------------------------------


def test_an_empty_database_of_the_target_gets_the_sources_description(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    """It keeps its place."""
    fixture = Lab(source_metastore, target_metastore, tmp_path)
    fixture.source.home.mkdir(parents=True)
    fixture.source.metastore.create_database(
        Database(name=fixture.name, description="a shop, größer 🦆", location=f"file:{fixture.source.home}")
    )
    fixture.source.table("t", {"f": "1\n"})
    elsewhere = fixture.here / "elsewhere"
    elsewhere.mkdir()
    fixture.target.metastore.create_database(
        Database(name=fixture.name, description="old", location=f"file:{elsewhere}")
    )
    assert fixture.dump().code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.output["warnings"]) == (0, [])
    there = fixture.target.metastore.database(fixture.name)
    assert (there.description, there.location) == ("a shop, größer 🦆", f"file:{elsewhere}")
    assert there.parameters["repl.last.id"]


def test_a_description_that_cannot_follow_is_said(fixture: Lab) -> None:
    fixture.target.metastore.create_database(
        Database(name=fixture.name, description="old", location=f"file:{fixture.target.home}")
    )
    view = Table(db=fixture.name, name="view", kind="VIRTUAL_VIEW", view_original="SELECT 1", view_expanded="SELECT 1")
    assert fixture.dump().code == 0
    fixture.target.metastore.create_table(view)
    loaded = fixture.load(None, "--overwrite")
    assert loaded.code == 0, loaded.output
    assert any("description" in warning and "'old'" in warning for warning in loaded.output["warnings"]), loaded.output
    assert fixture.target.metastore.database(fixture.name).description == "old"


# ---- two loads into one target ------------------------------------------------------------------------------------


def under(fixture: Lab, root: str, *more: str) -> list[str]:
    """A load of the newest dump under a `$cmroot` of its own."""
    return [*fixture.load_arguments(fixture.last), "--target-cmroot", str(fixture.here / root), *more]


def test_two_loads_into_one_target_exclude_each_other_whatever_root_they_name(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    with standing(Fault("before", "rename", "/t/first$"), under(fixture, "one")), untouched(fixture.target):
        fails(command(*under(fixture, "two")), 7, "LeaseHeld", fixture.name, f"{fixture.here}/one", "process")
    assert command(*under(fixture, "two")).code == 0  # the first was killed: its root says so
    assert fixture.target.shown() == fixture.source.shown()
    assert "replicator.loading.by" not in fixture.target.metastore.database(fixture.name).parameters


def test_a_load_that_was_overtaken_before_it_made_its_mark_goes_no_further(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    arguments = under(fixture, "one")
    with begun(Fault("before", "thrift", "create database"), arguments) as first:
        assert command(*under(fixture, "two")).code == 0
        with untouched(fixture.target):
            os.kill(first.pid, signal.SIGCONT)
            out, _ = first.communicate(timeout=CEILING)
            assert first.returncode == 7, out
    answer = command(*arguments)
    assert (answer.code, answer.output["status"]) == (0, "already loaded")


def test_a_killed_load_whose_root_is_gone_is_taken_over_by_who_says_so(pending: Lab) -> None:
    run_with(Fault("before", "thrift", "create table"), under(pending, "one"))
    shutil.rmtree(pending.here / "one")
    with untouched(pending.target):
        fails(command(*under(pending, "two")), 7, "LeaseHeld", f"{pending.here}/one", "cannot be checked")
    assert command(*under(pending, "two", "--take-over")).code == 0
    pending.is_same()


@contextlib.contextmanager
def begun(fault: Fault, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command line that stands still at a step, until it is asked to go on."""
    words = [sys.executable, faults.__file__, fault.moment, fault.kind, fault.pattern, str(fault.number), "--"]
    child = subprocess.Popen(
        [*words, *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAULTS_STOP": "1"},
    )
    try:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert child.poll() is None, f"the fault was never reached: {fault}: {child.stderr and child.stderr.read()}"
        yield child
    finally:
        child.kill()
        child.wait()
