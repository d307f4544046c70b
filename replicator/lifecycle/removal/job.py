"""A job that removes data: the steps common to housekeeping, retention, purge and purge retain. Has side effects.

    lease        excludes concurrent runs of one job; a rehearsal acquires none
    file         records files that a killed run had recycled, even if nothing remains to be removed
    plan         completes the work of a killed run; the job decides in pages what to remove
    judge        the guard checks limits, legal holds, and references of the metastore; a plan that exceeds a limit
                 is refused before anything is removed
    carry out    one page at a time, while the lease is still held; a rehearsal shows it instead
    finish       removes the job's own leftovers
    report       planned, done, or what was not done

A job decides what to remove, and adds related actions: dropping a partition, marking an item, recording a backup.
"""

from __future__ import annotations

import time as clocks
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from cmroot.errors import LeaseHeld
from cmroot.lease import Lease, acquire
from cmroot.root import ChangeRoot
from cmroot.store.place import join
from replicator.captures.events.scope import bind_catalog, refuse_other_catalog
from replicator.core.not_replicated import Report
from replicator.core.runtime import Runtime
from replicator.lifecycle.removal.audit import AuditLog, begin_audit
from replicator.lifecycle.removal.live import LiveLocations, Unregistered
from replicator.lifecycle.removal.removal import Limits
from replicator.lifecycle.removal.remove import Remover, finish_begun
from replicator.metastore.client import Metastore, checked

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
                f"{error.message}; files that a killed run may have taken are not in this run's record"
            )

    @contextmanager
    def _held(self) -> Iterator[None]:
        with acquire(join(self.root.place, self.name), self.purpose, now=self.runtime.clock) as self._lease:
            try:
                yield
            finally:
                self._lease = None
