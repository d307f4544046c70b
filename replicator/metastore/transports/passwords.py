"""SASL with a shared secret: PLAIN (RFC 4616) with a password, DIGEST-MD5 (RFC 2831) with a delegation token."""

from __future__ import annotations

import base64
import binascii
import hmac

from cmroot.digest_md5 import CIPHER, DigestLayer, parsed, replied
from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.core.connections.secret import read_secret
from replicator.errors import ConfigError, IdentityRefused
from replicator.metastore.transports.frames import Layer, Quality, Unlayered
from replicator.metastore.transports.kerberos import LEAST_QUALITY, strongest
from replicator.metastore.transports.negotiation import Layered

REALM = "default"  # of Hadoop's DIGEST-MD5, which has no protocol name either
DIGEST_URI = f"null/{REALM}"
_QUALITIES = {"auth": Quality.AUTHENTICATION, "auth-int": Quality.INTEGRITY, "auth-conf": Quality.PRIVACY}


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
        if quality is Quality.PRIVACY and CIPHER not in said.get("cipher", ""):
            raise IdentityRefused(f"the server does not know the cipher {CIPHER} of DIGEST-MD5")
        return self._response(said, quality).encode()

    def _response(self, said: dict[str, str], quality: Quality) -> str:
        qop = next(word for word, each in _QUALITIES.items() if each is quality)
        reply = replied({"realm": REALM, **said}, self._user, self._password, DIGEST_URI, qop)
        self._expected = reply.expected
        private = quality is Quality.PRIVACY
        self._layer = Unlayered() if quality is Quality.AUTHENTICATION else DigestLayer(reply.session, private)
        return reply.message


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
