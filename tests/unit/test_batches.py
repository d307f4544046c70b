"""Items in batches."""

from __future__ import annotations

from itertools import count

import pytest

from replicator.core.grouping import batched, shared


def test_batches_are_whole_but_the_last_and_nothing_is_read_ahead() -> None:
    assert list(batched("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(batched([], 2)) == []
    numbers = count()
    assert next(batched(numbers, 3)) == [0, 1, 2] and next(numbers) == 3


@pytest.mark.parametrize(("workers", "most", "sizes"), [(4, 20, [3, 3, 3, 1]), (1, 4, [4, 4, 2]), (50, 20, [1] * 10)])
def test_shares_are_as_many_as_workers_or_more_where_one_would_be_too_large(
    workers: int, most: int, sizes: list[int]
) -> None:
    assert [len(each) for each in shared(range(10), workers, most)] == sizes
    assert list(shared([], workers, most)) == []
