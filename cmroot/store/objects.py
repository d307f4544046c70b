"""Copying of objects by the server: in one request up to 5 GiB, above in parts. A multipart upload is invisible until
it is complete, but incurs costs: this module also finds and aborts those of killed copies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fsspec import filesystem as driver_of

from cmroot.errors import NotWritable
from cmroot.store.local import Child
from cmroot.store.s3 import (
    ABORT_UPLOADS,
    LIST_UPLOADS,
    UNFINISHED,
    Info,
    code_of,
    copy_if,
    info,
    is_refused,
    md5_of,
    named,
)
from cmroot.store.spelling import STAGING

# ---- own objects -----------------------------------------------------------------------------------------------------
# Temporary objects that only this program writes: removed together with the versions that a versioned bucket retains.
# The store's answer to each request shows whether it has retained something; only then more requests are made.


_DELETES_AT_ONCE = 1000  # maximum number of objects in a request: S3's own limit

Version = dict[str, Any]  # as listed by the store: Key, VersionId, IsLatest


def remove_own(filesystem: Any, key: str) -> bool:
    """Removes an object whose name only this program uses; a missing one is not an error. Returns False when versions
    remain that this user may not list or remove. One request, three where the bucket has versions. May run twice."""
    answer = filesystem.call_s3("delete_object", **named(key))
    return not _keeps(answer) or _remove_versions(filesystem, key, lambda each: key.endswith("/" + each["Key"]))


def remove_own_tree(filesystem: Any, top: str, found: Iterable[str]) -> bool:
    """Like `remove_own`, for a directory in which only this program writes. `found`: its keys, perhaps with its own."""
    bucket, prefix, kept = top.partition("/")[0], f"{top}/", False
    keys = [key for key in found if key.startswith(prefix)]
    for first in range(0, len(keys), _DELETES_AT_ONCE):
        objects = [{"Key": named(key)["Key"]} for key in keys[first : first + _DELETES_AT_ONCE]]
        answer = filesystem.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": objects})
        for error in answer.get("Errors", ()):
            raise PermissionError(f"{bucket}/{error['Key']}: {error.get('Code')}: {error.get('Message')}")
        kept |= any(_keeps(each) for each in answer.get("Deleted", ()))
    return not kept or _remove_versions(filesystem, prefix, lambda each: True)


def replace_own(filesystem: Any, key: str, data: bytes) -> bool:
    """Writes an object that only this program uses, and removes its older versions. Returns False like `remove_own`."""
    answer = filesystem.call_s3("put_object", **named(key), Body=data)
    if answer.get("VersionId", "null") == "null":
        return True
    return _remove_versions(filesystem, key, lambda each: key.endswith("/" + each["Key"]) and not each["IsLatest"])


def _keeps(answer: dict[str, Any]) -> bool:
    """Returns True if an answer to a removal shows that the bucket has, or had, versions."""
    return bool(answer.get("DeleteMarker") or answer.get("VersionId"))


def _remove_versions(filesystem: Any, prefix: str, wanted: Callable[[Version], bool]) -> bool:
    """Removes versions of keys with this prefix. Delete markers are versions, too."""
    bucket, _, begins = prefix.partition("/")
    more: dict[str, str] = {}
    try:
        while True:
            answer = filesystem.call_s3("list_object_versions", Bucket=bucket, Prefix=begins, **more)
            page: list[Version] = [*answer.get("Versions", ()), *answer.get("DeleteMarkers", ())]
            objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in page if wanted(each)]
            if objects:
                delete = {"Objects": objects, "Quiet": True}
                if filesystem.call_s3("delete_objects", Bucket=bucket, Delete=delete).get("Errors"):
                    return False
            if not answer.get("IsTruncated"):
                return True
            if not objects:  # otherwise from the start: the object in a marker may not exist any more
                more = {"KeyMarker": answer["NextKeyMarker"], "VersionIdMarker": answer["NextVersionIdMarker"]}
    except PermissionError:  # listing and removing versions require separate rights
        return False


# ---- server copies ---------------------------------------------------------------------------------------------------


WHOLE_COPY = 5 * 1024 * 1024 * 1024
"""Maximum size of an object that one request copies, in bytes: S3's own limit."""

PART = 256 * 1024 * 1024
"""Minimum size of a part, in bytes; S3 accepts 5 MiB and more."""

MOST_PARTS = 10_000  # of an upload: S3's own limit

NOTE = "-copied"
"""The suffix of the name of a note: an object that contains, while it exists, the target key of a copy in parts."""

_AT_ONCE = 16  # parts of an object
_KEPT = ("ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl", "Metadata")


