"""What a policy remembers between its runs: the lease, the history, the scope, a turn that has begun."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmroot.root import ChangeRoot, create_or_open, seal
from cmroot.store.place import Place, join
from replicator.errors import ConfigError, FormatError, LeaseHeld
from replicator.policies.memory import Memory, RememberedScope, RoleChange, Run, Step, iso, policies

NOW = 1_800_000_000.0  # 2027-01-15
DAY = 86_400.0


@pytest.fixture(params=["disk", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> ChangeRoot:
    """A target's $cmroot, on a disk and on S3."""
    if request.param == "disk":
        return create_or_open(str(tmp_path / "cmroot"))
    return create_or_open(join(request.getfixturevalue("moto_bucket"), tmp_path.name))


@pytest.fixture
def memory(root: ChangeRoot) -> Memory:
    return Memory(root, "nightly", clock=now)


@pytest.fixture
def local(tmp_path: Path) -> Memory:
    return Memory(create_or_open(str(tmp_path / "cmroot")), "nightly", clock=now)


def run(number: int, *, days_ago: float = 0, **more: Any) -> Run:
    started = iso(NOW - days_ago * DAY + number)
    return Run(id=f"{number:032x}", policy="nightly", started=started, **more)


def done(number: int, *, days_ago: float = 0, **more: Any) -> Run:
    return run(number, days_ago=days_ago, status="done", ended=iso(NOW), kind="incremental", **more)


def now() -> float:
    return NOW


def test_runs_of_the_future_come_last(local: Memory) -> None:
    for each in (done(1, days_ago=2), done(2, days_ago=1), done(3, days_ago=-40)):
        local.write_run(each)
    assert [each.id[-1] for each in local.runs().runs] == ["2", "1", "3"]
    assert [each.id[-1] for each in local.runs(2).runs] == ["2", "1"]


# ---- the history --------------------------------------------------------------------------------------------------


def test_a_run_is_remembered_as_it_was(memory: Memory) -> None:
    whole = done(
        1,
        from_event=3,
        to_event=9,
        position=12,
        records=6,
        files=4,
        bytes=1334,
        lag_seconds=0.25,
        reverse=True,
        epoch=7,
        dump="/dumps/nightly/9-1",
        warnings=("slow",),
        steps={"capture": 1.5, "load": 2.25},
    )
    memory.write_run(whole)
    assert memory.runs().runs == [whole]
    assert list(memory.runs().runs[0].steps) == ["capture", "load"]


def test_a_run_that_ended_takes_the_place_of_the_one_that_began(memory: Memory) -> None:
    begun = run(1)
    memory.write_run(begun)
    ended = msgspec.structs.replace(begun, status="failed", ended=iso(NOW), error="no such metastore")
    for _ in range(2):
        memory.write_run(ended)
    assert memory.runs().runs == [ended]


def test_the_newest_runs_come_first(memory: Memory) -> None:
    for number in (2, 9, 1, 5):
        memory.write_run(done(number) if number != 9 else run(9, status="failed"))
    assert [int(each.id, 16) for each in memory.runs(3).runs] == [9, 5, 2]
    history = memory.runs()
    assert history.last == run(9, status="failed") and history.last_done == done(5)


def test_a_policy_that_never_ran_remembers_nothing(memory: Memory) -> None:
    history = memory.runs()
    assert (history.runs, history.damaged, history.last, history.last_done) == ([], [], None, None)
    assert memory.read_scope() is None and memory.read_role_change() is None and memory.unfinished_role_change() is None
    assert memory.close_killed(now=now) == [] and memory.prune_runs(timedelta(0), now=now) == 0


def test_runs_that_say_they_are_running_are_closed_by_the_next(memory: Memory) -> None:
    for each in (done(1), run(2), run(3, status="failed", error="disk full")):
        memory.write_run(each)
    (killed,) = memory.close_killed(now=now)
    assert (killed.id, killed.status, killed.ended) == (run(2).id, "killed", iso(NOW))
    assert memory.close_killed(now=now) == []
    assert [each.status for each in memory.runs().runs] == ["failed", "killed", "done"]


def test_old_runs_go_and_the_newest_stay_however_old_they_are(memory: Memory) -> None:
    for number, days_ago in enumerate([40, 30, 20, 10, 1], start=1):
        memory.write_run(done(number, days_ago=days_ago))
    assert memory.prune_runs(timedelta(days=15), now=now, keep=3) == 2
    assert [int(each.id, 16) for each in memory.runs().runs] == [5, 4, 3]
    assert memory.prune_runs(timedelta(days=15), now=now, keep=1) == 1
    assert memory.prune_runs(timedelta(days=15), now=now, keep=1) == 0
    assert memory.prune_runs(timedelta(0), now=now, keep=1) == 1


def test_pruning_leaves_what_is_no_run(local: Memory) -> None:
    local.write_run(done(1, days_ago=90))
    note = Path(local.place) / "runs" / "0-read-me.txt"
    note.write_text("kept by a person")
    assert local.prune_runs(timedelta(days=1), now=now, keep=0) == 1
    assert [path.name for path in note.parent.iterdir()] == [note.name]


def test_times_of_other_zones_sort_by_the_moment(local: Memory) -> None:
    early = Run(id="early", policy="nightly", started="2026-11-21T12:00:00+09:00")
    late = Run(id="late", policy="nightly", started="2026-11-21T05:00:00+00:00")
    for each in (late, early):
        local.write_run(each)
    assert local.runs().runs == [late, early]


# ---- scope and turn -----------------------------------------------------------------------------------------------


