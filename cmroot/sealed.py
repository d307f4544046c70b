"""Sealed files: a JSON value with its format, version and checksum. Pure.

    {"format": "replicator-run", "version": 1, "xxh3_128": "...", "body": {...}}

The checksum is of the bytes of `body` as they are in the file.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import xxhash

from cmroot.errors import UNREADABLE, FormatError

VERSION = 1
T = TypeVar("T")


class _File(msgspec.Struct, frozen=True):
    format: str
    version: int
    xxh3_128: str
    body: msgspec.Raw


def seal(format: str, value: Any) -> bytes:
    """The file's bytes."""
    body = msgspec.json.encode(value)
    return msgspec.json.encode(_File(format, VERSION, xxhash.xxh3_128_hexdigest(body), msgspec.Raw(body))) + b"\n"


def unseal(data: bytes, kind: type[T], format: str, path: str, hint: str) -> T:
    """The value of a file that was read from `path`. Raises FormatError with the hint when it is damaged, or another
    kind of file."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.format != format:
            raise FormatError(f"{path}: a {file.format}, not a {format}", hint=hint)
        if file.version != VERSION:
            raise FormatError(
                f"{path}: version {file.version}, this release knows {VERSION}", hint="use the release that wrote it"
            )
        if xxhash.xxh3_128_hexdigest(bytes(file.body)) != file.xxh3_128:
            raise FormatError(f"{path}: damaged: its checksum is another", hint=hint)
        return msgspec.json.decode(file.body, type=kind)
    except UNREADABLE as error:
        raise FormatError(f"{path}: damaged: {error}", hint=hint) from error
