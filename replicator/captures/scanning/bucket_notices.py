"""Which objects on S3 have changed, by the notifications of their buckets: what they do not name need not be listed.

A bucket is trusted from a capture on that listed all of it, as long as nothing is unsure: its queue is the same one,
has lost nothing by age, is read by nobody else, and hears of every change. Everything is listed once a day all the
same. Notifications take seconds, and rarely minutes: a change without an event of the metastore may be found by the
capture after the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from cmroot.errors import StorageUnreachable
from cmroot.keep.versions import why_unversioned
from cmroot.store.bucket_queues import BucketQueue, Standing, why_not_all
from cmroot.store.place import scheme
from cmroot.store.spelling import normal, split_authority
from replicator.captures.recording import Recording

PROVED = timedelta(days=1)
"""After so long everything is listed again, whatever the notifications say."""

MARGIN = timedelta(hours=1)
"""How long before the end of their retention messages are taken for lost."""

MANY = 100_000
"""Messages of one capture, beyond which listing all is the better way."""

_STATE = "notices"


class Trusted(msgspec.Struct, frozen=True):
    """A bucket of which all that was not named since was listed. created: of its queue; taken, listed: when the queue
    was emptied and all was listed the last time, in seconds; keeps: how its versioning was; keeper: as asked for."""

    queue: str
    created: str
    taken: int
    listed: int
    keeps: str
    keeper: str


class BucketNotices:
    """Those of one capture. `prove`: all is listed. A queue is emptied when the first object of its bucket is looked
    at, which is before any of them is listed."""

    def __init__(self, log: Recording, queues: Mapping[str, str], keeper: str) -> None:
        """queues: URLs by bucket (`s3://name`), each its own."""
        self._log, self._keeper, self.prove = log, keeper, False
        self._queues = {normal(bucket): BucketQueue(url) for bucket, url in queues.items()}
        self._trusted = msgspec.json.decode(log.manifest.recall(_STATE) or "{}", type=dict[str, Trusted])
        self._named: dict[str, list[str] | None] = {}  # keys, sorted; None: all is to be listed
        self._taken: dict[str, list[str]] = {}

    def is_quiet(self, location: str) -> bool:
        """Whether nothing has changed at a location since it was listed. Raises StorageUnreachable for a queue that is
        away."""
        if not self._queues or scheme(location) != "s3":
            return False
        bucket, path = split_authority(normal(location))
        if bucket not in self._queues:
            return False
        if bucket not in self._named:
            self._named[bucket] = self._asked(bucket)
        named, key = self._named[bucket], path.strip("/")
        if named is None:
            return False
        if not key:
            return not named
        below = bisect_left(named, f"{key}/")
        at = bisect_left(named, key)
        return not (named[below : below + 1] and named[below].startswith(f"{key}/")) and named[at : at + 1] != [key]

    def finish(self) -> None:
        """Remembers what the next capture may trust. Without queues all was listed, and nothing was taken."""
        if self._queues:
            self._log.manifest.remember(_STATE, msgspec.json.encode(self._trusted).decode())

    def published(self) -> None:
        """What was taken is in the log by now; a message that stays only makes its objects be listed again."""
        for bucket, receipts in self._taken.items():
            try:
                self._queues[bucket].remove(receipts)
            except (OSError, StorageUnreachable) as error:
                self._tell(bucket, f"its messages could not be removed, and come again: {_said(error)}")
        self._taken = {}

    def abandoned(self) -> None:
        """Nothing was published: the next capture gets the same messages. Where that fails they are hidden for a while,
        which makes it list all."""
        for bucket, receipts in self._taken.items():
            try:
                self._queues[bucket].give_back(receipts)
            except (OSError, StorageUnreachable) as error:
                self._tell(bucket, f"its messages could not be given back: {_said(error)}")
        self._taken = {}

    def _asked(self, bucket: str) -> list[str] | None:
        before, now, queue = self._trusted.pop(bucket, None), self._log.now(), self._queues[bucket]
        try:
            standing = queue.standing()
            unheard = why_not_all(bucket, standing.arn)
            keys, strange = self._emptied(bucket)
        except OSError as error:
            self._tell(bucket, f"{queue.url}: {error.strerror or error}")
            return None
        keeps = why_unversioned(bucket)
        doubt = unheard or strange or (_doubt(before, queue.url, standing, now) if before else "")
        if len(keys) >= MANY:
            doubt = doubt or f"{MANY:,} messages or more"
        same = before is not None and (before.keeps, before.keeper) == (keeps, self._keeper)
        due = self.prove or before is None or not same or now - before.listed >= PROVED.total_seconds()
        if not unheard and not strange:
            listed = now if doubt or due or before is None else before.listed
            self._trusted[bucket] = Trusted(queue.url, standing.created, now, listed, keeps, self._keeper)
        if doubt:
            self._tell(bucket, doubt)
        return None if doubt or due else sorted(keys)

    def _emptied(self, bucket: str) -> tuple[set[str], str]:
        """Keys of the bucket that messages name, and why they do not tell all."""
        queue, name = self._queues[bucket], bucket.partition("://")[2]
        keys: set[str] = set()
        taken = self._taken.setdefault(bucket, [])
        strange = ""
        while len(taken) < MANY:
            some = queue.take()
            taken += some.receipts
            keys.update(key for of, key in some.changed if of == name)
            others = {of for of, _ in some.changed if of != name}
            strange = strange or (f"its queue has messages that are none of S3: {some.strange}" if some.strange else "")
            strange = strange or (f"its queue has messages of {', '.join(sorted(others))}, too" if others else "")
            if not some.receipts and not some.strange:
                break
        return keys, strange

    def _tell(self, bucket: str, why: str) -> None:
        self._log.report.warnings.append(
            f"{bucket}: all of it was listed, as notifications do not tell everything: {why}"
        )


def _said(error: OSError | StorageUnreachable) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _doubt(before: Trusted, url: str, standing: Standing, now: int) -> str:
    """Why what a queue has now may not be all since it was emptied."""
    if (before.queue, before.created) != (url, standing.created):
        return "its queue is another one"
    if now - before.taken > standing.retention - MARGIN.total_seconds():
        return f"its queue holds messages for {standing.retention} s, and was not read for about as long"
    if standing.hidden:
        return f"{standing.hidden} of its messages are hidden: somebody else reads its queue, or a capture was killed"
    return ""
