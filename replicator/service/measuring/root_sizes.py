"""The size of a change-management root, and the pin that holds its oldest contents: from a sample of it, in limited
time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from cmroot.pins import Pins, read_pins
from cmroot.pins import seconds as seconds_of
from cmroot.root import open_existing
from cmroot.store.listing import list_entries, prefixes

ENTRIES = 50_000
SECONDS = 20.0
"""A sample ends at either limit. Names are checksums, so that all directories are of similar size."""


@dataclass(frozen=True)
class RootSample:
    """The size of a root. bytes, files: of retained contents; estimates unless `exact`. oldest: when the pin that holds
    back most was created or last moved, in seconds since 1970; None: there is none. consumer: its name."""

    bytes: int
    files: int
    exact: bool
    oldest: float | None
    consumer: str


def sample_root(place: str, *, entries: int = ENTRIES, seconds: float = SECONDS) -> RootSample:
    """Measures a sample of a root. Reads only. Raises FormatError if the root does not exist, OSError if it is
    unreachable."""
    root = open_existing(place)
    began, found = time.monotonic(), prefixes(root.place)
    looked = files = size = 0
    for prefix in found:
        listed = list_entries(root.place, prefix).entries
        looked, files = looked + 1, files + listed.num_rows
        size += sum(each or 0 for each in listed.column("bytes").to_pylist())
        if files > entries or time.monotonic() - began > seconds:
            break
    share = len(found) / looked if looked else 1.0
    pins = sorted(_moments(read_pins(root.place)))
    oldest, consumer = pins[0] if pins else (None, "")
    return RootSample(round(size * share), round(files * share), looked == len(found), oldest, consumer)


def _moments(pins: Pins) -> Iterator[tuple[float, str]]:
    """Yields for each pin since when it holds its contents, and its name."""
    for slot in pins.slots:
        if not slot.given_up:
            yield seconds_of(slot.confirmed or slot.created), f"slot {slot.consumer or slot.name}"
    for hold in pins.holds:
        yield seconds_of(hold.created), f"hold {hold.name}"
    for dump in pins.dumps:
        yield seconds_of(dump.created), f"dump {dump.name}"
