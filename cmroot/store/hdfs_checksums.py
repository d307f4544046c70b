"""COMPOSITE-CRC of files on HDFS: the CRC of an entire file, combined from those stored by its DataNodes. Independent
of the block size, and computed without reading the file.

The NameNode names the blocks (WebHDFS), a DataNode returns the CRC of each (its data transfer protocol, in plain text
or protected).
"""

from __future__ import annotations

import base64
import errno
import getpass
import http.client
import json
import os
import socket
import struct
import time
import urllib.error
import urllib.parse
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

from cmroot.authentication import (
    delimited,
    fields,
    hadoop_settings,
    kerberized,
    number,
    open_url,
    protected,
    received,
    text,
    wants_protection,
)
from cmroot.store.spelling import normal, scheme, split_authority

# ---- checksums -------------------------------------------------------------------------------------------------------
# HDFS's own checksum of a file, queried from its NameNode by WebHDFS: MD5 of the MD5s of its blocks' CRCs. It depends
# on the block size: it distinguishes files on one filesystem, but cannot compare contents across two.


PATIENCE = 60.0
"""Seconds to wait for an answer: a DataNode reads the CRCs of a block of 128 MiB in a fraction of one."""

_PORT = 9870
_ERRNO = {
    "FileNotFoundException": errno.ENOENT,
    "AccessControlException": errno.EACCES,
    "StandbyException": errno.EAGAIN,
}


def hdfs_checksum(path: str) -> str:
    """Returns 56 hex digits, as in the metastore's names of recycled files. Raises FileNotFoundError without a file,
    OSError with the NameNode's reason otherwise: no WebHDFS, no access."""
    answer = ask(path, "GETFILECHECKSUM")["FileChecksum"]
    return cast(str, answer["bytes"])[: 2 * int(answer["length"])]


def ask(path: str, operation: str, method: str = "GET", **parameters: str) -> dict[str, Any]:
    """Returns the answer of a path's active NameNode to one operation; empty if there is no content. A truncated answer
    is an OSError, too. With another method than GET the operation may have been executed nevertheless."""
    store, key = split_authority(normal(path))
    user = {} if kerberized() else {"user.name": _user()}  # a ticket identifies the user
    about = urllib.parse.urlencode({"op": operation, **user, **parameters})
    standing: OSError | None = None
    for address in web_addresses(store, os.environ.get("HADOOP_CONF_DIR", "")):
        url = f"{address}/webhdfs/v1{urllib.parse.quote(key or '/')}?{about}"
        try:
            with open_url(url, method, PATIENCE) as answer:
                return cast(dict[str, Any], json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            found = _refused(error, path)
            if found.errno != errno.EAGAIN:
                raise found from None
            standing = found
        except urllib.error.URLError as error:
            standing = error.reason if isinstance(error.reason, OSError) else error
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(errno.EIO, f"WebHDFS: the answer to {operation} cannot be read: {error}", path) from None
    raise standing or OSError(errno.ENODATA, "no NameNode is known", path)


def in_zone(directory: str) -> bool:
    """Returns True if files created in a directory are in an encryption zone; False if it does not exist or is not on
    HDFS. One request (WebHDFS). Raises OSError with the NameNode's reason."""
    if scheme(directory) != "hdfs":
        return False
    try:
        return bool(ask(directory, "GETFILESTATUS")["FileStatus"].get("encBit"))
    except FileNotFoundError:
        return False


_silent: dict[str, float] = {}
"""Clusters whose WebHDFS has not answered in time, and until when this process does not ask it again."""


def carry_extended(source: str, target: str) -> None:
    """Copies the extended attributes in `user.`: others belong to the superuser or the server. May run twice. Raises
    TimeoutError also without asking, if WebHDFS has not answered for another file: each of many would wait for it."""
    store, _ = split_authority(normal(source))
    if time.monotonic() < _silent.get(store, 0.0):
        raise TimeoutError(errno.ETIMEDOUT, "WebHDFS has not answered before", source)
    try:
        found = ask(source, "GETXATTRS", encoding="hex")["XAttrs"]
    except TimeoutError:
        _silent[store] = time.monotonic() + 5 * PATIENCE
        raise
    for each in found:
        if each["name"].startswith("user."):
            about = {"xattr.name": each["name"], "xattr.value": each.get("value") or "0x"}
            ask(target, "SETXATTR", method="PUT", flag="CREATE,REPLACE", **about)


def _refused(error: urllib.error.HTTPError, path: str) -> OSError:
    try:
        said = json.load(error)["RemoteException"]
        kind, message = said["exception"], said["message"].partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = str(error.code), error.reason
    return OSError(_ERRNO.get(kind, errno.EIO), f"WebHDFS: {kind}: {message}", path)


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


@lru_cache(maxsize=32)
def web_addresses(store: str, conf: str) -> tuple[str, ...]:
    """Returns the NameNodes' HTTP servers of `hdfs://host:port` or `hdfs://service`, by the Hadoop configuration."""
    settings = hadoop_settings(conf)
    scheme = "https" if settings.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    key, authority = f"dfs.namenode.{scheme}-address", store.partition("://")[2]
    host = authority.partition(":")[0]
    nodes = [each.strip() for each in settings.get(f"dfs.ha.namenodes.{authority}", "").split(",") if each.strip()]
    rpc = "dfs.namenode.rpc-address"
    by_address = [
        name.removeprefix(rpc) for name, value in settings.items() if name.startswith(rpc) and value == authority
    ]
    suffixes = [f".{authority}.{node}" for node in nodes] or [f".{authority}", *by_address, ""]
    written = [
        settings.get(key + suffix, "").replace("0.0.0.0", settings.get(rpc + suffix, host).partition(":")[0])
        for suffix in suffixes
    ]
    written = written if nodes else [each for each in written if each][:1]
    found = [each for each in written if each] or [f"{host}:{_PORT if scheme == 'http' else _PORT + 1}"]
    return tuple(f"{scheme}://{each}" for each in found)


# ---- composite -------------------------------------------------------------------------------------------------------


_VERSION, _BLOCK_CHECKSUM = 28, 85  # of the protocol; its operation
_COMPOSITE = 2
_POLYNOMIALS = {1: 0xEDB88320, 2: 0x82F63B78}  # CRC32, CRC32C; bits reversed
_NAMES = {1: "crc32", 2: "crc32c"}


@dataclass(frozen=True)
class Block:
    """pool, number, stamp: the block's identity; token: the right to read it; nodes: (host, port) that have it."""

    pool: str
    number: int
    stamp: int
    size: int
    token: tuple[bytes, bytes, bytes, bytes]
    nodes: tuple[tuple[str, int], ...]


class Crc(NamedTuple):
    """A CRC. kind: crc32 or crc32c, by the setting with which a file was written; two kinds cannot be compared."""

    kind: str
    value: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.value:08x}"


