"""Renames of Spark's own kinds of tables: their serde parameter `path` says where they lie. A 2.3 server moves the
directory of a managed one and leaves `path` as it is; Spark writes the new one in the same call."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from faults import Fault, run_with
from lab import Lab
from placed_tables import bootstrap, catch_up, held, partition, write
from plain_tables import KEYS, PlainDatabase, text_storage

from replicator.core.model import Storage, Table


def at(storage: Storage, place: Path) -> Storage:
    """A storage as Spark has it: `path` names the place, too."""
    serde = msgspec.structs.replace(storage.serde, parameters={"path": f"file:{place}"})
    return msgspec.structs.replace(storage, serde=serde)


def make(db: PlainDatabase, name: str, *, partitioned: bool) -> None:
    """A table of two files, which say whose they are."""
    place = db.home / name
    db.metastore.create_table(
        Table(
            db=db.name,
            name=name,
            storage=at(text_storage(place), place),
            partition_keys=KEYS if partitioned else (),
            parameters={"spark.sql.sources.provider": "parquet"},
        )
    )
    if partitioned:
        for value in "12":
            partition(db, name, value, place / f"p={value}", {"f": f"{name} {value}"})
    else:
        write(place, {"1": f"{name} 1", "2": f"{name} 2"})


def rename(db: PlainDatabase, old: str, new: str) -> None:
    """As Spark does."""
    there = db.metastore.table(db.name, old)
    assert there.storage
    named = msgspec.structs.replace(there, name=new, storage=at(there.storage, db.home / new))
    db.metastore.alter_table(db.name, old, named)
    assert (db.home / new).exists() and not (db.home / old).exists()


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_renamed_table_keeps_what_the_server_has_moved(fixture: Lab, partitioned: bool) -> None:
    make(fixture.source, "t", partitioned=partitioned)
    bootstrap(fixture)
    rename(fixture.source, "t", "u")
    write(fixture.source.home / "u" / ("p=1" if partitioned else ""), {"new": "of u"})
    catch_up(fixture)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_table_that_gets_the_name_of_a_renamed_one_keeps_what_is_its_own(fixture: Lab, partitioned: bool) -> None:
    for name in ("t", "s"):
        make(fixture.source, name, partitioned=partitioned)
    bootstrap(fixture)
    rename(fixture.source, "t", "u")
    rename(fixture.source, "s", "t")
    write(fixture.source.home / "u" / ("p=1" if partitioned else ""), {"new": "of u"})
    catch_up(fixture)


@pytest.mark.parametrize("stale", [False, True], ids=["", "of an earlier release"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_load_that_was_killed_after_a_rename_keeps_what_the_server_has_moved(
    fixture: Lab, partitioned: bool, stale: bool
) -> None:
    """An earlier release left `path` where the directory was before."""
    make(fixture.source, "t", partitioned=partitioned)
    bootstrap(fixture)
    rename(fixture.source, "t", "u")
    write(fixture.source.home / "u" / ("p=1" if partitioned else ""), {"new": "of u"})
    assert fixture.dump(since=fixture.last).code == 0
    fault = Fault("after", "thrift", rf"alter table {fixture.name}\.t$")
    assert run_with(fault, fixture.load_arguments(fixture.last)).killed
    renamed = fixture.target.metastore.table(fixture.name, "u")
    assert renamed.storage and (fixture.target.home / "u").exists()
    if stale:
        named = msgspec.structs.replace(renamed, storage=at(renamed.storage, fixture.target.home / "t"))
        fixture.target.metastore.alter_table(fixture.name, "u", named)
    assert fixture.load().code == 0
    assert held(fixture.target.metastore, fixture.name) == held(fixture.source.metastore, fixture.name)
    fixture.roots_are_in_order()
