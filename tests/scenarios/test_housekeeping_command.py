"""`replicator housekeeping` as it is called; and runs that are killed at each of their steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faults import Fault, run_with
from housekeeping import ALL_EVENTS, ENGINE, EXPIRED, UNREFERENCED, LifecycleFixture
from names import unique
from waiting import CEILING, eventually

import replicator
from replicator.cli.main import run as command
from replicator.core.model import EXTERNAL
from replicator.core.runtime import Runtime
from replicator.lifecycle.housekeeping.run import Followed
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.restore.upkeep import expire_root


@pytest.fixture
def fixture(metastore: ThriftMetastore, tmp_path: Path) -> LifecycleFixture:
    return LifecycleFixture(metastore, unique("called"), tmp_path)


def arguments(fixture: LifecycleFixture, *more: str) -> list[str]:
    return [
        "housekeeping",
        "run",
        "--metastore",
        fixture.metastore.uri,
        "--cmroot",
        fixture.root.place,
        "--db",
        fixture.db.name,
        "--engine",
        "local",
        *more,
    ]


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def tree(place: Path) -> dict[str, bytes]:
    """Every file below a place, but for what SQLite's readers leave beside a database."""
    return {
        str(path): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_the_command_from_the_first_run_to_the_last(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    cmroot = ("--cmroot", fixture.root.place)
    code, answer = called(capsys, "housekeeping", "ls", *cmroot)
    assert code == 2 and "run" in answer["hint"]

    fixture.partitioned("p", ["1", "2"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "PT0S"})
    fixture.table("t", properties=UNREFERENCED)
    code, answer = called(capsys, *arguments(fixture))
    assert code == 3 and "leaves no time" in answer["invalid"][0] and answer["removed"] == 0
    fixture.relocate("t", fixture.write("b"))
    fixture.db.alter("p", **{"beekeeper.expired.data.retention.period": "PT1S"})
    code, answer = called(capsys, *arguments(fixture, "--no-scan"))
    assert code == 0 and answer["scheduled"] == 4

    assert called(capsys, *arguments(fixture, "--at", "2030-01-01"))[0] == 2
    before = tree(fixture.here)
    code, answer = called(capsys, *arguments(fixture, "--dry-run", "--at", "2030-01-01"))
    assert (code, answer["status"], answer["removed"]) == (0, "planned", 3 if fixture.values("p") else 1)
    assert tree(fixture.here) == before, "a dry run writes nothing"
    assert command(arguments(fixture, "--dry-run", "--at", "2030-01-01")) == 0
    assert "unreferenced since" in capsys.readouterr().out

    def are_removed() -> bool:
        code, _ = called(capsys, *arguments(fixture))
        assert code == 0
        return fixture.values("p") == []

    eventually(are_removed)  # PT1S is over at the latest in the second after
    code, answer = called(
        capsys,
        "housekeeping",
        "ls",
        *cmroot,
        "--db",
        fixture.db.name.upper(),
        "--lifecycle",
        "EXPIRED",
        "--status",
        "deleted",
        "--size",
        "1",
        "--page",
        "1",
    )
    assert (answer["totalElements"], answer["totalPages"], answer["last"]) == (2, 2, True)
    (item,) = answer["content"]
    assert item["databaseName"] == fixture.db.name and item["cleanupDelay"] == "PT1S" and item["partitionName"] == "p=2"
    for name, value, found in (
        ("--table", "t", 1),
        ("--registered-before", "2000-01-01", 0),
        ("--registered-after", "2000-01-01", 5),
        ("--deleted-before", "2030-01-01", 5),
        ("--deleted-after", "2030-01-01", 0),
        ("--partition", "p=1", 1),
        ("--path", f"file:{fixture.place('t')}", 1),
    ):
        assert called(capsys, "housekeeping", "ls", *cmroot, name, value)[1]["totalElements"] == found, name
    assert called(capsys, "housekeeping", "ls", *cmroot, "--status", "gone")[0] == 2

    (waits,) = fixture.items(table="t")
    code, answer = called(capsys, "housekeeping", "cancel", str(waits.id), *cmroot, "--reason", "wanted")
    assert (code, answer["items"][0]["housekeepingStatus"], answer["items"][0]["reason"]) == (0, "DISABLED", "wanted")
    assert called(capsys, "housekeeping", "cancel", "999", *cmroot)[0] == 1
    assert called(capsys, "housekeeping", "rearm", str(item["id"]), *cmroot)[0] == 2, "what is deleted stays so"
    assert called(capsys, "housekeeping", "rearm", str(waits.id), *cmroot)[0] == 0
    assert fixture.states(table="t") == [("t", "SCHEDULED")]
    assert command(["housekeeping", "ls", *cmroot]) == 0
    shown = capsys.readouterr().out
    assert "SCHEDULED" in shown and "removal at" in shown
    assert command(["audit", "ls", *cmroot, "--job", "housekeeping"]) == 0


def test_a_store_of_another_root_and_a_wrong_url_are_told(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ["--store", f"sqlite:///{fixture.here}/items.sqlite"]
    fixture.table("t")
    assert called(capsys, *arguments(fixture, *other))[0] == 0
    code, answer = called(
        capsys,
        *[str(fixture.here / "cm2") if word == fixture.root.place else word for word in arguments(fixture, *other)],
    )
    assert code == 2 and "another $cmroot" in answer["message"]
    for url in ("mysql://x", "nonsense"):
        code, answer = called(capsys, *arguments(fixture, "--store", url))
        assert code == 2
    code, answer = called(capsys, *arguments(fixture, "--store", "postgresql://user:secret@127.0.0.1:1/db"))
    assert code == 75 and "secret" not in json.dumps(answer)


def test_what_nobody_ever_knew_of_is_found_by_a_vacuum(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.partitioned("t", ["1", "2"])
    fixture.table("flat")
    fixture.write("t/p=9", "left long ago")
    fixture.write("t/_staging", "hidden")
    fixture.write("t/p=1/inner", "data of a partition")
    fixture.place("t/p=8").symlink_to(fixture.place("flat"))
    fixture.run()
    words = ("--metastore", fixture.metastore.uri, "--cmroot", fixture.root.place, "--period", "P2D")
    for more, found in ((("--dry-run",), "planned"), ((), "scheduled")):
        code, answer = called(capsys, "housekeeping", "vacuum", f"{fixture.db.name}.t", *words, *more)
        assert (code, answer["status"], answer["paths"]) == (0, found, [str(fixture.place("t/p=9"))])
        assert (answer["directories"], answer["referred"]) == (3, 2)
    code, answer = called(capsys, "housekeeping", "vacuum", f"{fixture.db.name}.t", *words)
    assert (answer["waiting"], answer["paths"]) == (1, [])
    assert called(capsys, "housekeeping", "vacuum", f"{fixture.db.name}.flat", *words)[0] == 2
    assert fixture.run(3).removed == 1 and fixture.keeps("left long ago")
    assert sorted(path.name for path in fixture.place("t").iterdir()) == ["_staging", "p=1", "p=2", "p=8"]

    fixture.relocate_partition("t", "2", fixture.write("t/deep/p=2"))
    code, answer = called(capsys, "housekeeping", "vacuum", f"{fixture.db.name}.t", *words)
    assert code == 6 and "1 and 2" in answer["message"]


def test_what_was_recycled_long_after_its_drop_is_kept_for_the_whole_retention(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.table("t", {"a": "rows", ".env": "hidden"}, properties={**UNREFERENCED, **ALL_EVENTS})
    fixture.run()
    fixture.metastore.drop_table(fixture.db.name, "t")
    fixture.run()
    tick = fixture.here / "tick"

    def disk_has_moved_on() -> bool:
        tick.write_text("")
        return tick.stat().st_ctime_ns > (cutoff + 0.1) * 1e9

    known = max(path.stat().st_ctime_ns for path in [*fixture.place("t").iterdir(), fixture.place("t")])
    cutoff = max(known / 1e9, time.time())  # the drop is captured
    eventually(disk_has_moved_on)
    assert fixture.run(4).removed == 1 and not fixture.place("t").exists()
    period = timedelta(minutes=4)  # a clock that is further ahead than five is refused
    runtime = Runtime(ENGINE, clock=lambda: cutoff + 0.05 + period.total_seconds())
    expire_root(fixture.root, runtime, period)
    code, answer = called(capsys, "audit", "restore", "--cmroot", fixture.root.place, "--run", fixture.audit()[0].run)
    assert (code, answer["files"]) == (0, 2), answer
    assert {path.name: path.read_text() for path in fixture.place("t").iterdir()} == {"a": "rows", ".env": "hidden"}


STEPS = [
    Fault("before", "thrift", "drop"),
    Fault("after", "thrift", "drop"),
    Fault("after", "rename", "incoming/recycle", 2),
    Fault("before", "rmdir", "incoming/recycle"),
    Fault("after", "unlink", "origin", 1),
    Fault("before", "rename", "audit/.*parquet", 3),
]


@pytest.mark.parametrize("fault", STEPS, ids=str)
def test_a_run_that_is_killed_is_completed_by_the_next(fixture: LifecycleFixture, fault: Fault) -> None:
    fixture.partitioned("p", ["1", "2"], **{**EXPIRED, "beekeeper.expired.data.retention.period": "PT0S"})
    fixture.partitioned("q", ["1"], **UNREFERENCED, **ALL_EVENTS)
    fixture.db.alter("q", **{"beekeeper.unreferenced.data.retention.period": "PT0S"})
    fixture.run()
    fixture.relocate_partition("q", "1", fixture.write("q/new", "new"))
    ended = run_with(fault, arguments(fixture, "--allow-immediate"))
    assert ended.killed
    done = fixture.run(0.01, allow_immediate=True)
    assert done.is_whole, done
    assert fixture.values("p") == [] and not fixture.place("p/p=1").exists() and not fixture.place("p/p=2").exists()
    assert not fixture.place("q/p=1").exists() and (fixture.place("q/new/a")).read_text() == "new"
    assert fixture.values("q") == ["1"]
    assert {text for text in ("rows of p/1", "rows of p/2", "rows of q/1") if not kept(fixture, text)} == set()
    assert not os.listdir(f"{fixture.root.place}/incoming")
    assert {each.status for each in fixture.items() if each.partition} == {"DELETED"}
    assert fixture.run(1, allow_immediate=True).due == 0


def kept(fixture: LifecycleFixture, text: str) -> bool:
    """Whether $cmroot has a file of these contents."""
    return any(path.is_file() and path.read_text() == text for path in Path(fixture.root.files).rglob("*"))


def test_following_ends_with_a_signal(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties={**UNREFERENCED, "beekeeper.unreferenced.data.retention.period": "PT1S"})
    fixture.run()
    fixture.relocate("t", fixture.write("b"))
    words = arguments(fixture, "--follow", "--interval", "200ms", "--json")
    child = subprocess.Popen(
        [sys.executable, "-m", "replicator.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: not fixture.place("t").exists() or child.poll() is not None)
        child.send_signal(signal.SIGTERM)
        out, error = child.communicate(timeout=CEILING)
    finally:
        child.kill()
    answer = json.loads(out)
    assert (child.returncode, answer["status"], answer["removed"]) == (143, "stopped", 1), error
    assert answer["rounds"] >= 1 and not fixture.place("t").exists()


@pytest.mark.parametrize(
    "spelled", ["{root}/legal", "{root}/slots", "{root}/log", "{root}/../else/../cmroot/legal", "{link}/legal"]
)
def test_what_the_root_is_made_of_is_nobodys_unreferenced_data(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str], spelled: str
) -> None:
    """An external table at `$cmroot/legal` that is dropped takes no legal hold along."""
    held = ("--on", f"{fixture.db.name}.held", "--reason", "case 17", "--cmroot", fixture.root.place)
    assert called(capsys, "legal-hold", "add", "case-17", *held)[0] == 0
    link, root = fixture.here / "link", Path(fixture.root.place)
    link.symlink_to(root)
    (fixture.here / "else").mkdir()
    fixture.table("t", {}, kind=EXTERNAL)
    fixture.relocate("t", f"file:{spelled.format(root=root, link=link)}")
    fixture.db.alter("t", **{**UNREFERENCED, **ALL_EVENTS})
    assert called(capsys, *arguments(fixture))[0] == 0
    fixture.metastore.drop_table(fixture.db.name, "t")
    assert called(capsys, *arguments(fixture))[0] == 0
    assert fixture.states(status="SCHEDULED") == [("t", "SCHEDULED")]
    fixture.run(days=4)
    assert (root / "legal" / "case-17").exists() and (root / "slots").is_dir() and any((root / "log").iterdir())
    assert any("change-management root" in row.detail for row in fixture.audit("refused"))


def test_what_a_root_captures_is_shown_and_what_it_does_not_is_warned_of(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = LifecycleFixture(fixture.metastore, unique("outside"), tmp_path / "more")
    outside.table("t", properties=UNREFERENCED)
    cmroot = ("--cmroot", fixture.root.place)
    code, answer = called(capsys, *arguments(fixture))
    assert (code, answer["databases"]) == (0, [fixture.db.name])
    assert any(outside.db.name in text and "--all-databases" in text for text in answer["warnings"])
    for words in (("show", fixture.root.place), ("cm", "ls", *cmroot)):
        assert called(capsys, *words)[1]["databases"] == [fixture.db.name]
    source = ("--source", fixture.metastore.uri, "--engine", "local")
    assert called(capsys, "capture", *source, *cmroot)[1]["databases"] == [fixture.db.name]  # those of before
    code, answer = called(capsys, "capture", *source, *cmroot, "--all-databases")
    assert code == 0 and {fixture.db.name, outside.db.name} <= set(answer["databases"])
    _, answer = called(capsys, *arguments(fixture))
    assert not answer["warnings"] and outside.db.name in answer["databases"]


@pytest.mark.parametrize("rule", ["--protect", "hold"])
@pytest.mark.parametrize("spelled", ["{home}/sales/../held/t", "{home}/link/t"])
def test_a_held_place_is_held_under_every_name(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str], rule: str, spelled: str
) -> None:
    home = fixture.db.home
    fixture.write("held/t", "case 17")
    (home / "sales").mkdir()
    (home / "link").symlink_to(home / "held")
    fixture.table("t", {}, kind=EXTERNAL)
    fixture.relocate("t", f"file:{spelled.format(home=home)}")
    fixture.db.alter("t", **{**UNREFERENCED, **ALL_EVENTS, "beekeeper.unreferenced.data.retention.period": "PT1S"})
    assert called(capsys, *arguments(fixture))[0] == 0
    fixture.metastore.drop_table(fixture.db.name, "t")
    limits = ["--protect", f"{home}/held"] if rule == "--protect" else []
    if rule == "hold":
        held = ("--on", f"{home}/held", "--reason", "case 17", "--cmroot", fixture.root.place)
        assert called(capsys, "legal-hold", "add", "case-17", *held)[0] == 0

    def is_decided() -> bool:
        assert called(capsys, *arguments(fixture, *limits))[0] in (0, 3)
        return bool(fixture.audit("refused")) or not (home / "held" / "t" / "a").exists()

    eventually(is_decided)
    assert (home / "held" / "t" / "a").read_text() == "case 17"
    assert {"protected" in row.detail or "legal hold" in row.detail for row in fixture.audit("refused")} == {True}


def test_a_store_whose_port_is_no_number_is_an_error_of_the_configuration(
    fixture: LifecycleFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (arguments(fixture), ["housekeeping", "ls", "--cmroot", fixture.root.place]):
        code, output = called(capsys, *words, "--store", "postgresql://user:hunter2@host:port/db")
        assert (code, output["error"]) == (2, "ConfigError") and "--store" in output["message"]
        assert "hunter2" not in str(output)


def test_python_functions_look_at_items_and_change_them(fixture: LifecycleFixture) -> None:
    fixture.partitioned("t", ["1"])
    fixture.table("u", properties=UNREFERENCED)
    fixture.run()
    fixture.relocate("u", fixture.write("b"))
    fixture.write("t/p=9", "left long ago")
    uri, root = fixture.metastore.uri, fixture.root.place
    assert replicator.housekeeping_run(uri, root, engine="local").to_dict()["scheduled"] == 1
    planned = replicator.housekeeping_vacuum(f"{fixture.db.name}.t", metastore=uri, cmroot=root, dry_run=True)
    assert (planned.status, planned.paths) == ("planned", [str(fixture.place("t/p=9"))])
    found = replicator.housekeeping_ls(cmroot=root, table="u", status="scheduled")
    (item,) = found.items
    assert found.to_arrow().column("cleanupDelay").to_pylist() == [item.delay] == ["P3D"]
    none = replicator.housekeeping_ls(cmroot=root, table="nosuch")
    assert found.to_arrow().column_names == none.to_arrow().column_names and not none.items
    assert replicator.housekeeping_cancel([item.id], cmroot=root, reason="wanted").items[0].reason == "wanted"
    assert fixture.states(table="u") == [("u", "DISABLED")]
    assert replicator.housekeeping_rearm([item.id], cmroot=root).to_dict()["changed"] == 1
    assert fixture.states(table="u") == [("u", "SCHEDULED")]


def test_following_from_python_ends_when_it_is_told_to(fixture: LifecycleFixture) -> None:
    fixture.table("t", properties=UNREFERENCED)
    stop, runs, failures = threading.Event(), [], []
    asked: dict[str, Any] = {"db": fixture.db.name, "engine": "local", "follow": True, "stop": stop}

    def end_after(reported: list[Any], *what: Any) -> None:
        reported.append(what)
        stop.set()

    uri, root = fixture.metastore.uri, fixture.root.place
    done = replicator.housekeeping_run(uri, root, tell=lambda run: end_after(runs, run), **asked)
    assert isinstance(done, Followed) and (done.rounds, done.failures) == (1, 0)
    assert runs == [(done.last,)] and done.to_dict()["databases"] == [fixture.db.name]
    stop.clear()
    done = replicator.housekeeping_run(
        uri,
        root,
        store="postgresql://user@127.0.0.1:1/db",
        tell_failure=lambda error, seconds: end_after(failures, type(error).__name__, seconds),
        **asked,
    )
    assert isinstance(done, Followed) and (done.rounds, done.failures, failures) == (0, 1, [("StoreUnreachable", 1.0)])
    assert done.to_dict() == {"rounds": 0, "removed": 0, "failures": 1, "status": "stopped"}
