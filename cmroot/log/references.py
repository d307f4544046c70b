"""References to contents: the file entries of the captured log, read as references with a beginning and an end.

Every entry of op `add` with a checksum begins a reference, every `release` ends one (docs/decisions/0005). They are
read on an engine and grouped by the first two digits of their checksum; `retention` decides on them, and listings show
them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError, Superseded
from cmroot.log.captured import ADD, FILES, RELEASE, segments
from cmroot.log.segment import Segment, conform, reading
from cmroot.names import check_entries
from cmroot.store.place import Place
from cmroot.store.retained_entries import estimate, prefixes

# ---- intercepted -----------------------------------------------------------------------------------------------------
# Files that were moved into the root before an event was written, by a caller that deletes before the event exists.
#
# `taken/<event>-<unique>.parquet` contains their file entries (cmroot.log.segment.FILES, positions null) until a
# capture has read the event and recorded them. `taking/<id>/journal.json` marks an intercept in progress whose outcome
# is unknown; its key `before_event` is the newest event from before it. Nothing here intercepts or files bytes.


_NAME = re.compile(r"(\d{20})-[0-9a-f]{32}\.parquet")
JOURNAL = "journal.json"


@dataclass(frozen=True)
class Intercepted:
    """Files intercepted before an event: the event id, and the file that holds the entries."""

    event: int
    place: str

    def rows(self) -> pa.Table:
        """Returns the entries. Raises FormatError when the file is damaged."""
        try:
            with Place(self.place).open_read() as file:
                rows = conform(pq.read_table(file), FILES)
                check_entries(rows, self.place, pending=True)
                return rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(
                f"{self.place}: {error}", hint="remove it: the bytes are still kept, but in no record"
            ) from error


def write_intercepted(root: str, event: int, rows: pa.Table, unique: str | None = None) -> Intercepted:
    """Writes entries for the capture that reads an event; durable when it returns. The bytes must be retained before.

    `unique`: 32 hex digits chosen by the caller; writing again with the same digits replaces the earlier entries."""
    place = Place(root) / "taken" / f"{event:020d}-{unique or uuid.uuid4().hex}.parquet"
    with place.open_write() as file:
        pq.write_table(conform(rows, FILES), file, compression="zstd")
    return Intercepted(event, str(place))


def read_intercepted(root: str, until: int) -> list[Intercepted]:
    """Returns all intercepted files of events up to and including `until`, in the order of events."""
    directory = Place(root) / "taken"
    found = [(int(match[1]), name) for name in directory.list() if (match := _NAME.fullmatch(name))]
    return [Intercepted(event, str(directory / name)) for event, name in found if event <= until]


def remove_intercepted(taken: Intercepted) -> None:
    """Removes the entries; call after the segment that records them was published. May run twice."""
    Place(taken.place).remove_own()


class _Source(msgspec.Struct, frozen=True):
    table: str


class _Journal(msgspec.Struct, frozen=True):
    before_event: int
    db: str = ""
    sources: tuple[_Source, ...] = ()


def undecided_since(root: str) -> int | None:
    """Returns the newest event from before the oldest intercept in progress; None when there is none. Later events may
    be about files whose entries are not written yet."""
    return min((journal.before_event for journal in _journals(root)), default=None)


def under_way(root: str) -> set[tuple[str, str]]:
    """Returns (database, table) of the intercepts in progress: their directories may be hidden, and may come back."""
    return {(journal.db, source.table) for journal in _journals(root) for source in journal.sources}


def _journals(root: str) -> Iterator[_Journal]:
    intercept = Place(root) / "taking"
    for name in intercept.list():
        journal = intercept / name / JOURNAL
        try:
            yield msgspec.json.decode(journal.read_bytes(), type=_Journal)
        except FileNotFoundError:
            continue  # decided concurrently
        except UNREADABLE as error:
            raise FormatError(
                f"{journal}: {error}", hint="start the gateway on this root once: it repairs this"
            ) from error


# ---- references ------------------------------------------------------------------------------------------------------


KEY = "prefix"

REFERENCES = pa.schema(
    [
        (KEY, pa.string()),  # first two digits of the checksum
        ("checksum", pa.string()),  # null: the row exists only so that its prefix does
        ("size", pa.int64()),
        ("adds", pa.int64()),  # how many references the row begins
        ("releases", pa.int64()),  # how many it ends
        ("since", pa.int64()),  # where the earliest of them began
        ("end", pa.int64()),  # where they ended; null for adds
    ]
)
"""Equal references are counted, not repeated."""

GROUPS_OF_ROWS = 16
"""The number of row groups (of 65,536 entries) that one task reads."""

Source = TypeVar("Source")


class Grouping(Protocol):
    """Requirements of an engine: groups rows by a key, and applies a decision to each group; see docs/design.md."""

    def group(
        self,
        read: Callable[[Source], Iterator[pa.RecordBatch]],
        sources: Iterable[Source],
        key: str,
        decide: Callable[[pa.Table], pa.Table],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]: ...


# Reading


@dataclass(frozen=True)
class FileRows:
    """A range of a Parquet file of file entries: row groups `first` to `last`, excluding `last`. `pending`: rows of an
    intercept that no capture has recorded yet; each is a reference without an end, whatever its op."""

    place: str
    first: int
    last: int
    pending: bool = False


@dataclass(frozen=True)
class Listable:
    """One row for each prefix that has a directory, so that it has a group even without any references."""

    prefixes: tuple[str, ...]


def sources(root: str, log: list[Segment]) -> list[FileRows | Listable]:
    """Returns everything to read for a root. Raises FormatError when the log's beginning is missing: the live files are
    then unknown, and nothing may be removed."""
    if log and log[0].first > 1:
        raise FormatError(
            f"{log[0].place}: the log begins at position {log[0].first}, so earlier references are not known",
            hint="restore the missing segments from a copy of the root; until then nothing can expire",
        )
    found: list[FileRows | Listable] = [Listable(prefixes(root))]
    for segment in log:
        segment.verify_entries()
        for place in segment.files_parts():
            groups = _row_groups(place)
            found += [
                FileRows(place, first, min(first + GROUPS_OF_ROWS, groups))
                for first in range(0, groups, GROUPS_OF_ROWS)
            ]
    found += [FileRows(taken.place, 0, _row_groups(taken.place), True) for taken in read_intercepted(root, _ALL_EVENTS)]
    return found


_ALL_EVENTS = (1 << 63) - 1


def work(root: str) -> int:
    """Returns the approximate number of rows and entries of an expiry or a listing, for choosing an engine."""
    return max(sum(segment.file_count for segment in segments(root)), estimate(root))


def read_references(source: FileRows | Listable) -> Iterator[pa.RecordBatch]:
    """Yields batches of REFERENCES. Raises Superseded when the part is missing: it was merged into another."""
    if isinstance(source, Listable):
        yield from conform(pa.table({KEY: pa.array(source.prefixes, pa.string())}), REFERENCES).to_batches()
        return
    for entries in _entries(source):
        yield from count_references(entries, pending=source.pending).to_batches()


def count_references(entries: pa.Table, *, pending: bool = False) -> pa.Table:
    """Returns REFERENCES of file entries: adds and releases of known bytes, equal ones counted."""
    known = pc.and_(pc.is_valid(entries["checksum"]), pc.is_valid(entries["size"]))
    if not pending:
        known = pc.and_(known, pc.is_in(entries["op"], pa.array([ADD, RELEASE])))
    entries = entries.filter(known)
    ended = pa.chunked_array([pa.repeat(False, entries.num_rows)]) if pending else pc.equal(entries["op"], RELEASE)
    table = pa.table(
        {
            "checksum": entries["checksum"],
            "size": entries["size"],
            "since": pc.if_else(ended, pc.fill_null(entries["since"], -1), entries["position"]),
            "end": pc.if_else(ended, entries["position"], pa.scalar(None, pa.int64())),
            "adds": pc.cast(pc.invert(ended), pa.int64()),
            "releases": pc.cast(ended, pa.int64()),
        }
    )
    releases = table.filter(ended).group_by(["checksum", "size", "since", "end"], use_threads=False)
    adds = table.filter(pc.invert(ended)).group_by(["checksum", "size"], use_threads=False)
    counted = pa.concat_tables(
        [
            _named(releases.aggregate([("adds", "sum"), ("releases", "sum")])),
            _named(adds.aggregate([("adds", "sum"), ("releases", "sum"), ("since", "min"), ("end", "max")])),
        ],
        promote_options="default",
    )
    return conform(counted.append_column(KEY, pc.utf8_slice_codeunits(counted["checksum"], 0, 2)), REFERENCES)


def _entries(source: FileRows) -> Iterator[pa.Table]:
    columns = ["position", "op", "size", "checksum", "since"]
    try:
        with Place(source.place).open_read() as file, reading(source.place):
            parquet = pq.ParquetFile(file)
            there = [name for name in columns if name in parquet.schema_arrow.names]  # older files have no `since`
            for number in range(source.first, source.last):
                rows = parquet.read_row_group(number, columns=there)
                if "since" not in there:
                    rows = rows.append_column("since", pa.nulls(rows.num_rows, pa.int64()))
                check_entries(rows, source.place, pending=source.pending)
                yield rows
    except FileNotFoundError as error:
        raise Superseded(f"{source.place}: deleted before it was read", hint="run the same command again") from error


def _row_groups(place: str) -> int:
    try:
        with Place(place).open_read() as file, reading(place):
            return int(pq.ParquetFile(file).metadata.num_row_groups)
    except FileNotFoundError as error:
        raise Superseded(f"{place}: deleted before it was read", hint="run the same command again") from error


def _named(aggregated: pa.Table) -> pa.Table:
    """Removes the suffixes that an aggregation adds to column names."""
    return aggregated.rename_columns(
        [name.removesuffix("_sum").removesuffix("_min").removesuffix("_max") for name in aggregated.column_names]
    )
