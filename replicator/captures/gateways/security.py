"""Security of a gateway: what its clients must prove, delegation tokens, and the state that connections share.

Tokens are in Hadoop's format; a client proves its token by SASL DIGEST-MD5 (RFC 2831). A token contains its owner and
expiry, and its password is a signature of that: any holder of the key, and any gateway with the same key, can verify
it. Cancelled tokens are remembered until the gateway ends.
Section `risks` compares the gateway's two sides: it gives no client access to the metastore, and no rights there, that
the client would not have otherwise. Weaker configurations are refused, or logged if they are allowed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta

from cmroot.authentication import DigestLayer, parsed
from replicator.captures.gateways.client_authentication import GSSAPI, Authenticator, KerberosProof, NotAdmitted, Proof
from replicator.captures.gateways.drops import GRACE, Counts, Drops
from replicator.captures.gateways.local_names import LocalNames, NoLocalUser, parse_rules
from replicator.captures.gateways.upstream import Asked
from replicator.core.connections import GatewayConfig, MetastoreConfig, Risk, read_secret
from replicator.errors import ConfigError, UsageError
from replicator.metastore.sasl import DIGEST_URI, LEAST_QUALITY, REALM, counted
from replicator.metastore.transport import Layer, Quality, Unlayered

# ---- delegation tokens -----------------------------------------------------------------------------------------------


MECHANISM = "DIGEST-MD5"
KIND = b"HIVE_DELEGATION_TOKEN"
LIFE = 7 * 86400  # seconds, Hadoop's own maximum
_COUNT = "00000001"
_QUALITIES = {"auth": Quality.AUTHENTICATION, "auth-int": Quality.INTEGRITY, "auth-conf": Quality.PRIVACY}
_CIPHER = "rc4"  # the one that our layer supports; real encryption is TLS below it


class TokenRefused(Exception):
    """Raised if a token is not issued, renewed or cancelled. The message contains the reason."""


@dataclass(frozen=True)
class Token:
    """A parsed token. identifier: its bytes as clients have them; until: in seconds since 1970."""

    identifier: bytes
    owner: str
    renewer: str
    until: float


class Tokens:
    """Thread-safe. names: the users of owners and renewers; proxies: users who may request tokens for others."""

    def __init__(
        self, key: str, names: LocalNames, proxies: Collection[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._key, self._names, self._proxies, self._clock = key.encode(), names, frozenset(proxies), clock
        self._cancelled: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def give(self, user: str, owner: str, renewer: str) -> str:
        """Returns a token of `owner`, requested by `user`, in Hadoop's URL encoding. Raises TokenRefused."""
        try:
            owner = self._names.named(owner) if owner else user
        except NoLocalUser as error:
            raise TokenRefused(str(error)) from error
        if owner != user and user not in self._proxies:
            raise TokenRefused(f"{user} may not act for {owner}: it is not in proxy_users of the gateway")
        now = self._clock()
        identifier = (
            b"\0"
            + b"".join(_text(each) for each in (owner, renewer, user if owner != user else ""))
            + b"".join(_number(int(each * 1000)) for each in (now, now + LIFE))
            + _number(secrets.randbits(31))
            + _number(1)
        )
        parts = (identifier, self._password(identifier), KIND, b"")
        data = b"".join(_number(len(each)) + each for each in parts)
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    def renewed(self, user: str, token: str) -> int:
        """Returns the end of a token's validity, in milliseconds; a renewal does not extend it. Raises TokenRefused."""
        return int(self._own(user, token).until * 1000)

    def cancel(self, user: str, token: str) -> None:
        """Cancels a token. May run twice. Raises TokenRefused."""
        found, now = self._own(user, token), self._clock()
        with self._lock:
            self._cancelled = {each: until for each, until in self._cancelled.items() if until > now}
            self._cancelled[found.identifier] = found.until

    def password(self, username: str) -> tuple[str, str]:
        """Returns (owner, password) of the token whose identifier a client sent. Raises TokenRefused."""
        try:
            identifier = base64.b64decode(username, validate=True)
            found = _read(identifier)
        except (ValueError, IndexError, binascii.Error):
            raise TokenRefused("the client's token is not a delegation token") from None
        with self._lock:
            cancelled = identifier in self._cancelled
        if cancelled or found.until < self._clock():
            raise TokenRefused(
                f"the delegation token of {found.owner} {'was cancelled' if cancelled else 'has expired'}"
            )
        return found.owner, base64.b64encode(self._password(identifier)).decode()

    def _own(self, user: str, token: str) -> Token:
        try:
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            identifier, rest = counted(data)
            signature, _ = counted(rest)
            found = _read(identifier)
        except (ValueError, IndexError, binascii.Error):
            raise TokenRefused("this is not a delegation token") from None
        if not hmac.compare_digest(signature, self._password(identifier)):
            raise TokenRefused("this delegation token was not issued by this gateway")
        if user != found.owner and not self._renews(user, found.renewer):
            raise TokenRefused(f"{user} is neither owner nor renewer of the delegation token")
        return found

    def _renews(self, user: str, renewer: str) -> bool:
        try:
            return user == self._names.named(renewer)
        except NoLocalUser:
            return False

    def _password(self, identifier: bytes) -> bytes:
        return hmac.digest(self._key, identifier, "sha256")


