"""Planning of parallel reads: which values of a sorted sample each reader reads. Pure; generates no SQL.

All rows are on a line, NULL first. The line is cut into equal lengths. A cut within a value with few rows moves to its
nearer end; a cut within a value with many rows divides it by a hash of the row. So each reader has one interval of
values, and at most a part of the value at either end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

HASHES = 1024
"""Number of hash values that divide the rows of one value: 0 to `HASHES` - 1."""

HEAVY = 0.25
"""Fraction of a reader's share: a value with more rows may be cut. Each end of a range is off by at most half of it."""


@dataclass(frozen=True)
class Piece:
    """Rows of an interval of values, or of one value. lower, upper: None: unbounded; `lower` itself is included if
    `from_lower`, `upper` never is. null: the rows without a value. value, hashes: rows of one value (None with `null`)
    whose hash is in [from, to)."""

    lower: str | None = None
    from_lower: bool = True
    upper: str | None = None
    null: bool = False
    value: str | None = None
    hashes: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reader:
    """A reader of the rows in any of its pieces. share: estimated fraction of all rows."""

    pieces: tuple[Piece, ...]
    share: float


Cut = tuple[int, int]
"""Before the value of this index, but after its rows with a smaller hash."""

FIRST: Cut = (1, 0)
"""After NULL, before all values."""


def plan_readers(values: Sequence[tuple[str, int]], nulls: int, readers: int, *, nullable: bool) -> list[Reader]:
    """Plans at most `readers`; each row, regardless of its value, is in exactly one piece. values: of a sample,
    ascending in the source's order, each with its number of rows; nulls: rows without one. nullable: True if such rows
    may exist."""
    masses = [nulls, *(count for _, count in values)]  # 0 is NULL, value k is at k + 1
    total = sum(masses)
    if total == 0 or readers < 2:
        return [Reader((Piece(), Piece(null=True)) if nullable else (Piece(),), 1.0)]
    cuts = _cuts(masses, total, readers)
    names = ["", *(value for value, _ in values)]
    planned = []
    for begin, end in pairwise(cuts):
        pieces = tuple(piece for piece in _pieces(names, begin, end) if nullable or not piece.null)
        if pieces:
            planned.append(Reader(pieces, _mass(masses, begin, end) / total))
    return planned


def _cuts(masses: Sequence[int], total: int, readers: int) -> list[Cut]:
    """Returns cuts, ascending and distinct, from the start of the line to its end."""
    ideal = total / readers
    cuts: list[Cut] = [(0, 0)]
    index, before = 0, 0
    for number in range(1, readers):
        wanted = number * ideal
        while index < len(masses) - 1 and before + masses[index] <= wanted:
            before += masses[index]
            index += 1
        inside = wanted - before
        if masses[index] > HEAVY * ideal:
            part = round(inside / masses[index] * HASHES)
            cut = (index + 1, 0) if part == HASHES else (index, part)
        else:
            cut = (index, 0) if inside * 2 < masses[index] else (index + 1, 0)
        if cuts[-1] < cut < (len(masses), 0):
            cuts.append(cut)
    return [*cuts, (len(masses), 0)]


def _pieces(names: Sequence[str], begin: Cut, end: Cut) -> list[Piece]:
    """Returns the pieces of the line between two cuts. Values outside the sample are between sampled ones: those below
    the first one belong to the piece after NULL."""
    (first, skipped), (last, taken) = begin, end
    pieces = []
    if first == 0 and (skipped or last == 0):
        pieces.append(_part(names, 0, skipped, taken if last == 0 else HASHES))
    elif first == 0:
        pieces.append(Piece(null=True))
    elif skipped:
        pieces.append(_part(names, first, skipped, taken if last == first else HASHES))
    if end > FIRST or last == len(names):
        upper = names[last] if last < len(names) else None
        if begin <= FIRST:
            pieces.append(Piece(upper=upper))
        elif last > first:
            pieces.append(Piece(names[first], from_lower=not skipped, upper=upper))
        if taken and (last > first or not skipped):
            pieces.append(_part(names, last, 0, taken))
    return pieces


def _part(names: Sequence[str], index: int, begin: int, end: int) -> Piece:
    return Piece(null=index == 0, value=names[index] if index else None, hashes=(begin, end))


def _mass(masses: Sequence[int], begin: Cut, end: Cut) -> float:
    return _before(masses, end) - _before(masses, begin)


def _before(masses: Sequence[int], cut: Cut) -> float:
    index, part = cut
    return sum(masses[:index]) + (masses[index] * part / HASHES if part else 0)
