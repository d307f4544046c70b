"""Restore: time travel for plain tables. What comes back is compared with what a walk of the tests' own saw then."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import xxhash
from faults import Fault, run_with
from past import Past, state_of
from plain_tables import _storage
from story import Answer, Story, command

from cmroot.content import locate
from replicator.metastore.embedded import Running
from replicator.model import EXTERNAL, Table

SEED = 20260301
STEPS, EVENTS = 40, 20


def restore(story: Story, to: object, *more: str, target: str | None = None) -> Answer:
    return command(
        "restore", "--cmroot", str(story.cmroot), "--db", story.db, "--to", str(to), "--target",
        target or story.source_uri, "--engine", "local", "--jobs", "1", *more,
    )  # fmt: skip


@pytest.fixture
def story(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Story:
    """A source with two tables, captured."""
    return Story(source_metastore, target_metastore, tmp_path)


def test_every_state_of_a_history_comes_back_as_it_was(story: Story) -> None:
    def capture() -> None:
        answer = story.capture()
        assert answer.code == 0, answer

    past = Past(story.source, story.source_uri, story.here / "outside", capture, SEED)
    past.run(STEPS)
    chosen = random.Random(SEED).sample(sorted(past.states), EVENTS)
    for event in chosen:
        answer = restore(story, event)
        assert answer.code == 0, answer
        found = state_of(story.source_uri, f"{story.db}_restored_{event}")
        wanted = past.states[event]
        names = [name for name in wanted | found if found.get(name) != wanted.get(name)]
        assert not names, (event, [(name, wanted.get(name), found.get(name)) for name in names])


# ---- one story: what was, and what is -----------------------------------------------------------------------------


class Then:
    """A captured database, what it was `before` at event `event`, and what it is since. `outside`: of its directory."""

    def __init__(self, story: Story) -> None:
        self.story, self.source = story, story.source
        self.outside = story.here / "outside"
        self.source.create()
        self.source.table("t", {"first": self.text("1"), "second": self.text("2")})
        self.source.table("dropped", {"file": self.text("dropped")})
        self.source.partitioned("parts", {"a": {"file": self.text("a")}, "b": {"file": self.text("b")}})
        self.outside.mkdir()
        (self.outside / "data").write_text(self.text("outside"))
        made = Table(
            db=story.db, name="ext", kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"}, storage=_storage(self.outside)
        )
        self.source.metastore.create_table(made)
        self.source.function("f")
        self.capture()
        self.event, self.before = self.now()
        self.source.write("t", {"first": self.text("new"), "third": self.text("3")})
        self.source.drop("dropped")
        self.source.drop_partitions("parts", ["a"])
        self.source.table("later", {"file": self.text("later")})
        self.source.function("g")
        (self.outside / "data").unlink()
        (self.outside / "data").write_text(self.text("outside, other"))
        self.capture()
        self.latest, self.after = self.now()

    def text(self, word: str) -> str:
        """Content that no other test has: they share a metastore, whose `$cmroot` would have its bytes."""
        return f"{self.story.db}: {word}"

    def capture(self) -> None:
        assert self.story.capture().code == 0

    def now(self) -> tuple[int, dict[str, Any]]:
        return self.source.metastore.current_event_id(), self.state()

    def state(self, db: str | None = None, uri: str | None = None) -> dict[str, Any]:
        return state_of(uri or self.story.source_uri, db or self.story.db)

    @property
    def into(self) -> str:
        return f"{self.story.db}_restored_{self.event}"

    def kept(self, text: str) -> Path:
        """Where `$cmroot` keeps the bytes of a text."""
        data = self.text(text).encode()
        return Path(locate(str(self.story.cmroot), xxhash.xxh3_128_hexdigest(data), len(data)))

    def databases(self) -> list[str]:
        return [name for name in self.source.metastore.database_names() if name.startswith(self.story.db)]


@pytest.fixture
def then(story: Story) -> Then:
    return Then(story)


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[Any]:
    return [(name, wanted.get(name), found.get(name)) for name in wanted | found if found.get(name) != wanted.get(name)]


def fails(answer: Answer, code: int, error: str, *named: object) -> None:
    assert (answer.code, answer.error) == (code, error), answer.said
    for name in named:
        assert str(name) in answer.message, answer.message
    assert answer.said["hint"]


def test_a_database_comes_back_beside_the_live_one_and_shares_nothing_with_it(then: Then) -> None:
    answer = restore(then.story, then.event)
    assert answer.code == 0, answer
    said = answer.said
    assert (said["status"], said["into"], said["event"]) == ("restored", then.into, then.event)
    assert (said["tables"], said["files"], said["files_missing"]) == (["dropped", "ext", "parts", "t"], 6, 0)
    assert said["files_from_source"] == 2 and said["files_copied"] == 6
    assert not differences(then.state(then.into), then.before)
    assert not differences(then.state(), then.after)
    homes = (then.source.home, then.source.home.with_name(f"{then.into}.db"), then.outside, then.story.cmroot)
    inodes = [{path.stat().st_ino for path in home.rglob("*") if path.is_file()} for home in homes]
    assert inodes[1] and not inodes[1] & (inodes[0] | inodes[2] | inodes[3])
    assert str(then.outside) not in (Path(said["into"]).name, *places(then, then.into))


def places(then: Then, db: str) -> list[str]:
    """Locations without what is below the database's directory."""
    home = f"file:{then.source.home.with_name(f'{db}.db')}"
    tables = then.source.metastore.tables(db, then.source.metastore.table_names(db))
    return [table.location for table in tables if table.location and not table.location.startswith(f"{home}/")]


