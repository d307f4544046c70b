"""Connection settings of a metastore: `[metastores.NAME]` as a value, and as settings of Spark's own Hive 2.3 client.

MetastoreConfig("thrift://meta-1:9083,thrift://meta-2:9083", auth="kerberos", principal="hive/_HOST@EXAMPLE.COM")

Python callers pass the value in place of a URI. Nothing here connects. Secrets are references, so the value can be
shown. Settings that Spark's client does not support are refused: it would connect as another user, or hang. Spark's
settings are visible in process lists and in its UI, so they never contain a secret.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from cmroot.store.spelling import is_absolute
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, SparkMissing, UsageError

# ---- secret ----------------------------------------------------------------------------------------------------------
# Secrets by reference: `file:PATH`, `env:NAME` or `command:PROGRAM ARGUMENT...`. The configuration contains the
# reference. Each use reads the secret again, and no message contains it.


KINDS = ("file", "env", "command")
PATIENCE = 30  # seconds for a command


def is_reference(text: str) -> bool:
    kind, colon, rest = text.partition(":")
    return bool(colon and rest) and kind in KINDS


def read_secret(reference: str, name: str) -> str:
    """Returns the first line of the referenced secret. `name`: the key, for the error. Raises ConfigError if the secret
    does not exist or is empty."""
    kind, _, place = reference.partition(":")
    try:
        text = {"file": _file, "env": _variable, "command": _output}[kind](place)
    except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{name}: cannot be read from {kind}:{place}: {why}", hint="check the reference") from None
    line = text.strip("\r\n").partition("\n")[0].rstrip("\r")
    if not line:
        raise ConfigError(f"{name}: {kind}:{place} is empty", hint="its first line is the secret")
    return line


def _file(place: str) -> str:
    return Path(place).expanduser().read_text(encoding="utf-8")


def _variable(place: str) -> str:
    return os.environ[place]


def _output(place: str) -> str:
    done = subprocess.run(
        shlex.split(place), stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=True, text=True
    )
    return done.stdout


# ---- metastore config ------------------------------------------------------------------------------------------------


Auth = Literal["none", "kerberos", "plain", "token"]
Protection = Literal["authentication", "integrity", "privacy"]

DEFAULT_PORT = 9083
Address = tuple[str, int]

_SECRETS = ("password", "token", "jwt", "key_password")
_SECRET_HEADER = re.compile(r"auth|cookie|token|secret|password|key", re.IGNORECASE)
_ONLY_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "principal": ("auth", ("kerberos",)),
    "keytab": ("auth", ("kerberos",)),
    "client_principal": ("auth", ("kerberos",)),
    "ticket_cache": ("auth", ("kerberos",)),
    "password": ("auth", ("plain",)),
    "token": ("auth", ("token",)),
    "protection": ("auth", ("kerberos", "token")),
    "path": ("transport", ("http",)),
    "headers": ("transport", ("http",)),
    "jwt": ("transport", ("http",)),
}


class MetastoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metastore and its connections.

    uri: thrift URIs, separated by commas for failover. auth: the client's authentication. principal: the server's;
    `_HOST` is the host of the URI. keytab, client_principal: the source of tickets; default: ticket_cache, or the
    default cache. user: the identity to act as; with "plain" the user's name. password, token, jwt, key_password:
    references to secrets. protection: the minimum of the connection's SASL layer. tls: with ca, certificate and key as
    PEM files. path, headers, jwt: of the HTTP transport. connect_timeout, answer_timeout: durations. max_connections,
    max_calls_per_second: of one process. catalog: of the databases, on Hive 3 and newer; None: the server's default
    one. statistics_engines: engines whose column statistics are replicated in addition to those of `hive`, on Hive 4
    and newer. zone: the class of warehouses that this one belongs to; see `[ingestion]`. iceberg_outside: directories
    in which Iceberg tables may have files outside of their own locations.
    """

    uri: str
    auth: Auth = "none"
    user: str | None = None
    principal: str | None = None
    keytab: str | None = None
    client_principal: str | None = None
    ticket_cache: str | None = None
    password: str | None = None
    token: str | None = None
    protection: Protection | None = None
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    verify_host: bool = True
    transport: Literal["socket", "framed", "http"] = "socket"
    path: str | None = None
    headers: dict[str, str] = {}
    jwt: str | None = None
    protocol: Literal["binary", "compact"] = "binary"
    connect_timeout: str | int | None = None
    answer_timeout: str | int | None = None
    max_connections: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_calls_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None
    catalog: str | None = None
    statistics_engines: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ("impala",)
    zone: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    iceberg_outside: tuple[str, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        return addresses(self.uri)

    def seconds(self, key: Literal["connect_timeout", "answer_timeout"], default: float) -> float:
        """Returns a timeout in seconds; the default if it is not set."""
        given = getattr(self, key)
        return default if given is None else parse_duration(str(given)).total_seconds()

    def described(self) -> str:
        """Returns identity and transport for messages: `Kerberos as me@REALM, TLS`; empty for a plain connection."""
        names = {
            "none": "",
            "kerberos": f"Kerberos as {self.client_principal or self.ticket_cache or 'the owner of the tickets'}",
            "plain": f"PLAIN as {self.user}",
            "token": "a delegation token",
        }
        http = ("HTTPS" if self.tls else "HTTP") if self.transport == "http" else ""
        parts = [
            names[self.auth],
            f"for {self.user}" if self.user and self.auth != "plain" else "",
            "JWT" if self.jwt else "",
            http or ("TLS" if self.tls else ""),
            "client certificate" if self.certificate else "",
            "framed" if self.transport == "framed" else "",
            "compact" if self.protocol == "compact" else "",
            f"catalog {self.catalog}" if self.catalog else "",
        ]
        return ", ".join(filter(None, parts))


def checked(config: MetastoreConfig | str, name: str = "") -> MetastoreConfig:
    """Returns the value, or the value for a URI, if its keys fit together. Raises ConfigError naming the key, below
    `name`; UsageError for an invalid URI."""
    if isinstance(config, str):
        config = MetastoreConfig(config)
    begin = f"{name}." if name else ""
    try:
        addresses(config.uri)
    except UsageError as error:
        if not name:
            raise
        raise ConfigError(f"{begin}uri: {error.message}", hint=error.hint) from None
    for key in ("connect_timeout", "answer_timeout"):
        try:
            fits = config.seconds(key, 1.0) > 0
        except ValueError as error:
            raise ConfigError(f"{begin}{key}: {error}") from None
        if not fits:
            raise ConfigError(f"{begin}{key}: must be greater than zero", hint="write a duration such as 20s")
    if wrong := next((each for each in config.iceberg_outside if not is_absolute(each)), None):
        raise ConfigError(f"{begin}iceberg_outside: {wrong!r} is not an absolute path or a URL without `..`")
    _check_secrets(config, begin)
    for key, (other, values) in _ONLY_WITH.items():
        if getattr(config, key) and getattr(config, other) not in values:
            wanted = " or ".join(f'{other} = "{value}"' for value in values)
            raise ConfigError(f"{begin}{key}: only with {wanted}", hint=f"set {other}, or remove {key}")
    for key, missing in _needs(config):
        raise ConfigError(f"{begin}{key}: {missing}", hint="see docs/configuration.md")
    return config


def addresses(uri: str) -> list[Address]:
    """Parses `thrift://host:port[,thrift://host:port...]` to addresses. The scheme and the port are optional. Raises
    UsageError, whose message never contains a password."""
    return [_address(part.strip(), uri) for part in uri.split(",")]


def _address(part: str, uri: str) -> Address:
    if "@" in part or "?" in part:
        raise UsageError(
            "a metastore URI cannot have a user, password or parameter",
            hint='write thrift://host:port, and the identity as keys of [metastores.NAME]: user = "...", '
            'password = "file:..."',
        )
    scheme, _, rest = part.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":") if ":" in rest.rpartition("]")[2] else (rest.rstrip("/"), "", "")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isdecimal() else DEFAULT_PORT if not port else 0
    if scheme not in ("thrift", "") or not host or "/" in host or not 0 < number < 65536:
        web = scheme in ("http", "https")
        raise UsageError(
            f"not a metastore URI: {uri!r}",
            hint=(
                'for the HTTP transport write thrift://host:port and transport = "http", path = "..." (tls = true for '
                "https) in [metastores.NAME]"
                if web
                else "write thrift://host:port, several separated by commas for failover"
            ),
        )
    return host, number


