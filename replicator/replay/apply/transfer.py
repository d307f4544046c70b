"""Transfer: the files of a dump are probed, compared, copied, recycled, task by task on an engine. Has side effects.

For the work of one task on its files see `copy_task` and `copying`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from cmroot.store import objects
from cmroot.store.buckets import list_root
from cmroot.store.checksum import FLOW, checksum_at, copy_file, copy_stream
from cmroot.store.hdfs import BY_RPC, SCHEMES
from cmroot.store.listing import Listing, list_tree
from cmroot.store.local import is_directory
from cmroot.store.place import give_rights, is_local, join, local_path, located, normal, parent, remote_store
from cmroot.store.s3 import RENAMING
from cmroot.store.spelling import scheme
from replicator.core.formats import format_of, pointer_of
from replicator.core.grouping import batched
from replicator.core.model import Name, Partition, Table
from replicator.core.text import count_text
from replicator.errors import ChecksumMismatch, Error, FilesMissing, ObjectNotFound, Refused
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader
from replicator.replay.apply.copy_task import COMPARE, COPY, PROBE, REMOVE, CopyReport, CopyTask, run_copy_task
from replicator.replay.apply.named_places import (
    Naming,
    NamingTask,
    known_tables,
    naming_tasks,
    note_naming,
    reported,
    run_naming_task,
)
from replicator.replay.apply.origins import Roots
from replicator.replay.apply.publication import PublishTask, run_publish_task
from replicator.replay.apply.staging import Attempt, fenced, give_up_attempts, noted
from replicator.replay.apply.work import Replay, Work
from replicator.replay.placement import is_published
from replicator.replay.plan import Plan, TablePlan
from replicator.replay.replica import pointer_of_others
from replicator.replay.retired import Retired
from replicator.replay.squash import Lineage

TASK_BYTES = 1 << 30  # a copy task's share, so that executors finish together and losing one costs little
TASK_FILES = 20_000


def copy_files(replay: Replay, check: Callable[[], None], *, allow_missing: bool) -> CopyReport:
    """Publishes every file, those whose order matters after all data, then recycles those the source removed, each
    unless `check` raises; those of Iceberg and transactional tables, and files that metadata names if there are Iceberg
    views, remain until `remove_late`. Raises FilesMissing,
    unless allowed, and Refused if other writers have committed to a Delta table of the target."""
    plan, roots, report = replay.plan, replay.roots, CopyReport()
    if replay.reader.metadata.files:
        check()
        report = run_files(replay, COPY)
        give_up_attempts(roots.target)  # abandoned attempts publish nothing from here on
        if report.missing_count and not allow_missing:
            raise _files_missing(report, roots)
        if report.waiting:
            _sync(plan)  # data is durable before a log names it
            check()
            report.add(_publish_waiting(report.waiting, replay))
            give_up_attempts(roots.target)
            if report.missing_count and not allow_missing:
                raise _files_missing(report, roots)
        _sync(plan)
    if replay.reader.metadata.removed:
        check()
        report.add(run_files(replay, REMOVE))
    return report


def remove_late(replay: Replay) -> int:
    """Recycles files that the source removed and to which pointers or write ids no longer lead (see `copy_files`).
    Returns how many. May run twice."""
    return run_files(replay, REMOVE, late=True).files_removed


def _sync(plan: Plan) -> None:
    """Makes copied files durable: once per filesystem instead of once per file."""
    for place in {*plan.placement.target_locations.values(), plan.placement.external}:
        if place and is_local(place) and is_directory(local_path(place)):
            located(place).sync()


def probe_files(replay: Replay) -> None:
    """Checks that all bytes are available, before any visible change of the target. Raises FilesMissing."""
    if replay.plan.changes_shown and replay.reader.metadata.files:
        report = run_files(replay, PROBE)
        if report.missing_count:
            raise _files_missing(report, replay.roots)
        if report.foreign and not replay.plan.replaces_commits:
            raise foreign_commits(report.foreign)


def _publish_waiting(parts: Iterable[str], replay: Replay) -> CopyReport:
    """Publishes the files in some parts of a dump that wait for all data: small ones, whose order matters."""
    places, done = sorted(parts), CopyReport()
    if not places:
        return done
    engine, plan, roots = replay.runtime.engines.for_work(len(places)), replay.plan, replay.roots
    about = plan.replaces_commits, plan.rereads, plan.snapshot is not None
    rules = replace(plan.file_rules(), known=known_tables(plan, replay.target))
    tasks = [
        PublishTask(places, rules, roots, share, engine.parallelism, *about) for share in range(engine.parallelism)
    ]
    foreign = dict[str, str]()
    with replay.runtime.progress.task("publish logs", total=len(tasks)) as advance:
        for report in fenced(engine, roots.target, run_publish_task, tasks):
            done.add(report.copied)
            for name, text in report.copied.lacking.items():
                plan.stays.lack(name, text)
            foreign |= report.foreign
            advance(1)
    if foreign:
        raise foreign_commits(foreign)
    note_naming(plan, done.naming, done.naming_count)
    return done


def refuse_commits_of_others(plan: Plan) -> None:
    """Raises Refused if other writers have set the pointers of tables of the target, before anything is changed."""
    tables = [step.there for step in plan.tables if step.there and step.table and pointer_of(step.table)]
    found = {pointer: format_of(table).said for table in tables if (pointer := pointer_of_others(table))}
    if found and not plan.replaces_commits:
        raise foreign_commits(found)


def foreign_commits(found: Mapping[str, str]) -> Refused:
    """Returns the error for commits that are not the source's. found: their files, each with its table's format."""
    commits = list(found)
    more = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
    return Refused(
        f"another writer has committed to {found[commits[0]]} of the target: {commits[0]}{more}, not from the source",
        hint="--overwrite, or a repair of the table, replaces it (it is moved to the target's $cmroot); to keep its "
        "rows, write them at the source",
        details={"foreign": list(commits)},
    )


_TITLES = {COPY: "copy files", REMOVE: "recycle removed files", PROBE: "look for files", COMPARE: "compare files"}


def run_files(replay: Replay, purpose: str, *, late: bool = False) -> CopyReport:
    """Runs one purpose (see CopyTask) for every file of a dump."""
    metadata, plan, roots, runtime = replay.reader.metadata, replay.plan, replay.roots, replay.runtime
    files = metadata.removed if purpose == REMOVE else metadata.files
    size = metadata.bytes if purpose in (COPY, COMPARE) else 0
    known = known_tables(plan, replay.target) if purpose == COMPARE else None
    engine, parts, rules = runtime.engines.for_work(files, size), replay.parts, replace(plan.file_rules(), known=known)
    wanted = max(engine.parallelism, size // TASK_BYTES, files // TASK_FILES)
    shares = max(1, -(-wanted // len(parts)))
    more: dict[str, Any] = {
        "reread": plan.rereads,
        "private": plan.snapshot is not None,
        "preserve": plan.preserve if purpose == COPY else (),
        "late": late,
    }
    tasks = [
        CopyTask([place], rules, roots, share, shares, purpose, **more) for place in parts for share in range(shares)
    ]
    total = CopyReport()
    amounts: dict[str, Any] = {"files": files, "size": size or None}
    if purpose == COPY:
        amounts["live"] = lambda: FLOW.copied
    with runtime.progress.task(_TITLES[purpose], total=len(tasks), **amounts) as advance:
        for report in fenced(engine, roots.target, run_copy_task, tasks):
            total.add(report)
            advance(1, files=report.files_seen or report.files_removed, size=report.bytes_seen if size else 0)
    for name, text in total.lacking.items():
        plan.stays.lack(name, text)
    note_naming(plan, total.naming, total.naming_count)
    return total


def look_again(replay: Replay) -> None:
    """Examines the objects of a load of which an earlier load reported files that name the source, and replaces these
    reports. Called when all metadata is on the target."""
    plan, tasks, about = replay.plan, list[NamingTask](), list[tuple[Name, str]]()
    known = known_tables(plan, replay.target) if plan.named else None
    for each in plan.named:
        step = next((step for step in plan.tables if step.lineage.before == tuple(each.object.split(".", 1))), None)
        if step is not None and step.table is not None and step.lineage.table is not None:
            fates = (fate.now or "" for fate in step.lineage.fates if fate.before == each.partition)
            partition = next(fates, each.partition)
            places = _places(replay.target, step.name, partition)
            tasks += naming_tasks(places, (step.lineage.table, step.table), plan, known)
            about += [(step.name, partition)] * len(places)
    engine = replay.runtime.engines.for_work(len(tasks))
    found = [
        Naming(name, partition, path, source)
        for (name, partition), files in zip(about, engine.run(run_naming_task, tasks), strict=True)
        for path, source in files.items()
    ]
    now = reported(found, plan.source_of)
    mine = {each.key for each in now}
    plan.lacked[:] = [*now, *(each for each in plan.lacked if not (each.names_source and each.key in mine))]


def _places(target: MetastoreReader, name: Name, partition: str) -> list[str]:
    """Returns the location of a table, or of its partition; empty if it does not exist."""
    with suppress(ObjectNotFound):
        if not partition:
            return [place for place in [target.table(*name).location] if place]
        return [each.location for page in target.partitions(*name, [partition]) for each in page if each.location]
    return []


def _files_missing(report: CopyReport, roots: Roots) -> FilesMissing:
    target, position, reason = report.missing[0]
    nowhere = f"neither at the source nor in {roots.source}"
    if roots.alone:
        nowhere = f"not in {', '.join(roots.data)}"
    return FilesMissing(
        f"{count_text(report.missing_count, 'file')} found {nowhere} with the recorded bytes, "
        f"the first: {target} (position {position}): {reason}",
        hint="nothing of the dump's metadata was committed; write a newer dump, which no longer names them, or restore "
        "the bytes to $cmroot; capture more often to keep bytes of short-lived files"
        if not roots.alone
        else "nothing of the dump's metadata was committed; `replicator dumps verify` names all damaged files; "
        "--source-cmroot also reads the files of the source",
        details={"missing": missing_files(report)},
    )


def missing_files(report: CopyReport) -> list[dict[str, object]]:
    """Returns missing files in the form of reports."""
    return [{"file": file, "position": position, "reason": reason} for file, position, reason in report.missing]


# ---- cloning ---------------------------------------------------------------------------------------------------------
# Cloning: unchanged files of a table or partition are carried into its new directory before a load changes that: by
# hard link, on object stores by a server-side copy. No byte passes through this process.
#
# Runs on executors. A file that exists in the new directory is not changed, so it may run twice, and after the load has
# changed the new directory; files that the load has removed there are removed again.


@dataclass(frozen=True)
class CloneTask:
    """(directory, new directory) pairs, and the target's `$cmroot`. of_roots: only files that `list_root` lists. bare:
    no files, only the directories' rights."""

    root: str
    pairs: Sequence[tuple[str, str]]
    of_roots: bool = False
    bare: bool = False


