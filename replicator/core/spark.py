"""Spark: sessions, contexts and frames, the caller's or started here. Imports pyspark when it is first needed."""

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

from cmroot.store.checksum import Shared
from cmroot.store.place import scratch
from replicator.core.cluster import Careful, SharedPlaces, cause_of, hint_of, ship
from replicator.core.connections import MetastoreConfig, checked, client_settings, require_pyspark
from replicator.core.grouping import BatchReader, Deciding, batched, by_partition, unpack
from replicator.errors import Error

Task = TypeVar("Task")
Result = TypeVar("Result")
Source = TypeVar("Source")
Environment = Mapping[str, str] | Callable[[], Mapping[str, str]]

WAVE = 4  # Spark tasks per core that are submitted together; the driver holds as many results

GROUP_TASKS = 64  # Spark tasks after a large shuffle on few cores: an executor holds the groups of one task

_CATALOG = "spark.sql.catalogImplementation"
_URIS = "spark.hadoop.hive.metastore.uris"
RESOURCES = "spark.hadoop.hive.downloaded.resources.dir"
"""The setting of a directory that each session of Spark's Hive client makes, and does not remove when it ends."""
_BARS = "spark.ui.showConsoleProgress"
_AUTHENTICATION = "hadoop.security.authentication"

_DEFAULTS = {
    "spark.app.name": "replicator",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executor.syncLogLevel.enabled": "true",  # for executors as well (Spark 4): else their disks fill up
    "spark.task.maxFailures": "4",
}


_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",  # not on nodes: in a YARN container their paths are too long
}


