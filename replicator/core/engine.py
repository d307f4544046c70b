"""Engines: where work that grows with the data runs. `spark` has the large one.

Work is a picklable function and a stream of tasks; the same function runs in threads for small work and on Spark for
large. Tasks are few and fat: a Spark task costs 25 to 50 ms of Python start-up whatever it does.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from replicator.core.grouping import BatchReader, Deciding, decide_local
from replicator.core.spark import SparkEngine

Task = TypeVar("Task")
Result = TypeVar("Result")
Source = TypeVar("Source")


class Engine(Protocol):
    """Runs a function over tasks, several at once; results come in any order. A task's error is raised."""

    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
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
        """Bring together all rows that have one value in the column `key` (a string), and decide over each such group:
        one call of `decide` for a value, with the rows of all sources in any order. What it answers is cast to
        `schema` and comes in any order, in flat memory. `read` and `decide` may run twice for the same work."""
        ...


class LocalEngine:
    """Threads of this process. The loops inside spend their time in system calls and hashing, outside the lock."""

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        self.parallelism = threads or min(8, os.cpu_count() or 2)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Reads at most 2 x `parallelism` tasks ahead, so a long stream of tasks stays a stream."""
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
        """In memory: the rows of all sources at once."""
        return decide_local(self.run, BatchReader(read, key), sources, Deciding(decide, schema))


class AutoEngine:
    """Threads for small work, Spark for large: `for_work` chooses by the number of things and of bytes."""

    SMALL_ITEMS = 20_000  # below, Spark's start (4 to 9 s) costs more than the work itself
    SMALL_BYTES = 4 << 30

    def __init__(self, local: LocalEngine, spark: SparkEngine, choice: str = "auto") -> None:
        """`choice`: auto, local or spark."""
        self._local, self._spark, self._choice = local, spark, choice

    def for_work(self, items: int, size: int = 0) -> Engine:
        """The engine for work on `items` things of `size` bytes together."""
        if self._choice == "local":
            return self._local
        small = items <= self.SMALL_ITEMS and size <= self.SMALL_BYTES
        return self._local if small and self._choice == "auto" else self._spark

    def preferring(self, choice: str) -> AutoEngine:
        """The same threads and Spark, with `choice` where theirs is auto."""
        return AutoEngine(self._local, self._spark, choice) if self._choice == "auto" else self

    @property
    def settings(self) -> Mapping[str, str]:
        """See SparkEngine.settings."""
        return self._spark.settings

    def session(self, settings: Mapping[str, str]) -> Any:
        """A Spark session on a metastore, whatever the choice; see SparkEngine.session."""
        return self._spark.session(settings)

    @property
    def start_seconds(self) -> float:
        """How long Spark took to start; 0 when it was not used."""
        return self._spark.start_seconds

    def stop(self) -> None:
        self._spark.stop()