def run_clone_task(task: CloneTask) -> str:
    """Carries files, and the rights of their directories. Returns a text about rights that a new directory or file
    lacks ("": none). May run twice."""
    listed, lacking = list_root if task.of_roots else list_tree, ""
    for old, new in task.pairs:
        rights = _Rights(old, new)
        rights.give("")
        if not task.bare:
            _carry(task.root, (old, listed(old)), (new, listed(new)), rights)
        lacking = lacking or rights.lacking
    return lacking


def _carries_rights(old: str, new: str) -> bool:
    """Returns True between places whose directories have rights: on disks, and on HDFS."""
    return {scheme(old), scheme(new)} == {"file"} or {scheme(old), scheme(new)} <= SCHEMES


@dataclass
class _Rights:
    """The rights of the directories below `old`, which those below `new` get. lacking: see `run_clone_task`."""

    old: str
    new: str
    lacking: str = ""
    _given: set[str] = field(default_factory=set)

    def give(self, below: str) -> None:
        """Creates a directory, by its relative name, and those above it, with the rights of the old ones. Object stores
        have no directories."""
        if below in self._given:
            return
        self._given.add(below)
        if below:
            self.give(below.rpartition("/")[0])
        old, new = (join(top, below) if below else top for top in (self.old, self.new))
        if is_local(old) and is_local(new):
            if not is_directory(local_path(old)):
                return
            os.makedirs(local_path(new), exist_ok=True)
        elif {scheme(old), scheme(new)} <= SCHEMES and (there := located(old).child()) and there.is_directory:
            located(new).mkdirs()
        else:
            return
        self.of(old, new)

    def of(self, old: str, new: str, staging: str = "") -> None:
        """Gives those of a file or directory. staging: the new file, before it has its name."""
        if lacking := give_rights(old, staging or new, BY_RPC):
            self.lacking = self.lacking or f"{new} lacks {lacking} of {old}"


