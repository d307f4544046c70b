"""`check`: what can be proved of a policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.commands.base import Options, verb
from replicator.policies.checks import check as checks
from replicator.policies.checks.check import PolicyChecked


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    """

    policy: str = field(kw_only=False)


@verb(CheckOptions)
def check(options: CheckOptions) -> PolicyChecked:
    """Proves what can be proved of a policy before its first run, and at any time after: metastores, the notification
    log, clocks, rights, room, roles, lag, the last runs. Writes small hidden files where runs will write, and removes
    them. May run at any time, and again.

        replicator.check("west").status

    A side that does not answer is a finding. Raises UsageError where there is no such policy, ConfigError."""
    settings = options.settings
    others = list(settings.policies.values())
    return checks.check(settings.policy(options.policy), others=others, gateway=settings.gateway)
