"""Comparison of a gateway's two sides: it gives no client access to the metastore, and no rights there, that the client
would not have otherwise. Weaker configurations are refused, or logged if they are allowed.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Iterator

from replicator.captures.gateways.auth.door import GSSAPI, Door, KerberosProof, Proof
from replicator.captures.gateways.auth.local_names import LocalNames, parse_rules
from replicator.captures.gateways.auth.tokens import MECHANISM, DigestProof, Tokens
from replicator.captures.gateways.upstream import Asked
from replicator.core.connections import GatewayConfig, MetastoreConfig, Risk, read_secret
from replicator.errors import ConfigError, UsageError
from replicator.metastore.sasl import LEAST_QUALITY
from replicator.metastore.transport import Quality

SHORTEST_KEY = 32  # characters

log = logging.getLogger(__name__)


def make_tokens(config: GatewayConfig) -> Tokens | None:
    """None: no delegation tokens are issued. Raises ConfigError for an unreadable or short key, or an invalid rule."""
    if config.token_key is None:
        return None
    key = read_secret(config.token_key, "gateway.token_key")
    if len(key) < SHORTEST_KEY:
        raise ConfigError("gateway.token_key is too short", hint=f"at least {SHORTEST_KEY} random characters")
    return Tokens(key, _names(config), config.proxy_users)


def make_door(config: GatewayConfig, tokens: Tokens | None = None) -> Door:
    """Returns the authentication of clients. Raises UsageError for certificates and keytabs that cannot be read,
    ConfigError for an invalid secret or rule."""
    proofs: dict[str, Proof] = {}
    if config.principal and config.keytab:
        proofs[GSSAPI] = KerberosProof(config.principal, config.keytab, _names(config), config.protection)
    if tokens is not None:
        least = Quality.AUTHENTICATION if config.certificate else LEAST_QUALITY[config.protection]
        proofs[MECHANISM] = DigestProof(tokens, least)
    return Door(_context(config) if config.certificate else None, proofs, config.transport == "framed")


def make_asked(config: GatewayConfig, metastore: MetastoreConfig, timeout: float) -> Asked:
    """Returns the access to the metastore for clients. timeout: seconds for an answer. Raises UsageError for a
    transport that the gateway does not support."""
    for wrong, what in (
        (metastore.transport == "http", "the HTTP transport"),
        (metastore.protocol == "compact", "the compact protocol"),
    ):
        if wrong:
            raise UsageError(
                f"the gateway does not speak {what} to the metastore",
                hint="start a metastore instance with the binary protocol over sockets for the gateway",
            )
    proven, own = bool(config.principal), "own-identity" in config.allow
    needs = metastore.auth == "kerberos" and not own
    acts = needs or metastore.auth == "none"
    return Asked(metastore, timeout, needs_user=needs, knows_users=proven or needs, acts_for=acts)


def shares_identity(metastore: MetastoreConfig) -> bool:
    """Returns True if the server assigns all connections of the gateway to one user, which cannot be changed."""
    return metastore.auth in ("plain", "token")


def risks(config: GatewayConfig, metastore: MetastoreConfig, host: str) -> Iterator[tuple[Risk, str, str]]:
    """Yields (risk, description, hint) for a gateway that listens at `host`."""
    proves = metastore.auth != "none" or bool(metastore.certificate)
    if proves and not config.authenticates:
        yield (
            "unauthenticated",
            f"the metastore asks who connects ({metastore.described()}), and the gateway asks nobody",
            "set principal and keytab, or client_ca, in [gateway]",
        )
    if metastore.auth == "kerberos" and config.authenticates and not config.principal:
        yield (
            "unauthenticated",
            "the metastore knows its clients by Kerberos, and the gateway by certificates, which name no user",
            "set principal and keytab in [gateway]",
        )
    if _encrypts(metastore) and not config.encrypts and not _is_loopback(host):
        yield (
            "unencrypted",
            "connections to the metastore are encrypted, and those to the gateway are not",
            'set certificate and key in [gateway], or protection = "privacy" with Kerberos',
        )
    if metastore.auth == "kerberos" and "own-identity" in config.allow:
        yield (
            "own-identity",
            "all clients have the rights of the gateway's own principal at the metastore",
            'leave "own-identity" out of allow',
        )
    if shares_identity(metastore):
        yield (
            "own-identity",
            f"the metastore gives all clients the rights of the gateway's own identity ({metastore.described()})",
            "use Kerberos, where the gateway asks as its client",
        )


def check_risks(config: GatewayConfig, metastore: MetastoreConfig, host: str) -> None:
    """Logs risks that are allowed. Raises UsageError for any other one."""
    for risk, what, hint in risks(config, metastore, host):
        if risk not in config.allow:
            raise UsageError(f"{what}: whoever reaches the gateway would get in", hint=f'{hint}; or allow = ["{risk}"]')
        log.warning("allowed (%s): %s", risk, what)


def _encrypts(metastore: MetastoreConfig) -> bool:
    return metastore.tls or metastore.protection == "privacy"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(config: GatewayConfig) -> LocalNames:
    realm = (config.principal or "").rpartition("@")[2]
    rules = () if config.auth_to_local is None else parse_rules(config.auth_to_local)
    return LocalNames(realm, frozenset(config.realms) or {realm}, rules)


def _context(config: GatewayConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = read_secret(config.key_password, "gateway.key_password") if config.key_password else ""
    try:
        assert config.certificate is not None
        context.load_cert_chain(config.certificate, config.key, password)
        if config.client_ca:
            context.load_verify_locations(config.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the gateway's certificates cannot be used: {error}",
            hint="check certificate, key and client_ca: PEM files",
        ) from error
    return context
