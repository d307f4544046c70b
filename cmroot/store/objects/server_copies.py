"""The server copies objects: in one request up to 5 GiB, above in parts. An upload in parts shows nothing before it
is complete; until then it costs, and few see it: this module also finds and aborts those of killed copies."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cmroot.errors import NotWritable
from cmroot.store.objects.own_objects import remove_own
from cmroot.store.objects.rights import ABORT_UPLOADS, LIST_UPLOADS, UNFINISHED
from cmroot.store.s3 import Info, code_of, copy_if, info, is_refused, named

WHOLE_COPY = 5 * 1024 * 1024 * 1024
"""Bytes of an object that one request copies, at most: S3's own bound."""

PART = 256 * 1024 * 1024
"""Bytes of a part, at least; S3 takes from 5 MiB on."""

MOST_PARTS = 10_000  # of an upload: S3's own bound

NOTE = "-copied"
"""Ends the name of a note: an object that says, while it is there, to which key a copy in parts is on its way."""

_AT_ONCE = 16  # parts of an object
_KEPT = ("ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl", "Metadata")


@dataclass(frozen=True)
class Original:
    """An object to copy, as the store has described it. etag: without its quotes."""

    key: str
    size: int
    etag: str
    version: str | None
    about: Info

    @property
    def source(self) -> dict[str, str]:
        return named(self.key) | ({"VersionId": self.version} if self.version else {})


def original(filesystem: Any, key: str) -> Original:
    """By one request. Raises FileNotFoundError."""
    found = info(filesystem, key)
    about = {name: found[name] for name in _KEPT if found.get(name)}
    return Original(key, found["size"], found["ETag"].strip('"'), found.get("VersionId"), about)


def copy(filesystem: Any, old: Original, target: str, note: str = "") -> bool:
    """Copies an object, if it is still the one described: the whole object appears, or nothing. False when it was
    replaced, or is gone. `note`: a key that ends with `NOTE`, by which `remove_left` finds what a kill leaves; none is
    needed where the target's own key tells whose it is."""
    if old.size <= WHOLE_COPY:
        return copy_if(filesystem, old.key, target, old.etag, old.version)
    if not note:
        return _copy_parts(filesystem, old, target)
    filesystem.call_s3("put_object", **named(note), Body=target.encode())
    try:
        return _copy_parts(filesystem, old, target)
    finally:  # a kill leaves it
        remove_own(filesystem, note)


def part_size(size: int) -> int:
    """Bytes of each part but the last: as few parts as an upload may have, and none smaller than `PART`."""
    return max(PART, math.ceil(size / MOST_PARTS))


def _copy_parts(filesystem: Any, old: Original, target: str) -> bool:
    upload = named(target) | {
        "UploadId": filesystem.call_s3("create_multipart_upload", **named(target), **old.about)["UploadId"]
    }
    try:
        parts = _parts(filesystem, old, upload)
        if parts and info(filesystem, old.key)["ETag"].strip('"') == old.etag:  # some stores heed no condition
            _complete(filesystem, upload, parts, target)
            return True
    except BaseException:
        with contextlib.suppress(OSError):  # what happened first is told
            _abort(filesystem, upload)
        raise
    _abort(filesystem, upload)
    return False


def _parts(filesystem: Any, old: Original, upload: dict[str, str]) -> list[dict[str, Any]]:
    """[] when the object is another one by now."""
    step = part_size(old.size)

    def copied(number: int) -> dict[str, Any]:
        begin = step * (number - 1)
        answer = filesystem.call_s3(
            "upload_part_copy",
            **upload,
            PartNumber=number,
            CopySource=old.source,
            CopySourceIfMatch=f'"{old.etag}"',
            CopySourceRange=f"bytes={begin}-{min(begin + step, old.size) - 1}",
        )
        return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="parts")
    try:
        return list(pool.map(copied, range(1, math.ceil(old.size / step) + 1)))
    except OSError as error:
        if is_refused(error) or code_of(error) in ("NoSuchKey", "NoSuchVersion"):
            return []
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # no part arrives after the upload was aborted


def _complete(filesystem: Any, upload: dict[str, str], parts: list[dict[str, Any]], target: str) -> None:
    """An answer that is lost makes the driver ask again, for an upload that is no more: the object tells."""
    try:
        filesystem.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
    except FileNotFoundError:
        tags = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts)
        expected = f"{hashlib.md5(tags, usedforsecurity=False).hexdigest()}-{len(parts)}"
        if info(filesystem, target)["ETag"].strip('"') != expected:
            raise


def _abort(filesystem: Any, upload: dict[str, str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.call_s3("abort_multipart_upload", **upload)


# What a kill leaves


def remove_uploads(filesystem: Any, prefix: str, *, before: float) -> int:
    """Aborts the uploads from before a time (seconds since 1970, the store's clock) of all keys that begin so; how
    many. Only for a prefix that nobody else writes to. A store that cannot do that is left alone. May run twice. Raises
    NotWritable, which names the right, for a user who may not."""
    removed, right = 0, LIST_UPLOADS
    try:
        for key, upload, began in _uploads(filesystem, prefix):
            if began < before:
                right = ABORT_UPLOADS
                _abort(filesystem, named(key) | {"UploadId": upload})
                removed, right = removed + 1, LIST_UPLOADS
    except PermissionError as error:
        raise NotWritable(
            f"{prefix}: {UNFINISHED}: this user may not look for them and end them ({right})",
            hint=f"allow {LIST_UPLOADS} and {ABORT_UPLOADS}, or let a rule of the bucket end them",
        ) from error
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return removed


def remove_left(filesystem: Any, note: str) -> None:
    """Aborts the copy that a note tells of, which nobody goes on with, and removes the note. May run twice."""
    try:
        answer = info(filesystem, note)
        target = filesystem.cat_file(note).decode()
    except FileNotFoundError:
        return
    began = answer["LastModified"].timestamp()
    for key, upload, at in _uploads(filesystem, target):
        if key == target and at >= began - 1:  # whole seconds
            _abort(filesystem, named(key) | {"UploadId": upload})
    remove_own(filesystem, note)


def _uploads(filesystem: Any, prefix: str) -> Iterator[tuple[str, str, float]]:
    """Key, id and begin of the unfinished uploads of keys that begin so."""
    bucket, _, begins = prefix.partition("/")
    more: dict[str, str] = {}
    while True:
        answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=begins, **more)
        for each in answer.get("Uploads", ()):
            began: datetime = each["Initiated"]
            if each["Key"].startswith(begins):
                yield f"{bucket}/{each['Key']}", each["UploadId"], began.timestamp()
        if not answer.get("IsTruncated"):
            return
        more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
