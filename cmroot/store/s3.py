"""Single requests of S3 that fsspec's driver splits into several: reading an entire object, its description, writing it
under a condition. `filesystem` is the driver's; keys are its own, beginning with the bucket.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

from cmroot.errors import StorageUnreachable
from cmroot.store.spelling import AWAY, naming

TRIES = 5
"""How often an object is requested, from where its answer broke off, before an error is raised."""

WHOLE = 16 * 1024 * 1024
"""The maximum size in bytes of an object written by one request that the store verifies before it shows the object:
that much memory is used for each object being copied."""

WRITTEN_BY = "replicator-call"
"""Metadata of an object written by `create`: the call that wrote it."""

Info = dict[str, Any]  # what the store reports for an object: `size`, ETag, LastModified, VersionId where it has one


class Stream(io.RawIOBase):
    """An object, read forward by one request. All bytes are of the same object, however often the connection breaks: if
    it is replaced, it counts as removed. `info`: of this object."""

    def __init__(self, filesystem: Any, key: str, place: str) -> None:
        """place: for messages. Raises FileNotFoundError when the object does not exist, and the errors of `naming`."""
        self._filesystem, self._about, self._place, self._at = filesystem, named(key), place, 0
        self._body: Any = None
        with naming(place):
            answer = self._ask()
        self.info: Info = {**answer, "size": answer["ContentLength"]}

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns b"" at the end only. Raises StorageUnreachable when the answer broke off repeatedly,
        FileNotFoundError when it did and the object does not exist any more."""
        broke: Exception | None = None
        for _ in range(TRIES):
            left = self.info["size"] - self._at
            if not left or not size:
                return b""
            try:
                if self._body is None:
                    self._go_on(left)
                block = cast(bytes, self._wait(self._body.read, left if size < 0 else min(size, left)))
                if block:
                    self._at += len(block)
                    return block
            except Exception as error:  # of the connection: each layer below has its own
                if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and is_refused(error)):
                    raise FileNotFoundError(f"{self._place}: was deleted or replaced while it was read") from error
                broke = error
            self._drop()
        raise StorageUnreachable(
            f"{self._place}: the answer ended early, at byte {self._at}: {broke}", hint=AWAY
        ) from broke

    def readinto(self, into: Any) -> int:
        block = self.read(len(into))
        into[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._drop()
        super().close()

    def _ask(self, **more: str) -> Info:
        answer: Info = self._filesystem.call_s3("get_object", **self._about, **more)
        self._body = answer.pop("Body")
        return answer

    def _go_on(self, left: int) -> None:
        """Continues reading. Some stores answer with the entire object, or with another one, whatever is requested."""
        answer = self._ask(Range=f"bytes={self._at}-", IfMatch=self.info["ETag"])
        if answer["ETag"] != self.info["ETag"]:
            raise FileNotFoundError(self._place)
        if answer["ContentLength"] != left:
            raise OSError(f"requested {left} bytes, the store returned {answer['ContentLength']}")

    def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with contextlib.suppress(Exception):  # it may be broken
                body.close()

    def _wait(self, function: Any, *arguments: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._filesystem.loop, function, *arguments)


def info(filesystem: Any, key: str) -> Info:
    """Returns what the store reports for an object; never interprets it as a directory. Raises FileNotFoundError."""
    answer: Info = filesystem.call_s3("head_object", **named(key))
    return {**answer, "size": answer["ContentLength"]}


def put_new(filesystem: Any, key: str, data: bytes) -> bool:
    """Writes an object that does not exist, if these bytes arrive; returns False when it exists. The store verifies
    their digest before it shows the object."""
    return _heeded(filesystem, "put_object", **named(key), Body=data, ContentMD5=md5_of(data), IfNoneMatch="*")


def create(filesystem: Any, key: str, data: bytes) -> bool:
    """Writes an object that does not exist; returns False when another writer's does. After a lost answer the driver
    repeats the request, which its own object then refuses; so each object names the call that wrote it."""
    call = uuid.uuid4().hex
    for _ in range(TRIES):
        if _heeded(filesystem, "put_object", **named(key), Body=data, IfNoneMatch="*", Metadata={WRITTEN_BY: call}):
            return True
        with contextlib.suppress(FileNotFoundError):  # refused for one that is being written, or removed
            return bool(info(filesystem, key).get("Metadata", {}).get(WRITTEN_BY) == call)
    return False


def copy_if(
    filesystem: Any, key: str, target: str, etag: str, version: str | None = None, how: Info | None = None
) -> bool:
    """Copies an object of at most 5 GiB in one step, if it still has this tag (without its quotes); returns False when
    it has another, or does not exist. how: more arguments of the request."""
    of = named(key) | ({"VersionId": version} if version else {})
    source = {"CopySource": of, "CopySourceIfMatch": f'"{etag}"'}
    try:
        return _heeded(filesystem, "copy_object", **named(target), **source, **(how or {}))
    except FileNotFoundError:
        return False


def _heeded(filesystem: Any, operation: str, **arguments: Any) -> bool:
    """Returns True if the condition of a request held."""
    try:
        filesystem.call_s3(operation, **arguments)
    except FileExistsError:
        return False
    except OSError as error:
        if is_refused(error):
            return False
        raise
    return True


def is_refused(error: OSError) -> bool:
    """Returns True if a condition of a request did not hold. The driver's errors have S3's own as their cause."""
    return any(word in f"{code_of(error)} {error}" for word in _CONDITIONS)


_CONDITIONS = ("PreconditionFailed", "ConditionNotMet", "ConditionalRequestConflict")


def md5_of(data: bytes) -> str:
    """Returns the MD5 in the form of `ContentMD5`."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def code_of(error: OSError) -> str:
    """Returns S3's own name of an error; "" for others."""
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))


