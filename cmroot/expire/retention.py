"""The decision of an expiry over each retained entry. Pure functions from Arrow tables to Arrow tables.

The input is the references and listed entries of one prefix, the output one row per entry, with its reason. A reason
names who requires the entry; an entry that nothing requires is removed when it is older than the retention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.errors import Superseded
from cmroot.log.captured import ADD, FILES, Segment
from cmroot.log.references import KEY, REFERENCES, FileRows, Grouping, count_references, read_references, sources
from cmroot.log.segment import conform, reading
from cmroot.names import check_entries
from cmroot.pins import Pins
from cmroot.store.place import Place
from cmroot.store.retained_entries import ENTRIES, list_entries

DECIDED = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("bytes", pa.int64()),  # as reported by the store
        ("changed_ns", pa.int64()),
        ("links", pa.int32()),
        ("live", pa.bool_()),  # the source has it
        ("since", pa.int64()),  # where its first reference began; null: no reference
        ("released", pa.int64()),  # where its last interval ended; null: never
        ("reason", pa.string()),
        ("keep", pa.bool_()),
        ("pins", pa.int32()),  # how many slots, holds and dumps require it
    ]
)
"""One row for a retained entry."""

NEVER = (1 << 62) - 1
"""A cutoff after every position and time: nothing counts as young."""

LIVE, YOUNG, EXPIRED = "live", "young", "expired"
UNREFERENCED, UNREFERENCED_YOUNG = "unreferenced", "unreferenced, young"
GOING = (EXPIRED, UNREFERENCED)
"""The reasons to remove; every other reason retains."""


@dataclass(frozen=True)
class Needing:
    """A pin as seen by the decision: its reason (`slot NAME`, `hold NAME`, `dump ID`) and the position it requires."""

    reason: str
    position: int

    @property
    def is_hold(self) -> bool:
        return self.reason.startswith("hold ")


@dataclass(frozen=True)
class Rules:
    """The rules of an expiry. `pins` in order of precedence: the first that requires an entry names the reason.
    `cutoff`: files released after this position are young; `cutoff_ns`: entries filed after this timestamp are young,
    whatever refers to them."""

    pins: tuple[Needing, ...]
    cutoff: int
    cutoff_ns: int


def needing(pins: Pins) -> tuple[Needing, ...]:
    """Returns the pins in order of precedence: slots from the one furthest behind, holds, dumps. Pins that require
    nothing (invalidated slots) are left out."""
    slots = sorted((slot.position, slot.name) for slot in pins.slots if not slot.given_up)
    return (
        *(Needing(f"slot {name}", position) for position, name in slots),
        *(Needing(f"hold {pin.name}", pin.position) for pin in pins.holds),
        *(Needing(f"dump {pin.name}", pin.needs_after) for pin in pins.dumps),
    )


def ends_when(reason: str, released: int | None) -> str:
    """Returns text for users: when a slot, hold or dump stops requiring an entry whose use ended at `released`; "" for
    other reasons."""
    kind, _, name = reason.partition(" ")
    ends = {
        "slot": f"slot {name} confirms position {released}",
        "hold": f"hold {name} is released",
        "dump": f"dump {name} is older than the retention",
    }
    return ends.get(kind, "")


def decide(references: pa.Table, entries: pa.Table, rules: Rules) -> pa.Table:
    """Decides over each entry: returns DECIDED for the REFERENCES and ENTRIES of one prefix. A pure function."""
    contents = _contents(references, rules)
    table = entries.join(contents, keys=["checksum", "size"], join_type="left outer", use_threads=False)
    referenced = pc.is_valid(table["adds"])
    live = pc.fill_null(pc.greater(table["adds"], table["releases"]), False)
    gone = pc.and_(referenced, pc.invert(live))
    young = pc.fill_null(pc.greater(table["released"], rules.cutoff), False)
    changed = _changed(table, rules)
    needed = [pc.and_(gone, _needed(table, number, pin)) for number, pin in enumerate(rules.pins)]

    reason = pc.if_else(changed, UNREFERENCED_YOUNG, UNREFERENCED)
    reason = pc.if_else(referenced, pc.if_else(pc.or_(young, changed), YOUNG, EXPIRED), reason)
    for by, pin in reversed(list(zip(needed, rules.pins, strict=True))):
        reason = pc.if_else(by, pin.reason, reason)
    reason = pc.if_else(live, LIVE, reason)
    count = reduce(pc.add, [pc.cast(by, pa.int32()) for by in needed], _zeros(table.num_rows))
    decided = table.select([*entries.column_names, "since", "released"])
    for name, column in {
        "live": live,
        "reason": reason,
        "pins": count,
        "keep": pc.invert(pc.is_in(reason, pa.array(GOING))),
    }.items():
        decided = decided.append_column(name, column)
    for by, pin in zip(needed, rules.pins, strict=True):
        decided = decided.append_column(pin.reason, by)
    return decided


def _changed(table: pa.Table, rules: Rules) -> Any:
    """Returns which entries were filed after the cutoff; if the store reports no times, all, except for `NEVER`."""
    return pc.fill_null(pc.greater(table["changed_ns"], rules.cutoff_ns), rules.cutoff_ns < NEVER)


def _contents(references: pa.Table, rules: Rules) -> pa.Table:
    """Returns one row per content: how often it began and ended, from when, until when, and which holds cover it."""
    known = references.filter(pc.is_valid(references["checksum"])).drop_columns([KEY])
    aggregations = [("adds", "sum"), ("releases", "sum"), ("since", "min"), ("end", "max")]
    for number, pin in enumerate(rules.pins):
        if pin.is_hold:
            within = pc.and_(pc.less_equal(known["since"], pin.position), pc.greater(known["end"], pin.position))
            known = known.append_column(f"pin {number}", pc.fill_null(within, False))
            aggregations.append((f"pin {number}", "any"))
    grouped = known.group_by(["checksum", "size"], use_threads=False).aggregate(aggregations)
    names = {"adds_sum": "adds", "releases_sum": "releases", "since_min": "since", "end_max": "released"}
    return grouped.rename_columns([names.get(name, name.removesuffix("_any")) for name in grouped.column_names])


def _needed(table: pa.Table, number: int, pin: Needing) -> Any:
    by = table[f"pin {number}"] if pin.is_hold else pc.greater(table["released"], pin.position)
    return pc.fill_null(by, False)


def _zeros(rows: int) -> Any:
    return pa.chunked_array([pa.repeat(pa.scalar(0, pa.int32()), rows)])


TALLY = pa.schema(
    [
        ("what", pa.string()),  # reason | pin | unknown | part
        ("name", pa.string()),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
        ("alone_entries", pa.int64()),  # of a pin: what would be removed without it
        ("alone_bytes", pa.int64()),
    ]
)


def tally(decided: pa.Table, rules: Rules) -> pa.Table:
    """Returns the decisions in numbers (TALLY): for each reason, and for each pin the entries it retains."""
    reasons = decided.group_by("reason", use_threads=False).aggregate([("bytes", "count"), ("bytes", "sum")])
    rows = [
        {"what": "reason", "name": row["reason"], "entries": row["bytes_count"], "bytes": row["bytes_sum"]}
        for row in reasons.to_pylist()
    ]
    old = pc.and_(
        pc.fill_null(pc.less_equal(decided["released"], rules.cutoff), False), pc.invert(_changed(decided, rules))
    )
    alone = pc.and_(pc.equal(decided["pins"], 1), old)
    for pin in rules.pins:
        held = decided.filter(decided[pin.reason])
        only = decided.filter(pc.and_(decided[pin.reason], alone))
        rows.append(
            {
                "what": "pin",
                "name": pin.reason,
                "entries": held.num_rows,
                "bytes": pc.sum(held["bytes"]).as_py() or 0,
                "alone_entries": only.num_rows,
                "alone_bytes": pc.sum(only["bytes"]).as_py() or 0,
            }
        )
    return pa.Table.from_pylist(rows, schema=TALLY)


# ---- kept ------------------------------------------------------------------------------------------------------------
# The contents that a root retains, from where and why: each entry of `files/` with its reference and who requires it.
#
# Includes contents retained as a version in their bucket, and missing ones: required, but not in `files/`. The work
# runs on an engine, by the first two digits of the checksum; rows are returned as Arrow batches, in no order.


IN_FILES, VERSION, MISSING = "files", "version", "missing"
KEPT = pa.schema(
    [
        ("state", pa.string()),  # files | version | missing
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("bytes", pa.int64()),  # as reported by the store; null unless in files/
        ("changed_ns", pa.int64()),
        ("links", pa.int32()),
        ("since", pa.int64()),  # where its first reference began; null: no reference
        ("released", pa.int64()),  # where its last interval ended; null: never
        ("reason", pa.string()),  # as in `retention`: live, who requires it, expired (not required), unreferenced
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
"""References, and in addition one row per content that counts nothing and names its origin."""


def kept(
    root: str, log: Sequence[Segment], pins: Pins, engine: Grouping, *, missing: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields everything that is retained (batches of KEPT); with `missing`, also what is required but not retained.

    Takes no lease: concurrent changes by a capture or expiry may be shown or not. Raises Superseded when a segment was
    removed concurrently, FormatError when the log is damaged."""
    rules = Rules(needing(pins), NEVER, NEVER)  # so a reason names who requires an entry now
    return engine.group(read_origins, sources(root, list(log)), KEY, _Show(root, rules, missing), KEPT)


