"""SASL DIGEST-MD5 (RFC 2831), used by metastores and DataNodes: the client's reply, and the layer of both sides."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Mapping
from typing import NamedTuple

CIPHER = "rc4"  # supported by every implementation
_PAIR = re.compile(r'[\s,]*+([\w-]++)\s*+=\s*+(?:"((?:[^"\\]++|\\.)*+)"|([^,\s]*+))\s*+(?:,|$)')


class FrameError(EOFError):
    """The peer violated the framing."""


class Reply(NamedTuple):
    """message: sent to the server; expected: the `rspauth` that it must return; session: the key of the layer."""

    message: str
    expected: str
    session: bytes


def replied(said: Mapping[str, str], user: str, password: str, uri: str, qop: str) -> Reply:
    """Returns the reply to a challenge, which must contain a realm; qop: `auth`, `auth-int` or `auth-conf`."""
    nonce, cnonce, count, realm = said.get("nonce", ""), secrets.token_hex(16), "00000001", said["realm"]
    start = _md5(f"{user}:{realm}:{password}".encode()) + f":{nonce}:{cnonce}".encode()
    key = _md5(start)

    def digest(verb: str) -> str:
        place = f"{verb}:{uri}" + (f":{'0' * 32}" if qop != "auth" else "")
        return _hex(f"{key.hex()}:{nonce}:{count}:{cnonce}:{qop}:{_hex(place)}")

    cipher = f",cipher={CIPHER}" if qop == "auth-conf" else ""
    message = (
        f'charset=utf-8,username="{user}",realm="{realm}",nonce="{nonce}",nc={count},cnonce="{cnonce}",'
        f'digest-uri="{uri}",maxbuf=65536,response={digest("AUTHENTICATE")},qop={qop}{cipher}'
    )
    return Reply(message, digest(""), key)


class DigestLayer:
    """The DIGEST-MD5 layer of either side: each message is signed and numbered, with `private` also encrypted."""

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
    """The RC4 stream cipher; its state continues from message to message."""

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


def parsed(challenge: bytes) -> dict[str, str]:
    """Returns the pairs of a DIGEST-MD5 message up to the first invalid one. Takes time proportional to its size,
    because the sender is not authenticated yet."""
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
