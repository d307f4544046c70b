"""Transfer: the files of a dump, task by task on an engine: looked for, compared, copied, recycled. Acts.

What one task does with its files is in `files` and `copying`.
"""

from __future__ import annotations

import os

from cmroot.place import is_local, local_path, store_for
from replicator.dump.reader import DumpReader
from replicator.engine import AutoEngine
from replicator.errors import FilesMissing
from replicator.load.copying import Roots
from replicator.load.files import COMPARE, COPY, PROBE, REMOVE, CopyReport, CopyTask, FileRules, run_copy_task
from replicator.load.plan import Plan
from replicator.progress import Progress

TASK_BYTES = 1 << 30  # a copy task's share, so that executors finish together and a lost one costs little
TASK_FILES = 20_000


def copy_files(
    reader: DumpReader, plan: Plan, roots: Roots, engine: AutoEngine, progress: Progress, *, allow_missing: bool
) -> CopyReport:  # fmt: skip
    """Publishes every file, then recycles those the source removed. Raises FilesMissing, unless they are allowed."""
    metadata, rules, report = reader.metadata, plan.file_rules(), CopyReport()
    reread, private = bool(plan.by_difference and plan.by_difference.reread), plan.snapshot is not None
    if metadata.files:
        report = run_files(
            reader, rules, roots, engine, progress, metadata.files, metadata.bytes, COPY, reread=reread, private=private
        )  # fmt: skip
        if report.missing_count and not allow_missing:
            raise _files_missing(report, roots)
        for place in {*plan.placement.target_locations.values(), plan.placement.external}:
            if place and is_local(place) and os.path.isdir(local_path(place)):
                store_for(place).sync(place)  # once a filesystem instead of once a file
    if metadata.removed:
        removed = run_files(reader, rules, roots, engine, progress, metadata.removed, 0, REMOVE, private=private)
        report.removed = removed.removed
    return report


def probe_files(
    reader: DumpReader, plan: Plan, roots: Roots, engine: AutoEngine, progress: Progress
) -> None:  # fmt: skip
    """Before anything that the target shows is changed: are all bytes to be had? Raises FilesMissing."""
    metadata = reader.metadata
    if plan.changes_shown and metadata.files:
        report = run_files(reader, plan.file_rules(), roots, engine, progress, metadata.files, 0, PROBE)
        if report.missing_count:
            raise _files_missing(report, roots)


_TITLES = {COPY: "copy files", REMOVE: "recycle removed files", PROBE: "look for files", COMPARE: "compare files"}


def run_files(
    reader: DumpReader, rules: FileRules, roots: Roots, engines: AutoEngine, progress: Progress, files: int, size: int,
    purpose: str, *, reread: bool = False, private: bool = False,
) -> CopyReport:  # fmt: skip
    """One purpose (see CopyTask) for every file of a dump; files, size: what is expected, to choose an engine by."""
    engine = engines.for_work(files, size)
    buckets = reader.buckets()
    wanted = max(engine.parallelism, size // TASK_BYTES, files // TASK_FILES)
    shares = max(1, -(-wanted // len(buckets)))
    tasks = [
        CopyTask([place], rules, roots, share, shares, purpose, reread=reread, private=private)
        for place, _ in buckets
        for share in range(shares)
    ]
    total = CopyReport()
    with progress.task(_TITLES[purpose], total=len(tasks)) as advance:
        for report in engine.run(run_copy_task, tasks):
            total.add(report)
            advance(1)
    return total


def _files_missing(report: CopyReport, roots: Roots) -> FilesMissing:
    target, position, reason = report.missing[0]
    return FilesMissing(
        f"{report.missing_count} files are neither at the source nor in {roots.source} with the recorded bytes, "
        f"the first: {target} (position {position}): {reason}",
        hint="nothing of the dump's metadata was committed; make a newer dump, which no longer names them, or restore "
        "the bytes to $cmroot; capture more often to keep bytes of short-lived files",
        details={"missing": missing_files(report)},
    )


def missing_files(report: CopyReport) -> list[dict[str, object]]:
    """As reports name them."""
    return [{"file": file, "position": position, "reason": reason} for file, position, reason in report.missing]
