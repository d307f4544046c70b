"""The target's own geometry: tables and partitions that share directories, or lie in each other's, are emptied by
nothing that happens to another of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plain_tables import COLUMNS, KEYS, PlainDatabase
from story import Answer, Story, command

from replicator.core.model import EXTERNAL, MANAGED, Database, Partition, Serde, Storage, Table, partition_name
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.places.neighbours import Neighbours
from replicator.replay.places.replica import SOURCE

Files = Mapping[str, str]


@pytest.fixture
def story(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Story:
    found = Story(source_metastore, target_metastore, tmp_path)
    found.source.create()
    table(found.source, "bulk", found.source.home / "bulk", {"much": "x" * 4096})  # so that little goes at once
    return found


def storage(place: Path) -> Storage:
    return Storage(
        columns=COLUMNS,
        location=f"file:{place}",
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        serde=Serde(library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
    )


def write(place: Path, files: Files) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)


def table(
    db: PlainDatabase,
    name: str,
    place: Path,
    files: Files | None = None,
    *,
    external: bool = True,
    partitioned: bool = False,
    **parameters: str,
) -> None:
    """A table at a place of the test's choice."""
    made = Table(
        db=db.name,
        name=name,
        kind=EXTERNAL if external else MANAGED,
        storage=storage(place),
        partition_keys=KEYS if partitioned else (),
        parameters={**({"EXTERNAL": "TRUE"} if external else {}), **parameters},
    )
    db.metastore.create_table(made)
    write(place, files or {})


def partition(db: PlainDatabase, name: str, value: str, place: Path, files: Files | None = None) -> None:
    write(place, files or {})
    db.metastore.add_partitions(db.name, name, [Partition(values=(value,), storage=storage(place))])


def toggle(db: PlainDatabase, name: str, *, external: bool) -> None:
    """ALTER TABLE ... SET TBLPROPERTIES ('EXTERNAL' = ...)."""
    there = db.metastore.table(db.name, name)
    parameters = {key: value for key, value in there.parameters.items() if key != "EXTERNAL"}
    parameters |= {"EXTERNAL": "TRUE"} if external else {}
    kind = EXTERNAL if external else MANAGED
    db.metastore.alter_table(db.name, name, msgspec.structs.replace(there, kind=kind, parameters=parameters))


def path_of(location: str | None) -> Path:
    return Path("/" + str(location).removeprefix("file:").lstrip("/"))


def held(metastore: ThriftMetastore, db: str) -> dict[str, Any]:
    """Every table and partition by its name, with what lies in its directory: path -> digest. Asks the metastore and
    walks directories, and knows nothing of places."""
    found: dict[str, Any] = {}
    for name in metastore.table_names(db):
        there = metastore.table(db, name)
        if not there.partition_keys:
            found[name] = (there.kind, walked(path_of(there.location)))
            continue
        found[name] = there.kind
        for page in metastore.partitions(db, name, metastore.partition_names(db, name)):
            for each in page:
                key = f"{name}/{partition_name(there.partition_keys, each.values)}"
                found[key] = walked(path_of(each.location))
    return found


def walked(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(place).parts)
    }


def bootstrap(story: Story, *options: str) -> None:
    for answer in (story.dump(), story.load(None, *options)):
        assert answer.code == 0, answer
    assert held(story.target.metastore, story.db) == held(story.source.metastore, story.db)


def catch_up(story: Story, *options: str) -> Answer:
    """The next range; both sides hold the same afterwards, however it is compared."""
    dumped = story.dump(since=story.last)
    assert dumped.code == 0, dumped
    loaded = story.load(None, *options)
    assert loaded.code == 0, loaded
    assert held(story.target.metastore, story.db) == held(story.source.metastore, story.db)
    again = story.load(None, *options)
    assert (again.code, again.said["status"]) == (0, "already loaded")
    same = command("verify", "--source", story.source_uri, "--target", story.target_uri, "--db", story.db)
    assert same.code == 0, same
    return loaded


# ---- a table made over a directory --------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("external", [True, False])
def test_a_table_made_over_a_directory_leaves_those_that_lie_in_it(
    story: Story, tmp_path: Path, partitioned: bool, external: bool
) -> None:
    x = tmp_path / "x" if external else story.source.home / "x"
    table(story.source, "e", x / "sub", {"one": "1", "two": "2"}, external=external)
    table(story.source, "days", tmp_path / "y", partitioned=True)
    partition(story.source, "days", "1", x / "p=9", {"kept": "kept"})
    bootstrap(story)
    table(story.source, "p", x, external=external, partitioned=partitioned)
    if partitioned:
        partition(story.source, "p", "1", x / "p=1", {"new": "new"})
    catch_up(story)


