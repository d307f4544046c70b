"""Replay: a dump's plan with all that its copying, pruning and weighing work on."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.runtime import Runtime
from replicator.dumps.reader import DumpReader
from replicator.metastore.client import Metastore
from replicator.replay.copy.copying import Roots
from replicator.replay.places.neighbours import Neighbours
from replicator.replay.plan.plan import Plan


@dataclass(frozen=True)
class Replay:
    """`neighbours`: who else lies where, read once for all steps."""

    plan: Plan
    reader: DumpReader
    target: Metastore
    roots: Roots
    runtime: Runtime
    neighbours: Neighbours

    @property
    def parts(self) -> list[str]:
        """Places of the dump's file entries."""
        return [place for place, _ in self.reader.buckets()]
