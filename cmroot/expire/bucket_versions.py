"""Expiry of versions: contents that buckets retain although they are not required any more. Only on request: other
roots and other users of the bucket may need them.

A release in the log records which version a file had. The decision is that of an expiry, by content: while one
reference to the bytes is required, all versions with them are retained; an object's current version always is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import NotWritable
from cmroot.expire.plans import BATCH, RemovedEntries, Since, write_part
from cmroot.expire.retention import Rules, decide, read_rows
from cmroot.keep.hdfs_keepers import SnapshotEntry, is_native, made_snapshots
from cmroot.keep.store_lock import removing
from cmroot.keep.versions import drop_versions, keeps_versions, old_versions, why_versions_unseen
from cmroot.lease import Lease
from cmroot.log.captured import RELEASE, Segment
from cmroot.log.references import KEY, REFERENCES, FileRows, Grouping, count_references, sources
from cmroot.log.segment import conform
from cmroot.store.place import Place, join, normal
from cmroot.store.retained_entries import ENTRIES
from cmroot.store.spelling import is_root

PART = "version"
"""The prefix of the names of a plan's parts with versions."""

AT_ONCE = 100_000
"""The number of versions that are sorted by location at one time."""

GOING_VERSIONS = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("since", pa.int64()),
        ("released", pa.int64()),
        ("location", pa.string()),
        ("path", pa.string()),
        ("version", pa.string()),
    ]
)
_PLANNED = pa.schema([("name", pa.string()), ("versions", pa.int64()), ("bytes", pa.int64())])
_PLACES = [GOING_VERSIONS.field(name) for name in ("location", "path", "version")]
_MIXED = pa.schema([*REFERENCES, *_PLACES])
"""References, and in addition a row for each release of a version."""


@dataclass(frozen=True)
class GoingVersions:
    """The versions in a plan: its parts, and the number and bytes of entries according to the log. No bucket was
    queried: some versions may not exist any more."""

    parts: tuple[str, ...] = ()
    entries: int = 0
    bytes: int = 0


NO_VERSIONS = GoingVersions()


def plan_versions(root: str, log: Sequence[Segment], engine: Grouping, rules: Rules, place: Place) -> GoingVersions:
    """Writes the versions that may be removed to parts of a plan."""
    found = engine.group(_read, sources(root, list(log)), KEY, _Decider(rules, place), _PLANNED)
    rows = [row for batch in found for row in batch.to_pylist()]
    names = tuple(sorted(row["name"] for row in rows))
    return GoingVersions(names, sum(row["versions"] for row in rows), sum(row["bytes"] for row in rows))


def remove_versions(
    root: str, planned: Iterable[pa.RecordBatch], since: Since, lease: Lease, now: Callable[[], float]
) -> RemovedEntries:
    """Removes the planned versions that are not required now and not current. May run twice: missing ones are not
    counted. Raises NotWritable when a bucket refuses."""
    removed = RemovedEntries()
    for rows in _sorted(planned):
        starts = [0, *pc.indices_nonzero(pc.not_equal(rows["location"][1:], rows["location"][:-1])).to_pylist()]
        starts = [starts[0], *(start + 1 for start in starts[1:]), rows.num_rows]
        for start, end in pairwise(starts):
            for some in _by_listing(rows.slice(start, end - start)):
                _remove_at(root, some, since, lease, removed, now)
    return removed


def _remove_at(
    root: str, rows: pa.Table, since: Since, lease: Lease, removed: RemovedEntries, now: Callable[[], float]
) -> None:
    """Removes the versions of one location; one listing shows which still exist, and which are not current."""
    location, above = rows["location"][0].as_py(), rows["path"][0].as_py().rpartition("/")[0]
    listed = join(location, above) if is_root(location) else location
    wanted: dict[tuple[str, str], int] = {}
    for index, (path, version) in enumerate(zip(rows["path"].to_pylist(), rows["version"].to_pylist(), strict=True)):
        wanted[normal(join(location, path)), version] = index
    single = "" in rows["path"].to_pylist()  # the location is a file
    there = [old for old in old_versions(listed, named=single) if (old.path, old.version) in wanted]
    if not there and (why := why_versions_unseen(location)):
        raise NotWritable(f"{location}: {why}", hint="grant this permission, or expire without versions")
    for start in range(0, len(there), BATCH):
        some = there[start : start + BATCH]
        with removing(root, now=now):
            lease.check()
            since.look_again()
            needed = since.needs(rows.take([wanted[old.path, old.version] for old in some])).to_pylist()
            going = [old for old, by in zip(some, needed, strict=True) if not by]
            drop_versions(going)
        removed.taken_back += len(some) - len(going)
        removed.entries += len(going)
        removed.bytes += sum(old.size for old in going)
    removed.freed = removed.bytes


