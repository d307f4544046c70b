"""Removing directories: a last look, the record, then every file into `$cmroot`. Acts.

Nothing is deleted: files are recycled, and can be brought back until `$cmroot` lets them expire.
"""

from __future__ import annotations

import os
import stat
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import msgspec

from cmroot.errors import Error, Exists, Protected
from cmroot.keep.journal import files_at
from cmroot.keep.recycle import files_below, is_left, recycle_tree, sweep_incoming
from cmroot.keep.restore import restore_file
from cmroot.lease import acquire, patiently
from cmroot.store.local import status_of
from cmroot.store.place import is_local, local_path, located, normal, refuse_root
from cmroot.store.spelling import naming
from replicator.core.batches import batched, shared
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.errors import ObjectNotFound
from replicator.lifecycle.removal.audit import REMOVED, AuditLog, begin_audit, read_audit, unwatched
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Judged, Limits, Refusal, Removal, judge, read_holds
from replicator.replay.copy.staging import OPEN, Fence, fenced, give_up_attempts

PATIENCE = timedelta(minutes=1)
"""How long the lease of a capture or load on the same root is waited for."""

BATCH = 200
"""Directories that are looked at once more, recorded and recycled together."""

MEASURED = 50
"""Directories that one task measures."""


_SWEPT = Removal(path="", what="file", reason="begun by a run that was killed")


def finish_begun(audit: AuditLog) -> int:
    """Files what killed runs had taken, and not filed: so many files. Where there is any, waits for the root's lease,
    LeaseHeld after PATIENCE. Safe to run twice."""
    if not is_left(audit.root):
        return 0
    with patiently(partial(acquire, audit.root, audit.job), PATIENCE):
        return _sweep(audit)


def _sweep(audit: AuditLog) -> int:
    """In the record like the files that a run takes itself; under the lease."""
    with audit.recorder() as recorder:
        return len(sweep_incoming(audit.root, record=recorder.of(_SWEPT)).finished)


@dataclass
class Removed:
    """What a run removed. files, bytes: recycled. refused: forbidden at the last look. failed: (removal, why)."""

    removals: list[Removal] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failed: list[tuple[Removal, str]] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Remover:
    """A job's hands. live: what the metastore refers to; root: `$cmroot`, where files go. check: raises LeaseHeld when
    the job's own lease was lost: what it decided to remove may be another's by now."""

    root: str
    audit: AuditLog
    live: LiveLocations
    limits: Limits
    engine: AutoEngine
    clock: Callable[[], float] = clocks.time
    patience: timedelta = PATIENCE
    check: Callable[[], None] = lambda: None

    def look(self, removals: Iterable[Removal]) -> Judged:
        """Which of them may be removed now; changes nothing. A dry run ends here. Raises FormatError for a damaged
        legal hold, and what the metastore raises."""
        self.live.refresh()
        return judge(removals, self.limits, read_holds(self.root, self.clock()), self._in_use)

    def remove(self, removals: Iterable[Removal]) -> Removed:
        """Recycles what may be removed at this moment, in batches. Safe to run twice: what is gone already counts as
        removed, with no files. The record of refusals and failures is the audit's; they do not stop the others."""
        done = Removed()
        for batch in batched(removals, BATCH):
            self._batch(batch, done)
        return done

    def _batch(self, batch: Sequence[Removal], done: Removed) -> None:
        with patiently(partial(acquire, self.root, self.audit.job), self.patience) as lease:
            _sweep(self.audit)
            give_up_attempts(self.root)  # and what is left of a killed run's tasks removes nothing from here on
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
        if is_local(removal.path):
            status = status_of(local_path(removal.path), follow=False)
            if status is not None and stat.S_ISLNK(status.st_mode):
                return f"{removal.path} is a symbolic link; its target is not part of this path"
        try:
            refuse_root(self.root, removal.path)
        except Protected as error:
            return error.message
        db = removal.object.partition(".")[0]
        if db and (why := self.live.follows(db.lower())):
            return why
        own, part = (removal.object, removal.partition) if removal.drops else ("", "")
        found = self.live.blocking(removal.path, object=own, partition=part)
        return f"in use: {found}" if found else ""


def measured(removals: Sequence[Removal], engine: AutoEngine) -> list[Removal]:
    """In the order given, with the files and bytes that lie there now; nothing of what is gone."""
    tasks = batched([each.path for each in removals if each.path], MEASURED)
    sizes = dict(size for some in engine.for_work(len(removals)).run(sizes_of, tasks) for size in some)
    found = []
    for each in removals:
        files, size = sizes.get(each.path, (0, 0))
        found.append(msgspec.structs.replace(each, files=files, bytes=size))
    return found


def sizes_of(paths: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """(path, (files, bytes)) of what recycling would take now: hidden files too, and no links."""
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
    with naming(top), suppress(FileNotFoundError):  # what goes while it is counted
        is_file = stat.S_ISREG(os.lstat(top).st_mode)
        for path in [top] if is_file else files_below(top):
            with suppress(FileNotFoundError):
                yield os.lstat(path).st_size


class RemovalTask(msgspec.Struct, frozen=True):
    """Directories whose files go to a `$cmroot`."""

    root: str
    audit: AuditLog
    removals: Sequence[Removal]


class RemovalOutcome(msgspec.Struct, frozen=True):
    """A removal with the files and bytes that really went; `error`: why it failed."""

    removal: Removal
    error: str = ""


def run_removal_task(task: RemovalTask, fence: Fence = OPEN) -> list[RemovalOutcome]:
    """Each file is in the audit before its last trace goes. May run twice. Raises LeaseHeld when it was given up."""
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
# Bringing back what a run removed: the files of the audit record, from `$cmroot` to where they were. Acts.
#
# Files only: metadata that went with them is in the captured log (`replicator restore`) or made again by its owner.


@dataclass
class BroughtBack(Report):
    """files, bytes: written. there: paths that have a file already, which stays. lost: path -> why its bytes cannot be
    had. found_run: what killed runs had taken and not filed is recorded as this run's now, which can be undone, too;
    "": nothing."""

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
    """Every file that a run removed, or those at and below a path; run: None for all runs; job, since (ISO 8601): only
    what this job removed, and from then on. Hashed on the way. Replaces nothing, so it may run twice. A killed run's
    files are filed first. Raises ObjectNotFound when the record knows no such file, LeaseHeld while another run is at
    work on the root and there are files to be filed."""
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
        what = f"{root}: run {run!r} has removed no such file" if run else f"{root}: no removal of {path} is recorded"
        raise ObjectNotFound(what, hint="`replicator audit ls` shows the runs")
    return done
