"""Iceberg tables with data and delete files outside of their locations: `add_files`, a changed location, a
`write.data.path`. A replica has such files inside of its table, and they are verified, restored and removed like the
table's own. PyIceberg writes and reads; the source is away while a replica is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from iceberg_tables import (
    catalog,
    data_file,
    delete_rows,
    expire,
    make,
    naming_source,
    replica,
    rows,
    shown,
    states,
    verified,
)
from lab import Lab
from plain_tables import PlainDatabase
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate
from waiting import repeating

from cmroot.store import iceberg
from cmroot.store.checksum import checksum_at
from replicator.core.connections import MetastoreConfig
from replicator.metastore.thrift import connect
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings

KILLS = (
    Fault("before", "rename", r"outside/file/.*\.parquet$", 1),
    Fault("after", "rename", r"outside/file/.*deletes\.parquet$", 1),
    Fault("after", "rename", r"/t/metadata/.*-m0\.avro$", 1),
)


def outside(lab: Lab) -> Path:
    """The directory that the operator lists."""
    found = lab.here / "outside"
    found.mkdir(exist_ok=True)
    return found


def listed(lab: Lab) -> tuple[str, str]:
    return "--iceberg-outside", str(outside(lab))


def written(directory: Path, *ids: int, name: str = "x") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(*ids), directory / f"{name}.parquet")
    return directory / f"{name}.parquet"


def added(table: Table, directory: Path, *ids: int, name: str = "x") -> Path:
    """A file of rows that becomes the table's where it is, as `add_files` of Spark does it."""
    path = written(directory, *ids, name=name)
    table.add_files([f"file://{path}"])
    return path


def replicated(lab: Lab) -> None:
    """Dumps everything, or the changes since the last dump, and loads it."""
    before = lab.last if lab.dumps else None
    for answer in (lab.dump(*listed(lab), since=before), lab.load()):
        assert answer.code == 0, answer


def is_same(lab: Lab) -> None:
    found = verified(lab)
    assert (found.code, found.output["status"]) == (0, "same"), found
    assert naming_source(lab, None, outside(lab)) == []


def named(answer: Answer) -> list[tuple[str, str]]:
    return [(each["object"].partition(".")[2], each["reason"]) for each in answer.output["not_replicated"]]


def inside(lab: Lab, path: Path, name: str = "t") -> Path:
    """The replica's file of one outside of the source's table."""
    return lab.target.home / name / "outside/file" / path.relative_to("/")


@contextmanager
def away(lab: Lab) -> Iterator[None]:
    """The source, its root, and the directory outside are elsewhere."""
    place = outside(lab)
    with lab.without_source():
        os.rename(place, f"{place}-away")
        try:
            yield
        finally:
            os.rename(f"{place}-away", place)


# ---- what belongs to a table --------------------------------------------------------------------------------------


