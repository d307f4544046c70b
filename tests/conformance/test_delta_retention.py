"""Retention of Delta tables: the first versions end, and every other one reads as before, by delta-rs and by Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from command_line import Answer, command
from delta_spark import DeltaSpark
from delta_versions import (
    POLICY,
    age,
    arguments,
    commits,
    make,
    named,
    newest,
    on_disk,
    retained,
    rows,
    settings,
    written,
)
from killed_retention import ROW
from lab import Lab

from cmroot.root import create_or_open
from replicator.core.audit import read_audit

OLD = settings(
    {
        "gobblin.retention.selection.policy.class": f"{POLICY}SelectBeforeTimeBasedPolicy",
        "gobblin.retention.selection.timeBased.lookbackTime": "5d",
    }
)


@pytest.fixture
def lake(fixture: Lab) -> Iterator[DeltaSpark]:
    create_or_open(str(fixture.cmroot))
    with DeltaSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        yield spark


def reasons(answer: Answer) -> dict[str, str]:
    """The reasons of what failed, by table."""
    found = dict[str, str]()
    for each in answer.output["failed"]:
        name = each["what"].rpartition(".")[2]
        found[name] = "; ".join(filter(None, (found.get(name), each["why"])))
    return found


def read(place: Path, versions: Iterable[int]) -> dict[int, list[tuple[Any, ...]]]:
    return {version: rows(place, version) for version in versions}


def ended(place: Path, versions: Iterable[int]) -> bool:
    """No reader finds these versions, and the log has no file of them."""
    for version in versions:
        with pytest.raises(deltalake.exceptions.DeltaError):
            deltalake.DeltaTable(str(place), version=version)
        assert list((place / "_delta_log").glob(f"*{version:020}.*")) == []
    return True


# ---- what can end ----------------------------------------------------------------------------------------------------


def test_a_plan_names_versions_and_a_spark_without_delta_ends_none(fixture: Lab) -> None:
    create_or_open(str(fixture.cmroot))
    place = written(fixture.source, "t", **{"delta.deletedFileRetentionDuration": "interval 1 hour"})
    before = read(place, range(6)), on_disk(place)

    planned = command(*arguments(fixture), *newest(2), "--dry-run")
    found = [(each["act"], each["snapshot"]) for each in planned.output["items"]]
    assert (planned.code, planned.output["versions"]) == (0, 6), planned
    assert found == [("expire", version) for version in range(4)], planned

    planned = command(*arguments(fixture), *OLD, "--dry-run")
    assert [each["snapshot"] for each in planned.output["items"]] == [0, 1], planned

    answer = command(*arguments(fixture), *newest(2))
    assert (answer.code, answer.output["expired"]) == (3, 0), answer
    assert "io.delta:delta-spark" in reasons(answer)["t"], answer
    (begun,) = read_audit(str(fixture.cmroot), run=answer.output["run"], outcome="intended")
    assert json.loads(begun.detail) == {"change": "expire", "versions": [0, 1, 2, 3]}
    assert (read(place, range(6)), on_disk(place)) == before


def test_what_a_policy_selects_and_cannot_end_is_named(fixture: Lab) -> None:
    """The ages of the versions are 6 days to 1 day; each was the present one until the next."""
    create_or_open(str(fixture.cmroot))
    written(fixture.source, "t", **{"delta.deletedFileRetentionDuration": "interval 1 hour"})
    written(fixture.source, "guarded")

    def planned(table: str, *more: str) -> tuple[list[int], str]:
        answer = command(*arguments(fixture, table), *more, "--dry-run")
        assert answer.code == (3 if answer.output["failed"] else 0), answer
        return [each["snapshot"] for each in answer.output["items"]], reasons(answer).get(table, "")

    between = {
        "gobblin.retention.selection.policy.class": f"{POLICY}SelectBetweenTimeBasedPolicy",
        "gobblin.retention.selection.timeBased.minLookbackTime": "36h",
        "gobblin.retention.selection.timeBased.maxLookbackTime": "84h",
    }
    found, why = planned("t", *settings(between))
    assert found == []
    assert why == "versions 3 to 4 stay: version 0 stays, and Delta ends a log at its beginning only"

    found, why = planned("t", *newest(1), "--grace", "60h")
    assert found == [0, 1, 2]
    assert why.startswith(
        "versions 3 to 4 stay: writers that began before --grace (2 days, 12:00:00) may not have ended"
    )
    found, why = planned("t", *settings({"gobblin.retention.selection.policy.class": f"{POLICY}SelectAllPolicy"}))
    assert (found, why) == ([0, 1, 2, 3, 4], ""), "the present version stays"

    found, why = planned("guarded", *newest(2))
    assert found == []
    assert why.startswith("versions 0 to 3 stay: the table keeps removed files for 7 days")
    assert "delta.deletedFileRetentionDuration" in why and "run again after" in why


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("delta.enableExpiredLogCleanup", "false", "delta.enableExpiredLogCleanup is false"),
        ("delta.universalFormat.enabledFormats", "iceberg", "other metadata names their files"),
        ("delta.coordinatedCommits.commitCoordinator-preview", "a", "commits a catalog or another coordinator has"),
        ("delta.deletedFileRetentionDuration", "a while", "which cannot be read"),
    ],
)
def test_tables_whose_versions_stay_are_named(fixture: Lab, name: str, value: str, why: str) -> None:
    create_or_open(str(fixture.cmroot))
    place = written(fixture.source, "t", 3, **{name: value})
    before = on_disk(place), commits(place)
    answer = command(*arguments(fixture), *newest(1))
    assert (answer.code, answer.output["selected"]) == (3, 0) and why in reasons(answer)["t"], answer
    assert (on_disk(place), commits(place)) == before


def test_a_delta_table_that_the_metastore_shows_as_icebergs_is_named(fixture: Lab) -> None:
    """As UniForm leaves it there."""
    create_or_open(str(fixture.cmroot))
    place = written(fixture.source, "t", 3)
    fixture.source.alter("t", table_type="ICEBERG", metadata_location=f"file://{place}/metadata/1.metadata.json")
    answer = command(*arguments(fixture), *newest(1))
    assert (answer.code, answer.output["selected"]) == (3, 0), answer
    assert "a Delta table with Iceberg metadata: its own log determines its files" in reasons(answer)["t"], answer


# ---- what ends -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_first_versions_end_and_the_others_read_as_before(fixture: Lab, lake: DeltaSpark) -> None:
    """Those that stay are older than Delta's own cleanup of the log, of 30 days, lets them become."""
    place = make(lake, fixture.source, "t")
    age(place, 40)
    before, files = read(place, commits(place)), on_disk(place)
    assert list(before) == list(range(14))

    root = ["--cmroot", str(fixture.cmroot)]
    held = command("legal-hold", "add", "case-17", *root, "--on", f"{fixture.name}.t", "--reason", "a case")
    assert held.code == 0, held
    answer = command(*arguments(fixture), *newest(4))
    assert (answer.code, answer.output["expired"], answer.output["refused_count"]) == (3, 0, 10), answer
    assert command("legal-hold", "release", "case-17", *root).code == 0

    for keeps in (12, 4):
        kept = range(14 - keeps, 14)
        answer = retained(arguments(fixture), *newest(keeps))
        assert answer.code == 0 and commits(place) == list(kept), answer
        assert read(place, kept) == {version: before[version] for version in kept}
        assert ended(place, range(14 - keeps))
        assert on_disk(place) == named(place, kept)
    assert on_disk(place) < files
    again = command(*arguments(fixture), *newest(4))
    assert (again.code, again.output["selected"]) == (0, 0), again

    late = pa.table({"id": pa.array([1], pa.int64()), "note": ["late"]})
    deltalake.write_deltalake(str(place), late, mode="append")  # by another writer
    lake(f"insert into {fixture.name}.t values (2, 'later')")
    shown = {(int(each[0]), each[1]) for each in lake(f"select id, note from {fixture.name}.t")}
    assert shown == {*before[13], (1, "late"), (2, "later")} == set(rows(place, 15))


