"""Which partition a file lies in that Spark names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from cmroot.store.place import normal, parent
from replicator.lifecycle.purge.partitions import Part

Matched = dict[str, dict[str, tuple[str, int]]]
"""By part: the name of a file below its location -> (how Spark calls it, matching rows)."""


class Unplaced(Exception):
    """A file with matching rows that lies in no partition of its table."""


def place_of(file: str, *, escaped: bool) -> str:
    """The place of a file as Spark calls it. Its own readers call it by a URI, in which `p=a%3Ab` is `p=a%253Ab`;
    Hadoop's input formats, by which it reads through Hive's serdes, by the plain path (`input_file_name`)."""
    return normal(unquote(file) if escaped else file)


def by_part(parts: Sequence[Part], counts: Mapping[str, int], *, escaped: bool) -> Matched:
    """Which part each file lies in: the nearest location above it. Raises Unplaced for one in none."""
    locations = {normal(part.location): part.name for part in parts}
    found: Matched = {}
    for file, rows in counts.items():
        place = place_of(file, escaped=escaped)
        location = next((above for above in _above(place) if above in locations), None)
        if location is None:
            raise Unplaced(f"{place} has rows with an id, but is in no partition")
        found.setdefault(locations[location], {})[place[len(location) :].lstrip("/")] = (file, rows)
    return found


def _above(place: str) -> Iterator[str]:
    """The place itself, which may be a table's location, and all that are above it."""
    yield place
    while (above := parent(place)) != place:
        yield above
        place = above
