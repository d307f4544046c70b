"""Concurrent reads of many objects of a metastore, on as many connections as improve throughput (see `width`).

Reads only: changes have an order of their own, and may collide in the server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, tee
from typing import Generic, TypeVar

from replicator.core.batches import batched
from replicator.core.model import Partition, Table
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.traffic import MOST, Traffic

TABLE_BATCH = 100  # tables of one call, so that several calls share a database; 25 are not faster, 500 slower
TABLE_WEIGHT = 10  # weight of the calls for one table, in partitions

Item = TypeVar("Item")
Read = TypeVar("Read")


def side_by_side(
    traffic: Traffic,
    read: Callable[[Item], Read],
    items: Iterable[Item],
    *,
    weigh: Callable[[Read], float] = lambda _: 1.0,
    known: Callable[[Item], Read | None] = lambda _: None,
) -> Iterator[Read]:
    """Yields `read(item)` of each item, run in threads, in the order of `items`, which are drawn in the caller's
    thread, few ahead: memory holds the results of at most twice as many as are read concurrently.

    weigh: the size of what was read, to distinguish a busy server from a large table; 0 if it is not comparable with
    the other concurrent reads. known: returns results that require no read. The first error ends it, as does a caller
    that stops: items that have not begun are never read."""
    with _Ahead(traffic, _Walk(traffic, read, weigh), items, known) as ahead:
        yield from ahead


def read_both(
    sides: tuple[MetastoreReader, MetastoreReader],
    read: Callable[[int, Item], Read],
    items: Iterable[Item],
    *,
    weigh: Callable[[Read], float] = lambda _: 1.0,
    known: Callable[[Item], Read | None] = lambda _: None,
) -> Iterator[tuple[Item, Read, Read]]:
    """Same as `side_by_side`, for two metastores concurrently, each at its own width: yields every item with `read(0,
    item)`, which queries the first of `sides`, and `read(1, item)`."""
    given, *drawn = tee(items, 3)
    walks = [
        _Ahead(side.traffic, _Walk(side.traffic, partial(read, number), weigh), drawn[number], known)
        for number, side in enumerate(sides)
    ]
    with walks[0] as here, walks[1] as there:
        here.fill()
        there.fill()
        yield from zip(given, here, there, strict=True)


class _Ahead(Generic[Item, Read]):
    """The results of a walk in order, including those that are read ahead. Not thread-safe."""

    def __init__(
        self, traffic: Traffic, walk: _Walk[Item, Read], items: Iterable[Item], known: Callable[[Item], Read | None]
    ) -> None:
        self._traffic, self._walk, self._items, self._known = traffic, walk, iter(items), known
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="read")
        self._results: deque[Future[Read]] = deque()

    def __enter__(self) -> _Ahead[Item, Read]:
        return self

    def __exit__(self, *_: object) -> None:
        self._walk.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)  # a running call ends with its client

    def __iter__(self) -> Iterator[Read]:
        while True:
            self.fill()
            if not self._results:
                return
            yield self._results.popleft().result()

    def fill(self) -> None:
        while len(self._results) <= 2 * self._traffic.at_once:
            drawn = list(islice(self._items, 1))
            if not drawn:
                return
            self._results.append(self._submitted(drawn[0]))

    def _submitted(self, item: Item) -> Future[Read]:
        answer = self._known(item)
        if answer is None:
            return self._pool.submit(self._walk.one, item)
        done: Future[Read] = Future()
        done.set_result(answer)
        return done


class _Walk(Generic[Item, Read]):
    """A walk with as many concurrent reads as the current width."""

    def __init__(self, traffic: Traffic, read: Callable[[Item], Read], weigh: Callable[[Read], float]) -> None:
        self._traffic, self._read, self._weigh = traffic, read, weigh
        self._changed = threading.Condition()
        self._running = 0
        self._stopped = False
        traffic.begin()

    def one(self, item: Item) -> Read:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._running < self._traffic.at_once)
            if self._stopped:
                raise CancelledError
            self._running += 1
        try:
            result = self._read(item)
            self._traffic.answered(self._weigh(result))
            return result
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def tables_with_partitions(
    source: MetastoreReader, db: str, names: Sequence[str]
) -> Iterator[tuple[Table, Iterable[list[Partition]]]]:
    """Yields tables of a database with their partitions, in batches that must be consumed before the next table. Tables
    that are dropped concurrently, or with their database, are omitted, or have fewer partitions than before."""

    def tables(some: Sequence[str]) -> list[Table]:
        try:
            return source.tables(db, some)
        except ObjectNotFound:
            return []

    def read(table: Table) -> tuple[Table, list[Partition], Iterator[list[Partition]]]:
        rest = _until_gone(source.all_partitions(table.db, table.name))
        return table, next(rest, []), rest

    def known(table: Table) -> tuple[Table, list[Partition], Iterator[list[Partition]]] | None:
        return None if table.is_partitioned else (table, [], iter(()))

    traffic = source.traffic
    pages = side_by_side(traffic, tables, batched(names, TABLE_BATCH), weigh=lambda _: 0.0)
    found = side_by_side(
        traffic, read, chain.from_iterable(pages), weigh=lambda each: TABLE_WEIGHT + len(each[1]), known=known
    )
    for table, first, rest in found:
        yield table, chain([first], rest)


def _until_gone(pages: Iterator[list[Partition]]) -> Iterator[list[Partition]]:
    try:
        yield from pages
    except ObjectNotFound:
        return
