"""Hive 3.1.3 itself, in one JVM on local disk: `HiveSql(uri, warehouse)("select ...")` returns the rows.

It inserts, updates, deletes and reads transactional tables; compaction is the metastore's (`hive.compactor.*`). Its
jars are fetched once into the cache, its few classes (`hive_sql/`) are compiled there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType

from fetched_jars import fetched_jars

from replicator.metastore.embedded.distributions import class_path, hive
from replicator.metastore.embedded.server_process import open_modules
from replicator.metastore.java import cache_directory, find_java, locked

SOURCES = Path(__file__).with_name("hive_sql")
OPENED = [*open_modules(), *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("util.regex", "net"))]
SETTINGS = {
    "fs.defaultFS": "file:///",
    "hive.execution.engine": "mr",
    "mapreduce.framework.name": "local",
    "hive.support.concurrency": "true",
    "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
    "hive.exec.dynamic.partition.mode": "nonstrict",
    "hive.stats.autogather": "false",
    "hive.exec.submit.local.task.via.child": "false",
    "hive.fetch.task.conversion": "more",
    "hive.security.authorization.enabled": "false",
}
SCRATCH = {
    "hive.exec.scratchdir": "scratch",
    "hive.exec.local.scratchdir": "local",
    "hive.downloaded.resources.dir": "resources",
    "hive.querylog.location": "log",
    "hadoop.tmp.dir": "tmp",
    "mapreduce.jobtracker.staging.root.dir": "staging",
    "mapreduce.cluster.local.dir": "jobs",
}


@cache
def _jars() -> list[Path]:
    version = hive("3.1")
    own = sorted(fetched_jars("hive_sql/3.1.3", "hive_sql_jars.txt").glob("*.jar"))
    server = class_path(version, find_java(os.environ, version.java), os.environ)
    return [*own, *(jar for jar in server if "listener" not in jar.name)]


@cache
def _classes() -> Path:
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    directory = cache_directory(os.environ) / "hive_sql" / f"classes-{digest}"
    jars = os.pathsep.join(map(str, _jars()))
    with locked(directory.parent):
        if not (directory / "made").exists():
            compiler = Path(find_java(os.environ, 17).home) / "bin" / "javac"
            subprocess.run(
                [compiler, "--release", "17", "-nowarn", "-cp", jars, "-d", directory, *sources],
                check=True,
                capture_output=True,
            )
            (directory / "made").touch()
    return directory


class Refused(Exception):
    """Hive's answer to a statement that it cannot run."""


class HiveSql:
    """A session of Hive against one metastore, with its managed tables in `warehouse`."""

    def __init__(self, uri: str, warehouse: Path, **settings: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="hive_sql.")
        places = {key: f"{self._scratch.name}/{name}" for key, name in SCRATCH.items()}
        home = {
            "hive.metastore.uris": uri,
            "hive.metastore.warehouse.dir": f"file:{warehouse}",
            "hive.metastore.warehouse.external.dir": f"file:{warehouse}",
        }
        given = [f"{key}={value}" for key, value in (SETTINGS | places | home | settings).items()]
        path = os.pathsep.join(map(str, [_classes(), *_jars()]))
        self._process = subprocess.Popen(
            [
                str(find_java(os.environ, 17).executable),
                *OPENED,
                "-Xmx1g",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Dhive.path={path}{os.pathsep}",
                f"-Djava.io.tmpdir={self._scratch.name}",
                *("-cp", str(_classes()), "Launch", *given),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._scratch.name,
        )

    def __call__(self, *statements: str) -> list[list[str]]:
        """Runs statements, each in one line. Returns the rows of the last one, sorted: NULL is "NULL"."""
        rows: list[list[str]] = []
        for statement in statements:
            rows = self._rows(statement)
        return sorted(rows)

    def _rows(self, statement: str) -> list[list[str]]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        rows = []
        for line in self._process.stdout:
            kind, *values = line.removesuffix("\n").split("\t")
            if kind == "row":
                rows.append(values)
            elif kind == "end":
                return rows
            elif kind == "fail":
                raise Refused(f"{statement}: {values}")
        raise Refused(f"{statement}: Hive ended")

    def rolled_back(self, statement: str) -> None:
        """Runs a statement whose transaction is aborted after its files are in place."""
        self("set hive.in.test=true", "set hive.test.rollbacktxn=true", statement)
        self("set hive.test.rollbacktxn=false", "set hive.in.test=false")

    def __enter__(self) -> HiveSql:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._scratch.cleanup()


def leave_open(uri: str, warehouse: Path, statement: str) -> None:
    """Runs a statement in a session of its own that ends before the transaction commits: it stays open."""
    with HiveSql(uri, warehouse, **{"hive.exec.post.hooks": "Halt"}) as session:
        try:
            session(statement)
        except Refused as error:
            assert "Hive ended" in str(error), error
            return
    raise AssertionError(f"{statement} was committed")
