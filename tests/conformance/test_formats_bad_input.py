"""Odd ways to replicate Iceberg and transactional tables: two policies for one table, and replicas at the source's own
paths, on another store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from acid_tables import AcidLab, acid_sides
from command_line import command
from engines import local_runtime
from hive_sql import HiveSql
from iceberg_tables import (
    aged,
    catalog,
    data_file,
    delete_rows,
    expire,
    make,
    replica,
    replicated,
    rows,
    shown,
    states,
    verified,
)
from lab import Lab
from pool import Pool

from cmroot.store import iceberg
from replicator.core.connections import MetastoreConfig
from replicator.core.formats import iceberg_tree
from replicator.core.policy import parse_policy
from replicator.errors import ConfigError, Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.direction import Sides
from replicator.policies.run import SyncRun, sync_once
from replicator.policies.steps import SyncSettings

AS_THEY_ARE = ("--formats", "as-they-are")
AcidSides = tuple[Running, Running, HiveSql, HiveSql]


@pytest.fixture(scope="module")
def sides(pool: Pool) -> Iterator[AcidSides]:
    with acid_sides(pool) as found:
        yield found


@pytest.fixture
def acid(sides: AcidSides, tmp_path: Path) -> AcidLab:
    """A policy whose database has a transactional table `t`, an Iceberg table `i` and a plain one `p`."""
    made = AcidLab(*sides, tmp_path).of_policy()
    with_tables(made, "a")
    return made


def with_tables(lab: AcidLab, db: str | None = None) -> None:
    lab.make()
    lab.insert(1, 2)
    make(lab, "i", db=db).append(rows(1, 2))
    (lab.db(db) if db else lab.source).table("p", {"f": "1"})


# ---- two policies of one table --------------------------------------------------------------------------------------


class Other:
    """Another policy that replicates a lab's tables. reads: Hive on its target."""

    def __init__(self, lab: AcidLab, name: str, reads: HiveSql, **keys: object) -> None:
        self.policy = parse_policy(f"{lab.name}-{name}", {**lab.keys, **keys}, MetastoreConfig)
        self._lab, self._reads = lab, reads
        self.replica = self.policy.target_name(lab.side)
        self.target = connect(self.policy.target)

    def sync(self, others: Sequence[Other] = ()) -> SyncRun:
        each = Sides(self.policy, self._lab.source.metastore, self.target, local_runtime())
        return sync_once(replace(each, others=[other.policy for other in others]), SyncSettings())

    def shows(self) -> tuple[list[list[str]], list[int]]:
        """The rows of the transactional table with their ids, and those of the Iceberg table."""
        iceberg = catalog(self.policy.target).load_table(f"{self.replica}.i")
        return self._reads(f"select row__id, * from {self.replica}.t"), shown(iceberg)

    def verified(self) -> int:
        sides = ["--source", self._lab.source_uri, "--target", self.policy.target, "--db", self._lab.side]
        renamed = ["--rename-db", f"{self._lab.side}={self.replica}"] if self.replica != self._lab.side else []
        return command("verify", *sides, *renamed, "--engine", "local").code


def of_source(lab: AcidLab) -> tuple[list[list[str]], list[int]]:
    return lab.rows(), shown(catalog(lab.source_uri).load_table(f"{lab.side}.i"))


def test_policies_of_one_table_have_replicas_of_their_own(
    acid: AcidLab, sides: AcidSides, hives: Callable[..., Running]
) -> None:
    """Two of one root, with two names on one server, and one of another root and server. A run of one does not take
    from the others what the source has removed."""
    third = hives("3.1", "middle")
    east = acid.here / "east"
    with HiveSql(third.uri, Path(third.warehouse)) as there:
        west = Other(acid, "west", sides[3])
        copy = Other(acid, "copy", sides[3], rename_db={acid.side: f"copy_of_{acid.side}"})
        keys = {
            "cmroot": acid.here / "root",
            "target_cmroot": east / "root",
            "warehouse": east,
            "dumps": acid.here / "d",
        }
        away = Other(acid, "away", there, target=third.uri, **{key: str(place) for key, place in keys.items()})
        all_ = (west, copy, away)
        for each in all_:
            assert each.sync(all_).status == "synced"
            assert each.shows() == of_source(acid)
        before = of_source(acid)
        acid.run("delete from {db}.t where id = 1")
        acid.rolled_back("insert into {db}.t values (90, 'aborted')")
        acid.insert(3)
        acid.compact("major")
        table = catalog(acid.source_uri).load_table(f"{acid.side}.i")
        table.overwrite(rows(3))
        expire(table.refresh())
        assert west.sync(all_).status == "synced"
        now = of_source(acid)
        assert [each.shows() for each in all_] == [now, before, before]
        acid.insert(4)
        for each in (away, copy, west):
            assert each.sync(all_).status == "synced"
            assert (each.shows(), each.verified()) == (of_source(acid), 0)
        now = of_source(acid)
        acid.run("drop table {db}.t")
        catalog(acid.source_uri).drop_table(f"{acid.side}.i")
        for number, each in enumerate(all_):
            assert each.sync(all_).status == "synced"
            assert each.target.table_names(each.replica) == ["p"]
            assert [other.shows() for other in all_[number + 1 :]] == [now] * (2 - number)