class SparkEngine:
    """Executors of a Spark application: the caller's, or else the one that this process runs already, or else one that
    is started here at the first use and reused. Only the last is ever stopped."""

    name = "spark"

    def __init__(
        self,
        master: str | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Environment = dict,
        session: Any = None,
    ) -> None:
        """`master`: of Spark (None: as configured, else local[*]). `environment`: JAVA_HOME for the gateway, or a
        function that finds it, called when Spark starts. `session`: the caller's SparkSession to use; the other
        arguments apply to a Spark that is started here."""
        self._given = session
        self._is_ours = False
        self._master = master
        self._settings = dict(settings or {})
        self._environment = environment
        self._context: Any = None
        self._lock = threading.Lock()
        self.start_seconds = 0.0
        self._shared = SharedPlaces(elsewhere=False)
        self._shipped: Any = None  # a directory that executors read while the application runs
        self._scratch = contextlib.ExitStack()  # a directory of the Spark that is started here

    @property
    def context(self) -> Any:
        """The SparkContext; it is started if there is none. Raises Error if Spark does not start, or if executors
        cannot run tasks."""
        with self._lock:
            if self._context is not None and not self._is_ours and self._context._jsc is None:
                self._context = None  # stopped by its owner
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
        """Ships this program to executors on other machines; executors of a local Spark already have it."""
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
        """Returns the context of the caller's session, or of this process; None if there is none."""
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
                    hint="pass a SparkSession of this process; one of Spark Connect has none",
                ) from error
            if context._jsc is None:
                raise Error("the given SparkSession is stopped", hint="pass one that is running, or none")
        return context

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of a Spark that is started here, as given."""
        return self._settings

    @property
    def parallelism(self) -> int:
        return int(self.context.defaultParallelism)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Runs one Spark task per task, in waves, so that a long stream of tasks is not held in the driver. Errors of
        this program are raised unchanged; any other error is retried by Spark and then fails the job."""
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
        """Runs one task per source, one shuffle of Arrow batches, then a few groups per task. The driver holds the
        results of one wave of tasks, an executor the groups of one task.

        Uses RDDs of batches: DataFrame.groupBy().applyInArrow does the same, but imports pandas."""
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
            try:  # the map side of the shuffle runs with the first wave; later waves reuse its files
                answers = context.runJob(grouped, list, range(start, min(start + width, partitions)))
            except Exception as error:
                raise Error(f"a Spark job failed: {cause_of(error)}", hint="see the executors' logs") from error
            for answer in answers:
                if isinstance(answer, Error):
                    raise answer
                yield from unpack(answer)

    def answer(self, query: str, rows: int) -> list[list[Any]]:
        """Returns the first rows of a query on the tables of a metastore; the engine must have `hive_settings`. Raises
        Error with Spark's message, also for anything that is not a query: it is parsed inside parentheses, where no
        statement that changes data is valid."""
        session = self._session()
        if session.conf.get(_CATALOG, "in-memory") != "hive":
            raise Error("Spark is already running, without a metastore", hint="run queries in a separate process")
        try:
            found = session.sql(f"SELECT * FROM (\n{query}\n) LIMIT {rows}").collect()
        except Exception as error:
            raise Error(
                f"the query failed: {cause_of(error)}",
                hint=hint_of(error, "run it in a Spark shell for the complete error"),
            ) from error
        return [list(row) for row in found]

    def session(self, settings: Mapping[str, str]) -> Any:
        """Returns a Spark session whose catalog is a metastore; `settings`: its `hive_settings`. In the caller's Spark
        it is a separate session. Raises Error if Spark already runs with another catalog: a process has one."""
        with self._lock:
            if self._context is None:
                self._settings = {**settings, **self._settings}
        session = self._session()
        catalog, there = session.conf.get(_CATALOG, "in-memory"), _metastore_of(session)
        if catalog != "hive" or there != settings[_URIS]:
            raise Error(
                f"Spark is already running, with another catalog: {there or 'none' if catalog == 'hive' else catalog}",
                hint=f"run this in a separate process, or in a Spark with Hive support on {settings[_URIS]}",
            )
        if not self._is_ours:
            for key, value in settings.items():
                if session.conf.isModifiable(key):
                    session.conf.set(key, value)
        return session

    def _session(self) -> Any:
        """Returns the session of a Spark started here; else a new one, which leaves the caller's views as they are."""
        _ = self.context
        from pyspark.sql import SparkSession

        if self._is_ours:
            return SparkSession.builder.getOrCreate()
        return (self._given or SparkSession.builder.getOrCreate()).newSession()

    def stop(self) -> None:
        """Stops a Spark that was started here, and nothing else. May run twice, and after Spark's process has died: the
        next use starts a new one."""
        with self._lock:
            context, self._context = self._context, None
            if context is not None and self._is_ours:
                try:
                    context.stop()
                except Exception as error:
                    logging.getLogger(__name__).info("Spark did not stop by itself: %s", error)
                forget_dead_gateway()
                self._scratch.close()

    def _start(self) -> Any:
        environment = dict(self._environment() if callable(self._environment) else self._environment)
        from pyspark import SparkConf, SparkContext

        master = self._master
        try:
            self._launch(environment)
            conf = SparkConf()  # as configured by the defaults file and spark-submit
            master = master or conf.get("spark.master") or "local[*]"
            defaults = _DEFAULTS | (_LOCAL if is_local(master) else {})
            for key, value in (defaults | self._settings).items():
                if key in self._settings or not conf.contains(key):
                    conf.set(key, value)
            conf.setMaster(master)
            if conf.get(_CATALOG, "") == "hive" and not conf.contains(RESOURCES):
                conf.set(RESOURCES, resources_in(self._scratch.enter_context(scratch("spark"))))
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
        """Starts Spark's Java process if there is none. Its environment variables are set for it alone; the environment
        of this process does not change."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is not None:
            return
        conf = SparkConf(loadDefaults=False)
        conf.set(_BARS, "false")  # spark-submit takes this program for an interactive one, and sets true
        for key, value in self._settings.items():
            conf.set(key, value)
        if self._master:
            conf.setMaster(self._master)  # for YARN, spark-submit sends pyspark itself to the nodes
        more = dict(environment)
        given = self._master or self._settings.get("spark.master")
        if is_local(given or "local"):
            if given or not _has_defaults():  # whose master may be a cluster's
                more.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
            if "SPARK_CONF_DIR" not in os.environ:
                quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
                given = os.environ.get("SPARK_SUBMIT_OPTS", "")  # the later of two options counts
                more.setdefault("SPARK_SUBMIT_OPTS", f"{quiet} {given}".strip())
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, _WithEnvironment(more)))


def _has_defaults() -> bool:
    """Returns True if there is a spark-defaults.conf, where Spark looks for it."""
    from pyspark.find_spark_home import _find_spark_home

    directory = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    return (directory / "spark-defaults.conf").exists()


def resources_in(directory: Path) -> str:
    """Returns the value of RESOURCES for sessions whose directories are made in this one."""
    return f"{directory}/${{hive.session.id}}_resources"


def is_local(master: str) -> bool:
    """Returns True if a master's executors are threads of its driver."""
    return master == "local" or master.startswith("local[")


