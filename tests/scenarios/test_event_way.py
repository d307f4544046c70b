"""One event of the source, from the notification log to the replica: the files that it enters have a ceiling."""

from __future__ import annotations

from event_trace import traced
from lab import Lab

FILES = 49
"""Of a dump and a load together, above `core`, `metastore` and `cmroot`."""


def test_an_added_partition_takes_a_short_way(fixture: Lab) -> None:
    fixture.source.partitioned("days", {"1": {"f": "1\n"}})
    fixture.bootstrap()
    fixture.source.add("days", {"2": {"f": "22\n"}})
    before = fixture.last
    dump = traced(lambda: fixture.dump(since=before))
    load = traced(fixture.load)
    fixture.is_same()
    assert len(dump.files | load.files) <= FILES, sorted(dump.files | load.files)
