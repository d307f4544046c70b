"""`[service]` of the configuration: the jobs and their schedules, and the location of the service's state."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from replicator.core.connections import is_reference
from replicator.core.text import parse_duration, parse_size
from replicator.errors import ConfigError

# ---- entrance config -------------------------------------------------------------------------------------------------
# `[service.proxy]` and `[service.limits]`: proxies that are trusted to identify users, and limits for one client.


_HEADER = re.compile(r"[A-Za-z0-9-]+")


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rights of a group of a proxy's users. policies: the policies that they apply to; none: all."""

    role: Literal["viewer", "operator", "admin"]
    policies: tuple[str, ...] = ()


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """networks: addresses of proxies whose headers are trusted; empty: none. user_header, groups_header: names of the
    headers with the user and the groups; None: the proxy identifies no users. groups: by their names there."""

    networks: tuple[str, ...] = ()
    user_header: str | None = None
    groups_header: str | None = None
    address_header: str = "X-Forwarded-For"
    groups: dict[str, GroupConfig] = {}


class LimitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """connections: concurrent; connections_per_address: of these, of one address that is not a proxy of
    `service.proxy`. requests_per_second: sustained rate of one token, user or address; burst: requests at
    once. body: a size. header_time, body_time, write_time: for a client to send a request's header and body, and to
    read a part of a response; idle_time: until a connection without a request is closed."""

    connections: int = 500
    connections_per_address: int = 200
    requests_per_second: float = 100.0
    burst: int = 500
    body: str = "64KiB"
    header_time: str = "10s"
    body_time: str = "30s"
    write_time: str = "30s"
    idle_time: str = "30s"


def check_proxy(proxy: ProxyConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    for network in proxy.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"service.proxy.networks: {error}", hint="write 10.1.0.0/16, or an address") from error
    for key in ("user_header", "groups_header", "address_header"):
        name = getattr(proxy, key)
        if name is not None and not _HEADER.fullmatch(name):
            raise ConfigError(f"service.proxy.{key}: {name!r} is not a header name")
    if (proxy.user_header or proxy.groups_header or proxy.groups) and not proxy.networks:
        hint = "otherwise, any client could choose its own user name"
        raise ConfigError("service.proxy.networks: required, to define whose headers are trusted", hint=hint)
    if proxy.user_header and not (proxy.groups_header and proxy.groups):
        hint = "add [service.proxy.groups.NAME] with a role"
        raise ConfigError("service.proxy: without groups_header and groups, no user may do anything", hint=hint)


