"""External tables of which only the metadata is replicated: their data is the source's, and nothing touches it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from engines import local_runtime
from lab import Lab
from plain_tables import KEYS

from cmroot.root import open_existing
from replicator.compare.both_sides import Comparison
from replicator.compare.repair import RepairSettings, repair
from replicator.compare.verify import Verified, verify
from replicator.core.model import EXTERNAL, MANAGED, Partition, Storage, Table


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.keys |= {"external": "metadata"}
    pair.db("a").table("managed", {"own": "own"})
    make_external(pair, "landing", {"first": "1"})
    return pair


def make_external(pair: Lab, name: str, files: dict[str, str], **parameters: str) -> Path:
    """An external table outside of its database's directory; returns where."""
    place = pair.here / "lake" / name
    a = pair.db("a")
    a.table(name, kind=EXTERNAL)
    a.alter(name, **parameters)
    move(pair, name, place)
    a.write(str(place), files)
    return place


def move(pair: Lab, name: str, place: Path) -> None:
    a = pair.db("a")
    table = a.metastore.table(a.name, name)
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{place}")
    a.metastore.alter_table(a.name, name, msgspec.structs.replace(table, storage=storage))


def replica(pair: Lab, name: str) -> Table:
    return pair.target.metastore.table(pair.replica("a").name, name)


def compared(pair: Lab) -> Verified:
    return verify(Comparison(pair.source.metastore, pair.target.metastore), [pair.db("a").name], local_runtime())


def everything(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_metadata_comes_the_data_stays_and_no_drop_takes_it(pair: Lab) -> None:
    lake = pair.here / "lake"
    place = make_external(pair, "purged", {"dear": "dear"}, **{"external.table.purge": "true"})
    run = pair.sync()
    assert run.files_copied == 1  # of the managed table
    for name in ("landing", "purged"):
        assert replica(pair, name).location == pair.source.metastore.table(pair.db("a").name, name).location
    assert replica(pair, "purged").parameters["external.table.purge"] == "false"
    assert not replica(pair, "purged").owns_data
    assert (compared(pair).status, compared(pair).files) == ("same", 1)

    a, before = pair.db("a"), everything(lake)
    a.alter("landing", note="changed")
    a.rename("purged", "renamed")
    a.write(str(lake / "landing"), {"second": "2"})
    assert pair.sync().files_copied == 0
    assert compared(pair).status == "same" and replica(pair, "renamed").location == f"file:{place}"
    pair.replica("a").alter("landing", note="by hand")
    assert [each.kind for each in compared(pair).differences] == ["property"]

    a.metastore.drop_table(a.name, "renamed")
    a.metastore.drop_table(a.name, "landing")
    pair.sync()
    assert pair.target.metastore.table_names(a.name) == ["managed"]
    assert everything(lake) == before | {"landing/second": "2"}


def test_partitions_stay_where_they_are_whatever_happens_to_them(pair: Lab) -> None:
    a, lake = pair.db("a"), pair.here / "lake"
    a.table("days", kind=EXTERNAL, partition_keys=KEYS)
    a.alter("days", **{"external.table.purge": "true"})
    for value, place in {"1": lake / "one", "2": a.home / "days" / "p=2", "3": lake / "three"}.items():
        a.write(str(place), {"f": value})
        table = a.metastore.table(a.name, "days")
        assert table.storage
        storage: Storage = msgspec.structs.replace(table.storage, location=f"file:{place}")
        a.metastore.add_partitions(a.name, "days", [Partition(values=(value,), storage=storage)])
    pair.sync()
    here, there = everything(lake), everything(a.home)
    assert compared(pair).status == "same"
    (found,) = pair.target.metastore.partitions(a.name, "days", ["p=1"])
    assert found[0].location == f"file:{lake}/one"
    a.metastore.drop_partitions(a.name, "days", ["p=1", "p=2"])
    (found,) = a.metastore.partitions(a.name, "days", ["p=3"])
    again = msgspec.structs.replace(found[0], values=("2",))
    a.metastore.add_partitions(a.name, "days", [again])
    pair.sync()
    assert pair.target.metastore.partition_names(a.name, "days") == ["p=2", "p=3"]
    pair.keys["exclude"] = "days"
    assert pair.sync(drop_left=True).dropped == [f"{a.name}.days"]
    assert (everything(lake), everything(a.home)) == (here, there)


def test_a_table_that_becomes_external_or_managed_changes_whose_its_data_is(pair: Lab) -> None:
    pair.sync()
    a = pair.db("a")

    def become(name: str, kind: str) -> None:
        table = a.metastore.table(a.name, name)
        parameters = {**table.parameters, "EXTERNAL": "TRUE" if kind == EXTERNAL else "FALSE"}
        a.metastore.alter_table(a.name, name, msgspec.structs.replace(table, kind=kind, parameters=parameters))

    become("managed", EXTERNAL)
    become("landing", MANAGED)
    run = pair.sync()
    assert run.kind == "bootstrap" and any("'s from now on" in text for text in run.warnings)
    assert replica(pair, "managed").location == f"file:{a.home}/managed"
    landing = Path(str(replica(pair, "landing").location).removeprefix("file:"))
    assert landing.is_relative_to(pair.here / "target") and everything(landing) == {"first": "1"}
    assert compared(pair).status == "same"
    assert everything(a.home / "managed") == {"own": "own"}
    a.drop("landing")
    pair.sync()
    assert not landing.exists()


def test_an_edited_policy_copies_the_data_and_leaves_it_again(pair: Lab) -> None:
    pair.sync()
    pair.keys["external"] = "mirror"
    run = pair.sync()
    assert run.bootstrapped and run.files_copied == 1
    place = Path(str(replica(pair, "landing").location).removeprefix("file:"))
    assert place.is_relative_to(pair.here / "target") and everything(place) == {"first": "1"}
    pair.keys["external"] = "metadata"
    pair.sync()
    assert replica(pair, "landing").location == f"file:{pair.here}/lake/landing"
    assert compared(pair).status == "same"


def test_a_repair_and_a_turned_policy_leave_the_data_where_it_is(pair: Lab) -> None:
    pair.sync()
    a = pair.db("a")
    pair.replica("a").alter("landing", note="by hand")
    before = everything(pair.here / "lake")
    options = RepairSettings(a.name, cmroot=pair.keys["target_cmroot"])

    root, both = open_existing(pair.keys["cmroot"]), Comparison(pair.source.metastore, pair.target.metastore)
    done = repair(root, both, pair.target.metastore, options, local_runtime())
    assert (done.status, done.files_copied) == ("repaired", 0)
    pair.turn()
    pair.replica("a").alter("landing", note="by the new primary")
    run = pair.sync()
    assert run.reverse and run.files_copied == 0
    table = pair.source.metastore.table(a.name, "landing")
    assert table.location == f"file:{pair.here}/lake/landing" and table.parameters["note"] == "by the new primary"
    assert everything(pair.here / "lake") == before
