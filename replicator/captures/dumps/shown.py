"""Content of a dump, of a $cmroot's captured log or of one segment, opened for display. Reads only."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import MARKER, segments
from cmroot.log.segment import FILES
from cmroot.root import FORMAT, open_existing
from cmroot.store.place import as_written, name_of
from replicator.captures.dumps.layout import FINISHED, METADATA, DumpReader, Keys
from replicator.captures.dumps.table_moments import has_log, moment_of, objects_of, versions_at
from replicator.captures.manifest import read_records
from replicator.core.model import Table
from replicator.core.not_replicated import Report, table_of
from replicator.core.option import LogMoment
from replicator.errors import FormatError
from replicator.metastore.events.record import ChangeRecord
from replicator.metastore.events.scope import captured_databases


@dataclass(frozen=True)
class Shown(Report):
    """The content to display. `header`: the metadata of the dump or log; `records`, and `batches` of file entries, are
    read again on each call. `files`: True if `to_dict` includes the entries. `restores`: the records, each with the
    arguments of `replicator restore` for its state; None: not known. `objects`: those of the records, and others that
    tell the formats of tables; None: those of the records."""

    header: dict[str, Any]
    records: Callable[[], Iterator[ChangeRecord]]
    batches: Callable[[], Iterator[pa.RecordBatch]]
    files: bool = False
    restores: Callable[[], Iterator[tuple[ChangeRecord, list[str]]]] | None = None
    objects: Callable[[], Iterator[object]] | None = None

    def rows(self) -> Iterator[tuple[ChangeRecord, list[str]]]:
        """Yields the records, each with the arguments of `replicator restore` for its state; [] if it cannot be
        restored, or is not known."""
        return self.restores() if self.restores else ((record, []) for record in self.records())

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Yields the file entries one by one."""
        for batch in self.batches():
            yield from batch.to_pylist()

    def moments(self) -> Callable[[ChangeRecord], str]:
        """Returns a function that gives the state of a record's table in the terms of its format: the snapshot of an
        Iceberg table, the version of a Delta table, the write ids of a transactional one; "" for other formats, and for
        a record that does not change it. Reads the file entries if a table has a log."""
        objects = self.objects() if self.objects else objects_of(self.records())
        versions = versions_at(self.batches()) if has_log(objects) else {}
        return lambda record: moment_of(record, versions)

    def head(self) -> dict[str, Any]:
        """Returns the JSON object without its lists."""
        counts = {f"{name}_count": self.header[name] for name in ("records", "files") if name in self.header}
        rest = {key: value for key, value in self.header.items() if key not in ("records", "files")}
        return {"status": "shown", **rest, **counts}

    def lists(self) -> dict[str, Iterable[Any]]:
        """Returns the lists of the JSON object, which may not fit into memory."""
        moment = self.moments()
        lists: dict[str, Iterable[Any]] = {"records": (_object(*row, moment(row[0])) for row in self.rows())}
        return lists | ({"files": self.entries()} if self.files else {})

    def to_dict(self) -> dict[str, Any]:
        return self.head() | {name: list(items) for name, items in self.lists().items()}

    def to_arrow(self) -> Any:
        """Returns the file entries, if requested, otherwise the records, as a pyarrow.Table."""
        if self.files:
            return table_of(list(self.entries()), FILES.names)
        return table_of(list(map(_row, self.records())), COLUMNS)

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in self.head().items()
        )
        return f"<table>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Narrowing:
    """A filter of the displayed records. table: (database, table); changes of its entire database match, too. former:
    its earlier names, each with the position of the record that renamed it. since, until: inclusive."""

    table: tuple[str, str] | None = None
    since: LogMoment | None = None
    until: LogMoment | None = None
    former: tuple[tuple[tuple[str, str], int], ...] = ()

    def with_former(self, records: Iterable[ChangeRecord]) -> Narrowing:
        """Returns the filter with the earlier names of its table, newest first."""
        if self.table is None:
            return self
        renames = [(each.position, each.change.rename) for each in records if each.change.rename]
        name, found = self.table, list[tuple[tuple[str, str], int]]()
        for position, (before, after) in reversed(renames):
            if len(after) == 2 and after == name:
                name = (before[0], before[1])
                found.append((name, position))
        return replace(self, former=tuple(found))

    def _names(self, record: ChangeRecord) -> bool:
        before = (name for name, until in self.former if record.position <= until)
        return not {self.table, *before}.isdisjoint(record.change.tables)

    def concerns(self, record: ChangeRecord) -> bool:
        """Returns True if a record is about the table, or all of its database."""
        whole = self.table is not None and record.change.object == self.table[0]
        return self.table is None or whole or self._names(record)

    def has(self, record: ChangeRecord) -> bool:
        return self.concerns(record) and self.is_within(record)

    def is_within(self, record: ChangeRecord) -> bool:
        """Returns True if a record is within the requested time."""
        at = (record.position, record.event, record.time)
        late = self.since is None or self.since.not_after(*at)
        return late and (self.until is None or self.until.not_before(*at))


