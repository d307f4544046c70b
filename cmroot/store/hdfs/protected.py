"""A protected connection to a DataNode (dfs.data.transfer.protection): SASL DIGEST-MD5 with the token of a block, whose
layer signs what follows, or encrypts it, too. Not dfs.encrypt.data.transfer: only the NameNode's RPC tells its keys."""

from __future__ import annotations

import base64
import errno
import hmac
import struct
from typing import Any

from cmroot.digest_md5 import CIPHER, DigestLayer, parsed, replied
from cmroot.store.hdfs.configuration import hadoop_settings
from cmroot.store.hdfs.kerberized import kerberized
from cmroot.store.hdfs.protobuf import Stream, delimited, fields, number, received, text

_MAGIC = struct.pack(">I", 0xDEADBEEF)
_URI = "hdfs/0"
_STATUS, _PAYLOAD, _MESSAGE = 1, 2, 3
_TRUSTED = 1024  # and less: ports that only the superuser of a host opens, so Hadoop asks for no proof there
_QUALITIES = ("auth-conf", "auth-int", "auth")
_SIZE = struct.Struct(">I")

Token = tuple[bytes, bytes, bytes, bytes]


def wants_protection(token: Token, port: int) -> bool:
    """Whether the configuration says so for a DataNode at this port."""
    asked = hadoop_settings().get("dfs.data.transfer.protection")
    return bool(asked and token[0] and port > _TRUSTED and kerberized())


def protected(stream: Stream, token: Token) -> Stream:
    """The same connection, by the strongest protection that the DataNode offers. OSError when it refuses."""
    stream.write(_MAGIC)
    said = parsed(_exchange(stream, b""))
    offered = {each.strip() for each in said.get("qop", "auth").split(",")}
    qop = next((each for each in _QUALITIES if each in offered), "")
    if not qop or (qop == "auth-conf" and CIPHER not in said.get("cipher", "")):
        raise OSError(errno.EPROTO, "the DataNode offers no protection that is known here")
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
        raise OSError(errno.EACCES, f"the DataNode refuses the block's token: {said}")
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
