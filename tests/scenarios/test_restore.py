"""Restore: time travel for plain tables. What comes back is compared with what a walk of the tests' own saw then."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import command, command_with_progress
from faults import Fault, run_with
from history_generator import HistoryGenerator, is_newer, state_of
from hive_metastore import ttypes as newer
from hmsclient.genthrift.hive_metastore import ttypes
from lab import Lab
from newer_calls import newer_client
from restore_fixture import RestoreFixture, differences, fails, restore, restore_arguments
from waiting import eventually

from cmroot.store.place import local_path
from replicator.metastore.concurrency import locks_event_ids
from replicator.metastore.embedded.running import Running

SEED = 20260301
STEPS, EVENTS = 40, 8
CLEANED_AT_ITS_START = {"timetolive": "1s", "clean.startup.wait.interval": "0s", "clean.interval": "1s"}


@pytest.fixture
def fixture(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    return Lab(source_metastore, target_metastore, tmp_path)


@pytest.fixture
def then(fixture: Lab) -> RestoreFixture:
    return RestoreFixture(fixture)


@pytest.fixture(scope="module")
def calm(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> RestoreFixture:
    """For those who change nothing of it: each restores into a database of its own."""
    return RestoreFixture(Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("calm")))


@pytest.fixture
def into(calm: RestoreFixture, request: pytest.FixtureRequest) -> str:
    """The name of a database that is not there yet."""
    return f"{calm.fixture.name}_{len(calm.databases())}"


@pytest.mark.parametrize(("hive", "events"), [("", EVENTS), pytest.param("4.2", 6, marks=pytest.mark.long)])
def test_every_state_of_a_history_comes_back_as_it_was(
    hive: str, events: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """hive: its version, where it is not the module's. Newer servers have constraints in their histories."""
    if hive:
        hives = request.getfixturevalue("hives")
        fixture = Lab(hives(hive), hives(hive, "target", "postgres"), tmp_path)
    else:
        fixture = request.getfixturevalue("fixture")

    def capture() -> None:
        answer = fixture.capture()
        assert answer.code == 0, answer

    past = HistoryGenerator(fixture.source, fixture.source_uri, fixture.here / "outside", capture, SEED)
    past.run(STEPS)
    chosen = random.Random(SEED).sample(sorted(past.states), events)
    constrained = [name for event in chosen for name, some in past.states[event].items() if "constr" in name and some]
    assert bool(constrained) == is_newer(fixture.source_uri)
    for event in chosen:
        answer = restore(fixture, event)
        assert answer.code == 0, answer
        found = state_of(fixture.source_uri, f"{fixture.name}_restored_{event}")
        wanted = past.states[event]
        names = [name for name in wanted | found if found.get(name) != wanted.get(name)]
        assert not names, (event, [(name, wanted.get(name), found.get(name)) for name in names])