def _by_listing(rows: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows of one location that one listing shows: those of a bucket, by the directories in it."""
    if not is_root(rows["location"][0].as_py()):
        yield rows
        return
    directories: dict[str, list[int]] = {}
    for index, path in enumerate(rows["path"].to_pylist()):
        directories.setdefault(path.rpartition("/")[0], []).append(index)
    yield from map(rows.take, directories.values())


def _sorted(planned: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the rows sorted by location, in tables of `AT_ONCE` rows or slightly more."""
    batches, rows = list[pa.RecordBatch](), 0
    for batch in planned:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= AT_ONCE:
            yield pa.Table.from_batches(batches).sort_by("location").combine_chunks()
            batches, rows = [], 0
    if rows:
        yield pa.Table.from_batches(batches).sort_by("location").combine_chunks()


@dataclass(frozen=True)
class _Decider:
    """Decides over the contents of one prefix. Runs in a task."""

    rules: Rules
    place: Place

    def __call__(self, group: pa.Table) -> pa.Table:
        released = pc.is_valid(group["version"])
        versions = group.filter(released).select(["checksum", "size", *(each.name for each in _PLACES)])
        if not versions.num_rows:
            return _PLANNED.empty_table()
        contents = versions.select(["checksum", "size"]).group_by(["checksum", "size"], use_threads=False).aggregate([])
        old = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), contents.num_rows)])  # its age is its release's
        entries = conform(contents.append_column("changed_ns", old), ENTRIES)
        decided = decide(group.filter(pc.invert(released)).select(REFERENCES.names), entries, self.rules)
        going = decided.filter(pc.invert(decided["keep"])).select(["checksum", "size", "since", "released"])
        rows = going.join(versions, keys=["checksum", "size"], join_type="inner", use_threads=False)
        rows = rows.group_by(GOING_VERSIONS.names, use_threads=False).aggregate([])  # removes duplicates
        if not rows.num_rows:
            return _PLANNED.empty_table()
        name = write_part(self.place, PART, group[KEY][0].as_py(), conform(rows, GOING_VERSIONS))
        found = {"name": name, "versions": rows.num_rows, "bytes": pc.sum(rows["size"]).as_py()}
        return pa.Table.from_pylist([found], schema=_PLANNED)


def _read(source: Any) -> Iterator[pa.RecordBatch]:
    if not isinstance(source, FileRows):
        return
    for rows in read_rows(source):
        references = count_references(
            rows.select(["position", "op", "size", "checksum", "since"]), pending=source.pending
        )
        yield from conform(references, _MIXED).to_batches()
        if source.pending:
            continue
        known = pc.and_(pc.is_valid(rows["version"]), pc.is_valid(rows["checksum"]))
        rows = rows.filter(pc.and_(known, pc.equal(rows["op"], RELEASE)))
        places = list(zip(rows["location"].to_pylist(), rows["version"].to_pylist(), strict=True))
        chosen = [bool(place) and keeps_versions(place) and not is_native(version) for place, version in places]
        rows = rows.select(["checksum", "size", *(each.name for each in _PLACES)]).filter(pa.array(chosen, pa.bool_()))
        rows = rows.append_column(KEY, pc.utf8_slice_codeunits(rows["checksum"], 0, 2))
        yield from conform(rows, _MIXED).to_batches()


# ---- snapshots expired -----------------------------------------------------------------------------------------------
# Selecting the HDFS snapshots that an expiry deletes: files removed before the next one are not required any more.
#
# The next snapshot also has the files removed later. Only the NameNode knows how many bytes a deletion frees.


def snapshots_going(root: str, log: Sequence[Segment], rules: Rules) -> list[SnapshotEntry]:
    """Returns the snapshots to delete, in order of creation. The newest of each directory is retained; snapshots that
    are only compared are left to captures."""
    ends = [capture.last for segment in log for capture in segment.captures]
    chains: dict[str, list[SnapshotEntry]] = {}
    for entry in made_snapshots(root):
        if entry.keeps:
            chains.setdefault(entry.directory, []).append(entry)
    return [entry for chain in chains.values() for entry in _needless(chain, ends, rules)]


def _needless(chain: Sequence[SnapshotEntry], ends: Sequence[int], rules: Rules) -> Iterator[SnapshotEntry]:
    for entry, following in pairwise(chain):
        until = next((last for last in ends if last > following.after), None)
        if until is None or until > rules.cutoff:  # the next one's capture is not published, or too recent
            continue
        if not any(_needs(pin.is_hold, pin.position, entry, until) for pin in rules.pins):
            yield entry


def _needs(is_hold: bool, position: int, entry: SnapshotEntry, until: int) -> bool:
    """Returns True if a pin may require files removed up to position `until`; a hold, files that existed at its own."""
    return position < until and (not is_hold or entry.after <= position)
