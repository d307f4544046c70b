"""Expiring chosen contents now: erased data does not wait for the retention window, only for its remaining consumers.

Slots, holds and dumps are honoured as an expiry honours them; only age does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.expire.removal import RemovedEntries, Since, remove
from cmroot.expire.retention import DECIDED, NEVER, Rules, decide, needing
from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.log.references import KEY, Grouping, read_references, sources
from cmroot.pins import read_pins
from cmroot.store.entries import list_entries

CHOSEN = DECIDED
"""One row for each chosen content that `files/` has: `reason` says who needs it, `keep` whether it must stay."""


@dataclass(frozen=True)
class Chosen:
    """What became of a look: rows (CHOSEN), and what it went by."""

    root: str
    rows: pa.Table
    rules: Rules


def look_at_contents(root: str, contents: Iterable[tuple[str, int]], engine: Grouping) -> Chosen:
    """Which of some contents (checksum, size) are kept, and who needs each. Changes nothing, takes no lease.

    Raises FormatError when a pin or the log is damaged: then nobody knows what is needed."""
    pins, log = read_pins(root).whole(), segments(root)
    rules = Rules(needing(pins), log[-1].last if log else 0, NEVER)
    keys = frozenset(f"{checksum}-{size}" for checksum, size in contents)
    if not keys:
        return Chosen(root, CHOSEN.empty_table(), rules)
    batches = list(engine.group(read_references, sources(root, log), KEY, _Chooser(root, rules, keys), CHOSEN))
    return Chosen(root, pa.Table.from_batches(batches, schema=CHOSEN), rules)


@dataclass(frozen=True)
class _Chooser:
    """Runs in a task."""

    root: str
    rules: Rules
    keys: frozenset[str]

    def __call__(self, group: pa.Table) -> pa.Table:
        entries = list_entries(self.root, group[KEY][0].as_py()).entries
        names = pc.binary_join_element_wise(entries["checksum"], pc.cast(entries["size"], pa.string()), "-")
        entries = entries.filter(pc.is_in(names, pa.array(sorted(self.keys), pa.string())))
        if not entries.num_rows:
            return CHOSEN.empty_table()
        references = group.filter(pc.is_valid(group["checksum"]))
        return decide(references, entries, self.rules).select(CHOSEN.names).cast(CHOSEN)


def expedite(chosen: Chosen, *, now: Callable[[], float] = time.time) -> RemovedEntries:
    """Remove those that nobody needs, under the lease, but for what came to be needed since. Safe to run twice.

    Raises LeaseHeld."""
    going = chosen.rows.filter(pc.invert(chosen.rows["keep"]))
    with acquire(chosen.root, "expedite", now=now) as lease:
        since = Since(chosen.root, chosen.rules.cutoff, chosen.rules.pins, needing(read_pins(chosen.root).whole()))
        return remove(chosen.root, iter(going.to_batches()), since, chosen.rules.cutoff_ns, lease, now=now)
