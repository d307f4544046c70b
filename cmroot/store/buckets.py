"""Operations on entire S3 buckets: listings of many directories in few requests, and the queues that buckets notify of
changes. A listing of many directories is one flat listing in the order of keys, which skips the keys between them. It
takes one request per thousand objects, and at most one more per directory. Queues (SQS): whether a bucket sends all its
changes, and the objects in the messages. Messages are read and removed here; nothing is decided.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from cmroot.errors import NotWritable, StorageUnreachable
from cmroot.store.delta import LOG
from cmroot.store.hudi import HOME
from cmroot.store.listing import Listing, key_prefix, list_local, list_tree, listed_objects
from cmroot.store.place import is_local, join, local_path, normal, remote_store
from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import naming, scheme, split_authority

Infos = dict[str, dict[str, Any]]  # key with its bucket -> what the store reports for the object, in fsspec's form

PAGE = 1000  # maximum number of objects in an answer: S3's own limit
_UNORDERED = ("--x-s3", "--xa-s3")  # ends of the names of directory buckets, which list in no order, and their aliases


def lists_ranges(place: str) -> bool:
    """Returns True if the store of a place lists from a given key on, in the order of keys."""
    return scheme(place) == "s3" and not split_authority(place)[0].endswith(_UNORDERED)


def trees(places: Sequence[str]) -> Iterator[tuple[int, Infos]]:
    """Yields each of these places of one bucket (by index) with every object below it, in the order of keys. {}: the
    place must be listed separately; it is empty, it is inside another one, or the store does not list in order.

    Holds one page, and the objects of one place. Raises the errors of a listing.
    """
    store = FsspecStore(places[0])
    wanted = [(store.key(place).rstrip("/") + "/", index) for index, place in enumerate(places)]
    wanted.sort(key=lambda each: each[0].encode())
    reading = _Reading(store, _above(wanted[0][0], wanted[-1][0]))
    last = None
    for prefix, index in wanted:
        if last is not None and prefix.startswith(last):
            yield index, {}
            continue
        last = prefix
        with naming(places[index]):
            found = reading.below(prefix)
        yield index, found


def _above(first: str, last: str) -> str:
    """Returns the common prefix of all keys between two, up to the slash of its last directory."""
    return posixpath.commonprefix([first, last]).rpartition("/")[0] + "/"


class _Reading:
    """One listing of a bucket, forward only."""

    def __init__(self, store: FsspecStore, above: str) -> None:
        """above: the bucket, and the common prefix of the keys of all places, ending with a slash."""
        self._filesystem = store.filesystem
        self._bucket, _, self._prefix = above.partition("/")
        self._page: deque[dict[str, Any]] = deque()
        self._last = b""  # key, without the bucket
        self._token = ""  # of the page after this one
        self._ended = self._disordered = False
        self._size, self._used = PAGE, 0

    def below(self, prefix: str) -> Infos:
        """Returns the objects below a place. prefix: its key with its bucket, and a slash; in the order of keys."""
        found: Infos = {}
        wanted = prefix.partition("/")[2].encode()
        while (info := self._next(wanted)) is not None:
            self._page.popleft()
            self._used += 1
            found[f"{self._bucket}/{info['Key']}"] = info
        return {} if self._disordered else found

    def _next(self, wanted: bytes) -> dict[str, Any] | None:
        """Returns the next object below; it remains in the page."""
        while not self._disordered:
            while self._page and self._page[0]["Key"].encode() < wanted:
                self._page.popleft()
            if self._page:
                return self._page[0] if self._page[0]["Key"].encode().startswith(wanted) else None
            if self._ended:
                return None
            self._read(max(self._last, wanted))
        return None

    def _read(self, after: bytes) -> None:
        """Reads the next page. Consecutive pages use the store's own token: not all stores order names like this. A
        listing with few relevant objects requests smaller pages."""
        if self._last:
            self._size = min(PAGE, max(PAGE // 50, 4 * self._used))
        self._used = 0
        goes_on = self._token and after == self._last
        begin = {"ContinuationToken": self._token} if goes_on else {"StartAfter": after.decode()}
        answer = self._filesystem.call_s3(
            "list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=self._size, **begin
        )
        for each in answer.get("Contents", ()):
            key = each["Key"].encode()
            if key <= self._last or key <= after:
                self._disordered = True
                return
            self._last = key
            self._page.append({**each, "name": f"{self._bucket}/{each['Key']}", "size": each["Size"], "type": "file"})
        self._ended, self._token = not answer["IsTruncated"], answer.get("NextContinuationToken", "")


# ---- queues ----------------------------------------------------------------------------------------------------------


ALL = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*")
"""The kinds of notifications that together report each change of an object."""

HIDDEN = 900
"""Seconds for which received messages are invisible to other receivers, and after which they are delivered again."""

_TESTING = "s3:TestEvent"
_TOGETHER = 10  # messages in one request: the limit of SQS
_AWAY = "check the queue's address, and that it answers; then run again. Without the queue, everything is listed"
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
        return f"its notification configuration cannot be read (s3:GetBucketNotification): {error.strerror or error}"
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


# ---- listings of several locations -----------------------------------------------------------------------------------
# Listings of several locations in few requests, and of the directories of partitioned tables. Reads only.


OWN = frozenset({"_spark_metadata"})
"""Directories in that of a partitioned table which are the table's own. Others may be partitions, or unfinished."""


