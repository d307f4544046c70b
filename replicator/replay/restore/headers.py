"""The events and times of positions of the captured log, for listings: few positions, read from their records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cmroot.log.captured import Segment


class _Header(msgspec.Struct, frozen=True):
    position: int
    event: int
    time: int


def events_at(log: Sequence[Segment], positions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """(event id, time) of the records at some positions; those that the log has not are left out."""
    wanted = sorted(positions)
    decoder = msgspec.json.Decoder(_Header)
    found = {}
    for segment in log:
        here = [each for each in wanted if segment.first <= each <= segment.last]
        if not here:
            continue
        waiting = set(here)
        for line in segment.records(here[0] - 1, here[-1]):
            header = decoder.decode(line)
            if header.position in waiting:
                found[header.position] = header.event, header.time
    return found
