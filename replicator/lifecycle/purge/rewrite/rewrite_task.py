"""The tasks that process one file of a purged partition: rewriting without some rows, and replacement (`replacing`).

A file without a matching row is hard-linked, or else copied: its name, bytes and time are retained. A rewritten file
retains its name, and so its bucket number, and the order of its rows. Both are counted and checked against Spark's
search: if a reader disagrees with Spark about a row, the file fails, and nothing is swapped.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import Error
from cmroot.store.blocks import Unsupported
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState, file_state
from cmroot.store.local import staging_name
from cmroot.store.place import Place, give_rights, is_local, join, local_path, located, name_of, parent, remote_store
from cmroot.store.spelling import naming, scheme
from replicator.lifecycle.purge.rewrite.avro import count_avro, rewrite_avro
from replicator.lifecycle.purge.rewrite.columnar import count_orc, count_parquet, rewrite_orc, rewrite_parquet
from replicator.lifecycle.purge.rewrite.formats import FileFormat, OnlyBySpark
from replicator.lifecycle.purge.rewrite.line_files import count_lines, rewrite_lines
from replicator.lifecycle.purge.rewrite.sequence import count_sequence, rewrite_sequence


class FileWork(msgspec.Struct, frozen=True):
    """A file to write from `source` to `target`. matched: rows that Spark found in it, 0: hard-link unchanged, or count
    its rows only, if both are the same path. uri: the
    URI that Spark uses for it. data: False for marks such as `_SUCCESS`, which have no rows."""

    partition: str
    name: str
    source: str
    target: str
    uri: str
    size: int
    matched: int
    data: bool = True


class FilesTask(msgspec.Struct, frozen=True):
    """Files of one format; `found`: where Spark wrote which ids it found in which file."""

    format: FileFormat
    found: str
    works: Sequence[FileWork]


class FileDone(msgspec.Struct, frozen=True):
    """The result for one file. checksum, checksum_after: of a rewritten file, and of the new one; empty for a file that
    is as it was; error: why it failed; final: retries cannot succeed; by_spark: Spark may be able to rewrite the entire
    partition; lacking: rights of the source that the new file does not have."""

    partition: str
    name: str
    size: int
    size_after: int = 0
    rows: int = 0
    matched: int = 0
    checksum: str = ""
    checksum_after: str = ""
    error: str = ""
    final: bool = False
    by_spark: bool = False
    lacking: str = ""


def run_files_task(task: FilesTask) -> list[FileDone]:
    """Processes the files of a task. May run twice: an existing target is written again."""
    found = []
    for work in task.works:
        try:
            found.append(_rewrite(task, work) if work.matched else _carry(task.format, work))
        except (Unsupported, Error, OSError, pa.ArrowException) as error:
            said = f"{work.name}: {_first_line(error)}"
            final, by_spark = isinstance(error, Unsupported), isinstance(error, OnlyBySpark)
            found.append(FileDone(work.partition, work.name, work.size, error=said, final=final, by_spark=by_spark))
    return found


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def _carry(format_: FileFormat, work: FileWork) -> FileDone:
    lacking = carry(work) if work.target != work.source else ""
    rows = _count(format_, work.target) if work.data and work.size else 0  # of an empty file readers read nothing
    return FileDone(work.partition, work.name, work.size, work.size, rows, lacking=lacking)


def carry(work: FileWork) -> str:
    """Hard-links a file, or copies it with its rights if links are unsupported. Returns rights that the copy lacks. May
    run twice."""
    if is_local(work.source):
        source, target = local_path(work.source), local_path(work.target)
        with naming(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                _link(source, target)
                return ""
            except OSError:  # links are unsupported, or there are too many
                pass
    if scheme(work.source) == scheme(work.target) == "s3" and Place(work.source).same_store(Place(work.target)):
        return ", ".join(remote_store(work.source).copy_like(work.source, work.target, work.source))
    _copy(work)
    return give_rights(work.source, work.target)


def _link(source: str, target: str) -> None:
    """Links a file. An existing name is never missing, as another attempt may have finished already."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(os.lstat(source), os.lstat(target)):
            return
        staged = staging_name(target)
        os.link(source, staged, follow_symlinks=False)
        os.rename(staged, target)
        with contextlib.suppress(FileNotFoundError):  # renaming onto a link to the same file leaves both names
            os.unlink(staged)


def _copy(work: FileWork) -> None:
    with located(work.source).open_read() as source, _writing(work.target) as target:
        while chunk := source.read(1 << 22):
            target.write(chunk)


def _rewrite(task: FilesTask, work: FileWork) -> FileDone:
    keys, expected = read_keys(task.found, work.uri)
    target, format_ = _writing(work.target), task.format
    padded = format_.type.startswith("char")
    with located(work.source).open_read() as source:
        match task.format.kind:
            case "parquet":
                rows, left_out = rewrite_parquet(source, target, format_.field, keys, padded, format_.former)
            case "orc":
                rows, left_out = rewrite_orc(source, target, format_.field, keys, padded, format_.former)
            case "avro":
                rows, left_out = rewrite_avro(source, target, task.format, keys)
            case "sequence":
                rows, left_out = rewrite_sequence(source, target, task.format, keys)
            case _:
                rows, left_out = rewrite_lines(work.name, source, target, task.format, keys)
    dropped = left_out.total()
    if dropped != work.matched:
        raise Unsupported(f"Spark found {work.matched:,} rows to erase, but the file has {dropped:,}")
    if wrong := sum(left_out[at] != rows_of for at, rows_of in enumerate(expected)):
        raise Unsupported(f"for {wrong:,} ids, Spark found other numbers of rows than are in the file")
    after = _count(task.format, work.target)
    if after != rows - dropped:
        raise Unsupported(f"{rows:,} rows less {dropped:,} do not equal the {after:,} rows that were written")
    lacking = give_rights(work.source, work.target)
    checksum = checksum_at(work.source)[0]
    checksum_after, size_after = checksum_at(work.target)[0], located(work.target).size()
    return FileDone(
        work.partition, work.name, work.size, size_after, rows, dropped, checksum, checksum_after, lacking=lacking
    )


