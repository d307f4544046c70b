"""Authentication by Hadoop's servers: SASL DIGEST-MD5 (RFC 2831) for metastores and DataNodes, and Kerberos of HDFS.

DIGEST-MD5: the client's reply, and the layer of both sides. Kerberos: authentication over HTTP (SPNEGO, RFC 4559), and
the meaning of its errors. Tickets come from Kerberos' own settings: KRB5CCNAME, or the keytab KRB5_CLIENT_KTNAME, which
the HDFS client also uses.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import http.client
import os
import re
import secrets
import struct
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from xml.etree import ElementTree

from cmroot.errors import Error, StoreIdentityRefused, StoreNotAuthenticated

# ---- DIGEST-MD5 ------------------------------------------------------------------------------------------------------


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


# ---- Kerberos of HDFS ------------------------------------------------------------------------------------------------


# ---- protobuf --------------------------------------------------------------------------------------------------------
# Protocol buffers, as far as required for communication with DataNodes.


class Stream(Protocol):
    """A connection; `read` returns as many bytes as requested, fewer at its end."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...

    def read(self, size: int, /) -> bytes: ...


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1  # the number of an erasure-coded group is negative
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + delimited(data)


def received(stream: Stream) -> bytes:
    size = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            raise ConnectionResetError(
                errno.ECONNRESET, "the DataNode closed the connection: it may require encryption"
            )
        size |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionResetError(errno.ECONNRESET, "the DataNode closed the connection")
    return data


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each field: an integer, or bytes."""
    at = 0

    def following() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        key = following()
        match key & 7:
            case 0:
                yield key >> 3, following()
            case 2:
                size = following()
                yield key >> 3, data[at : at + size]
                at += size
            case wire:
                at += {1: 8, 5: 4}[wire]


# ---- configuration ---------------------------------------------------------------------------------------------------
# The files of a Hadoop configuration, as far as this package reads them itself.


_FILES = ("core-site.xml", "hdfs-site.xml")


def hadoop_settings(conf: str | None = None) -> Mapping[str, str]:
    """Returns the settings by name; `conf`: a directory, HADOOP_CONF_DIR by default. Empty without files."""
    place = os.environ.get("HADOOP_CONF_DIR", "") if conf is None else conf
    return _read(place) if place else {}


@lru_cache(maxsize=32)
def _read(conf: str) -> Mapping[str, str]:
    found = {}
    for file in (Path(conf, name) for name in _FILES):
        if file.exists():
            for each in ElementTree.parse(file).getroot().iter("property"):
                found[each.findtext("name", "").strip()] = each.findtext("value", "").strip()
    return found


def client_settings(url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings that are missing from the configuration, which the client reads itself."""
    authority = url.partition("://")[2].partition("/")[0]
    said = _single_services(settings)
    if url.startswith("hdfs:") and not settings.get(f"dfs.ha.namenodes.{authority}") and _ATTEMPTS not in settings:
        said[_ATTEMPTS] = "4"
    if not settings.get(_KEYS, "kms:").startswith("kms:"):
        said[_KEYS] = ""
    return said


_KEYS = "hadoop.security.key.provider.path"
"""The provider of the keys of encryption zones. The client accepts only a key server, even for files outside of all
zones: without one it refuses files inside."""


_ATTEMPTS = "dfs.client.failover.max.attempts"
"""Attempts of a client before it reports a NameNode as unreachable: Hadoop's default is 15, about three minutes, for a
takeover by another NameNode. Where there is only one, 4 take about 15 seconds, and the next run continues."""


def _single_services(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns settings that present name services with one NameNode (`dfs.namenode.rpc-address.NAME`) as if they had
    several, because the client supports only those."""
    said: dict[str, str] = {}
    for name in (each.strip() for each in settings.get("dfs.nameservices", "").split(",")):
        address = settings.get(f"dfs.namenode.rpc-address.{name}")
        if address and not settings.get(f"dfs.ha.namenodes.{name}"):
            said |= {f"dfs.ha.namenodes.{name}": "only", f"dfs.namenode.rpc-address.{name}.only": address}
    return said


# ---- kerberized ------------------------------------------------------------------------------------------------------


try:
    import gssapi
except ImportError:  # the extra is not installed, or the system has no Kerberos
    gssapi = None


_SPNEGO = "1.3.6.1.5.5.2"
_TAKE = "run kinit (again), or set KRB5_CLIENT_KTNAME to a keytab; executors need tickets, too (docs/hdfs.md)"
_CAUSES: tuple[tuple[tuple[str, ...], type[Error], str], ...] = (
    (("clock skew",), StoreNotAuthenticated, "set both clocks by NTP: Kerberos allows 5 minutes"),
    (("cannot contact any kdc", "cannot find kdc", "resolve network address for kdc"), StoreNotAuthenticated,
     "check the realm's KDC in krb5.conf (KRB5_CONFIG), and that it runs"),
    (("expired", "no kerberos credentials", "no credentials cache", "credentials cache file", "no credentials were",
      "spnego cannot find mechanisms"), StoreNotAuthenticated, _TAKE),
    (("not found in kerberos database",), StoreIdentityRefused,
     "klist shows whose tickets these are: their realm must be the cluster's, or trusted by it, and krb5.conf name the"
     " realm of the NameNode's host ([domain_realm])"),
)  # fmt: skip

_OF_CLIENT = re.compile(r'GSSAPIError\(.*?, "(.*)"\)', re.DOTALL)
_LAST = re.compile(r".*(?:may provide more information|inaccessible): +", re.DOTALL)


def kerberized() -> bool:
    """Returns True if the Hadoop configuration requires Kerberos."""
    return hadoop_settings().get("hadoop.security.authentication", "simple").lower() == "kerberos"


def open_url(url: str, method: str, patience: float) -> http.client.HTTPResponse:
    """Returns the answer of a Hadoop server, with a ticket for it (`HTTP/host`) if the configuration requires Kerberos;
    a redirect's target gets none. May be repeated. Raises like urlopen, StoreNotAuthenticated, StoreIdentityRefused."""
    request = urllib.request.Request(url, method=method)
    if kerberized():
        request.add_unredirected_header("Authorization", f"Negotiate {_token(urllib.parse.urlsplit(url).hostname)}")
    return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=patience))