def narrowed(shown: Shown, narrowing: Narrowing) -> Shown:
    """Returns only the records that match, and their files. The header counts all of them."""

    def records() -> Iterator[ChangeRecord]:
        return filter(narrowing.with_former(shown.records()).has, shown.records())

    def batches() -> Iterator[pa.RecordBatch]:
        positions = pa.array(sorted({record.position for record in records()}), pa.int64())
        return (each.filter(pc.is_in(each["position"], positions)) for each in shown.batches())

    def objects() -> Iterator[object]:
        whole = narrowing.with_former(shown.records())
        names = {whole.table, *(name for name, _ in whole.former)}
        found = shown.objects() if shown.objects else objects_of(shown.records())
        return (each for each in found if None in names or (isinstance(each, Table) and (each.db, each.name) in names))

    return replace(shown, records=records, batches=batches, objects=objects)


def _object(record: ChangeRecord, restore: list[str], moment: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found | ({"moment": moment} if moment else {}) | ({"restore": restore} if restore else {})


COLUMNS = ("position", "event", "time", "observed", "kind", "object", "change")
"""The columns of records as a table; `change` is JSON text."""


def _row(record: ChangeRecord) -> dict[str, Any]:
    change = record.change
    kind, text = change.__struct_config__.tag, msgspec.json.encode(change).decode()
    values = (record.position, record.event, record.time, record.observed, kind, change.object, text)
    return dict(zip(COLUMNS, values, strict=True))


def open_shown(place: str, keys: Callable[[], Keys | None] = lambda: None, *, files: bool = False) -> Shown:
    """Opens a dump or a captured log. keys: called for a dump; one of them must have signed it. Raises FormatError for
    anything that is neither a dump nor a captured log, Refused for a dump not signed with these keys."""
    at = as_written(place)
    if (at / FINISHED).exists() or (at / METADATA).exists():
        return _open_dump(str(at), keys(), files)
    if (at / MARKER).exists():
        return _open_log(str(at.parent.parent), files, only=at.name)
    root = at.parent if at.name == "log" and (at.parent / FORMAT).exists() else at
    if (root / FORMAT).exists():
        return _open_log(str(root), files)
    raise FormatError(
        f"{at}: neither a dump, nor a $cmroot, nor a segment of its log",
        hint="check the path" if at.list() else "it is empty or does not exist",
    )


def _open_dump(place: str, keys: Keys | None, files: bool) -> Shown:
    reader = DumpReader(place, keys)
    if keys is not None:
        reader.verify()

    header = {"what": "dump", "place": place, **msgspec.to_builtins(reader.metadata)}

    def objects() -> Iterator[object]:
        yield from reader.tables()  # also those of which only files have changed
        yield from objects_of(reader.records())

    return Shown(header, reader.records, reader.entries, files, objects=objects)


def _open_log(root: str, files: bool, only: str | None = None) -> Shown:
    opened = open_existing(root)
    log = [each for each in segments(opened.place) if only in (None, name_of(each.place))]

    def records() -> Iterator[ChangeRecord]:
        for segment in log:
            yield from read_records(segment)

    def batches() -> Iterator[pa.RecordBatch]:
        for segment in log:
            yield from segment.file_batches()

    header = {
        "databases": captured_databases(log) or "unknown until the next capture",
        "what": "log" if only is None else "segment",
        "place": log[0].place if only and log else opened.place,
        "root_id": opened.id,
        "segments": len(log),
        "first_position": log[0].first if log else None,
        "last_position": log[-1].last if log else None,
        "records": sum(segment.record_count for segment in log),
        "files": sum(segment.file_count for segment in log),
    }
    return Shown(header, records, batches, files, objects=lambda: objects_of(records()))
