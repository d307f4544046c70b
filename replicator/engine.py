"""Engines: where work that grows with the data runs. The only room that imports pyspark.

Work is a picklable function and a stream of tasks; the same function runs in threads for small work and on Spark for
large. Tasks are few and fat: a Spark task costs 25 to 50 ms of Python start-up whatever it does.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from replicator.errors import Error
from replicator.grouping import Deciding, Reading, by_partition, decide_local, unpack

Task = TypeVar("Task")
Result = TypeVar("Result")
Source = TypeVar("Source")
Environment = Mapping[str, str] | Callable[[], Mapping[str, str]]


WAVE = 4  # Spark tasks for each core that are sent together; the driver holds as many results
GROUP_TASKS = 64  # Spark tasks after a shuffle of much, on few cores: an executor holds the groups of one at once
_CATALOG = "spark.sql.catalogImplementation"


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
        self, read: Callable[[Source], Iterator[pa.RecordBatch]], sources: Iterable[Source], key: str,
        decide: Callable[[pa.Table], pa.Table], schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
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
        self, read: Callable[[Source], Iterator[pa.RecordBatch]], sources: Iterable[Source], key: str,
        decide: Callable[[pa.Table], pa.Table], schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """In memory: the rows of all sources at once."""
        return decide_local(self.run, Reading(read, key), sources, Deciding(decide, schema))


class SparkEngine:
    """Executors of a Spark application, started at the first use and kept warm."""

    name = "spark"

    def __init__(
        self, master: str | None = None, settings: Mapping[str, str] | None = None, environment: Environment = dict
    ) -> None:
        """`master`: as Spark's (None: as configured, else local[*]). `environment`: JAVA_HOME for the gateway, or what
        finds it, called when Spark starts."""
        self._master = master
        self._settings = dict(settings or {})
        self._environment = environment
        self._context: Any = None
        self._lock = threading.Lock()
        self.start_seconds = 0.0

    @property
    def context(self) -> Any:
        """The SparkContext; starts it when there is none. Raises Error when Spark does not start."""
        with self._lock:
            if self._context is None:
                began = time.monotonic()
                self._context = self._start()
                self.start_seconds = time.monotonic() - began
            return self._context

    @property
    def parallelism(self) -> int:
        return int(self.context.defaultParallelism)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """One Spark task per task, in waves, so that a long stream of tasks does not sit in the driver. Errors of ours
        come back as they were; anything else Spark tries again, and it fails the job."""
        context = self.context
        source = iter(tasks)
        careful = _Careful(function)
        while wave := list(itertools.islice(source, WAVE * self.parallelism)):
            try:
                results = context.parallelize(wave, len(wave)).map(careful).collect()
            except Exception as error:
                raise Error(f"a Spark job failed: {_cause(error)}", hint="see the executors' logs") from error
            for result in results:
                if isinstance(result, Error):
                    raise result
                yield result

    def group(
        self, read: Callable[[Source], Iterator[pa.RecordBatch]], sources: Iterable[Source], key: str,
        decide: Callable[[pa.Table], pa.Table], schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """One task per source, one shuffle of Arrow batches, a few groups per task after it. The driver holds the
        answers of one wave of tasks, an executor the groups of one task.

        On RDDs of batches: DataFrame.groupBy().applyInArrow does the same, and imports pandas for it."""
        context = self.context
        waiting = list(sources)
        if not waiting:
            return
        width = WAVE * self.parallelism
        partitions = max(width, min(GROUP_TASKS, GROUP_TASKS // 16 * len(waiting)))
        grouped = (
            context.parallelize(waiting, len(waiting))
            .mapPartitions(Reading(read, key).partition)
            .partitionBy(partitions, by_partition)
            .mapPartitions(Deciding(decide, schema).partition)
        )
        for start in range(0, partitions, width):
            try:  # the shuffle's first half runs with the first wave, the later ones find its files
                answers = context.runJob(grouped, list, range(start, min(start + width, partitions)))
            except Exception as error:
                raise Error(f"a Spark job failed: {_cause(error)}", hint="see the executors' logs") from error
            for answer in answers:
                if isinstance(answer, Error):
                    raise answer
                yield from unpack(answer)

    def answer(self, query: str, rows: int) -> list[list[Any]]:
        """The first rows of a query on the tables of a metastore; the engine has `hive_settings`. Raises Error with
        Spark's words, also for anything that is no query: it is read inside parentheses, where nothing that changes
        something can stand."""
        context = self.context
        if context.getConf().get(_CATALOG) != "hive":
            raise Error("Spark runs already, without a metastore", hint="ask queries in a process of their own")
        from pyspark.sql import SparkSession

        try:
            found = SparkSession.builder.getOrCreate().sql(f"SELECT * FROM (\n{query}\n) LIMIT {rows}").collect()
        except Exception as error:
            raise Error(f"the query failed: {_cause(error)}", hint="ask it in a Spark shell for all of it") from error
        return [list(row) for row in found]

    def session(self, settings: Mapping[str, str]) -> Any:
        """A Spark session whose catalog is a metastore; `settings`: its `hive_settings`. Raises Error when Spark runs
        already with another catalog: a process has one."""
        with self._lock:
            if self._context is None:
                self._settings = {**settings, **self._settings}
        conf = self.context.getConf()
        uris = "spark.hadoop.hive.metastore.uris"
        if conf.get(_CATALOG) != "hive" or conf.get(uris) != settings[uris]:
            raise Error("Spark runs already, with another catalog", hint="run this command in a process of its own")
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def stop(self) -> None:
        """Safe to run twice, and when Spark's process has died: the next use starts a new one."""
        with self._lock:
            context, self._context = self._context, None
            if context is not None:
                try:
                    context.stop()
                except Exception as error:
                    logging.getLogger(__name__).info("Spark did not stop by itself: %s", error)
                _forget_dead_gateway()

    def _start(self) -> Any:
        os.environ.update(self._environment() if callable(self._environment) else self._environment)
        from pyspark import SparkConf, SparkContext

        conf = SparkConf()
        defaults = {
            "spark.app.name": "replicator",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.log.level": "ERROR",
            "spark.task.maxFailures": "4",
        }
        master = self._master or conf.get("spark.master") or "local[*]"
        if master.startswith("local"):
            defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            if "SPARK_CONF_DIR" not in os.environ:
                quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
                os.environ.setdefault("SPARK_SUBMIT_OPTS", quiet)
        for key, value in (defaults | self._settings).items():
            if key in self._settings or not conf.contains(key):
                conf.set(key, value)
        conf.setMaster(master)
        try:
            return SparkContext.getOrCreate(conf)
        except Exception as error:
            raise Error(
                f"Spark did not start with master {master}: {str(error)[:500]}",
                hint="check JAVA_HOME (Java 17 or newer) and the master's address, or use --engine local",
            ) from error


