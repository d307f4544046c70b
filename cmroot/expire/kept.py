"""What a root keeps, from where and why: each entry of `files/` with the reference that names it and who needs it.

Also what is kept as a version of its bucket, and what is missing: bytes that somebody needs and `files/` has not. The
work runs on an engine, by the first two digits of the checksum; rows come as Arrow batches, in no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import Superseded
from cmroot.expire.retention import GOING, NEVER, Rules, decide, needing
from cmroot.log.captured import ADD, FILES, Segment
from cmroot.log.parts import conform, reading
from cmroot.log.references import KEY, REFERENCES, FileRows, Grouping, count_references, read_references, sources
from cmroot.names import check_entries
from cmroot.pins import Pins
from cmroot.store.entries import ENTRIES, list_entries
from cmroot.store.place import Place

IN_FILES, VERSION, MISSING = "files", "version", "missing"
KEPT = pa.schema(
    [
        ("state", pa.string()),  # files | version | missing
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("bytes", pa.int64()),  # as the store says; null unless in files/
        ("changed_ns", pa.int64()),
        ("links", pa.int32()),
        ("since", pa.int64()),  # where its first reference began; null: no reference
        ("released", pa.int64()),  # where its last interval ended; null: never
        ("reason", pa.string()),  # as in `retention`: live, who needs it, expired (nobody does), unreferenced
        ("pins", pa.int32()),
        ("db", pa.string()),  # from here on: of the newest reference
        ("table", pa.string()),
        ("partition", pa.string()),
        ("location", pa.string()),
        ("path", pa.string()),
        ("version", pa.string()),
        ("position", pa.int64()),
    ]
)

_ORIGIN = ("db", "table", "partition", "location", "path", "version", "position")
_READ = ("position", "op", *_ORIGIN[:-1], "size", "checksum", "kept", "since")
_READ_SCHEMA = pa.schema([FILES.field(name) for name in _READ])
_MIXED = pa.schema([*REFERENCES, *(KEPT.field(name) for name in _ORIGIN), pa.field("in_files", pa.bool_())])
"""References, and beside them one row a content that counts nothing and says where it is from."""


def kept(
    root: str, log: Sequence[Segment], pins: Pins, engine: Grouping, *, missing: bool = False
) -> Iterator[pa.RecordBatch]:
    """Everything that is kept (batches of KEPT); with `missing`, what should be and is not.

    Takes no lease: what a capture or expiry changes meanwhile may be shown as before or after. Raises Superseded when
    a segment went away meanwhile, FormatError when the log is damaged."""
    rules = Rules(needing(pins), NEVER, NEVER)  # so a reason says who needs an entry now
    return engine.group(read_origins, sources(root, list(log)), KEY, _Show(root, rules, missing), KEPT)


@dataclass(frozen=True)
class _Show:
    """What is kept of one prefix. A value: it travels to executors."""

    root: str
    rules: Rules
    missing: bool

    def __call__(self, group: pa.Table) -> pa.Table:
        entries = list_entries(self.root, group[KEY][0].as_py()).entries
        origins = newest_origins(group)
        if not entries.num_rows and not origins.num_rows:
            return KEPT.empty_table()
        references = group.select(REFERENCES.names)
        found = decide(references, entries, self.rules).append_column("state", _repeat(IN_FILES, entries.num_rows))
        found = found.join(origins, keys=["checksum", "size"], join_type="left outer", use_threads=False)
        elsewhere = origins.join(
            entries.select(["checksum", "size"]), keys=["checksum", "size"], join_type="left anti", use_threads=False
        )
        versions = elsewhere.filter(pc.is_valid(elsewhere["version"]))
        tables = [found, self._absent(references, versions, VERSION)]
        if self.missing:
            gone = self._absent(references, elsewhere.filter(elsewhere["in_files"]), MISSING)
            tables.append(gone.filter(pc.invert(pc.is_in(gone["reason"], pa.array(GOING)))))
        return pa.concat_tables([conform(_select(table), KEPT) for table in tables])

    def _absent(self, references: pa.Table, origins: pa.Table, state: str) -> pa.Table:
        """Contents that `files/` has not, decided as if it had them."""
        if not origins.num_rows:
            return KEPT.empty_table()
        entries = conform(origins.select(["checksum", "size"]), ENTRIES)
        found = decide(references, entries, self.rules).append_column("state", _repeat(state, entries.num_rows))
        return found.join(origins, keys=["checksum", "size"], join_type="left outer", use_threads=False)


def newest_origins(group: pa.Table) -> pa.Table:
    """For each content of a group: names, place and version of its newest reference, and `in_files`: whether any
    reference says that it was kept in `files/`."""
    rows = group.filter(pc.is_valid(group["position"])).sort_by("position")
    rows = rows.set_column(rows.schema.get_field_index("version"), "version", pc.fill_null(rows["version"], ""))
    newest = rows.group_by(["checksum", "size"], use_threads=False).aggregate(
        [*((name, "last") for name in _ORIGIN), ("in_files", "any")]
    )
    newest = newest.rename_columns([name.removesuffix("_last").removesuffix("_any") for name in newest.column_names])
    version = pc.if_else(pc.equal(newest["version"], ""), pa.scalar(None, pa.string()), newest["version"])
    return newest.set_column(newest.schema.get_field_index("version"), "version", version)


def read_origins(source: Any) -> Iterator[pa.RecordBatch]:
    """Batches of references with origins, of one of `references.sources`. Superseded when the part is gone: it was
    merged into another."""
    if not isinstance(source, FileRows):
        for batch in read_references(source):
            yield from conform(pa.Table.from_batches([batch]), _MIXED).to_batches()
        return
    for rows in read_rows(source):
        references = count_references(
            rows.select(["position", "op", "size", "checksum", "since"]), pending=source.pending
        )
        yield from conform(references, _MIXED).to_batches()
        yield from _origins(rows, source.pending).to_batches()


def _origins(rows: pa.Table, pending: bool) -> pa.Table:
    """For each content that some rows add, where the newest of them has it; of an intercept that no capture has
    recorded yet, position 0."""
    wanted = pc.and_(pc.is_valid(rows["checksum"]), pc.is_valid(rows["size"]))
    if not pending:
        wanted = pc.and_(wanted, pc.equal(rows["op"], ADD))
    rows = rows.filter(wanted)
    in_files = pc.and_(pc.fill_null(rows["kept"], False), pc.is_null(rows["version"]))
    rows = rows.set_column(0, "position", pc.fill_null(rows["position"], 0)).append_column("in_files", in_files)
    newest = newest_origins(rows)
    return conform(newest.append_column(KEY, pc.utf8_slice_codeunits(newest["checksum"], 0, 2)), _MIXED)


def read_rows(source: FileRows) -> Iterator[pa.Table]:
    """File entries with origins, a row group at a time. Superseded when the part is gone."""
    try:
        with Place(source.place).open_read() as file, reading(source.place):
            parquet = pq.ParquetFile(file)
            names = [name for name in _READ if name in parquet.schema_arrow.names]
            for number in range(source.first, source.last):
                rows = conform(parquet.read_row_group(number, columns=names), _READ_SCHEMA)
                check_entries(rows, source.place, pending=source.pending)
                yield rows
    except FileNotFoundError as error:
        raise Superseded(f"{source.place}: gone while it was to be read", hint="run the same command again") from error


def _select(table: pa.Table) -> pa.Table:
    return table.select([name for name in KEPT.names if name in table.column_names])


def _repeat(text: str, rows: int) -> Any:
    return pa.chunked_array([pa.repeat(text, rows)])
