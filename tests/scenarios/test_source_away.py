"""Directories of the source that are away for a while: what nobody can see is not empty."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from lab import Lab
from plain_tables import PlainDatabase, text_storage

from replicator.core.model import EXTERNAL, Partition, Storage
from replicator.metastore.embedded.running import Running

TEXT = "1\x01one\n"


@pytest.fixture
def fixture(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    """A table and a partitioned one, on both sides."""
    fixture = Lab(source_metastore, target_metastore, tmp_path)
    fill(fixture.source)
    fixture.bootstrap()
    return fixture


@pytest.fixture
def replication(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    made = Lab(source_metastore, target_metastore, tmp_path)
    fill(made.db())
    assert run_policy(made, "sync").code == 0
    made.are_same()
    return made


def fill(db: PlainDatabase) -> None:
    if not db.exists():
        db.create()
    db.table("t", {"one": TEXT, "two": TEXT * 2})
    db.partitioned("p", {"a": {"f": TEXT}, "b": {"f": TEXT * 3}})


def run_policy(made: Lab, verb: str, *more: str) -> Answer:
    return command("--config", str(made.config()), verb, made.name, *more)


def away(place: Path) -> Callable[[], None]:
    """Moves a place away; what is returned brings it back."""
    hidden = place.with_name(f"{place.name}.away")
    place.rename(hidden)

    def back() -> None:
        hidden.rename(place)

    return back


def lacking(answer: Answer) -> list[str]:
    return [
        each["object"] + f"/{each['partition']}" * bool(each["partition"]) for each in answer.output["not_replicated"]
    ]


def test_a_policy_keeps_the_replica_of_a_database_whose_directory_is_away(replication: Lab) -> None:
    db, replica = replication.db(), replication.replica()
    before, everything = replica.shown(), [f"{db.name}.p/p=a", f"{db.name}.p/p=b", f"{db.name}.t"]
    back = away(db.home)
    for _ in range(2):
        run = run_policy(replication, "sync")
        assert (run.code, run.output["status"], run.output["files_removed"]) == (3, "incomplete", 0), run
        assert lacking(run) == everything
        assert replica.shown() == before
    lag = run_policy(replication, "lag")
    assert (lag.output["status"], lacking(lag)) == ("behind", everything)
    assert [each["table"] for each in lag.output["tables"]] == [f"{db.name}.p", f"{db.name}.t"]
    status = command("status", "--target", replication.target_uri, "--source", replication.source_uri, "--db", db.name)
    assert (status.output["status"], lacking(status)) == ("behind", everything)

    back()
    run = run_policy(replication, "sync")
    assert (run.code, run.output["status"], run.output["files_copied"]) == (0, "nothing", 0), run
    assert (lacking(run), run_policy(replication, "lag").output["status"]) == ([], "current")
    replication.are_same()


def test_what_changes_meanwhile_elsewhere_is_replicated(replication: Lab) -> None:
    db = replication.db()
    before = replication.replica().shown()
    back = away(db.home / "t")
    db.write("p/p=a", {"more": TEXT})
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run), run.output["files_copied"]) == (3, [f"{db.name}.t"], 1)
    shown = replication.replica().shown()
    assert shown["t"] == before["t"] and set(shown["p/p=a"]["files"]) == {"f", "more"}
    back()
    db.write("t", {"three": TEXT})
    (db.home / "t" / "one").unlink()
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run)) == (0, [])
    replication.are_same()


def test_a_failover_says_what_the_replica_could_not_see(replication: Lab) -> None:
    db, before = replication.db(), replication.replica().shown()
    away(db.home)
    assert run_policy(replication, "sync").code == 3
    turned = run_policy(replication, "failover", "--force")
    assert turned.code == 0, turned
    assert {each["object"] for each in turned.output["loss"]["not_replicated"]} == {f"{db.name}.t", f"{db.name}.p"}
    assert any(f"{db.name}.t: its directory" in each for each in turned.output["warnings"])
    assert replication.replica().shown() == before


def test_a_dump_carries_what_nobody_could_see_to_its_load(fixture: Lab) -> None:
    before, first = fixture.target.shown(), fixture.last
    back = away(fixture.source.home)
    everything = [f"{fixture.name}.p/p=a", f"{fixture.name}.p/p=b", f"{fixture.name}.t"]
    dumped = fixture.dump(since=first)
    assert (dumped.code, dumped.output["status"], lacking(dumped)) == (3, "incomplete", everything)
    for status in ("incomplete", "already loaded"):
        loaded = fixture.load()
        assert (loaded.code, loaded.output["status"], lacking(loaded)) == (3, status, everything)
        assert loaded.output["files_removed"] == 0 and fixture.target.shown() == before

    for path in fixture.cmroot.glob("manifest.sqlite*"):  # the log itself says it
        path.unlink()
    assert lacking(fixture.dump("--no-capture", since=first)) == everything
    whole = fixture.dump("--no-capture")
    assert (whole.code, whole.output["files"]) == (3, 4)
    assert fixture.load(None, "--overwrite").code == 3  # a bootstrap: the bytes are in $cmroot
    assert {name: each.get("files") for name, each in fixture.target.shown().items()} == {
        name: each.get("files") for name, each in before.items()
    }
    back()
    fixture.catch_up()


def test_what_no_capture_has_ever_seen_stays_on_the_replica_too(fixture: Lab) -> None:
    """A new $cmroot, and the disk is not mounted: the dump names no file, and the replica has them."""
    before = fixture.target.shown()
    away(fixture.source.home / "t")
    away(fixture.source.home / "p" / "p=a")
    (fixture.source.home / "p" / "p=b" / "f").unlink()
    dumped = fixture.dump(cmroot=fixture.here / "other")
    assert (dumped.code, lacking(dumped), dumped.output["files"]) == (
        3,
        [f"{fixture.name}.p/p=a", f"{fixture.name}.t"],
        0,
    )
    assert fixture.load(None, "--overwrite").code == 6  # of what is away the dump does not know how much there is
    loaded = fixture.load(None, "--overwrite", "--allow-removals")
    assert loaded.code == 3, loaded
    shown = fixture.target.shown()
    assert {name: shown[name]["files"] for name in ("t", "p/p=a")} == {
        name: before[name]["files"] for name in ("t", "p/p=a")
    }
    assert shown["p/p=b"]["files"] == {}


def test_what_is_dropped_at_the_source_goes_though_its_directory_was_away(replication: Lab) -> None:
    db = replication.db()
    away(db.home / "t")
    away(db.home / "p" / "p=a")
    assert run_policy(replication, "sync").code == 3
    db.metastore.drop_table(db.name, "t")
    db.metastore.drop_partitions(db.name, "p", ["p=a"])
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run)) == (0, [])
    replication.are_same()
    assert not (replication.replica().home / "t").exists() or not list((replication.replica().home / "t").iterdir())


def test_a_person_may_declare_a_table_or_partition_empty(replication: Lab) -> None:
    db = replication.db()
    away(db.home / "t")
    away(db.home / "p" / "p=a")
    assert run_policy(replication, "sync").code == 3
    wrong = run_policy(replication, "sync", "--empty", f"{db.name}.nothing")
    assert wrong.code == 2 and f"{db.name}.nothing" in wrong.message
    run = run_policy(replication, "sync", "--empty", f"{db.name}.t", "--empty", f"{db.name}.p/p=a")
    assert (run.code, lacking(run), run.output["files_removed"]) == (0, [], 3), run
    shown = replication.replica().shown()
    assert (shown["t"]["files"], shown["p/p=a"]["files"], len(shown["p/p=b"]["files"])) == ({}, {}, 1)
    assert run_policy(replication, "sync").code == 0  # it holds
    db.write("t", {"again": TEXT})
    assert run_policy(replication, "sync").code == 0
    assert set(replication.replica().shown()["t"]["files"]) == {"again"}
    (db.home / "t").rename(db.home / "t.elsewhere")
    again = run_policy(replication, "sync")
    assert (again.code, lacking(again)) == (3, [f"{db.name}.t"])  # its word was about the time before
    follow = run_policy(replication, "sync", "--follow", "--empty", f"{db.name}.t")
    assert follow.code == 2


def test_tables_without_a_directory_from_the_beginning_are_named(replication: Lab) -> None:
    db, here = replication.db(), replication.here
    nowhere = here / "nowhere"
    made = db.table("lake", kind=EXTERNAL)
    assert made.storage
    altered = msgspec.structs.replace(made.storage, location=f"file:{nowhere}")
    db.metastore.alter_table(db.name, "lake", msgspec.structs.replace(made, storage=altered))
    db.metastore.add_partitions(db.name, "p", [Partition(values=("late",), storage=text_storage(db.home / "p/p=late"))])
    (db.home / "p/p=late").rmdir()
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run)) == (3, [f"{db.name}.lake", f"{db.name}.p/p=late"])
    (db.home / "p/p=late").mkdir()
    nowhere.mkdir()
    (nowhere / "f").write_text(TEXT)
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run), run.output["files_copied"]) == (0, [], 1)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[bool], Path]]:
    """`mounted(True)`: a disk with a directory is mounted; `mounted(False)`: it is not, and the place is empty."""
    disk, place = tmp_path / "disk", tmp_path / "mount"
    disk.mkdir()
    place.mkdir()

    def mount(there: bool) -> Path:
        if there:
            subprocess.run(["mount", "--bind", disk, place], check=True)
        else:
            subprocess.run(["umount", place], check=True)
        return place

    yield mount
    subprocess.run(["umount", place], check=False, stderr=subprocess.DEVNULL)


def at(storage: Storage | None, place: Path) -> Storage:
    assert storage is not None
    return msgspec.structs.replace(storage, location=f"file:{place}")


def test_a_mount_that_goes_away(replication: Lab, mounted: Callable[[bool], Path]) -> None:
    db, place = replication.db(), mounted(True) / "lake"
    made = db.table("lake", kind=EXTERNAL)
    db.metastore.alter_table(db.name, "lake", msgspec.structs.replace(made, storage=at(made.storage, place)))
    place.mkdir()
    (place / "f").write_text(TEXT)
    assert run_policy(replication, "sync").code == 0
    before = external_files(replication)
    mounted(False)
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run)) == (3, [f"{db.name}.lake"])
    assert external_files(replication) == before != {}
    mounted(True)
    assert run_policy(replication, "sync").code == 0
    assert external_files(replication) == before


def external_files(made: Lab) -> dict[str, str]:
    table: Any = made.replica().metastore.table(made.replica().name, "lake")
    place = Path(table.location.removeprefix("file:"))
    return {path.name: path.read_text() for path in place.iterdir()}


def test_a_directory_that_cannot_be_listed_is_unknown_and_the_others_go_on(replication: Lab) -> None:
    db = replication.db()
    before = replication.replica().shown()["t"]
    back = away(db.home / "t")
    (db.home / "t").symlink_to(db.home / "t")  # "too many levels of symbolic links" is not "no such file"
    db.write("p/p=b", {"g": TEXT})
    run = run_policy(replication, "sync")
    assert (run.code, lacking(run), run.output["files_copied"]) == (3, [f"{db.name}.t"], 1), run
    assert "Too many levels" in run.output["not_replicated"][0]["reason"]
    assert replication.replica().shown()["t"] == before
    (db.home / "t").unlink()
    back()
    assert run_policy(replication, "sync").code == 0
    replication.are_same()


# ---- scopes ---------------------------------------------------------------------------------------------------------


def test_a_wider_increment_does_not_pass_over_what_a_narrower_one_left_out(fixture: Lab) -> None:
    whole = fixture.last
    fixture.source.write("p/p=a", {"lost": TEXT})
    fixture.source.write("t", {"three": TEXT})
    assert fixture.dump("--include", "t", since=whole).code == 0
    narrow = fixture.last
    loaded = fixture.load()
    assert (loaded.code, loaded.output["files_copied"]) == (0, 1), loaded
    before = fixture.target.everything()

    refused = fixture.dump(since=narrow)
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert "--include t" in refused.message
    for since in (str(whole), str(loaded.output["to_event"])):
        assert fixture.dump(since=since).code == 0
        refused = fixture.load()
        assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
        assert "--include t" in refused.message and fixture.target.everything() == before

    fixture.source.write("t", {"four": TEXT})
    assert fixture.dump("--include", "t", since=narrow).code == 0
    assert fixture.load().code == 0  # the same scope goes on
    assert fixture.dump().code == 0
    assert fixture.load().code == 0
    fixture.is_same()
    fixture.source.write("p/p=b", {"more": TEXT})
    fixture.catch_up()  # the whole again


def test_increments_of_all_do_not_follow_a_bootstrap_of_some(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    fixture = Lab(source_metastore, target_metastore, tmp_path)
    fill(fixture.source)
    assert fixture.dump("--exclude", "p").code == 0
    first = fixture.last
    assert fixture.load().code == 0
    fixture.source.write("t", {"three": TEXT})
    assert fixture.dump(since=str(fixture.dump("--no-capture", "--exclude", "p").output["to_event"])).code == 0
    refused = fixture.load()
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert fixture.dump("--exclude", "p", "--exclude", "q", since=first).code == 0
    assert fixture.load().code == 0  # less is no danger


def test_a_replica_that_does_not_say_its_scope_is_loaded_as_ever(fixture: Lab) -> None:
    there = fixture.target.metastore.database(fixture.name)
    parameters = {key: value for key, value in there.parameters.items() if key != "replicator.scope"}
    assert len(parameters) < len(there.parameters)
    fixture.target.metastore.alter_database(fixture.name, msgspec.structs.replace(there, parameters=parameters))
    fixture.source.write("t", {"three": TEXT})
    fixture.catch_up()


def test_a_policy_bootstraps_what_somebody_loaded_a_part_of(replication: Lab) -> None:
    db = replication.db()
    db.write("t", {"three": TEXT})
    db.write("p/p=a", {"lost": TEXT})
    dumps, policy = replication.here / "by-hand", replication.keys
    (first,) = (replication.here / "dumps" / replication.name).iterdir()
    dumped = command(
        "dump",
        "--source",
        replication.source_uri,
        "--cmroot",
        policy["cmroot"],
        "--db",
        db.name,
        "--include",
        "t",
        "--since",
        str(first),
        "--out",
        str(dumps),
    )
    assert dumped.code == 0, dumped
    loaded = command(
        "load",
        str(dumps),
        "--target",
        replication.target_uri,
        "--cmroot",
        policy["target_cmroot"],
        "--warehouse",
        policy["warehouse"],
        "--engine",
        "local",
    )
    assert loaded.code == 0, loaded.output
    run = run_policy(replication, "sync")
    assert (run.code, list(run.output["bootstrapped"])) == (0, [db.name]), run
    replication.are_same()
    db.write("t", {"four": TEXT})
    assert run_policy(replication, "sync").output["kind"] == "incremental"


# ---- the brake, and what a plan says --------------------------------------------------------------------------------


def test_a_load_that_would_take_most_of_a_replica_stops_before_it_changes_anything(replication: Lab) -> None:
    db = replication.db()
    db.table("large", {"f": TEXT * 100, "g": TEXT * 100, "h": TEXT * 90})
    assert run_policy(replication, "sync").code == 0
    before = replication.replica().everything()
    (db.home / "large" / "f").unlink()
    (db.home / "large" / "g").unlink()
    refused = run_policy(replication, "sync")
    assert (refused.code, refused.error) == (6, "Refused"), refused
    assert f"{db.name}.large" in refused.message and "--allow-removals" in refused.output["hint"]
    assert replication.replica().everything() == before
    assert run_policy(replication, "sync", "--max-share", "0.1").code == 6
    assert run_policy(replication, "sync", "--max-share", "0.9", "--max-bytes", "100").code == 6
    out = replication.here / "plan.json"
    planned = run_policy(replication, "plan", "--out", str(out))
    assert any("would be refused" in each for each in planned.output["warnings"]), planned
    applied = command("--config", str(replication.config()), "apply", str(out))
    assert (applied.code, applied.error) == (6, "Refused")
    assert replication.replica().everything() == before
    run = run_policy(replication, "sync", "--allow-removals")
    assert (run.code, run.output["files_removed"]) == (0, 2)
    replication.are_same()


def test_the_configuration_says_how_much_a_load_may_take(replication: Lab) -> None:
    db = replication.db()
    (db.home / "t" / "one").unlink()
    config = replication.config()
    config.write_text(config.read_text() + "[guard]\nmax_share = 0.01\n")
    refused = command("--config", str(config), "sync", replication.name)
    assert refused.code == 6, refused
    config.write_text(config.read_text().replace("0.01", "0.9"))
    assert command("--config", str(config), "sync", replication.name).code == 0


def test_what_was_dropped_or_written_anew_needs_no_word(replication: Lab) -> None:
    db = replication.db()
    db.drop("p")
    assert run_policy(replication, "sync").code == 0
    for path in (db.home / "t").iterdir():  # an overwrite
        path.unlink()
    db.write("t", {"new": TEXT * 3})
    assert run_policy(replication, "sync").code == 0
    db.drop("t")
    assert run_policy(replication, "sync").code == 0
    replication.are_same()


def test_a_bootstrap_of_emptied_tables_stops_too(fixture: Lab) -> None:
    before = fixture.target.everything()
    for path in [*(fixture.source.home / "t").iterdir(), *(fixture.source.home / "p").rglob("f")]:
        path.unlink()
    assert fixture.dump().code == 0
    refused = fixture.load(None, "--overwrite")
    assert (refused.code, refused.error) == (6, "Refused"), refused
    assert fixture.target.everything() == before
    assert fixture.load(None, "--overwrite", "--allow-removals").code == 0
    fixture.is_same()


def repair(made: Lab, *more: str) -> Answer:
    return command(
        "repair",
        "--source",
        made.source_uri,
        "--target",
        made.target_uri,
        "--db",
        made.replica().name,
        "--cmroot",
        made.keys["cmroot"],
        "--target-cmroot",
        made.keys["target_cmroot"],
        "--warehouse",
        made.keys["warehouse"],
        "--engine",
        "local",
        *more,
    )


def test_a_repair_that_would_take_most_of_a_replica_stops(replication: Lab) -> None:
    replication.replica().write("t", {"junk": TEXT * 1000})
    refused = repair(replication)
    assert (refused.code, refused.error) == (6, "Refused"), refused
    assert repair(replication, "--allow-removals").code == 0
    replication.are_same()


# ---- who asks later -------------------------------------------------------------------------------------------------


def test_a_check_names_what_is_away(replication: Lab) -> None:
    db = replication.db()
    back = away(db.home / "t")
    assert run_policy(replication, "sync").code == 3
    checked = run_policy(replication, "check")
    (reported,) = [each for each in checked.output["findings"] if each["name"] == "not replicated"]
    assert (checked.code, lacking(checked), reported["health"]) == (3, [f"{db.name}.t"], "warning"), checked
    assert f"{db.name}.t: its directory" in reported["text"]
    back()
    assert run_policy(replication, "sync").code == 0
    checked = run_policy(replication, "check")
    (reported,) = [each for each in checked.output["findings"] if each["name"] == "not replicated"]
    assert (lacking(checked), reported["health"]) == ([], "ok"), checked


def test_a_repair_names_what_is_away_and_the_replica_goes_on_saying_it(replication: Lab) -> None:
    db, replica = replication.db(), replication.replica()
    before = replica.shown()
    back = away(db.home / "t")
    assert run_policy(replication, "sync").code == 3
    back()  # nobody has captured it again yet: its files of the checkpoint are still unknown
    for more in ("--dry-run",), ():
        same = repair(replication, *more)
        assert (same.code, lacking(same)) == (3, [f"{db.name}.t"]), same
    replica.write("p/p=b", {"f": "another"})
    for more in ("--dry-run",), ():
        mended = repair(replication, *more)
        assert (mended.code, lacking(mended)) == (3, [f"{db.name}.t"]), mended
    assert (mended.output["status"], mended.output["files_copied"], replica.shown()) == ("incomplete", 1, before)
    assert repair(replication, "--table", "p").code == 0  # of which nothing is lacking
    assert lacking(run_policy(replication, "lag")) == [f"{db.name}.t"]
    assert run_policy(replication, "sync").code == 0
    assert repair(replication).code == 0


def test_a_plan_prices_what_is_dropped_and_the_apply_does_that(replication: Lab) -> None:
    db = replication.db()
    db.drop("t")
    db.drop_partitions("p", ["a"])
    out = replication.here / "plan.json"
    planned = run_policy(replication, "plan", "--out", str(out))
    assert planned.code == 0, planned
    cost = planned.output["cost"]
    assert (cost["files_removed"], cost["bytes_removed"], cost["partitions_removed"]) == (3, len(TEXT) * 4, 1)
    assert planned.output["drops"] == [f"{db.name}.p/p=a", f"{db.name}.t"]
    gone = {(each["object"], each["partition"]): each["bytes"] for each in planned.output["loads"][0]["gone"]}
    assert gone == {(f"{db.name}.t", ""): len(TEXT) * 3, (f"{db.name}.p", "p=a"): len(TEXT)}
    applied = command("--config", str(replication.config()), "apply", str(out))
    assert (applied.code, applied.output["files_removed"]) == (0, 3), applied
    replication.are_same()


def test_a_dry_run_of_a_load_prices_what_goes(fixture: Lab) -> None:
    first = fixture.last
    fixture.source.drop("t")
    fixture.source.drop_partitions("p", ["a"])
    (fixture.source.home / "p" / "p=b" / "f").unlink()
    fixture.source.write("p/p=b", {"g": TEXT * 2})
    assert fixture.dump(since=first).code == 0
    before = fixture.target.everything()
    planned = fixture.load(None, "--dry-run")
    assert planned.code == 0 and fixture.target.everything() == before
    assert (planned.output["files_to_remove"], planned.output["partitions_to_drop"]) == (4, 1), planned
    assert planned.output["bytes_to_remove"] == len(TEXT) * 7
    assert {(each["object"], each["partition"], each["files"]) for each in planned.output["gone"]} == {
        (f"{fixture.name}.t", "", 2),
        (f"{fixture.name}.p", "p=a", 1),
        (f"{fixture.name}.p", "p=b", 1),
    }
    loaded = fixture.load()
    assert (loaded.code, loaded.output["files_removed"]) == (0, 4)
    fixture.is_same()
