"""Proxies: whose headers about users and addresses are believed. Pure.

Headers of anybody else mean nothing, from loopback too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicator.core.schedules.entrance_config import ProxyConfig
from replicator.service.auth.api_tokens import ROLES, Identity

SCHEME = "X-Forwarded-Proto"
HOPS = 20  # addresses of a chain of proxies that are looked at
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Sender:
    """Who sent a request. address: of the client, behind all proxies. scheme: in which it reached the first of them;
    empty: none says. user: as a proxy says; empty: none does.
    identity: what it may; None: nothing. recognised: called when a request's token was right."""

    address: str
    user: str = ""
    identity: Identity | None = None
    recognised: Callable[[], object] = lambda: None
    scheme: str = ""


class Proxies:
    """Those of a configuration."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._networks = [ipaddress.ip_network(each) for each in config.networks]

    def sender(self, peer: str, headers: Headers) -> Sender:
        """Who sent a request that came from a peer. Raises ValueError for a proxy's headers that mean nothing."""
        if not self._trusts(_address(peer)):
            return Sender(peer)
        config = self._config
        user = _values(headers, config.user_header)
        if len(user) > 1 or any(len(each) > 200 or not each.isprintable() for each in user):
            raise ValueError(f"{config.user_header} is given twice, or is no name")
        address = self._behind(peer, ",".join(_values(headers, config.address_header)))
        scheme = ",".join(_values(headers, SCHEME)).partition(",")[0].strip().lower()
        scheme = scheme if scheme in ("http", "https") else ""
        if not user or not user[0]:
            return Sender(address, scheme=scheme)
        groups = {each.strip() for value in _values(headers, config.groups_header) for each in value.split(",")}
        return Sender(address, user[0], self._identity(user[0], groups), scheme=scheme)

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def _behind(self, peer: str, chain: str) -> str:
        """The last address of a chain that is no proxy's: those before it are what somebody says."""
        found = peer
        for text in reversed(chain.split(",")[-HOPS:]):
            address = _address(text.strip())
            if address is None:
                return found
            found = str(address)
            if not self._trusts(address):
                return found
        return found

    def _identity(self, user: str, groups: set[str]) -> Identity | None:
        """It may what each of its groups may."""
        grants = [(each.role, each.policies) for name, each in self._config.groups.items() if name in groups]
        if not grants:
            return None
        grants.sort(key=lambda grant: (-ROLES.index(grant[0]), len(grant[1])))
        return Identity(f"proxy:{user}", *grants[0], also=tuple(grants[1:]), groups=tuple(sorted(filter(None, groups))))


def _address(text: str) -> Address | None:
    """None: it is none. An IPv4 address that IPv6 maps is itself."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _values(headers: Headers, name: str | None) -> list[str]:
    if name is None:
        return []
    wanted = name.lower().encode()
    return [value.decode("utf-8", "replace").strip() for key, value in headers if key == wanted]
