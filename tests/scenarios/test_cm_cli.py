"""The `cm` commands end to end: a real metastore's history, captured, and looked after by the command line."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from story import Answer, Story, command

import replicator
from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.root import open_existing
from replicator.cli.main import run
from replicator.commands.base import engines
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.spark import SparkEngine
from replicator.errors import Refused
from replicator.metastore.embedded.running import Running
from replicator.pitr.upkeep import expire_root, plan_expired


class Kept(Story):
    """A story that looks after its `$cmroot`."""

    def cm(self, *arguments: object) -> Answer:
        return command("cm", *map(str, arguments), "--cmroot", str(self.cmroot))

    def done(self, *arguments: object) -> dict[str, Any]:
        answer = self.cm(*arguments)
        assert answer.code == 0, answer
        return answer.said

    def captured(self) -> int:
        """Captures; the event that the log ends at."""
        answer = self.capture()
        assert answer.code == 0, answer
        return int(answer.said["through_event"])

    def expire(self, *more: object) -> dict[str, Any]:
        return self.done("expire", "--older-than", "0s", "--engine", "local", *more)

    def needs(self) -> dict[str, str]:
        """Who needs what, by the name of the file."""
        return {Path(each["origin"]).name: each["needed_by"] for each in self.done("ls")["entries"]}


@pytest.fixture
def story(source_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.chdir(tmp_path)
    made = Kept(source_metastore, source_metastore, tmp_path)
    made.source.create()
    yield made
    made.source.metastore.close()


def people(capsys: pytest.CaptureFixture[str], story: Kept, *arguments: object) -> str:
    capsys.readouterr()
    assert run(["cm", *map(str, arguments), "--cmroot", str(story.cmroot)]) == 0
    out = capsys.readouterr().out
    assert not any(line != line.rstrip() for line in out.splitlines())
    return out


# ---- what is kept -------------------------------------------------------------------------------------------------


def test_each_entry_tells_its_keeper_its_origin_its_event_and_who_needs_it(
    story: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    story.source.table("t", {"old": "old rows", "stays": "rows"})
    first = story.captured()
    story.done("hold", "audit", "--reason", "the auditors come")
    story.source.write("t", {"new": "something new"})
    (story.source.home / "t" / "old").unlink()
    story.captured()

    listed = story.done("ls")
    assert listed["total"] == {"entries": 3, "bytes": 25}
    assert listed["by_need"] == {"hold audit": {"entries": 1, "bytes": 8}, "live": {"entries": 2, "bytes": 17}}
    assert listed["shared"]["entries"] == 2
    new, old, stays = listed["entries"]  # the largest first
    assert [Path(each["origin"]).name for each in (new, old, stays)] == ["new", "old", "stays"]
    assert {each["keeper"] for each in listed["entries"]} == {"link"}
    assert (old["db"], old["table"], old["size"]) == (story.db, "t", 8)
    assert old["since_event"] == first and old["released_event"] >= first
    assert (old["needed_by"], old["until"]) == ("hold audit", "hold audit is released")
    assert (stays["needed_by"], stays["released_event"]) == ("live", None)

    text = people(capsys, story, "ls")
    assert "hold audit is released" in text and f"file:{story.source.home}/t/old" in text and "3 entries, 25 B" in text
    assert "2 more" in people(capsys, story, "ls", "--limit", "1")
    assert [each["size"] for each in story.done("ls", "--needed-by", "hold")["entries"]] == [8]
    assert story.done("ls", "--table", f"{story.db}.u")["total"]["entries"] == 0
    assert story.done("ls", "--table", f"{story.db}.t", "--limit", "0")["total"]["entries"] == 3


def test_what_a_load_replaced_is_listed_as_recycled(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    story = Kept(source_metastore, target_metastore, tmp_path)
    story.source.create()
    story.source.table("t", {"f": "first"})
    story.bootstrap()
    story.source.write("t", {"f": "second"})
    story.catch_up()
    answer = command("cm", "ls", "--cmroot", str(story.target_cmroot))
    (entry,) = answer.said["entries"]
    assert (entry["keeper"], entry["origin"], entry["needed_by"]) == ("recycle", None, "nobody")
    assert command("cm", "check", "--cmroot", str(story.target_cmroot)).said["status"] == "sound"


# ---- finding, and putting back ------------------------------------------------------------------------------------


def test_a_file_of_the_past_is_found_and_put_back(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"f": "first rows"})
    first = story.captured()
    story.source.write("t", {"f": "second rows"})
    story.source.table("u")
    story.captured()
    path = story.source.home / "t" / "f"

    found = story.done("find", "--path", path)
    assert [(each["size"], each["kept"], each["ended_event"] is None) for each in found["entries"]] == [
        (10, True, False),
        (11, True, True),
    ]
    assert found["entries"][0]["since_event"] == first
    assert story.done("find", "--table", f"{story.db}.t")["total"] == 2
    checksum = found["entries"][0]["checksum"]
    assert story.done("find", "--checksum", checksum[:8])["total"] == 1
    assert story.done("find", "--table", "nosuch.t")["status"] == "nothing found"
    text = people(capsys, story, "find", "--path", story.source.home)
    assert "still there" in text and "2 files found" in text

    several = story.cm("restore", path, "--to", story.here / "back")
    assert (several.code, several.error) == (2, "UsageError") and checksum in several.said["hint"]
    restored = story.done("restore", path, "--at", first, "--to", story.here / "back")
    assert (story.here / "back").read_text() == "first rows" and restored["checksum"] == checksum
    refused = story.cm("restore", checksum)
    assert (refused.code, refused.error) == (6, "Exists") and path.read_text() == "second rows"
    story.done("restore", checksum, "--overwrite")
    assert path.read_text() == "first rows"
    assert "restored" in people(capsys, story, "restore", checksum[:10], "--to", story.here / "again")


def test_what_cannot_be_found_or_put_back_is_told(story: Kept) -> None:
    story.source.table("t", {"f": "rows"})
    story.captured()
    assert story.cm("find").code == 2
    unknown = story.cm("restore", "/no/such/file", "--to", "x")
    assert (unknown.code, unknown.error) == (1, "KeepError")
    assert story.cm("restore", "abcdef012345", "--to", "x").error == "KeepError"
    assert command("cm", "ls", "--cmroot", "nowhere").error == "FormatError"


# ---- slots and holds ----------------------------------------------------------------------------------------------


def test_a_slot_keeps_what_its_consumer_has_not_got(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa", "b": "bb"})
    first = story.captured()
    made = story.done("slots", "create", "dr", "--consumer", "the other site")
    assert (made["status"], made["event"], made["name"]) == ("created", first, "dr")
    (story.source.home / "t" / "a").unlink()
    story.source.table("u")
    second = story.captured()

    (slot,) = story.done("slots")["slots"]
    assert slot["lag_events"] == second - first > 0 and slot["lag_records"] > 0 and slot["lag_seconds"] >= 0
    assert slot["held"] == {"entries": 1, "bytes": 3, "alone_entries": 1, "alone_bytes": 3}
    assert story.done("slots", "--no-held")["slots"][0]["held"] is None
    text = people(capsys, story, "slots")
    assert "dr" in text and "3 B" in text and "the other site" in text
    assert story.expire()["removed_entries"] == 0 and story.needs()["a"] == "slot dr"

    assert story.cm("slots", "confirm", "dr", "--at", second + 1000).code == 2
    assert story.done("slots", "confirm", "dr", "--at", second)["event"] == second
    back = story.cm("slots", "confirm", "dr", "--at", first)
    assert (back.code, back.error) == (2, "PinError")
    assert story.done("slots", "confirm", "dr", "--at", first, "--back")["event"] == first
    story.done("slots", "confirm", "dr", "--at", second)
    assert story.expire()["removed_entries"] == 1
    assert sorted(story.needs()) == ["b"]
    assert story.done("slots", "drop", "dr")["status"] == "dropped"
    assert story.cm("slots", "drop", "dr").error == "PinError"


def test_a_slot_is_confirmed_by_the_end_of_a_dump(story: Kept) -> None:
    story.source.table("t", {"f": "x"})
    assert story.dump().code == 0
    story.done("slots", "create", "dr", "--at", story.last)
    story.source.table("u")
    story.dump()
    confirmed = story.done("slots", "confirm", "dr", "--at", story.last)
    assert confirmed["position"] == segments(str(story.cmroot))[-1].last


def test_a_hold_keeps_a_moment_until_it_is_released(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa"})
    first = story.captured()
    (story.source.home / "t" / "a").unlink()
    story.source.table("u")
    story.captured()
    assert story.done("hold", "then", "--at", first)["status"] == "held"
    assert story.cm("hold", "then").error == "PinError"
    assert story.expire()["removed_entries"] == 0
    assert "then" in people(capsys, story, "slots")
    assert story.done("release", "then")["status"] == "released"
    assert story.cm("release", "then").error == "PinError"
    assert story.expire()["removed_entries"] == 1


def test_a_moment_that_was_not_captured_cannot_be_pinned(story: Kept) -> None:
    assert story.capture().code == 0
    for moment in ("999999999", "1970-01-01T00:00:00Z", "soon"):
        refused = story.cm("hold", "then", "--at", moment)
        assert (refused.code, refused.error) == (2, "UsageError"), moment
    assert story.cm("hold", "../then").error == "PinError"


def test_a_damaged_pin_stops_expiry_and_is_listed(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa"})
    story.captured()
    story.done("slots", "create", "dr")
    path = story.cmroot / "slots" / "dr"
    path.write_bytes(path.read_bytes()[:-9])
    stopped = story.cm("expire", "--older-than", "0s")
    assert (stopped.code, stopped.error) == (1, "FormatError") and str(path) in stopped.message
    assert story.done("slots")["damaged"] == [str(path)]
    assert f"damaged: {path}" in people(capsys, story, "slots")
    story.done("slots", "drop", "dr")
    story.expire()


def test_the_root_comes_from_the_configuration_and_stands_before_or_after(story: Kept, tmp_path: Path) -> None:
    story.captured()
    (tmp_path / "replicator.toml").write_text(f"[defaults]\ncmroot = '{story.cmroot}'\n")
    assert command("cm", "slots", "create", "a").code == 0
    assert [each["name"] for each in command("cm", "slots").said["slots"]] == ["a"]
    assert command("cm", "ls").code == 0
    (tmp_path / "replicator.toml").unlink()
    assert command("cm", "slots", "--cmroot", str(story.cmroot), "create", "b").code == 0
    for arguments in (["slots"], ["slots", "create", "c"], ["ls"]):
        missing = command("cm", *arguments)
        assert (missing.code, missing.error) == (2, "UsageError") and "cmroot" in missing.message


# ---- expiry -------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_ahead_lets_nothing_expire(story: Kept) -> None:
    """The clock of whoever runs it decides how old everything is: one of next week took what was a day old."""
    story.source.table("t", {"a": "aaa"})
    story.captured()
    (story.source.home / "t" / "a").unlink()
    story.captured()
    work = AutoEngine(LocalEngine(2), SparkEngine(), "local")
    root, week = open_existing(str(story.cmroot)), timedelta(days=7)
    for act in (expire_root, plan_expired):
        with pytest.raises(Refused, match=r"clock is 8\.0 d ahead"):
            act(root, work, week, clock=lambda: time.time() + 8 * 86_400)
    for more in ([], ["--dry-run"]):
        refused = story.cm("expire", "--older-than", "0s", "--engine", "local", "--idle", "0s", *more)
        assert refused.code == 6 and "newest capture" in refused.message and "--idle" in refused.said["hint"]
    assert list((story.cmroot / "incoming").iterdir()) == [] and story.expire()["removed_entries"] == 1


def test_roots_and_dumps_are_their_owners_alone(story: Kept, tmp_path: Path) -> None:
    story.source.table("t", {"a": "aaa"})
    assert story.dump(out=tmp_path / "dumps" / "1").code == 0
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (story.cmroot, tmp_path / "dumps" / "1")]
    assert modes == [0o700, 0o700]


def test_a_dry_run_of_an_expiry_tells_and_removes_nothing(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa", "b": "bb"})
    story.captured()
    (story.source.home / "t" / "a").unlink()
    story.captured()
    assert story.done("expire", "--older-than", "7d", "--dry-run")["going_entries"] == 0
    plan = story.expire("--dry-run")
    assert (plan["status"], plan["going"], plan["kept_entries"]) == (
        "planned",
        {"expired": {"entries": 1, "bytes": 3}},
        1,
    )
    assert "would go" in people(capsys, story, "expire", "--older-than", "0s", "--dry-run")
    assert sorted(story.needs()) == ["a", "b"]
    done = story.expire()
    assert (done["status"], done["removed_bytes"], done["bytes_freed"]) == ("expired", 3, 3)
    assert sorted(story.needs()) == ["b"]
    assert "went" in people(capsys, story, "expire", "--older-than", "0s")


def test_a_slot_is_given_up_only_when_told_to(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa"})
    story.captured()
    story.done("slots", "create", "dr")
    (story.source.home / "t" / "a").unlink()
    story.captured()
    assert story.expire()["given_up"] == []
    text = people(capsys, story, "expire", "--older-than", "0s", "--max-slot-lag", "0s", "--dry-run")
    assert "GIVEN UP" in text and "slot dr" in text
    given = story.expire("--max-slot-lag", "0s")
    assert [each["slot"] for each in given["given_up"]] == ["dr"] and given["removed_entries"] == 1
    assert "given up" in people(capsys, story, "slots")
    assert story.cm("slots", "confirm", "dr", "--at", story.captured()).error == "PinError"


def test_a_lease_that_is_held_is_waited_for_as_long_as_told(story: Kept) -> None:
    story.source.table("t", {"a": "aaa"})
    story.captured()
    with acquire(str(story.cmroot), "capture"):
        for arguments in (("expire", "--older-than", "0s"), ("compact",)):
            held = story.cm(*arguments, "--wait", "300ms")
            assert (held.code, held.error) == (7, "LeaseHeld")
        assert story.done("expire", "--older-than", "0s", "--dry-run")["status"] == "planned"
        assert story.done("check")["status"] == "sound"
    assert story.cm("compact", "--wait", "0s").code == 0


# ---- check and compact --------------------------------------------------------------------------------------------


def test_a_check_finds_altered_and_missing_bytes(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    story.source.table("t", {"a": "aaa", "b": "bb"})
    story.captured()
    assert story.done("check", "--no-bytes")["bytes_read"] == 0
    assert "nothing wrong" in people(capsys, story, "check")
    (story.source.home / "t" / "a").write_text("AAA")  # in place: the kept link is the same file
    kept = {each["size"]: each["checksum"] for each in story.done("ls")["entries"]}
    next((story.cmroot / "files").rglob(f"*{kept[2]}-2")).unlink()

    checked = story.cm("check")
    assert (checked.code, checked.said["status"]) == (4, "damaged")
    assert checked.said["counts"] == {"damaged": 1, "missing": 1}
    damaged, missing = checked.said["findings"]
    assert "holds other bytes" in damaged["repair"] and damaged["needed_by"] == "live"
    assert "still has these bytes" in missing["repair"]
    capsys.readouterr()
    assert run(["cm", "check", "--cmroot", str(story.cmroot), "--limit", "1"]) == 4
    text = capsys.readouterr().out
    assert "repair: " in text and "1 more finding" in text


def test_a_compacted_log_dumps_the_same_at_every_event(story: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    events = []
    story.source.table("t", {"a": "aaa", "b": "bb"})
    events.append(story.captured())
    story.source.partitioned("p", {"1": {"f": "one"}, "2": {"f": "two"}})
    events.append(story.captured())
    story.source.drop_partitions("p", ["1"])
    story.source.write("t", {"a": "changed"})
    events.append(story.captured())
    story.source.add("p", {"1": {"f": "again"}})
    story.source.rename("t", "u")
    events.append(story.captured())
    story.source.table("t", {"z": "another"})
    story.source.drop("u")
    events.append(story.captured())
    before = dumps(story, events)
    assert len(before) == 9 and story.done("compact", "--dry-run")["segments_after"] == 1

    done = story.done("compact")
    assert (done["segments_before"], done["segments_after"], done["merged"]) == (5, 1, 5)
    assert "none are worth it" in people(capsys, story, "compact")
    for name in ("manifest.sqlite", "manifest.sqlite-wal", "manifest.sqlite-shm"):
        (story.cmroot / name).unlink(missing_ok=True)
    assert story.captured() == events[-1] and len(segments(str(story.cmroot))) == 1
    assert dumps(story, events) == before
    assert story.done("check")["status"] == "sound"
    shown = command("show", str(story.cmroot), "--files").said
    assert shown["segments"] == 1 and len(shown["records"]) == done["records"]


def dumps(story: Kept, events: list[int]) -> list[tuple[Any, Any]]:
    """Records and files of a bootstrap until each event, and of each step from one to the next."""
    found = []
    ranges: list[tuple[int | None, int]] = [*((None, event) for event in events), *pairwise(events)]
    for begin, end in ranges:
        story.dumps += 1
        since = [] if begin is None else ["--since", str(begin)]
        arguments = [*story.dump_arguments(story.last), *since, "--until", str(end), "--no-capture"]
        answer = command(*arguments)
        assert answer.code == 0, answer
        shown = command("show", str(story.last), "--files").said
        for entry in shown["files"]:  # a link moves an inode's change time: a hint of the manifest that no record has
            entry["identity"] = entry["identity"].partition(":")[0]
        found.append((shown["records"], sorted(shown["files"], key=json.dumps)))
    return found


def test_listing_and_checking_run_on_spark_and_from_python(story: Kept) -> None:
    story.source.table("t", {"a": "aaa", "b": "bb"})
    story.captured()
    (story.source.home / "t" / "a").unlink()
    story.captured()
    root = str(story.cmroot)
    with engines("spark", "local[2]") as spark:
        listed = replicator.cm_ls(cmroot=root, engine=spark)
        checked = replicator.cm_check(cmroot=root, engine=spark)
    assert {need: count["entries"] for need, count in listed.by_need.items()} == {"live": 1, "nobody": 1}
    assert listed.entries == story.done("ls", "--engine", "local")["entries"]
    assert (checked.status, checked.entries, checked.bytes_read) == ("sound", 2, 5)
    assert replicator.cm_expire(cmroot=root, older_than=timedelta(0)).removed_entries == 1
    found = replicator.cm_find(cmroot=root, table=f"{story.db}.t")
    assert sorted(found.to_arrow()["size"].to_pylist()) == [2, 3]


def test_a_report_prints_as_the_command_line_says_it_and_its_rows_are_a_table(story: Kept) -> None:
    story.source.table("t", {"a": "aaa"})
    first, root = story.captured(), str(story.cmroot)
    made = replicator.cm_slots_create("dr", cmroot=root, at=first, consumer="the other site")
    held = replicator.cm_hold("audit", cmroot=root)
    for printed in (json.loads(str(made)), json.loads(str(held))):
        assert printed["event"] == first and "pin" not in printed
    listed = replicator.cm_slots(cmroot=root, held=False)
    assert json.loads(str(listed))["holds"] == story.done("slots", "--no-held")["holds"]
    table = listed.to_arrow()
    assert table.select(["kind", "name", "consumer"]).to_pylist() == [
        {"kind": "slot", "name": "dr", "consumer": "the other site"},
        {"kind": "hold", "name": "audit", "consumer": None},
    ]
    assert replicator.cm_find(cmroot=root, table="nosuch.t").to_arrow().num_rows == 0
    replicator.cm_slots_confirm("dr", cmroot=root, at=first)
    assert [replicator.cm_slots_drop("dr", cmroot=root).status, replicator.cm_release("audit", cmroot=root).status] == [
        "dropped",
        "released",
    ]
