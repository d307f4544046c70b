"""The filesystem of a store in this process."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from cmroot.errors import UnknownPlace
from cmroot.store.spelling import is_forbidden, normal, scheme, split_authority

# ---- endpoints -------------------------------------------------------------------------------------------------------
# Endpoints and identities of single buckets, where a run has several: `[stores."s3://BUCKET"]`. They are passed in the
# environment, like those of all other buckets, so that every process of a run has them; secrets are not.


VARIABLE = "REPLICATOR_STORES"
_INHERITED = os.environ.get(VARIABLE, "")

PATIENCE = {"mode": "standard", "total_max_attempts": 7}
"""Retries of a request: with botocore's default of five attempts, one of 200 runs of 15,000 requests fails when S3
refuses 5 % of them; with these, one of 80,000. An unreachable endpoint is abandoned after 25 seconds."""

_TRIES = frozenset({"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"})


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The address of a bucket, and the identity used there; None: as in the environment. `profile`: from the AWS
    configuration files, may name a role to assume. `anonymous`: requests are not signed."""

    endpoint: str | None = None
    profile: str | None = None
    region: str | None = None
    anonymous: bool = False


def use(endpoints: Mapping[str, Endpoint]) -> None:
    """Sets the endpoints for this process and those that it starts, replacing earlier ones; if empty, restores those
    that this process was started with. Raises UnknownPlace for a store that is not an S3 bucket."""
    for store in endpoints:
        bucket, below = split_authority(store)
        if scheme(store) != "s3" or below.strip("/") or not bucket.partition("://")[2]:
            raise UnknownPlace(f"stores: {store!r} is not an S3 bucket", hint='write [stores."s3a://BUCKET"]')
    if endpoints or _INHERITED:
        os.environ[VARIABLE] = as_text(endpoints) if endpoints else _INHERITED
    else:
        os.environ.pop(VARIABLE, None)


def as_text(endpoints: Mapping[str, Endpoint]) -> str:
    """Returns the variable's value."""
    return msgspec.json.encode({normal(store).rstrip("/"): each for store, each in endpoints.items()}).decode()


def driver_options(store: str, text: str) -> dict[str, Any]:
    """Returns the options of s3fs for a bucket, by the variable's value."""
    found = _read(text).get(store.rstrip("/"), Endpoint())
    options: dict[str, Any] = {"endpoint_url": found.endpoint, "profile": found.profile}
    if not _TRIES & os.environ.keys():
        options["config_kwargs"] = {"retries": PATIENCE}
    if found.region:
        options["client_kwargs"] = {"region_name": found.region}
    if found.anonymous:
        options["anon"] = True
    return {key: value for key, value in options.items() if value is not None}


@lru_cache(maxsize=8)
def _read(text: str) -> dict[str, Endpoint]:
    return msgspec.json.decode(text or "{}", type=dict[str, Endpoint])


# ---- filesystems -----------------------------------------------------------------------------------------------------


AZURE = frozenset({"abfs", "abfss", "az"})
GCS = frozenset({"gs", "gcs"})

_EXTRAS = {"s3": "s3"} | dict.fromkeys(GCS, "gcs") | dict.fromkeys(AZURE, "azure")
"""The extra of this distribution that contains the driver of a scheme."""


@lru_cache(maxsize=32)
def filesystem_of(process: int, store: str, endpoints: str) -> Any:
    """Returns the filesystem of a store in this process; not reused after a fork, which fsspec's event loop does not
    survive either. endpoints: the environment's settings of single buckets.

    One per store and process: opening an S3 client takes 0.2 s. Neither listings nor fsspec's own instances are cached,
    because both may return outdated results.
    """
    import fsspec

    kind = scheme(store)
    try:
        if kind in AZURE:
            fsspec.get_filesystem_class(kind)  # raises an error that names the missing package
            from cmroot.store.azure import AzureBlobs  # requires the extra `azure`

            return AzureBlobs.opened(store)
        options = driver_options(store, endpoints) if kind == "s3" else {}
        return fsspec.core.url_to_fs(store, use_listings_cache=False, skip_instance_cache=True, **options)[0]
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(kind)
        hint = f"pip install 'replicator[{extra}]', or fix the URL" if extra else "install its driver, or fix the URL"
        raise UnknownPlace(f"{store}: {error}", hint=hint) from error


# ---- generations -----------------------------------------------------------------------------------------------------
# Generations: Google Cloud Storage's versions of an object. Each write creates one; a bucket with versioning retains
# those that are no longer current. `filesystem` is gcsfs' own, keys begin with the bucket.


UNVERSIONED = "the bucket has no versioning"
NO_PERMISSION = "no permission"
"""The beginning of the reason if it is unknown whether a bucket has versions."""


class Generation(NamedTuple):
    """One generation of a key. `current`: the one read by name."""

    key: str
    generation: str
    size: int
    current: bool


def why_no_generations(filesystem: Any, bucket: str) -> str:
    """Returns "" if a bucket retains generations, else why not; also when the user may not query it."""
    try:
        said = _bucket(filesystem, bucket)
    except FileNotFoundError:
        return "the bucket does not exist"
    except PermissionError:
        return f"{NO_PERMISSION} to read the bucket's versioning (storage.buckets.get)"
    return "" if said.get("versioning", {}).get("enabled") else UNVERSIONED


def noncurrent_days_of(filesystem: Any, bucket: str) -> int | None:
    """Returns the minimum number of days after which a rule of the bucket removes noncurrent generations; None: no rule
    does. Raises PermissionError if the rules may not be read."""
    try:
        return days_of_rules(_bucket(filesystem, bucket))
    except FileNotFoundError:
        return None


def days_of_rules(bucket: Mapping[str, Any]) -> int | None:
    """Returns the days by a bucket's description. A rule without days since a replacement may remove at once."""
    rules = bucket.get("lifecycle", {}).get("rule", [])
    conditions = [rule.get("condition", {}) for rule in rules if rule.get("action", {}).get("type") == "Delete"]
    days = [int(each.get("daysSinceNoncurrentTime", 0)) for each in conditions if not each.get("isLive")]
    return min(days, default=None)


def generation_info(filesystem: Any, key: str, generation: str = "") -> dict[str, Any]:
    """Returns what the store reports for an object, with a listing's keys. Raises FileNotFoundError if missing."""
    if generation and not generation.isdecimal():
        raise FileNotFoundError(f"{key} at {generation}")
    bucket, _, name = key.partition("/")
    wanted = {"generation": generation} if generation else {}
    with _permissions():
        answer = filesystem.call("GET", "b/{}/o/{}", bucket, name, json_out=True, **wanted)
    info: dict[str, Any] = filesystem._process_object(bucket, answer)
    return info


def read_generation(filesystem: Any, key: str, generation: str, start: int, end: int) -> bytes:
    """Returns bytes from `start` to before `end`. Raises FileNotFoundError if that generation is missing."""
    with _permissions():
        data: bytes = filesystem.cat_file(key, start=start, end=end, generation=generation)
    return data


def generations(filesystem: Any, bucket: str, prefix: str) -> Iterator[Generation]:
    """Yields all generations of names with a prefix; one request per thousand."""
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
    """Removes a generation permanently. Raises FileNotFoundError if it does not exist any more."""
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
