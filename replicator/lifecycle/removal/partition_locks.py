"""Exclusive locks of a metastore on transactional tables and their partitions, while their data is removed.

Queries and writers of Hive hold shared locks, so nothing is removed that one of them uses. A server ends locks that get
no heartbeat (hive.txn.timeout, 300 s), also those of a killed run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread

from replicator.core.formats import is_transactional
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import Metastore

BEAT = 10.0  # seconds between heartbeats
IN_USE = "it is in use: a query or a writer has a lock on it"

Part = tuple[str, str, str]
"""Database, table and partition; without a partition, the table."""


class PartitionLocks:
    """The locks of one removal. unlocked: the parts that could not be locked, and why."""

    def __init__(self, metastore: Metastore, stack: ExitStack) -> None:
        self._metastore, self._stack, self._locks = metastore, stack, list[int]()
        self.unlocked: dict[Part, str] = {}

    def take(self, parts: Collection[Part]) -> None:
        """Locks parts of one table without waiting: together, or, if one of them is in use, by halves."""
        some = list(parts)
        db, table, _ = some[0]
        try:
            lock = self._metastore.lock_parts(db, table, [partition for _, _, partition in some])
        except MetastoreError as error:
            if error.transient:
                raise
            self.unlocked |= dict.fromkeys(some, f"its metastore gives no lock: {error.message}")
            return
        if lock is not None:
            self._stack.callback(self._metastore.unlock, lock)
            self._locks.append(lock)
        elif len(some) == 1:
            self.unlocked[some[0]] = IN_USE
        else:
            self.take(some[: len(some) // 2])
            self.take(some[len(some) // 2 :])

    def check(self) -> None:
        """Raises MetastoreError if the server has ended a lock."""
        for lock in self._locks:
            self._metastore.keep_lock(lock)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Sends heartbeats until the end of the block."""
        done = Event()
        thread = Thread(target=self._beat, args=(done,), name="locks", daemon=True)
        if self._locks:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if self._locks:
                thread.join()

    def _beat(self, done: Event) -> None:
        while not done.wait(BEAT):
            with suppress(MetastoreError):  # `check` notices a lost lock
                self.check()


@contextmanager
def locked(metastore: Metastore, parts: Iterable[Part]) -> Iterator[PartitionLocks]:
    """Holds exclusive locks on those parts that are of transactional tables; others need none."""
    tables: dict[tuple[str, str], dict[Part, None]] = {}
    for part in parts:
        tables.setdefault(part[:2], {})[part] = None
    with ExitStack() as stack:
        locks = PartitionLocks(metastore, stack)
        for name, some in tables.items():
            if _is_transactional(metastore, *name):
                locks.take(some)
        stack.enter_context(locks.beating())
        yield locks


def _is_transactional(metastore: Metastore, db: str, table: str) -> bool:
    try:
        return bool(is_transactional(metastore.table(db, table)))
    except ObjectNotFound:
        return False
