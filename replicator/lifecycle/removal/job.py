"""A job that removes: the steps that housekeeping, retention, purge and purge retain have in common. Acts.

    lease        two runs of one job never decide about the same; a rehearsal takes none
    file         what a killed run had taken comes into the record, also where nothing is left to go
    plan         what a killed run left is completed, and the job decides what is to go, in pages
    judge        by the guard: limits, legal holds, and what the metastore refers to; the plan as a whole is refused
                 before anything goes
    carry out    a page at a time, each under a lease that is still held; or show it, in a rehearsal
    finish       what nothing of the job's own needs any more
    report       planned, done, or what is not done

A job decides, and says what else happens around a removal: a partition is dropped, an item marked, a backup recorded.
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
# What the reports of all jobs that remove have in common.


class Removals(Report):
    """A report of a job that removes. status: "planned" of a dry run; "done"; else what is not done is in the report.
    run: its name in the audit, empty where nothing is recorded. warnings: what did not keep it from its work."""

    unfinished: ClassVar[str] = "incomplete"

    status: str
    run: str
    warnings: list[str]
    seconds: float

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Nothing was refused, failed, or stayed that should have gone."""

    @property
    def ended(self) -> str:
        """The status of a run that has come to its end."""
        return "done" if self.is_whole else self.unfinished


# ---- job -------------------------------------------------------------------------------------------------------------


Page = TypeVar("Page")
Done = TypeVar("Done", bound=Removals)


@dataclass(kw_only=True)
class Job(ABC, Generic[Page, Done]):
    """Runs of one job on one root. As a `with` block: they share what the metastore refers to.

    name: in the audit, and of the directory of the lease. purpose: of a run, as others are reported. metastore: None
    for files that none knows of; it is changed only while the lease is held. warnings: of who opened the root, for the
    report. done: the report of the run at work."""

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
        """Carries out, or rehearses: then nothing is written anywhere. Raises LeaseHeld while another run is running,
        Refused when more would go than may. Safe to kill, and to run again: the next run continues."""
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
            self.live.forget()  # the metastore may have gone away while it was read
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
        """Limits of a run, with what it protects besides."""
        return self.limits

    def check(self) -> None:
        """Raises LeaseHeld when the lease was lost. Before each change; a rehearsal makes none."""
        assert self._lease
        self._lease.check()

    @abstractmethod
    def report(self) -> Done: ...

    def planned(self) -> AbstractContextManager[None]:
        """What the plan needs, for as long as it is carried out. Raises Refused when the whole is too much."""
        return nullcontext()

    @abstractmethod
    def pages(self) -> Iterable[Page]: ...

    @abstractmethod
    def show(self, page: Page) -> None: ...

    @abstractmethod
    def carry_out(self, page: Page) -> None:
        """Safe to run twice. What fails by itself is in the report."""

    def finish(self) -> None:
        """After all pages."""

    def _file_begun(self, audit: AuditLog) -> None:
        """A root that is running for longer stops no job that may have nothing to remove."""
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
