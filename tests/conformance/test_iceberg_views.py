"""Iceberg views: their metadata files name the replica, and what cannot be translated is named. Queries by Iceberg
itself: `test_iceberg_spark.py`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from iceberg_views import make
from lab import Lab

from replicator.core.formats.iceberg_table import UNTRANSLATED_VIEW, IcebergView
from replicator.core.formats.interface import POINTER
from replicator.metastore.embedded.running import Running
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings


def file_of(lab: Lab, db: str) -> Path:
    return Path(lab.target.metastore.table(db, "v").parameters[POINTER].removeprefix("file:"))


def shown(lab: Lab, db: str) -> dict[str, Any]:
    """The replica's metadata file."""
    found: dict[str, Any] = json.loads(gzip.decompress(file_of(lab, db).read_bytes()))
    return found


def verified(lab: Lab, *more: str) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, "--engine", "local", *more)


def named(answer: Answer) -> list[tuple[str, str]]:
    return [(each["object"].partition(".")[2], each["reason"]) for each in answer.output["not_replicated"]]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_view_follows_its_source_and_names_nothing_of_it(fixture: Lab, renamed: bool) -> None:
    name, there = fixture.name, f"{fixture.name}_copy" if renamed else fixture.name
    rename = ("--rename-db", f"{name}={there}") if renamed else ()

    def replicate(since: Path | None) -> None:
        for answer in (fixture.dump(since=since), fixture.load(fixture.last, *rename), verified(fixture, *rename)):
            assert answer.code == 0, answer

    fixture.source.table("t", {"data": "much more than metadata of views" * 100})
    make(fixture.source, f"select 1 from {name}.t")
    replicate(None)
    home = fixture.warehouse / f"{there}.db"
    assert shown(fixture, there)["location"] == f"file:{home}/v"
    (version,) = shown(fixture, there)["versions"]
    assert version["default-namespace"] == [there]
    assert version["representations"][0]["sql"] == f"select 1 from {there}.t"
    first = file_of(fixture, there)

    make(fixture.source, f"select 2 from {name}.t", number=1)
    replicate(fixture.last)
    assert first.exists()  # as at the source
    assert file_of(fixture, there).is_relative_to(home / ".named")
    file_of(fixture, there).write_bytes(gzip.compress(b"{}"))
    found = verified(fixture, *rename)
    assert [each["kind"] for each in found.output["differences"]] == ["file content"], found

    fixture.source.drop("v")
    replicate(fixture.last)
    assert [path for path in home.rglob("*") if path.is_file()] == [home / "t/data"]


@pytest.mark.parametrize("what", ["missing", "damaged", "newer"])
def test_a_view_whose_file_cannot_be_translated_is_named_and_its_replica_stays(fixture: Lab, what: str) -> None:
    make(fixture.source, "select 1")
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    before = shown(fixture, fixture.name)
    file = make(fixture.source, "select 2", number=1, **({"format-version": 2} if what == "newer" else {}))
    if what == "missing":
        file.unlink()
    elif what == "damaged":
        file.write_bytes(file.read_bytes()[:50])
    for answer, code in ((fixture.dump(since=fixture.last), 3), (fixture.load(), 3), (verified(fixture), 4)):
        assert answer.code == code and {name for name, _ in named(answer)} == {"v"}, answer
        assert any(reason.startswith("an Iceberg view: ") for _, reason in named(answer)), answer
    assert shown(fixture, fixture.name) == before
    make(fixture.source, "select 3", number=2)
    for answer in (fixture.dump(since=fixture.last), fixture.load(), verified(fixture)):
        assert answer.code == 0, answer
    assert shown(fixture, fixture.name)["versions"][0]["representations"][0]["sql"] == "select 3"


def test_a_view_elsewhere_than_its_database_is_named(fixture: Lab) -> None:
    make(fixture.source, "select 1", location=fixture.here / "elsewhere")
    for answer in (fixture.dump(), fixture.load(), verified(fixture)):
        ((name, reason),) = named(answer)
        assert (answer.code, name) == (3, "v") and "is outside of its database's" in reason, answer


def test_a_view_whose_writers_write_elsewhere_is_named(fixture: Lab) -> None:
    """After a failover they would write there."""
    make(fixture.source, "select 1", properties={"write.metadata.path": "file:/elsewhere"})
    for answer in (fixture.dump(), fixture.load(), verified(fixture)):
        ((name, reason),) = named(answer)
        assert (answer.code, name) == (3, "v") and "its writers write to file:/elsewhere" in reason, answer


