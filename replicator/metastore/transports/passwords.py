"""SASL with a shared secret: PLAIN (RFC 4616) with a password, DIGEST-MD5 (RFC 2831) with a delegation token."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.core.connections.secret import read_secret
from replicator.errors import ConfigError, IdentityRefused
from replicator.metastore.transports.frames import FrameError, Layer, Quality, Unlayered
from replicator.metastore.transports.kerberos import LEAST_QUALITY, strongest
from replicator.metastore.transports.negotiation import Layered

REALM = "default"  # of Hadoop's DIGEST-MD5, which has no protocol name either
DIGEST_URI = f"null/{REALM}"
_QUALITIES = {"auth": Quality.AUTHENTICATION, "auth-int": Quality.INTEGRITY, "auth-conf": Quality.PRIVACY}
_CIPHER = "rc4"  # the one that every implementation has; encryption proper is TLS below it
_PAIR = re.compile(r'[\s,]*+([\w-]++)\s*+=\s*+(?:"((?:[^"\\]++|\\.)*+)"|([^,\s]*+))\s*+(?:,|$)')


class PlainPassword:
    """SASL PLAIN."""

    name = "PLAIN"
    refused = "check user and password in [metastores.NAME]"
    complete = True  # with its first message
    layer: Layer = Unlayered()

    def __init__(self, config: MetastoreConfig) -> None:
        self.shown = f"user {config.user}"
        self._said = f"\0{config.user}\0{read_secret(config.password or '', 'password')}".encode()

    def first(self) -> bytes:
        return self._said

    def answer(self, challenge: bytes) -> bytes:
        raise IdentityRefused("the server asks for more than a password")


class Digest(Layered):
    """SASL DIGEST-MD5 as a delegation token's owner."""

    name = "DIGEST-MD5"
    refused = "get another delegation token: this one has expired, was cancelled, or is another metastore's"
    shown = "the delegation token"

    def __init__(self, token: str, config: MetastoreConfig) -> None:
        self._user, self._password = credentials_of(token)
        self._least = LEAST_QUALITY[config.protection]
        self._expected = ""
        self.complete = False

    def first(self) -> bytes:
        return b""

    def answer(self, challenge: bytes) -> bytes:
        said = parsed(challenge)
        if self._expected:
            if not hmac.compare_digest(said.get("rspauth", "").encode(), self._expected.encode()):
                raise IdentityRefused("the server does not know the delegation token", hint=self.refused)
            self.complete = True
            return b""
        offered = [each.strip() for each in said.get("qop", "auth").split(",")]
        known = sum(_QUALITIES[each] for each in offered if each in _QUALITIES)
        quality = strongest(known, self._least)
        if quality is Quality.PRIVACY and _CIPHER not in said.get("cipher", ""):
            raise IdentityRefused(f"the server does not know the cipher {_CIPHER} of DIGEST-MD5")
        return self._response(said, quality).encode()

    def _response(self, said: dict[str, str], quality: Quality) -> str:
        qop = next(word for word, each in _QUALITIES.items() if each is quality)
        nonce, cnonce, count = said.get("nonce", ""), secrets.token_hex(16), "00000001"
        realm = said.get("realm", REALM)
        start = _md5(f"{self._user}:{realm}:{self._password}".encode()) + f":{nonce}:{cnonce}".encode()
        key = _md5(start)

        def digest(verb: str) -> str:
            uri = f"{verb}:{DIGEST_URI}" + (f":{'0' * 32}" if quality is not Quality.AUTHENTICATION else "")
            return _hex(f"{key.hex()}:{nonce}:{count}:{cnonce}:{qop}:{_hex(uri)}")

        self._expected = digest("")
        self._layer = Unlayered() if quality is Quality.AUTHENTICATION else DigestLayer(key, quality is Quality.PRIVACY)
        cipher = f",cipher={_CIPHER}" if quality is Quality.PRIVACY else ""
        return (
            f'charset=utf-8,username="{self._user}",realm="{realm}",nonce="{nonce}",nc={count},cnonce="{cnonce}",'
            f'digest-uri="{DIGEST_URI}",maxbuf=65536,response={digest("AUTHENTICATE")},qop={qop}{cipher}'
        )


