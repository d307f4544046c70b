"""Ends of references: when a known file goes, the captured log gets a `release` row that says since when it was there.

What the manifest is about to forget is gathered here first, in a passing table; capture drains it into the segment.
Folding the log again gathers the same and drops it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

import pyarrow as pa

from cmroot.log.captured import FILES, RELEASE

_PAGE = 20_000
_COLUMNS = (*(name for name in FILES.names if name not in ("op", "since")), "since")
_CHECKSUM = _COLUMNS.index("checksum")


class Ends:
    """The references that ended since the last `drain`, inside the transaction of the manifest's owner."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS ended (id INTEGER PRIMARY KEY, position, db, tbl, partition, location,"
            " path, size, mtime_ns, identity, checksum, kept, version, since)"
        )

    def of_table(self, table_id: int, at: int) -> None:
        """Every file of a table and its partitions goes at a position."""
        self._gather("f.table_id = ?", [(at, table_id)])

    def of_object(self, table_id: int, partition_id: int, at: int) -> None:
        """Every file of one object goes at a position."""
        self._gather("f.table_id = ? AND f.partition_id = ?", [(at, table_id, partition_id)])

    def of_files(self, files: Iterable[tuple[int, int, int, str]]) -> None:
        """Single files (position, table_id, partition_id, path) go, or are replaced."""
        self._gather("f.table_id = ? AND f.partition_id = ? AND f.path = ?", files)

    def at_once(self, rows: Iterable[tuple[object, ...]]) -> None:
        """References that the manifest never takes up: their object was gone again. Values in order of the table."""
        self._db.executemany(
            f"INSERT INTO temp.ended VALUES (NULL{', ?' * len(_COLUMNS)})",
            (row for row in rows if row[_CHECKSUM] is not None),
        )

    def _gather(self, which: str, arguments: Iterable[tuple[object, ...]]) -> None:
        self._db.executemany(
            "INSERT INTO temp.ended SELECT NULL, ?, t.db, t.name, coalesce(p.name, ''),"
            " coalesce(p.location, t.location), f.path, f.size, f.mtime_ns, f.identity, f.checksum, f.kept,"
            " f.version, f.since"
            " FROM files f JOIN tables t ON t.id = f.table_id LEFT JOIN partitions p ON p.id = f.partition_id"
            f" WHERE {which} AND f.checksum IS NOT NULL",
            arguments,
        )

    def drain(self) -> Iterator[pa.Table]:
        """The rows, as cmroot.log.FILES, a page at a time; afterwards there are none."""
        last = 0
        while rows := self._db.execute(
            "SELECT * FROM temp.ended WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE)
        ).fetchall():
            numbers, *columns = zip(*rows, strict=True)
            last = numbers[-1]
            table = {"op": pa.array([RELEASE] * len(rows))}
            for name, values in zip(_COLUMNS, columns, strict=True):
                if name == "kept":
                    values = tuple(map(bool, values))
                table[name] = pa.array(values, FILES.field(name).type)
            yield pa.table(table)
        self.clear()

    def clear(self) -> None:
        self._db.execute("DELETE FROM temp.ended")