@contextmanager
def unchanged(lab: AcidLab) -> Iterator[None]:
    """Nothing of the replica changes."""
    before = lab.replica("a").everything()
    yield
    assert lab.replica("a").everything() == before


def test_a_second_policy_for_one_replica_is_refused_and_changes_nothing(acid: AcidLab, sides: AcidSides) -> None:
    first = Other(acid, "first", sides[3])
    rival = Other(acid, "rival", sides[3], cmroot=str(acid.here / "root"), dumps=str(acid.here / "rivals"))
    assert first.sync().status == "synced"
    acid.insert(3)
    catalog(acid.source_uri).load_table(f"{acid.side}.i").append(rows(3))
    with unchanged(acid):
        for each, other in ((rival, first), (first, rival)):
            with pytest.raises(ConfigError, match=first.policy.name):
                each.sync([other])
        with pytest.raises(Refused, match="replicates another source"):  # of another configuration
            rival.sync()
    assert first.sync().status == "synced"
    assert (first.shows(), first.verified()) == (of_source(acid), 0)


def test_policies_of_two_configurations_with_one_root_continue_each_others_work(
    acid: AcidLab, sides: AcidSides
) -> None:
    """Neither knows the other, and both write the same replica. Another root takes it over on request only."""
    one, twin = (Other(acid, name, sides[3]) for name in ("one", "twin"))
    for number, each in enumerate((one, twin, one), 3):
        acid.insert(number)
        catalog(acid.source_uri).load_table(f"{acid.side}.i").append(rows(number))
        assert each.sync().status == "synced"
        assert each.shows() == of_source(acid)
    acid.run("delete from {db}.t where id < 4")
    acid.compact("major")
    expire(catalog(acid.source_uri).load_table(f"{acid.side}.i"))
    out = str(acid.here / "out")
    places = ("--target-cmroot", str(acid.target_cmroot), "--warehouse", str(acid.warehouse), "--engine", "local")
    given = ("--source", acid.source_uri, "--cmroot", str(acid.here / "root"), "--db", acid.side, "--out", out)
    assert command("dump", *given, "--engine", "local").code == 0
    loaded = command("load", out, "--target", acid.target_uri, *places)
    assert (loaded.code, loaded.error) == (6, "Refused"), loaded
    loaded = command("load", out, "--target", acid.target_uri, *places, "--overwrite")
    assert loaded.code == 0, loaded
    assert (one.shows(), one.verified()) == (of_source(acid), 0)
    with unchanged(acid), pytest.raises(Refused, match="replicates another source"):
        one.sync()


# ---- paths of the source --------------------------------------------------------------------------------------------


def test_a_load_at_the_sources_own_paths_is_refused_also_by_a_link(fixture: Lab) -> None:
    """For tables of any format: a load would replace the source's metadata files by translated ones."""
    make(fixture).append(rows(1, 2))
    fixture.source.table("p", {"f": "1"})
    assert fixture.dump("--with-data").code == 0
    link, before = fixture.here / "link", fixture.source.everything()
    link.symlink_to(fixture.source.home.parent)
    options = [("--target-cmroot", str(fixture.here / "root"), *more) for more in ((), ("--overwrite",), AS_THEY_ARE)]
    for warehouse in (fixture.source.home.parent, link):
        fixture.warehouse = warehouse
        for each in options:
            refused = fixture.load(None, *each)
            assert (refused.code, refused.error) == (6, "Refused") and "the source's own location" in refused.message
            assert not fixture.target.exists()
    own = msgspec.structs.replace(
        fixture.source.metastore.database(fixture.name), location=f"file:{link}/{fixture.name}.db"
    )
    fixture.target.metastore.create_database(own)
    for each in options:
        refused = fixture.load(None, *each)
        assert (refused.code, refused.error) == (6, "Refused") and "it is the source" in refused.message
    assert fixture.source.everything() == before


def test_a_lost_site_is_restored_at_its_own_paths(acid: AcidLab) -> None:
    """Metadata files name the same paths as before, so they remain as they were; the files are copies."""
    acid.run("delete from {db}.t where id = 1")
    acid.rolled_back("insert into {db}.t values (90, 'aborted')")
    acid.insert(3)
    table = catalog(acid.source_uri).load_table(f"{acid.side}.i")
    first = data_file(table)
    table.append(rows(3))
    delete_rows(table, first, [0])
    places = ("--cmroot", str(acid.cmroot), "--db", acid.side)
    captured = command("capture", "--source", acid.source_uri, *places, "--engine", "local")
    assert captured.code == 0, captured
    wanted, event = (acid.rows(), states(table.refresh())), captured.output["through_event"]
    home = acid.db("a").home
    before = {path: path.read_bytes() for path in home.glob("i/**/*") if path.is_file()}
    os.rename(home, f"{home}-away")
    into = ("--into", acid.side, "--target", acid.target_uri, "--warehouse", str(home.parent))
    restored = command("restore", *places, "--to", str(event), *into, "--engine", "local")
    assert restored.code == 0, restored
    own = catalog(acid.target_uri).load_table(f"{acid.side}.i")
    assert (acid.shown(), states(own)) == wanted
    assert {path: path.read_bytes() for path in home.glob("i/**/*") if path.is_file()} == before
    assert {path.stat().st_nlink for path in home.rglob("*") if path.is_file()} == {1}
    acid.run_there("insert into {db}.t values (4, 'of the new site')")
    own.append(rows(4))
    assert (acid.ids(), shown(own)) == ([2, 3, 4], [2, 3, 4])


