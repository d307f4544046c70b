"""The metastore server's process: its configuration, start, health check, and end.

Nothing here assigns directories or stores state; that is in `running`.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from xml.sax.saxutils import escape

from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from replicator.core.connections import is_reference, read_secret
from replicator.errors import MetastoreStartError
from replicator.metastore.embedded.distributions import PYSPARK, Hive, class_path, hive
from replicator.metastore.java import (
    HOST,
    LOOPBACK,
    Java,
    binding_jar,
    cache_directory,
    find_java,
    utf8_locale,
    write_staged,
)

# ---- given secrets ---------------------------------------------------------------------------------------------------
# Secrets among the settings of a server: read by reference, and masked in messages about a start.


_KEY = re.compile(r"password|secret", re.IGNORECASE)
_IN_URL = re.compile(r"\bpassword=([^&;\s]+)", re.IGNORECASE)


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with referenced secrets resolved. Raises ConfigError for a secret that cannot be read."""
    return {
        key: read_secret(value, key) if _KEY.search(key) and is_reference(value) else value
        for key, value in settings.items()
    }


def secrets(settings: Mapping[str, str]) -> Iterator[str]:
    """Yields values of settings whose names match, and passwords in URLs."""
    for key, value in settings.items():
        if value and _KEY.search(key):
            yield value
        else:
            yield from _IN_URL.findall(value)


def masked(text: str, settings: Mapping[str, str]) -> str:
    for secret in sorted(secrets(settings), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


# ---- server process --------------------------------------------------------------------------------------------------


# A setting that identifies the started server, as opposed to another one on its port. The metastore returns only
# settings whose names begin with `hive`, `hdfs` or `mapred`.
INSTANCE = "hive.replicator.instance"

CLASSES = 1  # version of the class path: a change invalidates cached classes

SETTINGS = {
    "hive.metastore.schema.verification": "false",
    # True, the default, forks a shell for each new directory: 63 partitions a second instead of 260.
    "hive.warehouse.subdir.inherit.perms": "false",
    # The default, BoneCP, is not among pyspark's jars: without this, drop_database fails after it has been applied.
    "datanucleus.connectionPoolingType": "HikariCP",
    "datanucleus.connectionPool.maxPoolSize": "32",
    # Limits one string or list, not the message: 100 MB unless set.
    "hive.metastore.server.max.message.size": str(1 << 30),
    # Two concurrent writers read the same next event id, and the later one sleeps: 2 s by default, repeatedly. Short
    # sleeps require more attempts than 10.
    "hive.hmshandler.retry.interval": "20ms",
    "hive.hmshandler.retry.attempts": "200",
    "hive.metastore.server.min.threads": "16",
    "hive.metastore.server.max.threads": "500",
}

BIND_HOST = "metastore.thrift.bind.host"  # of servers from 4.0 on
_OPEN = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "java.util.regex", "sun.nio.ch"),
)
_LOGGING = """status = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n
# Loggers that warn at each start about what is meant to be so.
logger.conf.name = org.apache.hadoop.hive.conf.HiveConf
logger.conf.level = error
logger.driver.name = com.zaxxer.hikari.util.DriverDataSource
logger.driver.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
"""


@dataclass(frozen=True)
class Runtime:
    """The environment of a server. binding: the jar that precedes the class path if the server does not bind to an
    address itself."""

    java: Java
    hive: Hive
    jars: tuple[Path, ...]
    binding: Path | None
    env: Mapping[str, str]

    @property
    def class_path(self) -> str:
        return os.pathsep.join(map(str, ([self.binding] if self.binding else []) + list(self.jars)))

    @property
    def classes(self) -> Path:
        """Path of this machine's archive of the server's classes, as loaded by Java once: a start from it takes half
        the time. Java ignores most archives that do not match; from one made with other paths it loaded some classes
        and not the rest, and no server started (a sealing violation). So each class path has its own."""
        path = hashlib.blake2s(self.class_path.encode(), digest_size=8).hexdigest()
        name = f"hive-{self.hive.version}-java-{self.java.version}-{CLASSES}-{path}.jsa"
        return cache_directory(self.env) / "classes" / name