def _check_secrets(config: MetastoreConfig, begin: str) -> None:
    """Accepts references only. The message does not contain a secret that was written in plain text."""
    written = {key: getattr(config, key) for key in _SECRETS}
    written |= {f"headers.{key}": value for key, value in config.headers.items() if _SECRET_HEADER.search(key)}
    for key, value in written.items():
        if value is not None and not is_reference(value):
            raise ConfigError(
                f"{begin}{key}: a secret must be given by reference",
                hint=f'write its location: {key} = "file:/path", "env:NAME" or "command:program argument"',
            )


def _needs(config: MetastoreConfig) -> list[tuple[str, str]]:
    sasl = config.auth != "none"
    given = [
        (config.auth == "plain" and not (config.user and config.password), "auth", "PLAIN needs user and password"),
        (config.auth == "token" and not config.token, "auth", "needs a delegation token: token"),
        (config.auth == "token" and bool(config.user), "user", "a token determines the user"),
        (bool(config.keytab) and not config.client_principal, "keytab", "needs client_principal"),
        (bool(config.keytab and config.ticket_cache), "keytab", "replaces ticket_cache: set only one of them"),
        (bool(config.certificate) != bool(config.key), "certificate", "certificate and key must be set together"),
        (sasl and config.transport == "framed", "transport", "SASL has its own framing: remove framed"),
        (sasl and config.transport == "http", "auth", "HTTP carries the identity in jwt, headers or user"),
        (not config.tls and bool(config.ca or config.certificate), "tls", "must be true for ca and certificate"),
    ]
    return [(key, why) for wrong, key, why in given if wrong]


