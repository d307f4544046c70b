"""Publication of files whose order matters, after all data: Delta logs, trees of Iceberg tables, and directories of
transactional tables that appear as a whole. The work of one Spark task.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import msgspec
import pyarrow.compute as pc
import xxhash

from cmroot.store.delta import LAST, LOG, checkpoint_version, rank
from cmroot.store.iceberg import DIRECTORY
from cmroot.store.place import located
from replicator.replay.apply.copy_task import CopyReport, count, entries, fold_entries, is_foreign, is_log, log_of
from replicator.replay.apply.copying import Placed, Placing, kept_prefixes, place_file, remove_file
from replicator.replay.apply.iceberg_files import Noted, is_of_tree, publish_tree, tree_of, trees_of
from replicator.replay.apply.origins import Directories, Roots, Wanted, lacking_of
from replicator.replay.apply.staging import OPEN, Fence, noted
from replicator.replay.apply.transactional import PATTERN, acid_homes, appear, home_of
from replicator.replay.plan import EntryKey, FileRules


@dataclass(frozen=True)
class LogTask:
    """The logs, trees and directories of write ids in some parts of a dump, and a share of their tables: `share` of
    `shares`. `over`: commits of other writers are replaced, and moved to the target's `$cmroot`."""

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
    """Publishes the logs and trees of a task's tables, each in order, until a file is not available, and lets
    directories of write ids appear. May run twice."""
    report, kept, homes = LogReport(), kept_prefixes(task.roots.target), dict[str, EntryKey]()
    files, trees, acid = _logs(task, homes)
    fence.check()
    appear(acid, acid_homes(homes, task.rules), partial(remove_file, roots=task.roots, private=task.private))
    places = trees_of(homes, task.rules)
    with noted(task.roots.target, (file.target for file in (*trees, *files)), fence) as attempt:
        make = Directories(homes, task.rules, report.copied.lacking).make
        how = Placing(task.roots, attempt, kept, task.reread, task.private, make=make)
        note = partial(_note, report, homes, task)
        for directory, tree in groupby(trees, key=lambda file: tree_of(file.target, places)):
            publish_tree(list(tree), directory, places[directory], task.rules, how, note)
        for _, log in groupby(files, key=lambda file: log_of(file.target)):
            some = list(log)
            report.foreign += [] if task.over else [file.target for file in some if is_foreign(file, task.roots)]
            if not report.foreign:
                _publish(some, how, note)
    return report


def _note(report: LogReport, homes: dict[str, EntryKey], task: LogTask, file: Wanted, placed: Placed) -> None:
    count(report.copied, file, placed)
    if placed.lacking:
        report.copied.lacking |= lacking_of(file.target, placed.lacking, homes, task.rules)


def _logs(task: LogTask, homes: dict[str, EntryKey]) -> tuple[list[Wanted], list[Wanted], list[Wanted]]:
    """Returns this share's files of Delta logs, by table, and in order; those of Iceberg's trees, by table; and those
    of transactional tables. homes: see `fold_entries`."""
    pattern = f"{LOG}/|^{DIRECTORY}/|{PATTERN}"
    tables = (
        table.filter(pc.match_substring_regex(table["path"].cast("string"), pattern)) for table in entries(task.parts)
    )
    wanted, _ = fold_entries(tables, task.rules, homes=homes)
    places = trees_of(homes, task.rules)
    logs = (file for file in wanted if is_log(file.target))
    trees = (file for file in wanted if is_of_tree(file.target, places))
    mine = (file for file in logs if _digest(log_of(file.target)) % task.shares == task.share)
    own = (file for file in trees if _digest(tree_of(file.target, places)) % task.shares == task.share)
    acid = acid_homes(homes, task.rules)
    whole = [
        file for file in wanted if (home := home_of(file.target, acid)) and _digest(home) % task.shares == task.share
    ]
    in_order = sorted(mine, key=lambda file: (log_of(file.target), rank(file.target) or (0, 0), file.target))
    return in_order, sorted(own, key=lambda file: (tree_of(file.target, places), file.target)), whole


def _digest(place: str) -> int:
    return xxhash.xxh3_64_intdigest(os.fsencode(place))


def _publish(files: Sequence[Wanted], how: Placing, note: Noted) -> None:
    """Publishes files in order, up to the first that is not available."""
    broken = ""
    for file in files:
        reason = f"{broken}, which precedes it, is missing"
        placed = Placed("missing", reason=reason) if broken else place_file(file, how)
        note(file, placed)
        broken = broken or (file.target if placed.origin == "missing" else "")
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
