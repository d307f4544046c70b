"""What the SQL of a kind of database must do for reading it. Names come into it quoted, values as literals."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from replicator.errors import SourceRefused
from replicator.ingestion.reading.control import Control, Patience
from replicator.ingestion.reading.source_table import Snapshot, SourceColumn, SourceTable
from replicator.ingestion.reading.splits import HASHES

SAMPLE = 10_000
"""Rows of a sample: a range's share is then known to a twentieth with 16 readers."""

TEXT = 64
"""Letters of a text by which rows are put in order."""

MASK = HASHES - 1

Another = Callable[[], AbstractContextManager[Control]]


class Dialect(Protocol):
    """A kind of database."""

    def properties(self, patience: Patience, url: str) -> dict[str, str]:
        """Of each connection, in the driver's words."""
        ...

    def begin(self, patience: Patience) -> str:
        """A statement with which the control connection begins."""
        ...

    def begin_reader(self, patience: Patience, snapshot: Snapshot | None) -> str:
        """A statement, or several, with which a reader begins."""
        ...

    def name(self, *parts: str) -> str:
        """Quoted, with dots between."""
        ...

    def literal(self, compared: str, value: str) -> str:
        """A value of a sample, as the sample has it, as a literal of the type `compared`."""
        ...

    def describe(self, control: Control, schema: str, name: str) -> SourceTable | None:
        """None where there is no such table. Raises TypeRefused."""
        ...

    def sample(self, table: SourceTable, column: SourceColumn, where: str, *, whole: bool) -> str:
        """A query for one text: `HEX:ROWS,...` of the values of a sample, ascending, `!` for NULL. whole: of all pages,
        however many."""
        ...

    def hashed(self, table: SourceTable) -> str:
        """SQL for a number in 0 ... `MASK`, of a row."""
        ...

    def as_text(self, expression: str) -> str: ...

    def counted(self, column: SourceColumn) -> str:
        """SQL that is NULL where the landed value is; cheaper than the value itself where it can be."""
        ...

    def greatest(self, column: SourceColumn) -> str:
        """SQL for the greatest value as text."""
        ...

    def after(self, column: SourceColumn, text: str, *, same: bool = False) -> str:
        """A condition: greater than this text of `greatest`. same: or equal to it."""
        ...

    def snapshot(self, control: Control, another: Another, schema: str, name: str) -> AbstractContextManager[Snapshot]:
        """For reading one table. another: opens a second control connection."""
        ...


_PLAIN = re.compile(r"[\w:+. -]*", re.ASCII)


def plain(text: str) -> bool:
    """Whether a text is one between quotes by whatever rules: numbers, times, UUIDs."""
    return _PLAIN.fullmatch(text) is not None


def alike(columns: tuple[SourceColumn, ...]) -> str:
    """Why columns cannot be one table's in the warehouse, where names have no case; "" where they can."""
    seen: dict[str, str] = {}
    for column in columns:
        if (other := seen.setdefault(column.name.lower(), column.name)) != column.name:
            return f"columns {other} and {column.name} have one name in the warehouse"
    return ""


def comparable(column: SourceColumn) -> SourceColumn:
    """The same. Raises SourceRefused where its values have no order."""
    if not column.compared:
        raise SourceRefused(
            f"column {column.name} ({column.source_type}) has no order by which rows could be told apart",
            hint="choose a number, a date, a time or a text",
        )
    return column