def test_what_comes_back_is_a_plain_database(then: Then) -> None:
    assert restore(then.story, then.event).code == 0
    metastore = then.source.metastore
    marked = [metastore.database(then.into), *metastore.tables(then.into, metastore.table_names(then.into))]
    assert not [key for thing in marked for key in thing.parameters if key.startswith(("repl", "replicator"))]
    assert not list((then.story.cmroot / "dumps").iterdir())  # what it needed is let go of
    plain = command("status", "--target", then.story.source_uri, "--db", then.into)
    assert plain.said["status"] == "no replica"


def test_single_tables_come_back_alone(then: Then) -> None:
    answer = restore(then.story, then.event, "--table", "T", "--table", "parts", "--into", f"{then.story.db}_some")
    assert (answer.code, answer.said["tables"]) == (0, ["parts", "t"])
    found = then.state(f"{then.story.db}_some")
    wanted = {key: value for key, value in then.before.items() if key.startswith(("table t", "table parts"))}
    assert not differences({key: value for key, value in found.items() if key != "database"}, wanted)


def test_another_metastore_takes_it_under_the_same_name(then: Then) -> None:
    answer = restore(
        then.story, then.event, "--into", then.story.db, "--warehouse", str(then.story.warehouse),
        target=then.story.target_uri,
    )  # fmt: skip
    assert answer.code == 0, answer
    assert not differences(then.state(uri=then.story.target_uri), then.before)


def test_the_state_at_a_time_is_that_of_the_last_record_then(then: Then) -> None:
    captured = max(path.stat().st_mtime for path in (then.story.cmroot / "log").iterdir())
    time = datetime.fromtimestamp(int(captured) - 3600, UTC)
    fails(restore(then.story, time.isoformat()), 2, "UsageError", "captured since event")
    later = datetime.now(UTC).replace(year=2100)
    fails(restore(then.story, later.isoformat()), 2, "UsageError", f"nothing is captured after event {then.latest}")
    said = [restore(then.story, then.event, "--dry-run").said, restore(then.story, then.latest, "--dry-run").said]
    assert restore(then.story, said[1]["time"]).said["event"] == then.latest
    assert not differences(then.state(f"{then.story.db}_restored_{then.latest}"), then.after)


def test_a_table_or_database_that_was_not_there_then_is_told(then: Then) -> None:
    fails(restore(then.story, then.event, "--table", "later", "--table", "t"), 1, "ObjectNotFound", "later", then.event)
    fails(restore(then.story, then.event, "--table", "later"), 1, "ObjectNotFound", "later", then.event)
    story = then.story
    fails(command("restore", "--cmroot", str(story.cmroot), "--db", "nowhere", "--to", "1", "--target",
                  story.source_uri), 1, "ObjectNotFound", "nowhere")  # fmt: skip
    assert then.databases() == [story.db]


# ---- nothing live is touched by mistake ---------------------------------------------------------------------------


def test_a_database_that_exists_is_refused(then: Then) -> None:
    before = then.source.everything()
    fails(restore(then.story, then.event, "--into", then.story.db.upper()), 6, "Refused", then.story.db)
    assert then.source.everything() == before
    assert restore(then.story, then.event).code == 0
    fails(restore(then.story, then.event), 6, "Refused", then.into)
    fails(restore(then.story, then.event, "--dry-run"), 6, "Refused", then.into)


