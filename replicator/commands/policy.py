"""What commands of a policy open: its metastores, as it names them, and engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from replicator.commands.base import Options
from replicator.core.engine import AutoEngine
from replicator.core.policy import Policy
from replicator.metastore.thrift import ThriftMetastore


@dataclass(frozen=True)
class Opened:
    """A policy, its metastores as it names them, engines, and all policies of the configuration; open for the length
    of a block."""

    policy: Policy
    source: ThriftMetastore
    target: ThriftMetastore
    engines: AutoEngine
    others: Sequence[Policy]


@contextmanager
def opened(options: Options, name: str) -> Iterator[Opened]:
    """The engine is the policy's, unless the caller gives one. Raises UsageError where there is no such policy."""
    settings = options.settings
    policy = settings.policy(name)
    with (
        options.connected(policy.source) as source,
        options.connected(policy.target) as target,
        options.engines() as engines,
    ):
        yield Opened(policy, source, target, engines.preferring(policy.engine), list(settings.policies.values()))