class DigestProof:
    """Authentication by a delegation token of the gateway. See `authentication.Proof`."""

    def __init__(self, tokens: Tokens, least: Quality) -> None:
        self._tokens = tokens
        self._offered = [name for name, each in _QUALITIES.items() if each >= least]

    def accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        nonce = secrets.token_urlsafe(24)
        qualities = ",".join(self._offered)
        words = f'realm="{REALM}",nonce="{nonce}",qop="{qualities}",cipher="{_CIPHER}"'
        challenge = f"{words},charset=utf-8,algorithm=md5-sess"
        said = parsed(exchange(challenge.encode()))
        quality = said.get("qop", "auth")
        private = quality == "auth-conf"
        expected = {"nonce": nonce, "nc": _COUNT, "realm": REALM, "digest-uri": DIGEST_URI}
        expected |= {"cipher": _CIPHER} if private else {}
        if quality not in self._offered or any(said.get(key) != value for key, value in expected.items()):
            raise NotAdmitted(f"the client's response does not match the challenge; protections: {qualities}")
        if said.get("authzid"):
            raise NotAdmitted("a delegation token is valid only for its owner")
        try:
            owner, password = self._tokens.password(said.get("username", ""))
        except TokenRefused as error:
            raise NotAdmitted(str(error)) from error
        start = _md5(f"{said['username']}:{REALM}:{password}".encode()) + f":{nonce}:{said.get('cnonce', '')}".encode()
        key = _md5(start)

        def digest(verb: str) -> str:
            uri = f"{verb}:{DIGEST_URI}" + (f":{'0' * 32}" if quality != "auth" else "")
            what = f"{key.hex()}:{nonce}:{_COUNT}:{said.get('cnonce', '')}:{quality}:{_md5(uri.encode()).hex()}"
            return _md5(what.encode()).hex()

        if not hmac.compare_digest(said.get("response", "").encode(), digest("AUTHENTICATE").encode()):
            raise NotAdmitted(f"the client does not know the password of the delegation token of {owner}")
        exchange(f"rspauth={digest('')}".encode())
        return owner, Unlayered() if quality == "auth" else DigestLayer(key, private, server=True)


def _read(identifier: bytes) -> Token:
    """Parses a token's identifier. Raises ValueError, IndexError."""
    if identifier[0]:
        raise ValueError("unknown version")
    owner, rest = counted(identifier[1:])
    renewer, rest = counted(rest)
    _, rest = counted(rest)
    _, rest = _long(rest)
    until, _ = _long(rest)
    return Token(identifier, owner.decode(), renewer.decode(), until / 1000)


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data)) + data


def _number(number: int) -> bytes:
    """Encodes a number as Hadoop's WritableUtils do: up to 127 in one byte, others after their size."""
    if number < 128:
        return bytes([number])
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([144 - len(data)]) + data


def _long(data: bytes) -> tuple[int, bytes]:
    if data[0] < 128:
        return data[0], data[1:]
    size = 144 - data[0]
    if not 0 < size <= 8:
        raise ValueError(data[0])
    return int.from_bytes(data[1 : 1 + size], "big"), data[1 + size :]


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


