"""Verified: what is remembered of each table's last comparison, in one small file per database.

A Parquet file: a row a table, format and version in its schema's metadata. Small because names compress; one file
because a database has up to a million tables. It may be lost at any time.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.place import Place, join

FORMAT, VERSION = b"replicator-verified", b"1"
SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("verified", pa.float64()),
        ("outcome", pa.string()),
        ("size", pa.int64()),
        ("share", pa.int32()),
        ("tried", pa.float64()),
    ],
    {b"format": FORMAT, b"version": VERSION},
)


class TableMemory(NamedTuple):
    """A table's last comparison: when (seconds since the epoch; 0: never), its outcome (same, different, or nothing),
    its bytes as far as they were asked for, and which share of its contents is to be read next; `tried`: when it was
    looked at last without an outcome, because it was only behind."""

    verified: float = 0.0
    outcome: str = ""
    size: int | None = None
    share: int = 0
    tried: float = 0.0

    @property
    def turn(self) -> float:
        """The order in which tables come: what is always behind must not keep the others from their turn."""
        return max(self.verified, self.tried)


@dataclass
class VerifiedTables:
    """All tables of a database."""

    tables: dict[str, TableMemory] = field(default_factory=dict)

    def of_tables(self, names: Set[str]) -> VerifiedTables:
        """For the tables that there are now: those that went are forgotten, new ones were never compared."""
        return VerifiedTables({name: self.tables.get(name, TableMemory()) for name in names})


def read_memory(place: str, database: str) -> tuple[VerifiedTables, str]:
    """What is remembered, and a warning where it was lost: a file that is damaged, or of a version that is not known,
    counts as none."""
    file = _file(place, database)
    try:
        table = pq.read_table(io.BytesIO(Place(file).read_bytes()))
        about: Mapping[bytes, bytes] = table.schema.metadata or {}
        if (about.get(b"format"), about.get(b"version")) != (FORMAT, VERSION):
            raise pa.ArrowInvalid("it is of another format or version")
        columns = [table[name].to_pylist() for name in SCHEMA.names]
    except FileNotFoundError:
        return VerifiedTables(), ""
    except (pa.ArrowException, KeyError, OSError) as error:
        return VerifiedTables(), f"{file} cannot be read ({error}): every table of {database} counts as never compared"
    rows = zip(*columns, strict=True)
    return VerifiedTables({name: TableMemory(*rest) for name, *rest in rows}), ""


def write_memory(place: str, database: str, memory: VerifiedTables) -> None:
    """Replaces the file by one rename."""
    rows = sorted(memory.tables.items())
    columns = [
        [name for name, _ in rows],
        *(list(column) for column in zip(*(about for _, about in rows), strict=True)),
    ]
    if not rows:
        columns = [[] for _ in SCHEMA]
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    file = _file(place, database)
    with Place(file).open_write() as out:
        pq.write_table(table, out, compression="zstd")


def _file(place: str, database: str) -> str:
    return join(place, f"{database}.parquet")
