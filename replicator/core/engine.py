"""Engines: run work that grows with the data. The engine for large work is in `spark`.

Work is a picklable function and a stream of tasks; the same function runs in threads for small work and on Spark for
large work. Tasks are few and large: each Spark task costs 25 to 50 ms of Python start-up.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from replicator.core.grouping import READ_AHEAD, BatchReader, Deciding, decide_local
from replicator.core.spark import SparkEngine

Task = TypeVar("Task")
Result = TypeVar("Result")
Source = TypeVar("Source")


class Engine(Protocol):
    """An executor of a function over tasks, several at once; results in any order. Errors of tasks are raised."""

    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""
        ...

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]: ...

    def group(
        self,
        read: Callable[[Source], Iterator[pa.RecordBatch]],
        sources: Iterable[Source],
        key: str,
        decide: Callable[[pa.Table], pa.Table],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """Groups all rows by the column `key` (a string) and decides over each group: one call of `decide` for each
        value, with the rows of all sources in any order. Its results are cast to `schema` and returned in any order, in
        bounded memory. `read` and `decide` may run twice for the same work."""
        ...


class LocalEngine:
    """Threads of this process. The inner loops spend their time in system calls and hashing, which release the GIL."""

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        self.parallelism = threads or min(8, os.cpu_count() or 2)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Runs the tasks in threads. Reads at most 2 x `parallelism` tasks ahead: a long stream remains a stream."""
        source = iter(tasks)
        with ThreadPoolExecutor(self.parallelism) as pool:
            running: deque[Future[Result]] = deque(
                pool.submit(function, task) for task in itertools.islice(source, 2 * self.parallelism)
            )
            try:
                while running:
                    result = running.popleft().result()
                    running.extend(pool.submit(function, task) for task in itertools.islice(source, 1))
                    yield result
            finally:
                for future in running:
                    future.cancel()

    def group(
        self,
        read: Callable[[Source], Iterator[pa.RecordBatch]],
        sources: Iterable[Source],
        key: str,
        decide: Callable[[pa.Table], pa.Table],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """Groups in this process; many rows wait in a temporary file."""
        reading = BatchReader(read, key, READ_AHEAD // self.parallelism)
        return decide_local(self.run, reading, sources, Deciding(decide, schema))


class AutoEngine:
    """Threads for small work, Spark for large work: `for_work` chooses by the number of items and of bytes."""

    SMALL_ITEMS = 20_000  # below, Spark's start (4 to 9 s) costs more than the work itself
    SMALL_BYTES = 4 << 30

    def __init__(self, local: LocalEngine, spark: SparkEngine, choice: str = "auto") -> None:
        """`choice`: auto, local or spark."""
        self._local, self._spark, self._choice = local, spark, choice

    def for_work(self, items: int, size: int = 0) -> Engine:
        """Returns the engine for work on `items` items with a total size of `size` bytes."""
        if self._choice == "local":
            return self._local
        small = items <= self.SMALL_ITEMS and size <= self.SMALL_BYTES
        return self._local if small and self._choice == "auto" else self._spark

    def preferring(self, choice: str) -> AutoEngine:
        """Returns an engine with the same threads and Spark, with `choice` if the current choice is auto."""
        return AutoEngine(self._local, self._spark, choice) if self._choice == "auto" else self

    @property
    def settings(self) -> Mapping[str, str]:
        """See SparkEngine.settings."""
        return self._spark.settings

    def session(self, settings: Mapping[str, str]) -> Any:
        """Returns a Spark session on a metastore, regardless of the choice; see SparkEngine.session."""
        return self._spark.session(settings)

    @property
    def start_seconds(self) -> float:
        """Seconds that Spark took to start; 0 if it was not used."""
        return self._spark.start_seconds

    def stop(self) -> None:
        self._spark.stop()
