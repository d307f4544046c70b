"""Tables of a source as values: their catalog entries, and how each column is landed."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.model import Value
from replicator.errors import SourceMissing


class SourceColumn(Value, frozen=True, omit_defaults=True):
    """name: as at the source. source_type: as declared there. type: in the warehouse, as written in Hive and Spark.
    expression: SQL of the source for the landed value. cast: Spark SQL that converts the read value (`{}`) to the
    landed one. unfit: SQL of the source for rows whose value does not fit `type`. split: SQL by which rows are sorted,
    and `compared` the type of its literals; both empty if a column has no order. summed: True if sums are compared."""

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
    """kind: table or view (whose rows have no address). pages: of the table, if the source provides it. unique: sets of
    columns, except for the primary key."""

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    kind: str = "table"
    pages: int = 0

    def column(self, name: str) -> SourceColumn:
        """Returns a column by its name, or by a unique case-insensitive match. Raises SourceMissing."""
        same = [each for each in self.columns if each.name == name]
        alike = [each for each in self.columns if each.name.lower() == name.lower()]
        found = same or alike
        if len(found) != 1:
            names = ", ".join(each.name for each in self.columns[:20])
            raise SourceMissing(f"{self.schema}.{self.name} has no column {name}", hint=f"it has {names}")
        return found[0]


@dataclass(frozen=True)
class Snapshot:
    """name: by which other connections see the same rows; empty if they cannot. consistent: True if all readers and all
    statistics see the same rows."""

    name: str
    consistent: bool


@dataclass(frozen=True)
class Ranges:
    """How a table is read. column: None: not by a column. predicates: SQL of the source, one for each reader; each row
    meets exactly one. method: one, quantiles, or quantiles+hash. shares: estimated fraction of the rows for each
    reader. hidden: names that predicates use in addition to the table's columns, with their SQL."""

    column: str | None
    predicates: tuple[str, ...]
    method: str
    shares: tuple[float, ...]
    hidden: tuple[tuple[str, str], ...] = ()


ONE = Ranges(None, ("1 = 1",), "one", (1.0,))
"""All rows by one reader."""
