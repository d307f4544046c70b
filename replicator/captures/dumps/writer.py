"""DumpWriter: writes records, touched tables and file entries to a dump directory, with constant memory.

File entries are distributed over buckets by the file they describe: all entries of one file of one table are in one
bucket, so that a loading task requires one bucket only. A small dump has a single bucket.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType

import msgspec
import pyarrow as pa
import xxhash

from cmroot.lease import Lease, acquire
from cmroot.log.captured import DICTIONARY
from cmroot.log.captured import FILES as SCHEMA
from cmroot.log.part_writing import LinesWriter, ParquetWriter, PartsWriter, close_together
from cmroot.log.segment import Marker, PartsReader, conform
from cmroot.store.place import Place, as_written
from replicator.captures.dumps import layout
from replicator.captures.dumps.data import EXPIRED, Found, Group, created_of, find_dumps, group_of, needs_of
from replicator.captures.dumps.layout import FINISHED, SIGNATURE, DumpReader, Keys, sign
from replicator.core.model import Table
from replicator.errors import UsageError
from replicator.metastore.events.record import ChangeRecord, encode

SMALL = 25_000  # maximum number of entries in one bucket before a dump is split: a task folds all of one, 1.3 KB each
BUCKETS = 64
FLUSH = 1024  # entries that are gathered before they are distributed, and in a bucket before they are written
ROW_GROUP = 4096  # rows of a bucket: all buckets fill their row groups in memory at the same time
RECORDS_BYTES = 256 << 20  # size of the lines in one part of `_metadata`
Names = tuple[str, ...]


class DumpWriter:
    """A writer of one dump. The dump does not exist before `finish` returns; one left by a crash is written again."""

    def __init__(self, place: str, id: str | None = None, *, with_data: bool = False) -> None:
        """`id`: the dump's id, if its content determines one. `with_data`: bytes that an unfinished dump has written
        there are kept. Raises UsageError if the location contains a finished dump, or something that is not a dump."""
        at = as_written(place)
        self.place = str(at)
        self.id = id or uuid.uuid4().hex
        self._lease = make_room(at, with_data=with_data)
        self._parts = PartsWriter(self.place)
        self._records: LinesWriter | None = None
        self._record_parts, self._record_bytes = 0, 0
        self._tables: LinesWriter | None = None
        self._contents: LinesWriter | None = None
        self._content_parts, self._content_bytes = 0, 0
        self._pieces: list[pa.Table] = []
        self._pieces_rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._buckets: list[_Bucket] = []
        self._first_names: dict[Names, list[tuple[int, Names]]] = {}  # name -> (position of the rename, first name)
        self.records = self.files = self.removed = self.bytes = self.observed = self.unkept = 0

    def record(self, record: ChangeRecord) -> None:
        if record.change.rename:
            table, position = self._first_name(record.change.rename[0][:2], record.position), record.position
            old, new = (each if len(each) == 2 else (*table, each[2]) for each in record.change.rename)
            self._first_names.setdefault(new, []).append((position, self._first_name(old, position)))
        if self._records is None or self._record_bytes >= RECORDS_BYTES:
            if self._records is not None:
                self._records.close()
            self._records = self._parts.lines(layout.RECORDS.format(self._record_parts))
            self._record_parts, self._record_bytes = self._record_parts + 1, 0
        line = encode(record)
        self._records.write(line)
        self._record_bytes += len(line)
        self.records += 1
        self.observed += record.observed

    def table(self, table: Table) -> None:
        """Writes a touched table as it is at the end of the range."""
        if self._tables is None:
            self._tables = self._parts.lines(layout.TABLES)
        self._tables.write(msgspec.json.encode(table))

    def entries(self, rows: pa.Table) -> None:
        """Writes file entries (cmroot.log.segment.FILES). A rename's record must precede its entries."""
        if not rows.num_rows:
            return
        rows = conform(rows, SCHEMA)
        added = rows["op"].to_pylist().count("add")
        self.files += added
        self.removed += rows.num_rows - added
        lost = pa.compute.invert(pa.compute.fill_null(rows["kept"], False))
        self.unkept += pa.compute.sum(pa.compute.and_(pa.compute.equal(rows["op"], "add"), lost)).as_py() or 0
        self.bytes += sum(size or 0 for size in rows["size"].to_pylist())
        self._pieces.append(rows)
        self._pieces_rows += rows.num_rows
        if self._pieces_rows >= FLUSH:
            self._gather()

    def _gather(self) -> None:
        """Combines the entries gathered so far, and distributes them: a piece of few rows costs some KB, and a dump may
        have one for each table."""
        if not self._pieces:
            return
        rows = pa.concat_tables(self._pieces).combine_chunks()
        self._pieces, self._pieces_rows = [], 0
        if self._buckets:
            self._distribute(rows)
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows > SMALL:
            self._open(BUCKETS)

    def _open(self, count: int) -> None:
        self._buckets = [
            _Bucket(self._parts.parquet(layout.FILES.format(number), SCHEMA, DICTIONARY, ROW_GROUP))
            for number in range(count)
        ]
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._distribute(rows)

    def _distribute(self, rows: pa.Table) -> None:
        count = len(self._buckets)
        if count == 1:
            self._buckets[0].add(rows)
            return
        columns = (rows[name].to_pylist() for name in ("position", "db", "table", "partition", "path"))
        numbers = pa.array(
            [
                xxhash.xxh3_64_intdigest("/".join(self._file(*row)).encode()) % count
                for row in zip(*columns, strict=True)
            ],
            pa.int32(),
        )
        order = pa.compute.sort_indices(numbers)
        rows, numbers = rows.take(order), numbers.take(order)
        counts = pa.compute.value_counts(numbers)
        start = 0
        for number, length in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
            self._buckets[number].add(rows.slice(start, length))
            start += length

    def _file(self, position: int, db: str, table: str, partition: str, path: str) -> Names:
        """Returns the key of an entry's file, with the names that its table and partition had at the beginning."""
        first = self._first_name((db, table), position)
        return *self._first_name((*first, partition), position), path

    def _first_name(self, name: Names, position: int) -> Names:
        """Returns the first name of a table, or of a partition of a table by its first name. position: where it has
        this name, which others may have had before."""
        renames = (first for at, first in reversed(self._first_names.get(name, ())) if at <= position)
        return next(renames, name)

    def written(self, metadata: layout.DumpMetadata) -> DumpReader:
        """Closes the parts of records and file entries, and returns a reader of them."""
        self._close()
        marker = Marker(layout.FORMAT, layout.VERSION, list(self._parts.parts), {})
        return DumpReader.unfinished(PartsReader(self.place, layout.METADATA, marker=marker), metadata)

    def content(self, content: layout.Content) -> None:
        """Writes a content of a dump with data."""
        if self._contents is None or self._content_bytes >= RECORDS_BYTES:
            if self._contents is not None:
                self._contents.close()
            self._contents = self._parts.lines(layout.CONTENTS.format(self._content_parts))
            self._content_parts, self._content_bytes = self._content_parts + 1, 0
        line = msgspec.json.encode(content)
        self._contents.write(line)
        self._content_bytes += len(line)

    def _close(self) -> None:
        self._gather()
        if not self._buckets:
            self._open(1)
        others = (part for part in (self._records, self._tables, self._contents) if part is not None)
        close_together([*(bucket.flushed() for bucket in self._buckets), *others])

    def finish(
        self,
        metadata: layout.DumpMetadata,
        keys: Keys | None = None,
        *,
        before_publishing: Callable[[], None] = lambda: None,
    ) -> None:
        """Closes the parts, writes `_dumpmetadata`, with `keys` the signature, and last the marker, unless
        `before_publishing` raises."""
        self._close()
        self._parts.finish(layout.METADATA, msgspec.to_builtins(metadata), format=layout.FORMAT, version=layout.VERSION)
        if keys is not None:
            sign(self.place, metadata.id, (part.name for part in self._parts.parts), layout.METADATA, keys)
        checksum = xxhash.xxh3_128_hexdigest((Place(self.place) / layout.METADATA).read_bytes())
        finished = layout.Finished(layout.FORMAT, layout.VERSION, metadata.id, checksum)
        before_publishing()
        if self._lease is not None:
            self._lease.check()
        # The marker is written after everything else is durable: from here on the dump exists.
        (Place(self.place) / layout.FINISHED).write_bytes(msgspec.json.encode(finished) + b"\n")
        self._leave()

    def _leave(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            leave(Place(self.place), lease)

    @property
    def buckets(self) -> int:
        self._gather()
        return len(self._buckets) or 1

    def abort(self) -> None:
        """Removes the written files, so that the next dump can use the location; copied bytes remain for it."""
        for bucket in self._buckets:
            bucket.abort()
        for part in (self._records, self._tables, self._contents):
            if part is not None:
                part.abort()
        _remove_unfinished(Place(self.place))
        self._leave()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()


class _Bucket:
    """A buffered Parquet writer of one bucket."""

    def __init__(self, writer: ParquetWriter) -> None:
        self._writer = writer
        self._pieces: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        self._pieces.append(rows)
        self._rows += rows.num_rows
        if self._rows >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            self._writer.write(pa.concat_tables(self._pieces).combine_chunks())
            self._pieces, self._rows = [], 0

    def flushed(self) -> ParquetWriter:
        self._flush()
        return self._writer

    def abort(self) -> None:
        self._writer.abort()


_OURS = ("_metadata", "_files", layout.DATA, layout.METADATA, SIGNATURE)


def make_room(place: Place, *, with_data: bool) -> Lease | None:
    """Removes what an unfinished dump has left in a directory, which is created. with_data: except its bytes, and the
    directory is leased: copying takes long, and no other writer may come in between. Raises UsageError for a finished
    dump, and for a directory with anything else; LeaseHeld while another writer of a dump with data has it."""
    names = place.list()
    _refuse_occupied(place, names)
    place.mkdirs(private=True)
    data = place / layout.DATA
    lease = acquire(str(data), "dump") if with_data or layout.DATA in names else None
    try:
        _refuse_occupied(place, place.list())  # the holder before may have finished
        _remove_unfinished(place)
    except BaseException:
        if lease is not None:
            lease.release()
        raise
    if lease is not None and not with_data:
        leave(place, lease)
        data.remove_own_tree()
        lease = None
    return lease


def _refuse_occupied(place: Place, names: Sequence[str]) -> None:
    if layout.FINISHED in names:
        raise UsageError(f"{place}: contains a finished dump", hint="choose another directory for --out")
    if any(name not in _OURS for name in names):
        raise UsageError(f"{place}: not empty, and not a dump", hint="choose an empty or new directory for --out")


def leave(place: Place, lease: Lease) -> None:
    """Releases the lease of a directory, and removes its file."""
    lease.release()
    name = place / layout.DATA / "lease"
    if place.local:
        name.remove_own()
    else:
        name.remove_own_tree()


def _remove_unfinished(place: Place) -> None:
    place.sweep()
    for name in ("_metadata", "_files"):
        (place / name).remove_own_tree()
    (place / layout.METADATA).remove_own()
    (place / SIGNATURE).remove_own()


# ---- chains ----------------------------------------------------------------------------------------------------------
# The next dump of a directory of dumps with data: an increment of the newest one, or from time to time a complete one.
#
# The directory is leased while its next dump is decided and written, so two runs do not continue one dump twice. The
# name of a directory has a digest of the source and scope: a killed dump is completed by the next run that wants the
# same, and a directory may have the chains of several policies.


CHAINS = "_chains"  # in the directory: its lease
STAMP = "%Y%m%dT%H%M%SZ"
SLACK = timedelta(hours=1)  # runs of one schedule do not take equally long


@dataclass(frozen=True)
class NextDump:
    """The next dump of a directory. place: its own directory, new or of a killed run. since: the dump that it
    continues; "": it is complete. warning: why it does not continue a chain that is young enough; "" otherwise."""

    place: str
    since: str = ""
    warning: str = ""


@dataclass(frozen=True)
class ChainWanted:
    """The chain to continue. every: the age of a chain at which the next one begins. signed: only a signed dump is
    continued."""

    group: Group
    every: timedelta
    signed: bool = False


@contextmanager
def continued(place: str, wanted: ChainWanted, now: float) -> Iterator[NextDump]:
    """Decides the next dump of a directory, which is made if it does not exist, and keeps its lease for the length of
    the block, in which the dump is written. now: in seconds. May be killed and run again.

    Raises LeaseHeld while another run writes into the directory, FormatError as `find_dumps`."""
    at = as_written(place)
    at.mkdirs(private=True)
    with acquire(str(at / CHAINS), "dump"):
        yield decided(place, wanted, now)


def decided(place: str, wanted: ChainWanted, now: float) -> NextDump:
    """Returns the next dump of a directory. Changes nothing. Raises FormatError as `find_dumps`."""
    at, moment = as_written(place), datetime.fromtimestamp(now, UTC)
    found, _ = find_dumps(at)
    newest, warning = to_continue(found, wanted, moment)
    if newest and wanted.signed and not (at / newest / SIGNATURE).exists():
        newest, warning = "", f"a new chain begins: {newest} is not signed"
    return NextDump(str(at / _name(at, wanted.group, moment)), str(at / newest) if newest else "", warning)


def to_continue(found: Found, wanted: ChainWanted, now: datetime) -> tuple[str, str]:
    """Returns the name of the dump that the next one continues ("": none), and the reason for a chain that ends before
    its time."""
    mine = [name for name, each in found.items() if each.data is not None and group_of(each) == wanted.group]
    if not mine:
        return "", ""
    newest = max(mine, key=lambda name: (found[name].end.position, found[name].begin is None, found[name].created))
    needs, broken = needs_of(found)[newest]
    if broken:
        return "", f"a new chain begins: dumps that {newest} needs are missing"
    began = max(created_of(found[name]) for name in (*needs, newest) if found[name].begin is None)
    due = now - began >= wanted.every - min(SLACK, wanted.every / 10)
    return ("" if due else newest), ""


def _name(place: Place, group: Group, now: datetime) -> str:
    """Returns the name of the directory that a killed run with the same source and scope has left, or a new one."""
    digest = f"{xxhash.xxh3_64_intdigest(repr(group).encode()) & 0xFFFFFFFF:08x}"
    ours, names = re.compile(rf"\d{{8}}T\d{{6}}Z(-\d+)?-{digest}"), place.list()
    for name in sorted(filter(ours.fullmatch, names), reverse=True):
        if not (place / name / FINISHED).exists() and not (place / name / EXPIRED).exists():
            return name
    stamp, number = now.strftime(STAMP), 1
    while (name := f"{stamp}{f'-{number}' if number > 1 else ''}-{digest}") in names:
        number += 1
    return name