def kerberos_error(client: Exception) -> Error | None:
    """Returns our error for a Kerberos error of the HDFS client; None for other errors."""
    found = _OF_CLIENT.search(str(client))
    return _explained(_LAST.sub("", found[1])) if found else None


def _token(host: str | None) -> str:
    if gssapi is None:
        raise OSError(
            errno.ENOSYS, "WebHDFS with Kerberos needs the gssapi package: pip install 'replicator[kerberos]'"
        )
    try:
        service = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        mechanism = gssapi.OID.from_int_seq(_SPNEGO)
        return base64.b64encode(gssapi.SecurityContext(name=service, mech=mechanism, usage="initiate").step()).decode()
    except gssapi.exceptions.GSSError as error:
        major, _, minor = str(error.gen_message()).partition(", Minor (")
        raise _explained(minor.partition("): ")[2].strip() or major) from error


def _explained(text: str) -> Error:
    for words, kind, hint in _CAUSES:
        if any(word in text.lower() for word in words):
            return kind(f"Kerberos: {text}", hint=hint)
    return StoreIdentityRefused(f"Kerberos: {text}", hint="KRB5_TRACE=/dev/stderr shows each step")


# ---- protected -------------------------------------------------------------------------------------------------------
# A protected connection to a DataNode (dfs.data.transfer.protection): SASL DIGEST-MD5 with the token of a block, whose
# layer signs or encrypts further data. Not dfs.encrypt.data.transfer: only the NameNode's RPC provides its keys.


_MAGIC = struct.pack(">I", 0xDEADBEEF)
_URI = "hdfs/0"
_STATUS, _PAYLOAD, _MESSAGE = 1, 2, 3
_TRUSTED = 1024  # and less: ports that only the superuser of a host opens, so Hadoop requires no authentication there
_QUALITIES = ("auth-conf", "auth-int", "auth")
_SIZE = struct.Struct(">I")

Token = tuple[bytes, bytes, bytes, bytes]


def wants_protection(token: Token, port: int) -> bool:
    """Returns True if the configuration requires protection for a DataNode at this port."""
    asked = hadoop_settings().get("dfs.data.transfer.protection")
    return bool(asked and token[0] and port > _TRUSTED and kerberized())


def protected(stream: Stream, token: Token) -> Stream:
    """Returns the connection with the strongest protection that the DataNode offers. Raises OSError if it refuses."""
    stream.write(_MAGIC)
    said = parsed(_exchange(stream, b""))
    offered = {each.strip() for each in said.get("qop", "auth").split(",")}
    qop = next((each for each in _QUALITIES if each in offered), "")
    if not qop or (qop == "auth-conf" and CIPHER not in said.get("cipher", "")):
        raise OSError(errno.EPROTO, "the DataNode offers no protection that this client supports")
    user, password = (base64.b64encode(each).decode() for each in token[:2])
    reply = replied({"realm": "0", **said}, user, password, _URI, qop)
    proof = parsed(_exchange(stream, reply.message.encode())).get("rspauth", "")
    if not hmac.compare_digest(proof.encode(), reply.expected.encode()):
        raise OSError(errno.EPROTO, "the DataNode does not know the block's token")
    return stream if qop == "auth" else _Sealed(stream, DigestLayer(reply.session, qop == "auth-conf"))


def _exchange(stream: Stream, payload: bytes) -> bytes:
    stream.write(delimited(number(_STATUS, 0) + text(_PAYLOAD, payload)))
    stream.flush()
    answer: dict[int, Any] = dict(fields(received(stream)))
    if answer.get(_STATUS):
        said = answer.get(_MESSAGE, b"").decode(errors="replace")
        raise OSError(errno.EACCES, f"the DataNode refused the block's token: {said}")
    return bytes(answer.get(_PAYLOAD, b""))


class _Sealed:
    def __init__(self, stream: Stream, layer: DigestLayer) -> None:
        self._stream, self._layer, self._unread = stream, layer, b""

    def write(self, data: bytes, /) -> None:
        sealed = self._layer.wrap(data)
        self._stream.write(_SIZE.pack(len(sealed)) + sealed)

    def flush(self) -> None:
        self._stream.flush()

    def read(self, size: int, /) -> bytes:
        while len(self._unread) < size and len(head := self._stream.read(_SIZE.size)) == _SIZE.size:
            try:
                self._unread += self._layer.unwrap(self._stream.read(_SIZE.unpack(head)[0]))
            except EOFError as error:
                raise ConnectionAbortedError(errno.ECONNABORTED, f"the DataNode: {error}") from error
        found, self._unread = self._unread[:size], self._unread[size:]
        return found