@dataclass(frozen=True)
class _Show:
    """Returns the retained contents of one prefix. A value: it is sent to executors."""

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
        """Returns contents that are missing from `files/`, decided as if they were present."""
        if not origins.num_rows:
            return KEPT.empty_table()
        entries = conform(origins.select(["checksum", "size"]), ENTRIES)
        found = decide(references, entries, self.rules).append_column("state", _repeat(state, entries.num_rows))
        return found.join(origins, keys=["checksum", "size"], join_type="left outer", use_threads=False)


def newest_origins(group: pa.Table) -> pa.Table:
    """Returns for each content of a group: names, location and version of its newest reference, and `in_files`: True if
    any reference recorded that it was retained in `files/`."""
    rows = group.filter(pc.is_valid(group["position"])).sort_by("position")
    rows = rows.set_column(rows.schema.get_field_index("version"), "version", pc.fill_null(rows["version"], ""))
    newest = rows.group_by(["checksum", "size"], use_threads=False).aggregate(
        [*((name, "last") for name in _ORIGIN), ("in_files", "any")]
    )
    newest = newest.rename_columns([name.removesuffix("_last").removesuffix("_any") for name in newest.column_names])
    version = pc.if_else(pc.equal(newest["version"], ""), pa.scalar(None, pa.string()), newest["version"])
    return newest.set_column(newest.schema.get_field_index("version"), "version", version)


