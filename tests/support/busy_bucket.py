"""A bucket of a server that answers 503 to 15 % of all requests of the product, and to none of the tests'."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from object_servers import environment
from purge_kills import BUSY
from s3_path import S3Path
from s3_proxy import counting
from versity import Versity


@contextmanager
def busy_bucket(versitygw: Versity, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Path]:
    """The bucket past the proxy that the environment names."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
    chance, name = random.Random(1), f"busy-{uuid.uuid4().hex[:8]}"
    with counting(versitygw.url) as proxy, environment(versitygw.environment | {"AWS_ENDPOINT_URL": proxy.url}):
        client = boto3.Session().client("s3", endpoint_url=versitygw.url)
        client.create_bucket(Bucket=name)
        proxy.strict = False  # this server heeds digests and conditions itself
        proxy.fails = lambda kind, path: chance.random() < BUSY
        yield S3Path(client, name)
        assert proxy.taken().total() > 100