def start_for_yarn() -> None:
    """Starts Spark, if this process has not, and stops it: YARN in cluster mode reports an application as failed that
    has ended without a SparkContext, as a command does that found nothing to do."""
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        SparkContext().stop()


class _WithEnvironment(dict[str, Any]):
    """Arguments of a Popen whose `env` is extended with variables: pyspark sets it from this process's environment."""

    def __init__(self, more: Mapping[str, str]) -> None:
        super().__init__()
        self._more = more

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, {**value, **self._more} if key == "env" else value)


def _log_in(jvm: Any, conf: Any) -> None:
    """Logs in to Kerberos for a metastore: Spark's launcher logs in only if a core-site.xml requires it."""
    if conf.get(f"spark.hadoop.{_AUTHENTICATION}", "") != "kerberos":
        return
    users, hadoop = jvm.org.apache.hadoop.security.UserGroupInformation, jvm.org.apache.hadoop.conf.Configuration()
    hadoop.set(_AUTHENTICATION, "kerberos")
    users.setConfiguration(hadoop)
    who, keytab = (conf.get(f"spark.kerberos.{key}", "") for key in ("principal", "keytab"))
    if who and keytab:
        users.loginUserFromKeytab(who, keytab)


def _metastore_of(session: Any) -> str | None:
    """Returns the URI of the metastore of a session's catalog, from Hadoop's configuration."""
    found = session._jsparkSession.sessionState().newHadoopConf().get("hive.metastore.uris")
    return None if found is None else str(found)


def hive_settings(
    metastore: MetastoreConfig | str, warehouse: str, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns settings for a SparkEngine that runs queries on the current tables of a metastore; given: the caller's
    settings of Spark. Raises UsageError for a metastore that Spark cannot reach as configured."""
    config = checked(metastore)
    return client_settings(config, given or {}) | {
        _CATALOG: "hive",
        _URIS: config.uri,
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.hive.manageFilesourcePartitions": "true",
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.sql.filesourceTableRelationCacheSize": "0",
        "spark.sql.hive.caseSensitiveInferenceMode": "NEVER_INFER",  # the other modes alter the table
    }


@contextlib.contextmanager
def settings(session: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Changes Spark's settings temporarily, because the session may belong to a caller."""
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)


def planned(session: Any, plan: Any) -> Any:
    """Returns a DataFrame of a logical plan (a Java object)."""
    from pyspark.sql import DataFrame

    companion = getattr(session._jvm.org.apache.spark.sql.classic, "Dataset$")
    return DataFrame(getattr(companion, "MODULE$").ofRows(session._jsparkSession, plan), session)


def counted(frame: Any, patience: float = 60.0) -> tuple[Any, Callable[[], int]]:
    """Returns the same DataFrame, and a function that returns its number of rows once it has been written. The function
    raises Error if Spark does not report it within `patience` seconds."""
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
            raise Error("Spark did not report how many rows it wrote", hint="run the same command again")
        return found[0]

    return watched, rows


def forget_dead_gateway() -> None:
    """Discards a gateway whose process has died; pyspark retains the process of its first context for later ones."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
