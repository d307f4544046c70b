"""Generations: what Google Cloud Storage calls the versions of an object. Each write makes one; a bucket with
versioning keeps those that are no longer current. `filesystem` is gcsfs' own, keys have the bucket in front."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cmroot.store.spelling import is_forbidden

UNVERSIONED = "the bucket has no versioning"


class Generation(NamedTuple):
    """One of a key's. `current`: what its name shows."""

    key: str
    generation: str
    size: int
    current: bool


def why_no_generations(filesystem: Any, bucket: str) -> str:
    """Empty when a bucket keeps them, else why not. Not being allowed to ask counts as no."""
    try:
        said = _bucket(filesystem, bucket)
    except FileNotFoundError:
        return "the bucket does not exist"
    except PermissionError:
        return "not allowed to ask for the bucket's versioning (storage.buckets.get)"
    return "" if said.get("versioning", {}).get("enabled") else UNVERSIONED


def noncurrent_days_of(filesystem: Any, bucket: str) -> int | None:
    """After how many days at the earliest a rule of the bucket removes generations that are not current; None: no rule
    does, or one may not ask."""
    try:
        return days_of_rules(_bucket(filesystem, bucket))
    except OSError:
        return None


def days_of_rules(bucket: Mapping[str, Any]) -> int | None:
    """Of what the store says of a bucket. A rule without days since an object was replaced may remove it at once."""
    rules = bucket.get("lifecycle", {}).get("rule", [])
    conditions = [rule.get("condition", {}) for rule in rules if rule.get("action", {}).get("type") == "Delete"]
    days = [int(each.get("daysSinceNoncurrentTime", 0)) for each in conditions if not each.get("isLive")]
    return min(days, default=None)


def generation_info(filesystem: Any, key: str, generation: str = "") -> dict[str, Any]:
    """What the store says of an object, in the words that a listing uses. FileNotFoundError: not there (any more)."""
    if generation and not generation.isdecimal():
        raise FileNotFoundError(f"{key} at {generation}")
    bucket, _, name = key.partition("/")
    wanted = {"generation": generation} if generation else {}
    with _permissions():
        answer = filesystem.call("GET", "b/{}/o/{}", bucket, name, json_out=True, **wanted)
    info: dict[str, Any] = filesystem._process_object(bucket, answer)
    return info


def read_generation(filesystem: Any, key: str, generation: str, start: int, end: int) -> bytes:
    """Bytes from `start` to before `end`. FileNotFoundError: that generation is not there (any more)."""
    with _permissions():
        data: bytes = filesystem.cat_file(key, start=start, end=end, generation=generation)
    return data


def generations(filesystem: Any, bucket: str, prefix: str) -> Iterator[Generation]:
    """All, of names that begin so; one request for a thousand."""
    more: dict[str, str] = {}
    while True:
        with _permissions():
            answer = filesystem.call("GET", "b/{}/o", bucket, versions="true", prefix=prefix, json_out=True, **more)
        for found in answer.get("items", []):
            current = "timeDeleted" not in found
            yield Generation(f"{bucket}/{found['name']}", found["generation"], int(found["size"]), current)
        if "nextPageToken" not in answer:
            return
        more = {"pageToken": answer["nextPageToken"]}


def remove_generation(filesystem: Any, key: str, generation: str) -> None:
    """For good. FileNotFoundError: it is gone already."""
    bucket, _, name = key.partition("/")
    with _permissions():
        filesystem.call("DELETE", "b/{}/o/{}", bucket, name, generation=generation)


def _bucket(filesystem: Any, bucket: str) -> dict[str, Any]:
    with _permissions():
        said: dict[str, Any] = filesystem.call("GET", "b/{}", bucket, json_out=True)
    return said


@contextlib.contextmanager
def _permissions() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_forbidden(error):
            raise PermissionError(errno.EACCES, str(error)) from error
        raise
