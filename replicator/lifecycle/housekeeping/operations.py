"""What is to be done to items when the captured log says that something changed: values of the decider. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.text.period import Period
from replicator.lifecycle.housekeeping.items import Item


@dataclass(frozen=True)
class Put:
    """Items that wait from now on, of one table and one period. again: their time begins now, also where it has begun
    before. dropped: they come of a drop, which may be one of our own."""

    items: list[Item]
    period: Period
    restarted: bool = False
    dropped: bool = False


@dataclass(frozen=True)
class Detach:
    """These objects are gone; partitions None: the whole table."""

    db: str
    table: str
    partitions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Disable:
    """The owner does not want it any more."""

    db: str
    table: str
    lifecycle: str
    reason: str


@dataclass(frozen=True)
class Revive:
    """The owner wants the locations that it has left to go again, this long after `begins`."""

    db: str
    table: str
    period: Period
    begins: int


@dataclass(frozen=True)
class Retime:
    """The period is another one."""

    db: str
    table: str
    lifecycle: str
    period: Period


@dataclass(frozen=True)
class Switch:
    """Whether the table itself may go is said differently."""

    db: str
    table: str
    drops: bool


@dataclass(frozen=True)
class Follow:
    """(db, table, partition or None) is called differently; moved: its directory went along, from, to."""

    before: tuple[str, str, str | None]
    after: tuple[str, str, str | None]
    moved: tuple[str, str] | None


@dataclass(frozen=True)
class Again:
    """These paths are referred to, by an object."""

    paths: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Trouble:
    """A table's properties cannot be understood."""

    item: Item


@dataclass(frozen=True)
class Settle:
    """They can be again, or they are gone."""

    db: str
    table: str
    lifecycle: str


Operation = Put | Detach | Disable | Revive | Retime | Switch | Follow | Again | Trouble | Settle
