"""The order of renames: each name must be free when something gets it, and names may go round in a circle. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from replicator.errors import Refused

Key = TypeVar("Key")

PASSING = "__replicator_swap"  # ends the name of what is on its way, where renames go round in a circle


def passing_name(name: tuple[str, str]) -> tuple[str, str]:
    """A table's name on its way."""
    return name[0], name[1] + PASSING


def rename_order(
    renames: Mapping[Key, Key], occupied: Iterable[Key], passing: Callable[[Key], Key]
) -> list[tuple[Key, Key]]:
    """Renames (from, to) in an order in which every target name is free; a circle is opened by a passing name.

    Raises Refused when a name is taken by something that does not leave it."""
    waiting = dict(renames)
    taken = set(occupied) | set(waiting)
    ways = set(waiting.values())
    order = []
    while waiting:
        free = [old for old, new in waiting.items() if new not in taken]
        if free:
            for old in free:
                order.append((old, waiting.pop(old)))
                taken.discard(old)
                taken.add(order[-1][1])
            continue
        circle = next((old for old in waiting if old in ways and passing(old) not in taken), None)
        if circle is None:
            blocked = ", ".join(f"{_named(old)} -> {_named(new)}" for old, new in list(waiting.items())[:5])
            raise Refused(
                f"renames of the source meet names that the target uses otherwise: {blocked}",
                hint="drop or rename what has these names on the target, then load again; --overwrite replaces tables",
            )
        staged = passing(circle)
        order.append((circle, staged))
        waiting[staged] = waiting.pop(circle)
        taken.discard(circle)
        taken.add(staged)
    return order


def _named(key: object) -> str:
    """A table's name as db.table, a partition's as it is."""
    return ".".join(key) if isinstance(key, tuple) else str(key)