@pytest.mark.long
def test_tables_of_many_features_read_as_before(fixture: Lab, lake: DeltaSpark) -> None:
    """By Spark, as delta-rs does not read all of them. Delta 4.1 must be told to show versions that are older than the
    table's retention of removed files, of no time here."""
    lake("set spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration = false")
    mapped = {"delta.columnMapping.mode": "name", "delta.checkpointPolicy": "v2"}
    made = {
        "vectors": make(lake, fixture.source, "vectors", last=6, **{"delta.enableDeletionVectors": "true"}),
        "changes": make(lake, fixture.source, "changes", last=6, **{"delta.enableChangeDataFeed": "true"}),
        "mapped": make(lake, fixture.source, "mapped", "partitioned by (note)", last=6, **mapped),
        "timed": make(lake, fixture.source, "timed", last=6, **{"delta.enableInCommitTimestamps": "true"}),
    }
    guarded = written(fixture.source, "guarded", 7)
    age(guarded, 30)
    kept = (5, 6)

    def seen(name: str) -> list[Any]:
        table = f"{fixture.name}.{name}"
        found: list[Any] = [sorted(lake(f"select * from {table} version as of {version}")) for version in kept]
        if name == "changes":
            found.append(sorted(lake(f"select id, note, _change_type from table_changes('{table}', 5, 6)")))
        return found

    before = {name: seen(name) for name in made}
    files = {name: on_disk(place) for name, place in made.items()}
    whole = read(guarded, range(7))
    answer = retained(arguments(fixture), *newest(2))
    why = reasons(answer)
    assert (answer.code, answer.output["expired"]) == (3, 15) and why.keys() == {"timed", "guarded"}, answer
    assert why["timed"].startswith("versions 0 to 4 stay: writers that began before --grace (2:00:00)")
    assert "VACUUM left" in why["guarded"], "Delta knows when files were removed; the commits' files only look old"
    assert read(guarded, range(7)) == whole and commits(guarded) == list(range(7))
    answer = retained(arguments(fixture, "timed"), *newest(2), "--grace", "0s")
    assert (answer.code, answer.output["expired"]) == (0, 5), answer

    assert {name: seen(name) for name in made} == before
    for name, place in made.items():
        assert commits(place) == list(kept) and on_disk(place) < files[name], name
    assert on_disk(made["timed"]) == named(made["timed"], kept)