def test_a_directory_that_holds_something_is_refused(then: Then) -> None:
    place = then.source.home.with_name(f"{then.into}.db") / "t"
    place.mkdir(parents=True)
    (place / "precious").write_text("precious")
    fails(restore(then.story, then.event), 6, "Refused", place.parent)
    assert (place / "precious").read_text() == "precious" and then.databases() == [then.story.db]
    assert restore(then.story, then.event, "--force").code == 0
    assert not differences(then.state(then.into), then.before)


def test_forced_the_live_database_becomes_what_it_was_and_loses_no_byte(then: Then) -> None:
    then.source.write("t", {"unseen": then.text("never captured")})
    answer = restore(
        then.story, then.event, "--into", then.story.db, "--force", "--target-cmroot", str(then.story.cmroot)
    )
    assert answer.code == 0, answer
    assert answer.said["dropped"] == [f"{then.story.db}.later"]
    assert not differences(then.state(), then.before)
    for text in ("later", "3", "new", "outside, other", "never captured"):
        assert then.kept(text).read_text() == then.text(text)
    then.capture()
    assert not differences(then.state(), then.before)
    again = restore(then.story, then.latest)  # the way back is open
    assert again.code == 0
    assert not differences(then.state(f"{then.story.db}_restored_{then.latest}"), then.after)


def test_forced_a_single_live_table_comes_back_and_the_others_stay(then: Then) -> None:
    answer = restore(then.story, then.event, "--table", "t", "--into", then.story.db, "--force")
    assert (answer.code, answer.said["dropped"]) == (0, [])
    wanted = {
        key: then.before[key] if key in ("table t", "table t files") else value for key, value in then.after.items()
    }
    assert not differences(then.state(), wanted)


def test_forced_into_a_replica_it_is_one_no_more(then: Then) -> None:
    story = then.story
    assert story.dump().code == 0 and story.load().code == 0
    replica = ["--into", story.db, "--force", "--warehouse", str(story.warehouse)]
    answer = restore(story, then.event, *replica, target=story.target_uri)
    assert answer.code == 0 and "replica" in answer.said["warnings"][0]
    assert not differences(then.state(uri=story.target_uri), then.before)
    fails(story.load(), 6, "Refused", "not made by replication")


def test_a_dropped_database_comes_back_under_its_own_name(then: Then) -> None:
    metastore, home = then.source.metastore, then.source.home
    for name in metastore.table_names(then.story.db):
        metastore.drop_table(then.story.db, name)
    for name in ("f", "g"):
        metastore.drop_function(then.story.db, name)
    metastore.drop_database(then.story.db)
    shutil.rmtree(home)
    assert then.databases() == []
    answer = restore(then.story, then.event, "--into", then.story.db)
    assert answer.code == 0, answer
    assert not differences(then.state(), then.before)
    assert (then.outside / "data").read_text() == then.text("outside, other")  # what was never the database's own stays


def test_a_place_that_another_table_has_by_now_is_not_cleared(then: Then) -> None:
    metastore = then.source.metastore
    metastore.drop_table(then.story.db, "ext")
    made = Table(
        db=then.story.db, name="heir", kind=EXTERNAL, parameters={"EXTERNAL": "TRUE"}, storage=_storage(then.outside)
    )
    metastore.create_table(made)
    then.capture()
    alone = ["--table", "ext", "--into", then.story.db, "--force"]
    fails(restore(then.story, then.event, *alone), 6, "Refused", "heir", then.outside)
    assert (then.outside / "data").read_text() == then.text("outside, other")
    assert restore(then.story, then.event, "--table", "ext").code == 0


# ---- what is to be had --------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_and_changes_nothing(then: Then) -> None:
    everything, root = then.source.everything(), tree(then.story.cmroot)
    events = then.source.metastore.current_event_id()
    said = restore(then.story, then.event, "--dry-run").said
    assert (said["status"], said["into"], said["files"], said["files_to_copy"]) == ("planned", then.into, 6, 6)
    assert (said["files_from_source"], said["files_from_cmroot"], said["bytes_to_copy"]) == (2, 4, said["bytes"])
    assert said["missing"] == [] and said["tables"] == ["dropped", "ext", "parts", "t"]
    forced = restore(then.story, then.event, "--dry-run", "--into", then.story.db, "--force").said
    assert forced["dropped"] == [f"{then.story.db}.later"]
    assert forced["replaced"] == [f"{then.story.db}.{name}" for name in ("ext", "parts", "t")]
    assert then.source.everything() == everything and tree(then.story.cmroot) == root
    assert then.source.metastore.current_event_id() == events


