"""Reading many things of a metastore side by side, on as many connections as bring something (see `width`).

Reads only: changes have an order of their own, and what collides in a server is another matter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Generic, TypeVar

from replicator.core.batches import batched
from replicator.core.model import Partition, Table
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.parallel.traffic import Traffic
from replicator.metastore.parallel.width import MOST

TABLE_BATCH = 100  # tables of one call, so that several calls share a database; 25 are not faster, 500 slower
TABLE_WEIGHT = 10  # of the calls for one table, in partitions

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
    """`read(item)` of each item, in threads, in the order of `items`, which are drawn in the thread of the caller, few
    ahead: memory holds the results of at most twice as many as are read at once.

    weigh: how much was read, to tell a busy server from a large table; 0 where it cannot be compared with what else is
    read at the time. known: what needs no reading.
    The first error ends it, as does a caller that stops: what has not begun never does."""
    walk = _Walk(traffic, read, weigh)
    ahead: deque[Future[Read]] = deque()
    source = iter(items)
    pool = ThreadPoolExecutor(MOST, thread_name_prefix="read")
    try:
        while True:
            while len(ahead) <= 2 * traffic.at_once:
                drawn = list(islice(source, 1))
                if not drawn:
                    break
                ahead.append(_submitted(pool, walk, drawn[0], known(drawn[0])))
            if not ahead:
                return
            yield ahead.popleft().result()
    finally:
        walk.stop()
        pool.shutdown(wait=False, cancel_futures=True)  # a call under way ends with its client


def _submitted(pool: ThreadPoolExecutor, walk: _Walk[Item, Read], item: Item, answer: Read | None) -> Future[Read]:
    if answer is None:
        return pool.submit(walk.one, item)
    done: Future[Read] = Future()
    done.set_result(answer)
    return done


class _Walk(Generic[Item, Read]):
    """So many at once as the width is by now."""

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
    """Tables of a database with their partitions, in batches that are to be drawn before the next table. Those that go
    away meanwhile, the database included, are left out, or have fewer partitions than they had."""

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
