"""Plans of expiries on disk: `expiring/<id>/`, Parquet parts written by an engine's tasks, one row per retained entry.

A plan is made without the lease and belongs to the process that made it: on a local root the process holds a lock on
`<id>.lock`, so that another expiry does not sweep the plan. Without its process a plan is worthless.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import FormatError, NotWritable, Superseded
from cmroot.expire.retention import DECIDED, NEVER, Needing, Rules, decide, needing
from cmroot.keep.content import content_name
from cmroot.keep.store_lock import removing
from cmroot.lease import Lease, acquire
from cmroot.log.captured import ADD, segments
from cmroot.log.references import KEY, Grouping, read_intercepted, read_references, sources
from cmroot.pins import read_pins
from cmroot.store.local import staging_name
from cmroot.store.objects import object_time_ns
from cmroot.store.place import Place, join, remote_store
from cmroot.store.retained_entries import list_entries
from cmroot.store.spelling import naming, raise_named

ABANDONED = timedelta(days=1)
"""The age from which files without a lock count as abandoned: a plan on an object store, an incomplete file."""

_ROWS = 8192


@dataclass
class PlanDirectory:
    """The directory of one plan. `discard` removes it."""

    root: str
    id: str
    _descriptor: int | None = field(default=None, repr=False)

    @property
    def place(self) -> Place:
        return Place(self.root) / "expiring" / self.id

    @property
    def lock(self) -> Place:
        return self.place.parent / f"{self.id}.lock"

    def read(self, parts: Iterable[str], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some parts, in constant memory. Raises Superseded when they do not exist any more."""
        for name in parts:
            try:
                with (self.place / name).open_read() as file:
                    yield from pq.ParquetFile(file).iter_batches(_ROWS, columns=columns)
            except FileNotFoundError as error:
                raise Superseded(
                    f"{self.place}: the plan no longer exists: another expiry discarded it",
                    hint="run the command again",
                ) from error

    def discard(self) -> None:
        """Removes the directory. May run twice."""
        self.place.remove_own_tree()
        if self._descriptor is not None:
            self.lock.remove_own()
            os.close(self._descriptor)
            self._descriptor = None


def new_plan(root: str, moment: float) -> PlanDirectory:
    """Creates a directory; its name begins with the time, in seconds since 1970."""
    name = f"{max(0, int(moment)):012d}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    plan = PlanDirectory(root, name)
    plan.place.parent.mkdirs()
    if plan.lock.local:
        plan = PlanDirectory(root, name, _lock_new(plan.lock.local))
    plan.place.mkdirs()
    return plan


def write_part(place: Place, kind: str, prefix: str, rows: pa.Table) -> str:
    """Writes a part under a new name, because a task may run twice; only the name returned by a task counts."""
    name = f"{kind}-{prefix}-{uuid.uuid4().hex[:12]}.parquet"
    with (place / name).open_write(durable=False) as file:  # a plan does not outlive its process
        pq.write_table(rows, file, compression="zstd")
    return name


def sweep_plans(root: str, moment: float, own: PlanDirectory | None = None) -> list[str]:
    """Removes plans whose processes have ended; call under the lease. Returns their names."""
    swept = []
    for name in sorted({name.removesuffix(".lock") for name in (Place(root) / "expiring").list()}):
        plan = PlanDirectory(root, name)
        if (own and name == own.id) or not name[:1].isdigit() or _alive(plan, moment):
            continue
        plan.place.remove_own_tree()
        plan.lock.remove_own()
        swept.append(name)
    return swept


def sweep_staging(root: str, moment: float) -> list[str]:
    """Removes incomplete files of killed writers in all directories of a root except `files/`, whose files are written
    in `incoming/`. Some writers take no lease, so only abandoned files are removed, by age. Returns sentences about
    files that this user may not remove."""
    before, stays = moment - ABANDONED.total_seconds(), []
    try:
        Place(root).remove_uploads(before=before)
    except NotWritable as error:
        stays.append(f"{error.message}; {error.hint}")
    Place(root).sweep(before=before)
    for child in Place(root).children():
        if child.is_directory and Place(child.path).name != "files":
            Place(child.path).sweep(before=before, deep=True)
    return stays