@pytest.mark.parametrize("external", [True, False])
def test_a_table_made_where_a_renamed_one_lies_leaves_that(story: Story, tmp_path: Path, external: bool) -> None:
    place = tmp_path / "a"
    table(story.source, "a", place, partitioned=True, external=external)
    partition(story.source, "a", "1", place / "p=1", {"old": "old"})
    partition(story.source, "a", "2", place / "p=2", {"older": "older"})
    bootstrap(story)
    story.source.rename("a", "a2")
    table(story.source, "a", place, partitioned=True, external=external)
    partition(story.source, "a", "2", place / "p=2", {"new": "new"})
    catch_up(story)


# ---- what is dropped without its data -----------------------------------------------------------------------------


@pytest.mark.parametrize("sub", ["", "sub", ".."])
def test_a_managed_table_that_goes_leaves_what_an_external_one_has_there(story: Story, sub: str) -> None:
    place = story.source.home / "above" / "shared"
    table(story.source, "m", place, {"one": "1"}, external=False)
    table(story.source, "e", place / sub if sub != ".." else place.parent, {"two": "2"})
    bootstrap(story)
    story.source.metastore.drop_table(story.db, "m")
    catch_up(story)
    write(place, {"three": "3"})
    catch_up(story)


def test_a_managed_table_that_goes_with_its_data_goes_with_it_on_the_target(story: Story) -> None:
    place = story.source.home / "m"
    table(story.source, "m", place, {"one": "1"}, external=False)
    table(story.source, "e", place / "sub", {"two": "2"})
    bootstrap(story)
    story.source.metastore.drop_table(story.db, "m")
    shutil.rmtree(place)
    (place / "sub").mkdir(parents=True)  # as its owner makes it again
    catch_up(story)
    assert not (story.target.home / "m" / "one").exists()
    assert held(story.target.metastore, story.db)["e"] == (EXTERNAL, {})


@pytest.mark.parametrize("goes", ["1", "2"])
def test_of_two_partitions_in_one_directory_one_goes(story: Story, goes: str) -> None:
    place = story.source.home / "t"
    table(story.source, "t", place, partitioned=True, external=False)
    partition(story.source, "t", "1", place / "p=1", {"one": "1"})
    partition(story.source, "t", "2", place / "p=1", {"two": "2"})
    partition(story.source, "t", "3", place / "p=3", {"three": "3"})
    bootstrap(story)
    story.source.metastore.drop_partitions(story.db, "t", [f"p={goes}", "p=3"])
    catch_up(story)
    partition(story.source, "t", goes, place / f"p={goes}")
    catch_up(story)


def test_a_partition_that_goes_leaves_what_a_partition_of_another_table_has_there(story: Story) -> None:
    place = story.source.home / "t"
    table(story.source, "t", place, partitioned=True, external=False)
    partition(story.source, "t", "1", place / "p=1", {"one": "1"})
    table(story.source, "other", story.source.home / "other", partitioned=True)
    partition(story.source, "other", "x", place / "p=1")
    bootstrap(story)
    story.source.metastore.drop_partitions(story.db, "t", ["p=1"])
    catch_up(story)
    story.source.metastore.drop_table(story.db, "t")
    catch_up(story)


def test_what_nobody_has_goes_as_ever(story: Story) -> None:
    place = story.source.home / "m"
    table(story.source, "m", place, {"one": "1"}, external=False)
    table(story.source, "e", place / "sub" / "deep", {"two": "2"})
    write(place / "sub", {"three": "3"})
    bootstrap(story)
    for path in (place / "one", place / "sub" / "three"):
        path.unlink()
    story.source.metastore.drop_table(story.db, "m")
    loaded = catch_up(story)
    assert loaded.said["files_removed"] == 2
    assert walked(story.target.home / "m") == walked(place)


class Counting:
    """A metastore, and the names of the partitions that were asked of it."""

    def __init__(self, metastore: ThriftMetastore) -> None:
        self._metastore, self.asked = metastore, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metastore, name)

    def partitions(self, db: str, table: str, names: Any) -> Any:
        self.asked += [f"{db}.{table}/{name}" for name in names]
        return self._metastore.partitions(db, table, names)


