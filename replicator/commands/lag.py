"""`lag` and `history`: how far a policy's target is behind, and what its runs did."""

from __future__ import annotations

from dataclasses import dataclass, field

from cmroot.root import open_existing
from replicator.commands.base import Options, verb
from replicator.commands.ranges import Positive
from replicator.policies import lag as lags
from replicator.policies.checks.check import impatient
from replicator.policies.lag import Lag
from replicator.policies.memory import Memory, ShownHistory, shown_history


@dataclass(frozen=True, kw_only=True)
class LagOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    """

    policy: str = field(kw_only=False)


@verb(LagOptions)
def lag(options: LagOptions) -> Lag:
    """Measures how far a policy's target is behind, per database and table, in events, seconds and bytes. Reads only.

        replicator.lag("west").seconds

    A side that does not answer is in `unreachable`, and the figures are the last known ones. Raises UsageError where
    there is no such policy."""
    policy = options.settings.policy(options.policy)
    with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
        return lags.lag(policy, source, target)


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    limit: the newest runs, so many; None: all.
    """

    policy: str = field(kw_only=False)
    limit: Positive | None = 20


@verb(HistoryOptions)
def history(options: HistoryOptions) -> ShownHistory:
    """Shows a policy's runs, newest first. One entry stands for all rounds in a row that found nothing new. Reads only.

        replicator.history("west", limit=5).to_arrow()

    Raises UsageError where there is no such policy, FormatError where its target's root is not there."""
    policy = options.settings.policy(options.policy)
    return shown_history(Memory(open_existing(policy.target_cmroot), policy.name), policy, options.limit)
