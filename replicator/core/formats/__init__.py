"""Table formats: a module for each, behind one interface.

Begin with `interface.py`; then `delta_table.py`, the shortest format with a log of its own. A further format is one
module and a row of `FORMATS`.
"""

from __future__ import annotations

from replicator.core.formats.delta_table import DELTA, UNIFORM
from replicator.core.formats.hudi_table import HUDI
from replicator.core.formats.iceberg_table import ICEBERG, ICEBERG_VIEW
from replicator.core.formats.interface import Signs, TableFormat
from replicator.core.formats.other_tables import INDEX, OTHER_SYSTEM, PAIMON, PLAIN
from replicator.core.formats.outside import WITHOUT_TABLE
from replicator.core.formats.symlink_table import SYMLINK
from replicator.core.formats.transactional_table import TRANSACTIONAL
from replicator.core.model import Table

__all__ = [
    "FORMATS",
    "PLAIN",
    "WITHOUT_TABLE",
    "format_of",
    "is_transactional",
    "kind_of",
    "named_metadata",
    "of_metadata",
    "pointer_of",
]

_IN_ORDER = (PLAIN, INDEX, ICEBERG, ICEBERG_VIEW, UNIFORM, DELTA, HUDI, PAIMON, SYMLINK, TRANSACTIONAL, OTHER_SYSTEM)
"""A table without a type is of the first format that recognises it, else plain."""

_NAMED = [each for each in _IN_ORDER if each.names_metadata]
FORMATS: dict[str, TableFormat] = {each.name: each for each in _IN_ORDER}
_FITTING = {is_view: [each for each in _IN_ORDER if each.of_views in (None, is_view)] for is_view in (False, True)}
_TYPED = {is_view: {type: each for each in reversed(some) for type in each.types} for is_view, some in _FITTING.items()}


def format_of(table: Table) -> TableFormat:
    """Returns a table's format, regardless of case: by the type that a catalog or Spark gave it, which counts first,
    or by other properties, storage handler and input format. Of the two types Delta counts: UniForm gives a Delta table
    an Iceberg table's type, too, and its pointer."""
    signs = Signs(table)
    if UNIFORM.recognises(signs):
        return UNIFORM
    typed = [found for given in signs.types if (found := _TYPED[table.is_view].get(given))]
    if typed:
        return DELTA if DELTA in typed else typed[0]
    return next((each for each in _FITTING[table.is_view] if each.recognises(signs)), PLAIN)


def pointer_of(table: Table) -> str:
    """Returns the location of a table's metadata file, if the metastore leads its readers there; "" for others."""
    found = format_of(table)
    return "" if found.names_metadata else found.pointer(table)


def named_metadata(table: Table) -> str:
    """Returns the location of a view's metadata file, if it is copied like others that metadata names; else ""."""
    found = format_of(table)
    return found.pointer(table) if found.names_metadata else ""


def of_metadata(path: str) -> TableFormat | None:
    """Returns the format whose metadata files have this name, if they are copied like others that metadata names."""
    return next((each for each in _NAMED if each.is_metadata(path)), None)


def is_transactional(table: Table) -> str:
    """Returns FULL for a transactional table with row ids, INSERT_ONLY for one without; "" for any other object, and
    for a materialized view."""
    return format_of(table).transactions(table)


def kind_of(reason: str) -> str:
    """Returns the format of the tables that are left out for a reason; "other" for any other reason."""
    return next((each.name for each in _IN_ORDER if each.said and reason.startswith(each.said)), "other")