def test_partitions_that_lie_by_their_names_are_asked_for_by_them(story: Story, tmp_path: Path) -> None:
    for name in ("t", "u"):
        table(story.source, name, story.source.home / name, partitioned=True, external=False)
        for value in "123":
            partition(story.source, name, value, story.source.home / name / f"p={value}", {"f": value})
    bootstrap(story)

    def asked(place: Path) -> tuple[list[str], list[str]]:
        counting: Any = Counting(story.target.metastore)
        found = Neighbours(counting).others([str(place)])[str(place)]
        mine = [each for each in counting.asked if each.startswith(f"{story.db}.")]
        return sorted({str(each) for each in found}), mine

    t = f"{story.db}.t"
    assert asked(story.target.home / "t" / "p=1") == ([f"{t}/p=1"], [f"{t}/p=1"])
    assert asked(story.target.home / "t" / "p=1" / "deep") == ([f"{t}/p=1"], [f"{t}/p=1"])
    assert asked(story.target.home / "t" / "p=9") == ([], [f"{t}/p=9"])
    assert asked(story.target.home / "t" / "other") == ([], [])
    assert asked(story.target.home / "t") == ([t], [])
    partition(story.source, "t", "4", story.source.home / "u" / "p=1")
    catch_up(story)
    everything = [f"{t}/p={value}" for value in "1234"]
    both = [f"{t}/p=4", f"{story.db}.u/p=1"]
    assert asked(story.target.home / "u" / "p=1") == (both, [*everything, f"{story.db}.u/p=1"])


# ---- kinds and names that change in one range ---------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("anew", [False, True], ids=["", "another of the old name"])
@pytest.mark.parametrize("external", [False, True], ids=["managed", "external"])
def test_a_rename_is_replayed_with_the_kind_that_the_table_had(
    story: Story, external: bool, partitioned: bool, anew: bool
) -> None:
    home = story.source.home
    table(story.source, "t", home / "t", external=external, partitioned=partitioned)
    if partitioned:
        partition(story.source, "t", "1", home / "t" / "p=1", {"one": "1"})
        partition(story.source, "t", "2", home / "t" / "p=2", {"two": "2"})
    else:
        write(home / "t", {"one": "1", "two": "2"})
    bootstrap(story)
    toggle(story.source, "t", external=not external)
    story.source.rename("t", "u")
    moved = "u" if external else "t"  # a server moves the directory of a managed one
    assert (home / moved).exists() != (home / ("t" if external else "u")).exists()
    toggle(story.source, "u", external=external)
    write(home / moved / ("p=2" if partitioned else ""), {"three": "3"})
    if anew:
        table(story.source, "t", home / "new" / "t", external=external, partitioned=partitioned)
        if partitioned:
            partition(story.source, "t", "1", home / "t" / "p=9", {"new": "new"})
        else:
            write(home / "new" / "t", {"new": "new"})
    catch_up(story)
    write(home / moved / ("p=1" if partitioned else ""), {"four": "4"})
    catch_up(story)


@pytest.mark.parametrize("external", [False, True], ids=["managed", "external"])
def test_a_partition_is_renamed_with_the_kind_that_its_table_had(story: Story, external: bool) -> None:
    home = story.source.home
    table(story.source, "t", home / "t", external=external, partitioned=True)
    partition(story.source, "t", "1", home / "t" / "p=1", {"one": "1"})
    partition(story.source, "t", "2", home / "t" / "p=2", {"two": "2"})
    bootstrap(story)
    toggle(story.source, "t", external=not external)
    for value, new in (("1", "3"), ("2", "1")):
        (page,) = story.source.metastore.partitions(story.db, "t", [f"p={value}"])
        renamed = msgspec.structs.replace(page[0], values=(new,))
        story.source.metastore.rename_partition(story.db, "t", (value,), renamed)
    toggle(story.source, "t", external=external)
    catch_up(story)


# ---- two replicas on one target -----------------------------------------------------------------------------------


def replica_of(story: Story, name: str) -> PlainDatabase:
    return PlainDatabase(story.target.metastore, name, story.warehouse)


def test_two_replicas_of_one_database_have_directories_of_their_own(story: Story, tmp_path: Path) -> None:
    table(story.source, "e", tmp_path / "x", {"one": "1", "two": "2", "three": "3"})
    table(story.source, "days", tmp_path / "y", partitioned=True)
    partition(story.source, "days", "1", tmp_path / "z", {"four": "4"})
    names = [f"{story.db}_{end}" for end in ("ra", "rb")]
    assert story.dump().code == 0
    wanted = held(story.source.metastore, story.db)
    for name in names:
        loaded = story.load(None, "--rename-db", f"{story.db}={name}")
        assert (loaded.code, loaded.said["files_removed"]) == (0, 0)
    for name in names:
        assert held(story.target.metastore, name) == wanted
    places = [path_of(story.target.metastore.table(name, "e").location) for name in names]
    assert places[0] != places[1] and all(f"{name}.db" in str(place) for name, place in zip(names, places, strict=True))

    (tmp_path / "x" / "one").unlink()
    partition(story.source, "days", "2", tmp_path / "v", {"five": "5"})
    before, wanted_before = story.last, wanted
    assert story.dump(since=before).code == 0
    assert story.load(None, "--rename-db", f"{story.db}={names[0]}").code == 0
    assert held(story.target.metastore, names[0]) == held(story.source.metastore, story.db)
    assert held(story.target.metastore, names[1]) == wanted_before


