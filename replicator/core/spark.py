"""Spark: sessions, contexts and frames, somebody's or our own. Imports pyspark, when it is first needed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from cmroot.store.local import Shared
from replicator.core.batches import batched
from replicator.core.cluster import Careful, SharedPlaces, cause_of, hint_of, ship
from replicator.core.connections import MetastoreConfig, checked
from replicator.core.grouping import BatchReader, Deciding, by_partition, unpack
from replicator.core.spark_client import client_settings, require_pyspark
from replicator.errors import Error

Task = TypeVar("Task")
Result = TypeVar("Result")
Source = TypeVar("Source")
Environment = Mapping[str, str] | Callable[[], Mapping[str, str]]

WAVE = 4  # Spark tasks for each core that are sent together; the driver holds as many results

GROUP_TASKS = 64  # Spark tasks after a shuffle of much, on few cores: an executor holds the groups of one at once

_CATALOG = "spark.sql.catalogImplementation"
_URIS = "spark.hadoop.hive.metastore.uris"
_AUTHENTICATION = "hadoop.security.authentication"

_DEFAULTS = {
    "spark.app.name": "replicator",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.executor.syncLogLevel.enabled": "true",  # executors', too (Spark 4): else a long run fills their disks
    "spark.task.maxFailures": "4",
}


_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class SparkEngine:
    """Executors of a Spark application: the caller's, or the one that this process runs already, and only else one of
    our own, started at the first use and kept warm. Only our own is ever stopped."""

    name = "spark"

    def __init__(
        self,
        master: str | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Environment = dict,
        session: Any = None,
    ) -> None:
        """`master`: as Spark's (None: as configured, else local[*]). `environment`: JAVA_HOME for the gateway, or what
        finds it, called when Spark starts. `session`: a SparkSession of the caller's to work in; the others are for a
        Spark of our own."""
        self._given = session
        self._is_ours = False
        self._master = master
        self._settings = dict(settings or {})
        self._environment = environment
        self._context: Any = None
        self._lock = threading.Lock()
        self.start_seconds = 0.0
        self._shared = SharedPlaces(elsewhere=False)
        self._shipped: Any = None  # a directory that executors read, for as long as the application runs

    @property
    def context(self) -> Any:
        """The SparkContext; starts it when there is none. Raises Error when Spark does not start, and when
        executors cannot run tasks."""
        with self._lock:
            if self._context is not None and not self._is_ours and self._context._jsc is None:
                self._context = None  # whoever started it has stopped it
            if self._context is None:
                self._context = self._found()
                self._is_ours = self._context is None
                if self._is_ours:
                    began = time.monotonic()
                    self._context = self._start()
                    self.start_seconds = time.monotonic() - began
                self._prepare()
            return self._context

    def _prepare(self) -> None:
        """Executors on other machines get this program; those of this process's Spark have it."""
        master = str(self._context.master)
        logger = logging.getLogger(__name__)
        logger.log(
            logging.DEBUG if is_local(master) else logging.INFO,
            "Spark runs on %s as %s",
            master,
            self._context.applicationId,
        )
        self._shared = SharedPlaces(elsewhere=not is_local(master))
        if is_local(master):
            return
        self._shipped = tempfile.TemporaryDirectory(prefix="replicator-shipped-")
        try:
            ship(self._context, Path(self._shipped.name))
        except BaseException:
            context, self._context = self._context, None
            if self._is_ours:
                context.stop()
            raise

    def _found(self) -> Any:
        """The context of the caller's session, or of this process; None when there is none."""
        require_pyspark()
        from pyspark import SparkContext

        if self._given is None:
            context: Any = SparkContext._active_spark_context
            if context is None or context._jsc is None:
                return None
        else:
            try:
                context = self._given.sparkContext
            except Exception as error:
                raise Error(
                    f"no SparkContext in {type(self._given).__name__}: {cause_of(error)}",
                    hint="give a SparkSession of this process; one of Spark Connect has none",
                ) from error
            if context._jsc is None:
                raise Error("the given SparkSession is stopped", hint="give one that is running, or none")
        return context

    @property
    def settings(self) -> Mapping[str, str]:
        """Of a Spark of our own, as they were given."""
        return self._settings

    @property
    def parallelism(self) -> int:
        return int(self.context.defaultParallelism)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """One Spark task per task, in waves, so that a long stream of tasks does not sit in the driver. Errors of ours
        come back as they were; anything else Spark tries again, and it fails the job."""
        context = self.context
        for wave in batched(tasks, WAVE * self.parallelism):
            self._shared.check(context, wave)
            careful = Careful(Shared(function, min(len(wave), self.parallelism)))
            try:
                results = context.parallelize(wave, len(wave)).map(careful).collect()
            except Exception as error:
                raise Error(f"a Spark job failed: {cause_of(error)}", hint="see the executors' logs") from error
            for result in results:
                if isinstance(result, Error):
                    raise result
                yield result

    def group(
        self,
        read: Callable[[Source], Iterator[pa.RecordBatch]],
        sources: Iterable[Source],
        key: str,
        decide: Callable[[pa.Table], pa.Table],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """One task per source, one shuffle of Arrow batches, a few groups per task after it. The driver holds the
        answers of one wave of tasks, an executor the groups of one task.

        On RDDs of batches: DataFrame.groupBy().applyInArrow does the same, and imports pandas for it."""
        context = self.context
        waiting = list(sources)
        if not waiting:
            return
        self._shared.check(context, waiting)
        width = WAVE * self.parallelism
        partitions = max(width, min(GROUP_TASKS, GROUP_TASKS // 16 * len(waiting)))
        grouped = (
            context.parallelize(waiting, len(waiting))
            .mapPartitions(BatchReader(read, key).partition)
            .partitionBy(partitions, by_partition)
            .mapPartitions(Deciding(decide, schema).partition)
        )
        for start in range(0, partitions, width):
            try:  # the shuffle's first half runs with the first wave, the later ones find its files
                answers = context.runJob(grouped, list, range(start, min(start + width, partitions)))
            except Exception as error:
                raise Error(f"a Spark job failed: {cause_of(error)}", hint="see the executors' logs") from error
            for answer in answers:
                if isinstance(answer, Error):
                    raise answer
                yield from unpack(answer)

    def answer(self, query: str, rows: int) -> list[list[Any]]:
        """The first rows of a query on the tables of a metastore; the engine has `hive_settings`. Raises Error with
        Spark's words, also for anything that is no query: it is read inside parentheses, where nothing that changes
        something can stand."""
        session = self._session()
        if session.conf.get(_CATALOG, "in-memory") != "hive":
            raise Error("Spark runs already, without a metastore", hint="ask queries in a process of their own")
        try:
            found = session.sql(f"SELECT * FROM (\n{query}\n) LIMIT {rows}").collect()
        except Exception as error:
            raise Error(
                f"the query failed: {cause_of(error)}", hint=hint_of(error, "ask it in a Spark shell for all of it")
            ) from error
        return [list(row) for row in found]

    def session(self, settings: Mapping[str, str]) -> Any:
        """A Spark session whose catalog is a metastore; `settings`: its `hive_settings`. Somebody else's Spark gets a
        session of ours beside its own. Raises Error when Spark runs already with another catalog: a process has one."""
        with self._lock:
            if self._context is None:
                self._settings = {**settings, **self._settings}
        session = self._session()
        catalog, there = session.conf.get(_CATALOG, "in-memory"), _metastore_of(session)
        if catalog != "hive" or there != settings[_URIS]:
            raise Error(
                f"Spark runs already, with another catalog: {there or 'none' if catalog == 'hive' else catalog}",
                hint=f"run this in a process of its own, or in a Spark with Hive support on {settings[_URIS]}",
            )
        if not self._is_ours:
            for key, value in settings.items():
                if session.conf.isModifiable(key):
                    session.conf.set(key, value)
        return session

    def _session(self) -> Any:
        """Of our own Spark, the one; of somebody else's, a new one: views and settings stay out of theirs."""
        _ = self.context
        from pyspark.sql import SparkSession

        if self._is_ours:
            return SparkSession.builder.getOrCreate()
        return (self._given or SparkSession.builder.getOrCreate()).newSession()

    def stop(self) -> None:
        """Stops what was started here, and nothing else. Safe to run twice, and when Spark's process has died: the next
        use starts a new one."""
        with self._lock:
            context, self._context = self._context, None
            if context is not None and self._is_ours:
                try:
                    context.stop()
                except Exception as error:
                    logging.getLogger(__name__).info("Spark did not stop by itself: %s", error)
                forget_dead_gateway()

    def _start(self) -> Any:
        environment = dict(self._environment() if callable(self._environment) else self._environment)
        from pyspark import SparkConf, SparkContext

        master = self._master
        try:
            self._launch(environment)
            conf = SparkConf()  # as it is configured: the file of defaults, what spark-submit was given
            master = master or conf.get("spark.master") or "local[*]"
            defaults = _DEFAULTS | (_LOOPBACK if is_local(master) else {})
            for key, value in (defaults | self._settings).items():
                if key in self._settings or not conf.contains(key):
                    conf.set(key, value)
            conf.setMaster(master)
            _log_in(SparkContext._jvm, conf)
            context = SparkContext(conf=conf)
        except Exception as error:
            raise Error(
                f"Spark did not start with master {master or 'local[*]'}: {str(error)[:500]}",
                hint="check JAVA_HOME (Java 17 or newer) and the master's address, or use --engine local",
            ) from error
        if is_local(master):
            context.pythonExec = environment.get("PYSPARK_PYTHON") or sys.executable
        else:  # pyspark leaves spark.pyspark.python to spark-submit
            context.pythonExec = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", "python3")
        return context

    def _launch(self, environment: Mapping[str, str]) -> None:
        """Spark's Java process, when there is none yet. What it needs of an environment is its own: that of this
        process stays as it is."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is not None:
            return
        conf = SparkConf(loadDefaults=False)
        for key, value in self._settings.items():
            conf.set(key, value)
        more = dict(environment)
        if is_local(self._master or self._settings.get("spark.master") or "local"):
            more.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
            if "SPARK_CONF_DIR" not in os.environ:
                quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
                given = os.environ.get("SPARK_SUBMIT_OPTS", "")  # the later of two options counts
                more.setdefault("SPARK_SUBMIT_OPTS", f"{quiet} {given}".strip())
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, _WithEnvironment(more)))


def is_local(master: str) -> bool:
    """Whether a master's executors are threads of its driver."""
    return master == "local" or master.startswith("local[")


class _WithEnvironment(dict[str, Any]):
    """Arguments of a Popen whose `env` gets more variables: pyspark sets it from this process's environment."""

    def __init__(self, more: Mapping[str, str]) -> None:
        super().__init__()
        self._more = more

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, {**value, **self._more} if key == "env" else value)


def _log_in(jvm: Any, conf: Any) -> None:
    """Kerberos for a metastore: Spark's launcher logs in only where a core-site.xml asks for it."""
    if conf.get(f"spark.hadoop.{_AUTHENTICATION}", "") != "kerberos":
        return
    users, hadoop = jvm.org.apache.hadoop.security.UserGroupInformation, jvm.org.apache.hadoop.conf.Configuration()
    hadoop.set(_AUTHENTICATION, "kerberos")
    users.setConfiguration(hadoop)
    who, keytab = (conf.get(f"spark.kerberos.{key}", "") for key in ("principal", "keytab"))
    if who and keytab:
        users.loginUserFromKeytab(who, keytab)


def _metastore_of(session: Any) -> str | None:
    """Where a session's catalog is, as Hadoop's configuration says it."""
    found = session._jsparkSession.sessionState().newHadoopConf().get("hive.metastore.uris")
    return None if found is None else str(found)


def hive_settings(
    metastore: MetastoreConfig | str, warehouse: str, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """For a SparkEngine that answers queries on the tables of a metastore, each time as they are now; given: the
    caller's settings of Spark. Raises UsageError for a metastore that Spark cannot reach as it is configured."""
    config = checked(metastore)
    return client_settings(config, given or {}) | {
        _CATALOG: "hive",
        _URIS: config.uri,
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.hive.manageFilesourcePartitions": "true",
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.sql.filesourceTableRelationCacheSize": "0",
        "spark.sql.hive.caseSensitiveInferenceMode": "NEVER_INFER",  # the others write what they infer into the table
    }


def planned(session: Any, plan: Any) -> Any:
    """A DataFrame of a logical plan that is Java's."""
    from pyspark.sql import DataFrame

    companion = getattr(session._jvm.org.apache.spark.sql.classic, "Dataset$")
    return DataFrame(getattr(companion, "MODULE$").ofRows(session._jsparkSession, plan), session)


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


def forget_dead_gateway() -> None:
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
