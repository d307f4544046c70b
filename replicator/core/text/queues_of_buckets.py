"""Which queue hears of which bucket, as users write it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cmroot.store.spelling import normal, scheme, split_authority


def check_queues(queues: Mapping[str, str]) -> None:
    """`queues`: URLs by bucket (`s3://name`). Raises ValueError for what is no bucket or no URL, and where a bucket has
    two queues, or a queue two buckets."""
    for bucket, url in queues.items():
        if scheme(bucket) != "s3" or split_authority(bucket)[1].strip("/") or "://" not in url:
            raise ValueError(f"{bucket}={url} is no bucket and its queue")
    if len({normal(bucket) for bucket in queues}) < len(queues):
        raise ValueError("one bucket with two queues")
    if len(set(queues.values())) < len(queues):
        raise ValueError("two buckets with one queue")
