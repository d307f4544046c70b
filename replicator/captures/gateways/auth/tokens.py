"""Delegation tokens of the gateway, in Hadoop's format, and the server's side of SASL DIGEST-MD5 (RFC 2831) with them.

A token contains its owner and expiry, and its password is a signature of that: any holder of the key, and any gateway
with the same key, can verify it. Cancelled tokens are remembered until the gateway ends.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cmroot.authentication import DigestLayer, parsed
from replicator.captures.gateways.auth.door import NotAdmitted
from replicator.captures.gateways.auth.local_names import LocalNames, NoLocalUser
from replicator.metastore.sasl import DIGEST_URI, REALM, counted
from replicator.metastore.transport import Layer, Quality, Unlayered

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
            raise TokenRefused("what the client gives is no delegation token") from None
        with self._lock:
            cancelled = identifier in self._cancelled
        if cancelled or found.until < self._clock():
            raise TokenRefused(
                f"the delegation token of {found.owner} {'was cancelled' if cancelled else 'has run out'}"
            )
        return found.owner, base64.b64encode(self._password(identifier)).decode()

    def _own(self, user: str, token: str) -> Token:
        try:
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            identifier, rest = counted(data)
            signature, _ = counted(rest)
            found = _read(identifier)
        except (ValueError, IndexError, binascii.Error):
            raise TokenRefused("this is no delegation token") from None
        if not hmac.compare_digest(signature, self._password(identifier)):
            raise TokenRefused("this delegation token is not of this gateway")
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
    """Authentication by a delegation token of the gateway. See `door.Proof`."""

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
            raise NotAdmitted(f"the client does not answer the challenge; protections: {qualities}")
        if said.get("authzid"):
            raise NotAdmitted("a delegation token is its owner's")
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
        raise ValueError("a version that is not known")
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