def read_origins(source: Any) -> Iterator[pa.RecordBatch]:
    """Yields batches of references with origins, of one of `references.sources`. Raises Superseded when the part does
    not exist any more: it was merged into another."""
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
    """Returns for each content that some rows add the location of the newest; of an intercept that no capture has
    recorded yet, at position 0."""
    wanted = pc.and_(pc.is_valid(rows["checksum"]), pc.is_valid(rows["size"]))
    if not pending:
        wanted = pc.and_(wanted, pc.equal(rows["op"], ADD))
    rows = rows.filter(wanted)
    in_files = pc.and_(pc.fill_null(rows["kept"], False), pc.is_null(rows["version"]))
    rows = rows.set_column(0, "position", pc.fill_null(rows["position"], 0)).append_column("in_files", in_files)
    newest = newest_origins(rows)
    return conform(newest.append_column(KEY, pc.utf8_slice_codeunits(newest["checksum"], 0, 2)), _MIXED)


def read_rows(source: FileRows) -> Iterator[pa.Table]:
    """Yields file entries with origins, one row group at a time. Raises Superseded when the part is missing."""
    try:
        with Place(source.place).open_read() as file, reading(source.place):
            parquet = pq.ParquetFile(file)
            names = [name for name in _READ if name in parquet.schema_arrow.names]
            for number in range(source.first, source.last):
                rows = conform(parquet.read_row_group(number, columns=names), _READ_SCHEMA)
                check_entries(rows, source.place, pending=source.pending)
                yield rows
    except FileNotFoundError as error:
        raise Superseded(f"{source.place}: deleted before it was read", hint="run the same command again") from error


def _select(table: pa.Table) -> pa.Table:
    return table.select([name for name in KEPT.names if name in table.column_names])


def _repeat(text: str, rows: int) -> Any:
    return pa.chunked_array([pa.repeat(text, rows)])
