"""The `cm` commands end to end: a real metastore's history, captured, and looked after by the command line."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from engines import local_engine
from lab import Lab

import replicator
from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.root import open_existing
from replicator.cli.main import run
from replicator.commands.base import engines
from replicator.core.runtime import Runtime
from replicator.errors import Refused
from replicator.metastore.embedded.running import Running
from replicator.replay.restore.upkeep import expire_root, plan_expired


class Kept(Lab):
    """A story that looks after its `$cmroot`."""

    def cm(self, *arguments: object) -> Answer:
        return command("cm", *map(str, arguments), "--cmroot", str(self.cmroot))

    def done(self, *arguments: object) -> dict[str, Any]:
        answer = self.cm(*arguments)
        assert answer.code == 0, answer
        return answer.output

    def captured(self) -> int:
        """Captures; the event that the log ends at."""
        answer = self.capture()
        assert answer.code == 0, answer
        return int(answer.output["through_event"])

    def expire(self, *more: object) -> dict[str, Any]:
        return self.done("expire", "--older-than", "0s", "--engine", "local", *more)

    def needs(self) -> dict[str, str]:
        """Who needs what, by the name of the file."""
        return {Path(each["origin"]).name: each["needed_by"] for each in self.done("ls")["entries"]}


@pytest.fixture
def fixture(source_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.chdir(tmp_path)
    made = Kept(source_metastore, source_metastore, tmp_path)
    made.source.create()
    yield made
    made.source.metastore.close()


def people(capsys: pytest.CaptureFixture[str], fixture: Kept, *arguments: object) -> str:
    capsys.readouterr()
    assert run(["cm", *map(str, arguments), "--cmroot", str(fixture.cmroot)]) == 0
    out = capsys.readouterr().out
    assert not any(line != line.rstrip() for line in out.splitlines())
    return out


# ---- what is kept -------------------------------------------------------------------------------------------------


def test_each_entry_tells_its_keeper_its_origin_its_event_and_who_needs_it(
    fixture: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.source.table("t", {"old": "old rows", "stays": "rows"})
    first = fixture.captured()
    fixture.done("hold", "audit", "--reason", "the auditors come")
    fixture.source.write("t", {"new": "something new"})
    (fixture.source.home / "t" / "old").unlink()
    fixture.captured()

    listed = fixture.done("ls")
    assert listed["total"] == {"entries": 3, "bytes": 25}
    assert listed["by_need"] == {"hold audit": {"entries": 1, "bytes": 8}, "live": {"entries": 2, "bytes": 17}}
    assert listed["shared"]["entries"] == 2
    new, old, stays = listed["entries"]  # the largest first
    assert [Path(each["origin"]).name for each in (new, old, stays)] == ["new", "old", "stays"]
    assert {each["keeper"] for each in listed["entries"]} == {"link"}
    assert (old["db"], old["table"], old["size"]) == (fixture.name, "t", 8)
    assert old["since_event"] == first and old["released_event"] >= first
    assert (old["needed_by"], old["until"]) == ("hold audit", "hold audit is released")
    assert (stays["needed_by"], stays["released_event"]) == ("live", None)

    text = people(capsys, fixture, "ls")
    assert (
        "hold audit is released" in text and f"file:{fixture.source.home}/t/old" in text and "3 entries, 25 B" in text
    )
    assert "2 more" in people(capsys, fixture, "ls", "--limit", "1")
    assert [each["size"] for each in fixture.done("ls", "--needed-by", "hold")["entries"]] == [8]
    assert fixture.done("ls", "--table", f"{fixture.name}.u")["total"]["entries"] == 0
    assert fixture.done("ls", "--table", f"{fixture.name}.t", "--limit", "0")["total"]["entries"] == 3


def test_a_dropped_file_says_how_long_it_stays(
    fixture: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.source.table("t", {"f": "some rows"})
    fixture.captured()
    fixture.source.drop("t")
    fixture.captured()
    (entry,) = fixture.done("ls")["entries"]
    assert (entry["needed_by"], entry["until"]) == ("nothing", "an expiry; no job is configured for this root")
    assert "no job of the configuration expires this root" in people(capsys, fixture, "ls")

    def listed(older_than: str, *more: str) -> dict[str, Any]:
        command_line = json.dumps(["cm", "expire", "--cmroot", str(fixture.cmroot), "--older-than", older_than, *more])
        rest = '[service.jobs.rehearse]\ncommand = ["cm", "expire", "--older-than", "1s", "--dry-run"]\nevery = "1d"\n'
        (tmp_path / "r.toml").write_text(f'{rest}[service.jobs.tidy]\ncommand = {command_line}\nevery = "1d"\n')
        answer = command("--config", str(tmp_path / "r.toml"), "cm", "ls", "--cmroot", str(fixture.cmroot))
        assert answer.code == 0, answer
        return answer.output

    found = listed("7d")
    (entry,) = found["entries"]
    ends = datetime.fromisoformat(entry["until"].partition(",")[0]).timestamp()
    assert entry["needed_by"] == "retention" and "by the expiry of job tidy" in entry["until"]
    assert ends >= entry["released_time"] + 7 * 86_400
    assert (found["retention_job"], found["retention_seconds"]) == ("tidy", 7 * 86_400)
    assert found["by_need"] == {"retention": {"entries": 1, "bytes": 9}}
    (entry,) = listed("0s")["entries"]
    assert (entry["needed_by"], entry["until"]) == ("nothing", "the next run of job tidy")
    assert [each["size"] for each in fixture.done("ls", "--needed-by", "nobody")["entries"]] == [9]  # as it was called


def test_what_a_load_replaced_is_listed_as_recycled(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    fixture = Kept(source_metastore, target_metastore, tmp_path)
    fixture.source.create()
    fixture.source.table("t", {"f": "first"})
    fixture.bootstrap()
    fixture.source.write("t", {"f": "second"})
    fixture.catch_up()
    answer = command("cm", "ls", "--cmroot", str(fixture.target_cmroot))
    (entry,) = answer.output["entries"]
    assert (entry["keeper"], entry["origin"], entry["needed_by"]) == ("recycle", None, "nothing")
    assert command("cm", "check", "--cmroot", str(fixture.target_cmroot)).output["status"] == "sound"


# ---- finding, and putting back ------------------------------------------------------------------------------------


def test_a_file_of_the_past_is_found_and_put_back(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"f": "first rows"})
    first = fixture.captured()
    fixture.source.write("t", {"f": "second rows"})
    fixture.source.table("u")
    fixture.captured()
    path = fixture.source.home / "t" / "f"

    found = fixture.done("find", "--path", path)
    assert [(each["size"], each["kept"], each["ended_event"] is None) for each in found["entries"]] == [
        (10, True, False),
        (11, True, True),
    ]
    assert found["entries"][0]["since_event"] == first
    assert fixture.done("find", "--table", f"{fixture.name}.t")["total"] == 2
    checksum = found["entries"][0]["checksum"]
    assert fixture.done("find", "--checksum", checksum[:8])["total"] == 1
    assert fixture.done("find", "--table", "nosuch.t")["status"] == "nothing found"
    text = people(capsys, fixture, "find", "--path", fixture.source.home)
    assert "present" in text and "2 files found" in text

    several = fixture.cm("restore", path, "--to", fixture.here / "back")
    assert (several.code, several.error) == (2, "UsageError") and checksum in several.output["hint"]
    restored = fixture.done("restore", path, "--at", first, "--to", fixture.here / "back")
    assert (fixture.here / "back").read_text() == "first rows" and restored["checksum"] == checksum
    refused = fixture.cm("restore", checksum)
    assert (refused.code, refused.error) == (6, "Exists") and path.read_text() == "second rows"
    fixture.done("restore", checksum, "--overwrite")
    assert path.read_text() == "first rows"
    assert "restored" in people(capsys, fixture, "restore", checksum[:10], "--to", fixture.here / "again")


def test_what_cannot_be_found_or_put_back_is_told(fixture: Kept) -> None:
    fixture.source.table("t", {"f": "rows"})
    fixture.captured()
    assert fixture.cm("find").code == 2
    unknown = fixture.cm("restore", "/no/such/file", "--to", "x")
    assert (unknown.code, unknown.error) == (1, "KeepError")
    assert fixture.cm("restore", "abcdef012345", "--to", "x").error == "KeepError"
    assert command("cm", "ls", "--cmroot", "nowhere").error == "FormatError"


# ---- slots and holds ----------------------------------------------------------------------------------------------


def test_a_slot_keeps_what_its_consumer_has_not_got(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa", "b": "bb"})
    first = fixture.captured()
    made = fixture.done("slots", "create", "dr", "--consumer", "the other site")
    assert (made["status"], made["event"], made["name"]) == ("created", first, "dr")
    (fixture.source.home / "t" / "a").unlink()
    fixture.source.table("u")
    second = fixture.captured()

    (slot,) = fixture.done("slots")["slots"]
    assert slot["lag_events"] == second - first > 0 and slot["lag_records"] > 0 and slot["lag_seconds"] >= 0
    assert slot["held"] == {"entries": 1, "bytes": 3, "alone_entries": 1, "alone_bytes": 3}
    assert fixture.done("slots", "--no-held")["slots"][0]["held"] is None
    text = people(capsys, fixture, "slots")
    assert "dr" in text and "3 B" in text and "the other site" in text
    assert fixture.expire()["removed_entries"] == 0 and fixture.needs()["a"] == "slot dr"

    assert fixture.cm("slots", "confirm", "dr", "--at", second + 1000).code == 2
    assert fixture.done("slots", "confirm", "dr", "--at", second)["event"] == second
    back = fixture.cm("slots", "confirm", "dr", "--at", first)
    assert (back.code, back.error) == (2, "PinError")
    assert fixture.done("slots", "confirm", "dr", "--at", first, "--back")["event"] == first
    fixture.done("slots", "confirm", "dr", "--at", second)
    assert fixture.expire()["removed_entries"] == 1
    assert sorted(fixture.needs()) == ["b"]
    assert fixture.done("slots", "drop", "dr")["status"] == "dropped"
    assert fixture.cm("slots", "drop", "dr").error == "PinError"


def test_a_slot_is_confirmed_by_the_end_of_a_dump(fixture: Kept) -> None:
    fixture.source.table("t", {"f": "x"})
    assert fixture.dump().code == 0
    fixture.done("slots", "create", "dr", "--at", fixture.last)
    fixture.source.table("u")
    fixture.dump()
    confirmed = fixture.done("slots", "confirm", "dr", "--at", fixture.last)
    assert confirmed["position"] == segments(str(fixture.cmroot))[-1].last


def test_a_hold_keeps_a_moment_until_it_is_released(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa"})
    first = fixture.captured()
    (fixture.source.home / "t" / "a").unlink()
    fixture.source.table("u")
    fixture.captured()
    assert fixture.done("hold", "then", "--at", first)["status"] == "held"
    assert fixture.cm("hold", "then").error == "PinError"
    assert fixture.expire()["removed_entries"] == 0
    assert "then" in people(capsys, fixture, "slots")
    assert fixture.done("release", "then")["status"] == "released"
    assert fixture.cm("release", "then").error == "PinError"
    assert fixture.expire()["removed_entries"] == 1


def test_a_moment_that_was_not_captured_cannot_be_pinned(fixture: Kept) -> None:
    assert fixture.capture().code == 0
    for moment in ("999999999", "1970-01-01T00:00:00Z", "soon"):
        refused = fixture.cm("hold", "then", "--at", moment)
        assert (refused.code, refused.error) == (2, "UsageError"), moment
    assert fixture.cm("hold", "../then").error == "PinError"


def test_a_damaged_pin_stops_expiry_and_is_listed(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa"})
    fixture.captured()
    fixture.done("slots", "create", "dr")
    path = fixture.cmroot / "slots" / "dr"
    path.write_bytes(path.read_bytes()[:-9])
    stopped = fixture.cm("expire", "--older-than", "0s")
    assert (stopped.code, stopped.error) == (1, "FormatError") and str(path) in stopped.message
    assert fixture.done("slots")["damaged"] == [str(path)]
    assert f"damaged: {path}" in people(capsys, fixture, "slots")
    fixture.done("slots", "drop", "dr")
    fixture.expire()


def test_the_root_comes_from_the_configuration_and_stands_before_or_after(fixture: Kept, tmp_path: Path) -> None:
    fixture.captured()
    (tmp_path / "replicator.toml").write_text(f"[defaults]\ncmroot = '{fixture.cmroot}'\n")
    assert command("cm", "slots", "create", "a").code == 0
    assert [each["name"] for each in command("cm", "slots").output["slots"]] == ["a"]
    assert command("cm", "ls").code == 0
    (tmp_path / "replicator.toml").unlink()
    assert command("cm", "slots", "--cmroot", str(fixture.cmroot), "create", "b").code == 0
    for arguments in (["slots"], ["slots", "create", "c"], ["ls"]):
        missing = command("cm", *arguments)
        assert (missing.code, missing.error) == (2, "UsageError") and "cmroot" in missing.message


# ---- expiry -------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_ahead_lets_nothing_expire(fixture: Kept) -> None:
    """The clock of whoever runs it decides how old everything is: one of next week took what was a day old."""
    fixture.source.table("t", {"a": "aaa"})
    fixture.captured()
    (fixture.source.home / "t" / "a").unlink()
    fixture.captured()
    work = local_engine()
    root, week = open_existing(str(fixture.cmroot)), timedelta(days=7)
    for act in (expire_root, plan_expired):
        with pytest.raises(Refused, match=r"clock is 8\.0 d ahead"):
            act(root, Runtime(work, clock=lambda: time.time() + 8 * 86_400), week)
    for more in ([], ["--dry-run"]):
        refused = fixture.cm("expire", "--older-than", "0s", "--engine", "local", "--idle", "0s", *more)
        assert refused.code == 6 and "newest capture" in refused.message and "--idle" in refused.output["hint"]
    assert list((fixture.cmroot / "incoming").iterdir()) == [] and fixture.expire()["removed_entries"] == 1


def test_roots_and_dumps_are_their_owners_alone(fixture: Kept, tmp_path: Path) -> None:
    fixture.source.table("t", {"a": "aaa"})
    assert fixture.dump(out=tmp_path / "dumps" / "1").code == 0
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (fixture.cmroot, tmp_path / "dumps" / "1")]
    assert modes == [0o700, 0o700]


def test_a_dry_run_of_an_expiry_tells_and_removes_nothing(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa", "b": "bb"})
    fixture.captured()
    (fixture.source.home / "t" / "a").unlink()
    fixture.captured()
    assert fixture.done("expire", "--older-than", "7d", "--dry-run")["going_entries"] == 0
    plan = fixture.expire("--dry-run")
    assert (plan["status"], plan["going"], plan["kept_entries"]) == (
        "planned",
        {"expired": {"entries": 1, "bytes": 3}},
        1,
    )
    assert "would delete" in people(capsys, fixture, "expire", "--older-than", "0s", "--dry-run")
    assert sorted(fixture.needs()) == ["a", "b"]
    done = fixture.expire()
    assert (done["status"], done["removed_bytes"], done["bytes_freed"]) == ("expired", 3, 3)
    assert sorted(fixture.needs()) == ["b"]
    assert "deleted" in people(capsys, fixture, "expire", "--older-than", "0s")


def test_a_slot_is_given_up_only_when_told_to(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa"})
    fixture.captured()
    fixture.done("slots", "create", "dr")
    (fixture.source.home / "t" / "a").unlink()
    fixture.captured()
    assert fixture.expire()["given_up"] == []
    text = people(capsys, fixture, "expire", "--older-than", "0s", "--max-slot-lag", "0s", "--dry-run")
    assert "INVALIDATED" in text and "slot dr" in text
    given = fixture.expire("--max-slot-lag", "0s")
    assert [each["slot"] for each in given["given_up"]] == ["dr"] and given["removed_entries"] == 1
    assert "invalidated" in people(capsys, fixture, "slots")
    assert fixture.cm("slots", "confirm", "dr", "--at", fixture.captured()).error == "PinError"


def test_a_lease_that_is_held_is_waited_for_as_long_as_told(fixture: Kept) -> None:
    fixture.source.table("t", {"a": "aaa"})
    fixture.captured()
    with acquire(str(fixture.cmroot), "capture"):
        for arguments in (("expire", "--older-than", "0s"), ("compact",)):
            held = fixture.cm(*arguments, "--wait", "300ms")
            assert (held.code, held.error) == (7, "LeaseHeld")
        assert fixture.done("expire", "--older-than", "0s", "--dry-run")["status"] == "planned"
        assert fixture.done("check")["status"] == "sound"
    assert fixture.cm("compact", "--wait", "0s").code == 0


# ---- check and compact --------------------------------------------------------------------------------------------


def test_a_check_finds_altered_and_missing_bytes(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    fixture.source.table("t", {"a": "aaa", "b": "bb"})
    fixture.captured()
    assert fixture.done("check", "--no-bytes")["bytes_read"] == 0
    assert "no findings" in people(capsys, fixture, "check")
    (fixture.source.home / "t" / "a").write_text("AAA")  # in place: the kept link is the same file
    kept = {each["size"]: each["checksum"] for each in fixture.done("ls")["entries"]}
    next((fixture.cmroot / "files").rglob(f"*{kept[2]}-2")).unlink()

    checked = fixture.cm("check")
    assert (checked.code, checked.output["status"]) == (4, "damaged")
    assert checked.output["counts"] == {"damaged": 1, "missing": 1}
    damaged, missing = checked.output["findings"]
    assert "holds other bytes" in damaged["repair"] and damaged["needed_by"] == "live"
    assert "still has these bytes" in missing["repair"]
    capsys.readouterr()
    assert run(["cm", "check", "--cmroot", str(fixture.cmroot), "--limit", "1"]) == 4
    text = capsys.readouterr().out
    assert "repair: " in text and "1 more finding" in text


def test_a_compacted_log_dumps_the_same_at_every_event(fixture: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    events = []
    fixture.source.table("t", {"a": "aaa", "b": "bb"})
    events.append(fixture.captured())
    fixture.source.partitioned("p", {"1": {"f": "one"}, "2": {"f": "two"}})
    events.append(fixture.captured())
    fixture.source.drop_partitions("p", ["1"])
    fixture.source.write("t", {"a": "changed"})
    events.append(fixture.captured())
    fixture.source.add("p", {"1": {"f": "again"}})
    fixture.source.rename("t", "u")
    events.append(fixture.captured())
    fixture.source.table("t", {"z": "another"})
    fixture.source.drop("u")
    events.append(fixture.captured())
    before = dumps(fixture, events)
    assert len(before) == 9 and fixture.done("compact", "--dry-run")["segments_after"] == 1

    done = fixture.done("compact")
    assert (done["segments_before"], done["segments_after"], done["merged"]) == (5, 1, 5)
    assert "none: no small segments" in people(capsys, fixture, "compact")
    for name in ("manifest.sqlite", "manifest.sqlite-wal", "manifest.sqlite-shm"):
        (fixture.cmroot / name).unlink(missing_ok=True)
    assert fixture.captured() == events[-1] and len(segments(str(fixture.cmroot))) == 1
    assert dumps(fixture, events) == before
    assert fixture.done("check")["status"] == "sound"
    shown = command("show", str(fixture.cmroot), "--files").output
    assert shown["segments"] == 1 and len(shown["records"]) == done["records"]


def dumps(fixture: Kept, events: list[int]) -> list[tuple[Any, Any]]:
    """Records and files of a bootstrap until each event, and of each step from one to the next."""
    found = []
    ranges: list[tuple[int | None, int]] = [*((None, event) for event in events), *pairwise(events)]
    for begin, end in ranges:
        fixture.dumps += 1
        since = [] if begin is None else ["--since", str(begin)]
        arguments = [*fixture.dump_arguments(fixture.last), *since, "--until", str(end), "--no-capture"]
        answer = command(*arguments)
        assert answer.code == 0, answer
        shown = command("show", str(fixture.last), "--files").output
        for entry in shown["files"]:  # a link moves an inode's change time: a hint of the manifest that no record has
            entry["identity"] = entry["identity"].partition(":")[0]
        found.append((shown["records"], sorted(shown["files"], key=json.dumps)))
    return found


def test_listing_and_checking_run_on_spark_and_from_python(fixture: Kept) -> None:
    fixture.source.table("t", {"a": "aaa", "b": "bb"})
    fixture.captured()
    (fixture.source.home / "t" / "a").unlink()
    fixture.captured()
    root = str(fixture.cmroot)
    with engines("spark", "local[2]") as spark:
        listed = replicator.cm_ls(cmroot=root, engine=spark)
        checked = replicator.cm_check(cmroot=root, engine=spark)
    assert {need: count["entries"] for need, count in listed.by_need.items()} == {"live": 1, "nothing": 1}
    assert listed.entries == fixture.done("ls", "--engine", "local")["entries"]
    assert (checked.status, checked.entries, checked.bytes_read) == ("sound", 2, 5)
    assert replicator.cm_expire(cmroot=root, older_than=timedelta(0)).removed_entries == 1
    found = replicator.cm_find(cmroot=root, table=f"{fixture.name}.t")
    assert sorted(found.to_arrow()["size"].to_pylist()) == [2, 3]


def test_a_report_prints_as_the_command_line_says_it_and_its_rows_are_a_table(fixture: Kept) -> None:
    fixture.source.table("t", {"a": "aaa"})
    first, root = fixture.captured(), str(fixture.cmroot)
    made = replicator.cm_slots_create("dr", cmroot=root, at=first, consumer="the other site")
    held = replicator.cm_hold("audit", cmroot=root)
    for printed in (json.loads(str(made)), json.loads(str(held))):
        assert printed["event"] == first and "pin" not in printed
    listed = replicator.cm_slots(cmroot=root, held=False)
    assert json.loads(str(listed))["holds"] == fixture.done("slots", "--no-held")["holds"]
    table = listed.to_arrow()
    assert table.select(["kind", "name", "consumer"]).to_pylist() == [
        {"kind": "slot", "name": "dr", "consumer": "the other site"},
        {"kind": "hold", "name": "audit", "consumer": None},
    ]
    with_rows = replicator.cm_find(cmroot=root, table=f"{fixture.name}.t").to_arrow()
    empty = replicator.cm_find(cmroot=root, table="nosuch.t").to_arrow()
    assert empty.num_rows == 0 and empty.column_names == with_rows.column_names
    kept, none = (replicator.cm_ls(cmroot=root, table=name).to_arrow() for name in (f"{fixture.name}.t", "nosuch.t"))
    assert none.num_rows == 0 and none.column_names == kept.column_names and kept.num_rows
    replicator.cm_slots_confirm("dr", cmroot=root, at=first)
    assert [replicator.cm_slots_drop("dr", cmroot=root).status, replicator.cm_release("audit", cmroot=root).status] == [
        "dropped",
        "released",
    ]