def test_the_scope_of_the_last_run_is_remembered(memory: Memory) -> None:
    scope = RememberedScope(databases={"sales": "sales_dr"}, include=("o.*",), recorded=iso(NOW))
    memory.write_scope(msgspec.structs.replace(scope, databases={}))
    memory.write_scope(scope)
    assert memory.read_scope() == scope


def test_a_turn_is_taken_up_where_it_was_left(memory: Memory) -> None:
    change = RoleChange(
        id="t1",
        policy="nightly",
        verb="switchover",
        started=iso(NOW),
        epoch=4,
        steps=(Step(name="fence"), Step(name="drain"), Step(name="promote")),
    )
    memory.write_role_change(change)
    memory.write_role_change(change.with_step("fence", status="done", ended=iso(NOW), detail={"epoch": 5}))
    found = memory.unfinished_role_change()
    assert found and [step.name for step in found.waiting] == ["drain", "promote"]
    assert found.steps[0].detail == {"epoch": 5}
    memory.write_role_change(msgspec.structs.replace(found, ended=iso(NOW)))
    assert memory.unfinished_role_change() is None
    remembered = memory.read_role_change()
    assert remembered and remembered.verb == "switchover"
    with pytest.raises(KeyError):
        change.with_step("celebrate", status="done")


# ---- damage -------------------------------------------------------------------------------------------------------


def damaged(data: bytes) -> dict[str, bytes]:
    file = json.loads(data)
    newer = json.dumps({**file, "version": 2}).encode()
    other = json.dumps({**file, "format": "cmroot-slot"}).encode()
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "binary": bytes(range(256)),
        "newer": newer,
        "another value": data.replace(b"nightly", b"nightIy"),
        "another format": other,
    }


def test_a_turns_id_leads_nowhere_else(local: Memory) -> None:
    """A turn that has ended is kept in a file of its id's name."""
    local.write_role_change(RoleChange(id="t1", policy="nightly", verb="failover", started=iso(NOW)))
    path = Path(local.place) / "turn.json"
    hostile = RoleChange(id="../../../slots/nightly", policy="nightly", verb="failover", started=iso(NOW))
    path.write_bytes(seal("replicator-turn", hostile))
    with pytest.raises(FormatError, match="slots/nightly"):
        local.unfinished_role_change()


@pytest.mark.parametrize("way", ["cut", "empty", "binary", "another value", "newer", "another format"])
def test_a_damaged_file_is_told_with_what_to_do(local: Memory, way: str) -> None:
    local.write_role_change(RoleChange(id="t1", policy="nightly", verb="failover", started=iso(NOW)))
    local.write_scope(RememberedScope(databases={"nightly": "nightly"}, recorded=iso(NOW)))
    for name, read in (("turn.json", local.read_role_change), ("scope.json", local.read_scope)):
        path = Path(local.place) / name
        path.write_bytes(damaged(path.read_bytes())[way])
        with pytest.raises(FormatError, match=name) as raised:
            read()
        assert raised.value.hint


def test_a_damaged_run_is_told_and_stops_nobody(memory: Memory) -> None:
    memory.write_run(done(1))
    memory.write_run(run(2))
    path = str(memory.place / "runs" / "20270115T080000.500Z-cut.json")
    Place(path).write_bytes(b'{"format": "replicator-run"')
    history = memory.runs()
    assert history.damaged == [path]
    assert history.runs == [run(2), done(1)]
    assert len(memory.close_killed(now=now)) == 1


def test_the_memory_of_another_policy_is_not_taken_for_ones_own(local: Memory) -> None:
    local.write_role_change(RoleChange(id="t1", policy="hourly", verb="failover", started=iso(NOW)))
    with pytest.raises(FormatError, match="belongs to policy hourly"):
        local.read_role_change()


def test_what_a_newer_release_adds_is_ignored(local: Memory) -> None:
    import xxhash

    body = msgspec.json.encode({**msgspec.to_builtins(done(1)), "weather": "fine"})
    file = {"format": "replicator-run", "version": 1, "xxh3_128": xxhash.xxh3_128_hexdigest(body)}
    path = Path(local.place) / "runs" / "20270115T080001.000Z-1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode({**file, "body": msgspec.Raw(body)}))
    assert local.runs().runs == [done(1)]


# ---- names and the lease ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "..", "../other", "a/b", ".hidden", "x" * 64, "a b"])
def test_a_name_that_cannot_be_a_directorys_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        Memory(create_or_open(str(tmp_path / "cmroot")), name)


def test_the_policies_of_a_root_are_told(root: ChangeRoot) -> None:
    assert list(policies(root)) == []
    for name in ("west", "east"):
        Memory(root, name).write_run(msgspec.structs.replace(done(1), policy=name))
    assert list(policies(root)) == ["east", "west"]


def test_two_runs_of_a_policy_exclude_each_other_and_each_has_a_higher_epoch(memory: Memory, root: ChangeRoot) -> None:
    with memory.lease("sync") as first:
        with pytest.raises(LeaseHeld, match="sync") as raised:
            Memory(root, "nightly").lease("failover")
        assert raised.value.exit_code == 7
        with Memory(root, "hourly").lease("sync"):  # another policy is free
            pass
    with memory.lease("failover") as second:
        assert second.epoch > first.epoch


def test_the_lease_of_a_run_that_was_killed_is_free(local: Memory, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from cmroot.root import create_or_open\n"
        "from replicator.policies.memory import Memory\n"
        "lease = Memory(create_or_open(sys.argv[1]), 'nightly').lease('sync')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "cmroot")], check=False)
    assert killed.returncode == -9
    with local.lease("sync") as lease:
        assert lease.epoch == 2
