"""A job that removes data: the steps common to housekeeping, retention, purge and purge retain; and `Remover`, which
removes directories: a last check, the audit record, then every file is recycled into `$cmroot`. Has side effects.

No bytes are deleted: files can be restored until they expire in `$cmroot`. A job selects the data to remove, and adds
related actions: dropping a partition, marking an item, recording a backup.
"""

from __future__ import annotations

import os
import stat
import time as clocks
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

import msgspec

from cmroot.errors import Error, Exists, LeaseHeld, Protected
from cmroot.keep.journal import files_at
from cmroot.keep.recycle import Recycled, files_below, is_left, recycle_tree, sweep_incoming
from cmroot.keep.versions import restore_file
from cmroot.lease import Lease, acquire, patiently
from cmroot.root import ChangeRoot
from cmroot.store.local import status_of
from cmroot.store.place import is_local, join, local_path, located, normal, refuse_root
from cmroot.store.spelling import naming
from replicator.core.audit import REMOVED, AuditLog, Refusal, Removal, begin_audit, read_audit, record_begun, unwatched
from replicator.core.engine import AutoEngine
from replicator.core.grouping import batched, shared
from replicator.core.named_files import ON_NODES
from replicator.core.not_replicated import Report
from replicator.core.runtime import Runtime
from replicator.errors import ObjectNotFound
from replicator.lifecycle.removal.live import LiveLocations, Unregistered
from replicator.lifecycle.removal.removal import Judged, Limits, judge, read_holds
from replicator.metastore.client import Metastore, checked
from replicator.metastore.events.scope import bind_catalog, refuse_other_catalog
from replicator.replay.apply.staging import OPEN, Fence, fenced, give_up_attempts

# ---- removal of directories ------------------------------------------------------------------------------------------


PATIENCE = timedelta(minutes=1)
"""The maximum wait for the lease of a capture or load on the same root."""

BATCH = 200
"""The number of directories that are checked again, recorded and recycled together."""

MEASURED = 50
"""The number of directories that one task measures."""


_SWEPT = Removal(path="", what="file", reason="begun by a run that was killed")


def finish_begun(audit: AuditLog) -> int:
    """Records the files that killed runs had recycled without recording them. Returns the number of those whose run is
    unknown. If there may be any, waits for the root's lease; raises LeaseHeld after PATIENCE. May run twice."""
    if not is_left(audit.root):
        return 0
    with patiently(partial(acquire, audit.root, audit.job), PATIENCE):
        return _sweep(audit)


def _sweep(audit: AuditLog) -> int:
    """Records these files as those of the killed run, or as the run's own if it is unknown; requires the lease."""
    own: list[Recycled] = []
    with audit.recorder() as recorder:
        record = recorder.of(_SWEPT)

        def unknown(recycled: list[Recycled]) -> None:
            record(recycled)
            own.extend(recycled)

        sweep_incoming(audit.root, record=partial(record_begun, audit.root, unknown=unknown))
    return len(own)


