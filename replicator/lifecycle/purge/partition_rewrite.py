"""Rewriting of partitions: which files are hard-linked unchanged and which are rewritten (pure), the work on an engine,
and the sums that must agree before a swap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from cmroot.store.place import is_local, join, located
from replicator.core.engine import AutoEngine
from replicator.core.runtime import Advance
from replicator.errors import Error
from replicator.lifecycle.purge.partitions import Look, Part, is_data, look_at
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.rewrite_task import FileDone, FilesTask, FileWork, run_files_task, sweep_staging
from replicator.lifecycle.purge.swapping import Figures

BUNDLE_FILES = 64
BUNDLE_BYTES = 256 << 20
"""The maximum number and size of files per task: each Spark task costs 25 to 50 ms, regardless of its work."""


@dataclass(frozen=True)
class Staging:
    """A part to be rewritten at `new`. matched: number of rows to erase, by file name relative to the location; uris:
    the URIs that Spark uses for these files."""

    part: Part
    look: Look
    new: str
    format: FileFormat
    matched: Mapping[str, int]
    uris: Mapping[str, str]

    @property
    def for_spark(self) -> Staging:
        """Returns the same staging, to be written by Spark as one partition."""
        return replace(self, format=msgspec.structs.replace(self.format, kind="spark"))

    @property
    def rows_matched(self) -> int:
        return sum(self.matched.values())


@dataclass
class Staged:
    """A part that was written. error: why it may not be swapped; final: a retry would not help; by_spark: Spark might
    be able to write it; checksums: of the old contents of rewritten files."""

    staging: Staging
    rows: int = 0
    erased: int = 0
    bytes: int = 0
    bytes_after: int = 0
    files: int = 0
    files_before: int = 0
    rewritten: int = 0
    checksums: dict[str, str] = field(default_factory=dict)
    error: str = ""
    final: bool = False
    by_spark: bool = False

    @property
    def figures(self) -> Figures:
        return Figures(self.files, self.rows - self.erased, self.bytes_after)


def works_of(staging: Staging) -> Iterator[FileWork]:
    """Yields the work for each file. Omits non-empty files other than data: whose rows they describe is unknown."""
    for state in staging.look.files:
        data = is_data(state.path_relative)
        if not data and state.size:
            continue
        yield FileWork(
            staging.part.name,
            state.path_relative,
            join(staging.part.location, state.path_relative),
            join(staging.new, state.path_relative),
            staging.uris.get(state.path_relative, ""),
            state.size,
            staging.matched.get(state.path_relative, 0),
            data,
        )


def bundles(stagings: Iterable[Staging], found: str) -> Iterator[FilesTask]:
    """Yields tasks, each with files of one format."""
    by_format: dict[FileFormat, list[FileWork]] = {}
    sizes: dict[FileFormat, int] = {}
    for staging in stagings:
        for work in works_of(staging):
            waiting = by_format.setdefault(staging.format, [])
            waiting.append(work)
            sizes[staging.format] = sizes.get(staging.format, 0) + (work.size if work.matched else 0)
            if len(waiting) >= BUNDLE_FILES or sizes[staging.format] >= BUNDLE_BYTES:
                yield FilesTask(staging.format, found, by_format.pop(staging.format))
                sizes[staging.format] = 0
    for format_, waiting in by_format.items():
        if waiting:
            yield FilesTask(format_, found, waiting)


def stage(stagings: Sequence[Staging], found: str, engines: AutoEngine, advance: Advance) -> list[Staged]:
    """Writes all stagings; the results are durable when it returns. advance: is notified of rewritten files. Raises
    Error if a new location is not empty: each attempt uses new locations."""
    for staging in stagings:
        if look_at(staging.new).files:
            raise Error(f"{staging.new}: is there already", hint="run the same command again: it takes another")
        located(staging.new).mkdirs()
    staged = {staging.part.name: Staged(staging) for staging in stagings}
    size = sum(state.size for staging in stagings for state in staging.look.files)
    engine = engines.for_work(sum(len(staging.look.files) for staging in stagings), size)
    for outcomes in engine.run(run_files_task, bundles(stagings, found)):
        for outcome in outcomes:
            _count(staged[outcome.partition], outcome)
        written = [outcome.size for outcome in outcomes if outcome.checksum]
        advance(0, files=len(written), size=sum(written))
    for staging in stagings:
        sweep_staging(staging.new)
    for above in {staging.new for staging in stagings if is_local(staging.new)}:
        located(above).sync()
        break  # one call for the entire filesystem
    for each in staged.values():
        _judge(each)
    return list(staged.values())


def _count(staged: Staged, done: FileDone) -> None:
    staged.error = staged.error or done.error
    staged.final = staged.final or done.final
    staged.by_spark = staged.by_spark or done.by_spark
    staged.rows += done.rows
    staged.erased += done.matched
    staged.bytes += done.size
    staged.bytes_after += done.size_after
    staged.files += 1
    staged.files_before += 1
    if done.checksum:
        staged.rewritten += 1
        staged.checksums[done.name] = done.checksum


def _judge(staged: Staged) -> None:
    """Checks the sums again, over the entire part."""
    if staged.error:
        return
    if staged.erased != staged.staging.rows_matched:
        staged.error = f"{staged.erased:,} rows were left out, and Spark found {staged.staging.rows_matched:,}"
    elif set(staged.checksums) != set(staged.staging.matched):
        missing = sorted(set(staged.staging.matched) - set(staged.checksums))
        staged.error = f"a file in which Spark found rows is not there any more: {missing[0]}"
