"""Endpoints and identities of single buckets, where a run has several: `[stores."s3://BUCKET"]`. They stand in the
environment, as those of all other buckets do, so that every process of a run has them; secrets do not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from cmroot.errors import UnknownPlace
from cmroot.store.spelling import normal, scheme, split_authority

VARIABLE = "REPLICATOR_STORES"
_INHERITED = os.environ.get(VARIABLE, "")

PATIENCE = {"mode": "standard", "total_max_attempts": 7}
"""Of a request: botocore's own five end one of 200 runs of 15,000 requests when S3 refuses 5 % of them;
this one, one of 80,000. An endpoint that is away is given up after 25 seconds."""

_TRIES = frozenset({"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"})


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a bucket is served, and as whom it is asked; None: as the environment says. `profile`: of the files of
    AWS, which may name a role to assume. `anonymous`: requests are not signed."""

    endpoint: str | None = None
    profile: str | None = None
    region: str | None = None
    anonymous: bool = False


def use(endpoints: Mapping[str, Endpoint]) -> None:
    """From now on, in this process and those that it starts, instead of those named before; none: those that this
    process was started with. Raises UnknownPlace for a store that is no bucket of S3."""
    for store in endpoints:
        bucket, below = split_authority(store)
        if scheme(store) != "s3" or below.strip("/") or not bucket.partition("://")[2]:
            raise UnknownPlace(f"stores: {store!r} is no bucket of S3", hint='write [stores."s3a://BUCKET"]')
    if endpoints or _INHERITED:
        os.environ[VARIABLE] = as_text(endpoints) if endpoints else _INHERITED
    else:
        os.environ.pop(VARIABLE, None)


def as_text(endpoints: Mapping[str, Endpoint]) -> str:
    """The variable's value."""
    return msgspec.json.encode({normal(store).rstrip("/"): each for store, each in endpoints.items()}).decode()


def driver_options(store: str, text: str) -> dict[str, Any]:
    """The options of s3fs for a bucket, by the variable's value."""
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
