"""Objects that a replica does not have as the source has them, each by name and with the reason. Pure.

Captures find them, dumps carry them, loads and runs hand them on: whoever looks at any of these reports sees what is
lacking, and the exit code says that something is (3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

INCOMPLETE = "incomplete"  # the status of a report that names any
PARTIAL = 3  # its exit code
PROPERTY = "replicator.not_replicated"  # of a replica's database: its own word, whatever becomes of its source
REMOTE = (
    "it is REMOTE: its tables are another system's, and its data connector, which may have passwords, is not replicated"
)
"""Of a database."""
CONNECTOR = "data connector "  # begin of the name of such an object, which is in no database
NO_CONNECTOR = "it may have passwords: make it by hand where it is wanted"
NOT_TAKEN = "the target's metastore does not take it"  # begin of the reason of such an object
ROOM = 3500  # characters of its value: metastores keep 4000 of a property


@dataclass(frozen=True)
class NotReplicated:
    """`object`: "db.table" (or a database alone, or a data connector), as the source calls it; `partition`: its escaped
    name, empty for the whole object; `reason`: a sentence. `bytes`: that are concerned, None where nobody knows;
    `since`: seconds since the epoch at which it was noticed. `unknown`: nobody could see which files it has, so what
    the replica has of it stays; the dump names the files that were seen last."""

    object: str
    reason: str
    partition: str = ""
    bytes: int | None = None
    since: int | None = None
    unknown: bool = False

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object

    def __str__(self) -> str:
        """For people."""
        return f"{self.name}: {self.reason}"


def merged(*lists: Iterable[NotReplicated]) -> list[NotReplicated]:
    """All of several lists, each thing once: what is reported last of it counts."""
    found = {(each.object, each.partition): each for some in lists for each in some}
    return [found[key] for key in sorted(found)]


def renamed(things: Iterable[NotReplicated], databases: dict[str, str]) -> list[NotReplicated]:
    """The same by the names that databases have elsewhere."""
    changed = []
    for each in things:
        db, dot, table = each.object.partition(".")
        changed.append(replace(each, object=f"{databases.get(db, db)}{dot}{table}"))
    return changed


# ---- the word of a replica ------------------------------------------------------------------------------------------


class _Word(msgspec.Struct, frozen=True):
    count: int
    first: tuple[NotReplicated, ...]


def as_property(things: Sequence[NotReplicated]) -> str:
    """What a replica's database says of itself: how many there are, and as many of them as there is room for."""
    shown = [replace(each, reason=_short(each.reason)) for each in things]
    while True:
        text = json.dumps(msgspec.to_builtins(_Word(len(things), tuple(shown))))  # ASCII, for any database
        if len(text) <= ROOM or not shown:
            return text
        shown = shown[: len(shown) // 2]


def with_property(parameters: dict[str, str], things: Sequence[NotReplicated]) -> dict[str, str]:
    """A database's parameters that say this, and nothing of before."""
    rest = {key: value for key, value in parameters.items() if key != PROPERTY}
    return rest | ({PROPERTY: as_property(things)} if things else {})


def _short(reason: str) -> str:
    return reason if len(reason) <= 300 else f"{reason[:300]}..."


def from_property(text: str | None, database: str) -> list[NotReplicated]:
    """The other way; what there was no room for is one more entry, of the whole database. Empty for no property. One
    that cannot be read says so."""
    if not text:
        return []
    try:
        word = msgspec.json.decode(text, type=_Word)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [NotReplicated(database, f"its property {PROPERTY} cannot be read: {error}")]
    more = word.count - len(word.first)
    rest = [NotReplicated(database, f"{more:,} more objects of it are not replicated", unknown=True)] if more else []
    return [*word.first, *rest]
