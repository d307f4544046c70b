"""Writing partitions again: which files are carried and which rewritten (pure), the work on an engine, and the sums
that must agree before anything is swapped."""

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
"""A task carries or rewrites so much: a Spark task costs 25 to 50 ms whatever it does."""


@dataclass(frozen=True)
class Staging:
    """A part that is to be written again at `new`. matched: rows to erase by the file's name below the location; uris:
    the same files as Spark calls them."""

    part: Part
    look: Look
    new: str
    format: FileFormat
    matched: Mapping[str, int]
    uris: Mapping[str, str]

    @property
    def for_spark(self) -> Staging:
        """The same, to be written by Spark as a whole."""
        return replace(self, format=msgspec.structs.replace(self.format, kind="spark"))

    @property
    def rows_matched(self) -> int:
        return sum(self.matched.values())


@dataclass
class Staged:
    """A part that was written. error: why it may not be swapped; final: that another try would not help; by_spark: but
    that Spark might; checksums: of rewritten files as they were."""

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
    """A file that is neither data nor empty is not taken along: nobody can say whose rows it tells of."""
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
    """Tasks of one format each."""
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
    """Writes all of them; what came of each is durable when it returns. advance: told of files that were rewritten.
    Raises Error when a new location is not empty: it is fresh for each attempt."""
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
        break  # one call for all of the filesystem
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
    """The sums, once more over the whole part."""
    if staged.error:
        return
    if staged.erased != staged.staging.rows_matched:
        staged.error = f"{staged.erased:,} rows were left out, and Spark found {staged.staging.rows_matched:,}"
    elif set(staged.checksums) != set(staged.staging.matched):
        missing = sorted(set(staged.staging.matched) - set(staged.checksums))
        staged.error = f"a file in which Spark found rows is not there any more: {missing[0]}"