def test_files_that_were_added_where_they_are_belong_to_the_replicas_table(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    first = added(table, outside(fixture) / "a", 2, 3)
    added(table, outside(fixture) / "b", 4)  # the same name in another directory
    replicated(fixture)
    wanted = states(table)
    assert shown(table) == [1, 2, 3, 4]
    with away(fixture):
        assert states(replica(fixture)) == wanted
    is_same(fixture)

    table = delete_rows(table, f"file://{first}", [1], f"file://{outside(fixture)}")
    added(table, outside(fixture) / "c", 5)
    dumped = fixture.dump(*listed(fixture), since=fixture.last)
    assert (dumped.code, fixture.load().code) == (0, 0)
    assert dumped.output["files"] == 8  # two files outside, and three commits of a metadata file, a list and a manifest
    wanted = states(table.refresh())
    with away(fixture):
        assert states(replica(fixture)) == wanted
        assert shown(replica(fixture)) == [1, 2, 4, 5]
    is_same(fixture)


def test_a_delete_file_of_rows_in_the_table_and_outside(fixture: Lab) -> None:
    """Its paths have another order on the replica, where bounds of the source's would have readers skip it."""
    table = make(fixture)
    table.append(rows(1, 2))
    own, other = data_file(table), f"file://{added(table, fixture.source.home / '0', 3, 4)}"
    assert other < own
    delete_rows(table, [other, own], [0, 0])
    for answer in (fixture.dump("--iceberg-outside", str(fixture.source.home / "0")), fixture.load()):
        assert answer.code == 0, answer
    with fixture.without_source():
        assert shown(replica(fixture)) == [2, 4]
    is_same(fixture)


def test_spellings_of_a_path(fixture: Lab) -> None:
    table = make(fixture)
    for number, begin in enumerate(("file:", "file://", "file:///", "")):
        path = written(outside(fixture) / str(number), number)
        table.add_files([f"{begin}{path.parent}//{path.name}"])
    replicated(fixture)
    with away(fixture):
        assert shown(replica(fixture)) == [0, 1, 2, 3]
    is_same(fixture)


def test_captures_beside_a_writer_are_snapshots(fixture: Lab) -> None:
    """A writer adds files and expires snapshots all the time: no file that is needed is missed."""
    table = make(fixture, **{"write.data.path": f"file://{outside(fixture)}"})
    table.append(rows(0))
    replicated(fixture)
    writer = catalog(fixture.source_uri).load_table(f"{fixture.name}.t")

    def write(number: int) -> None:
        added(writer.refresh(), outside(fixture), number, name=str(number))
        if number % 3 == 0:
            expire(writer.refresh())

    with repeating(write):
        for _ in range(4):
            replicated(fixture)
            found = shown(replica(fixture))
            assert found == list(range(len(found)))
    replicated(fixture)
    assert shown(replica(fixture)) == shown(table.refresh())
    is_same(fixture)


def test_a_table_whose_writers_write_elsewhere(fixture: Lab) -> None:
    place = f"file://{outside(fixture)}/data"
    table = make(fixture, **{"write.data.path": place})
    replicated(fixture)
    table.append(rows(1, 2))
    table = delete_rows(table, data_file(table), [0], place)
    replicated(fixture)
    with away(fixture):
        own = replica(fixture)
        assert shown(own) == [2]
        there = fixture.target.metastore.table(fixture.name, "t").parameters["write.data.path"]
        assert urlsplit(own.properties["write.data.path"]).path == urlsplit(there).path
        assert urlsplit(there).path == str(inside(fixture, outside(fixture) / "data"))
    is_same(fixture)


def test_a_table_that_has_moved_has_its_older_files_at_its_former_location(fixture: Lab) -> None:
    """Lists and manifests at the former location are a gap until none is left."""
    table = make(fixture, **{"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    table.append(rows(1))
    replicated(fixture)
    former = ("--iceberg-outside", f"{fixture.source.home}/t")
    with table.transaction() as transaction:
        transaction._apply((SetLocationUpdate(location=f"file://{fixture.source.home}/moved"),))
    dumped = fixture.dump(*former, since=fixture.last)
    ((name, reason),) = named(dumped)
    assert (dumped.code, name) == (3, "t") and ".avro is outside of its location" in reason
    assert fixture.load().code == 3
    assert shown(replica(fixture)) == [1]
    table = table.refresh()
    table.append(rows(2))
    table = expire(table.refresh())
    for answer in (fixture.dump(*former), fixture.load()):
        assert answer.code == 0, answer
    with fixture.without_source():
        own = replica(fixture)
        assert (shown(own), own.location()) == ([1, 2], f"file://{fixture.target.home}/moved")
    is_same(fixture)


# ---- what is not read ---------------------------------------------------------------------------------------------


def test_files_in_directories_that_no_operator_lists_are_not_read(fixture: Lab) -> None:
    secret = written(fixture.here / "secret", 7)
    (outside(fixture) / "link.parquet").symlink_to(secret)
    os.symlink(secret.parent, outside(fixture) / "down")
    paths = {
        "plain": f"{secret}",
        "dots": f"{outside(fixture)}/../secret/x.parquet",
        "beside": f"{written(fixture.here / 'outside2', 7)}",
        "link": f"{outside(fixture)}/link.parquet",
        "linked": f"{outside(fixture)}/down/x.parquet",
        "hidden": f"{written(outside(fixture) / '.h', 7)}",
    }
    make(fixture, "good").append(rows(1))
    for name, path in paths.items():
        make(fixture, name).add_files([f"file://{path}"])
    dumped = fixture.dump(*listed(fixture))
    found = dict(named(dumped))
    assert (dumped.code, found.keys()) == (3, paths.keys()), dumped
    assert all("is outside of its location" in reason for reason in found.values())
    assert "--iceberg-outside" in found["plain"] and "--iceberg-outside" in found["beside"]
    assert all("a path that no replica can have" in found[name] for name in ("dots", "hidden"))
    assert "a link that leads out of" in found["link"] and "a link that leads out of" in found["linked"]
    assert named(fixture.load()) == named(dumped)
    assert fixture.target.metastore.table_names(fixture.name) == ["good"]
    kept = {checksum_at(str(path))[0] for path in fixture.cmroot.rglob("*") if path.is_file()}
    assert checksum_at(str(secret))[0] not in kept


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc/passwd", "its file file:///etc/passwd is outside of its location"),
        ("/etc/../etc/shadow", "its file /etc/../etc/shadow is outside of its location"),
        ("", "'' is not on a local filesystem"),
        ("file://host/x", "cannot name the host"),
        ("s3://key:secret@bucket/x", "a URL with credentials"),
    ],
    ids=["plain", "dots", "empty", "host", "credentials"],
)
def test_a_manifest_that_names_any_file_stops_no_other_table(fixture: Lab, path: str, says: str) -> None:
    make(fixture, "good").append(rows(1))
    table = make(fixture)
    place = added(table, outside(fixture), 1)
    (manifest,) = (fixture.source.home / "t/metadata").glob("*-m0.avro")
    rewritten(manifest, f"file://{place}", path)
    dumped = fixture.dump(*listed(fixture))
    ((name, reason),) = named(dumped)
    assert (dumped.code, name) == (3, "t") and says in reason and "secret" not in reason, dumped
    assert fixture.load().code == 3
    assert fixture.target.metastore.table_names(fixture.name) == ["good"]


def rewritten(manifest: Path, before: str, after: str) -> None:

    data = iceberg.translated(
        f"metadata/{manifest.name}",
        manifest.read_bytes(),
        lambda path: after if path == before else path,
        lambda *a: a[1],
    )
    manifest.write_bytes(data)


def test_a_directory_that_is_listed_later_and_no_longer(fixture: Lab) -> None:
    """A gap without a setting; files that were read before need none."""
    table = make(fixture)
    added(table, outside(fixture) / "a", 1)
    for _ in range(2):
        dumped = fixture.dump()
        ((name, reason),) = named(dumped)
        assert (dumped.code, name) == (3, "t") and "--iceberg-outside" in reason
        assert fixture.capture().output["formats"] == {f"{fixture.name}.t": reason}
    assert fixture.dump(*listed(fixture)).code == 0
    assert fixture.load().code == 0
    is_same(fixture)
    table.append(rows(2))
    for answer in (fixture.dump(since=fixture.last), fixture.load()):
        assert answer.code == 0, answer
    is_same(fixture)
    added(table, outside(fixture) / "b", 3)
    assert fixture.dump(since=fixture.last).code == 3
    assert fixture.load().code == 3
    assert shown(replica(fixture)) == [1, 2]


def test_a_missing_file_is_named_and_the_replica_stays(fixture: Lab) -> None:
    table = make(fixture)
    added(table, outside(fixture) / "a", 1)
    replicated(fixture)
    path = added(table, outside(fixture) / "b", 2)
    os.rename(path, f"{path}-away")
    make(fixture, "other").append(rows(1))
    for answer in (fixture.dump(*listed(fixture), since=fixture.last), fixture.load()):
        ((name, reason),) = named(answer)
        assert (answer.code, name) == (3, "t") and f"{path} is outside of its location, and does not exist" in reason
    assert shown(replica(fixture)) == [1]
    os.rename(f"{path}-away", path)
    os.rename(outside(fixture), fixture.here / "away")  # the directory is not mounted
    dumped = fixture.dump("--iceberg-outside", str(fixture.here / "outside"), since=fixture.last)
    assert dumped.code == 3 and "is outside of its location, and" in named(dumped)[0][1], dumped
    os.rename(fixture.here / "away", fixture.here / "outside")
    for answer in (fixture.dump(*listed(fixture)), fixture.load()):
        assert answer.code == 0, answer
    assert shown(replica(fixture)) == [1, 2]
    is_same(fixture)


def test_files_of_expired_snapshots_and_failed_commits_are_not_missed(fixture: Lab) -> None:
    """A manifest that the table's metadata does not lead to names a file that is gone."""
    table = make(fixture)
    path = added(table, outside(fixture) / "a", 1)
    before = {each: each.read_bytes() for each in (fixture.source.home / "t/metadata").glob("*.avro")}
    table.overwrite(rows(2))
    table = expire(table.refresh())
    for each, data in before.items():
        each.write_bytes(data)
    assert not path.exists()
    replicated(fixture)
    assert shown(replica(fixture)) == [2]
    is_same(fixture)


def test_a_file_of_the_table_where_a_replica_would_have_one_from_outside(fixture: Lab) -> None:
    table = make(fixture)
    path = added(table, outside(fixture), 1)
    added(table, fixture.source.home / "t/outside/file" / path.parent.relative_to("/"), 2)
    dumped = fixture.dump(*listed(fixture))
    ((name, reason),) = named(dumped)
    assert (dumped.code, name) == (3, "t") and "in its place" in reason


# ---- removals -----------------------------------------------------------------------------------------------------


def test_a_replica_that_lags_answers_though_the_source_has_removed_its_files(fixture: Lab) -> None:
    table = make(fixture)
    path = added(table, outside(fixture) / "a", 1)
    added(table, outside(fixture) / "b", 2)
    assert fixture.dump(*listed(fixture)).code == 0
    table.overwrite(rows(3))
    table = expire(table.refresh())
    assert not path.exists()
    loaded = fixture.load()
    assert (loaded.code, loaded.output["files_from_cmroot"]) == (0, 2), loaded
    assert shown(replica(fixture)) == [1, 2]
    assert inside(fixture, path).exists()
    replicated(fixture)
    assert shown(replica(fixture)) == [3]
    assert not (fixture.target.home / "t/outside").exists()
    is_same(fixture)


def test_a_renamed_and_a_dropped_table(fixture: Lab) -> None:
    table = make(fixture)
    path = added(table, outside(fixture), 1)
    replicated(fixture)
    own = catalog(fixture.source_uri).rename_table(f"{fixture.name}.t", f"{fixture.name}.u")
    added(own, outside(fixture) / "b", 2)
    replicated(fixture)
    assert shown(replica(fixture, "u")) == [1, 2]
    is_same(fixture)
    catalog(fixture.source_uri).drop_table(f"{fixture.name}.u")
    make(fixture, "u").append(rows(3))  # another table of the name, without files outside
    replicated(fixture)
    assert shown(replica(fixture, "u")) == [3]
    assert path.exists() and not inside(fixture, path, "u").exists()
    is_same(fixture)


def test_a_load_that_is_killed_anywhere_is_completed_by_the_next(fixture: Lab) -> None:
    table = make(fixture)
    added(table, outside(fixture) / "0", 0)
    replicated(fixture)
    for number, fault in enumerate(KILLS, 1):
        before = shown(table)
        path = added(table, outside(fixture) / str(number), number)
        table = delete_rows(table, f"file://{path}", [], f"file://{outside(fixture)}")
        table = expire(table.refresh())
        assert (found := fixture.dump(*listed(fixture), since=fixture.last)).code == 0, found
        assert run_with(fault, fixture.load_arguments(fixture.last)).killed, fault
        assert shown(replica(fixture)) in (before, [*before, number]), fault
        assert fixture.load().code == 0, fault
        assert shown(replica(fixture)) == [*before, number]
        is_same(fixture)


# ---- beside the load ----------------------------------------------------------------------------------------------


def test_verify_finds_what_differs(fixture: Lab) -> None:
    table = make(fixture)
    paths = [added(table, outside(fixture) / name, number) for number, name in enumerate("abc")]
    table = delete_rows(table, f"file://{paths[0]}", [], f"file://{outside(fixture)}")
    replicated(fixture)
    one, other, third = (inside(fixture, each) for each in paths)
    one.write_bytes(one.read_bytes().replace(b"PAR1", b"PAR2", 1))
    other.unlink()
    shutil.copy(third, third.parent / "extra.parquet")
    found = verified(fixture)
    below = fixture.target.home / "t"
    assert sorted((each["kind"], each["field"]) for each in found.output["differences"]) == sorted(
        [
            ("file content", str(one.relative_to(below))),
            ("file missing", str(other.relative_to(below))),
            ("file extra", str((third.parent / "extra.parquet").relative_to(below))),
        ]
    ), found
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    roots = ["--cmroot", str(fixture.cmroot), "--target-cmroot", str(fixture.target_cmroot)]
    repaired = command("repair", *sides, *roots, "--engine", "local")
    assert repaired.code == 0, repaired
    is_same(fixture)


def test_a_past_state_is_restored_from_what_the_source_has_removed(fixture: Lab) -> None:
    table = make(fixture)
    added(table, outside(fixture) / "a", 1, 2)
    table = delete_rows(table, data_file(table), [0], f"file://{outside(fixture)}")
    assert fixture.capture(*listed(fixture)).code == 0
    event = fixture.source.metastore.current_event_id()
    table.overwrite(rows(3))
    table = expire(table.refresh())
    assert fixture.capture(*listed(fixture)).code == 0
    into = f"{fixture.name}_old"
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event), "--into", into]
    restored = command(*arguments, "--target", fixture.source_uri, "--engine", "local")
    assert restored.code == 0, restored
    old = catalog(fixture.source_uri).load_table(f"{into}.t")
    assert shown(old) == [2]
    assert not (outside(fixture) / "a/x.parquet").exists()