# ---- state that all connections share --------------------------------------------------------------------------------


PLAIN = GatewayConfig()


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of each side. `client`: to finish sending a call (also the first one of a connection), and to read a
    chunk of an answer; `answer`: for the metastore, until an answer begins, and between its chunks; `stop`: for running
    calls when the gateway is stopped."""

    client: timedelta = timedelta(minutes=1)
    answer: timedelta = timedelta(minutes=10)  # Hive's own, hive.metastore.client.socket.timeout
    stop: timedelta = timedelta(seconds=20)


@dataclass(frozen=True)
class GatewaySettings:
    """threads: maximum number of connections; pass_unknown: calls unknown to this release are forwarded; grace: see
    `drops.GRACE`; security: what clients must prove."""

    threads: int = 1000
    pass_unknown: bool = False
    grace: timedelta = GRACE
    timeouts: Timeouts = Timeouts()
    security: GatewayConfig = PLAIN


@dataclass(frozen=True)
class Service:
    """State that all connections of a gateway share. `stopping`: a descriptor that becomes readable when the gateway is
    to stop; `large`: permits for large calls, which are read completely."""

    authenticator: Authenticator
    metastore: Asked
    tokens: Tokens | None
    drops: Drops
    counts: Counts
    stopping: int
    pass_unknown: bool
    timeouts: Timeouts
    large: threading.Semaphore


class Place:
    """The permit of one connection for large calls; it holds at most one."""

    def __init__(self, places: threading.Semaphore) -> None:
        self._places, self._has = places, False

    def take(self, seconds: float) -> bool:
        """Returns True if the permit is held within this many seconds."""
        self._has = self._has or self._places.acquire(timeout=seconds)
        return self._has

    def leave(self) -> None:
        if self._has:
            self._places.release()
        self._has = False


# ---- risks, and the parts that a configuration demands ---------------------------------------------------------------


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


def make_authenticator(config: GatewayConfig, tokens: Tokens | None = None) -> Authenticator:
    """Returns the authentication of clients. Raises UsageError for certificates and keytabs that cannot be read,
    ConfigError for an invalid secret or rule."""
    proofs: dict[str, Proof] = {}
    if config.principal and config.keytab:
        proofs[GSSAPI] = KerberosProof(config.principal, config.keytab, _names(config), config.protection)
    if tokens is not None:
        least = Quality.AUTHENTICATION if config.certificate else LEAST_QUALITY[config.protection]
        proofs[MECHANISM] = DigestProof(tokens, least)
    return Authenticator(_context(config) if config.certificate else None, proofs, config.transport == "framed")


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
            f"the metastore authenticates its clients ({metastore.described()}), but the gateway does not",
            "set principal and keytab, or client_ca, in [gateway]",
        )
    if metastore.auth == "kerberos" and config.authenticates and not config.principal:
        yield (
            "unauthenticated",
            "the metastore identifies its clients by Kerberos, but the gateway by certificates, which name no user",
            "set principal and keytab in [gateway]",
        )
    if _encrypts(metastore) and not config.encrypts and not _is_loopback(host):
        yield (
            "unencrypted",
            "connections to the metastore are encrypted, but those to the gateway are not",
            'set certificate and key in [gateway], or protection = "privacy" with Kerberos',
        )
    if metastore.auth == "kerberos" and "own-identity" in config.allow:
        yield (
            "own-identity",
            "all clients have the rights of the gateway's own principal at the metastore",
            'remove "own-identity" from allow',
        )
    if shares_identity(metastore):
        yield (
            "own-identity",
            f"the metastore gives all clients the rights of the gateway's own identity ({metastore.described()})",
            "use Kerberos, with which the gateway acts as its client",
        )


def check_risks(config: GatewayConfig, metastore: MetastoreConfig, host: str) -> None:
    """Logs risks that are allowed. Raises UsageError for any other one."""
    for risk, what, hint in risks(config, metastore, host):
        if risk not in config.allow:
            raise UsageError(
                f"{what}: any process that can connect to the gateway would get access",
                hint=f'{hint}; or allow = ["{risk}"]',
            )
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