# ---- gateway config --------------------------------------------------------------------------------------------------
# Requirements of a gateway for its clients: `[gateway]` as a value.
#
# GatewayConfig(principal="hive/gateway.example.com@EXAMPLE.COM", keytab="/etc/gateway.keytab", protection="privacy")


Risk = Literal["unauthenticated", "unencrypted", "own-identity"]


REFERENCES = 'write "file:/path", "env:NAME" or "command:program argument"'


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the gateway for its clients. certificate, key: of TLS, PEM files; key_password: a reference to a
    secret; client_ca: the CA of the certificates that clients must have. principal, keytab: of Kerberos; realms: of
    clients, default: the principal's; protection: the minimum that a client may choose. token_key: a reference to the
    secret that signs delegation tokens; proxy_users: users that may get tokens for other users. transport: "framed" for
    clients with that setting. allow: risks that are accepted, see docs/gateway.md."""

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
        """Returns a summary for messages: `Kerberos, TLS, client certificates`; empty for a plain gateway."""
        parts = [
            "Kerberos" if self.principal else "",
            "TLS" if self.certificate else "",
            "client certificates" if self.client_ca else "",
            "framed" if self.transport == "framed" else "",
        ]
        return ", ".join(filter(None, parts))


def check_gateway(config: GatewayConfig) -> GatewayConfig:
    """Returns the value if its keys fit together. Raises ConfigError naming the key."""
    for wrong, key, why in (
        (bool(config.certificate) != bool(config.key), "certificate", "certificate and key must be set together"),
        (bool(config.client_ca) and not config.certificate, "client_ca", "only with certificate and key"),
        (bool(config.principal) != bool(config.keytab), "principal", "principal and keytab must be set together"),
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
        (bool(config.principal) and config.transport == "framed", "transport", "SASL has its own framing"),
        *(
            (value is not None and not is_reference(value), name, f"a secret must be given by reference: {REFERENCES}")
            for name, value in (("key_password", config.key_password), ("token_key", config.token_key))
        ),
    ):
        if wrong:
            raise ConfigError(f"gateway.{key}: {why}", hint="see docs/gateway.md")
    return config


# ---- settings of Spark's client --------------------------------------------------------------------------------------


_HIVE = "spark.hadoop.hive.metastore."
_OWN = (_HIVE, "spark.hadoop.metastore.")
_FILES = ("HADOOP_CONF_DIR", "HIVE_CONF_DIR", "SPARK_CONF_DIR")
_STRONGEST_FIRST = ("privacy", "integrity", "authentication")
_HINT = (
    "configure Spark's own access to it: spark.hadoop.hive.metastore.* in [spark], by --spark-conf or in a "
    "hive-site.xml of HADOOP_CONF_DIR"
)


def require_pyspark() -> None:
    """Raises SparkMissing if pyspark is not installed. Imports nothing."""
    if importlib.util.find_spec("pyspark") is None:
        home = os.environ.get("SPARK_HOME")
        raise SparkMissing(
            "this requires Spark, but PySpark is not installed",
            hint=f"add {home}/python and its lib/py4j-*.zip to PYTHONPATH, or run this with {home}/bin/spark-submit"
            if home
            else "pip install 'replicator[spark]' ('replicator[local]': includes Java), or use --engine local",
        )


def client_settings(config: MetastoreConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Returns settings for a Spark that reads this metastore; `given`: the caller's settings, which take precedence.
    Raises UsageError for settings that Spark does not support, unless the caller's own settings, configuration files or
    running Spark may provide them. Writes a trust store for TLS, which is removed when this process ends."""
    own = any(key.startswith(_OWN) and key != f"{_HIVE}uris" for key in given)
    theirs = own or any(map(os.environ.get, _FILES)) or _spark_runs()
    if not theirs:
        for what, hint in _lacking(config):
            raise UsageError(f"Spark cannot reach the metastore {config.uri} as it is configured: {what}", hint=hint)
    found: dict[str, str] = {}
    if config.auth == "kerberos":
        least = config.protection or "authentication"
        qualities = _STRONGEST_FIRST[: _STRONGEST_FIRST.index(least) + 1]
        found |= {
            f"{_HIVE}sasl.enabled": "true",
            f"{_HIVE}kerberos.principal": config.principal or "",
            "spark.hadoop.hadoop.security.authentication": "kerberos",
            "spark.hadoop.hadoop.rpc.protection": ",".join(qualities),
        }
        if config.keytab and config.client_principal:
            found |= {"spark.kerberos.keytab": config.keytab, "spark.kerberos.principal": config.client_principal}
        if not os.environ.get("HADOOP_CONF_DIR"):  # the renewer of HDFS tokens: readers of files require its name
            renewer = config.client_principal or config.principal or ""
            found["spark.hadoop.yarn.resourcemanager.principal"] = renewer
    if config.tls:
        found[f"{_HIVE}use.SSL"] = "true"
        if f"{_HIVE}truststore.path" not in given and (config.ca or not theirs):
            found[f"{_HIVE}truststore.path"] = _trust_store(config)
    if config.transport == "framed":
        found[f"{_HIVE}thrift.framed.transport.enabled"] = "true"
    if config.protocol == "compact":
        found[f"{_HIVE}thrift.compact.protocol.enabled"] = "true"
    return {key: value for key, value in found.items() if key not in given}


