"""The order of tables and views: a server makes a materialized view after what it reads, and drops it before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from replicator.core.model import Table
from replicator.metastore.convert.fields import ids

T = TypeVar("T")

CREATION = ids("Table", "creationMetadata")


def in_waves(things: Iterable[tuple[Table, T]]) -> list[list[T]]:
    """Things by what they are about: tables, then views, then materialized views, in as many waves as they read each
    other. Those that read each other in a circle come last, together: the server answers for them."""
    tables, views, waiting = list[T](), list[T](), dict[tuple[str, str], tuple[frozenset[tuple[str, str]], T]]()
    for table, thing in things:
        if read := _read_by(table):
            waiting[table.db, table.name] = read, thing
        else:
            (views if table.is_view else tables).append(thing)
    waves = [tables, views]
    while waiting:
        ready = [name for name, (read, _) in waiting.items() if not (read - {name}) & waiting.keys()]
        waves.append([waiting.pop(name)[1] for name in ready or list(waiting)])
    return [wave for wave in waves if wave]


def _read_by(table: Table) -> frozenset[tuple[str, str]]:
    """Tables and views that a materialized view reads; none for anything else."""
    found = set()
    for key in table.extra.keys() & CREATION:
        fields = table.extra[key]["rec"]
        for name in fields.get("4", {"set": ("str", 0)})["set"][2:]:
            db, _, read = name.rpartition(".")
            found.add((db.rpartition(".")[2], read))
    return frozenset(found)