def check_limits(limits: LimitConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    for key in ("header_time", "body_time", "write_time", "idle_time"):
        try:
            if not parse_duration(getattr(limits, key)):
                raise ValueError("is zero")
        except ValueError as error:
            raise ConfigError(f"service.limits.{key}: {error}", hint="write a duration such as 10s") from error
    try:
        parse_size(limits.body)
    except ValueError as error:
        raise ConfigError(f"service.limits.body: {error}", hint="write a size such as 64KiB") from error
    for key in ("connections", "connections_per_address", "requests_per_second", "burst"):
        if getattr(limits, key) <= 0:
            raise ConfigError(f"service.limits.{key}: must be above 0")


# ---- service config --------------------------------------------------------------------------------------------------


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """command: a command line without `replicator`. Either every (a duration) or cron is set. zone: of cron, a name of
    the time zone database. timeout: a run that takes longer is cancelled."""

    command: tuple[str, ...]
    every: str | None = None
    cron: str | None = None
    zone: str = "UTC"
    jitter: str = "0s"
    timeout: str | None = None


class ServiceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """store: a database URL. logs: a directory for the output of runs. at_once: concurrent runs. policies: each policy
    runs by its `schedule`, unless a job runs it. keep: how long finished runs are retained. grace: time for a run to
    end after SIGTERM. measure_roots: the interval between two measurements of the files retained in roots; 0s: never.
    asked_timeout: for runs that a user requests over HTTP, in addition to the jobs. Durations have the usual format."""

    listen: str = "127.0.0.1:8484"
    store: str = "sqlite:///service.sqlite"
    logs: str = "service-logs"
    at_once: int = 4
    policies: bool = True
    keep: str = "30d"
    grace: str = "1m"
    measure_roots: str = "1h"
    asked_timeout: str = "1d"
    jobs: dict[str, JobConfig] = {}
    proxy: ProxyConfig = ProxyConfig()
    limits: LimitConfig = LimitConfig()


def check_service(service: ServiceConfig) -> None:
    """Raises ConfigError naming the key that is wrong; the keys of jobs are checked when they are read."""
    for key in ("keep", "grace", "measure_roots", "asked_timeout"):
        try:
            parse_duration(getattr(service, key))
        except ValueError as error:
            raise ConfigError(f"service.{key}: {error}", hint="write a duration such as 30d or 1m") from error
    if service.at_once < 1:
        raise ConfigError("service.at_once: is less than 1")
    check_proxy(service.proxy)
    check_limits(service.limits)


# ---- alert config ----------------------------------------------------------------------------------------------------
# `[alerts]` of the configuration: the conditions on which the service sends alerts, and their receivers.


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """url: receives a POST. secret: a reference to the key that signs it."""

    url: str
    secret: str | None = None


class CommandConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """command: a program and its arguments, without a shell; it reads the alert from its standard input."""

    command: tuple[str, ...]


class MailConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """server: host:port. tls: from the start, after SMTP's greeting (starttls), or none. password: a reference."""

    server: str
    sender: str
    to: tuple[str, ...]
    tls: Literal["none", "starttls", "tls"] = "starttls"
    user: str | None = None
    password: str | None = None


class AlertConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions: a job failed so often in a row; a policy is late, blocked or unreachable for `late_for`; less than
    `headroom` (a share) of the source's retention time of events is left; no success for so many periods; less than
    `disk` (a share) of a local disk is free, or it will be full within `disk_full_within`; the last comparison of a
    table is older than `verified_within`. repeat: the interval at which a persisting alert is sent again."""

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
            raise ConfigError(f"alerts.{key}: is not a share between 0 and 1")
    check_receivers("alerts", alerts.webhooks, alerts.commands)
    for name, mail in alerts.mails.items():
        host, colon, port = mail.server.rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal()) or not mail.to:
            raise ConfigError(f'alerts.mails.{name}: needs server = "HOST:PORT", and an address in `to`')
        if any("\n" in each or "\r" in each for each in (mail.sender, *mail.to)):
            raise ConfigError(f"alerts.mails.{name}: an address contains a line break")
        _reference(f"alerts.mails.{name}.password", mail.password)


def check_receivers(key: str, webhooks: Mapping[str, WebhookConfig], commands: Mapping[str, CommandConfig]) -> None:
    """Checks receivers. key: the table that contains them. Raises ConfigError naming the one that is wrong."""
    for name, hook in webhooks.items():
        parts = urlsplit(hook.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigError(f"{key}.webhooks.{name}.url: must be an http or https URL without a password")
        _reference(f"{key}.webhooks.{name}.secret", hook.secret)
    for name, command in commands.items():
        if not command.command:
            raise ConfigError(f"{key}.commands.{name}.command: is empty")


def _reference(key: str, text: str | None) -> None:
    if text is not None and not is_reference(text):
        raise ConfigError(
            f"{key}: a secret must be given by reference", hint="write file:PATH, env:NAME or command:PROGRAM"
        )


# ---- lineage config --------------------------------------------------------------------------------------------------
# `[lineage]` of the configuration: destinations of the OpenLineage events of runs.


class LineageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file: receives a line of JSON for each event. url: receives a POST. token: a reference to its bearer token.
    namespace: of the jobs, which are named after their policies."""

    file: str | None = None
    url: str | None = None
    token: str | None = None
    namespace: str = "replicator"


def check_lineage(lineage: LineageConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    if lineage.url is not None:
        parts = urlsplit(lineage.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigError("lineage.url: must be an http or https URL without a password")
    if lineage.token is not None and not is_reference(lineage.token):
        hint = "write file:PATH, env:NAME or command:PROGRAM"
        raise ConfigError("lineage.token: a secret must be given by reference", hint=hint)


# ---- notify config ---------------------------------------------------------------------------------------------------
# `[ingestion.notify]` of the configuration: receivers of notifications of ingestion.
#
# NotifyConfig(publications=("webhooks.teams",), webhooks={"teams": WebhookConfig("https://teams/landed")})


CHANNELS = ("publications", "failures", "schemas")
LINEAGE = "lineage"
"""The receiver of `[lineage]`."""


_SECRET = ("password", "secret", "ssl.key.pem")
"""Parts of the names of settings that are secrets."""


class KafkaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """servers: "host:port", separated by commas. settings: of the client, such as `security.protocol`; secrets among
    them by reference."""

    servers: str
    topic: str
    settings: dict[str, str] = {}


class NotifyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receivers by channel, each "webhooks.NAME", "commands.NAME" or "kafka.NAME". publications: of landed tables.
    failures: of jobs that wait for another request, fail repeatedly, or are aborted. schemas: of landing tables that
    are new or have changed; also "lineage", the receiver of `[lineage]`."""

    publications: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    webhooks: dict[str, WebhookConfig] = {}
    commands: dict[str, CommandConfig] = {}
    kafka: dict[str, KafkaConfig] = {}


def check_notify(notify: NotifyConfig) -> None:
    """Raises ConfigError naming the key that is wrong, and for a receiver without a channel."""
    check_receivers("ingestion.notify", notify.webhooks, notify.commands)
    for name, kafka in notify.kafka.items():
        _check_kafka(f"ingestion.notify.kafka.{name}", kafka)
    known = {f"{kind}.{name}" for kind in ("webhooks", "commands", "kafka") for name in getattr(notify, kind)}
    told = set[str]()
    for channel in CHANNELS:
        for name in getattr(notify, channel):
            if name not in known and (channel, name) != ("schemas", LINEAGE):
                hint = f"receivers: {', '.join(sorted(known)) or '(none is configured)'}"
                raise ConfigError(f"ingestion.notify.{channel}: {name!r} is not a receiver", hint=hint)
            told.add(name)
    if silent := sorted(known - told):
        hint = f"list it in one of {', '.join(CHANNELS)}"
        raise ConfigError(f"ingestion.notify.{silent[0]}: receives no notices", hint=hint)


def _check_kafka(key: str, kafka: KafkaConfig) -> None:
    for each in kafka.servers.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal()):
            raise ConfigError(f"{key}.servers: {each.strip()[:80]!r} is not a server address", hint='write "host:9092"')
    if not re.fullmatch(r"[\w.-]{1,249}", kafka.topic, re.ASCII):
        raise ConfigError(
            f"{key}.topic: {kafka.topic[:80]!r} is not a topic name", hint="use letters, digits, ., _ and -"
        )
    for name, value in kafka.settings.items():
        if any(each in name for each in _SECRET) and not is_reference(value):
            hint = 'write "file:/path", "env:NAME" or "command:program argument"'
            raise ConfigError(f"{key}.settings.{name}: is not a reference to a secret", hint=hint)


def option_of(command: tuple[str, ...], option: str) -> str:
    """Returns the value of an option in a command line; "" if it has none."""
    for index, word in enumerate(command):
        if word == option:
            return command[index + 1] if index + 1 < len(command) else ""
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
