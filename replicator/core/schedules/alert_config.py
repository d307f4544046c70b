"""`[alerts]` of the configuration: when the service tells somebody, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from replicator.core.connections.secret import is_reference
from replicator.core.text.quantity import parse_duration
from replicator.errors import ConfigError


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """url: gets a POST. secret: a reference to the key that signs it."""

    url: str
    secret: str | None = None


class CommandConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """command: a program and its arguments, without a shell; it reads the alert from its standard input."""

    command: tuple[str, ...]


class MailConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """server: host:port. tls: before SMTP, after its greeting, or not at all. password: a reference."""

    server: str
    sender: str
    to: tuple[str, ...]
    tls: Literal["none", "starttls", "tls"] = "starttls"
    user: str | None = None
    password: str | None = None


class AlertConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions: a job failed so often in a row; a policy is late, blocked or unreachable for `late_for`; less than
    `headroom` (a share) of the time that the source keeps events is left; no success for so many periods; less than
    `disk` (a share) of a local disk is free, or none will be within `disk_full_within`; a table was compared longer ago
    than `verified_within`. repeat: how often one that stays is told again."""

    failed_in_a_row: int = 3
    late_for: str = "5m"
    headroom: float = 0.25
    missed_periods: int = 2
    disk: float = 0.05
    disk_full_within: str = "1d"
    verified_within: str = "7d"
    repeat: str = "24h"
    webhooks: dict[str, WebhookConfig] = {}
    commands: dict[str, CommandConfig] = {}
    mails: dict[str, MailConfig] = {}


def check_alerts(alerts: AlertConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    for key in ("late_for", "repeat", "disk_full_within", "verified_within"):
        try:
            parse_duration(getattr(alerts, key))
        except ValueError as error:
            raise ConfigError(f"alerts.{key}: {error}", hint="write a duration such as 5m") from error
    for key in ("failed_in_a_row", "missed_periods"):
        if getattr(alerts, key) < 1:
            raise ConfigError(f"alerts.{key}: is less than 1")
    for key in ("headroom", "disk"):
        if not 0 <= getattr(alerts, key) <= 1:
            raise ConfigError(f"alerts.{key}: is no share between 0 and 1")
    check_receivers("alerts", alerts.webhooks, alerts.commands)
    for name, mail in alerts.mails.items():
        host, colon, port = mail.server.rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal()) or not mail.to:
            raise ConfigError(f'alerts.mails.{name}: needs server = "HOST:PORT", and somebody in `to`')
        if any("\n" in each or "\r" in each for each in (mail.sender, *mail.to)):
            raise ConfigError(f"alerts.mails.{name}: an address has a line's end in it")
        _reference(f"alerts.mails.{name}.password", mail.password)


def check_receivers(key: str, webhooks: Mapping[str, WebhookConfig], commands: Mapping[str, CommandConfig]) -> None:
    """key: of the table that they are in. Raises ConfigError naming the one that is wrong."""
    for name, hook in webhooks.items():
        parts = urlsplit(hook.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigError(f"{key}.webhooks.{name}.url: is no http or https URL without a password")
        _reference(f"{key}.webhooks.{name}.secret", hook.secret)
    for name, command in commands.items():
        if not command.command:
            raise ConfigError(f"{key}.commands.{name}.command: is empty")


def _reference(key: str, text: str | None) -> None:
    if text is not None and not is_reference(text):
        raise ConfigError(f"{key}: a secret is not written here", hint="write file:PATH, env:NAME or command:PROGRAM")