@pytest.mark.parametrize("below", ["", "sub", ".."])
def test_a_place_that_another_table_has_is_refused(story: Story, tmp_path: Path, below: str) -> None:
    table(story.source, "e", tmp_path / "x" / "deep", {"one": "1"})
    assert story.dump().code == 0
    taken = tmp_path / "mapped" / "deep" / below
    other = PlainDatabase(story.target.metastore, f"{story.db}_other", story.warehouse)
    other.create()
    table(other, "theirs", taken.resolve(), {"dear": "dear"})
    mapped = ("--map-location", f"{tmp_path / 'x'}={tmp_path / 'mapped'}")
    for more in (("--dry-run",), ()):
        refused = story.load(None, *mapped, *more)
        assert (refused.code, refused.error) == (6, "Refused")
        assert f"{other.name}.theirs" in refused.message and "deep" in refused.message
    assert walked(taken.resolve()) == walked(taken.resolve()) != {}
    assert not story.target.exists()
    assert story.load().code == 0
    again = story.load(None, "--rename-db", f"{story.db}={story.db}_rb", *mapped)
    assert (again.code, again.error) == (6, "Refused")


def test_a_replica_that_an_older_release_began_keeps_its_places(story: Story, tmp_path: Path) -> None:
    table(story.source, "e", tmp_path / "x", {"one": "1"})
    table(story.source, "days", tmp_path / "y", partitioned=True)
    partition(story.source, "days", "1", tmp_path / "z", {"four": "4"})
    assert story.dump().code == 0
    root_id = json.loads((story.cmroot / "FORMAT").read_text())["id"]
    story.target.home.mkdir(parents=True)
    began = Database(name=story.db, location=f"file:{story.target.home}", parameters={SOURCE: root_id})
    story.target.metastore.create_database(began)  # as one says it that has no directory of its own
    assert story.load().code == 0
    shared = story.warehouse / "external" / str(tmp_path).lstrip("/")
    assert path_of(story.target.metastore.table(story.db, "e").location) == shared / "x"

    write(tmp_path / "z", {"five": "5"})
    story.source.alter_partition("days", "1", note="altered")
    partition(story.source, "days", "2", tmp_path / "v", {"six": "6"})
    table(story.source, "new", tmp_path / "w", {"seven": "7"})
    story.source.rename("e", "e2")
    write(tmp_path / "x", {"eight": "8"})
    catch_up(story)
    days = held(story.target.metastore, story.db)
    assert days["days/p=1"].keys() == {"four", "five"}
    for name, place in (("e2", "x"), ("new", "w")):
        assert path_of(story.target.metastore.table(story.db, name).location) == shared / place
    assert (shared / "z" / "five").exists() and (shared / "v" / "six").exists()


# ---- directories that removals emptied ----------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_directory_goes_with_its_last_file(story: Story, partitioned: bool) -> None:
    place = story.source.home / "t"
    table(story.source, "t", place, partitioned=partitioned, external=False)
    if partitioned:
        partition(story.source, "t", "1", place / "p=1")
    home = place / ("p=1" if partitioned else "")
    for name, files in (("a/b", {"one": "1", "two": "2"}), ("a/c", {"three": "3"}), ("stays", {"four": "4"})):
        write(home / name, files)
    bootstrap(story)
    shutil.rmtree(home / "a")
    (home / "stays" / "four").unlink()
    catch_up(story)
    there = story.target.home / home.relative_to(story.source.home)
    assert sorted(path.name for path in there.iterdir()) == []  # nothing at all, where the source has an empty one

    (there / "left" / "over").mkdir(parents=True)  # as releases before left them
    verify = ("verify", "--source", story.source_uri, "--target", story.target_uri, "--db", story.db)
    reported = command(*verify)
    assert reported.code == 4 and {each["kind"] for each in reported.said["differences"]} == {"directory extra"}
    assert {each["field"] for each in reported.said["differences"]} == {"left", "left/over"}
    repaired = command(
        "repair",
        "--source",
        story.source_uri,
        "--target",
        story.target_uri,
        "--db",
        story.db,
        "--cmroot",
        str(story.cmroot),
        "--target-cmroot",
        str(story.target_cmroot),
        "--engine",
        "local",
        "--warehouse",
        str(story.warehouse),
    )
    assert repaired.code == 0, repaired
    assert command(*verify).code == 0 and there.exists() and not (there / "left").exists()
