"""Scans: find changes that left no event, in the metastore and in directories, for all tables or, with a time
limit, for some of them per capture.

Objects that neither HDFS snapshots (`capture_snapshots`) nor the notifications of an S3 bucket name need not be listed.
A bucket is trusted after a capture that listed all of it, as long as nothing is in doubt: its queue is the same one,
has expired no messages, has no other consumer, and receives every change. Everything is still listed once a day.
Notifications take seconds, rarely minutes, so a change without an event may be found one capture later.
"""

from __future__ import annotations

import time as clocks
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import msgspec

from cmroot.errors import StorageUnreachable
from cmroot.keep.versions import why_unversioned
from cmroot.store.buckets import OWN, BucketQueue, Standing, why_not_all
from cmroot.store.hdfs import SCHEMES
from cmroot.store.listing import changed_directories
from cmroot.store.place import scheme
from cmroot.store.spelling import normal, split_authority
from replicator.captures.capture_snapshots import CaptureSnapshots, SnapshotDiff, bases
from replicator.captures.manifest import GRANTS
from replicator.captures.recording import Recording
from replicator.captures.unlistable import Refusals, remember_grants, remembered_grants
from replicator.captures.walk import Turns, note_engines, refresh_tables, walk_database
from replicator.core.grouping import batched
from replicator.core.model import ROLE, Column, Grant, RoleMembers, partition_name
from replicator.core.not_replicated import SOURCE_GRANTS, NotReplicated
from replicator.core.text import count_text
from replicator.errors import MetastoreError
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader
from replicator.metastore.events.notification_log import decode, read_events
from replicator.metastore.events.record import Change, SetGrants, SetRoles
from replicator.metastore.grants import Granted, other_authorizer

# ---- notifications of S3 buckets -------------------------------------------------------------------------------------


PROVED = timedelta(days=1)
"""The interval after which everything is listed again, regardless of notifications."""

MARGIN = timedelta(hours=1)
"""Messages are assumed lost this long before the end of their retention."""

DELIVERY = timedelta(minutes=15)
"""A notification may arrive this long after its change: S3 delivers within seconds, and now and then after minutes."""

SHARE, SHORTEST = 10, timedelta(milliseconds=100)
"""A paced scan may take one part in so many of the time since the scan before it, and at least so long."""

MANY = 100_000
"""The number of messages of one capture above which listing everything is cheaper."""

_STATE = "notices"


class Trusted(msgspec.Struct, frozen=True):
    """A bucket whose listing is valid, except for the objects named by later messages. created: the time of creation of
    its queue; taken, listed: when the queue was last drained, and the entire bucket last listed, in seconds; keeps: its
    versioning state; keeper: as requested."""

    queue: str
    created: str
    taken: int
    listed: int
    keeps: str
    keeper: str


