"""Sides: a policy with what its runs and role changes work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicator.core.policy import Policy
from replicator.core.runtime import Runtime
from replicator.metastore.client import Metastore
from replicator.policies.direction import Direction, find_direction
from replicator.policies.memory import Memory


@dataclass(frozen=True)
class Sides:
    """`source`, `target`: the metastores as the policy names them, whatever the roles say. `others`: all policies of
    the configuration, which may not overlap."""

    policy: Policy
    source: Metastore
    target: Metastore
    runtime: Runtime
    others: Sequence[Policy] = ()

    def direction(self, memory: Memory, *, reverse: bool | None = None) -> Direction:
        """As `find_direction`."""
        return find_direction(self.policy, self.source, self.target, memory.read_scope(), reverse=reverse)
