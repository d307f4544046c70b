"""Rights in a bucket of S3 whose lack is felt late or by nobody: asked for by requests that change nothing."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from cmroot.store.s3 import named

LIST_UPLOADS = "s3:ListBucketMultipartUploads"
ABORT_UPLOADS = "s3:AbortMultipartUpload"
LIST_VERSIONS = "s3:ListBucketVersions"
REMOVE_VERSIONS = "s3:DeleteObjectVersion"

UNFINISHED = "unfinished uploads of runs that were killed stay, and are paid for"
TEMPORARY = "versions of temporary objects stay"

_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a store answers to a request that it does not know."""


def lacking_rights(filesystem: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Rights that this user lacks below a prefix, and what stays for that. `prefix`: a directory in which we write.
    Two requests, four where the bucket has versions. May run twice. Raises OSError for a store that is away."""
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
    """Also when one may not ask: then its versions, if any, would stay unseen."""
    with contextlib.suppress(PermissionError):
        try:
            return bool(filesystem.call_s3("get_bucket_versioning", Bucket=bucket).get("Status"))
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            return False
    return True
