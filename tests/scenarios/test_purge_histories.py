"""Worlds of chance, purged, replicated and certified: by two readers that know nothing of each other the rows that stay
are the same, no disk has a row that went, and what could not be searched is named.

The same seed makes the same world: PURGE_SEED=7 PURGE_HISTORIES=50 makes others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from lab import Lab
from purge_readers import texts_of
from purge_worlds import MARK, World, person_of
from purges import Warehouse

from cmroot.root import ChangeRoot, create_or_open
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.certify import Replica
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

HISTORIES = int(os.environ.get("PURGE_HISTORIES", "1"))
SEED = int(os.environ.get("PURGE_SEED", "1"))
TABLES = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_what_stays_is_as_it_was_and_what_went_is_nowhere(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path, seed: int
) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    world = World(warehouse, tmp_path / "source", f"{replication.name}_w", seed, TABLES)
    about = "\n".join(world.done)
    replicas = [replication] if seed % 3 else []
    root = create_or_open(str(tmp_path / "cmroot"))
    for each in replicas:
        each.sync()
    spark, files, gaps = world.by_spark(), world.by_files(), world.unread()
    in_files = {mark for rows in files.values() for row in rows for mark in MARK.findall(row)}
    assert world.going and {mark for mark in in_files if person_of(mark) in world.gone} <= (
        world.going | set(world.unsearched)
    ), about
    assert set().union(*held(world, tmp_path).values()) == world.going | set(world.unsearched), about

    done = warehouse.purge(root, world.ids, world.db)

    assert done.status == "done", f"{[(each.table, each.error, each.units) for each in done.tables]}\n{about}"
    assert {gap["table"] for gap in done.gaps} == gaps, f"{done.gaps}\n{about}"
    for found, before in ((world.by_files(), files), (world.by_spark(), spark)):
        differ = {name: changed(world, rows, found[name]) for name, rows in before.items()}
        differ = {name: what for name, what in differ.items() if any(what)}
        assert not differ, f"{differ}\n{about}"
    certified = certificate(world, root, replicas)
    gaps = world.unread()
    about = f"{certified.holding} {certified.gaps}\n{about}"
    assert certified.status == ("gaps" if gaps else "certified"), about
    assert {gap["table"] for gap in certified.gaps} == gaps, about
    for path, marks in held(world, tmp_path).items():
        reported = [mark for mark in marks if f"{world.db}.{world.unsearched.get(mark)}" not in gaps]
        assert not reported, f"{path} {reported}\n{about}"


def changed(world: World, before: Counter[str], after: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    """Rows that were lost, and that came or were to go."""
    staying = Counter({row: count for row, count in before.items() if world.stays(row)})
    return staying - after, after - staying


def held(world: World, place: Path) -> dict[Path, set[str]]:
    """Marks of rows that are to go, and of unsearched ones, by each file of any table, root or none."""
    sought, found = world.going | set(world.unsearched), {}
    for path in (path for path in place.rglob("*") if path.is_file()):
        if marks := sought.intersection(mark for text in texts_of(path) for mark in MARK.findall(text)):
            found[path] = marks
    return found


def certificate(world: World, root: ChangeRoot, replications: Sequence[Lab]) -> Certificate:
    """After as many turns as it takes."""
    policies = [each.policy for each in replications]
    replicas = [
        Replica(policy.name, connect(policy.target), policy.target_cmroot, policy.target_name, lambda *_: True)
        for policy in policies
    ]
    asked = PurgeOptions(world.ids, world.db, "privacy.column")
    for _ in range(4):
        for each in replications:
            each.sync()
        found = world.warehouse.certify(root, asked, *replicas, expedited=True)
        if found.status != "remaining":
            break
    return found