def test_a_live_table_is_forced_back_to_what_it_was(fixture: Lab) -> None:
    """Its files from outside are in its location then: at their former places, others may be."""
    table = make(fixture)
    table.append(rows(1))
    path = added(table, outside(fixture) / "a", 2, 3)
    table = delete_rows(table, f"file://{path}", [0], f"file://{outside(fixture)}")
    assert fixture.capture(*listed(fixture)).code == 0
    event, wanted = fixture.source.metastore.current_event_id(), states(table)
    table.overwrite(rows(4))
    expire(table.refresh())
    assert fixture.capture(*listed(fixture)).code == 0
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event)]
    restored = command(
        *arguments, "--into", fixture.name, "--force", "--target", fixture.source_uri, "--engine", "local"
    )
    assert restored.code == 0, restored
    table = table.refresh()
    assert (states(table), shown(table)) == (wanted, [1, 3])
    assert not (outside(fixture) / "a/x.parquet").exists()
    replicated(fixture)
    assert shown(replica(fixture)) == [1, 3]
    is_same(fixture)


def test_files_that_a_capture_did_not_keep_are_kept_by_the_next_that_finds_a_change(fixture: Lab) -> None:
    table = make(fixture)
    path = added(table, outside(fixture), 1)
    assert fixture.capture("--keeper", "none", *listed(fixture)).code == 0
    table.append(rows(2))
    assert fixture.dump(*listed(fixture)).code == 0
    table.overwrite(rows(3))
    expire(table.refresh())
    assert not path.exists()
    assert fixture.load().code == 0
    assert shown(replica(fixture)) == [1, 2]