def test_a_database_in_a_catalog_has_no_other_name_on_the_target(fixture: Lab) -> None:
    """Only readers of a view know which metastore is behind a catalog's name."""
    make(fixture.source, f"select 1 from lake.{fixture.name}.t")
    rename = ("--rename-db", f"{fixture.name}={fixture.name}_copy")
    assert fixture.dump().code == 0
    for answer in (fixture.load(None, *rename), verified(fixture, *rename)):
        assert answer.code == 3 and f"names {fixture.name} in the catalog lake" in dict(named(answer))["v"], answer
    assert fixture.load().code == 0
    assert verified(fixture).code == 0


def test_a_query_in_another_dialect_that_cannot_be_translated_is_named(fixture: Lab) -> None:
    file = make(fixture.source, f"select 1 from {fixture.name}.t")
    found = json.loads(gzip.decompress(file.read_bytes()))
    other = {"type": "sql", "sql": f'select 1 from lake.{fixture.name}."t"', "dialect": "trino"}
    found["versions"][0]["representations"].append(other)
    file.write_bytes(gzip.compress(json.dumps(found).encode()))
    rename = ("--rename-db", f"{fixture.name}={fixture.name}_copy")
    assert fixture.dump().code == 0
    for answer in (fixture.load(None, *rename), verified(fixture, *rename)):
        assert answer.code == 3 and "in a query that names" in str(named(answer)), answer


def test_a_policy_brings_views_that_an_earlier_release_left_out(pair: Lab) -> None:
    """Though they have not changed since."""
    make(pair.db("a"), "select 1")
    name = f"{pair.name}_a.v"
    with pytest.MonkeyPatch().context() as earlier:
        earlier.setattr(IcebergView, "problems", lambda *about: iter([UNTRANSLATED_VIEW]))
        run = pair.sync()
        assert [(each.object, each.reason) for each in run.not_replicated] == [(name, UNTRANSLATED_VIEW)]
    assert pair.sync().not_replicated == []
    assert shown(pair, f"{pair.name}_a")["location"] == f"file:{pair.replica('a').home}/v"
    assert pair.sync().status == "nothing"


def test_a_view_changes_sides(pair: Lab) -> None:
    make(pair.db("a"), "select 1")
    assert pair.sync().status == "synced"
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    make(pair.replica("a"), "select 2", number=1)
    run = pair.sync()
    assert (run.status, run.reverse, run.not_replicated) == ("synced", True, [])
    view = pair.db("a").metastore.table(f"{pair.name}_a", "v")
    file = Path(view.parameters[POINTER].removeprefix("file:"))
    found = json.loads(gzip.decompress(file.read_bytes()))
    assert (found["location"], file.is_relative_to(pair.db("a").home)) == (f"file:{pair.db('a').home}/v", True)
    assert found["versions"][0]["representations"][0]["sql"] == view.view_expanded == "select 2"
    assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
    make(pair.db("a"), "select 3", number=2)
    assert pair.sync().status == "synced"
    assert shown(pair, f"{pair.name}_a")["versions"][0]["representations"][0]["sql"] == "select 3"


def test_a_past_state_of_a_view_is_restored(fixture: Lab) -> None:
    make(fixture.source, "select 1")
    assert fixture.dump().code == 0
    event = fixture.source.metastore.current_event_id()
    file = make(fixture.source, "select 2", number=1)
    assert fixture.dump(since=fixture.last).code == 0
    (file.parent / "00000-a.gz.metadata.json").unlink()
    assert fixture.dump(since=fixture.last).code == 0
    into, asked = f"{fixture.name}_past", ["--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", str(event)]
    restored = command("restore", *asked, "--into", into, "--target", fixture.source_uri, "--engine", "local")
    assert restored.code == 0, restored
    view = fixture.source.metastore.table(into, "v")
    found = json.loads(gzip.decompress(Path(view.parameters[POINTER].removeprefix("file:")).read_bytes()))
    assert found["versions"][0]["representations"][0]["sql"] == view.view_expanded == "select 1"
    assert found["location"] == view.location


@pytest.mark.parametrize("version", ["3.1", "4.2"])
def test_newer_servers_have_views(
    source_metastore: Running, hives: Callable[..., Running], tmp_path: Path, version: str
) -> None:
    lab = Lab(source_metastore, hives(version), tmp_path)
    lab.source.create()
    make(lab.source, "select 1")
    assert (lab.dump().code, lab.load().code, verified(lab).code) == (0, 0, 0)
    make(lab.source, "select 2", number=1)
    assert (lab.dump(since=lab.last).code, lab.load().code, verified(lab).code) == (0, 0, 0)
    assert shown(lab, lab.name)["versions"][0]["representations"][0]["sql"] == "select 2"