def _carry(root: str, before: tuple[str, Listing | None], after: tuple[str, Listing | None], rights: _Rights) -> None:
    """Carries files from one directory to another. before, after: the directories with their listings."""
    (old, listing), (new, there) = before, after
    known = {file.path_relative for file in there.files} if there else set()
    on_disk = is_local(old) and is_local(new)
    objects_only = scheme(new) not in {"file", *SCHEMES, *RENAMING}
    by_store, aside = objects_only and located(old).same_store(located(new)), []
    for file in listing.files if listing else ():
        if file.path_relative in known:
            continue
        source, target = join(old, file.path_relative), join(new, file.path_relative)
        rights.give(file.path_relative.rpartition("/")[0])
        if on_disk:
            source, target = local_path(source), local_path(target)
            if not file.path_relative:  # a table in one file
                os.makedirs(os.path.dirname(target), exist_ok=True)
            if not _link(source, target):
                aside.append((source, target, file.mtime_ns))
        elif not by_store or file.size > objects.WHOLE_COPY:
            aside.append((source, target, file.mtime_ns))
        else:
            _copy(source, target)
    if aside:
        with noted(root, (target for _, target, _ in aside)) as attempt:
            for source, target, mtime_ns in aside:
                if by_store:
                    _copy(source, target, attempt.staging(parent(target)) + objects.NOTE)
                else:
                    _copy_aside(source, target, mtime_ns, rights, attempt)


