"""Iceberg tables are replicated by translation: each snapshot of a replica has the source's rows, and names only the
replica's files. PyIceberg, which shares no code with the product's reading of Avro, writes and reads; the source is
away while a replica is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from iceberg_tables import (
    SCHEMA,
    catalog,
    data_file,
    delete_rows,
    expire,
    is_same,
    make,
    naming_source,
    replica,
    replicated,
    rows,
    shown,
    states,
    verified,
)
from lab import Lab
from pyiceberg.table import StaticTable
from pyiceberg.types import StringType
from waiting import repeating

from replicator.core.formats.iceberg_table import UNTRANSLATED, IcebergTable
from replicator.core.formats.interface import POINTER
from replicator.core.model import EXTERNAL
from replicator.errors import MetastoreError
from replicator.metastore.embedded.running import Running
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings
from replicator.replay.apply.commit import MODIFIED, Commit


def repaired(lab: Lab) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    roots = ["--cmroot", str(lab.cmroot), "--target-cmroot", str(lab.target_cmroot)]
    return command("repair", *sides, *roots, "--engine", "local")


def named(answer: Answer) -> list[tuple[str, str]]:
    return [(each["object"].partition(".")[2], each["reason"]) for each in answer.output["not_replicated"]]


# ---- states -------------------------------------------------------------------------------------------------------


def test_every_snapshot_of_a_replica_is_the_sources_when_the_source_is_gone(fixture: Lab) -> None:
    table = make(fixture)
    for first in (1, 3, 5):
        table.append(rows(first, first + 1))
    table.delete("id = 3")
    table = delete_rows(table, data_file(table), [0])
    replicated(fixture)
    wanted = states(table)
    assert len(wanted) == 5 and len(shown(table)) == 4
    with fixture.without_source():
        assert states(replica(fixture)) == wanted
    is_same(fixture)

    table.append(rows(7))
    with table.update_schema() as update:
        update.add_column("more", StringType())
    table = delete_rows(table.refresh(), data_file(table), [1])
    replicated(fixture)
    with fixture.without_source():
        assert states(replica(fixture)) == states_of_copy(fixture, wanted, table)
    is_same(fixture)


def states_of_copy(lab: Lab, before: dict[int, list[int]], table: object) -> dict[int, list[int]]:
    """The source's states, read while its files are away: those before, and those of the replica's own snapshots."""
    now = states(replica(lab))
    assert before.items() <= now.items() and len(now) == len(table.metadata.snapshots)  # type: ignore[attr-defined]
    return now


@pytest.mark.parametrize(("version", "codec"), [("1", "deflate"), ("2", "zstandard"), ("2", "null")])
def test_versions_and_codecs(fixture: Lab, version: str, codec: str) -> None:
    more = {"write.metadata.compression-codec": "gzip"} if codec == "null" else {}
    table = make(fixture, **{"format-version": version, "write.avro.compression-codec": codec, **more})
    table.append(rows(1, 2))
    table.append(rows(3))
    replicated(fixture)
    wanted = states(table)
    with fixture.without_source():
        assert states(replica(fixture)) == wanted
    is_same(fixture)


def test_a_replica_that_lags_answers_though_the_source_has_removed_its_files(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    table.append(rows(2))
    assert fixture.dump().code == 0
    table.overwrite(rows(3))
    table = expire(table)
    loaded = fixture.load()
    assert (loaded.code, loaded.output["files_from_cmroot"] > 0) == (0, True), loaded
    assert shown(replica(fixture)) == [1, 2]
    files = len(list(fixture.target.home.rglob("*.*")))
    replicated(fixture)
    assert shown(replica(fixture)) == [3]
    assert len(list(fixture.target.home.rglob("*.*"))) < files
    is_same(fixture)


def test_captures_beside_a_writer_are_snapshots(fixture: Lab) -> None:
    """A writer appends and expires all the time; each load shows one of its snapshots."""
    table = make(fixture)
    table.append(rows(0))
    replicated(fixture)
    writer = catalog(fixture.source_uri).load_table(f"{fixture.name}.t")

    def write(number: int) -> None:
        writer.refresh().append(rows(number))
        if number % 4 == 0:
            expire(writer.refresh())

    with repeating(write):
        for _ in range(4):
            replicated(fixture)
            found = shown(replica(fixture))
            assert found == list(range(len(found)))
    replicated(fixture)
    assert shown(replica(fixture)) == shown(table.refresh())
    is_same(fixture)


# ---- what is left out ---------------------------------------------------------------------------------------------


def test_files_outside_of_a_tables_location_are_a_gap_until_none_is_left(fixture: Lab) -> None:
    outside = fixture.here / "outside"
    table = make(fixture, **{"write.data.path": f"file://{outside}"})
    make(fixture, "other").append(rows(1))
    table.append(rows(1, 2))
    dumped = fixture.dump()
    ((name, reason),) = named(dumped)
    assert (dumped.code, name) == (3, "t") and "is outside of its location" in reason
    loaded = fixture.load()
    assert (loaded.code, named(loaded)) == (3, [(name, reason)])
    assert fixture.target.metastore.table_names(fixture.name) == ["other"]
    found = verified(fixture)
    assert (found.code, named(found)) == (3, [(name, reason)]), found
    with table.transaction() as transaction:
        transaction.remove_properties("write.data.path")
    table.refresh().overwrite(rows(1, 2))
    expire(table.refresh())
    for answer in (fixture.dump(), fixture.load()):
        assert answer.code == 0, answer
    assert shown(replica(fixture)) == [1, 2]
    is_same(fixture)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("what", "harm", "says"),
    [
        ("*.metadata.json", damaged, "is no metadata of an Iceberg table"),
        ("*-m0.avro", damaged, "is not an Avro file that can be read"),
        ("*.metadata.json", Path.unlink, "was not found"),
    ],
)
def test_a_damaged_tree_is_named_and_its_replica_stays(
    fixture: Lab, what: str, harm: Callable[[Path], None], says: str
) -> None:
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    before = set((fixture.source.home / "t/metadata").glob(what))
    table.append(rows(2))
    (new,) = set((fixture.source.home / "t/metadata").glob(what)) - before
    harm(new)
    for answer in (fixture.dump(since=fixture.last), fixture.load()):
        ((name, reason),) = named(answer)
        assert (answer.code, name) == (3, "t") and says in reason, answer
    assert shown(replica(fixture)) == [1]


@pytest.mark.parametrize("name", ["data/x.puffin", "metadata/x.avro", "metadata/99999-x.metadata.json", "data/.x"])
def test_files_that_no_commit_names_are_not_replicated(fixture: Lab, name: str) -> None:
    """Such as those of failed commits. Two of them are well formed, and could not be translated."""
    make(fixture).append(rows(1))
    file = fixture.source.home / "t" / name
    with file.open("wb") as stream:
        if name.endswith(".avro"):
            schema = {"type": "record", "name": "r", "fields": [{"name": "data_file", "type": "string"}]}
            fastavro.writer(stream, schema, [{"data_file": "text"}])
        else:
            stream.write(b"PFA1" + bytes(20) + b"PFA1")
    replicated(fixture)
    is_same(fixture)
    assert shown(replica(fixture)) == [1] and not (fixture.target.home / "t" / name).exists()


# ---- writers of the target ----------------------------------------------------------------------------------------


def test_commits_of_others_on_a_replica_are_not_replaced_without_a_request(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    own = replica(fixture)
    own.append(rows(100))
    assert naming_source(fixture) == []
    table.append(rows(2))
    assert fixture.dump(since=fixture.last).code == 0
    refused = fixture.load()
    assert (refused.code, refused.output["error"]) == (6, "Refused"), refused
    assert shown(replica(fixture)) == [1, 100]
    loaded = fixture.load(None, "--overwrite")
    assert loaded.code == 0, loaded
    assert shown(replica(fixture)) == [1, 2]
    assert verified(fixture).code == 4  # the other writer's files
    assert repaired(fixture).code == 0
    is_same(fixture)


@pytest.mark.parametrize("version", ["3.1", "4.2"])
def test_newer_servers_replicate_and_switch_a_pointer(
    source_metastore: Running, hives: Callable[..., Running], tmp_path: Path, version: str
) -> None:
    """3.1 does not know the condition of a switch; 4.2 refuses another pointer than the expected one."""
    lab = Lab(source_metastore, hives(version), tmp_path)
    lab.source.create()
    table = make(lab)
    table.append(rows(1))
    replicated(lab)
    table.append(rows(2))
    replicated(lab)
    there = lab.target.metastore.table(lab.name, "t")
    assert shown(StaticTable.from_metadata(there.parameters[POINTER])) == [1, 2]
    is_same(lab)
    refuses = pytest.raises(MetastoreError, match=MODIFIED) if version == "4.2" else nullcontext()
    with refuses:
        lab.target.metastore.alter_table(lab.name, "t", there, "file:/another.metadata.json")


def test_a_commit_between_the_last_look_and_the_switch_is_refused(
    fixture: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    table.append(rows(2))
    assert fixture.dump(since=fixture.last).code == 0
    switch = Commit._switch

    def late(*arguments: Any) -> None:
        replica(fixture).append(rows(100))
        switch(*arguments)

    monkeypatch.setattr(Commit, "_switch", late)
    refused = fixture.load()
    assert (refused.code, refused.output["error"]) == (6, "Refused"), refused
    assert shown(replica(fixture)) == [1, 100]


# ---- kills --------------------------------------------------------------------------------------------------------


KILLS = (
    Fault("after", "rename", r"/data/[^/]*\.parquet$", 1),
    Fault("after", "rename", r"-m0\.avro$", 1),
    Fault("before", "rename", r"/snap-[^/]*\.avro$", 1),
    Fault("after", "rename", r"\.metadata\.json$", 1),
    Fault("before", "thrift", r"alter table .*\.t$", 1),
    Fault("after", "thrift", r"alter table .*\.t$", 1),
    Fault("after", "rename", r"incoming/recycle", 1),
)


def test_a_load_that_is_killed_anywhere_shows_a_snapshot_and_is_completed_by_the_next(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(0))
    replicated(fixture)
    for number, fault in enumerate(KILLS, 1):
        before = shown(table)
        table.append(rows(number))
        table = expire(table.refresh())
        assert (found := fixture.dump(since=fixture.last)).code == 0, found
        assert run_with(fault, fixture.load_arguments(fixture.last)).killed, fault
        assert shown(replica(fixture)) in (before, [*before, number]), fault
        assert fixture.load().code == 0, fault
        assert shown(replica(fixture)) == [*before, number]
        is_same(fixture)


# ---- beside the load ----------------------------------------------------------------------------------------------


def test_a_past_state_is_restored_from_what_the_source_has_removed(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1, 2))
    assert fixture.capture().code == 0
    event = fixture.source.metastore.current_event_id()
    table.overwrite(rows(3))
    table = expire(table)
    assert fixture.capture().code == 0
    into = f"{fixture.name}_old"
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event), "--into", into]
    restored = command(*arguments, "--target", fixture.source_uri, "--engine", "local")
    assert restored.code == 0, restored
    old = catalog(fixture.source_uri).load_table(f"{into}.t")
    assert shown(old) == [1, 2]
    old.append(rows(4))
    assert (shown(old), shown(table.refresh())) == ([1, 2, 4], [3])


def test_a_live_table_is_forced_back_to_what_it_was(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    table = delete_rows(table, data_file(table), [])
    table.append(rows(2))
    assert fixture.capture().code == 0
    event, wanted = fixture.source.metastore.current_event_id(), states(table)
    table.overwrite(rows(3))
    expire(table.refresh())
    assert fixture.capture().code == 0
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event)]
    restored = command(
        *arguments, "--into", fixture.name, "--force", "--target", fixture.source_uri, "--engine", "local"
    )
    assert restored.code == 0, restored
    assert states(table.refresh()) == wanted


def test_a_renamed_table_goes_on_under_its_new_name(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    replicated(fixture)
    own = catalog(fixture.source_uri).rename_table(f"{fixture.name}.t", f"{fixture.name}.u")
    own.append(rows(2))
    replicated(fixture)
    assert fixture.target.metastore.table_names(fixture.name) == ["u"]
    assert shown(replica(fixture, "u")) == [1, 2]
    is_same(fixture)
    catalog(fixture.source_uri).drop_table(f"{fixture.name}.u")
    replicated(fixture)
    assert fixture.target.metastore.table_names(fixture.name) == []


def test_a_dump_with_data_is_all_that_a_replica_needs(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1, 2))
    wanted = states(table)
    assert fixture.dump("--with-data").code == 0
    with fixture.without_source():
        loaded = fixture.load()
        assert loaded.code == 0, loaded
        assert states(replica(fixture)) == wanted


def test_a_changed_replica_is_found_and_repaired(fixture: Lab) -> None:
    table = make(fixture)
    table.append(rows(1))
    table = delete_rows(table, data_file(table), [])
    table.append(rows(2))
    replicated(fixture)
    place = fixture.target.metastore.table(fixture.name, "t").parameters[POINTER]
    list_of_manifests = urlsplit(replica(fixture).metadata.snapshots[-1].manifest_list).path
    for path in (urlsplit(place).path, list_of_manifests):
        good = Path(path).read_bytes()
        Path(path).write_bytes(good.replace(b"2", b"3", 1))
        assert verified(fixture).code == 4
        mended = repaired(fixture)
        assert (mended.code, mended.output["status"]) == (0, "repaired"), mended
        assert Path(path).read_bytes() == good
    is_same(fixture)


# ---- a policy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_a_policy_turns_round_and_both_sides_write(pair: Lab, publish: str) -> None:
    pair.keys["publish"] = publish
    pair.db("a").table("plain", {"f": "1"})
    table = make(pair, db="a")
    table.append(rows(1, 2))
    assert pair.sync().status == "synced"
    table.append(rows(3))
    assert pair.sync().status == "synced"
    own = replica(pair, db="a")
    assert shown(own) == [1, 2, 3]
    assert naming_source(pair, "a") == []
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    own.refresh().append(rows(4))
    assert pair.sync().status == "synced"
    table = table.refresh()
    assert shown(table) == [1, 2, 3, 4]
    home = os.fsencode(pair.replica("a").home)
    assert [path for path in pair.db("a").home.rglob("*.json") if home in path.read_bytes()] == []
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    table.refresh().append(rows(5))
    assert pair.sync().status == "synced"
    assert shown(own.refresh()) == [1, 2, 3, 4, 5]


def test_a_policy_brings_a_table_when_it_can_be_translated(pair: Lab) -> None:
    """And names it until then, also in runs that find no change of it."""
    table = make(pair, db="a", **{"write.data.path": f"file://{pair.here}/outside"})
    make(pair, "other", db="a").append(rows(1))
    table.append(rows(1, 2))
    for _ in range(2):
        run = pair.sync()
        ((name, reason),) = [(each.object, each.reason) for each in run.not_replicated]
        assert (run.status, name) == ("incomplete", f"{pair.name}_a.t") and "outside of its location" in reason
        catalog(pair.source_uri).load_table(f"{pair.name}_a.other").append(rows(2))
    with table.transaction() as transaction:
        transaction.remove_properties("write.data.path")
    table.refresh().overwrite(rows(3))
    expire(table.refresh())
    runs = [pair.sync() for _ in range(2)]
    assert runs[-1].not_replicated == [] and runs[-1].status in ("synced", "nothing"), runs
    assert shown(replica(pair, db="a")) == [3]
    assert naming_source(pair, "a") == []


def test_a_policy_brings_tables_that_an_earlier_release_left_out(pair: Lab) -> None:
    """Though they have not changed since."""
    make(pair, db="a").append(rows(1))
    name, patch = f"{pair.name}_a.t", pytest.MonkeyPatch()
    with patch.context() as earlier:
        earlier.setattr(IcebergTable, "problems", lambda *about: iter([UNTRANSLATED]))
        run = pair.sync()
        assert [(each.object, each.reason) for each in run.not_replicated] == [(name, UNTRANSLATED)]
    assert [each.object for each in pair.sync().not_replicated] == []
    assert shown(replica(pair, db="a")) == [1]
    assert pair.sync().status == "nothing"


def test_metadata_that_was_captured_before_its_pointer_is_translated(fixture: Lab) -> None:
    """`migrate` writes metadata before it sets the pointer: a capture between sees a plain table with more files."""
    fixture.source.table("t", kind=EXTERNAL)
    own = catalog(fixture.source_uri).create_table(
        f"{fixture.db('other').name}.t", SCHEMA, location=f"file://{fixture.source.home}/t"
    )
    own.append(rows(1, 2))
    replicated(fixture)
    fixture.source.alter("t", table_type="ICEBERG", metadata_location=own.metadata_location)
    replicated(fixture)
    assert shown(replica(fixture)) == [1, 2]
    is_same(fixture)
    event, into = fixture.source.metastore.current_event_id(), f"{fixture.name}_then"
    arguments = ["restore", "--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event), "--into", into]
    assert command(*arguments, "--target", fixture.source_uri, "--engine", "local").code == 0
    assert shown(catalog(fixture.source_uri).load_table(f"{into}.t")) == [1, 2]