@pytest.mark.long
@pytest.mark.parametrize("step", ["checkpoint", "vacuum", "remove"])
def test_a_killed_run_is_completed_by_the_next_one(fixture: Lab, lake: DeltaSpark, step: str) -> None:
    place = make(lake, fixture.source, "t", last=6, **{"delta.checkpointInterval": "4"})
    before, kept = read(place, range(7)), (5, 6)
    retained(arguments(fixture), *newest(2), killed=(step, "after"))
    assert commits(place) != list(kept)
    assert read(place, kept) == {version: before[version] for version in kept}
    answer = retained(arguments(fixture), *newest(2))
    assert answer.code == 0 and commits(place) == list(kept), answer
    assert read(place, kept) == {version: before[version] for version in kept}
    assert ended(place, range(5)) and on_disk(place) == named(place, kept)


@pytest.mark.long
def test_writers_lose_nothing(fixture: Lab, lake: DeltaSpark) -> None:
    """One commits in the middle of a run. One has files that it commits afterwards. Two began long before: at the first
    version that stays, and at the last one that ends."""
    place = make(lake, fixture.source, "t", last=6)
    before = read(place, range(7))
    began, gone = deltalake.DeltaTable(str(place), version=5), deltalake.DeltaTable(str(place), version=4)
    (place / "part-of-a-writer.parquet").write_bytes(b"not committed")
    answer = retained(arguments(fixture), *newest(2), killed=("vacuum", "meets"))
    assert (answer.code, answer.output["expired"]) == (0, 5), answer
    assert commits(place) == [5, 6, 7]
    assert read(place, (5, 6)) == {version: before[version] for version in (5, 6)}
    assert rows(place, 7) == sorted([*before[6], ROW])
    assert (place / "part-of-a-writer.parquet").exists()

    late = pa.table({"id": pa.array([1], pa.int64()), "note": ["late"]})
    with pytest.raises(deltalake.exceptions.DeltaError):  # and not in the place of a commit that is gone
        deltalake.write_deltalake(gone, late, mode="append")
    with pytest.raises(deltalake.exceptions.CommitFailedError):  # it meets the commits after the one that it read
        deltalake.write_deltalake(began, late, mode="append")
    began.update_incremental()
    deltalake.write_deltalake(began, late, mode="append")
    assert commits(place) == [5, 6, 7, 8]
    assert rows(place, 8) == sorted([*before[6], ROW, (1, "late")])
    shown = sorted((int(each[0]), each[1]) for each in lake(f"select id, note from {fixture.name}.t"))
    assert shown == rows(place, 8)


@pytest.mark.long
def test_files_that_a_clone_shows_stay(fixture: Lab, lake: DeltaSpark) -> None:
    place, clone = make(lake, fixture.source, "t", last=6), fixture.source.home / "z"
    lake("set spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration = false")
    table = f"{fixture.name}.t version as of 4"
    lake(f"create table {fixture.name}.z shallow clone {table} location 'file://{clone}'")
    before, files = read(place, range(7)), on_disk(place)
    answer = retained(arguments(fixture, "t"), *newest(2))
    assert answer.code == 3 and f"{fixture.name}.z shows files of its past versions" in reasons(answer)["t"], answer
    assert (read(place, range(7)), on_disk(place)) == (before, files)

    lake(f"drop table {fixture.name}.z")
    answer = retained(arguments(fixture, "t"), *newest(2))
    assert (answer.code, commits(place)) == (0, [5, 6]), answer


@pytest.mark.long
def test_a_replica_follows(fixture: Lab, lake: DeltaSpark) -> None:
    """Also where `_last_checkpoint` led to a version that ended."""
    source, target = fixture.db(), fixture.replica()
    place, there = make(lake, source, "t", last=6, **{"delta.checkpointInterval": "4"}), target.home / "t"
    before = read(place, range(7))
    assert fixture.sync().status == "synced"
    assert read(there, range(7)) == before and (there / "_delta_log/_last_checkpoint").exists()
    answer = retained(arguments(fixture, db=source), *newest(2))
    assert (answer.code, answer.output["expired"]) == (0, 5), answer
    assert fixture.sync().status == "synced"
    verified = command("--config", str(fixture.config()), "verify", fixture.name, "--engine", "local")
    assert (verified.code, verified.output["status"]) == (0, "same"), verified
    assert commits(there) == [5, 6] and on_disk(there) == on_disk(place)
    assert not (there / "_delta_log/_last_checkpoint").exists()
    assert read(there, (5, 6)) == {version: before[version] for version in (5, 6)}
