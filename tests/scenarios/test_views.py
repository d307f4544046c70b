"""Views of a database that has another name on the target: renamed in their SQL, or named in the report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import Answer, command
from lab import Lab

from replicator.core.model import VIEW, Column, Storage, Table
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
