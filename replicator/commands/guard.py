"""`audit` lists removals (user, time, reason) and restores the files of a run; `legal-hold` exempts data from removal.
Also the options that all removing jobs share: the limits of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from cmroot.pins import iso
from cmroot.root import create_or_open, open_existing
from replicator.commands.base import Options, opened_root, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import DryRun, PathFilter, Root
from replicator.core.audit import AuditShown, show_audit, who
from replicator.core.option import Bytes, Positive, Share, Time, Where, arg, opt
from replicator.core.text import parse_size
from replicator.errors import ConfigError
from replicator.lifecycle.removal.job import BroughtBack, Job, bring_back
from replicator.lifecycle.removal.removal import (
    MIN_DEPTH,
    LegalHold,
    LegalHoldChanged,
    LegalHolds,
    Limits,
    add_hold,
    all_holds,
    release_hold,
)

J = TypeVar("J", bound=Job[Any, Any])


@dataclass(frozen=True, kw_only=True)
class Limited(Options):
    """Limits of one run's removals. Defaults are those of [guard] in the configuration, else there is no limit."""

    max_share: Annotated[Share | None, opt("Refuse a run that would remove a larger share, e.g. 0.2.")] = None
    max_bytes: Annotated[Bytes | str | None, opt("Refuse a run that would remove more, e.g. 10TiB.")] = None
    min_depth: Annotated[Positive | None, opt("Minimum depth of removed paths below the store's root; default 2.")] = (
        None
    )
    protect: Annotated[
        Sequence[str], opt("Protect this location and the paths below and above it; repeatable.", metavar="PLACE")
    ] = ()

    @cached_property
    def limits(self) -> Limits:
        """Returns the limits. Raises ConfigError for an invalid size."""
        guard = self.settings.guard
        size, name = (
            (self.max_bytes, "max_bytes") if self.max_bytes is not None else (guard.max_bytes, "guard.max_bytes")
        )
        try:
            most = parse_size(size) if isinstance(size, str) else size
        except ValueError as error:
            raise ConfigError(f"{name}: {error}", hint="write a size such as 10TiB") from error
        return Limits(
            guard.max_share if self.max_share is None else self.max_share,
            most,
            self.min_depth or guard.min_depth or MIN_DEPTH,
            (*guard.protected, *self.protect),
        )


@dataclass(frozen=True, kw_only=True)
class Removing(Limited):
    dry_run: DryRun = False

    @contextmanager
    def working(
        self, make: Callable[..., J], cmroot: str, metastore: Where | None, *, dry_run: bool, makes: bool = True
    ) -> Iterator[J]:
        """Opens a job on its root and metastore for a block. make: creates it from the arguments that all jobs have.
        dry_run, makes: as for `opened_root`."""
        with ExitStack() as stack:
            root, words = stack.enter_context(opened_root(cmroot, dry_run=dry_run, makes=makes))
            known = stack.enter_context(self.connected(metastore)) if metastore else None
            runtime = stack.enter_context(self.runtime())
            job = make(root=root, metastore=known, runtime=runtime, limits=self.limits, warnings=words)
            stack.enter_context(job)
            yield job


# ---- audit and legal-hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditLsOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    job: Annotated[str | None, opt("Only rows of this job: housekeeping, retention, purge.")] = None
    run: Annotated[str | None, opt("Only rows of this run.")] = None
    object: Annotated[str | None, opt("Only rows about this table.", metavar="DB.TABLE", envvar="OBJECT_")] = None
    path: PathFilter = None
    outcome: Annotated[
        Literal["intended", "removed", "refused", "failed", "done"] | None, opt("Only rows with this outcome.")
    ] = None
    since: Annotated[
        Time | None, opt("Only rows from this time on; ISO 8601, or -90m, -1d, yesterday.", metavar="TIME")
    ] = None
    until: Annotated[Time | None, opt("Only rows from before this time, as --since.", metavar="TIME")] = None
    who: Annotated[str | None, opt("Only rows of this user: user@host, or user on any host.", metavar="USER")] = None
    reason: Annotated[
        str | None, opt("Only rows with this text in their reason or detail; case is ignored.", metavar="TEXT")
    ] = None
    newest: Annotated[bool, opt("The newest rows, newest first; reads the whole audit.")] = False
    limit: Annotated[Positive, opt("Maximum number of rows.")] = 1000