class DigestLayer:
    """DIGEST-MD5's layer, of either side: each message is signed and numbered, with `private` also encrypted."""

    lasts = True
    _SIGNING = (
        b"Digest session key to client-to-server signing key magic constant",
        b"Digest session key to server-to-client signing key magic constant",
    )
    _SEALING = (
        b"Digest H(A1) to client-to-server sealing key magic constant",
        b"Digest H(A1) to server-to-client sealing key magic constant",
    )
    _SIGNATURE = 10  # bytes
    _TAIL = struct.Struct(">HI")

    def __init__(self, session: bytes, private: bool = False, *, server: bool = False) -> None:
        mine, peers = (1, 0) if server else (0, 1)
        self._own, self._peers = _md5(session + self._SIGNING[mine]), _md5(session + self._SIGNING[peers])
        seals = [Rc4(_md5(session + each)) if private else None for each in self._SEALING]
        self._seal, self._unseal = seals[mine], seals[peers]
        self._sent = self._received = 0

    def wrap(self, data: bytes) -> bytes:
        body = data + self._signature(self._own, self._sent, data)
        tail = self._TAIL.pack(1, self._sent)
        self._sent += 1
        return (self._seal.apply(body) if self._seal else body) + tail

    def unwrap(self, data: bytes) -> bytes:
        body, tail = data[: -self._TAIL.size], data[-self._TAIL.size :]
        if self._unseal:
            body = self._unseal.apply(body)
        content, signature = body[: -self._SIGNATURE], body[-self._SIGNATURE :]
        expected = self._signature(self._peers, self._received, content)
        if not hmac.compare_digest(signature, expected) or tail != self._TAIL.pack(1, self._received):
            raise FrameError("a frame's signature is wrong")
        self._received += 1
        return content

    def _signature(self, key: bytes, number: int, data: bytes) -> bytes:
        return hmac.digest(key, number.to_bytes(4, "big") + data, "md5")[: self._SIGNATURE]


class Rc4:
    """The stream cipher; its state goes on from message to message."""

    def __init__(self, key: bytes) -> None:
        self._state, self._i, self._j = list(range(256)), 0, 0
        other = 0
        for index in range(256):
            other = (other + self._state[index] + key[index % len(key)]) & 255
            self._state[index], self._state[other] = self._state[other], self._state[index]

    def apply(self, data: bytes) -> bytes:
        state, i, j = self._state, self._i, self._j
        stream = bytearray(len(data))
        for index in range(len(data)):
            i = (i + 1) & 255
            one = state[i]
            j = (j + one) & 255
            state[i] = other = state[j]
            state[j] = one
            stream[index] = state[(one + other) & 255]
        self._i, self._j = i, j
        both = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
        return both.to_bytes(len(data), "big")


def credentials_of(token: str) -> tuple[str, str]:
    """User and password of a delegation token in Hadoop's URL encoding. Raises ConfigError, which does not show it."""
    try:
        data = base64.urlsafe_b64decode(token.strip() + "=" * (-len(token.strip()) % 4))
        identifier, rest = counted(data)
        password, _ = counted(rest)
        if not identifier or not password:
            raise ValueError
    except (binascii.Error, ValueError, IndexError):
        raise ConfigError(
            "token: not a delegation token in Hadoop's URL encoding", hint="see docs/configuration.md"
        ) from None
    return base64.b64encode(identifier).decode(), base64.b64encode(password).decode()


def counted(data: bytes) -> tuple[bytes, bytes]:
    """Bytes behind their number, and the rest. Hadoop writes a number up to 127 as a byte, others behind their size."""
    first = data[0]
    if first < 128:
        size, begin = first, 1
    elif 136 <= first < 144:  # 0x8f: one byte follows, 0x8e: two...
        begin = 1 + 144 - first
        size = int.from_bytes(data[1:begin], "big")
    else:
        raise ValueError(first)
    if len(data) < begin + size:
        raise ValueError(size)
    return data[begin : begin + size], data[begin + size :]


def parsed(challenge: bytes) -> dict[str, str]:
    """The pairs of a message of DIGEST-MD5, up to what is none. In time proportional to its size: who sends it has
    proved nothing yet."""
    text, at = challenge.decode("utf-8", "replace"), 0
    found: dict[str, str] = {}
    while match := _PAIR.match(text, at):
        at = match.end()
        value = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        found.setdefault(match[1].lower(), value)
    return found


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(text: str) -> str:
    return _md5(text.encode()).hex()