def test_a_dump_with_data_is_all_that_a_replica_needs(fixture: Lab) -> None:
    table = make(fixture)
    added(table, outside(fixture), 1, 2)
    wanted = states(table)
    assert fixture.dump("--with-data", *listed(fixture)).code == 0
    with away(fixture):
        loaded = fixture.load()
        assert loaded.code == 0, loaded
        assert states(replica(fixture)) == wanted


def test_a_manifest_of_the_root_that_is_lost_is_folded_again(fixture: Lab) -> None:
    table = make(fixture)
    path = added(table, outside(fixture) / "a", 1)
    replicated(fixture)
    for each in fixture.cmroot.glob("manifest.sqlite*"):
        each.unlink()
    table.append(rows(2))
    dumped = fixture.dump(*listed(fixture), since=fixture.last)
    assert (dumped.code, dumped.output["files"]) == (0, 4), dumped
    assert fixture.load().code == 0
    is_same(fixture)
    table.overwrite(rows(3))
    expire(table.refresh())
    assert not path.exists()
    replicated(fixture)
    assert not inside(fixture, path).exists()
    is_same(fixture)


def configured(pair: Lab) -> None:
    config = MetastoreConfig(pair.source_uri, iceberg_outside=(str(outside(pair)),))
    pair.source = PlainDatabase(connect(config), pair.source.name, pair.source.home.parent)