def test_a_killed_restore_leaves_no_dump_once_another_has_run(
    calm: RestoreFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    arguments = restore_arguments(calm.fixture, calm.event, "--dry-run", "--into", "nowhere")
    assert run_with(Fault("after", "rename", f"^{tmp_path}/.*/dump/_finished_dump"), arguments).killed
    assert len(list(tmp_path.glob("replicator-restore-*"))) == 1
    assert restore(calm.fixture, calm.event, "--dry-run", "--into", "nowhere").code == 0
    assert list(tmp_path.glob("replicator-restore-*")) == []


# ---- beside what is live ------------------------------------------------------------------------------------------


def test_a_database_comes_back_beside_the_live_one_and_shares_nothing_with_it(calm: RestoreFixture) -> None:
    answer = restore(calm.fixture, calm.event)
    assert answer.code == 0, answer
    output = answer.output
    assert (output["status"], output["into"], output["event"]) == ("restored", calm.into, calm.event)
    assert (output["tables"], output["files"], output["files_missing"]) == (["dropped", "ext", "parts", "t"], 6, 0)
    assert output["files_copied"] == 6
    assert not differences(calm.state(calm.into), calm.before)
    assert not differences(calm.state(), calm.after)
    home = calm.source.home.with_name(f"{calm.into}.db")
    others = (calm.source.home, calm.outside, calm.fixture.cmroot)
    assert inodes(home) and not inodes(home) & {inode for place in others for inode in inodes(place)}
    tables = calm.source.metastore.tables(calm.into, output["tables"])
    assert all(table.location and table.location.startswith(f"file:{home}/") for table in tables)


def inodes(place: Path) -> set[int]:
    return {path.stat().st_ino for path in place.rglob("*") if path.is_file()}


def test_what_comes_back_is_a_plain_database(calm: RestoreFixture, into: str) -> None:
    """And what a restore tells meanwhile."""
    answer, told = command_with_progress(*restore_arguments(calm.fixture, calm.event, "--into", into))
    assert answer.code == 0, answer
    copied, tables = told["copy files"], told["commit tables"]
    assert copied["files"] == copied["of_files"] == answer.output["files_copied"]
    assert copied["bytes"] == copied["of_bytes"] > 0 and tables["steps"] == tables["of_steps"] == 4
    metastore = calm.source.metastore
    marked = [metastore.database(into), *metastore.tables(into, metastore.table_names(into))]
    assert not [key for obj in marked for key in obj.parameters if key.startswith(("repl", "replicator"))]
    assert not list((calm.fixture.cmroot / "dumps").iterdir())  # what it needed is let go of
    plain = command("status", "--target", calm.fixture.source_uri, "--db", into)
    assert plain.output["status"] == "no replica"


def test_single_tables_come_back_alone(calm: RestoreFixture, into: str) -> None:
    answer = restore(calm.fixture, calm.event, "--table", "T", "--table", "parts", "--into", into)
    assert (answer.code, answer.output["tables"]) == (0, ["parts", "t"])
    found = calm.state(into)
    wanted = {key: value for key, value in calm.before.items() if " t" in key or " parts" in key}
    assert not differences({key: value for key, value in found.items() if key != "database"}, wanted)


def test_another_metastore_takes_it_under_the_same_name(calm: RestoreFixture) -> None:
    fixture = calm.fixture
    own = ["--into", fixture.name, "--warehouse", str(fixture.here / "elsewhere")]  # Hive 4 moves those in its own
    answer = restore(fixture, calm.event, *own, target=fixture.target_uri)
    assert answer.code == 0, answer
    assert not differences(calm.state(uri=fixture.target_uri), calm.before)


def test_the_state_at_a_time_is_that_of_the_last_record_then(calm: RestoreFixture, into: str) -> None:
    captured = max(path.stat().st_mtime for path in (calm.fixture.cmroot / "log").iterdir())
    time = datetime.fromtimestamp(int(captured) - 3600, UTC)
    fails(restore(calm.fixture, time.isoformat()), 2, "UsageError", "captured since event")
    fails(restore(calm.fixture, "-1d"), 2, "UsageError", "captured since event")
    later = datetime.now(UTC).replace(year=2100)
    fails(restore(calm.fixture, later.isoformat()), 2, "UsageError", f"nothing is captured after event {calm.latest}")
    last = restore(calm.fixture, calm.latest, "--dry-run").output["time"]
    assert restore(calm.fixture, last, "--into", into).output["event"] == calm.latest
    assert not differences(calm.state(into), calm.after)


def test_a_table_or_database_that_was_not_there_then_is_told(calm: RestoreFixture, into: str) -> None:
    before = calm.databases()
    for tables in (["later", "t"], ["later"]):
        chosen = ["--into", into, *(word for name in tables for word in ("--table", name))]
        fails(restore(calm.fixture, calm.event, *chosen), 1, "ObjectNotFound", "later", calm.event)
    arguments = ["--cmroot", str(calm.fixture.cmroot), "--target", calm.fixture.source_uri]
    fails(command("restore", *arguments, "--db", "nowhere", "--to", "1"), 1, "ObjectNotFound", "nowhere")
    assert calm.databases() == before


def test_a_database_that_exists_is_refused(calm: RestoreFixture, into: str) -> None:
    before = calm.source.everything()
    fails(restore(calm.fixture, calm.event, "--into", calm.fixture.name.upper()), 6, "Refused", calm.fixture.name)
    assert calm.source.everything() == before
    assert restore(calm.fixture, calm.event, "--into", into).code == 0
    fails(restore(calm.fixture, calm.event, "--into", into), 6, "Refused", into)
    fails(restore(calm.fixture, calm.event, "--into", into, "--dry-run"), 6, "Refused", into)


def test_a_dry_run_says_what_would_be_and_changes_nothing(calm: RestoreFixture, into: str) -> None:
    everything, root = calm.source.everything(), tree(calm.fixture.cmroot)
    events = calm.source.metastore.current_event_id()
    output = restore(calm.fixture, calm.event, "--dry-run", "--into", into).output
    assert (output["status"], output["into"], output["files"], output["files_to_copy"]) == ("planned", into, 6, 6)
    assert (output["files_from_source"], output["files_from_cmroot"], output["bytes_to_copy"]) == (
        2,
        4,
        output["bytes"],
    )
    assert output["missing"] == [] and output["tables"] == ["dropped", "ext", "parts", "t"]
    forced = restore(calm.fixture, calm.event, "--dry-run", "--into", calm.fixture.name, "--force").output
    assert forced["dropped"] == [f"{calm.fixture.name}.later"]
    assert forced["replaced"] == [f"{calm.fixture.name}.{name}" for name in ("ext", "parts", "t")]
    assert calm.source.everything() == everything and tree(calm.fixture.cmroot) == root
    assert calm.source.metastore.current_event_id() == events and into not in calm.databases()


def tree(place: Path) -> dict[str, bytes]:
    """Files below a place by content, without those that every run writes again."""
    own = ("lease", "manifest.sqlite")
    return {
        str(path): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name.split("-")[0] not in own
    }


# ---- what is to be had --------------------------------------------------------------------------------------------


def test_data_that_is_nowhere_any_more_is_told_before_anything_is_done(then: RestoreFixture) -> None:
    then.kept("dropped").unlink()
    then.kept("1").unlink()
    answer = restore(then.fixture, then.event)
    fails(answer, 1, "FilesMissing", "2 files", then.event)
    assert answer.output["files_missing"] == 2
    assert answer.output["bytes_missing"] == len(then.text("dropped") + then.text("1"))
    reported = {each["object"]: each for each in answer.output["missing"]}
    assert reported.keys() == {f"{then.fixture.name}.dropped", f"{then.fixture.name}.t"}
    assert "other bytes" in reported[f"{then.fixture.name}.t"]["reason"]
    assert "no longer exists" in reported[f"{then.fixture.name}.dropped"]["reason"]
    assert reported[f"{then.fixture.name}.dropped"]["file"] == f"file:{then.source.home}/dropped/file"
    assert then.databases() == [then.fixture.name]
    assert not then.source.home.with_name(f"{then.into}.db").exists()
    planned = restore(then.fixture, then.event, "--dry-run").output
    assert (planned["files_missing"], planned["files_to_copy"]) == (2, 4)
    assert restore(then.fixture, then.event, "--table", "parts").code == 0  # what is whole can be had


def test_the_rest_comes_back_when_that_is_allowed(then: RestoreFixture) -> None:
    then.kept("1").unlink()
    answer = restore(then.fixture, then.event, "--allow-missing")
    assert (answer.code, answer.output["status"], answer.output["files_missing"]) == (3, "incomplete", 1)
    found = then.state(then.into)
    assert found["table t files"] == {"second": then.before["table t files"]["second"]}
    assert not differences(found, {**then.before, "table t files": found["table t files"]})


def test_a_kept_file_that_was_altered_is_missing_and_not_believed(then: RestoreFixture) -> None:
    kept = then.kept("dropped")
    kept.write_text(kept.read_text().upper())
    answer = restore(then.fixture, then.event)
    fails(answer, 1, "FilesMissing", "1 file")
    assert "damaged" in answer.output["missing"][0]["reason"]
    assert then.databases() == [then.fixture.name]


def test_a_file_that_was_touched_but_not_changed_is_there(then: RestoreFixture) -> None:
    """Another time alone is no other content: such a file is read."""
    (then.source.home / "t" / "second").touch()
    then.kept("2").unlink()
    answer = restore(then.fixture, then.event)
    assert (answer.code, answer.output["files_from_source"]) == (0, 2)


def _announce(then: RestoreFixture, file: Path) -> None:
    """An INSERT event; the struct has other fields since Hive 3, of which some are required."""
    types = newer if locks_event_ids(then.source.metastore) else ttypes
    more = {"replace": False} if types is newer else {}
    inserted = types.InsertEventRequestData(filesAdded=[f"file:{file}"], filesAddedChecksum=[""], **more)
    data = types.FireEventRequestData(insertData=inserted)
    of = {"dbName": then.fixture.name, "tableName": "parts", "partitionVals": ["short"]}
    request = types.FireEventRequest(True, data, **of)
    with newer_client(then.fixture.source_uri) as client:
        client.fire_listener_event(request)


def test_a_file_that_no_capture_saw_is_told_where_an_event_named_it(then: RestoreFixture) -> None:
    then.source.add("parts", {"short": {"file": then.text("short-lived")}})
    file = then.source.home / "parts" / "p=short" / "file"
    _announce(then, file)
    event = then.source.metastore.current_event_id()
    then.source.drop_partitions("parts", ["short"])
    then.capture()
    answer = restore(then.fixture, event)
    fails(answer, 1, "FilesMissing", "1 file")
    (missing,) = answer.output["missing"]
    assert missing["object"] == f"{then.fixture.name}.parts/p=short"
    assert "before a capture could read it" in missing["reason"]


# ---- events that were lost ----------------------------------------------------------------------------------------


def test_across_a_gap_the_states_before_and_after_come_back_and_none_between(
    forgetful: Callable[..., Running], target_metastore: Running, tmp_path: Path
) -> None:
    fixture = Lab(forgetful(), target_metastore, tmp_path)
    then = RestoreFixture(fixture)
    fixture.source.table("unseen", {"file": then.text("unseen")})
    fixture.source.drop("later")
    inside, lost = then.now()
    forgetful(**{f"hive.metastore.event.db.listener.{key}": value for key, value in CLEANED_AT_ITS_START.items()})
    eventually(lambda: not fixture.source.metastore.next_events(inside - 1))
    assert fixture.capture().code == 5
    assert fixture.capture("--repair").code == 0
    fixture.source.table("after", {"file": then.text("after")})
    then.capture()
    after, newest = then.now()
    for event, wanted in ((then.event, then.before), (then.latest, then.after), (after, newest)):
        answer = restore(fixture, event)
        assert answer.code == 0, answer
        assert not differences(then.state(f"{fixture.name}_restored_{event}"), wanted)
    for event in range(then.latest + 1, inside):
        refused = restore(fixture, event)
        fails(refused, 5, "MomentLost", f"events {then.latest + 1} to {inside} were lost")
        assert f"event {then.latest}, the last event before" in refused.output["hint"]
    answer = restore(fixture, inside)  # the repair saw what had become of it
    assert answer.code == 0
    assert not differences(then.state(f"{fixture.name}_restored_{inside}"), lost)


def test_single_partitions_come_back_beside_the_table_and_never_in_its_place(calm: RestoreFixture, into: str) -> None:
    only = ("--table", "parts", "--partition", "p=a", "--into", into)
    planned = restore(calm.fixture, calm.event, *only, "--dry-run")
    assert (planned.code, planned.output["partitions"], planned.output["files"]) == (0, ["p=a"], 1)
    answer = restore(calm.fixture, calm.event, *only)
    assert (answer.code, answer.output["tables"], answer.output["partitions"]) == (0, ["parts"], ["p=a"])
    metastore = calm.source.metastore
    assert metastore.partition_names(into, "parts") == ["p=a"] and metastore.table_names(into) == ["parts"]
    ((partition,),) = metastore.partitions(into, "parts", ["p=a"])
    assert partition.storage and partition.storage.location
    assert (Path(local_path(partition.storage.location)) / "file").read_text() == calm.text("a")

    living = metastore.partition_names(calm.fixture.name, "parts")
    in_place = ("--table", "parts", "--partition", "p=a", "--into", calm.fixture.name, "--force")
    fails(restore(calm.fixture, calm.event, *in_place), 6, "Refused", "parts", "other partitions")
    assert metastore.partition_names(calm.fixture.name, "parts") == living == ["p=b"]
    gone = ("--table", "parts", "--partition", "p=a", "--partition", "p=z", "--into", f"{into}_z")
    fails(restore(calm.fixture, calm.event, *gone), 1, "ObjectNotFound", "p=z")
    fails(restore(calm.fixture, calm.latest, *gone[:-1], f"{into}_z"), 1, "ObjectNotFound", "p=a", "p=z")
    for wrong in (("--partition", "p=a"), ("--table", "parts", "--partition", "nonsense")):
        fails(restore(calm.fixture, calm.event, *wrong, "--into", f"{into}_z"), 2, "UsageError", "--partition")
    other = ("--table", "t", "--partition", "p=a", "--into", f"{into}_z")
    fails(restore(calm.fixture, calm.event, *other), 2, "UsageError", "not partition keys")
    assert f"{into}_z" not in calm.databases()
