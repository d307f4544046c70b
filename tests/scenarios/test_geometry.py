"""The target's own geometry: tables and partitions that share directories, or lie in each other's, are emptied by
nothing that happens to another of them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import command
from lab import Lab
from placed_tables import bootstrap, catch_up, held, partition, path_of, table, toggle, walked, write
from plain_tables import PlainDatabase

from replicator.core.model import EXTERNAL, Database
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.neighbours import Neighbours
from replicator.replay.replica import SOURCE


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    table(fixture.source, "bulk", fixture.source.home / "bulk", {"much": "x" * 4096})  # so that little goes at once
    return fixture


# ---- a table made over a directory --------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("external", [True, False])
def test_a_table_made_over_a_directory_leaves_those_that_lie_in_it(
    fixture: Lab, tmp_path: Path, partitioned: bool, external: bool
) -> None:
    x = tmp_path / "x" if external else fixture.source.home / "x"
    table(fixture.source, "e", x / "sub", {"one": "1", "two": "2"}, external=external)
    table(fixture.source, "days", tmp_path / "y", partitioned=True)
    partition(fixture.source, "days", "1", x / "p=9", {"kept": "kept"})
    bootstrap(fixture)
    table(fixture.source, "p", x, external=external, partitioned=partitioned)
    if partitioned:
        partition(fixture.source, "p", "1", x / "p=1", {"new": "new"})
    catch_up(fixture)


@pytest.mark.parametrize("external", [True, False])
def test_a_table_made_where_a_renamed_one_lies_leaves_that(fixture: Lab, tmp_path: Path, external: bool) -> None:
    place = tmp_path / "a"
    table(fixture.source, "a", place, partitioned=True, external=external)
    partition(fixture.source, "a", "1", place / "p=1", {"old": "old"})
    partition(fixture.source, "a", "2", place / "p=2", {"older": "older"})
    bootstrap(fixture)
    fixture.source.rename("a", "a2")
    table(fixture.source, "a", place, partitioned=True, external=external)
    partition(fixture.source, "a", "2", place / "p=2", {"new": "new"})
    catch_up(fixture)


# ---- what is dropped without its data -----------------------------------------------------------------------------


@pytest.mark.parametrize("sub", ["", "sub", ".."])
def test_a_managed_table_that_goes_leaves_what_an_external_one_has_there(fixture: Lab, sub: str) -> None:
    place = fixture.source.home / "above" / "shared"
    table(fixture.source, "m", place, {"one": "1"}, external=False)
    table(fixture.source, "e", place / sub if sub != ".." else place.parent, {"two": "2"})
    bootstrap(fixture)
    fixture.source.metastore.drop_table(fixture.name, "m")
    catch_up(fixture)
    write(place, {"three": "3"})
    catch_up(fixture)


def test_a_managed_table_that_goes_with_its_data_goes_with_it_on_the_target(fixture: Lab) -> None:
    place = fixture.source.home / "m"
    table(fixture.source, "m", place, {"one": "1"}, external=False)
    table(fixture.source, "e", place / "sub", {"two": "2"})
    bootstrap(fixture)
    fixture.source.metastore.drop_table(fixture.name, "m")
    shutil.rmtree(place)
    (place / "sub").mkdir(parents=True)  # as its owner makes it again
    catch_up(fixture)
    assert not (fixture.target.home / "m" / "one").exists()
    assert held(fixture.target.metastore, fixture.name)["e"] == (EXTERNAL, {})


@pytest.mark.parametrize("goes", ["1", "2"])
def test_of_two_partitions_in_one_directory_one_goes(fixture: Lab, goes: str) -> None:
    place = fixture.source.home / "t"
    table(fixture.source, "t", place, partitioned=True, external=False)
    partition(fixture.source, "t", "1", place / "p=1", {"one": "1"})
    partition(fixture.source, "t", "2", place / "p=1", {"two": "2"})
    partition(fixture.source, "t", "3", place / "p=3", {"three": "3"})
    bootstrap(fixture)
    fixture.source.metastore.drop_partitions(fixture.name, "t", [f"p={goes}", "p=3"])
    catch_up(fixture)
    partition(fixture.source, "t", goes, place / f"p={goes}")
    catch_up(fixture)


def test_a_partition_that_goes_leaves_what_a_partition_of_another_table_has_there(fixture: Lab) -> None:
    place = fixture.source.home / "t"
    table(fixture.source, "t", place, partitioned=True, external=False)
    partition(fixture.source, "t", "1", place / "p=1", {"one": "1"})
    table(fixture.source, "other", fixture.source.home / "other", partitioned=True)
    partition(fixture.source, "other", "x", place / "p=1")
    bootstrap(fixture)
    fixture.source.metastore.drop_partitions(fixture.name, "t", ["p=1"])
    catch_up(fixture)
    fixture.source.metastore.drop_table(fixture.name, "t")
    catch_up(fixture)


def test_what_nobody_has_goes_as_ever(fixture: Lab) -> None:
    place = fixture.source.home / "m"
    table(fixture.source, "m", place, {"one": "1"}, external=False)
    table(fixture.source, "e", place / "sub" / "deep", {"two": "2"})
    write(place / "sub", {"three": "3"})
    bootstrap(fixture)
    for path in (place / "one", place / "sub" / "three"):
        path.unlink()
    fixture.source.metastore.drop_table(fixture.name, "m")
    loaded = catch_up(fixture)
    assert loaded.output["files_removed"] == 2
    assert walked(fixture.target.home / "m") == walked(place)


class Counting:
    """A metastore, and the names of the partitions that were asked of it."""

    def __init__(self, metastore: ThriftMetastore) -> None:
        self._metastore, self.asked = metastore, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metastore, name)

    def everywhere(self) -> Counting:
        return self

    def partitions(self, db: str, table: str, names: Any) -> Any:
        self.asked += [f"{db}.{table}/{name}" for name in names]
        return self._metastore.partitions(db, table, names)

    def few_partitions(self, db: str, table: str) -> Any:
        few = self._metastore.few_partitions(db, table)
        self.asked += sorted(f"{db}.{table}/p={each.values[0]}" for each in few or ())
        return few


def test_partitions_that_lie_by_their_names_are_asked_for_by_them(fixture: Lab, tmp_path: Path) -> None:
    for name in ("t", "u"):
        table(fixture.source, name, fixture.source.home / name, partitioned=True, external=False)
        for value in "123":
            partition(fixture.source, name, value, fixture.source.home / name / f"p={value}", {"f": value})
    bootstrap(fixture)

    def asked(place: Path) -> tuple[list[str], list[str]]:
        counting: Any = Counting(fixture.target.metastore)
        found = Neighbours(counting).others([str(place)])[str(place)]
        mine = [each for each in counting.asked if each.startswith(f"{fixture.name}.")]
        return sorted({str(each) for each in found}), mine

    t = f"{fixture.name}.t"
    assert asked(fixture.target.home / "t" / "p=1") == ([f"{t}/p=1"], [f"{t}/p=1"])
    assert asked(fixture.target.home / "t" / "p=1" / "deep") == ([f"{t}/p=1"], [f"{t}/p=1"])
    assert asked(fixture.target.home / "t" / "p=9") == ([], [f"{t}/p=9"])
    assert asked(fixture.target.home / "t" / "other") == ([], [])
    assert asked(fixture.target.home / "t") == ([t], [])
    partition(fixture.source, "t", "4", fixture.source.home / "u" / "p=1")
    catch_up(fixture)
    everything = [f"{t}/p={value}" for value in "1234"]
    both = [f"{t}/p=4", f"{fixture.name}.u/p=1"]
    assert asked(fixture.target.home / "u" / "p=1") == (both, [*everything, f"{fixture.name}.u/p=1"])


# ---- kinds and names that change in one range ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("external", "partitioned", "anew"),
    [  # each two meet; the others are `long`
        pytest.param(*each, marks=[pytest.mark.long] * (sum(each) % 2))
        for each in itertools.product([False, True], repeat=3)
    ],
)
def test_a_rename_is_replayed_with_the_kind_that_the_table_had(
    fixture: Lab, external: bool, partitioned: bool, anew: bool
) -> None:
    home = fixture.source.home
    table(fixture.source, "t", home / "t", external=external, partitioned=partitioned)
    if partitioned:
        partition(fixture.source, "t", "1", home / "t" / "p=1", {"one": "1"})
        partition(fixture.source, "t", "2", home / "t" / "p=2", {"two": "2"})
    else:
        write(home / "t", {"one": "1", "two": "2"})
    bootstrap(fixture)
    toggle(fixture.source, "t", external=not external)
    fixture.source.rename("t", "u")
    moved = "u" if external else "t"  # a server moves the directory of a managed one
    assert (home / moved).exists() != (home / ("t" if external else "u")).exists()
    toggle(fixture.source, "u", external=external)
    write(home / moved / ("p=2" if partitioned else ""), {"three": "3"})
    if anew:
        table(fixture.source, "t", home / "new" / "t", external=external, partitioned=partitioned)
        if partitioned:
            partition(fixture.source, "t", "1", home / "t" / "p=9", {"new": "new"})
        else:
            write(home / "new" / "t", {"new": "new"})
    catch_up(fixture)
    write(home / moved / ("p=1" if partitioned else ""), {"four": "4"})
    catch_up(fixture)


@pytest.mark.parametrize("external", [False, True], ids=["managed", "external"])
def test_a_partition_is_renamed_with_the_kind_that_its_table_had(fixture: Lab, external: bool) -> None:
    home = fixture.source.home
    table(fixture.source, "t", home / "t", external=external, partitioned=True)
    partition(fixture.source, "t", "1", home / "t" / "p=1", {"one": "1"})
    partition(fixture.source, "t", "2", home / "t" / "p=2", {"two": "2"})
    bootstrap(fixture)
    toggle(fixture.source, "t", external=not external)
    for value, new in (("1", "3"), ("2", "1")):
        (page,) = fixture.source.metastore.partitions(fixture.name, "t", [f"p={value}"])
        renamed = msgspec.structs.replace(page[0], values=(new,))
        fixture.source.metastore.rename_partition(fixture.name, "t", (value,), renamed)
    toggle(fixture.source, "t", external=external)
    catch_up(fixture)


# ---- two replicas on one target -----------------------------------------------------------------------------------


def replica_of(fixture: Lab, name: str) -> PlainDatabase:
    return PlainDatabase(fixture.target.metastore, name, fixture.warehouse)


def test_two_replicas_of_one_database_have_directories_of_their_own(fixture: Lab, tmp_path: Path) -> None:
    table(fixture.source, "e", tmp_path / "x", {"one": "1", "two": "2", "three": "3"})
    table(fixture.source, "days", tmp_path / "y", partitioned=True)
    partition(fixture.source, "days", "1", tmp_path / "z", {"four": "4"})
    names = [f"{fixture.name}_{end}" for end in ("ra", "rb")]
    assert fixture.dump().code == 0
    wanted = held(fixture.source.metastore, fixture.name)
    for name in names:
        loaded = fixture.load(None, "--rename-db", f"{fixture.name}={name}")
        assert (loaded.code, loaded.output["files_removed"]) == (0, 0)
    for name in names:
        assert held(fixture.target.metastore, name) == wanted
    places = [path_of(fixture.target.metastore.table(name, "e").location) for name in names]
    assert places[0] != places[1] and all(f"{name}.db" in str(place) for name, place in zip(names, places, strict=True))

    (tmp_path / "x" / "one").unlink()
    partition(fixture.source, "days", "2", tmp_path / "v", {"five": "5"})
    before, wanted_before = fixture.last, wanted
    assert fixture.dump(since=before).code == 0
    assert fixture.load(None, "--rename-db", f"{fixture.name}={names[0]}").code == 0
    assert held(fixture.target.metastore, names[0]) == held(fixture.source.metastore, fixture.name)
    assert held(fixture.target.metastore, names[1]) == wanted_before


@pytest.mark.parametrize("below", ["", "sub", ".."])
def test_a_place_that_another_table_has_is_refused(fixture: Lab, tmp_path: Path, below: str) -> None:
    table(fixture.source, "e", tmp_path / "x" / "deep", {"one": "1"})
    assert fixture.dump().code == 0
    taken = tmp_path / "mapped" / "deep" / below
    other = PlainDatabase(fixture.target.metastore, f"{fixture.name}_other", fixture.warehouse)
    other.create()
    table(other, "theirs", taken.resolve(), {"dear": "dear"})
    mapped = ("--map-location", f"{tmp_path / 'x'}={tmp_path / 'mapped'}")
    for more in (("--dry-run",), ()):
        refused = fixture.load(None, *mapped, *more)
        assert (refused.code, refused.error) == (6, "Refused")
        assert f"{other.name}.theirs" in refused.message and "deep" in refused.message
    assert walked(taken.resolve()) == walked(taken.resolve()) != {}
    assert not fixture.target.exists()
    assert fixture.load().code == 0
    again = fixture.load(None, "--rename-db", f"{fixture.name}={fixture.name}_rb", *mapped)
    assert (again.code, again.error) == (6, "Refused")


def test_a_replica_that_an_older_release_began_keeps_its_places(fixture: Lab, tmp_path: Path) -> None:
    table(fixture.source, "e", tmp_path / "x", {"one": "1"})
    table(fixture.source, "days", tmp_path / "y", partitioned=True)
    partition(fixture.source, "days", "1", tmp_path / "z", {"four": "4"})
    assert fixture.dump().code == 0
    root_id = json.loads((fixture.cmroot / "FORMAT").read_text())["id"]
    fixture.target.home.mkdir(parents=True)
    began = Database(name=fixture.name, location=f"file:{fixture.target.home}", parameters={SOURCE: root_id})
    fixture.target.metastore.create_database(began)  # as one says it that has no directory of its own
    assert fixture.load().code == 0
    shared = fixture.warehouse / "external" / str(tmp_path).lstrip("/")
    assert path_of(fixture.target.metastore.table(fixture.name, "e").location) == shared / "x"

    write(tmp_path / "z", {"five": "5"})
    fixture.source.alter_partition("days", "1", note="altered")
    partition(fixture.source, "days", "2", tmp_path / "v", {"six": "6"})
    table(fixture.source, "new", tmp_path / "w", {"seven": "7"})
    fixture.source.rename("e", "e2")
    write(tmp_path / "x", {"eight": "8"})
    catch_up(fixture)
    days = held(fixture.target.metastore, fixture.name)
    assert days["days/p=1"].keys() == {"four", "five"}
    for name, place in (("e2", "x"), ("new", "w")):
        assert path_of(fixture.target.metastore.table(fixture.name, name).location) == shared / place
    assert (shared / "z" / "five").exists() and (shared / "v" / "six").exists()


# ---- directories that removals emptied ----------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_directory_goes_with_its_last_file(fixture: Lab, partitioned: bool) -> None:
    place = fixture.source.home / "t"
    table(fixture.source, "t", place, partitioned=partitioned, external=False)
    if partitioned:
        partition(fixture.source, "t", "1", place / "p=1")
    home = place / ("p=1" if partitioned else "")
    for name, files in (("a/b", {"one": "1", "two": "2"}), ("a/c", {"three": "3"}), ("stays", {"four": "4"})):
        write(home / name, files)
    bootstrap(fixture)
    shutil.rmtree(home / "a")
    (home / "stays" / "four").unlink()
    catch_up(fixture)
    there = fixture.target.home / home.relative_to(fixture.source.home)
    assert sorted(path.name for path in there.iterdir()) == []  # nothing at all, where the source has an empty one

    (there / "left" / "over").mkdir(parents=True)  # as releases before left them
    verify = ("verify", "--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name)
    reported = command(*verify)
    assert reported.code == 4 and {each["kind"] for each in reported.output["differences"]} == {"directory extra"}
    assert {each["field"] for each in reported.output["differences"]} == {"left", "left/over"}
    repaired = command(
        "repair",
        "--source",
        fixture.source_uri,
        "--target",
        fixture.target_uri,
        "--db",
        fixture.name,
        "--cmroot",
        str(fixture.cmroot),
        "--target-cmroot",
        str(fixture.target_cmroot),
        "--engine",
        "local",
        "--warehouse",
        str(fixture.warehouse),
    )
    assert repaired.code == 0, repaired
    assert command(*verify).code == 0 and there.exists() and not (there / "left").exists()


# ---- a directory that a dropped external object left ----------------------------------------------------------------


def emptied(place: Path) -> None:
    """What its owner does before or after the drop, without an event."""
    shutil.rmtree(place)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_table_is_renamed_to_where_an_external_one_was_dropped(fixture: Lab, at_once: bool) -> None:
    db = fixture.source
    for name in ("t", "next"):
        table(db, name, db.home / name, {"one": name}, external=False)
    bootstrap(fixture)
    toggle(db, "t", external=True)
    if not at_once:
        catch_up(fixture)
    emptied(db.home / "t")
    db.metastore.drop_table(fixture.name, "t")
    if not at_once:
        catch_up(fixture)
    db.rename("next", "t")
    catch_up(fixture)
    assert [each.read_text() for each in (fixture.target.home / "t").iterdir()] == ["next"]


def test_a_partition_is_renamed_to_where_one_of_an_external_table_was_dropped(fixture: Lab) -> None:
    db = fixture.source
    table(db, "t", db.home / "t", partitioned=True, external=False)
    for value in ("1", "2"):
        partition(db, "t", value, db.home / "t" / f"p={value}", {"one": value})
    bootstrap(fixture)
    toggle(db, "t", external=True)
    db.metastore.drop_partitions(fixture.name, "t", ["p=1"])
    catch_up(fixture)
    emptied(db.home / "t" / "p=1")
    toggle(db, "t", external=False)
    (found,) = next(iter(db.metastore.partitions(db.name, "t", ["p=2"])))
    db.metastore.rename_partition(db.name, "t", ["2"], msgspec.structs.replace(found, values=("1",)))
    catch_up(fixture)
    assert [each.read_text() for each in (fixture.target.home / "t" / "p=1").iterdir()] == ["2"]