def _writing(place: str) -> AbstractContextManager[BinaryIO]:
    """Opens a file in a directory that nothing refers to yet; the caller's sync makes it durable. Writes to a uniquely
    named staging file, because another attempt of the task may write the same file."""
    return located(place).open_write(durable=False)


def sweep_staging(place: str) -> None:
    """Removes staging files of killed or abandoned attempts below a directory; attempts that are still running can no
    longer publish. May run twice."""
    located(place).sweep(deep=True)


def _count(format_: FileFormat, place: str) -> int:
    with located(place).open_read() as file:
        match format_.kind:
            case "parquet":
                return count_parquet(file)
            case "orc":
                return count_orc(file)
            case "avro":
                return count_avro(file)
            case "sequence":
                return count_sequence(file)
        return count_lines(place, file, format_)


def read_keys(found: str, uri: str) -> tuple[pa.Array, list[int]]:
    """Returns the ids that Spark found in a file, and the number of rows with each; the result files are sorted by file
    name, so few row groups are read."""
    tables = []
    for name in Place(found).list():
        if not name.endswith(".parquet"):
            continue
        with (Place(found) / name).open_read() as file:
            tables.append(_keys_of(pq.ParquetFile(file), uri))
    table = pa.concat_tables(tables)
    keys = table["key"].combine_chunks()
    return keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys, table["rows"].to_pylist()


def _keys_of(file: pq.ParquetFile, uri: str) -> pa.Table:
    import pyarrow.compute as pc

    index = file.schema_arrow.get_field_index("file")
    groups = [number for number in range(file.num_row_groups) if _may_have(file.metadata.row_group(number), index, uri)]
    table = file.read_row_groups(groups, columns=["file", "key", "rows"])
    return table.filter(pc.equal(table["file"], uri)).select(["key", "rows"])


def _may_have(group: Any, index: int, value: str) -> bool:
    statistics = group.column(index).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= value <= statistics.max)


# ---- replacement -----------------------------------------------------------------------------------------------------


CHANGED = "was changed concurrently"


class ReplaceWork(msgspec.Struct, frozen=True):
    """A file to replace. current: its path, new: of the new file, aside: of the backup. state: as it was read."""

    partition: str
    name: str
    current: str
    new: str
    aside: str
    state: FileState


class ReplaceTask(msgspec.Struct, frozen=True):
    """Files of one step."""

    step: Literal["aside", "replace"]
    works: Sequence[ReplaceWork]


class Replaced(msgspec.Struct, frozen=True):
    """The result for one file. error: why it is as it was; lacking: rights of the old file that a copy lacks."""

    partition: str
    name: str
    error: str = ""
    lacking: str = ""


def run_replace_task(task: ReplaceTask) -> list[Replaced]:
    """Executes one step for its files. May run twice, also after a kill."""
    act = _set_aside if task.step == "aside" else _replace
    return [act(work) for work in task.works]


def _set_aside(work: ReplaceWork) -> Replaced:
    if not _is_as_read(work):
        return Replaced(work.partition, work.name, "" if is_replaced(work) else CHANGED)
    lacking = carry(FileWork(work.partition, work.name, work.current, work.aside, "", work.state.size, 0))
    return Replaced(work.partition, work.name, lacking=lacking)


def _replace(work: ReplaceWork) -> Replaced:
    if not _is_as_read(work):
        return Replaced(work.partition, work.name, "" if is_replaced(work) else CHANGED)
    if is_local(work.current):  # Hadoop's checksums of the old bytes: its clients would refuse the new ones
        sidecar = _sidecar(work.current)
        if located(sidecar).exists():
            located(sidecar).move(located(_sidecar(work.aside)))
    if scheme(work.current) == "s3":  # an object gets its attributes only when it is written
        lacking = remote_store(work.current).copy_like(work.new, work.current, work.current)
        located(work.new).remove_own()
        return Replaced(work.partition, work.name, lacking=", ".join(lacking))
    try:
        located(work.new).move(located(work.current))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _replace_across(work)
    return Replaced(work.partition, work.name)


def _sidecar(path: str) -> str:
    return join(parent(path), f".{name_of(path)}.crc")


def _replace_across(work: ReplaceWork) -> None:
    """Replaces a file on another device than the new one, for example of a location that is a mount point."""
    with located(work.new).open_read() as source, located(work.current).open_write() as target:
        while chunk := source.read(1 << 22):
            target.write(chunk)
    give_rights(work.new, work.current)
    located(work.new).remove()


def _is_as_read(work: ReplaceWork) -> bool:
    now, was = state_now(work.current), work.state
    if now is None or (now.size, now.identity) != (was.size, was.identity):
        return False
    return now.mtime_ns == was.mtime_ns or not is_local(work.current)  # stores list other fractions than they return


def state_now(path: str) -> FileState | None:
    """Returns the state of a file; None if it does not exist."""
    try:
        return file_state(path)
    except FileNotFoundError:
        return None


def is_replaced(work: ReplaceWork) -> bool:
    """Returns True if a killed attempt has replaced the file; removes its source, which object stores copy first."""
    new, current = located(work.new), located(work.current)
    if _is_as_read(work) or not current.exists() or not located(work.aside).exists():
        return False
    if not new.exists():
        return True
    if checksum_at(work.new) != checksum_at(work.current):
        return False
    new.remove()
    return True
