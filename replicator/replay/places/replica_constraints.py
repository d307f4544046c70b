"""Constraints of a replica: those of the source as the target has to have them, and those that it cannot have. Pure.

A table of the target notes what it lacks, so that loads try again, and a comparison knows it for what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from replicator.core.model import CHECK, Constraint, Table, Value
from replicator.core.not_replicated import NotReplicated

NO_CONSTRAINT = "without constraints"  # begin of the reason why a table is not as the source's
LACKING = "replicator.constraints"  # of a table: the constraints that it should have, and has not
ROOM = 3500  # characters of the note: metastores keep 4000 of a property


class Lack(Value, frozen=True, omit_defaults=True):
    """A constraint as the target should have it, and why it has not."""

    constraint: Constraint
    reason: str

    def __str__(self) -> str:
        return f"{self.constraint}: {self.reason}"


def replica_constraints(
    constraints: Iterable[Constraint], kinds: frozenset[str], replica: Callable[[str], str | None]
) -> tuple[list[Constraint], list[Lack]]:
    """What the target has to have of a source's table, and what it cannot. `kinds`: the target's; `replica`: a source
    database's name on the target, None for one that is not replicated with it."""
    wanted, lacking = [], []
    for each in constraints:
        db = replica(each.parent[0]) if each.parent else None
        if not each.columns and each.kind != CHECK:
            lacking.append(Lack(each, "the source's metastore has forgotten its columns: drop and add it there"))
        elif each.kind not in kinds:
            lacking.append(Lack(each, f"the target's metastore has no {each.kind} constraints"))
        elif each.parent and db is None:
            lacking.append(Lack(each, f"database {each.parent[0]} is not replicated with it"))
        else:
            wanted.append(msgspec.structs.replace(each, parent=each.parent and (db or "", each.parent[1])))
    return wanted, lacking


def not_replicated(table: str, lacking: Sequence[Lack]) -> NotReplicated:
    """`table`: by its name at the source."""
    return NotReplicated(table, f"{NO_CONSTRAINT} {'; '.join(map(str, lacking))}")


def noted_lack(parameters: Mapping[str, str]) -> list[Lack]:
    """What a table of the target says that it lacks; a note that nobody can read is none."""
    try:
        return msgspec.json.decode(parameters.get(LACKING, "[]"), type=list[Lack])
    except msgspec.DecodeError:
        return []


def with_lack(table: Table, lacking: Sequence[Lack]) -> Table:
    """The table with this note, or without any. What there is no room for is not noted: only a load that brings the
    table's constraints again tries it again."""
    parameters = {key: value for key, value in table.parameters.items() if key != LACKING}
    while lacking and len(text := msgspec.json.encode(lacking).decode()) > ROOM:
        lacking = lacking[: len(lacking) // 2]
    if lacking:
        parameters[LACKING] = text
    return msgspec.structs.replace(table, parameters=parameters)
