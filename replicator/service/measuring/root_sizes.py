"""How large a change-management root is, and what holds its oldest contents: from a part of it, in limited time."""

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
"""A sample ends with either: names are checksums, so that its directories are alike."""


@dataclass(frozen=True)
class RootSample:
    """bytes, files: of kept contents; estimates unless `exact`. oldest: when the pin that holds back most was made or
    last moved, in seconds since 1970; consumer: what it is called; None: there is none."""

    bytes: int
    files: int
    exact: bool
    oldest: float | None
    consumer: str


def sample_root(place: str, *, entries: int = ENTRIES, seconds: float = SECONDS) -> RootSample:
    """Reads only. Raises FormatError where there is no root, OSError where it is away."""
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
    """Since when each pin holds what it holds."""
    for slot in pins.slots:
        if not slot.given_up:
            yield seconds_of(slot.confirmed or slot.created), f"slot {slot.consumer or slot.name}"
    for hold in pins.holds:
        yield seconds_of(hold.created), f"hold {hold.name}"
    for dump in pins.dumps:
        yield seconds_of(dump.created), f"dump {dump.name}"