def hive_settings(uri: str, warehouse: str) -> dict[str, str]:
    """For a SparkEngine that answers queries on the tables of a metastore, each time as they are now."""
    return {
        _CATALOG: "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.hive.manageFilesourcePartitions": "true",
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.sql.filesourceTableRelationCacheSize": "0",
        "spark.sql.hive.caseSensitiveInferenceMode": "NEVER_INFER",  # the others write what they infer into the table
    }


def counted(frame: Any, patience: float = 60.0) -> tuple[Any, Callable[[], int]]:
    """The same DataFrame, and what tells how many rows it had, once it has been written. That raises Error when Spark
    does not say so within `patience` seconds of the end."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    watched = frame.observe(observation, count(lit(1)).alias("rows"))

    def rows() -> int:
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(int(observation.get["rows"])), daemon=True)
        waiting.start()
        waiting.join(patience)
        if not found:
            raise Error("Spark did not say how many rows it wrote", hint="run the same command again")
        return found[0]

    return watched, rows


def _forget_dead_gateway() -> None:
    """pyspark keeps the process of its first context for later ones, also when it is gone."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    with contextlib.suppress(Exception):
        gateway.shutdown()


class _Careful:
    """A function whose errors of ours are returned: trying again on another executor would not help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, task: Any) -> Any:
        try:
            return self._function(task)
        except Error as error:
            return error


def _cause(error: Exception) -> str:
    """The last line of a Python traceback inside a Java one, else the beginning."""
    text = str(getattr(error, "java_exception", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line and not line.startswith(("at ", "File ", "Caused by"))]
    return next((line for line in python if "Error" in line and not line.startswith("org.")), text[:300])[:500]


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

    def session(self, settings: Mapping[str, str]) -> Any:
        """A Spark session on a metastore, whatever the choice; see SparkEngine.session."""
        return self._spark.session(settings)

    @property
    def start_seconds(self) -> float:
        """How long Spark took to start; 0 when it was not used."""
        return self._spark.start_seconds

    def stop(self) -> None:
        self._spark.stop()
