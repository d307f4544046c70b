"""Queues (SQS) to which S3 buckets send notifications: whether a bucket sends all its changes, and the objects in the
messages. Reads and removes messages; decides nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from cmroot.errors import StorageUnreachable
from cmroot.store.place import remote_store
from cmroot.store.spelling import split_authority

ALL = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*")
"""The kinds of notifications that together report each change of an object."""

HIDDEN = 900
"""Seconds for which received messages are invisible to other receivers, and after which they are delivered again."""

_TESTING = "s3:TestEvent"
_TOGETHER = 10  # messages in one request: the limit of SQS
_AWAY = "see whether the queue's address is right and answers, then run again; without the queue all is listed"
_REGION = re.compile(r"sqs[.-]([a-z0-9-]+)\.amazonaws\.")


@dataclass(frozen=True)
class Messages:
    """Received messages. receipts: handles for removing them. changed: (bucket, key) of objects. strange: the first
    message that is not an S3 notification, as text."""

    receipts: Sequence[str]
    changed: Sequence[tuple[str, str]]
    strange: str = ""


@dataclass(frozen=True)
class Standing:
    """The state of a queue. created: a number that differs in another queue of the same name; retention: seconds for
    which it stores a message; hidden: messages that another receiver has taken, or that are not visible yet."""

    arn: str
    created: str
    retention: int
    hidden: int


@dataclass
class BucketQueue:
    """One queue, by its URL. Every call raises StorageUnreachable when it does not respond, and OSError when it does
    not exist or access is denied."""

    url: str

    @cached_property
    def _client(self) -> Any:
        from botocore.config import Config
        from botocore.session import get_session

        parts = urlsplit(self.url)
        found = _REGION.search(parts.netloc)
        region = found[1] if found else os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return get_session().create_client(
            "sqs",
            region_name=region,
            endpoint_url=f"{parts.scheme}://{parts.netloc}",
            use_ssl=parts.scheme == "https",
            config=Config(retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=10),
        )

    def standing(self) -> Standing:
        said = self._call("get_queue_attributes", AttributeNames=["All"])["Attributes"]
        hidden = sum(int(said.get(f"ApproximateNumberOfMessages{kind}", 0)) for kind in ("NotVisible", "Delayed"))
        return Standing(said["QueueArn"], said["CreatedTimestamp"], int(said["MessageRetentionPeriod"]), hidden)

    def take(self) -> Messages:
        """Returns some messages, now invisible to others; none: there are no more. Queries all servers of the queue."""
        answer = self._call(
            "receive_message", MaxNumberOfMessages=_TOGETHER, VisibilityTimeout=HIDDEN, WaitTimeSeconds=1
        )
        receipts, changed, strange = [], list[tuple[str, str]](), ""
        for message in answer.get("Messages", ()):
            try:
                changed += _objects_of(json.loads(message["Body"]))
                receipts.append(message["ReceiptHandle"])
            except (KeyError, TypeError, ValueError):
                strange = strange or message["Body"][:200]
        return Messages(receipts, changed, strange)

    def remove(self, receipts: Sequence[str]) -> None:
        """Removes received messages. One that is not removed is delivered again."""
        for some in _tens(receipts):
            self._call("delete_message_batch", Entries=some)

    def give_back(self, receipts: Sequence[str]) -> None:
        """Makes received messages visible again."""
        for some in _tens(receipts):
            entries = [each | {"VisibilityTimeout": 0} for each in some]
            self._call("change_message_visibility_batch", Entries=entries)

    def _call(self, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        try:
            return getattr(self._client, operation)(QueueUrl=self.url, **arguments)
        except (ConnectionError, HTTPClientError) as error:
            raise StorageUnreachable(f"{self.url}: {error}", hint=_AWAY) from error
        except (BotoCoreError, ClientError) as error:
            raise OSError(errno.EIO, str(error), self.url) from error


def why_not_all(place: str, arn: str) -> str:
    """Returns why a queue is not notified of each change in the bucket of a place; "" if it is."""
    bucket = split_authority(place)[0].partition("://")[2]
    try:
        said = remote_store(place).filesystem.call_s3("get_bucket_notification_configuration", Bucket=bucket)
    except OSError as error:
        return f"its notifications may not be looked at (s3:GetBucketNotification): {error.strerror or error}"
    sent = {
        event
        for each in said.get("QueueConfigurations", ())
        if each["QueueArn"] == arn and not each.get("Filter", {}).get("Key", {}).get("FilterRules")
        for event in each["Events"]
    }
    missing = [event for event in ALL if event not in sent]
    return f"it does not send {', '.join(missing)} to {arn}, for all its keys" if missing else ""


def _objects_of(body: Any) -> Iterator[tuple[str, str]]:
    """Yields the objects of one notification. Raises KeyError, TypeError or ValueError if it is not one."""
    if body.get("Event") == _TESTING:
        return
    for record in body["Records"]:
        if record["eventSource"] != "aws:s3":
            raise ValueError(record["eventSource"])
        yield record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])


def _tens(receipts: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(receipts), _TOGETHER):
        some = receipts[start : start + _TOGETHER]
        yield [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(some)]
