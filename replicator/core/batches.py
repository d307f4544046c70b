"""Items in batches: for calls that take many names at once, and for tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """In order, `size` at a time, the last batch perhaps fewer; reads no further than the batch that is asked for."""
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch


def shared(items: Sequence[T], workers: int, most: int) -> Iterator[list[T]]:
    """Batches for so many workers: a share of the items each, and no batch of more than `most`."""
    return batched(items, max(1, min(most, -(-len(items) // workers))))
