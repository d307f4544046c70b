"""Plans of expiries on disk: `expiring/<id>/`, Parquet parts that an engine's tasks wrote, one row a kept entry.

A plan is made without the lease and belongs to the process that made it: locally it keeps `<id>.lock` locked, so that
another expiry does not sweep it. Without its process a plan is worth nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import NotWritable, Superseded
from cmroot.store.local import staging_name
from cmroot.store.place import Place
from cmroot.store.spelling import naming

ABANDONED = timedelta(days=1)
"""How old something must be to be nobody's, where no lock tells: a plan on an object store, a file half written."""

_ROWS = 8192


@dataclass
class PlanDirectory:
    """The directory of one plan. `discard` ends it."""

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
        """The rows of some parts, in flat memory. Superseded when they are gone."""
        for name in parts:
            try:
                with (self.place / name).open_read() as file:
                    yield from pq.ParquetFile(file).iter_batches(_ROWS, columns=columns)
            except FileNotFoundError as error:
                raise Superseded(
                    f"{self.place}: the plan is gone, another expiry has discarded it", hint="run the command again"
                ) from error

    def discard(self) -> None:
        """Safe to run twice."""
        self.place.remove_own_tree()
        if self._descriptor is not None:
            self.lock.remove_own()
            os.close(self._descriptor)
            self._descriptor = None


def new_plan(root: str, moment: float) -> PlanDirectory:
    """A fresh directory; its name begins with the time, in seconds since 1970."""
    name = f"{max(0, int(moment)):012d}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    plan = PlanDirectory(root, name)
    plan.place.parent.mkdirs()
    if plan.lock.local:
        plan = PlanDirectory(root, name, _lock_new(plan.lock.local))
    plan.place.mkdirs()
    return plan


def write_part(place: Place, kind: str, prefix: str, rows: pa.Table) -> str:
    """Write a part under a fresh name, as a task may run twice; the name counts once its writer returned it."""
    name = f"{kind}-{prefix}-{uuid.uuid4().hex[:12]}.parquet"
    with (place / name).open_write(durable=False) as file:  # a plan does not outlive its process
        pq.write_table(rows, file, compression="zstd")
    return name


def sweep_plans(root: str, moment: float, own: PlanDirectory | None = None) -> list[str]:
    """Remove plans whose processes are gone; under the lease. Returns their names."""
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
    """Remove what killed writers left half written in all directories of a root but that of kept files, which are
    written in `incoming/`. Some take no lease, so only what is old enough to be nobody's goes. Returns what this user
    may not remove, as sentences."""
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
    """Locked before it has its name, so that nobody finds it free."""
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
