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


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a bucket is served, and as whom it is asked; None: as the environment says. `profile`: of the files of
    AWS, which may name a role to assume. `anonymous`: requests are not signed."""

    endpoint: str | None = None
    profile: str | None = None
    region: str | None = None
    anonymous: bool = False


def use(endpoints: Mapping[str, Endpoint]) -> None:
    """From now on, in this process and those that it starts. Raises UnknownPlace for what is no bucket of S3."""
    if not endpoints:
        return
    for store in endpoints:
        bucket, below = split_authority(store)
        if scheme(store) != "s3" or below.strip("/") or not bucket.partition("://")[2]:
            raise UnknownPlace(f"stores: {store!r} is no bucket of S3", hint='write [stores."s3a://BUCKET"]')
    os.environ[VARIABLE] = as_text(endpoints)


def as_text(endpoints: Mapping[str, Endpoint]) -> str:
    """The variable's value."""
    return msgspec.json.encode({normal(store).rstrip("/"): each for store, each in endpoints.items()}).decode()


def driver_options(store: str, text: str) -> dict[str, Any]:
    """What s3fs is told of a bucket, by the variable's value."""
    found = _read(text).get(store.rstrip("/"), Endpoint())
    options: dict[str, Any] = {"endpoint_url": found.endpoint, "profile": found.profile}
    if found.region:
        options["client_kwargs"] = {"region_name": found.region}
    if found.anonymous:
        options["anon"] = True
    return {key: value for key, value in options.items() if value is not None}


@lru_cache(maxsize=8)
def _read(text: str) -> dict[str, Endpoint]:
    return msgspec.json.decode(text or "{}", type=dict[str, Endpoint])