def list_root(location: str, *, now_ns: Callable[[], int] = time.time_ns) -> Listing | None:
    """Returns the files in the directory of a partitioned table that are in none of its partitions: those directly in
    it, and those below directories of its own. None when the directory does not exist, or is a file."""
    if is_local(location):
        listing = list_local(local_path(location), now_ns, within=OWN.__contains__)
    else:
        listing = _list_root_objects(location)
    return None if listing is None or listing.is_one_file else listing


def _list_root_objects(location: str) -> Listing | None:
    store, prefix = remote_store(location), key_prefix(location)
    try:
        with naming(location):
            infos = store.filesystem.ls(prefix[:-1], detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = {}
    for info in infos:
        name = info["name"].rstrip("/")[len(prefix) :]
        if info.get("type") != "directory":
            found[info["name"]] = info
        elif name in OWN:
            found |= store.tree(join(location, name))
    return listed_objects(prefix, found)


class Listings:
    """Listings of several locations, for a caller that requests them in turn. The first ones of a store that lists
    ranges are made together, in few requests; at most one page ahead of the requested one, if locations are sorted."""

    def __init__(self, locations: Sequence[str], roots: Collection[int] = ()) -> None:
        """roots: the indexes of those that are directories of partitioned tables, listed by `list_root`."""
        self._locations, self._roots = locations, roots
        self._coming = _together(locations, roots)
        self._here: dict[int, Listing | None] = {}
        self._unasked = set(range(len(locations)))

    def of(self, index: int) -> Listing | None:
        """Returns the listing of a location like `list_tree` or `list_root`; a new listing each time."""
        if index in self._roots:
            return list_root(self._locations[index])
        if index in self._unasked:
            self._unasked.discard(index)
            while index not in self._here and (came := self._next()):
                self._here[came[0]] = came[1]
        return self._here.pop(index, None) or list_tree(self._locations[index])

    def _next(self) -> tuple[int, Listing | None] | None:
        """Returns the next listing; None after an error: listing that location separately reports it better."""
        try:
            return next(self._coming, None)
        except (ConnectionError, TimeoutError):
            raise
        except (OSError, NotWritable):
            return None


def _together(locations: Sequence[str], without: Collection[int]) -> Iterator[tuple[int, Listing | None]]:
    """Yields the locations (by index) whose store lists ranges, by bucket and in the order of their keys. None: must be
    listed separately."""
    buckets: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        if index not in without and lists_ranges(location):
            buckets.setdefault(split_authority(normal(location))[0], []).append(index)
    for indexes in buckets.values():
        places = [locations[index] for index in indexes]
        for nth, found in trees(places):
            prefix = key_prefix(places[nth])
            alone = not found or any(key.startswith((f"{prefix}{LOG}/", f"{prefix}{HOME}/")) for key in found)
            yield indexes[nth], None if alone else listed_objects(prefix, found)
