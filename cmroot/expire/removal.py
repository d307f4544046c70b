"""Carrying out a plan of an expiry: what came since is taken back, the rest is removed, batch by batch.

Runs under the lease, so no capture, dump or compaction is at work; a gateway may be (see `store_lock`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import FormatError, Superseded
from cmroot.expire.retention import NEVER, Needing
from cmroot.keep.content import content_name
from cmroot.keep.store_lock import removing
from cmroot.lease import Lease
from cmroot.log.captured import ADD, segments
from cmroot.log.intercepted import read_intercepted
from cmroot.store.objects.told import object_time_ns
from cmroot.store.place import Place, join
from cmroot.store.spelling import raise_named
from cmroot.store.stores import remote_store

BATCH = 1000
"""Entries removed between two looks at who else is at work; also what S3 deletes with one request."""

MANY = 2_000_000
"""References begun since the plan, of which all are held in memory; with more, a new plan is the better way."""

_ALL_EVENTS = (1 << 63) - 1


@dataclass
class RemovedEntries:
    """`entries` and `bytes` that were removed; `freed`: bytes of those whose inode had no other name. `taken_back`:
    planned, but needed by now. `missing`: gone already."""

    entries: int = 0
    bytes: int = 0
    freed: int = 0
    taken_back: int = 0
    taken_back_bytes: int = 0
    missing: int = 0


class Since:
    """What came after a plan: references in later segments and intercepts, and pins that were made or moved."""

    def __init__(self, root: str, position: int, planned: tuple[Needing, ...], pins: tuple[Needing, ...]) -> None:
        """`position`: of the log that the plan knew; `planned`: its pins; `pins`: those of now."""
        self._root = root
        self._after = min((pin.position for pin in pins if not pin.is_hold), default=None)
        self._holds = [pin for pin in pins if pin.is_hold and pin not in planned]
        self._begun = _begun(root, position)
        self._taken: frozenset[str] = frozenset()
        self._intercepted_keys = _NO_KEYS
        self.look_again()

    def look_again(self) -> None:
        """Read the intercepts once more, if there are others."""
        intercepts = read_intercepted(self._root, _ALL_EVENTS)
        places = frozenset(taken.place for taken in intercepts)
        if places - self._taken:
            rows = [taken.rows().select(["checksum", "size"]) for taken in intercepts if taken.place not in self._taken]
            self._intercepted_keys = pa.concat_arrays([self._intercepted_keys, *(_keys(table) for table in rows)])
            self._taken |= places

    def needs(self, rows: pa.RecordBatch) -> pa.Array:
        """Which of the planned rows are needed now; rather too many than too few."""
        keys = _keys(rows)
        needed = pc.or_(pc.is_in(keys, self._begun), pc.is_in(keys, self._intercepted_keys))
        if self._after is not None:
            needed = pc.or_(needed, pc.fill_null(pc.greater(rows["released"], self._after), False))
        for pin in self._holds:
            within = pc.and_(pc.less_equal(rows["since"], pin.position), pc.greater(rows["released"], pin.position))
            needed = pc.or_(needed, pc.fill_null(within, False))
        return needed


def remove(
    root: str,
    planned: Iterator[pa.RecordBatch],
    since: Since,
    cutoff_ns: int,
    lease: Lease,
    *,
    now: Callable[[], float] = time.time,
) -> RemovedEntries:
    """Remove the planned entries that are not needed now. One that was stored again after `cutoff_ns` (since 1970) is
    taken back too. Safe to run twice."""
    removed = RemovedEntries()
    files = Place(root) / "files"
    for rows in planned:
        for start in range(0, rows.num_rows, BATCH):
            batch = rows.slice(start, BATCH)
            with removing(root, now=now):
                lease.check()
                since.look_again()
                needed = since.needs(batch)
                back = batch.filter(needed)
                removed.taken_back += back.num_rows
                removed.taken_back_bytes += pc.sum(back["bytes"]).as_py() or 0
                going = batch.filter(pc.invert(needed))
                if files.local:
                    _unlink(files.local, going, cutoff_ns, removed)
                else:
                    _delete(str(files), going, cutoff_ns, removed, lease)
    return removed


def _unlink(directory: str, rows: pa.RecordBatch, cutoff_ns: int, removed: RemovedEntries) -> None:
    columns = (rows[name].to_pylist() for name in ("checksum", "size"))
    for checksum, size in zip(*columns, strict=True):
        path = f"{directory}/{checksum[:2]}/{content_name(checksum, size)}"
        try:
            status = os.lstat(path)
            if status.st_ctime_ns > cutoff_ns:  # it was stored again
                removed.taken_back += 1
                removed.taken_back_bytes += status.st_size
                continue
            os.unlink(path)
        except FileNotFoundError:
            removed.missing += 1
            continue
        except OSError as error:
            raise_named(error, path)
        removed.entries += 1
        removed.bytes += status.st_size
        if status.st_nlink == 1:
            removed.freed += status.st_size


def _delete(directory: str, rows: pa.RecordBatch, cutoff_ns: int, removed: RemovedEntries, lease: Lease) -> None:
    """Asks for the lease again: the store may have taken longer over its answers than the lease lasts."""
    store = remote_store(directory)
    columns = (rows[name].to_pylist() for name in ("checksum", "size"))
    paths = [
        join(directory, checksum[:2], content_name(checksum, size)) for checksum, size in zip(*columns, strict=True)
    ]
    going = []
    for path, reported, size in zip(paths, store.infos(paths), rows["bytes"].to_pylist(), strict=True):
        if reported is None:
            removed.missing += 1
        elif (object_time_ns(reported) or NEVER) > cutoff_ns:  # it was stored again, or nobody knows
            removed.taken_back += 1
            removed.taken_back_bytes += size
        else:
            going.append((path, size))
    lease.check()
    store.remove_many([path for path, _ in going])
    size = sum(size for _, size in going)
    removed.entries += len(going)
    removed.bytes += size
    removed.freed += size


def _begun(root: str, position: int) -> pa.Array:
    """Contents to which a reference was begun after a position, as keys."""
    log = segments(root)
    if (log[-1].last if log else 0) < position:
        raise FormatError(
            f"{root}: the log ends before position {position}, where it ended when the plan was made",
            hint="somebody replaced the log: check the root, then run the command again",
        )
    found, rows = [_NO_KEYS], 0
    for segment in log:
        if segment.last <= position:
            continue
        for batch in segment.file_batches(["position", "op", "checksum", "size"]):
            begun = pc.and_(pc.equal(batch["op"], ADD), pc.greater(batch["position"], position))
            keys = _keys(batch.filter(pc.and_(begun, pc.is_valid(batch["checksum"]))))
            found.append(keys)
            rows += len(keys)
            if rows > MANY:
                raise Superseded(
                    f"{root}: more than {MANY:,} references have begun since the plan was made",
                    hint="run the same command again: it makes a new plan",
                )
    return pa.concat_arrays(found).unique()


_NO_KEYS = pa.array([], pa.string())


def _keys(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Contents as strings: `<checksum>-<size>`."""
    keys = pc.binary_join_element_wise(rows["checksum"], pc.cast(rows["size"], pa.string()), "-")
    return pc.drop_null(keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys)