def composite_crc(path: str) -> Crc | None:
    """Returns the checksum; None for a file that is being written, or has two kinds. Raises FileNotFoundError, or
    OSError when WebHDFS or the DataNodes cannot answer: they require encryption with keys of the NameNode, or the file
    is erasure-coded."""
    found: Crc | None = None
    located = ask(path, "GET_BLOCK_LOCATIONS")["LocatedBlocks"]
    if located.get("isUnderConstruction"):
        return None
    for block in map(_block, located["locatedBlocks"]):
        kind, value = _crc_of(block)
        if found is None:
            found = Crc(_NAMES[kind], value)
        elif found.kind != _NAMES[kind]:
            return None
        else:
            found = Crc(found.kind, combined(found.value, value, block.size, _POLYNOMIALS[kind]))
    return found or Crc(_NAMES[2], 0)


def combined(first: int, second: int, size: int, polynomial: int) -> int:
    """Returns the CRC of two concatenated parts, the second of `size` bytes."""
    return _times(_shift(size, polynomial), first, polynomial) ^ second


def _times(a: int, b: int, polynomial: int) -> int:
    """Returns the product of two polynomials modulo a third; the highest bit is the coefficient of 1."""
    product, bit = 0, 1 << 31
    while bit:
        if a & bit:
            product ^= b
        bit >>= 1
        b = (b >> 1) ^ polynomial if b & 1 else b >> 1
    return product


@lru_cache(maxsize=1000)
def _shift(size: int, polynomial: int) -> int:
    """Returns x to the power of the number of bits of `size` bytes."""
    power, square = 1 << 31, 1 << 23  # x^0, x^8
    while size:
        if size & 1:
            power = _times(power, square, polynomial)
        size, square = size >> 1, _times(square, square, polynomial)
    return power


def _block(said: dict[str, Any]) -> Block:
    block = said["block"]
    nodes = tuple((node["ipAddr"], int(node["xferPort"])) for node in said["locations"])
    token = _token(said["blockToken"]["urlString"])
    return Block(block["blockPoolId"], block["blockId"], block["generationStamp"], block["numBytes"], token, nodes)


def _crc_of(block: Block) -> tuple[int, int]:
    """Returns kind and value, from the first DataNode that answers."""
    failed = OSError(errno.ENODATA, f"no DataNode has block {block.number}")
    for node in block.nodes:
        try:
            with socket.create_connection(node, PATIENCE) as connection, connection.makefile("rwb") as stream:
                way = protected(stream, block.token) if wants_protection(block.token, node[1]) else stream
                way.write(struct.pack(">hB", _VERSION, _BLOCK_CHECKSUM) + delimited(_request(block)))
                way.flush()
                return _understood(block, received(way))
        except OSError as error:
            failed = error
    raise failed


def _request(block: Block) -> bytes:
    extended = text(1, block.pool.encode()) + number(2, block.number) + number(3, block.stamp)
    extended += number(4, block.size)
    token = b"".join(text(1 + index, part) for index, part in enumerate(block.token))
    return text(1, text(1, extended) + text(2, token)) + text(2, number(1, _COMPOSITE))


def _understood(block: Block, answer: bytes) -> tuple[int, int]:
    found = dict(fields(answer))
    if found.get(1) != 0:
        said = found.get(5, b"")
        raise OSError(errno.EIO, f"block {block.number}: {said.decode(errors='replace') if said else found.get(1)}")
    checksum = dict(fields(found[3]))
    options, kind = dict(fields(checksum.get(5, b""))), checksum.get(4)
    if options.get(1) != _COMPOSITE or kind not in _NAMES or len(checksum[3]) != 4:
        raise OSError(errno.EIO, f"block {block.number}: its DataNode does not support COMPOSITE-CRC")
    return kind, int.from_bytes(checksum[3], "big")


def _token(text: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns identifier, password, kind and service from Hadoop's text form of a token."""
    data, at, parts = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), 0, []
    for _ in range(4):
        first = struct.unpack_from("b", data, at)[0]
        at, size = at + 1, first
        if first < -112:  # so many bytes follow
            wide = -112 - first
            size, at = int.from_bytes(data[at : at + wide], "big"), at + wide
        parts.append(data[at : at + size])
        at += size
    return parts[0], parts[1], parts[2], parts[3]