@dataclass(frozen=True)
class Original:
    """An object to copy, as described by the store. etag: without its quotes. stored: the class and encryption that a
    copy gets, empty for the bucket's own."""

    key: str
    size: int
    etag: str
    version: str | None
    about: Info
    stored: Info = field(default_factory=dict)

    @property
    def source(self) -> dict[str, str]:
        return named(self.key) | ({"VersionId": self.version} if self.version else {})


def original(filesystem: Any, key: str, *, stored: bool = False) -> Original:
    """Returns the description of an object, by one request; with class and encryption if a copy shall be `stored` like
    it. Raises FileNotFoundError."""
    found = info(filesystem, key)
    about = {name: found[name] for name in _KEPT if found.get(name)}
    how = _chosen(found, _STORED) if stored else {}
    return Original(key, found["size"], found["ETag"].strip('"'), found.get("VersionId"), about, how)


def copy(filesystem: Any, old: Original, target: str, note: str = "") -> bool:
    """Copies an object, if it is unchanged since it was described: either the complete object appears, or nothing.
    Returns False when it was replaced, or does not exist any more. `note`: a key that ends with `NOTE`, by which
    `remove_left` finds the upload of a killed copy; not required where the target's own key identifies its owner."""
    if old.size <= WHOLE_COPY:
        return copy_if(filesystem, old.key, target, old.etag, old.version, old.stored)
    if not note:
        return _copy_parts(filesystem, old, target)
    filesystem.call_s3("put_object", **named(note), Body=target.encode())
    try:
        return _copy_parts(filesystem, old, target)
    finally:  # remains after a kill
        remove_own(filesystem, note)


_STORED = ("StorageClass", "ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled")


def copy_like(filesystem: Any, source: str, target: str, like: str) -> list[str]:
    """Copies an object with the metadata, storage class, encryption and tags of another. Returns those of them that
    this user may not read or give. Raises FileNotFoundError if one does not exist, or the source was replaced."""
    found, old = info(filesystem, like), original(filesystem, source)
    about = {**{name: found[name] for name in _KEPT if found.get(name)}, **_chosen(found, _STORED)}
    tags, lacking = _tags(filesystem, like)
    for tagging in [{"Tagging": tags}, {}] if tags else [{}]:
        try:
            if not _copied_with(filesystem, replace(old, about={**about, **tagging}), target):
                raise FileNotFoundError(f"{source}: was replaced while it was copied")
            return lacking if tagging or not tags else ["tags (not permitted)"]
        except PermissionError:
            if not tagging:
                raise
    return lacking


def has_attributes(filesystem: Any, key: str) -> bool:
    """Returns True if an object has metadata, a class, an encryption or tags that `copy_like` would carry, or tags that
    this user may not read. Raises FileNotFoundError."""
    found = info(filesystem, key)
    return bool(_chosen(found, (*_KEPT, *_STORED))) or any(_tags(filesystem, key))


_USUAL = {
    "ContentType": ("binary/octet-stream", "application/octet-stream"),  # of S3, and of Hadoop's client
    "StorageClass": ("STANDARD",),
    "ServerSideEncryption": ("AES256",),
}
"""Attributes of an object whose writer chose none: S3's defaults, in place of which a bucket may have its own."""


def _chosen(found: Info, names: Iterable[str]) -> Info:
    """Returns those of an object's attributes that its writer chose."""
    return {name: found[name] for name in names if found.get(name) and found[name] not in _USUAL.get(name, ())}


def _copied_with(filesystem: Any, old: Original, target: str) -> bool:
    if old.size > WHOLE_COPY:
        return _copy_parts(filesystem, old, target)
    how = {"MetadataDirective": "REPLACE", "TaggingDirective": "REPLACE", **old.about}
    return copy_if(filesystem, old.key, target, old.etag, old.version, how)


def _tags(filesystem: Any, key: str) -> tuple[str, list[str]]:
    """Returns the tags of an object as a query; and "tags" if this user may not read them."""
    try:
        found = filesystem.call_s3("get_object_tagging", **named(key))["TagSet"]
    except PermissionError:
        return "", ["tags (not permitted)"]
    except OSError as error:
        if code_of(error) in _NO_TAGS:  # the store has none
            return "", []
        raise
    except NotImplementedError:
        return "", []
    return urlencode({each["Key"]: each["Value"] for each in found}), []


_NO_TAGS = ("NoSuchTagSet", "NoSuchTagSetError", "NotImplemented", "MethodNotAllowed")


def part_size(size: int) -> int:
    """Returns the bytes of each part but the last: as few parts as an upload may have, and none smaller than `PART`."""
    return max(PART, math.ceil(size / MOST_PARTS))


