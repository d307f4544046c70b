"""Commands over a database with tables of each format: docs/formats.md, "Commands by format".

Which test runs which cell of that table: tests/format_commands.toml."""

from __future__ import annotations

from pathlib import Path

import gobblin_examples as examples
import msgspec
import pytest
from command_line import Answer, command
from format_kinds import KINDS, LINKS, Kind
from housekeeping import DROPS, EXPIRED, LifecycleFixture
from lab import Lab
from names import unique
from plain_tables import PlainDatabase, text_storage
from purges import Warehouse

from cmroot.root import create_or_open
from replicator.core.model import Column, Partition, Table
from replicator.metastore.client import Metastore
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.drill import DrillSettings, QueryEngine, drill
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings


def make(db: PlainDatabase, uri: str, *numbers: int) -> None:
    for kind in KINDS:
        kind.make(db, uri)
    write(db, uri, *numbers)


def write(db: PlainDatabase, uri: str, *numbers: int) -> None:
    for number in numbers:
        for kind in KINDS:
            kind.write(db, uri, number)


def have(db: PlainDatabase, uri: str, *numbers: int) -> None:
    """Readers of each format find these rows."""
    assert {kind.column: kind.rows(db, uri) for kind in KINDS} == {kind.column: list(numbers) for kind in KINDS}


def run(pair: Lab, *arguments: str, code: int = 0) -> Answer:
    """A command about the policy."""
    answer = command("--config", str(pair.config()), *arguments)
    assert answer.code == code, answer
    return answer


def test_runs_replicate_what_each_format_changes(pair: Lab) -> None:
    db, there = pair.db(), pair.replica()
    make(db, pair.source_uri, 1)
    assert pair.sync().status == "synced"
    for number in (2, 3):
        write(db, pair.source_uri, number)
        run = pair.sync()
        assert (run.status, run.not_replicated) == ("synced", [])
    db.home.rename(f"{db.home}-away")
    have(there, pair.target_uri, 1, 2, 3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.column)
def test_verify_finds_a_missing_file_and_repair_brings_it_back(pair: Lab, kind: Kind) -> None:
    db, there = pair.db(), pair.replica()
    make(db, pair.source_uri, 1, 2)
    assert pair.sync().status == "synced"
    assert run(pair, "verify", pair.name, "--engine", "local").output["status"] == "same"
    for path in kind.files(there):
        path.unlink()
    found = run(pair, "verify", pair.name, "--engine", "local", code=4)
    assert {each["object"] for each in found.output["differences"]} == {f"{db.name}.{kind.name}"}
    run(pair, "repair", pair.name, "--engine", "local")
    run(pair, "verify", pair.name, "--engine", "local")
    have(there, pair.target_uri, 1, 2)


def test_past_states_are_restored(fixture: Lab) -> None:
    make(fixture.source, fixture.source_uri, 1)
    positions = []
    for number in (2, 3):
        captured = fixture.capture()
        assert captured.code == 0, captured
        positions.append(captured.output["position"])
        write(fixture.source, fixture.source_uri, number)
    assert fixture.capture().code == 0
    for count, position in enumerate(positions, 1):
        into = PlainDatabase(fixture.source.metastore, f"{fixture.name}_at_{position}", fixture.source.home.parent)
        arguments = ["--cmroot", str(fixture.cmroot), "--db", fixture.name, "--to", f"@{position}", "--into", into.name]
        restored = command("restore", *arguments, "--target", fixture.source_uri, "--engine", "local")
        assert (restored.code, restored.output["not_replicated"]) == (0, []), restored
        have(into, fixture.source_uri, *range(1, count + 1))


def test_a_dump_with_data_is_all_that_a_replica_needs(fixture: Lab) -> None:
    make(fixture.source, fixture.source_uri, 1, 2)
    assert fixture.dump("--with-data").code == 0
    with fixture.without_source():
        loaded = fixture.load()
        assert loaded.code == 0, loaded.output
        have(fixture.target, fixture.target_uri, 1, 2)


def test_roles_change_and_change_back(pair: Lab) -> None:
    db, there = pair.db(), pair.replica()
    make(db, pair.source_uri, 1)
    assert pair.sync().status == "synced"
    for number, (primary, uri), (other, its) in (
        (2, (there, pair.target_uri), (db, pair.source_uri)),
        (3, (db, pair.source_uri), (there, pair.target_uri)),
    ):
        assert switchover(pair.sides(), SwitchoverSettings()).status == "done"
        write(primary, uri, number)
        run = pair.sync()
        assert (run.status, run.not_replicated) == ("synced", [])
        have(other, its, *range(1, number + 1))


def test_after_a_failover_the_old_primary_gets_what_the_new_one_wrote(pair: Lab) -> None:
    db, there = pair.db(), pair.replica()
    make(db, pair.source_uri, 1)
    assert pair.sync().status == "synced"
    run(pair, "failover", pair.name, "--force")
    write(there, pair.target_uri, 2)
    run(pair, "failback", pair.name)
    have(db, pair.source_uri, 1, 2)
    have(there, pair.target_uri, 1, 2)


# ---- drills, and commands that remove -------------------------------------------------------------------------------


def nobody(metastore: Metastore) -> QueryEngine:
    raise AssertionError("no query was to be asked")


