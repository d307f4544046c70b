"""`[ingestion.notify]` of the configuration: who is told what ingestion did.

NotifyConfig(publications=("webhooks.teams",), webhooks={"teams": WebhookConfig("https://teams/landed")})
"""

from __future__ import annotations

import msgspec

from replicator.core.schedules.alert_config import CommandConfig, WebhookConfig, check_receivers
from replicator.errors import ConfigError

CHANNELS = ("publications", "failures", "schemas")
LINEAGE = "lineage"
"""The receiver of `[lineage]`."""


class NotifyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receivers by channel, each "webhooks.NAME" or "commands.NAME". publications: of tables that were landed.
    failures: of jobs that wait for another request, fail again and again, or are given up. schemas: of landing tables
    that are new or have changed; also "lineage", which is that of `[lineage]`."""

    publications: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    webhooks: dict[str, WebhookConfig] = {}
    commands: dict[str, CommandConfig] = {}


def check_notify(notify: NotifyConfig) -> None:
    """Raises ConfigError naming the key that is wrong, and a receiver that is told nothing."""
    check_receivers("ingestion.notify", notify.webhooks, notify.commands)
    known = {f"webhooks.{name}" for name in notify.webhooks} | {f"commands.{name}" for name in notify.commands}
    told = set[str]()
    for channel in CHANNELS:
        for name in getattr(notify, channel):
            if name not in known and (channel, name) != ("schemas", LINEAGE):
                hint = f"receivers: {', '.join(sorted(known)) or '(none is configured)'}"
                raise ConfigError(f"ingestion.notify.{channel}: {name!r} is no receiver", hint=hint)
            told.add(name)
    if silent := sorted(known - told):
        hint = f"name it in one of {', '.join(CHANNELS)}"
        raise ConfigError(f"ingestion.notify.{silent[0]}: is told nothing", hint=hint)
