"""A root for dry runs: the existing one, or an empty temporary one. Nothing is written at the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cmroot.root import FORMAT, ChangeRoot, create_or_open, open_existing, refuse_other
from cmroot.store.place import join
from cmroot.store.resolve import as_written
from cmroot.store.scratch import scratch


@contextmanager
def looked_at(place: str) -> Iterator[tuple[ChangeRoot, str]]:
    """The root, and words to tell when there is none yet. Raises as `create_or_open` would: NotWritable for a place in
    use by something else, FormatError for another kind or an unknown version."""
    at = as_written(place)
    if (at / FORMAT).exists():
        yield open_existing(str(at)), ""
        return
    refuse_other(at)
    with scratch("root") as here:
        yield create_or_open(join(str(here), "root")), f"{at}: no $cmroot yet; the first run makes it"