def named(key: str) -> dict[str, str]:
    """Returns a key of the driver as arguments of a request."""
    bucket, _, name = key.partition("/")
    return {"Bucket": bucket, "Key": name}


# ---- rights ----------------------------------------------------------------------------------------------------------
# Rights in an S3 bucket whose lack is noticed late or never: checked by requests that change nothing.


LIST_UPLOADS = "s3:ListBucketMultipartUploads"
ABORT_UPLOADS = "s3:AbortMultipartUpload"
LIST_VERSIONS = "s3:ListBucketVersions"
REMOVE_VERSIONS = "s3:DeleteObjectVersion"

UNFINISHED = "unfinished uploads of killed runs remain, and cost money"
TEMPORARY = "versions of temporary objects remain"

_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a store for a request that it does not support."""


def lacking_rights(filesystem: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields rights missing below a prefix, with what remains because of that. `prefix`: a directory in which we write.
    Two requests, four where the bucket has versions. May run twice. Raises OSError for an unreachable store."""
    bucket, _, begins = f"{prefix.rstrip('/')}/".partition("/")
    probe = named(f"{bucket}/{begins}.probe-{uuid.uuid4().hex}")
    call = filesystem.call_s3
    if not _may(lambda: call("list_multipart_uploads", Bucket=bucket, Prefix=begins, MaxUploads=1)):
        yield LIST_UPLOADS, UNFINISHED
    if not _may(lambda: call("abort_multipart_upload", **probe, UploadId=uuid.uuid4().hex)):
        yield ABORT_UPLOADS, UNFINISHED
    if not _has_versions(filesystem, bucket):
        return
    if not _may(lambda: call("list_object_versions", Bucket=bucket, Prefix=begins, MaxKeys=1)):
        yield LIST_VERSIONS, TEMPORARY
    if not _may(lambda: call("delete_object", **probe, VersionId="null")):  # of no object: removes nothing, no marker
        yield REMOVE_VERSIONS, TEMPORARY


def _may(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except PermissionError:
        return False
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and error.errno not in _UNKNOWN:
            raise
    return True


def _has_versions(filesystem: Any, bucket: str) -> bool:
    """Returns True also without permission to query it: versions, if any, would then remain unnoticed."""
    with contextlib.suppress(PermissionError):
        try:
            return bool(filesystem.call_s3("get_bucket_versioning", Bucket=bucket).get("Status"))
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            return False
    return True


# ---- renaming --------------------------------------------------------------------------------------------------------
# Renames on stores behind fsspec that have directories: onto a free name, and onto one in use.
#
# A name in use is replaced by the store's own rename with overwrite: posix-rename, or one with an option.


RENAMING = frozenset({"webhdfs", "sftp", "ssh", "smb"})
"""fsspec protocols with directories and a rename: a file there is visible while it is written, so a staging file is
used. All others are object stores, where an object appears complete when its upload ends."""


def replace(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Renames a file to a name that may be in use: readers always find the old content or the new."""
    if scheme in ("sftp", "ssh"):
        filesystem.mv(staged, key)  # posix-rename@openssh.com
    elif scheme == "webhdfs":
        filesystem._call("RENAME", method="put", path=staged, destination=key, renameoptions="OVERWRITE")
    else:
        _replace_smb(filesystem, staged, key)


def rename_onto_free(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Renames a file to a free name. If `staged` exists afterwards, the name was in use: drivers drop a store's
    refusal, or raise it."""
    with contextlib.suppress(OSError):
        if scheme in ("sftp", "ssh"):
            filesystem.ftp.rename(staged, key)  # mv would overwrite
        else:
            filesystem.mv(staged, key)


def is_there(filesystem: Any, key: str) -> bool:
    """Returns True if a file exists; unlike fsspec's `exists`, which treats every error as absence."""
    try:
        filesystem.info(key)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _replace_smb(filesystem: Any, staged: str, key: str) -> None:
    import smbclient  # type: ignore[import-not-found]
    from fsspec.implementations.smb import _as_unc_path

    old, new = (_as_unc_path(filesystem.host, name) for name in (staged, key))
    smbclient.replace(old, new, port=filesystem._port)
