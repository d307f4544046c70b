"""Transfer: the files of a dump, task by task on an engine: looked for, compared, copied, recycled. Acts.

What one task does with its files is in `files` and `copying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cmroot.store.flow import FLOW
from cmroot.store.local import is_directory
from cmroot.store.place import is_local, local_path
from cmroot.store.resolve import located
from replicator.core.text.quantity import count_text
from replicator.errors import FilesMissing, Refused
from replicator.replay.apply.work import Replay
from replicator.replay.copy.copy_task import COMPARE, COPY, PROBE, REMOVE, CopyReport, CopyTask, run_copy_task
from replicator.replay.copy.logs import LogTask, run_log_task
from replicator.replay.copy.origins import Roots
from replicator.replay.copy.staging import fenced, give_up_attempts
from replicator.replay.plan.plan import Plan

TASK_BYTES = 1 << 30  # a copy task's share, so that executors finish together and a lost one costs little
TASK_FILES = 20_000


def copy_files(replay: Replay, check: Callable[[], None], *, allow_missing: bool) -> CopyReport:
    """Publishes every file, Delta logs after all data, then recycles those the source removed, each unless `check`
    raises. Raises FilesMissing, unless they are allowed, and Refused where others have committed to a Delta table of
    the target."""
    plan, roots, report = replay.plan, replay.roots, CopyReport()
    if replay.reader.metadata.files:
        check()
        report = run_files(replay, COPY)
        give_up_attempts(roots.target)  # of attempts that were given up: from here on they publish nothing
        if report.missing_count and not allow_missing:
            raise _files_missing(report, roots)
        if report.logs:
            _sync(plan)  # data is durable before a log names it
            check()
            report.add(_publish_logs(report.logs, replay))
            give_up_attempts(roots.target)
            if report.missing_count and not allow_missing:
                raise _files_missing(report, roots)
        _sync(plan)
    if replay.reader.metadata.removed:
        check()
        report.files_removed = run_files(replay, REMOVE).files_removed
    return report


def _sync(plan: Plan) -> None:
    """What was copied is durable then: once a filesystem instead of once a file."""
    for place in {*plan.placement.target_locations.values(), plan.placement.external}:
        if place and is_local(place) and is_directory(local_path(place)):
            located(place).sync()


def probe_files(replay: Replay) -> None:
    """Before anything that the target shows is changed: are all bytes to be had? Raises FilesMissing."""
    if replay.plan.changes_shown and replay.reader.metadata.files:
        report = run_files(replay, PROBE)
        if report.missing_count:
            raise _files_missing(report, replay.roots)
        if report.foreign and not replay.plan.replaces_commits:
            raise _foreign(report.foreign)


def _publish_logs(parts: Iterable[str], replay: Replay) -> CopyReport:
    """The Delta logs among some parts of a dump. Small files, and few: what counts is their order."""
    places, done = sorted(parts), CopyReport()
    if not places:
        return done
    engine, plan, roots = replay.runtime.engines.for_work(len(places)), replay.plan, replay.roots
    about = plan.replaces_commits, plan.rereads, plan.snapshot is not None
    tasks = [
        LogTask(places, plan.file_rules(), roots, share, engine.parallelism, *about)
        for share in range(engine.parallelism)
    ]
    foreign = []
    with replay.runtime.progress.task("publish Delta logs", total=len(tasks)) as advance:
        for report in fenced(engine, roots.target, run_log_task, tasks):
            done.add(report.copied)
            foreign += report.foreign
            advance(1)
    if foreign:
        raise _foreign(foreign)
    return done


def _foreign(commits: Sequence[str]) -> Refused:
    more = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
    return Refused(
        f"somebody else has committed to a Delta table of the target: {commits[0]}{more} is no commit of the source",
        hint="--overwrite, or a repair of the table, replaces it (it goes to the target's $cmroot); to keep its rows, "
        "write them at the source",
        details={"foreign": list(commits)},
    )


_TITLES = {COPY: "copy files", REMOVE: "recycle removed files", PROBE: "look for files", COMPARE: "compare files"}


def run_files(replay: Replay, purpose: str) -> CopyReport:
    """One purpose (see CopyTask) for every file of a dump."""
    metadata, plan, roots, runtime = replay.reader.metadata, replay.plan, replay.roots, replay.runtime
    files = metadata.removed if purpose == REMOVE else metadata.files
    size = metadata.bytes if purpose in (COPY, COMPARE) else 0
    engine, parts, rules = runtime.engines.for_work(files, size), replay.parts, plan.file_rules()
    wanted = max(engine.parallelism, size // TASK_BYTES, files // TASK_FILES)
    shares = max(1, -(-wanted // len(parts)))
    more: dict[str, Any] = {
        "reread": plan.rereads,
        "private": plan.snapshot is not None,
        "preserve": plan.preserve if purpose == COPY else (),
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
    return total


def _files_missing(report: CopyReport, roots: Roots) -> FilesMissing:
    target, position, reason = report.missing[0]
    return FilesMissing(
        f"{count_text(report.missing_count, 'file')} neither at the source nor in {roots.source} with the recorded "
        f"bytes, "
        f"the first: {target} (position {position}): {reason}",
        hint="nothing of the dump's metadata was committed; make a newer dump, which no longer names them, or restore "
        "the bytes to $cmroot; capture more often to keep bytes of short-lived files",
        details={"missing": missing_files(report)},
    )


def missing_files(report: CopyReport) -> list[dict[str, object]]:
    """As reports name them."""
    return [{"file": file, "position": position, "reason": reason} for file, position, reason in report.missing]
