"""Views of a database that has another name on the target: renamed in their SQL, or named in the report."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from command_line import Answer, command
from lab import Lab
from plain_tables import KEYS, PlainDatabase

from replicator.core.model import VIEW, Column, Partition, Storage, Table
from replicator.metastore.embedded.running import Running
from replicator.policies.shadows import Shadows, cannot_show


@pytest.fixture
def fixture(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    made = Lab(source_metastore, target_metastore, tmp_path)
    made.source.create()
    made.source.table("t", {"a": "1"})
    return made


def view(fixture: Lab, name: str, text: str) -> Table:
    storage = Storage(columns=(Column("a", "int"),))
    made = Table(db=fixture.name, name=name, kind=VIEW, storage=storage, view_original=text, view_expanded=text)
    fixture.source.metastore.create_table(made)
    return made


def verified(fixture: Lab, rename: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--rename-db", rename, "--engine", "local")


def named(answer: Answer) -> list[str]:
    return sorted(each["object"] for each in answer.output["not_replicated"])


def test_a_view_that_is_not_understood_is_named_and_comes_once_it_is(fixture: Lab) -> None:
    db, copy = fixture.name, f"{fixture.name}_copy"
    rename = f"{db}={copy}"
    text = f"SELECT EXTRACT(YEAR FROM {db}.a) AS a FROM {db}.t {db} LATERAL VIEW {db}.f(a) x AS y -- {db}.t"
    view(fixture, "clear", text)
    odd = f"SELECT a:{db}.b FROM {db}.t"
    made = view(fixture, "odd", odd)
    assert fixture.dump().code == 0
    for more in (["--dry-run"], [], ["--formats", "as-they-are"]):
        loaded = fixture.load(None, "--rename-db", rename, *more)
        assert (loaded.code, named(loaded)) == (3, [f"{db}.odd"]), loaded
        assert "by hand" in loaded.output["not_replicated"][0]["reason"]
    target = fixture.target.metastore
    assert target.table_names(copy) == ["clear", "t"]
    changed = f"SELECT EXTRACT(YEAR FROM {db}.a) AS a FROM {copy}.t {db} LATERAL VIEW {copy}.f(a) x AS y -- {db}.t"
    assert target.table(copy, "clear").view_expanded == changed
    for step in ("as it is", "made by hand"):
        found = verified(fixture, rename)
        assert (found.code, found.output["differences"], named(found)) == (3, [], [f"{db}.odd"]), (step, found)
        if step == "as it is":
            target.create_table(msgspec.structs.replace(made, db=copy))

    # and where nothing is renamed, nothing has to be understood
    assert fixture.load().code == 0
    assert target.table(db, "odd").view_original == odd

    # later changes do not make it forgotten, and its own bring it
    target.drop_table(copy, "odd")
    fixture.source.write("t", {"b": "2"})
    assert fixture.dump(since=fixture.here / "dump1").code == 0
    loaded = fixture.load(None, "--rename-db", rename)
    assert (loaded.code, loaded.output["files_copied"], named(loaded)) == (3, 1, [f"{db}.odd"]), loaded
    clear = f"SELECT b FROM {db}.t"
    fixture.source.metastore.alter_table(
        db, "odd", msgspec.structs.replace(made, view_original=clear, view_expanded=clear)
    )
    assert fixture.dump(since=fixture.last.parent / "dump1").code == 0
    loaded = fixture.load(None, "--rename-db", rename)
    assert loaded.code == 0, loaded
    assert target.table(copy, "odd").view_original == f"SELECT b FROM {copy}.t"
    assert verified(fixture, rename).code == 0


def test_a_drill_leaves_such_a_view_out_and_asks_the_replica_such_a_query() -> None:
    odd = Table(db="d", name="v", kind=VIEW, view_original="SELECT a:d.b FROM d.t")
    shadows = Shadows("id", "p", {"d": "s"})
    assert "not understood" in cannot_show(odd, shadows.names)
    assert shadows.query("SHOW PARTITIONS d.t") == "SHOW PARTITIONS d.t"
    assert shadows.query("SELECT d.a FROM d.t, crm.p d") == "SELECT d.a FROM s.t, crm.p d"


# ---- partitioned views -----------------------------------------------------------------------------------------------


def partitioned_view(fixture: Lab, *values: str) -> None:
    """A view with partitions, which have no location: `ALTER VIEW ... ADD PARTITION`."""
    text = f"SELECT a, p FROM {fixture.name}.days"
    storage = Storage(columns=(Column("a", "int"),))
    fixture.source.metastore.create_table(
        Table(
            db=fixture.name,
            name="v",
            kind=VIEW,
            storage=storage,
            partition_keys=KEYS,
            view_original=text,
            view_expanded=text,
        )
    )
    add_to_view(fixture, *values)


def add_to_view(fixture: Lab, *values: str) -> None:
    made = [Partition(values=(value,), storage=Storage(), parameters={"note": value}) for value in values]
    fixture.source.metastore.add_partitions(fixture.name, "v", made)


def partitions_of_view(lab: PlainDatabase) -> dict[tuple[str, ...], str]:
    found = lab.metastore.few_partitions(lab.name, "v") or []
    return {each.values: each.parameters["note"] for each in found}


def verify_exactly(fixture: Lab) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--engine", "local")


def test_partitions_of_views_are_replicated_and_compared(fixture: Lab) -> None:
    fixture.source.partitioned("days", {"1": {"f": "1"}})
    partitioned_view(fixture, "1", "2")
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    assert partitions_of_view(fixture.target) == {("1",): "1", ("2",): "2"}
    assert verify_exactly(fixture).code == 0
    source = fixture.source.metastore
    source.drop_partitions(fixture.name, "v", ["p=1"])
    add_to_view(fixture, "3")
    (two,) = (each for each in source.few_partitions(fixture.name, "v") or [] if each.values == ("2",))
    source.alter_partitions(fixture.name, "v", [msgspec.structs.replace(two, parameters={"note": "changed"})])
    assert verify_exactly(fixture).code == 4
    assert (fixture.dump(since=fixture.last).code, fixture.load().code) == (0, 0)
    assert partitions_of_view(fixture.target) == {("2",): "changed", ("3",): "3"}
    assert verify_exactly(fixture).code == 0


def test_partitions_of_views_that_only_the_target_has_are_found_and_removed(fixture: Lab) -> None:
    fixture.source.partitioned("days", {"1": {"f": "1"}})
    partitioned_view(fixture, "1", "2")
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    target = fixture.target.metastore
    target.drop_partitions(fixture.name, "v", ["p=1"])
    target.add_partitions(fixture.name, "v", [Partition(values=("own",), storage=Storage(), parameters={"note": ""})])
    found = verify_exactly(fixture)
    kinds = [(each["kind"], each["object"]) for each in found.output["differences"]]
    assert kinds == [("partition missing", f"{fixture.name}.v/p=1"), ("partition extra", f"{fixture.name}.v/p=own")]
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--cmroot", str(fixture.cmroot)]
    repaired = command(
        "repair", *sides, "--db", fixture.name, "--engine", "local", "--warehouse", str(fixture.warehouse)
    )
    assert repaired.code == 0, repaired
    assert partitions_of_view(fixture.target) == {("1",): "1", ("2",): "2"}


def test_partitions_of_a_view_that_a_log_of_an_earlier_release_lacks_are_found(fixture: Lab) -> None:
    fixture.source.partitioned("days", {"1": {"f": "1"}})
    partitioned_view(fixture, "1", "2")
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    manifest = sqlite3.connect(fixture.cmroot / "manifest.sqlite")
    manifest.execute("DELETE FROM partitions WHERE table_id = (SELECT id FROM tables WHERE name = 'v')")
    manifest.commit()
    manifest.close()
    fixture.target.metastore.drop_partitions(fixture.name, "v", ["p=1", "p=2"])
    dumped = fixture.dump(since=fixture.last)
    assert (dumped.code, dumped.output["observed"]) == (0, 1)
    assert fixture.load().code == 0
    assert partitions_of_view(fixture.target) == {("1",): "1", ("2",): "2"}
    assert fixture.capture().output["observed"] == 0


@pytest.mark.parametrize(("source", "target"), [("3.1", "4.2"), ("4.2", "2.3")])
def test_partitions_of_views_pass_between_versions(
    source: str, target: str, hives: Callable[..., Running], tmp_path: Path
) -> None:
    between = Lab(hives(source), hives(target, "target"), tmp_path)
    between.source.create()
    partitioned_view(between, "1", "2")
    assert between.dump().code == 0
    assert between.load(None, "--rename-db", f"{between.name}={between.name}_copy").code == 0
    copy = PlainDatabase(between.target.metastore, f"{between.name}_copy", between.warehouse)
    assert partitions_of_view(copy) == {("1",): "1", ("2",): "2"}
    between.source.metastore.drop_partitions(between.name, "v", ["p=1"])
    add_to_view(between, "3")
    assert between.dump(since=between.last).code == 0
    assert between.load(None, "--rename-db", f"{between.name}={between.name}_copy").code == 0
    assert partitions_of_view(copy) == {("2",): "2", ("3",): "3"}
    assert verified(between, f"{between.name}={between.name}_copy").output["differences"] == []