# ---- lost files -----------------------------------------------------------------------------------------------------


@contextmanager
def lost(path: Path) -> Iterator[None]:
    """The bytes of a file are nowhere: the file in `$cmroot` is the same one."""
    content, mode = path.read_bytes(), path.stat().st_mode
    path.chmod(0o644)
    path.write_bytes(b"X" * len(content))
    try:
        yield
    finally:
        path.write_bytes(content)
        path.chmod(mode)


def test_a_lost_file_of_any_format_ends_a_load_before_readers_see_anything(sides: AcidSides, tmp_path: Path) -> None:
    """As it does for plain tables: the next load brings all of them."""
    lab = AcidLab(*sides, tmp_path)
    lab.source.create()
    with_tables(lab)
    lab.replicate()
    home = lab.source.home
    writes: dict[str, Callable[[], object]] = {
        "p/g": lambda: lab.source.write("p", {"g": "3"}),
        "i/data/*.parquet": lambda: catalog(lab.source_uri).load_table(f"{lab.name}.i").append(rows(3)),
        "i/metadata/*-m0.avro": lambda: catalog(lab.source_uri).load_table(f"{lab.name}.i").append(rows(4)),
        "t/delta_*/bucket_*": lambda: lab.insert(3),
    }
    for pattern, write in writes.items():
        known, before = set(home.glob(pattern)), lab.target.everything()["tables"]
        write()
        assert lab.dump(since=lab.last).code == 0
        (file,) = set(home.glob(pattern)) - known
        with lost(file):
            loaded = lab.load()
            assert (loaded.code, loaded.error) == (1, "FilesMissing") and file.name in loaded.message, loaded
            assert lab.target.everything()["tables"] == before
        if pattern.startswith("t"):
            assert lab.ids() == [1, 2]
        assert lab.load().code == 0
    lab.is_equal()
    assert (lab.ids(), shown(replica(lab, "i"))) == ([1, 2, 3], [1, 2, 3, 4])


def test_a_data_file_deleted_by_hand_stays_on_the_replica_and_other_tables_go_on(fixture: Lab) -> None:
    table, other = make(fixture), make(fixture, "other")
    for each in (table, other):
        each.append(rows(1))
        each.append(rows(2))
    replicated(fixture)
    file = Path(urlsplit(data_file(table)).path)
    file.unlink()
    other.append(rows(3))
    replicated(fixture)
    assert (shown(replica(fixture)), shown(replica(fixture, "other"))) == ([1, 2], [1, 2, 3])
    found = verified(fixture)
    (extra,) = found.output["differences"]
    assert (found.code, extra["kind"], extra["field"]) == (4, "file extra", f"data/{file.name}"), found


def test_a_drill_names_tables_of_other_formats_and_shows_the_rest(acid: AcidLab) -> None:
    assert acid.sync().status == "synced"
    before = acid.replica("a").everything()
    done = command("--config", str(acid.config()), "drill", acid.policy.name, "--sample", "0")
    skipped = {name.rpartition(".")[2]: why for name, why in done.output["skipped"].items()}
    assert (done.code, done.output["tables"], sorted(skipped)) == (3, 1, ["i", "t"]), done
    assert "a transactional table" in skipped["t"] and "an Iceberg table" in skipped["i"]
    assert acid.replica("a").everything() == before


# ---- age ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshots", [100, 100_000])
def test_a_commit_of_an_old_table_costs_what_is_new(
    fixture: Lab, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with many snapshots is replicated and compared; of a further one only new files are read."""
    table = make(fixture)
    for each in (rows(1, 2), rows(3)):
        table.append(each)
    aged(fixture, snapshots)
    replicated(fixture)
    aged(fixture, 1, like=0)
    read, translated = list[str](), list[str]()
    examine, translate = iceberg_tree.examine, iceberg.translated

    def counted(path: str, *about: Any) -> str:
        read.append(path)
        return examine(path, *about)

    def noted(path: str, *about: Any) -> bytes:
        translated.append(path)
        return translate(path, *about)

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_tree, "examine", counted)
        patch.setattr(iceberg, "translated", noted)
        replicated(fixture)
    assert sorted(path.rpartition(".")[2] for path in translated) == ["avro", "json"]
    assert sorted(path.rpartition(".")[2] for path in read) == ["avro", "json"]  # the new list and metadata file
    assert shown(replica(fixture)) == [1, 2]
    assert verified(fixture).code == 0