def _alive(plan: PlanDirectory, moment: float) -> bool:
    if not plan.lock.local:
        made = plan.id.partition("-")[0]
        return made.isdecimal() and moment - int(made) < ABANDONED.total_seconds()
    try:
        descriptor = os.open(plan.lock.local, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_new(path: str) -> int:
    """Creates a lock file that is locked before it has its name, so that it is never found unlocked."""
    staged = staging_name(path)
    with naming(path):
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(staged, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(staged)
            os.close(descriptor)
            raise
    return descriptor


# ---- removal ---------------------------------------------------------------------------------------------------------
# Executing a plan of an expiry: entries required since then are retained, the rest is removed, batch by batch.
#
# Runs under the lease, so no capture, dump or compaction is running; a gateway may be (see `store_lock`).


BATCH = 1000
"""The number of entries removed between two checks for concurrent runs; also what S3 deletes with one request."""

MANY = 2_000_000
"""The maximum number of references begun since the plan, all held in memory; beyond it a new plan is cheaper."""

_ALL_EVENTS = (1 << 63) - 1


@dataclass
class RemovedEntries:
    """`entries` and `bytes` that were removed; `freed`: bytes of those whose inode had no other name. `taken_back`:
    planned, but required by now. `missing`: removed already."""

    entries: int = 0
    bytes: int = 0
    freed: int = 0
    taken_back: int = 0
    taken_back_bytes: int = 0
    missing: int = 0


class Since:
    """The changes since a plan: references in later segments and intercepts, and pins that were created or moved."""

    def __init__(self, root: str, position: int, planned: tuple[Needing, ...], pins: tuple[Needing, ...]) -> None:
        """Reads the changes. `position`: the end of the log in the plan; `planned`: its pins; `pins`: current ones."""
        self._root = root
        self._after = min((pin.position for pin in pins if not pin.is_hold), default=None)
        self._holds = [pin for pin in pins if pin.is_hold and pin not in planned]
        self._begun = _begun(root, position)
        self._taken: frozenset[str] = frozenset()
        self._intercepted_keys = _NO_KEYS
        self.look_again()

    def look_again(self) -> None:
        """Reads the intercepts again, if there are new ones."""
        intercepts = read_intercepted(self._root, _ALL_EVENTS)
        places = frozenset(taken.place for taken in intercepts)
        if places - self._taken:
            rows = [taken.rows().select(["checksum", "size"]) for taken in intercepts if taken.place not in self._taken]
            self._intercepted_keys = pa.concat_arrays([self._intercepted_keys, *(_keys(table) for table in rows)])
            self._taken |= places

    def needs(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns which of the planned rows are required now; rather too many than too few."""
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
    """Removes the planned entries that are not required now. An entry that was stored again after `cutoff_ns` (since
    1970) is retained too. May run twice."""
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
    """Checks the lease again: the store may have taken longer to respond than the lease is valid."""
    store = remote_store(directory)
    columns = (rows[name].to_pylist() for name in ("checksum", "size"))
    paths = [
        join(directory, checksum[:2], content_name(checksum, size)) for checksum, size in zip(*columns, strict=True)
    ]
    going = []
    for path, reported, size in zip(paths, store.infos(paths), rows["bytes"].to_pylist(), strict=True):
        if reported is None:
            removed.missing += 1
        elif (object_time_ns(reported) or NEVER) > cutoff_ns:  # it was stored again, or its time is unknown
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
    """Returns the contents to which a reference was begun after a position, as keys."""
    log = segments(root)
    if (log[-1].last if log else 0) < position:
        raise FormatError(
            f"{root}: the log ends before position {position}, its end when the plan was created",
            hint="the log was replaced: check the root, then run the command again",
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
                    f"{root}: more than {MANY:,} references have begun since the plan was created",
                    hint="run the same command again: it creates a new plan",
                )
    return pa.concat_arrays(found).unique()


_NO_KEYS = pa.array([], pa.string())


def _keys(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Returns contents as strings: `<checksum>-<size>`."""
    keys = pc.binary_join_element_wise(rows["checksum"], pc.cast(rows["size"], pa.string()), "-")
    return pc.drop_null(keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys)


# ---- expedite --------------------------------------------------------------------------------------------------------
# Expiring chosen contents now: erased data does not wait for the retention window, only for its remaining consumers.
#
# Slots, holds and dumps are honoured as in an expiry; age is ignored.


CHOSEN = DECIDED
"""One row for each chosen content in `files/`: `reason` names who requires it, `keep`: it must be retained."""


@dataclass(frozen=True)
class Chosen:
    """The result of `look_at_contents`: rows (CHOSEN), and the rules that were applied."""

    root: str
    rows: pa.Table
    rules: Rules


def look_at_contents(root: str, contents: Iterable[tuple[str, int]], engine: Grouping) -> Chosen:
    """Returns which contents (checksum, size) are retained, and who requires each. Changes nothing, takes no lease.

    Raises FormatError when a pin or the log is damaged: the requirements are then unknown."""
    pins, log = read_pins(root).whole(), segments(root)
    rules = Rules(needing(pins), log[-1].last if log else 0, NEVER)
    keys = frozenset(f"{checksum}-{size}" for checksum, size in contents)
    if not keys:
        return Chosen(root, CHOSEN.empty_table(), rules)
    batches = list(engine.group(read_references, sources(root, log), KEY, _Chooser(root, rules, keys), CHOSEN))
    return Chosen(root, pa.Table.from_batches(batches, schema=CHOSEN), rules)


@dataclass(frozen=True)
class _Chooser:
    """Runs in a task."""

    root: str
    rules: Rules
    keys: frozenset[str]

    def __call__(self, group: pa.Table) -> pa.Table:
        entries = list_entries(self.root, group[KEY][0].as_py()).entries
        names = pc.binary_join_element_wise(entries["checksum"], pc.cast(entries["size"], pa.string()), "-")
        entries = entries.filter(pc.is_in(names, pa.array(sorted(self.keys), pa.string())))
        if not entries.num_rows:
            return CHOSEN.empty_table()
        references = group.filter(pc.is_valid(group["checksum"]))
        return decide(references, entries, self.rules).select(CHOSEN.names).cast(CHOSEN)


def expedite(chosen: Chosen, *, now: Callable[[], float] = time.time) -> RemovedEntries:
    """Removes the contents that nothing requires, under the lease, except for those required since. May run twice.

    Raises LeaseHeld."""
    going = chosen.rows.filter(pc.invert(chosen.rows["keep"]))
    with acquire(chosen.root, "expedite", now=now) as lease:
        since = Since(chosen.root, chosen.rules.cutoff, chosen.rules.pins, needing(read_pins(chosen.root).whole()))
        return remove(chosen.root, iter(going.to_batches()), since, chosen.rules.cutoff_ns, lease, now=now)
