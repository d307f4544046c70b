"""`[service.proxy]` and `[service.limits]`: whose word about users is taken, and how much one client may ask."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

import msgspec

from replicator.core.text.quantity import parse_duration, parse_size
from replicator.errors import ConfigError

_HEADER = re.compile(r"[A-Za-z0-9-]+")


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a group of a proxy's users may do. policies: that it may do it with; none: all."""

    role: Literal["viewer", "operator", "admin"]
    policies: tuple[str, ...] = ()


class ProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """networks: addresses of proxies, whose headers are believed; none: nobody's. user_header, groups_header: names of
    the headers with the user and its groups; None: users are not a proxy's. groups: by their names there."""

    networks: tuple[str, ...] = ()
    user_header: str | None = None
    groups_header: str | None = None
    address_header: str = "X-Forwarded-For"
    groups: dict[str, GroupConfig] = {}


class LimitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """connections: at a time. requests_per_second: of one token, user or address, for long; burst: at once. body: a
    size. header_time, body_time, write_time: for a client to send a request's head, its body, and to read a part of an
    answer; idle_time: until a connection without a request is closed."""

    connections: int = 500
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
            raise ConfigError(f"service.proxy.{key}: {name!r} is no name of a header")
    if (proxy.user_header or proxy.groups_header or proxy.groups) and not proxy.networks:
        hint = "whoever asks from elsewhere could call himself as he likes"
        raise ConfigError("service.proxy.networks: are needed, to know whose headers are believed", hint=hint)
    if proxy.user_header and not (proxy.groups_header and proxy.groups):
        hint = "[service.proxy.groups.NAME] with a role"
        raise ConfigError("service.proxy: without groups_header and groups no user may do anything", hint=hint)


def check_limits(limits: LimitConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    for key in ("header_time", "body_time", "write_time", "idle_time"):
        try:
            if not parse_duration(getattr(limits, key)):
                raise ValueError("is no time")
        except ValueError as error:
            raise ConfigError(f"service.limits.{key}: {error}", hint="write a duration such as 10s") from error
    try:
        parse_size(limits.body)
    except ValueError as error:
        raise ConfigError(f"service.limits.body: {error}", hint="write a size such as 64KiB") from error
    for key in ("connections", "requests_per_second", "burst"):
        if getattr(limits, key) <= 0:
            raise ConfigError(f"service.limits.{key}: is not above 0")