def test_a_policy_brings_a_table_when_its_directory_is_listed(pair: Lab) -> None:
    table = make(pair, db="a")
    added(table, outside(pair), 1)
    make(pair, "other", db="a").append(rows(1))
    for _ in range(2):
        run = pair.sync()
        ((name, reason),) = [(each.object, each.reason) for each in run.not_replicated]
        assert (run.status, name) == ("incomplete", f"{pair.name}_a.t") and "iceberg_outside" in reason
    configured(pair)
    runs = [pair.sync() for _ in range(2)]
    assert runs[-1].not_replicated == [] and runs[-1].status in ("synced", "nothing"), runs
    assert shown(replica(pair, db="a")) == [1]
    added(table, outside(pair) / "b", 2)
    assert pair.sync().status == "synced"
    assert shown(replica(pair, db="a")) == [1, 2]


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_a_policy_turns_round_and_both_sides_write(pair: Lab, publish: str) -> None:
    """By the configuration of the source's metastore. The other side has all files in the table."""
    pair.keys["publish"] = publish
    configured(pair)
    table = make(pair, db="a")
    added(table, outside(pair), 1, 2)
    assert pair.sync().status == "synced"
    own = replica(pair, db="a")
    assert shown(own) == [1, 2]
    assert naming_source(pair, "a", outside(pair)) == []
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    own.refresh().append(rows(3))
    assert pair.sync().status == "synced"
    table = table.refresh()
    os.rename(outside(pair), pair.here / "gone")
    assert shown(table) == [1, 2, 3]
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    table.refresh().append(rows(4))
    assert pair.sync().status == "synced"
    assert shown(own.refresh()) == [1, 2, 3, 4]