def _copy_parts(filesystem: Any, old: Original, target: str) -> bool:
    upload = named(target) | {
        "UploadId": filesystem.call_s3("create_multipart_upload", **named(target), **old.about, **old.stored)[
            "UploadId"
        ]
    }
    try:
        parts = _parts(filesystem, old, upload)
        if parts and info(filesystem, old.key)["ETag"].strip('"') == old.etag:  # some stores ignore the condition
            _complete(filesystem, upload, parts, target)
            return True
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is raised
            _abort(filesystem, upload)
        raise
    _abort(filesystem, upload)
    return False


def _parts(filesystem: Any, old: Original, upload: dict[str, str]) -> list[dict[str, Any]]:
    """Copies the parts. Returns [] when the object has changed since."""
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
    """Completes an upload. If an answer is lost, the driver repeats the request and fails; then checks the object."""
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


# Uploads left by killed copies


def remove_uploads(filesystem: Any, prefix: str, *, before: float) -> int:
    """Aborts the uploads from before a time (seconds since 1970, the store's clock) of all keys with a prefix; returns
    their number. Only for a prefix to which no other program writes. Does nothing on a store without this operation.
    May run twice. Raises NotWritable, naming the right, for a user who lacks it."""
    removed, right = 0, LIST_UPLOADS
    try:
        for key, upload, began in _uploads(filesystem, prefix):
            if began < before:
                right = ABORT_UPLOADS
                _abort(filesystem, named(key) | {"UploadId": upload})
                removed, right = removed + 1, LIST_UPLOADS
    except PermissionError as error:
        raise NotWritable(
            f"{prefix}: {UNFINISHED}: this user has no permission to find and abort them ({right})",
            hint=f"allow {LIST_UPLOADS} and {ABORT_UPLOADS}, or let a lifecycle rule of the bucket abort them",
        ) from error
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return removed


def remove_left(filesystem: Any, note: str) -> None:
    """Aborts the copy recorded in a note, which is not continued, and removes the note. May run twice."""
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
    """Yields key, id and start time of the unfinished uploads of keys with this prefix."""
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


# ---- probes ----------------------------------------------------------------------------------------------------------
# Tests whether a store checks the digests and conditions of requests.


class Heeds(NamedTuple):
    """The checks that a store makes: of the digest of uploads (`digests`), and of the condition of a copy (`copies`).
    Some S3-compatible stores make neither."""

    digests: bool
    copies: bool


def heeds(filesystem: Any, probe: str) -> Heeds:
    """Determines it by trying, with objects that are written and removed again. `probe`: an unused key."""
    copy = probe + "-copy"
    try:
        filesystem.call_s3("put_object", **named(probe), Body=b"")
        copies = not copy_if(filesystem, probe, copy, "of-no-object")
        return Heeds(not _takes_wrong_digest(filesystem, probe), copies)
    finally:
        for key in (probe, copy):
            remove_own(filesystem, key)


def _takes_wrong_digest(filesystem: Any, key: str) -> bool:
    once = _asking_once(filesystem)
    for pause in (0.1, 0.3, 1.0, 3.0, None):
        try:
            once.call_s3("put_object", **named(key), Body=b"these", ContentMD5=md5_of(b"others"))
            return True
        except OSError as error:
            if code_of(error) in ("BadDigest", "InvalidDigest"):
                return False
            if error.errno != errno.EBUSY or pause is None:  # 503: the store is busy
                raise
            time.sleep(pause)
    raise AssertionError


def _asking_once(filesystem: Any) -> Any:
    """Returns the filesystem without the driver's retries: it repeats uploads with a wrong digest for seven seconds."""
    config = {**filesystem.config_kwargs, "retries": {"total_max_attempts": 1}}
    options = {**filesystem.storage_options, "config_kwargs": config, "skip_instance_cache": True}
    return driver_of("s3", **options)


# ---- responses -------------------------------------------------------------------------------------------------------
# Properties of an object as reported by the stores behind fsspec: the content's identity, and when it was written.


def child_of(path: str, info: dict[str, Any]) -> Child:
    time_ns = object_time_ns(info)
    return Child(path, info["type"] == "directory", time_ns / 1e9 if time_ns else None, int(info.get("size") or 0))


def is_aside(name: str) -> bool:
    return name.rpartition("/")[2].startswith(STAGING)


def lists_trees(filesystem: Any) -> bool:
    """Returns True if the store lists a tree itself; fsspec's walk treats unreadable directories as empty."""
    from fsspec.asyn import AsyncFileSystem

    return isinstance(filesystem, AsyncFileSystem) and type(filesystem)._find is not AsyncFileSystem._find


def object_identity(info: dict[str, Any], mtime_ns: int) -> str:
    """Returns the store's own property that distinguishes two contents of one name; the time if there is none. Not S3's
    version id, which is not in its listings."""
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
            return round(value * 1_000_000) * 1000  # a double holds microseconds, and stores report no finer times
    return 0
