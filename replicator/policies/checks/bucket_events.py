"""Whether the queues of a policy answer, and hear of all changes in their buckets. Takes no messages."""

from __future__ import annotations

from collections.abc import Mapping

from cmroot.errors import StorageUnreachable
from cmroot.store.drivers.bucket_queues import BucketQueue, why_not_all
from replicator.policies.checks.finding import Finding


def judge_queues(queues: Mapping[str, str]) -> list[Finding]:
    """By bucket. May run twice, and beside a capture."""
    return [_judge(bucket, BucketQueue(url)) for bucket, url in queues.items()]


def _judge(bucket: str, queue: BucketQueue) -> Finding:
    name = f"s3_events {bucket}"
    try:
        why = why_not_all(bucket, queue.standing().arn)
    except StorageUnreachable as error:
        return Finding(name, "critical", error.message, error.hint)
    except OSError as error:
        why = f"{queue.url}: {error.strerror or error}"
    if why:
        return Finding(name, "warning", f"all of it is listed: {why}", "see docs/s3-events.md")
    return Finding(name, "ok", f"{queue.url} hears of all changes")
