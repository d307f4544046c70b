"""What a gateway asks of its clients: `[gateway]` as a value.

GatewayConfig(principal="hive/gateway.example.com@EXAMPLE.COM", keytab="/etc/gateway.keytab", protection="privacy")
"""

from __future__ import annotations

from typing import Literal

import msgspec

from replicator.core.connections.metastore_config import Protection
from replicator.core.connections.secret import is_reference
from replicator.errors import ConfigError

Risk = Literal["unauthenticated", "unencrypted", "own-identity"]


REFERENCES = 'write "file:/path", "env:NAME" or "command:program argument"'


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The side of the clients. certificate, key: of TLS, PEM files; key_password: a reference to a secret; client_ca:
    who signs certificates that clients must have. principal, keytab: of Kerberos; realms: of clients, else that of the
    principal; protection: the least that a client may choose. token_key: a reference to the secret that signs
    delegation tokens; proxy_users: who gets them for other users. transport: "framed" for clients that are set so.
    allow: risks that are taken, see docs/gateway.md."""

    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    client_ca: str | None = None
    principal: str | None = None
    keytab: str | None = None
    realms: tuple[str, ...] = ()
    auth_to_local: str | None = None
    protection: Protection = "authentication"
    token_key: str | None = None
    proxy_users: tuple[str, ...] = ()
    transport: Literal["socket", "framed"] = "socket"
    allow: tuple[Risk, ...] = ()

    @property
    def authenticates(self) -> bool:
        return bool(self.principal or self.client_ca)

    @property
    def encrypts(self) -> bool:
        return bool(self.certificate) or (bool(self.principal) and self.protection == "privacy")

    def described(self) -> str:
        """For a person: `Kerberos, TLS, client certificates`; nothing for a plain one."""
        parts = [
            "Kerberos" if self.principal else "",
            "TLS" if self.certificate else "",
            "client certificates" if self.client_ca else "",
            "framed" if self.transport == "framed" else "",
        ]
        return ", ".join(filter(None, parts))


def check_gateway(config: GatewayConfig) -> GatewayConfig:
    """The value, if its keys fit together. Raises ConfigError naming the key."""
    for wrong, key, why in (
        (bool(config.certificate) != bool(config.key), "certificate", "certificate and key are given together"),
        (bool(config.client_ca) and not config.certificate, "client_ca", "only with certificate and key"),
        (bool(config.principal) != bool(config.keytab), "principal", "principal and keytab are given together"),
        (bool(config.realms) and not config.principal, "realms", "only with principal and keytab"),
        (config.auth_to_local is not None and not config.principal, "auth_to_local", "only with principal and keytab"),
        (config.protection != "authentication" and not config.principal, "protection", "only with principal"),
        (bool(config.token_key) and not config.principal, "token_key", "only with principal and keytab"),
        (bool(config.proxy_users) and not config.token_key, "proxy_users", "only with token_key"),
        (
            bool(config.token_key) and config.protection == "privacy" and not config.certificate,
            "token_key",
            "the encryption of DIGEST-MD5 is broken: for privacy, set certificate and key",
        ),
        (bool(config.principal) and config.transport == "framed", "transport", "SASL has frames of its own"),
        *(
            (value is not None and not is_reference(value), name, f"a secret is not written here: {REFERENCES}")
            for name, value in (("key_password", config.key_password), ("token_key", config.token_key))
        ),
    ):
        if wrong:
            raise ConfigError(f"gateway.{key}: {why}", hint="see docs/gateway.md")
    return config