class BucketNotices:
    """The notifications of one capture. `prove`: everything is listed. A queue is drained when the first object of its
    bucket is checked, which is before any of them is listed."""

    def __init__(self, log: Recording, queues: Mapping[str, str], keeper: str) -> None:
        """queues: URLs by bucket (`s3://name`), one queue per bucket."""
        self._log, self._keeper, self.prove = log, keeper, False
        self._queues = {normal(bucket): BucketQueue(url) for bucket, url in queues.items()}
        self._trusted = msgspec.json.decode(log.manifest.recall(_STATE) or "{}", type=dict[str, Trusted])
        self._named: dict[str, list[str] | None] = {}  # keys, sorted; None: everything is to be listed
        self._taken: dict[str, list[str]] = {}

    def is_quiet(self, location: str, *, root: bool = False) -> bool:
        """Returns True if nothing has changed at a location since it was listed. root: as of a `DataObject`. Raises
        StorageUnreachable if a queue is not reachable."""
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
        top, at = f"{key}/" if key else "", bisect_left(named, key)
        if key and named[at : at + 1] == [key]:
            return False
        return next(_of_root(named, top) if root else _below(named, top), None) is None

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def delay(self) -> int:
        """The seconds before a capture for which a change may still be unknown, because its notification is in transit;
        0 if everything was listed."""
        return int(DELIVERY.total_seconds()) if any(named is not None for named in self._named.values()) else 0

    def finish(self) -> None:
        """Stores the trusted buckets for the next capture; only buckets with a queue can be trusted."""
        if self._queues:
            self._log.manifest.remember(_STATE, msgspec.json.encode(self._trusted).decode())

    def published(self) -> None:
        """Deletes the received messages, now in the log; a remaining one only causes its objects to be listed again."""
        for bucket, receipts in self._taken.items():
            try:
                self._queues[bucket].remove(receipts)
            except (OSError, StorageUnreachable) as error:
                self._tell(bucket, f"its messages could not be deleted, and will be received again: {_said(error)}")
        self._taken = {}

    def abandoned(self) -> None:
        """Returns the messages to their queues, because nothing was published: the next capture receives them again. If
        that fails, they are hidden for a while, which makes it list everything."""
        for bucket, receipts in self._taken.items():
            try:
                self._queues[bucket].give_back(receipts)
            except (OSError, StorageUnreachable) as error:
                self._tell(bucket, f"its messages could not be returned to the queue: {_said(error)}")
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
        """Returns the keys of the bucket that messages name, and the reason why they may be incomplete."""
        queue, name = self._queues[bucket], bucket.partition("://")[2]
        keys: set[str] = set()
        taken = self._taken.setdefault(bucket, [])
        strange = ""
        while len(taken) < MANY:
            some = queue.take()
            taken += some.receipts
            keys.update(key for of, key in some.changed if of == name)
            others = {of for of, _ in some.changed if of != name}
            strange = strange or (f"its queue has messages not sent by S3: {some.strange}" if some.strange else "")
            strange = strange or (f"its queue also has messages of {', '.join(sorted(others))}" if others else "")
            if not some.receipts and not some.strange:
                break
        return keys, strange

    def _tell(self, bucket: str, why: str) -> None:
        self._log.report.warnings.append(
            f"{bucket}: listed completely, because its notifications may be incomplete: {why}"
        )


def _said(error: OSError | StorageUnreachable) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _doubt(before: Trusted, url: str, standing: Standing, now: int) -> str:
    """Returns the reason why a queue may be missing changes since it was last drained; empty if there is none."""
    if (before.queue, before.created) != (url, standing.created):
        return "its queue is not the one that was read before"
    if now - before.taken > standing.retention - MARGIN.total_seconds():
        return f"its queue retains messages for {standing.retention} s, and was not read for about that long"
    if standing.hidden:
        return (
            f"{standing.hidden} of its messages are hidden: another consumer reads its queue, or a capture was killed"
        )
    return ""


def _below(named: Sequence[str], top: str) -> Iterator[str]:
    """Yields those of the sorted keys that begin with `top`."""
    for at in range(bisect_left(named, top), len(named)):
        if not named[at].startswith(top):
            return
        yield named[at]


def _of_root(named: Sequence[str], top: str) -> Iterator[str]:
    """Yields those of the sorted keys that `list_root` would list; skips all keys below another directory at once."""
    at = bisect_left(named, top)
    while at < len(named) and named[at].startswith(top):
        name, inside, _ = named[at][len(top) :].partition("/")
        if not inside or name in OWN:
            yield named[at]
            at += 1
        else:
            at = bisect_left(named, f"{top}{name}0", at)  # "0" follows "/"


# ---- the scan of one capture -----------------------------------------------------------------------------------------


