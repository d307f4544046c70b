"""Which snapshots on HDFS an expiry deletes: those of which nobody needs any more what was removed before the next.

What was removed later, the next one has as well. How many bytes that frees, only the NameNode knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cmroot.expire.retention import Rules
from cmroot.keep.snapshot_entries import SnapshotEntry, made_snapshots
from cmroot.log.captured import Segment


def snapshots_going(root: str, log: Sequence[Segment], rules: Rules) -> list[SnapshotEntry]:
    """As they were made. The newest of each directory stays, and whatever is only compared: captures sweep that."""
    ends = [capture.last for segment in log for capture in segment.captures]
    chains: dict[str, list[SnapshotEntry]] = {}
    for entry in made_snapshots(root):
        if entry.keeps:
            chains.setdefault(entry.directory, []).append(entry)
    return [entry for chain in chains.values() for entry in _needless(chain, ends, rules)]


def _needless(chain: Sequence[SnapshotEntry], ends: Sequence[int], rules: Rules) -> Iterator[SnapshotEntry]:
    for entry, following in pairwise(chain):
        until = next((last for last in ends if last > following.after), None)
        if until is None or until > rules.cutoff:  # the next one's capture is not published, or young
            continue
        if not any(_needs(pin.is_hold, pin.position, entry, until) for pin in rules.pins):
            yield entry


def _needs(is_hold: bool, position: int, entry: SnapshotEntry, until: int) -> bool:
    """Whether a pin may need what was removed up to the position `until`; a hold, what was there at its own."""
    return position < until and (not is_hold or entry.after <= position)
