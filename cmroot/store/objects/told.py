"""What the stores behind fsspec say of an object: the content's identity, and when it was written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cmroot.store.local import Child
from cmroot.store.spelling import STAGING


def child_of(path: str, info: dict[str, Any]) -> Child:
    time_ns = object_time_ns(info)
    return Child(path, info["type"] == "directory", time_ns / 1e9 if time_ns else None, int(info.get("size") or 0))


def is_aside(name: str) -> bool:
    return name.rpartition("/")[2].startswith(STAGING)


def lists_trees(filesystem: Any) -> bool:
    """Whether the store lists a tree with requests of its own; fsspec's walk takes what it may not list for empty."""
    from fsspec.asyn import AsyncFileSystem

    return isinstance(filesystem, AsyncFileSystem) and type(filesystem)._find is not AsyncFileSystem._find


def object_identity(info: dict[str, Any], mtime_ns: int) -> str:
    """What the store itself says tells two contents of one name apart; the time where it says nothing. Not S3's version
    id: its listings do not have it."""
    for key in ("generation", "ETag", "etag", "md5Hash", "content_md5"):
        value = info.get(key)
        if value:
            return str(value).strip('"')
    return str(mtime_ns)


def object_time_ns(info: dict[str, Any]) -> int:
    for key in ("LastModified", "last_modified", "updated", "mtime", "modified", "modificationTime", "created"):
        value = info.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = value.timestamp()
            if key == "LastModified":  # S3: an answer about one object has whole seconds, some stores' listings more
                value = int(value)
        if key == "modificationTime" and isinstance(value, int):  # WebHDFS: milliseconds
            return value * 1_000_000
        if isinstance(value, int | float):
            return round(value * 1_000_000) * 1000  # a double holds microseconds, and stores tell no more
    return 0