class Scan:
    """The scan of one capture. Its findings become observed records, and objects to be listed. `walked`: databases that
    the capture has just read completely, which are not read again."""

    def __init__(
        self,
        source: MetastoreReader,
        log: Recording,
        refusals: Refusals,
        snapshots: CaptureSnapshots,
        notices: BucketNotices,
    ) -> None:
        self._source, self._log, self._refusals, self._snapshots = source, log, refusals, snapshots
        self._notices = notices
        self.walked: set[str] = set()

    def everything(self, *, compare: bool, deep: bool) -> float:
        """Scans all tables. Returns the seconds taken by `compare`, which are also in the report."""
        if compare:
            began = clocks.monotonic()
            for db in self._existing():
                refused = self._refusals.asked(db)
                self._observe(walk_database(self._source, self._log.manifest, db, refused, deep=deep), deep)
            note_engines(self._source, self._log.manifest)
            self._log.report.compare_seconds = round(clocks.monotonic() - began, 3)
            Turns(self._log.manifest, self._log.began).all_seen()
        snapshots, self._notices.prove = SnapshotDiff(self._log, self._snapshots, begin=True, prove=deep), deep
        for objects in self._log.manifest.unlisted():
            for each in objects:
                snapshots.is_known(each.location)
                self._notices.is_quiet(each.location)
        self._unlist_changed(
            lambda place, root: snapshots.is_quiet(place, root=root) or self._notices.is_quiet(place, root=root)
        )
        snapshots.finish()
        self._notices.finish()
        if compare:
            self._log.cover(dict.fromkeys(self._log.manifest.scope(), self._log.began - self._notices.delay))
        return self._log.report.compare_seconds

    def paced(self) -> timedelta | None:
        """Returns the time limit by which scans take one part in SHARE of the time; None if all is to be scanned: for
        the first time, and where snapshots of HDFS, or notifications, tell what to list."""
        last = Turns(self._log.manifest, self._log.began).last
        on_hdfs = any(scheme(each.location or "") in SCHEMES for each in self._log.manifest.databases())
        if last is None or on_hdfs or self._notices or bases(self._log.manifest):
            return None
        return max(SHORTEST, timedelta(seconds=(self._log.began - last) / SHARE))

    def some(self, limit: timedelta, *, deep: bool) -> None:
        """Scans new and dropped tables and some others, for about `limit`, and at least one batch."""
        end, existing = clocks.monotonic() + limit.total_seconds(), self._existing()
        for db in existing:
            self._compare_outlines(db, deep)
        snapshots = SnapshotDiff(self._log, self._snapshots, begin=False, prove=False)
        if bases(self._log.manifest):
            self._log.manifest.unlist_objects_on_stores(
                lambda place, root: snapshots.is_quiet(place, root=root) or not snapshots.is_known(place)
            )
            snapshots.finish()
        turns = Turns(self._log.manifest, self._log.began)
        for batch in turns.batches():
            for db, names in batch.items():
                if db in existing:
                    refused = self._refusals.asked_again(db, names)
                    self._observe(refresh_tables(self._source, self._log.manifest, db, names, refused, deep=deep), deep)
                self._unlist_changed(lambda place, _: snapshots.is_known(place), db, names)
            if clocks.monotonic() >= end:
                break
        scanned = turns.end()
        if scanned.tables == scanned.of:
            note_engines(self._source, self._log.manifest)
        else:
            self._log.report.scanned = scanned
        self._log.cover({**dict.fromkeys(existing, self._log.began), **turns.covered()})

    def _compare_outlines(self, db: str, deep: bool) -> None:
        """Compares a database itself, its functions, and tables that are new or dropped."""
        known = set(self._log.manifest.table_names(db))
        changes = walk_database(
            self._source,
            self._log.manifest,
            db,
            self._refusals.asked_again(db, ()),
            deep=deep,
            chosen=lambda name: name not in known,
        )
        self._observe(changes, deep)
        for name in known.difference(self._log.manifest.table_names(db)):
            self._refusals.dropped(db, name)

    def _existing(self) -> list[str]:
        """Returns the captured databases that exist in the metastore and were not just walked."""
        known = self._log.manifest.scope() - self.walked
        return sorted(known.intersection(self._source.database_names())) if known else []

    def _observe(self, changes: Iterable[Change], deep: bool) -> None:
        """Records differences from the metastore. Unless `deep`, differences of tables with new events are left to
        those events."""
        if deep:
            for change in changes:
                self._log.observe(change)
            return
        differences = list(changes)
        if differences:
            moving = self._tables_in_new_events()
            for change in differences:
                if change.touched not in moving:
                    self._log.observe(change)

    def _unlist_changed(self, stays: Callable[[str, bool], bool], db: str = "", names: Sequence[str] = ()) -> None:
        """Compares recorded directories with the store: all, or those of some tables. `stays`: as for the manifest."""
        stale: set[tuple[int, int]] = set()
        for rows in self._log.manifest.directories(db, names):
            table_ids, partition_ids, *recorded = zip(*rows, strict=True)
            for index in changed_directories(*recorded):
                stale.add((table_ids[index], partition_ids[index]))
        self._log.manifest.unlist(stale)
        self._log.manifest.unlist_objects_on_stores(stays, db, names)

    def _tables_in_new_events(self) -> set[tuple[str, str] | None]:
        found: set[tuple[str, str] | None] = set()
        for event in read_events(self._source, self._log.cursor, {}).events:
            change = decode(event).change
            found.update(() if change.is_marker else change.tables or (None,))
        return found