def _lacking(config: MetastoreConfig) -> Iterator[tuple[str, str]]:
    kerberos = config.auth == "kerberos"
    service, _, realm = (config.principal or "").partition("@")
    whoever = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    if config.auth in ("plain", "token"):
        yield f'its Hive client does not support auth = "{config.auth}"', _HINT
    if config.transport == "http":
        yield "its Hive client does not support HTTP", _HINT
    if config.certificate:
        yield "its Hive client does not support client certificates", _HINT
    if kerberos and not (realm and "/" in service):
        yield "its Hive client needs the server's principal with its realm", 'write principal = "hive/_HOST@REALM"'
    if kerberos and config.user:
        yield f"it would connect as its own principal, not for user {config.user}", _HINT
    if kerberos and config.ticket_cache and os.environ.get("KRB5CCNAME") != config.ticket_cache:
        yield (
            "it reads tickets from the default cache, not from ticket_cache",
            f"set KRB5CCNAME={config.ticket_cache}, or keytab and client_principal in [metastores.NAME]",
        )
    if config.auth == "none" and config.user and config.user != whoever:
        yield f"it would connect as {whoever}, not as user {config.user}", f"set HADOOP_USER_NAME={config.user}"


def _spark_runs() -> bool:
    """Returns True if this process runs a Spark, whose settings are fixed."""
    module = sys.modules.get("pyspark")
    context = module.SparkContext._active_spark_context if module is not None else None
    return context is not None and context._jsc is not None


def _trust_store(config: MetastoreConfig) -> str:
    """Writes a trust store for Java with the certificates that `ca`, or the system, trusts."""
    try:
        trusted = ssl.create_default_context(cafile=config.ca).get_ca_certs(binary_form=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"ca {config.ca} cannot be read", hint="it must be a PEM file") from error
    if not trusted:
        raise UsageError(
            "Spark's Hive client has no trusted certificate", hint="set ca in [metastores.NAME] to a PEM file"
        )
    place = Path(tempfile.mkdtemp(prefix="replicator-trust-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    file = place / "trusted.jks"
    file.write_bytes(java_key_store(trusted))
    return str(file)


def java_key_store(certificates: Sequence[bytes]) -> bytes:
    """Returns trusted certificates (DER) in Java's JKS format, with the empty password, which protects nothing here."""
    data = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, each in enumerate(certificates):
        entry = struct.pack(">I", 2) + _utf(f"ca{number}") + struct.pack(">Q", 0) + _utf("X.509")
        data += entry + struct.pack(">I", len(each)) + each
    return data + hashlib.sha1(b"Mighty Aphrodite" + data, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
