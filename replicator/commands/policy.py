"""What commands of a policy open: its metastores, as it names them, and engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cmroot.store.local import FLOW
from replicator.commands.base import Options
from replicator.core.runtime import JOBS
from replicator.policies.direction import Sides


@contextmanager
def opened(options: Options, name: str, jobs: int = JOBS) -> Iterator[Sides]:
    """A policy with its metastores and engines, open for the length of a block. The engine is the policy's, unless the
    caller gives one. Raises UsageError where there is no such policy."""
    settings = options.settings
    policy = settings.policy(name)
    with (
        options.connected(policy.source_metastore) as source,
        options.connected(policy.target_metastore) as target,
        options.runtime(jobs) as runtime,
        FLOW.limited(options.rate or policy.bandwidth),
    ):
        chosen = replace(runtime, engines=runtime.engines.preferring(policy.engine))
        yield Sides(policy, source, target, chosen, list(settings.policies.values()))
