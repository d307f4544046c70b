"""Publication of files whose order matters, after all data, by the format of their table. The work of a Spark task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from replicator.core.formats import FORMATS
from replicator.core.formats.interface import TableFormat
from replicator.replay.apply.copy_task import CopyReport, count, entries, fold_entries, is_foreign
from replicator.replay.apply.copying import Placed, Placing, kept_prefixes, remove_file
from replicator.replay.apply.format_files import NOWHERE, TableDirectories, TableLoad
from replicator.replay.apply.named_places import translated_file
from replicator.replay.apply.origins import Directories, Roots, Wanted, directory_of, lacking_of
from replicator.replay.apply.staging import OPEN, Fence, noted
from replicator.replay.plan import EntryKey, FileRules

_PATHS = "|".join(each.paths for each in FORMATS.values() if each.paths)
_LISTS = {each.name for each in FORMATS.values() if each.lists_places}


@dataclass(frozen=True)
class PublishTask:
    """The files in some parts of a dump that wait for all data, and directories that appear as a whole, of a share of
    the tables: `share` of `shares`. `over`: commits of other writers are replaced, and moved to the target's
    `$cmroot`."""

    parts: Sequence[str]
    rules: FileRules
    roots: Roots
    share: int
    shares: int
    over: bool
    reread: bool = False
    private: bool = False


@dataclass
class PublishReport:
    """The result of a task. `foreign`: commits by other writers, each with its format in
    messages."""

    copied: CopyReport = field(default_factory=CopyReport)
    foreign: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Waiting:
    """A file that waits for all data, the directory of its table or partition, and the format that publishes it."""

    file: Wanted
    directory: str
    format: TableFormat


def run_publish_task(task: PublishTask, fence: Fence = OPEN) -> PublishReport:
    """Lets directories appear, and publishes the files of a task's tables, each in the order of its format, until a
    file is not available. May run twice."""
    report, kept, homes = PublishReport(), kept_prefixes(task.roots.target), dict[str, EntryKey]()
    wanted, _ = fold_entries(_rows(task), task.rules, homes=homes)
    tables = TableDirectories.of(homes, task.rules)
    waiting = [each for each in _waiting(wanted, tables, homes) if _is_of(each.directory, task)]
    fence.check()
    whole = [file for file in wanted if tables.whole(file.target) and _is_of(tables.home(file.target), task)]
    tables.appear(whole, partial(remove_file, roots=task.roots, private=task.private))
    with noted(task.roots.target, (each.file.target for each in waiting), fence) as attempt:
        make = Directories(homes, task.rules, report.copied.lacking).make
        how = Placing(task.roots, attempt, kept, task.reread, task.private, make=make)
        note = partial(_note, report, homes, task)
        for (directory, _), group in groupby(waiting, key=lambda each: (each.directory, each.format.name)):
            some = list(group)
            files, format = [each.file for each in some], some[0].format
            load = TableLoad(directory, homes.get(directory, NOWHERE), task.rules, how, note)
            if not task.over:
                report.foreign |= {file.target: format.said for file in files if is_foreign(file, format, load)}
            others = dict.fromkeys(format.commits_of_others(files, load, remove=task.over), format.said)
            report.foreign |= {} if task.over else others
            if not report.foreign:
                listed = partial(_listed, report, homes, task.rules, how)
                format.publish(files, replace(load, listed=listed) if format.lists_places else load)
    return report


def _rows(task: PublishTask) -> Iterator[pa.Table]:
    """Yields the entries among which files may wait: by their paths, or of tables any of whose files may."""
    rules = task.rules.tables.items()
    names = pa.array(sorted({name[1] for name, each in rules if any(rule.format in _LISTS for rule in each)}))
    for rows in entries(task.parts):
        waits = pc.match_substring_regex(rows["path"].cast("string"), _PATHS)
        if len(names):
            waits = pc.or_(waits, pc.is_in(rows["table"].cast("string"), names))
        yield rows.filter(waits)


def _listed(report: PublishReport, homes: dict[str, EntryKey], rules: FileRules, how: Placing, file: Wanted) -> Wanted:
    file, naming = translated_file(file, homes, rules, how)
    report.copied.note_naming(naming)
    return file


def _waiting(files: Sequence[Wanted], tables: TableDirectories, homes: dict[str, EntryKey]) -> list[_Waiting]:
    """Returns the files that wait, by table: those with a format of their own first, then logs found by their paths."""
    found = []
    for file in files:
        if (of := tables.waits_for(file.target)) is not None:
            found.append(_Waiting(file, of[0] or directory_of(file.target, homes), of[1]))
    return sorted(found, key=lambda each: (each.format.everywhere, each.directory, each.format.name, each.file.target))


def _is_of(directory: str, task: PublishTask) -> bool:
    return xxhash.xxh3_64_intdigest(os.fsencode(directory)) % task.shares == task.share


def _note(report: PublishReport, homes: dict[str, EntryKey], task: PublishTask, file: Wanted, placed: Placed) -> None:
    count(report.copied, file, placed)
    if placed.lacking:
        report.copied.lacking |= lacking_of(file.target, placed.lacking, homes, task.rules)
