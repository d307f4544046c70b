"""Reached: with which scope a replica came to its checkpoint, as its database says. Pure.

A checkpoint is one position for a whole database. When a load brought only some of its tables there, the others are
behind, and a later load of more than these would pass over what happened to them meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from replicator.captures.dumps.layout import Scope
from replicator.captures.events.scope import Patterns

SCOPE = "replicator.scope"  # property of a replica's database; replicas of older releases have none
ALL = "all"
_LONGEST = 2000  # characters; of a longer scope a digest is kept, which covers nothing but itself


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, str] = {}


def scope_of(databases: Sequence[str], patterns: Patterns) -> Scope:
    """Databases and patterns as a dump writes them down."""
    return Scope(
        databases=tuple(databases),
        include=tuple(each.pattern for each in patterns.include),
        exclude=tuple(each.pattern for each in patterns.exclude),
        partitions={table: each.text for table, each in patterns.partitions.items()},
    )


def reached(scope: Scope, db: str) -> str:
    """A scope as the property's value, for one database by its name in the scope."""
    mine = {table: text for table, text in scope.partitions.items() if table.lower().startswith(f"{db}.".lower())}
    part = _Part(tuple(sorted(scope.include)), tuple(sorted(scope.exclude)), mine)
    if part == _Part():
        return ALL
    text = msgspec.json.encode(part, order="deterministic")
    return text.decode() if len(text) <= _LONGEST else f"xxh3:{xxhash.xxh3_128_hexdigest(text)}"


def covers(known: str | None, wanted: str) -> bool:
    """Whether all tables and partitions of a scope were brought to the checkpoint. None: nobody knows, as with replicas
    of older releases. Patterns are compared as text: those that say less may be told to cover, never those that say
    more."""
    if known in (None, ALL, wanted):
        return True
    one, other = _part(known or ""), _part(wanted)
    if one is None or other is None:
        return False
    included = not one.include or (bool(other.include) and set(other.include) <= set(one.include))
    return included and set(one.exclude) <= set(other.exclude) and one.partitions.items() <= other.partitions.items()


def _part(text: str) -> _Part | None:
    if text == ALL:
        return _Part()
    try:
        return msgspec.json.decode(text, type=_Part)
    except msgspec.DecodeError:  # a digest, or what another hand wrote
        return None


def after_load(parameters: Mapping[str, str], wanted: str, *, moves: bool, whole: bool) -> dict[str, str]:
    """A database's parameters with the scope of its new checkpoint. moves: the checkpoint is another than before;
    whole: the load brought all of `wanted`, whatever was there."""
    known = parameters.get(SCOPE)
    if known is not None and not moves and not (whole and covers(wanted, known)):
        return dict(parameters)  # a repair of some tables, say
    if known is None and wanted == ALL and not whole:
        return dict(parameters)  # whether an earlier load brought less is not known
    return {**parameters, SCOPE: wanted}


def scope_text(scope: str) -> str:
    """For people."""
    part = _part(scope)
    if part is None:
        return "a choice of its tables"
    said = [f"--include {each}" for each in part.include] + [f"--exclude {each}" for each in part.exclude]
    return " ".join([*said, *(f"{table} where {text}" for table, text in part.partitions.items())]) or "all of it"