def test_a_drill_shows_tables_over_the_replicas_files_and_names_the_others(pair: Lab) -> None:
    db, there = pair.db(), pair.replica()
    make(db, pair.source_uri, 1, 2)
    assert pair.sync().status == "synced"
    done = drill(pair.policy, pair.source.metastore, there.metastore, nobody, DrillSettings(sample=0, keep=True))
    (shadow,) = done.databases.values()
    named = {name.partition(".")[2] for name in done.skipped}
    assert named == {"ice", "seen"}
    assert set(there.metastore.table_names(shadow)) == {kind.name for kind in KINDS} - named
    for kind in KINDS:
        if kind.name not in named:
            over = PlainDatabase(there.metastore, shadow, there.home.parent)
            assert kind.rows(over, pair.target_uri) == [1, 2] and kind.place(over) == kind.place(there)


OF_FILES = [kind for kind in KINDS if kind.column != "Iceberg views"]


@pytest.mark.parametrize("kind", OF_FILES, ids=lambda kind: kind.column)
def test_housekeeping_drops_an_expired_table_with_its_own_files_or_names_it(
    metastore: ThriftMetastore, tmp_path: Path, kind: Kind
) -> None:
    life = LifecycleFixture(metastore, unique("life"), tmp_path)
    make(life.db, metastore.uri, 1, 2)
    life.db.alter(kind.name, **EXPIRED, **DROPS)
    before = [path.read_bytes() for path in (life.db.home / kind.name).rglob("*") if path.is_file()]
    found, _ = life.run(), life.run(40)
    is_named = kind.column == "Iceberg tables"
    assert (kind.name in metastore.table_names(life.db.name)) == is_named
    others = [each for each in KINDS if each is not kind and not (kind.name == "plain" and each.name == "links")]
    assert {each.name: each.rows(life.db, metastore.uri) for each in others} == {each.name: [1, 2] for each in others}
    if is_named:
        assert kind.rows(life.db, metastore.uri) == [1, 2]
        assert len(found.invalid) == 1 and f"{kind.column.partition(' ')[0]} table" in found.invalid[0], found
    else:
        left = life.db.home / kind.name
        assert not left.exists() or not [path for path in left.rglob("*") if path.is_file()]
        kept = {path.read_bytes() for path in Path(life.root.place, "files").rglob("*") if path.is_file()}
        assert before and kept.issuperset(before)


def test_retention_removes_a_symlink_tables_own_files_and_names_others(
    metastore: ThriftMetastore, tmp_path: Path
) -> None:
    db, root = PlainDatabase(metastore, unique("kept"), tmp_path / "warehouse"), create_or_open(str(tmp_path / "cm"))
    db.create()
    make(db, metastore.uri, 1, 2)
    key, day = "datepartition", "2020-01-01-00"
    storage = msgspec.structs.replace(text_storage(db.home / "dated"), input_format=LINKS)
    metastore.create_table(Table(db=db.name, name="dated", storage=storage, partition_keys=(Column(key, "string"),)))
    db.write(f"dated/{key}={day}", {"link": f"file:{db.home}/plain/part-1\n"})
    old = msgspec.structs.replace(storage, location=f"file:{db.home}/dated/{key}={day}")
    metastore.add_partitions(db.name, "dated", [Partition(values=(day,), storage=old)])
    job = tmp_path / "job.conf"
    job.write_text(f"{examples.HIVE}hive.dataset.whitelist = {db.name}.dated|seen\n")
    arguments = ["--metastore", metastore.uri, "--cmroot", root.place]
    done = command("retention", "run", str(job), *arguments, "--set", "gobblin.retention.hive.shouldDeleteData=true")
    named = sorted(each["what"] for each in done.output["failed"])
    assert (done.code, named) == (3, [f"{db.name}.seen"]), done.output
    assert (done.output["dropped"], done.output["removed"]) == (1, 1), done.output
    assert list((db.home / "dated").rglob("link")) == []
    have(db, metastore.uri, 1, 2)


def test_a_purge_names_tables_that_it_leaves(warehouse: Warehouse) -> None:
    db = PlainDatabase(warehouse.metastore, unique("purged"), Path(warehouse.running.warehouse))
    db.create()
    for kind in KINDS:
        if kind.name in ("plain", "seen", "links"):
            kind.make(db, warehouse.running.uri)
            kind.write(db, warehouse.running.uri, 1)
            db.alter(kind.name, **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    done = warehouse.purge(warehouse.root("purged"), warehouse.ids, f"{db.name}.*")
    reasons = {each["table"].partition(".")[2]: each["reason"] for each in done.gaps}
    assert reasons.keys() == {"links", "seen"}, reasons
    assert "erase them there" in reasons["links"] and "no data of its own" in reasons["seen"]
    assert (db.home / "links/link-1").read_text() == f"file:{db.home}/plain/part-1\n"


def test_housekeeping_names_hudi_tables_with_partitions_and_keeps_a_directory_of_two(
    metastore: ThriftMetastore, tmp_path: Path
) -> None:
    """`t` and `t_ro` share one: it goes with the last of them."""
    life = LifecycleFixture(metastore, unique("life"), tmp_path)
    (kind,) = (each for each in KINDS if each.column == "Hudi")
    kind.make(life.db, metastore.uri)
    kind.write(life.db, metastore.uri, 1)
    for name, keys in (("hudi_ro", ()), ("parted", (Column("d", "string"),))):
        table = msgspec.structs.replace(life.live("hudi"), name=name, partition_keys=keys)
        metastore.create_table(table)
    for name in ("hudi", "parted"):
        life.db.alter(name, **EXPIRED, **DROPS)
    found, _ = life.run(), life.run(40)
    assert len(found.invalid) == 1 and "time to live of partitions" in found.invalid[0], found
    assert metastore.table_names(life.db.name) == ["hudi", "hudi_ro", "parted"]
    assert kind.rows(life.db, metastore.uri) == [1]