@dataclass
class Removed:
    """The result of removals. files, bytes: recycled. refused: forbidden by the last check. failed: (removal, why)."""

    removals: list[Removal] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failed: list[tuple[Removal, str]] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Remover:
    """The executor of a job's removals. live: references of the metastore; root: `$cmroot`, to which files are moved.
    check: raises LeaseHeld if the job's own lease was lost, as the directories may have another owner by now."""

    root: str
    audit: AuditLog
    live: LiveLocations
    limits: Limits
    engine: AutoEngine
    clock: Callable[[], float] = clocks.time
    patience: timedelta = PATIENCE
    check: Callable[[], None] = lambda: None

    def look(self, removals: Iterable[Removal]) -> Judged:
        """Returns the removals divided by whether they are allowed now; changes nothing. A dry run ends here. Raises
        FormatError for a damaged legal hold, and the metastore's errors."""
        self.live.refresh()
        return judge(removals, self.limits, read_holds(self.root, self.clock()), self._in_use)

    def remove(self, removals: Iterable[Removal]) -> Removed:
        """Recycles, in batches, the directories whose removal is allowed now. May run twice: missing directories count
        as removed, with no files. Refusals and failures are recorded in the audit, and do not stop the others."""
        done = Removed()
        for batch in batched(removals, BATCH):
            self._batch(batch, done)
        return done

    def _batch(self, batch: Sequence[Removal], done: Removed) -> None:
        with patiently(partial(acquire, self.root, self.audit.job), self.patience) as lease:
            _sweep(self.audit)
            give_up_attempts(self.root)  # remaining tasks of a killed run remove nothing from here on
            judged = self.look(batch)
            self.audit.refused(judged.refused)
            done.refused += judged.refused
            if not judged.allowed:
                return
            self.audit.intended(judged.allowed)
            lease.check()
            engine = self.engine.for_work(len(judged.allowed))
            shares = shared(judged.allowed, engine.parallelism, 20)
            tasks = [RemovalTask(self.root, unwatched(self.audit), some) for some in shares]
            gone = []
            for outcomes in fenced(engine, self.root, run_removal_task, tasks, self.check):
                for outcome in outcomes:
                    if outcome.error:
                        done.failed.append((outcome.removal, outcome.error))
                        self.audit.failed(outcome.removal, outcome.error)
                    else:
                        gone.append(outcome.removal)
            self.audit.removed(gone)
            done.removals += gone
            done.files += sum(each.files for each in gone)
            done.bytes += sum(each.bytes for each in gone)

    def _in_use(self, removal: Removal) -> str:
        db = _database(removal)
        if self.live.on_nodes(db, removal.path):
            return ON_NODES
        if is_local(removal.path):
            status = status_of(local_path(removal.path), follow=False)
            if status is not None and stat.S_ISLNK(status.st_mode):
                return f"{removal.path} is a symbolic link; its target is not part of this path"
        try:
            refuse_root(self.root, removal.path)
        except Protected as error:
            return error.message
        if db and (why := self.live.follows(db.lower())):
            return why
        own, part = (removal.object, removal.partition) if removal.drops else ("", "")
        found = self.live.blocking(removal.path, object=own, partition=part)
        return f"in use: {found}" if found else ""


def measured(removals: Sequence[Removal], engine: AutoEngine, live: LiveLocations) -> list[Removal]:
    """Returns the removals in their order, with the current numbers of files and bytes; 0 for missing paths, and for
    those on the nodes of the cluster."""
    here = (each.path for each in removals if each.path and not live.on_nodes(_database(each), each.path))
    tasks = batched(here, MEASURED)
    sizes = dict(size for some in engine.for_work(len(removals)).run(sizes_of, tasks) for size in some)
    found = []
    for each in removals:
        files, size = sizes.get(each.path, (0, 0))
        found.append(msgspec.structs.replace(each, files=files, bytes=size))
    return found


def _database(removal: Removal) -> str:
    return removal.object.partition(".")[0]


