"""Objects that only this program writes and that are not to last: removed with what a bucket with versions keeps of
them. A store tells by its answer to each request whether it has kept something; others are asked nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cmroot.store.s3 import named

_AT_ONCE = 1000  # objects of a request, at most: S3's own bound

Version = dict[str, Any]  # as the store lists it: Key, VersionId, IsLatest


def remove_own(filesystem: Any, key: str) -> bool:
    """Removes an object whose name only we use; a missing one is no error. False when versions of it stay, which this
    user may not list or remove. One request, three where the bucket has versions. May run twice."""
    answer = filesystem.call_s3("delete_object", **named(key))
    return not _keeps(answer) or _remove_versions(filesystem, key, lambda each: key.endswith("/" + each["Key"]))


def remove_own_tree(filesystem: Any, top: str, found: Iterable[str]) -> bool:
    """As `remove_own`, of a directory below which only we write. `found`: the keys there, perhaps with its own."""
    bucket, prefix, kept = top.partition("/")[0], f"{top}/", False
    keys = [key for key in found if key.startswith(prefix)]
    for first in range(0, len(keys), _AT_ONCE):
        objects = [{"Key": named(key)["Key"]} for key in keys[first : first + _AT_ONCE]]
        answer = filesystem.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": objects})
        for error in answer.get("Errors", ()):
            raise PermissionError(f"{bucket}/{error['Key']}: {error.get('Code')}: {error.get('Message')}")
        kept |= any(_keeps(each) for each in answer.get("Deleted", ()))
    return not kept or _remove_versions(filesystem, prefix, lambda each: True)


def replace_own(filesystem: Any, key: str, data: bytes) -> bool:
    """Writes an object whose name only we use, and whose older contents nobody needs. False as of `remove_own`."""
    answer = filesystem.call_s3("put_object", **named(key), Body=data)
    if answer.get("VersionId", "null") == "null":
        return True
    return _remove_versions(filesystem, key, lambda each: key.endswith("/" + each["Key"]) and not each["IsLatest"])


def _keeps(answer: dict[str, Any]) -> bool:
    """Whether an answer to a removal says that the bucket has, or had, versions."""
    return bool(answer.get("DeleteMarker") or answer.get("VersionId"))


def _remove_versions(filesystem: Any, prefix: str, wanted: Callable[[Version], bool]) -> bool:
    """By keys that begin so. Delete markers are versions, too."""
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
            if not objects:  # else from where it began: what a marker names may be gone
                more = {"KeyMarker": answer["NextKeyMarker"], "VersionIdMarker": answer["NextVersionIdMarker"]}
    except PermissionError:  # to list versions, and to remove them, are rights of their own
        return False