def find_runtime(env: Mapping[str, str], version: str = PYSPARK, url: str = "") -> Runtime:
    """Returns Java and the jars of a version of Hive, for a database by its JDBC URL; downloads missing files the first
    time on a machine."""
    chosen = hive(version)
    java = find_java(env, chosen.java)
    binding = None
    if version == PYSPARK:
        binding = binding_jar(cache_directory(env) / "jars" / f"metastore-binding-{CLASSES}.jar")
    return Runtime(java, chosen, class_path(chosen, java, env, url), binding, env)


def spawn(
    runtime: Runtime,
    directory: Path,
    port: int,
    settings: Mapping[str, str],
    *,
    host: str = LOOPBACK,
    classes_to: Path | None = None,
) -> int:
    """Starts a server on `directory` in its own session and returns its process id. It may still fail to start: its
    output is in `directory/metastore.log`, that of the previous start in `metastore.log.1`. `host`: the address it
    listens on, see `binding`. `classes_to`: where it writes its classes when it ends, for `Runtime.classes`."""
    secured = settings.get("hive.metastore.use.SSL", "").lower() == "true"  # another socket, bound to no address
    class_path = runtime.class_path.removeprefix(f"{runtime.binding}{os.pathsep}") if secured else runtime.class_path
    conf = write_conf(runtime, directory, {BIND_HOST: host, **settings})
    if hadoop := {key: value for key, value in settings.items() if key.startswith("hadoop.")}:
        write_staged(
            conf / "hadoop" / "core-site.xml", _site(hadoop).encode(), 0o600
        )  # Hadoop searches for it only there
        class_path = f"{conf / 'hadoop'}{os.pathsep}{class_path}"
    log = directory / "metastore.log"
    if log.exists():
        os.replace(log, directory / "metastore.log.1")
    if any(secrets(settings)):
        log.touch(0o600)  # Hive logs the URL of its database
    command = [
        str(runtime.java.executable),
        *open_modules(),
        # One thread of garbage collection and no file in /tmp: several servers share a small machine.
        "-Xmx1g",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Xshare:auto",
        *(() if hadoop else _shared_classes(runtime, classes_to)),  # archived classes allow no directory in the path
        "-Dhive.async.log.enabled=false",
        f"-D{HOST}={host}",
        f"-Dlog4j.configurationFile={conf / 'log4j2.properties'}",
        f"-Dderby.stream.error.file={directory / 'derby.log'}",
        # Hive has several hundred statements; Derby caches 100 compiled ones, and compiles the others each time.
        "-Dderby.language.statementCacheSize=2000",
        f"-Djava.io.tmpdir={_temporary(directory)}",
        "-cp",
        class_path,
        "org.apache.hadoop.hive.metastore.HiveMetaStore",
        "-p",
        str(port),
    ]
    # An intermediate shell, which ends at once: the server is then not a child of this process, and never its zombie.
    started = subprocess.run(
        ["/bin/sh", "-c", 'log=$1; shift; "$@" </dev/null >"$log" 2>&1 & echo $!', "sh", str(log), *command],
        env=environment(runtime, conf),
        cwd=directory,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(started.stdout)


def _shared_classes(runtime: Runtime, classes_to: Path | None) -> list[str]:
    if classes_to is not None:
        return [f"-XX:ArchiveClassesAtExit={classes_to}", "-Xlog:disable"]
    return [f"-XX:SharedArchiveFile={runtime.classes}", "-Xlog:disable"] if runtime.classes.exists() else []


def answers(port: int, instance: str, patience: timedelta = timedelta(seconds=5), host: str = LOOPBACK) -> bool:
    """Returns True if the server started as `instance` answers a thrift call on `port`."""
    seconds = patience.total_seconds()
    try:  # first without thrift, which logs each refusal
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError:
        return False
    connection = TSocket(host, port)
    connection.setTimeout(seconds * 1000)
    transport = TBufferedTransport(connection)
    try:
        transport.open()
        client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        return bool(client.get_config_value(INSTANCE, "") == instance)
    except (TException, OSError, EOFError):
        return False
    finally:
        transport.close()


def wait(
    pid: int, start: str | None, port: int, instance: str, log: Path, timeout: timedelta, host: str = LOOPBACK
) -> None:
    """Waits until the server answers. Raises MetastoreStartError if its process ends or `timeout` passes first."""
    deadline = time.monotonic() + timeout.total_seconds()
    while not answers(port, instance, host=host):
        if start is None or began(pid) != start:
            what = f"the metastore's process ended before it answered on port {port}"
        elif time.monotonic() >= deadline:
            what = f"the metastore did not answer on port {port} within {timeout.total_seconds():.0f} s"
        else:
            time.sleep(0.03)
            continue
        raise MetastoreStartError(f"{what}; {log} ends with:\n{last_lines(log)}", hint=_hint(log))


def began(pid: int) -> str | None:
    """Returns when process `pid` began, in the system's own units; None if it has ended. Distinguishes it from a later
    process with the same number."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            state, *fields = stat.read_text().rpartition(")")[2].split()
            # The first thread of an ending process is a zombie while others still hold the port and the database.
            ended = state in "ZX" and len(os.listdir(stat.with_name("task"))) <= 1
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if ended else fields[18]  # starttime, in ticks since boot: field 22 of proc(5)
    asked = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    state, _, start = asked.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else start.strip()


def end(pid: int, start: str | None, grace: timedelta) -> bool:
    """Ends process `pid` that began at `start`: SIGTERM, `grace`, then SIGKILL. Returns False if it was gone."""
    if start is None or began(pid) != start:
        return False
    for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, timedelta(seconds=30))):
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + patience.total_seconds()
        while began(pid) == start and time.monotonic() < deadline:
            time.sleep(0.02)
        if began(pid) != start:
            break
    return True


def free_port(preferred: int | None = None) -> int:
    """Returns `preferred` if it is free, otherwise a currently free port: below the range of ephemeral ports, whose
    outgoing connections would sometimes take the port of a stopped metastore; any port if none is free there."""
    for port in [preferred, *random.sample(range(20_000, 32_768), 20), 0]:
        if port is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: TIME_WAIT does not block it
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port")


def last_lines(log: Path, count: int = 15) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log)"
    return "\n".join([line[:500] for line in lines if line.strip()][-count:]) or "(the log is empty)"


def _hint(log: Path) -> str:
    text = last_lines(log, 60)
    if "Address already in use" in text:
        return "another process listens on that port: use another port, or omit it"
    if "Another instance of Derby" in text:
        return "another metastore runs on this directory: stop it, or use another directory"
    if "OutOfMemoryError" in text or "insufficient memory" in text:
        return "free some memory: a metastore takes up to 1 GB"
    return f"read {log}; a longer timeout helps on a busy machine"


def write_conf(runtime: Runtime, directory: Path, settings: Mapping[str, str]) -> Path:
    """Writes the server's configuration directory below `directory`; `settings` override the defaults."""
    values = {
        "hive.metastore.warehouse.dir": f"file://{directory / 'warehouse'}",  # Hadoop does not decode %20: unquoted
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{directory / 'metastore_db'}",
        "datanucleus.schema.autoCreateAll": "false",
        "hive.metastore.transactional.event.listeners": runtime.hive.listener,
        **SETTINGS,
        **runtime.hive.settings,
        **settings,
    }
    conf = directory / "conf"
    write_staged(conf / "hive-site.xml", _site(values).encode(), 0o600)  # may contain a password
    write_staged(conf / "log4j2.properties", _LOGGING.encode())
    return conf


def environment(runtime: Runtime, conf: Path) -> dict[str, str]:
    """Returns the environment of a Java that reads the configuration in `conf`."""
    return {
        **runtime.env,
        **utf8_locale(runtime.env),
        "HIVE_CONF_DIR": str(conf),
        "JAVA_HOME": str(runtime.java.home),
        # Hadoop runs chmod for each directory it creates: without it no database can be created.
        "PATH": os.pathsep.join([*filter(None, [runtime.env.get("PATH")]), os.defpath]),
    }


def open_modules() -> list[str]:
    """Returns Java options for code that accesses Java's internal classes."""
    return [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPEN] + [
        "--add-opens=java.sql/java.sql=ALL-UNNAMED"
    ]


def _site(values: Mapping[str, str]) -> str:
    rows = (f"  <property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in values.items())
    return "\n".join(["<configuration>", *rows, "</configuration>", ""])


def _temporary(directory: Path) -> Path:
    place = directory / "tmp"
    place.mkdir(exist_ok=True)
    return place
