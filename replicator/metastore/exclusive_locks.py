"""Exclusive locks of a metastore on transactional tables and their partitions, while their data is removed.

Queries and writers of Hive hold shared locks, so nothing is removed that one of them uses, and those that begin wait. A
server ends locks that get no heartbeat (hive.txn.timeout, 300 s), also those of a killed run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread

from replicator.core.formats import is_transactional
from replicator.core.grouping import batched
from replicator.core.model import Name, Part
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import Metastore
from replicator.metastore.transactions import OWNER

BEAT = 10.0  # seconds between heartbeats
PARTS = 1000  # parts of one lock: a server keeps a row for each
IN_USE = "it is in use: a query or a writer has a lock on it"


class ExclusiveLocks:
    """The locks of one removal. unlocked: the parts that could not be locked, and why."""

    def __init__(self, metastore: Metastore, stack: ExitStack, holder: str) -> None:
        self._metastore, self._stack, self._holder, self._locks = metastore, stack, holder, list[int]()
        self.unlocked: dict[Part, str] = {}

    def take(self, parts: Iterable[Part]) -> None:
        """Locks parts without waiting: together, or, if one of them is in use, by halves."""
        for some in batched(parts, PARTS):
            self._take(some)

    def _take(self, some: list[Part]) -> None:
        try:
            lock = self._metastore.lock_parts(some, self._holder)
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
            self._take(some[: len(some) // 2])
            self._take(some[len(some) // 2 :])

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
def locked(metastore: Metastore, parts: Iterable[Part]) -> Iterator[ExclusiveLocks]:
    """Holds exclusive locks on those parts that are of transactional tables; others need none."""
    tables: dict[Name, dict[Part, None]] = {}
    for part in parts:
        tables.setdefault(part[:2], {})[part] = None
    with ExitStack() as stack:
        locks = ExclusiveLocks(metastore, stack, OWNER)
        for name, some in tables.items():  # one by one: an error is about one table
            if _is_transactional(metastore, *name):
                locks.take(some)
        stack.enter_context(locks.beating())
        yield locks


def _is_transactional(metastore: Metastore, db: str, table: str) -> bool:
    try:
        return bool(is_transactional(metastore.table(db, table)))
    except ObjectNotFound:
        return False
