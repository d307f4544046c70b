"""Batches of items, for calls that take many names at once and for tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the items in order, `size` at a time; the last batch may be smaller. Reads no further than that batch."""
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch


def shared(items: Sequence[T], workers: int, most: int) -> Iterator[list[T]]:
    """Yields batches for `workers` workers: an equal share of the items each, and at most `most` items in a batch."""
    return batched(items, max(1, min(most, -(-len(items) // workers))))
