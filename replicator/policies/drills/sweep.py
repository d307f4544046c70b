"""Sweeping: shadows that a drill left, because it was killed or told to keep them, are taken down by their stamp."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cmroot.root import create_or_open
from cmroot.store.emptied import remove_if_empty
from replicator.core.model import Database
from replicator.core.policy import Policy
from replicator.core.report import Report
from replicator.core.shadow import OF_POLICY, is_shadow
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import Metastore
from replicator.policies.drills.build import tear_down
from replicator.policies.drills.drill_record import Drill, Drills
from replicator.policies.memory import Memory

EVERY_NAME = ""  # a prefix that every database has


@dataclass
class ShadowsSwept(Report):
    """`dropped`: shadow databases that went; `staying`: what keeps others there, as no drill made it."""

    policy: str
    status: str = "clean"
    dropped: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def clean(policy: Policy, source: Metastore, target: Metastore, *, jobs: int = 4) -> ShadowsSwept:
    """Takes down whatever drills of the policy left on either side, whatever it is called. Safe to run twice. Raises
    LeaseHeld while one is at work."""
    drills = Drills(Memory(create_or_open(policy.target_cmroot), policy.name))
    with drills.lease():
        found = sweep(policy, target, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        try:
            other = sweep(policy, source, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        except MetastoreError as error:
            found.warnings.append(f"only the target's side was looked at: {error}")
            return found
    found.dropped += other.dropped
    found.staying += other.staying
    found.status = "staying" if found.staying else "clean"
    return found


def sweep(
    policy: Policy,
    metastore: Metastore,
    drills: Drills,
    *,
    prefixes: Sequence[str],
    jobs: int,
    now: Callable[[], float],
) -> ShadowsSwept:
    """One side: shadows that records tell of, and those whose names have one of the prefixes. Who calls holds the lease
    of the drills, so none of them is in use. Safe to run twice."""
    swept = ShadowsSwept(policy.name)
    unfinished = [drill for drill in drills.unfinished() if drill.metastore == metastore.uri]
    recorded = {shadow: drill for drill in unfinished for shadow in drill.databases.values()}
    there = metastore.database_names()
    for name in [name for name in there if name in recorded or name.startswith(tuple(prefixes))]:
        database = _find(metastore, name)
        if database is None or not is_shadow(database) or database.parameters.get(OF_POLICY) != policy.name:
            continue
        staying = tear_down(metastore, name, database.location or "", jobs=jobs)
        swept.staying += staying
        swept.dropped += [] if staying else [name]
    for drill in unfinished:
        _close(drill, drills, swept, now)
    swept.warnings += [f"{name} stays: no drill made it" for name in swept.staying]
    swept.status = "staying" if swept.staying else "clean"
    return swept


def _close(drill: Drill, drills: Drills, swept: ShadowsSwept, now: Callable[[], float]) -> None:
    """A directory may be there without its database, where the drill was killed between the two."""
    if any(name.partition(".")[0] in drill.databases.values() for name in swept.staying):
        return
    for home in drill.homes.values():
        remove_if_empty(home)
    drills.close(drill, now=now)


def _find(metastore: Metastore, name: str) -> Database | None:
    try:
        return metastore.database(name)
    except ObjectNotFound:
        return None
