"""Delta logs of a dump: published after all data, in an order in which readers always find a complete version.

Checkpoints come before commits, commits in order of their versions, the name of the last checkpoint last. A commit that
another writer made on the target is never replaced without a request: its rows would be lost silently.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
import pyarrow.compute as pc
import xxhash

from cmroot.store.delta import LAST, LOG, checkpoint_version, rank
from cmroot.store.place import located
from replicator.replay.copy.copy_task import CopyReport, count, entries, fold_entries, is_foreign, is_log, log_of
from replicator.replay.copy.copying import Placed, Placing, kept_prefixes, place_file, remove_file
from replicator.replay.copy.origins import Roots, Wanted
from replicator.replay.copy.staging import OPEN, Fence, noted
from replicator.replay.plan.rules import FileRules


@dataclass(frozen=True)
class LogTask:
    """The logs in some parts of a dump, and a share of their tables: `share` of `shares`. `over`: commits of other
    writers are replaced, and moved to the target's `$cmroot`."""

    parts: Sequence[str]
    rules: FileRules
    roots: Roots
    share: int
    shares: int
    over: bool
    reread: bool = False
    private: bool = False


@dataclass
class LogReport:
    """The result of a task. `foreign`: paths of commits by other writers."""

    copied: CopyReport = field(default_factory=CopyReport)
    foreign: list[str] = field(default_factory=list)


def run_log_task(task: LogTask, fence: Fence = OPEN) -> LogReport:
    """Publishes the logs of a task's tables, each in order, up to the first file that is not available. May run
    twice."""
    report, kept = LogReport(), kept_prefixes(task.roots.target)
    files = _logs(task)
    with noted(task.roots.target, (file.target for file in files), fence) as attempt:
        for _, log in groupby(files, key=lambda file: log_of(file.target)):
            some = list(log)
            report.foreign += [] if task.over else [file.target for file in some if is_foreign(file, task.roots)]
            if not report.foreign:
                _publish(some, Placing(task.roots, attempt, kept, task.reread, task.private), report.copied)
    return report


def _logs(task: LogTask) -> list[Wanted]:
    """Returns this share's log files, by table, and in order."""
    tables = (
        table.filter(pc.match_substring(table["path"].cast("string"), f"{LOG}/")) for table in entries(task.parts)
    )
    wanted, _ = fold_entries(tables, task.rules)
    logs = (file for file in wanted if is_log(file.target))
    mine = (file for file in logs if _digest(log_of(file.target)) % task.shares == task.share)
    return sorted(mine, key=lambda file: (log_of(file.target), rank(file.target) or (0, 0), file.target))


def _digest(place: str) -> int:
    return xxhash.xxh3_64_intdigest(os.fsencode(place))


def _publish(files: Sequence[Wanted], how: Placing, report: CopyReport) -> None:
    broken = ""
    for file in files:
        if broken:
            count(report, file, Placed("missing", reason=f"{broken}, which comes before it, is missing"))
            continue
        placed = place_file(file, how)
        count(report, file, placed)
        broken = file.target if placed.origin == "missing" else ""
        if rank(file.target) == (LAST, 0) and not broken and not _leads_somewhere(file.target):
            remove_file(file.target, how.roots, private=how.private)


def _leads_somewhere(place: str) -> bool:
    """Returns True if the checkpoint that a `_last_checkpoint` names exists: it may be newer than the rest."""
    last = located(place)
    names: Iterable[str] = last.parent.list()
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        version = msgspec.json.decode(last.read_bytes())["version"]
        return any(checkpoint_version(name) == version for name in names)
    return False
