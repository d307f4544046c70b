"""The planner of parallel reading: each row is read once, by readers with equal shares, whatever the values are."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.ingestion.reading.source_table import HASHES, Piece, Reader, plan_readers

Row = tuple[float | None, int]
"""A value, and the hash of its row."""


def key(value: float) -> tuple[bool, float]:
    """As PostgreSQL puts floating-point numbers in order: NaN is greater than all others, and equal to itself."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def has(piece: Piece, value: float | None, hashed: int) -> bool:
    if piece.hashes and not piece.hashes[0] <= hashed < piece.hashes[1]:
        return False
    if value is None or piece.null:
        return piece.null and value is None
    if piece.value is not None:
        return key(value) == key(float(piece.value))
    if piece.lower is not None and not (
        key(value) > key(float(piece.lower)) or (piece.from_lower and key(value) == key(float(piece.lower)))
    ):
        return False
    return piece.upper is None or key(value) < key(float(piece.upper))


def planned(values: list[float | None], readers: int, *, nullable: bool = True) -> list[Reader]:
    there = Counter("nan" if math.isnan(value) else repr(value + 0.0) for value in values if value is not None)
    ordered = sorted(there.items(), key=lambda each: key(float(each[0])))
    return plan_readers(ordered, values.count(None), readers, nullable=nullable)


def counted(readers: list[Reader], rows: list[Row]) -> list[int]:
    return [sum(any(has(piece, *row) for piece in reader.pieces) for row in rows) for reader in readers]


numbers = st.one_of(st.none(), st.integers(0, 9).map(float), st.floats(allow_nan=True, allow_infinity=True, width=32))


@given(st.lists(numbers, max_size=60), st.lists(numbers, max_size=20), st.integers(1, 9), st.integers(0, HASHES - 1))
def test_each_value_meets_one_piece_of_one_reader_also_one_that_no_sample_had(
    sample: list[float | None], others: list[float | None], readers: int, hashed: int
) -> None:
    plan = planned(sample, readers)
    assert 1 <= len(plan) <= readers
    for value in [*sample, *others, None, math.nan, -math.inf, math.inf, 0.0]:
        found = [piece for reader in plan for piece in reader.pieces if has(piece, value, hashed)]
        assert len(found) == 1, (value, found)
    assert math.isclose(sum(reader.share for reader in plan), 1.0)


@settings(max_examples=40)
@given(st.lists(numbers, min_size=1, max_size=80), st.integers(1, 9))
def test_no_reader_has_more_than_one_and_a_half_shares(sample: list[float | None], readers: int) -> None:
    plan = planned(sample, readers)
    rows = [(value, hashed) for value in sample for hashed in range(0, HASHES, 64)]
    assert max(counted(plan, rows)) <= 1.5 * len(rows) / readers + HASHES // 64
    assert max(reader.share for reader in plan) <= 1.5 / readers + 1e-9


def test_the_values_of_the_specification_are_read_in_equal_shares() -> None:
    dice = random.Random(8)
    near: list[float | None] = [float(round(dice.gauss(100, 2))) for _ in range(4_000)]
    sentinel: list[float | None] = [0.0 if dice.random() < 0.3 else dice.uniform(1, 1e6) for _ in range(4_000)]
    half_null: list[float | None] = [None if dice.random() < 0.5 else 1.0 for _ in range(4_000)]
    for values in ([0.0, *near], sentinel, half_null):
        rows = [(value, dice.randrange(HASHES)) for value in values]
        got = counted(planned(values, 10), rows)
        assert sum(got) == len(rows)
        assert len(got) == 10
        assert max(got) <= 1.25 * len(rows) / 10


def test_a_column_without_nulls_has_no_piece_for_them_and_the_ends_are_open() -> None:
    plan = planned([float(number) for number in range(100)], 4, nullable=False)
    pieces = [piece for reader in plan for piece in reader.pieces]
    assert pieces == [Piece(upper="25.0"), Piece("25.0", upper="50.0"), Piece("50.0", upper="75.0"), Piece("75.0")]
    assert plan_readers([], 0, 8, nullable=False) == [Reader((Piece(),), 1.0)]
    assert plan_readers([], 9, 1, nullable=True) == [Reader((Piece(), Piece(null=True)), 1.0)]
