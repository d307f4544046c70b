"""Conversion of constraints from and to thrift: one row per kind. Pure.

Thrift has a struct for each column of a constraint; a value has all columns. The name of the owning table is not part
of the value: the caller knows it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hmsclient.genthrift.hive_metastore import ttypes

import replicator.metastore.fields  # noqa: F401  adds structs
from cmroot.errors import FormatError
from cmroot.names import HINT
from replicator.core.model import CHECK, DEFAULT, FOREIGN_KEY, NOT_NULL, PRIMARY_KEY, UNIQUE, Constraint, Name
from replicator.metastore import codecs


class Kind(NamedTuple):
    """One kind. `struct`: thrift's, of one column; `name`, `value`: its fields for these; `listed`: the field of
    responses with all constraints, `message`: that of an event's message; `added`: that of the request to add them."""

    struct: str
    name: str
    listed: str
    message: str
    added: str
    value: str = ""

    @property
    def cls(self) -> Any:
        return getattr(ttypes, self.struct)


KINDS = {
    PRIMARY_KEY: Kind("SQLPrimaryKey", "pk_name", "primaryKeys", "primaryKeyListJson", "primaryKeyCols"),
    UNIQUE: Kind(
        "SQLUniqueConstraint", "uk_name", "uniqueConstraints", "uniqueConstraintListJson", "uniqueConstraintCols"
    ),
    NOT_NULL: Kind(
        "SQLNotNullConstraint", "nn_name", "notNullConstraints", "notNullConstraintListJson", "notNullConstraintCols"
    ),
    DEFAULT: Kind(
        "SQLDefaultConstraint",
        "dc_name",
        "defaultConstraints",
        "defaultConstraintListJson",
        "defaultConstraintCols",
        "default_value",
    ),
    CHECK: Kind(
        "SQLCheckConstraint",
        "dc_name",
        "checkConstraints",
        "checkConstraintListJson",
        "checkConstraintCols",
        "check_expression",
    ),
    FOREIGN_KEY: Kind("SQLForeignKey", "fk_name", "foreignKeys", "foreignKeyListJson", "foreignKeyCols"),
}
"""The kinds in the order in which they are added to a table: a foreign key refers to a primary or unique key."""

_ORDER = {kind: order for order, kind in enumerate(KINDS)}


def ordered(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Returns the constraints in the order in which values store and compare them."""
    return tuple(sorted(constraints, key=lambda each: (_ORDER.get(each.kind, len(_ORDER)), each.name)))


def from_structs(kind: str, structs: Iterable[Any]) -> dict[Name, list[Constraint]]:
    """Groups constraints by their table. Raises FormatError for a constraint without a name or a table."""
    grouped: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    row, foreign = KINDS[kind], kind == FOREIGN_KEY
    for each in structs:
        owner = (each.fktable_db, each.fktable_name) if foreign else (each.table_db, each.table_name)
        grouped[(*owner, getattr(each, row.name))].append(each)
    found: dict[Name, list[Constraint]] = defaultdict(list)
    for (db, table, name), columns in grouped.items():
        if not db or not table or not name:
            raise FormatError(f"a {kind} has no name or no table: {columns[0]!r}", hint=HINT)
        found[db, table].append(_constraint(kind, name, columns))
    return found


def _constraint(kind: str, name: str, structs: list[Any]) -> Constraint:
    structs.sort(key=lambda each: getattr(each, "key_seq", None) or 0)
    first, row, foreign = structs[0], KINDS[kind], kind == FOREIGN_KEY
    columns = [each.fkcolumn_name if foreign else each.column_name for each in structs]
    parents = [each.pkcolumn_name for each in structs] if foreign else []
    whole = all(columns + parents)  # a 3.1 server loses them when the table's columns change
    return Constraint(
        kind=kind,
        name=name,
        columns=tuple(columns) if whole else (),
        parent=(first.pktable_db, first.pktable_name) if foreign else None,
        parent_columns=tuple(parents) if whole else (),
        rules=(first.update_rule or 0, first.delete_rule or 0) if foreign else (0, 0),
        value=getattr(first, row.value) if row.value else None,
        enable=bool(first.enable_cstr),
        validate=bool(first.validate_cstr),
        rely=bool(first.rely_cstr),
    )


def to_structs(db: str, table: str, constraint: Constraint, catalog: str) -> list[Any]:
    """Returns one struct for each column; one without a column for a check of the entire row."""
    return [
        _struct(db, table, constraint, at, catalog)
        for at in range(1 if constraint.kind == CHECK else len(constraint.columns))
    ]


def _struct(db: str, table: str, constraint: Constraint, at: int, catalog: str) -> Any:
    row, foreign = KINDS[constraint.kind], constraint.kind == FOREIGN_KEY
    prefix = "fk" if foreign else ""
    column = constraint.columns[at] if at < len(constraint.columns) else None
    values = {
        "catName": catalog,
        f"{prefix}table_db": db,
        f"{prefix}table_name": table,
        f"{prefix}column_name": column,
        row.name: constraint.name,
        "key_seq": at + 1,
        "enable_cstr": constraint.enable,
        "validate_cstr": constraint.validate,
        "rely_cstr": constraint.rely,
    }
    if foreign and constraint.parent:
        values |= {"pktable_db": constraint.parent[0], "pktable_name": constraint.parent[1]}
        values |= {"pkcolumn_name": constraint.parent_columns[at]}
        values |= {"update_rule": constraint.rules[0], "delete_rule": constraint.rules[1]}
    if row.value:
        values[row.value] = constraint.value
    made = row.cls()
    known = {each[2] for each in row.cls.thrift_spec if each}
    for name, value in values.items():
        if name in known:
            setattr(made, name, value)
    return made


def of_message(kind: str, texts: Sequence[str]) -> dict[Name, list[Constraint]]:
    """Returns the constraints in an event's message, the text of one struct for each column. Raises FormatError."""
    cls = KINDS[kind].cls
    return from_structs(kind, (codecs.struct_from_tjson(cls, json.loads(text)) for text in texts))
