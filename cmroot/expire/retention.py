"""What becomes of a kept entry, and why: the decision of an expiry. Pure functions from Arrow tables to Arrow tables.

References and listed entries of one prefix come in, one row an entry comes out, with its reason. A reason names whoever
needs the entry; what nobody needs goes when it is older than the retention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.references import KEY
from cmroot.pins import Pins

DECIDED = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("bytes", pa.int64()),  # as the store says
        ("changed_ns", pa.int64()),
        ("links", pa.int32()),
        ("live", pa.bool_()),  # the source has it
        ("since", pa.int64()),  # where its first reference began; null: no reference
        ("released", pa.int64()),  # where its last interval ended; null: never
        ("reason", pa.string()),
        ("keep", pa.bool_()),
        ("pins", pa.int32()),  # how many slots, holds and dumps need it
    ]
)
"""One row for a kept entry."""

NEVER = (1 << 62) - 1
"""A cutoff after every position and time: nothing counts as young."""

LIVE, YOUNG, EXPIRED = "live", "young", "expired"
UNREFERENCED, UNREFERENCED_YOUNG = "unreferenced", "unreferenced, young"
GOING = (EXPIRED, UNREFERENCED)
"""The reasons to remove; every other reason keeps."""


@dataclass(frozen=True)
class Needing:
    """A pin as the decision sees it: its reason (`slot NAME`, `hold NAME`, `dump ID`) and the position it needs."""

    reason: str
    position: int

    @property
    def is_hold(self) -> bool:
        return self.reason.startswith("hold ")


@dataclass(frozen=True)
class Rules:
    """What an expiry goes by. `pins` in order of precedence: the first that needs an entry names the reason.
    `cutoff`: what was released after this position is young; `cutoff_ns`: what was filed after this moment is, whatever
    refers to it."""

    pins: tuple[Needing, ...]
    cutoff: int
    cutoff_ns: int


def needing(pins: Pins) -> tuple[Needing, ...]:
    """The pins in order of precedence: slots from the one that is furthest behind, holds, dumps. Those that need
    nothing (a slot that was given up) are left out."""
    slots = sorted((slot.position, slot.name) for slot in pins.slots if not slot.given_up)
    return (
        *(Needing(f"slot {name}", position) for position, name in slots),
        *(Needing(f"hold {pin.name}", pin.position) for pin in pins.holds),
        *(Needing(f"dump {pin.name}", pin.needs_after) for pin in pins.dumps),
    )


def ends_when(reason: str, released: int | None) -> str:
    """For people: when a slot, hold or dump needs an entry no more, whose use ended at `released`; empty for other
    reasons."""
    kind, _, name = reason.partition(" ")
    ends = {
        "slot": f"slot {name} confirms position {released}",
        "hold": f"hold {name} is released",
        "dump": f"dump {name} is older than the retention",
    }
    return ends.get(kind, "")


def decide(references: pa.Table, entries: pa.Table, rules: Rules) -> pa.Table:
    """What becomes of each entry: DECIDED for the REFERENCES and ENTRIES of one prefix. A pure function."""
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
    """Which entries were filed after the cutoff; where the store tells no time, all but for `NEVER`."""
    return pc.fill_null(pc.greater(table["changed_ns"], rules.cutoff_ns), rules.cutoff_ns < NEVER)


def _contents(references: pa.Table, rules: Rules) -> pa.Table:
    """One row for each content: how often it began and ended, from when, until when, and which holds fall into it."""
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
        ("alone_entries", pa.int64()),  # of a pin: what would go if it were not
        ("alone_bytes", pa.int64()),
    ]
)


def tally(decided: pa.Table, rules: Rules) -> pa.Table:
    """What was decided in numbers (TALLY): for each reason, and for each pin what it holds."""
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