def tree(place: Path) -> dict[str, bytes]:
    """Files below a place by content, without those that every run writes anew."""
    own = ("lease", "manifest.sqlite")
    return {
        str(path): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name.split("-")[0] not in own
    }


def test_data_that_is_nowhere_any_more_is_told_before_anything_is_done(then: Then) -> None:
    then.kept("dropped").unlink()
    then.kept("1").unlink()
    answer = restore(then.story, then.event)
    fails(answer, 1, "FilesMissing", "2 files", then.event)
    assert answer.said["files_missing"] == 2
    assert answer.said["bytes_missing"] == len(then.text("dropped") + then.text("1"))
    told = {each["object"]: each for each in answer.said["missing"]}
    assert told.keys() == {f"{then.story.db}.dropped", f"{then.story.db}.t"}
    assert "other bytes" in told[f"{then.story.db}.t"]["reason"]
    assert "gone" in told[f"{then.story.db}.dropped"]["reason"]
    assert told[f"{then.story.db}.dropped"]["file"] == f"file:{then.source.home}/dropped/file"
    assert then.databases() == [then.story.db]
    assert not then.source.home.with_name(f"{then.into}.db").exists()
    planned = restore(then.story, then.event, "--dry-run").said
    assert (planned["files_missing"], planned["files_to_copy"]) == (2, 4)
    assert restore(then.story, then.event, "--table", "parts").code == 0  # what is whole can be had


def test_the_rest_comes_back_when_that_is_allowed(then: Then) -> None:
    then.kept("1").unlink()
    answer = restore(then.story, then.event, "--allow-missing")
    assert (answer.code, answer.said["status"], answer.said["files_missing"]) == (3, "incomplete", 1)
    found = then.state(then.into)
    assert found["table t files"] == {"second": then.before["table t files"]["second"]}
    assert not differences(found, {**then.before, "table t files": found["table t files"]})


def test_a_kept_file_that_was_altered_is_missing_and_not_believed(then: Then) -> None:
    kept = then.kept("dropped")
    kept.write_text(kept.read_text().upper())
    answer = restore(then.story, then.event)
    fails(answer, 1, "FilesMissing", "1 files")
    assert "damaged" in answer.said["missing"][0]["reason"]
    assert then.databases() == [then.story.db]


def test_a_file_that_was_touched_but_not_changed_is_there(then: Then) -> None:
    """Another time alone is no other content: such a file is read."""
    (then.source.home / "t" / "second").touch()
    then.kept("2").unlink()
    answer = restore(then.story, then.event)
    assert (answer.code, answer.said["files_from_source"]) == (0, 2)


def test_a_file_that_no_capture_saw_is_told(then: Then) -> None:
    then.source.add("parts", {"short": {"file": "short-lived"}})
    event = then.source.metastore.current_event_id()
    then.source.drop_partitions("parts", ["short"])
    then.capture()
    answer = restore(then.story, event)
    assert answer.code in (0, 1)
    if answer.code:  # the event named the file
        assert "before a capture could read it" in answer.said["missing"][0]["reason"]


# ---- killed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "thrift", "create database"),
        Fault("after", "rename", r"restored.*/t/first$"),
        Fault("after", "thrift", "create table", 2),
        Fault("after", "thrift", "alter database", 1),
        Fault("after", "thrift", "alter table", 2),
        Fault("before", "thrift", "alter database", 3),
    ],
    ids=str,
)
def test_a_restore_that_was_killed_is_run_again(then: Then, fault: Fault) -> None:
    arguments = [
        "restore", "--cmroot", str(then.story.cmroot), "--db", then.story.db, "--to", str(then.event), "--target",
        then.story.source_uri, "--engine", "local", "--jobs", "1",
    ]  # fmt: skip
    run_with(fault, arguments)
    assert then.into in then.databases()
    fails(restore(then.story, then.latest, "--into", then.into), 6, "Refused", "begun by another restore")
    assert restore(then.story, then.event).code == 0
    assert not differences(then.state(then.into), then.before)
    assert not [key for key in then.source.metastore.database(then.into).parameters if "repl" in key]


def test_a_forced_restore_over_the_live_database_that_was_killed_is_run_again(then: Then) -> None:
    arguments = [
        "restore", "--cmroot", str(then.story.cmroot), "--db", then.story.db, "--to", str(then.event), "--target",
        then.story.source_uri, "--engine", "local", "--jobs", "1", "--into", then.story.db, "--force",
    ]  # fmt: skip
    run_with(Fault("after", "thrift", "drop table", 2), arguments)
    assert command(*arguments).code == 0
    assert not differences(then.state(), then.before)