# ---- grants ----------------------------------------------------------------------------------------------------------
# Grants and roles, which no event announces. A server returns those of all its databases at once, so they are read
# after each complete scan; with a time limit, after the last part of a round, and the first time.


class GrantScan:
    """The reading of grants by one capture. walked: databases that this capture has read for the first time."""

    def __init__(self, source: MetastoreReader, log: Recording, walked: Collection[str]) -> None:
        self._source, self._log, self._known, self._walked = source, log, log.manifest, walked
        self._is_first = self._known.recall(GRANTS) is None

    def read(self) -> None:
        """Records the differences of grants and roles, and reports databases whose grants are left out. Reads nothing
        if it was done since the last round of scans with a time limit began."""
        scanned, databases = self._log.report.scanned, self._databases()
        if not databases or not self._source.keeps_grants():
            return
        if scanned is None or self._is_first or self._known.recall(GRANTS) != str(scanned.since):
            self._left_out: dict[str, str] = {}
            self._read(databases)
            found = [NotReplicated(db, SOURCE_GRANTS + why) for db, why in sorted(self._left_out.items())]
            remember_grants(self._known, found)
        self._log.report.not_replicated += remembered_grants(self._known, databases)

    def _read(self, databases: Collection[str]) -> None:
        try:
            found = self._source.grants(databases)
            other = other_authorizer(self._source)
            roles = {} if other else self._source.roles(sorted(found.roles()))
        except MetastoreError as error:
            if error.transient:
                raise
            self._left_out = dict.fromkeys(databases, f"they could not be read: {error.message}")
            return
        for db, some in found.others.items():
            self._left_out[db] = f"{_counted(some)}, copies of its policies"
        if other:
            self._left_out |= dict.fromkeys({db for db, _, _ in found.grants}, f"{other} authorizes access there")
            self._log.report.warnings.append(f"no grants were read: {self._source.uri} leaves authorization to {other}")
            return
        for db in sorted(databases):
            self._compare(db, found)
            self._compare_roles(db, found, roles)
        scanned = self._log.report.scanned
        self._known.remember(GRANTS, str(scanned.since) if scanned else "read")

    def _databases(self) -> set[str]:
        return {each.name for each in self._known.databases() if not each.connector}

    def _compare(self, db: str, found: Granted) -> None:
        now: dict[str, dict[str, tuple[Grant, ...]]] = {}
        keys: dict[str, tuple[Column, ...]] = {}
        for table, values, grants in found.objects(db):
            if values and table not in keys:
                known = self._known.table(db, table)
                keys[table] = known.partition_keys if known else ()
            if len(values) in (0, len(keys.get(table, ()))):
                name = partition_name(keys[table], values) if values else ""
                now.setdefault(table, {})[name] = grants
        self._observe(db, "", now.pop("", {}))
        tables = (now.keys() | self._known.granted_tables(db)) & set(self._known.table_names(db))
        for table in sorted(tables):
            self._observe(db, table, now.get(table, {}))

    def _observe(self, db: str, table: str, now: Mapping[str, tuple[Grant, ...]]) -> None:
        before = self._known.grants(db, table)
        changed = [name for name in sorted(now.keys() | before.keys()) if now.get(name, ()) != before.get(name, ())]
        first = self._is_first and db not in self._walked
        for some in batched(changed, PARTITION_BATCH):
            grants = {name: now.get(name, ()) for name in some}
            self._log.observe(SetGrants(db=db, table=table, grants=grants, first=first))

    def _compare_roles(self, db: str, found: Granted, roles: Mapping[str, RoleMembers]) -> None:
        """Records the roles with grants in the database, and the roles that have these roles, in turn."""
        waiting = [each.principal for _, _, grants in found.objects(db) for each in grants if each.kind == ROLE]
        needed: dict[str, RoleMembers] = {}
        while waiting:
            name = waiting.pop()
            if name in roles and name not in needed:
                needed[name] = roles[name]
                waiting += [each.principal for each in roles[name].members if each.kind == ROLE]
        now = tuple(needed[name] for name in sorted(needed))
        if now != self._known.roles(db):
            self._log.observe(SetRoles(db=db, roles=now))


def _counted(count: Mapping[str, int]) -> str:
    return ", ".join(f"{count_text(number, 'grant')} of {name}" for name, number in sorted(count.items()))