def _link(source: str, target: str) -> bool:
    """Hard-links a file. Returns False if that is not supported."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV):
            raise
        return False
    return True


def _copy_aside(source: str, target: str, mtime_ns: int, rights: _Rights, attempt: Attempt) -> None:
    """Copies a file, reads the copy back, and gives it its rights before its name: until then only this user may open
    it. Raises ChecksumMismatch if it has other bytes."""
    staging = attempt.staging(parent(target))
    own, new, on_disk = located(staging), located(target), is_local(source) and is_local(target)
    try:
        if on_disk:
            copied = copy_file(source, staging, reread=True, mtime_ns=mtime_ns, private=True)
            wanted = checksum_at(source)
        else:
            opened = own.open_new()
            if not own.local:
                opened = remote_store(staging).open_new(staging, private=_carries_rights(source, target))
            with located(source).open_read() as reading, opened as file:
                wanted = copy_stream(reading, file)
            copied = checksum_at(staging)
        if copied != wanted:
            hint = "check both stores for errors, then run the same command again"
            raise ChecksumMismatch(f"{target}: its copy has other bytes than {source}, and was removed", hint=hint)
        rights.of(source, target, staging)
        attempt.check()
        os.rename(staging, target) if on_disk else own.move(new)
    except BaseException:
        with suppress(Error, OSError):  # the first error is raised
            own.remove()
        raise


def _copy(source: str, target: str, note: str = "") -> None:
    """Copies an object within its store, as it is: the store confirms the copy of exactly the object that was described
    before, and shows it complete or not at all (`FsspecStore.copy`). No byte passes through this process."""
    remote_store(source).copy(source, target, note, stored=True)


class Cloning:
    """The files that a load carries unchanged before it copies."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def carry(self, named: Iterator[tuple[Lineage, list[tuple[str, Partition]]]]) -> None:
        """Carries unchanged files of changed objects into their new directories, if a load publishes by snapshots or
        returns published tables to the source's layout, and notes the old directories. Afterwards the copies change no
        file that has readers. `named`: all partitions of returned tables."""
        for step in self._work.plan.tables:
            if not step.exists or step.table is None or step.there is None or step.table.is_view or step.shared:
                continue
            there = step.there if step.rename_from is None else self._work.target.table(*step.name)
            old, new = there.location, step.table.location
            moves = step.place is not None or (self._work.plan.back and is_published(old))
            if moves and old and new and normal(old) != normal(new):
                self._carry_table(step, old, new)
            if step.place is None or not step.table.has_files_by_partition:
                continue
            for batch in batched(sorted(step.touched), PARTITION_BATCH):
                pairs = []
                for name, partition in self._work.partitions_named(step, batch).items():
                    place = step.place_of_partition(name, partition.location)
                    if place and partition.location and normal(place) != normal(partition.location):
                        pairs.append((partition.location, place, name))
                fates = step.lineage.partitions
                kept = [name for _, _, name in pairs if not (name in fates and fates[name].complete)]
                self._carry(step, pairs, kept)

        steps = {id(step.lineage): step for step in self._work.plan.tables if step.exists and step.table}
        for lineage, some in named:
            if (found := steps.get(id(lineage))) is not None and lineage.table is not None:
                self._carry_back(found, lineage.table, dict(some))

    def _carry_table(self, step: TablePlan, old: str, new: str) -> None:
        if step.table is None or not step.table.has_files_by_partition:
            self._carry(step, [(old, new, "")], () if step.recreated else ("",))
        elif not step.recreated:
            self._clone(step, [(old, new)], of_roots=True)

    def _carry_back(self, step: TablePlan, table: Table, some: dict[str, Partition]) -> None:
        pairs = []
        for name, partition in self._work.partitions_named(step, list(some)).items():
            source = some[name].location
            if source and partition.location and is_published(partition.location):
                place = self._work.plan.placement.inside(table.db, table.location, source)
                if normal(place) != normal(partition.location):
                    pairs.append((partition.location, place, name))
        self._carry(step, pairs, [name for _, _, name in pairs])

    def _carry(self, step: TablePlan, pairs: Sequence[tuple[str, str, str]], kept: Collection[str]) -> None:
        """Carries partitions. pairs: (directory, new directory, partition); `kept`: those that may have unchanged
        files."""
        self._work.supersede(
            [Retired(old, *step.name, name, successor=new if name in kept else "") for old, new, name in pairs]
        )
        self._clone(step, [(old, new) for old, new, name in pairs if name in kept])
        bare = [(old, new) for old, new, name in pairs if name not in kept and _carries_rights(old, new)]
        self._clone(step, bare, bare=True)

    def _clone(self, step: TablePlan, pairs: Sequence[tuple[str, str]], **how: bool) -> None:
        clone(self._work, step.name, pairs, **how)


def clone(work: Work, name: Name, pairs: Sequence[tuple[str, str]], **how: bool) -> None:
    """Carries files of a table from one directory of each pair to the other. how: as of a `CloneTask`."""
    engine = work.runtime.engines.for_work(len(pairs))
    tasks = [CloneTask(work.root, some, **how) for some in batched(pairs, 100)]
    for lacking in engine.run(run_clone_task, tasks) if tasks else ():
        if lacking:
            work.plan.stays.lack(name, lacking)