def sizes_of(paths: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """Returns (path, (files, bytes)) that recycling would move now: including hidden files, excluding links."""
    found = []
    for path in paths:
        sizes = list(_sizes(path))
        found.append((path, (len(sizes), sum(sizes))))
    return found


def _sizes(place: str) -> Iterator[int]:
    if not is_local(place):
        sizes = [state.size for _, state in files_at(place)]
        if not sizes and (one := located(place).child()) and not one.is_directory:
            sizes = [one.size]
        yield from sizes
        return
    top = local_path(place)
    with naming(top), suppress(FileNotFoundError):  # files deleted during the count
        is_file = stat.S_ISREG(os.lstat(top).st_mode)
        for path in [top] if is_file else files_below(top):
            with suppress(FileNotFoundError):
                yield os.lstat(path).st_size


class RemovalTask(msgspec.Struct, frozen=True):
    """Directories whose files are moved to a `$cmroot`."""

    root: str
    audit: AuditLog
    removals: Sequence[Removal]


class RemovalOutcome(msgspec.Struct, frozen=True):
    """A removal with the files and bytes actually removed; `error`: why it failed."""

    removal: Removal
    error: str = ""


def run_removal_task(task: RemovalTask, fence: Fence = OPEN) -> list[RemovalOutcome]:
    """Audits each file before its last link is removed. May run twice. Raises LeaseHeld if it was abandoned."""
    found = []
    with task.audit.recorder() as recorder:
        for removal in task.removals:
            fence.check()
            try:
                recycled = recycle_tree(task.root, normal(removal.path), record=recorder.of(removal))
            except (Error, OSError) as error:
                found.append(RemovalOutcome(removal, str(error)))
                continue
            files, size = len(recycled), sum(each.kept.size for each in recycled)
            found.append(RemovalOutcome(msgspec.structs.replace(removal, files=files, bytes=size)))
    return found


# ---- bring back ------------------------------------------------------------------------------------------------------
# Restores the files that a run removed, by its audit record, from `$cmroot` to their paths. Has side effects.
#
# Files only: metadata removed with them is in the captured log (`replicator restore`) or recreated by its owner.


@dataclass
class BroughtBack(Report):
    """The report of a restore. files, bytes: written. there: paths at which a file exists, which is retained. lost:
    path -> why its bytes are unavailable. found_run: the run under which files are now recorded that killed runs had
    recycled, if their run is unknown; it can be undone, too. "": there were none."""

    status: str = "restored"
    run: str = ""
    files: int = 0
    bytes: int = 0
    there: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    found_run: str = ""


def bring_back(
    root: str,
    run: str | None,
    *,
    job: str | None = None,
    path: str | None = None,
    since: str | None = None,
    dry_run: bool = False,
) -> BroughtBack:
    """Restores every file that a run removed, or those at and below a path. run: None for all runs; job, since (ISO
    8601): only files removed by this job, and from then on. Verifies checksums while copying. Replaces nothing, so it
    may run twice. Records files of killed runs first. Raises ObjectNotFound if the record has no such file, LeaseHeld
    while another run is running on the root and there are files to be recorded."""
    done = BroughtBack("planned" if dry_run else "restored", run or "")
    if not dry_run and finish_begun(audit := begin_audit(root, "undo")):
        done.found_run = audit.run
    for row in read_audit(root, job=job, run=run, path=path, outcome=REMOVED, since=since):
        if row.what != "file" or row.checksum is None or row.bytes is None:
            continue
        try:
            if not dry_run:
                restore_file(root, row.checksum, row.bytes, row.path)
        except Exists:
            done.there.append(row.path)
            continue
        except Error as error:
            done.lost[row.path] = error.message
            continue
        done.files += 1
        done.bytes += row.bytes
    if not (done.files or done.there or done.lost):
        what = (
            f"{root}: no such file is recorded as removed by run {run!r}"
            if run
            else f"{root}: no removal of {path} is recorded"
        )
        raise ObjectNotFound(what, hint="`replicator audit ls` shows the runs")
    return done


# ---- removal report --------------------------------------------------------------------------------------------------
# Common properties of the reports of all jobs that remove data.


class Removals(Report):
    """A report of a job that removes data. status: "planned" for a dry run; "done"; otherwise the report lists what was
    not done. run: its name in the audit, or "" without a record. warnings: problems that did not prevent the work."""

    unfinished: ClassVar[str] = "incomplete"

    status: str
    run: str
    warnings: list[str]
    seconds: float

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """True if no removal was refused, failed or omitted."""

    @property
    def ended(self) -> str:
        """The status of a completed run."""
        return "done" if self.is_whole else self.unfinished


# ---- job -------------------------------------------------------------------------------------------------------------


Page = TypeVar("Page")
Done = TypeVar("Done", bound=Removals)


@dataclass(kw_only=True)
class Job(ABC, Generic[Page, Done]):
    """Runs of one job on one root. As a `with` block, they share the cached locations of the metastore.

    name: used in the audit, and for the directory of the lease. purpose: the run's purpose, as reported to other runs.
    metastore: None for files that no metastore refers to; it is changed only while the lease is held. warnings: raised
    when the root was opened, for the report. done: the report of the current run."""

    name: ClassVar[str]
    purpose: ClassVar[str]

    root: ChangeRoot
    metastore: Metastore | None
    runtime: Runtime
    limits: Limits = field(default_factory=Limits)
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.metastore:
            refuse_other_catalog(self.root.place, self.metastore)
        self.live = LiveLocations(self.metastore) if self.metastore else Unregistered()
        if self.metastore:
            self.metastore = checked(self.metastore, self.check)
        self._lease: Lease | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.close()

    def run(self, *, dry_run: bool = False) -> Done:
        """Executes the job, or rehearses it without writing anything. Raises LeaseHeld while another run is running,
        Refused if the removals would exceed a limit. May be killed and run again: the next run continues."""
        began = clocks.monotonic()
        try:
            with ExitStack() as stack:
                if not dry_run:
                    stack.enter_context(self._held())
                    if self.metastore:
                        bind_catalog(self.root.place, self.metastore)
                audit = begin_audit(self.root.place, self.name, clock=self.runtime.clock)
                self.remover = Remover(
                    self.root.place,
                    audit,
                    self.live,
                    self.guard,
                    self.runtime.engines,
                    self.runtime.clock,
                    check=self.check,
                )
                self.done = done = self.report()
                done.run = "" if dry_run else audit.run
                if not dry_run:
                    self._file_begun(audit)
                stack.enter_context(self.planned())
                for page in self.pages():
                    if dry_run:
                        self.show(page)
                    else:
                        self.check()
                        self.carry_out(page)
                if not dry_run:
                    self.check()
                    self.finish()
        except BaseException:
            self.live.forget()  # the metastore may have become unavailable while it was read
            raise
        done.warnings += self.warnings
        done.status = "planned" if dry_run else done.ended
        done.seconds = round(clocks.monotonic() - began, 3)
        return done

    # ---- for the job ----------------------------------------------------------------------------------------------

    @property
    def rehearses(self) -> bool:
        return self._lease is None

    @property
    def guard(self) -> Limits:
        """The limits of a run, including additional protected places."""
        return self.limits

    def check(self) -> None:
        """Raises LeaseHeld if the lease was lost. Called before each change; a rehearsal makes none."""
        assert self._lease
        self._lease.check()

    @abstractmethod
    def report(self) -> Done: ...

    def planned(self) -> AbstractContextManager[None]:
        """Holds the plan's resources while it is carried out. Raises Refused if the entire plan exceeds a limit."""
        return nullcontext()

    @abstractmethod
    def pages(self) -> Iterable[Page]: ...

    @abstractmethod
    def show(self, page: Page) -> None: ...

    @abstractmethod
    def carry_out(self, page: Page) -> None:
        """Removes one page. May run twice. Reports individual failures."""

    def finish(self) -> None:
        """Completes the run after all pages."""

    def _file_begun(self, audit: AuditLog) -> None:
        """Records files of killed runs. If the root's lease is held, only warns, as there may be nothing to remove."""
        try:
            finish_begun(audit)
        except LeaseHeld as error:
            self.done.warnings.append(
                f"{error.message}; files that a killed run may have moved are not in this run's record"
            )

    @contextmanager
    def _held(self) -> Iterator[None]:
        with acquire(join(self.root.place, self.name), self.purpose, now=self.runtime.clock) as self._lease:
            try:
                yield
            finally:
                self._lease = None
