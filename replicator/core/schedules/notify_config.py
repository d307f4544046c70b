"""`[ingestion.notify]` of the configuration: who is told what ingestion did.

NotifyConfig(publications=("webhooks.teams",), webhooks={"teams": WebhookConfig("https://teams/landed")})
"""

from __future__ import annotations

import re

import msgspec

from replicator.core.connections.secret import is_reference
from replicator.core.schedules.alert_config import CommandConfig, WebhookConfig, check_receivers
from replicator.errors import ConfigError

CHANNELS = ("publications", "failures", "schemas")
LINEAGE = "lineage"
"""The receiver of `[lineage]`."""


_SECRET = ("password", "secret", "ssl.key.pem")
"""In the names of settings that are secrets."""


class KafkaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """servers: "host:port", with commas between. settings: of the client, such as `security.protocol`; secrets among
    them by reference."""

    servers: str
    topic: str
    settings: dict[str, str] = {}


class NotifyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receivers by channel, each "webhooks.NAME", "commands.NAME" or "kafka.NAME". publications: of landed tables.
    failures: of jobs that wait for another request, fail again and again, or are given up. schemas: of landing tables
    that are new or have changed; also "lineage", which is that of `[lineage]`."""

    publications: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    webhooks: dict[str, WebhookConfig] = {}
    commands: dict[str, CommandConfig] = {}
    kafka: dict[str, KafkaConfig] = {}


def check_notify(notify: NotifyConfig) -> None:
    """Raises ConfigError naming the key that is wrong, and a receiver that is told nothing."""
    check_receivers("ingestion.notify", notify.webhooks, notify.commands)
    for name, kafka in notify.kafka.items():
        _check_kafka(f"ingestion.notify.kafka.{name}", kafka)
    known = {f"{kind}.{name}" for kind in ("webhooks", "commands", "kafka") for name in getattr(notify, kind)}
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


def _check_kafka(key: str, kafka: KafkaConfig) -> None:
    for each in kafka.servers.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal()):
            raise ConfigError(f"{key}.servers: {each.strip()[:80]!r} is no server", hint='write "host:9092"')
    if not re.fullmatch(r"[\w.-]{1,249}", kafka.topic, re.ASCII):
        raise ConfigError(
            f"{key}.topic: {kafka.topic[:80]!r} is no name of a topic", hint="letters, digits, ., _ and -"
        )
    for name, value in kafka.settings.items():
        if any(each in name for each in _SECRET) and not is_reference(value):
            hint = 'write "file:/path", "env:NAME" or "command:program argument"'
            raise ConfigError(f"{key}.settings.{name}: is no reference to a secret", hint=hint)
