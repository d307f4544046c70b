"""Tables of a source as values: what its catalog says, and how each column is landed."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.model import Value
from replicator.errors import SourceMissing


class SourceColumn(Value, frozen=True, omit_defaults=True):
    """name: as the source has it. source_type: as it was declared there. type: what it is in the warehouse, in the
    words of Hive and Spark. expression: SQL of the source for the landed value. cast: how Spark makes that value of
    what it reads (`{}`). unfit: SQL of the source for rows whose value has no place in `type`. split: SQL by which rows
    are put in order, and `compared` the type of its literals; both empty where a column has no order. summed: whether
    sums are compared."""

    name: str
    source_type: str
    type: str
    nullable: bool
    expression: str
    cast: str = ""
    unfit: str = ""
    split: str = ""
    compared: str = ""
    summed: bool = False


class ForeignKey(Value, frozen=True):
    """columns refer to `references` of the table `schema`.`table`."""

    name: str
    columns: tuple[str, ...]
    schema: str
    table: str
    references: tuple[str, ...]


class SourceTable(Value, frozen=True, omit_defaults=True):
    """kind: table or view (of which rows have no address). pages: of the table, where the source knows. unique: sets
    of columns, but for the primary key."""

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    kind: str = "table"
    pages: int = 0

    def column(self, name: str) -> SourceColumn:
        """By its name; in another case where only one is so called. Raises SourceMissing."""
        same = [each for each in self.columns if each.name == name]
        alike = [each for each in self.columns if each.name.lower() == name.lower()]
        found = same or alike
        if len(found) != 1:
            names = ", ".join(each.name for each in self.columns[:20])
            raise SourceMissing(f"{self.schema}.{self.name} has no column {name}", hint=f"it has {names}")
        return found[0]


@dataclass(frozen=True)
class Snapshot:
    """name: by which other connections see the same rows; empty where they cannot. consistent: whether all readers and
    all figures see the same rows."""

    name: str
    consistent: bool


@dataclass(frozen=True)
class Ranges:
    """How a table is read. column: None: by none. predicates: SQL of the source, one for each reader; each row meets
    exactly one. method: one, quantiles, or quantiles+hash. shares: of the rows for each reader, by the sample. hidden:
    names that predicates use beside the table's columns, with their SQL."""

    column: str | None
    predicates: tuple[str, ...]
    method: str
    shares: tuple[float, ...]
    hidden: tuple[tuple[str, str], ...] = ()


ONE = Ranges(None, ("1 = 1",), "one", (1.0,))
"""All rows by one reader."""