@verb(AuditLsOptions)
def audit_ls(options: AuditLsOptions) -> AuditShown:
    """Lists removals that jobs made or refused, by job, run and time. Changes nothing.

        replicator.audit_ls(cmroot="/cm", job="purge", since="2026-11-01").to_arrow()

    Raises FormatError if the root does not exist, or a file of the audit is damaged; UsageError for an invalid time."""
    return show_audit(
        open_existing(options.cmroot).place,
        options.limit,
        newest=options.newest,
        job=options.job,
        run=options.run,
        object=options.object,
        path=options.path,
        outcome=options.outcome,
        since=options.since,
        until=options.until,
        who=options.who,
        reason=options.reason,
    )


@dataclass(frozen=True, kw_only=True)
class AuditUndoOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    run: Annotated[str, opt("The run whose files to restore; `audit ls` lists runs.")]
    path: PathFilter = None
    dry_run: DryRun = False


@verb(AuditUndoOptions)
def audit_undo(options: AuditUndoOptions) -> BroughtBack:
    """Restores the files that a run removed to their paths, from the root. Replaces nothing, so it may run again. The
    report's `lost` lists files whose bytes are not available. `replicator.restore` restores their metadata.

        replicator.audit_undo(cmroot="/cm", run="20261121T020000Z-1f2e3d4c")

    Raises ObjectNotFound if the audit has no such file, LeaseHeld while another run holds the root's lease and removed
    files are not filed yet, FormatError if a file of the audit is damaged."""
    root = open_existing(options.cmroot).place
    return bring_back(root, options.run, path=options.path, dry_run=options.dry_run)


# ---- legal hold ------------------------------------------------------------------------------------------------------
# `legal-hold add`, `ls` and `release`: data that no job may remove.


@dataclass(frozen=True, kw_only=True)
class LegalHoldAddOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The hold's name: letters, digits, dot, dash, underscore.")] = field(kw_only=False)
    cmroot: Root = ""
    pattern: Annotated[str, opt("A location, or a glob for DB.TABLE or DB.TABLE/PARTITION.", "--on", metavar="PATTERN")]
    reason: Annotated[str, opt("Reason, shown with each refusal.")]
    until: Annotated[str, opt("End of the hold; ISO 8601, default: none.", metavar="TIME")] = ""


@verb(LegalHoldAddOptions)
def legal_hold_add(options: LegalHoldAddOptions) -> LegalHoldChanged:
    """Adds a legal hold: no job removes the objects that it covers, regardless of its policy. A hold on a table covers
    its partitions; a hold on a path covers all paths below it, and the directories above.

        replicator.legal_hold_add("case-17", cmroot="/cm", pattern="sales.orders/day=2026-*", reason="case 17")

    Raises Exists if the hold exists, so a second run does nothing; UsageError for an invalid hold; FormatError if the
    root's directory of holds is lost."""
    root = create_or_open(options.cmroot).place
    hold = LegalHold(
        name=options.name,
        pattern=options.pattern,
        reason=options.reason,
        by=who(),
        created=iso(time.time()),
        until=options.until,
    )
    add_hold(root, hold)
    return LegalHoldChanged("added", root, options.name, hold)


@dataclass(frozen=True, kw_only=True)
class LegalHoldLsOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""


@verb(LegalHoldLsOptions)
def legal_hold_ls(options: LegalHoldLsOptions) -> LegalHolds:
    """Lists legal holds, including ended ones. Changes nothing.

        replicator.legal_hold_ls(cmroot="/cm").holds

    Raises FormatError if the root does not exist, a hold is damaged, or the directory of holds is lost."""
    root = open_existing(options.cmroot).place
    return LegalHolds("shown", root, all_holds(root))


@dataclass(frozen=True, kw_only=True)
class LegalHoldReleaseOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The hold's name.")] = field(kw_only=False)
    cmroot: Root = ""


@verb(LegalHoldReleaseOptions)
def legal_hold_release(options: LegalHoldReleaseOptions) -> LegalHoldChanged:
    """Releases a legal hold, even a damaged one: the objects that it covered may be removed from now on.

        replicator.legal_hold_release("case-17", cmroot="/cm")

    Raises ObjectNotFound if it does not exist, as in a second run."""
    root = open_existing(options.cmroot).place
    release_hold(root, options.name)
    return LegalHoldChanged("released", root, options.name)
