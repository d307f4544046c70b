"""Directories of Hive's transactional tables: which of them have the rows of one state. Pure.

A table or partition has `base_N` (the rows of all write ids up to N), `delta_M_N[_S]` and `delete_delta_M_N[_S]`
(what ids M to N have written and deleted), and files from before it became transactional. Compactors of Hive 4 append
`_vT`: the transaction in which they made it. `chosen` takes what Hive's own readers take (AcidUtils.getAcidState of
Hive 3.1 and 4.0), and nothing that holds a row of an open or aborted id, so that a copy is right whatever the target's
metastore knows about them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

BASE, DELTA, DELETE = "base", "delta", "delete_delta"
_NAME = re.compile(r"(?:(base)_(\d+)|(delta|delete_delta)_(\d+)_(\d+)(?:_(\d+))?)(?:_v(\d+))?")
_MADE = re.compile(r"_v\d+$")
MADE_BY = "_metadata_acid"  # file of JSON in bases of Hive 3's compactor, and of a TRUNCATE
COMPACTED = "compacted"  # its `dataFormat`, of a compactor


@dataclass(frozen=True)
class State:
    """Write ids: all up to `high` are committed except those open or aborted. `insert_only`: rows have no ids."""

    high: int
    open: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()
    insert_only: bool = False

    def has(self, low: int, high: int) -> bool:
        """Returns True if any of these ids is committed."""
        last = min(high, self.high)
        return low <= last and _within(self._invalid, low, last) < last - low + 1

    def has_open(self, low: int, high: int) -> bool:
        return _within(self._open, low, high) > 0

    def has_aborted(self, low: int, high: int) -> bool:
        return _within(self._aborted, low, high) > 0

    @cached_property
    def _open(self) -> list[int]:
        return sorted(self.open)

    @cached_property
    def _aborted(self) -> list[int]:
        return sorted(self.aborted)

    @cached_property
    def _invalid(self) -> list[int]:
        return sorted(self.open | self.aborted)


def _within(ids: Sequence[int], low: int, high: int) -> int:
    """Returns how many of some sorted ids are in a range."""
    return bisect_right(ids, high) - bisect_left(ids, low)


@dataclass(frozen=True)
class Directory:
    """A directory by its name. `statement`: -1 if its name has none; `made`: the transaction of a compactor, or 0."""

    name: str
    kind: str
    low: int
    high: int
    statement: int = -1
    made: int = 0

    @property
    def is_wide(self) -> bool:
        """True if it has several ids: of a compactor, or of a writer that streams."""
        return self.kind == BASE or self.low < self.high


def parse(name: str) -> Directory | None:
    """Returns a directory's kind and ids, by its name; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base, at, kind, low, high, statement, made = match.groups()
    if base:
        return Directory(name, BASE, 0, int(at), made=int(made or 0))
    return Directory(name, kind, int(low), int(high), -1 if statement is None else int(statement), int(made or 0))


@dataclass
class Chosen:
    """`names`: the directories of a state; `originals`: True if files outside of such directories count, too.
    `unclear`: wide directories that the state cannot judge: a compactor may have made them since, and removed others;
    `mixed`: those left out because their files have committed and aborted rows."""

    names: set[str] = field(default_factory=set)
    originals: bool = True
    unclear: set[str] = field(default_factory=set)
    mixed: set[str] = field(default_factory=set)

    def left_out(self, state: State) -> list[str]:
        """Returns the directories that are left out though they have committed rows, if the unclear ones are of writers
        that have not ended."""
        deltas = (each for each in map(parse, self.unclear) if each and each.kind != BASE)
        return sorted(self.mixed | {each.name for each in deltas if state.has(each.low, each.high)})


def chosen(
    names: Iterable[str],
    state: State,
    is_compacted: Callable[[str], bool] = lambda name: False,
    is_clean: Callable[[str], bool] = lambda name: True,
) -> Chosen:
    """Chooses the directories of one state. names: of all directories in that of a table or partition. Called only if
    the answer matters: is_compacted: returns True for a base that a compactor has made; is_clean: returns True for a
    delta of several ids that has no row of an aborted one."""
    found, usable = Chosen(), list[Directory]()
    for each in filter(None, map(parse, names)):
        match _use(each, state, is_compacted, is_clean):
            case "use":
                usable.append(each)
            case "unclear":
                found.unclear.add(each.name)
            case "mixed":
                found.mixed.add(each.name)
    bases = [each for each in usable if each.kind == BASE]
    best = max(bases, key=lambda each: (each.high, each.made), default=None)
    if best is not None:
        found.names.add(best.name)
        found.originals = False
    found.names |= {each.name for each in _deltas(usable, best.high if best else 0, state)}
    current = best.high if best else 0
    found.mixed = {name for name in found.mixed if (wide := parse(name)) and wide.high > current}
    return found


def _use(each: Directory, state: State, is_compacted: Callable[[str], bool], is_clean: Callable[[str], bool]) -> str:
    if each.kind == BASE:
        return _use_base(each, state, is_compacted)
    if not each.is_wide:
        return "use" if state.has(each.low, each.high) else "none"
    if each.high > state.high or state.has_open(each.low, each.high):
        return "unclear"
    if state.has_aborted(each.low, each.high) and not each.made and not is_clean(each.name):
        return "mixed"
    return "use"


def _use_base(each: Directory, state: State, is_compacted: Callable[[str], bool]) -> str:
    """A compactor's base has the rows of all ids up to its own, a writer's only those of its own."""
    if each.high > state.high or state.has_open(each.high, each.high):
        return "unclear"
    aborted = state.has_aborted(each.high, each.high)
    if not aborted and not state.has_open(0, each.high):
        return "use"
    if not each.made and not is_compacted(each.name):
        return "none" if aborted else "use"
    return "unclear" if state.has_open(0, each.high) else "use"


def _deltas(usable: Iterable[Directory], current: int, state: State) -> Iterable[Directory]:
    """Yields the deltas that readers take after a base: a wide one replaces those that it was made of."""
    deltas = [each for each in usable if each.kind != BASE and each.high > current]
    newest: dict[tuple[str, int, int, int], Directory] = {}
    for each in deltas:  # of equal ones the compactor's last counts
        key = (each.kind, each.low, each.high, each.statement)
        if key not in newest or newest[key].made < each.made:
            newest[key] = each
    before: Directory | None = None
    statement = -1
    for each in sorted(newest.values(), key=lambda each: (each.low, -each.high, each.statement, each.kind)):
        pair = before and (each.low, each.high, each.statement) == (before.low, before.high, before.statement)
        if each.high > current:
            if not state.has(current + 1, each.high):
                continue
            current, statement = each.high, each.statement
        elif not pair and not (each.high == current and statement >= 0):  # another statement of one transaction
            continue
        before = each
        yield each


def replica_path(path: str) -> str:
    """Returns a file's path on a replica: a compactor's transaction means nothing there."""
    top, slash, rest = path.partition("/")
    return f"{_MADE.sub('', top)}{slash}{rest}" if slash and parse(top) else path


def directory_of(path: str) -> Directory | None:
    """Returns the directory of a file, by its path in the table or partition; None for a file outside of any."""
    top, slash, _ = path.partition("/")
    return parse(top) if slash else None
