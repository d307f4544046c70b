"""Which bytes must be gone once a purge is over: the contents of files that had rows erased, and of older states of the
purged tables, which nobody has searched. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, RELEASE, Segment, segments
from cmroot.store.place import join
from replicator.lifecycle.purge.state import RunDirectory

ERASED = "rows were erased from it"
UNREAD = "it lay in a purged partition, and has not been searched"
OLDER = "an older state of the table, which was not searched"


class Content(msgspec.Struct, frozen=True):
    """Bytes that must go. path: where they were seen last; why: ERASED, UNREAD or OLDER."""

    checksum: str
    size: int
    table: str
    partition: str
    path: str
    why: str

    @property
    def key(self) -> tuple[str, int]:
        return self.checksum, self.size


def erased_contents(directories: Sequence[RunDirectory]) -> Iterator[Content]:
    """Of the files that these runs have written again, as they were before, and of those that nobody reads; only of
    partitions that were swapped."""
    for directory in directories:
        swapped = {unit.key for unit in directory.units().values() if unit.backup}
        for table in directory.files():
            for row in table.filter(pc.is_valid(table["checksum"])).to_pylist():
                if (row["table"], row["partition"]) in swapped:
                    place, why = join(row["location"], row["name"]), ERASED if row["matched"] else UNREAD
                    yield Content(row["checksum"], row["size"], row["table"], row["partition"], place, why)


def older_contents(root: str, tables: Collection[str]) -> dict[tuple[str, int], Content]:
    """What tables ("db.table") had once and have no more, as the captured log knows it. Holds a row for each content
    that they ever had."""
    counts: dict[tuple[str, int], int] = {}
    seen: dict[tuple[str, int], Content] = {}
    for row in _rows(segments(root), {table.lower() for table in tables}):
        key = (row["checksum"], row["size"])
        counts[key] = counts.get(key, 0) + (1 if row["op"] == ADD else -1)
        place = join(row["location"] or "", row["path"] or "")
        seen[key] = Content(*key, f"{row['db']}.{row['table']}", row["partition"] or "", place, OLDER)
    return {key: content for key, content in seen.items() if counts[key] <= 0}


def _rows(log: Sequence[Segment], tables: set[str]) -> Iterator[dict[str, Any]]:
    columns = ["op", "db", "table", "partition", "location", "path", "size", "checksum"]
    wanted = pa.array(sorted(tables), pa.string())
    for segment in log:
        for batch in segment.file_batches(columns):
            rows = pa.Table.from_batches([batch])
            names = pc.binary_join_element_wise(rows["db"], rows["table"], ".")
            fits = pc.and_(pc.is_in(names, wanted), pc.is_in(rows["op"], pa.array([ADD, RELEASE])))
            fits = pc.and_(fits, pc.and_(pc.is_valid(rows["checksum"]), pc.is_valid(rows["size"])))
            yield from rows.filter(pc.fill_null(fits, False)).to_pylist()
