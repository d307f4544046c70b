"""Checks of a cluster's executors: a first job compares their Python packages and paths with the driver's, before
anything is changed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import re
import socket
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cmroot
from cmroot.root import FORMAT
from cmroot.store.place import is_local, local_path
from replicator.errors import Error

ARROW = (20, 0)
"""The oldest pyarrow allowed on nodes, as pyproject.toml requires of the driver."""

HINT = "select another Python for the executors: PYSPARK_PYTHON or spark.pyspark.python (docs/on-a-cluster.md)"
_NOT_ALIKE = ("PYTHON_VERSION_MISMATCH", "different version than that in driver", "has different version")
_NO_PYTHON = ("Cannot run program", "error=2, No such file")


class Node(msgspec.Struct, frozen=True):
    """The Python of a host: version, platform, pyarrow's version (empty: not installed), and missing modules."""

    host: str
    python: str
    platform: str
    arrow: str
    missing: tuple[str, ...]


def ask_nodes(context: Any, modules: Collection[str]) -> list[Node]:
    """Queries as many executors as are registered. Raises Error if their Python cannot run tasks of this driver, or if
    their pyarrow is missing or too old."""
    count = max(2, int(context.defaultParallelism))
    try:
        answers = context.parallelize(range(count), count).mapPartitions(_question(tuple(modules))).collect()
    except Exception as error:
        raise _explained(error) from error
    nodes = [Node(*answer) for answer in sorted(set(answers))]
    for node in nodes:
        _refuse_arrow(node)
    return nodes


def _question(modules: tuple[str, ...]) -> Callable[[Iterable[int]], Iterator[tuple[Any, ...]]]:
    """Returns a function that is pickled by value: executors may have no module of this program."""

    def ask(_: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        try:
            arrow = importlib.metadata.version("pyarrow")
        except importlib.metadata.PackageNotFoundError:
            arrow = ""
        missing = tuple(module for module in modules if importlib.util.find_spec(module) is None)
        python = ".".join(str(part) for part in sys.version_info[:3])
        yield socket.gethostname(), python, sysconfig.get_platform(), arrow, missing

    return ask


def _explained(error: Exception) -> Error:
    text = f"{error} {getattr(error, 'java_exception', '')}"
    mine = ".".join(str(part) for part in sys.version_info[:2])
    if any(words in text for words in _NOT_ALIKE):
        return Error(f"the executors do not have the driver's Python {mine}, which Spark requires", hint=HINT)
    if any(words in text for words in _NO_PYTHON):
        return Error(f"the executors do not have the configured Python: {_line(text, _NO_PYTHON)}", hint=HINT)
    return Error(f"the executors do not answer: {text.strip()[:500]}", hint="see the executors' logs")


def _line(text: str, words: Iterable[str]) -> str:
    return next(line.strip() for line in text.splitlines() if any(word in line for word in words))[:300]


def _refuse_arrow(node: Node) -> None:
    numbers = tuple(int(part) for part in node.arrow.split(".")[:2] if part.isdigit())
    if numbers < ARROW:
        needed = ".".join(str(part) for part in ARROW)
        found = f"pyarrow {node.arrow}" if node.arrow else "no pyarrow"
        hint = f"install pyarrow {needed} or newer on the nodes, or {HINT}"
        raise Error(f"{node.host}: Python {node.python} has {found}", hint=hint)


# ---- failures --------------------------------------------------------------------------------------------------------
# Failures of Spark jobs: errors of this program are returned unchanged, errors of Spark are summarised in one line.


class Careful:
    """A function that returns this program's errors instead of raising them: a retry elsewhere would not help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, task: Any) -> Any:
        try:
            return self._function(task)
        except Error as error:
            return error


_PACKAGES = {
    "delta": "io.delta:delta-spark_SPARK_SCALA:RELEASE",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-SPARK_SCALA:RELEASE",
    "hudi": "org.apache.hudi:hudi-sparkSPARK-bundle_SCALA:RELEASE",
    "paimon": "org.apache.paimon:paimon-spark-SPARK:RELEASE",
}
"""The packages of formats that Spark does not contain, by the name of their data source."""

_NO_SOURCE = re.compile(r"ailed to find (?:the )?data source: ([\w.]+)|ClassNotFoundException: (\w+)\.DefaultSource")


def package_of(source: str, session: Any) -> str:
    """Returns the package of a data source (`delta`) for the Spark of a session, without its release."""
    spark = ".".join(session.version.split(".")[:2])
    scala = session._jvm.scala.util.Properties.versionNumberString().rpartition(".")[0]
    return _PACKAGES[source].replace("SPARK", spark).replace("SCALA", scala)


def hint_of(error: Exception, otherwise: str) -> str:
    """Returns a hint for an error of Spark. Spark's built-in metastore client is that of Hive 2.3, and Hive 4 no longer
    has `get_table`."""
    said = f"{error} {getattr(error, 'java_exception', '')}"
    lacking = _NO_SOURCE.search(said)
    if lacking and (package := _PACKAGES.get((lacking[1] or lacking[2]).rstrip(".").lower())):
        return (
            f"this Spark lacks the format's package: add it by --spark-conf spark.jars.packages={package}, of the"
            " release for this Spark, or for every session by jars.packages in [spark]"
        )
    if "S3AFileSystem not found" in said or "No FileSystem for scheme" in said:
        return (
            "Spark itself reads and writes there, with Hadoop's client of that store: add it, for S3 by "
            "--spark-conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, the version of Spark's Hadoop"
        )
    if "Invalid method name: 'get_table'" not in said:
        return otherwise
    return (
        "Spark's own client cannot read tables of a Hive 4 metastore: configure another one by --spark-conf "
        "spark.sql.hive.metastore.version=4.0.1, .jars=path and .jars.path=JARS (docs/compatibility.md)"
    )


def is_of_spark(error: Exception) -> bool:
    """Returns True if Spark, or the bridge to it, raised the error."""
    return "pyspark" in type(error).__module__ or "py4j" in type(error).__module__


def is_unread(error: Exception) -> bool:
    """Returns True if Spark could not read a file, which it may be able to without filter pushdown."""
    return is_of_spark(error) and "FAILED_READ_FILE" in str(error)


def spark_failed(error: Exception) -> Error:
    """Returns an Error with Spark's own message, and its cause if a file cannot be read, without the Java stack
    trace."""
    text = str(getattr(error, "desc", "") or getattr(error, "java_exception", "") or error).strip()
    causes = re.findall(r"Caused by: ([^\n]+)", str(error)) if is_unread(error) else []
    cause = f"; the cause: {causes[-1][:300]}" if causes else ""
    return Error(
        f"Spark failed: {text.splitlines()[0][:500] if text else type(error).__name__}{cause}",
        hint=hint_of(error, "see Spark's log; --verbose shows the traceback"),
    )


def cause_of(error: Exception) -> str:
    """Returns the last error of the Python traceback inside a Java exception, or else the beginning of the text."""
    text = str(getattr(error, "java_exception", error))
    found = [line for line in text.splitlines() if _RAISED.match(line)]
    return (found[-1] if found else text[:300])[:500]


_RAISED = re.compile(r"(?!org\.|java\.|Traceback|Caused by)[A-Za-z_][\w.]*: ")
"""The last line of a traceback, the only one that is not indented. Names of Java's own errors begin with a package."""


# ---- shared places ---------------------------------------------------------------------------------------------------
# Checks that executors on other hosts see the local paths of their tasks as the driver does, before the first tasks
# that name a path run. A path that is not a mount shared by all hosts would look empty there, or would receive files
# that are never found.


MANY = 16
"""The number of paths that are checked at one time, and of first tasks that are searched for paths."""

DEEP = 4
"""Levels of nested values of a task that are searched for paths."""

_HINT = (
    "a local path must be the same mount on all hosts; or use HDFS or an object store, or run"
    " with --engine local (docs/on-a-cluster.md)"
)


class Sight(msgspec.Struct, frozen=True):
    """A directory as one host sees it. format: bytes of its FORMAT file, with the id of a root; b"": not a root."""

    path: str
    format: bytes = b""


class SharedPlaces:
    """Paths that all executors of an application were found to share. Executors that are added later are not checked.
    elsewhere: executors may run on other hosts; otherwise nothing is checked."""

    def __init__(self, *, elsewhere: bool) -> None:
        self._elsewhere = elsewhere
        self._known: set[str] = set()

    def check(self, context: Any, tasks: Sequence[Any]) -> None:
        """Checks the paths of tasks that are about to run. Raises Error naming host and path. Writes nothing; a
        directory that exists and is not a root is assumed to be the same directory."""
        sights: dict[str, Sight] = {}
        for task in tasks[:MANY] if self._elsewhere else ():
            for path in _local_directories(task, DEEP):
                if len(sights) < MANY and not self._is_known(path):
                    sights[path] = Sight(path, _format(path))
        if not sights:
            return
        count = max(2, int(context.defaultParallelism))
        asking = _Asking(tuple(sights.values()))
        try:
            answers = context.parallelize(range(count), count).mapPartitions(asking).collect()
        except Exception as error:
            raise Error(f"the executors do not answer: {cause_of(error)}", hint="see the executors' logs") from error
        for host, path, what in sorted(set(answers)):
            if os.path.isdir(path) and _format(path) == sights[path].format:  # otherwise it has changed concurrently
                raise Error(f"{host} has {what} at {path}, unlike {socket.gethostname()}", hint=_HINT)
        for path, sight in sights.items():
            self._known |= {path} if sight.format else {path, os.path.dirname(path)}

    def _is_known(self, path: str) -> bool:
        """Returns True if the path was checked: a root itself; any other path also next to or below a known one."""
        if path in self._known:
            return True
        above = path
        while (above := os.path.dirname(above)) != "/":
            if above in self._known:
                return not _format(path)
        return False


class _Asking:
    """The check that runs on executors."""

    def __init__(self, sights: tuple[Sight, ...]) -> None:
        self._sights = sights

    def __call__(self, _: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        for sight in self._sights:
            if not os.path.isdir(sight.path):
                yield socket.gethostname(), sight.path, "no directory"
            elif _format(sight.path) != sight.format:
                yield socket.gethostname(), sight.path, "another directory"


def _format(directory: str) -> bytes:
    try:
        with open(os.path.join(directory, FORMAT), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _local_directories(value: Any, deep: int) -> Iterator[str]:
    """Yields the existing directories that a task names, or that contain a file that it names."""
    if isinstance(value, str):
        if value.startswith(("/", "file:")) and is_local(value):
            with contextlib.suppress(ValueError, Error):
                path = local_path(value)
                while not os.path.isdir(path):
                    path = os.path.dirname(path)
                if path != "/":
                    yield path
    elif deep and isinstance(value, list | tuple):
        for each in value[:MANY]:
            yield from _local_directories(each, deep - 1)
    elif deep and dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _local_directories(getattr(value, field.name), deep - 1)
    elif deep and isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _local_directories(getattr(value, name), deep - 1)


# ---- shipping --------------------------------------------------------------------------------------------------------
# Packages for the executors: this program, and the libraries of its tasks that a node is missing.
#
# The program is a zip file from which Python imports; it precedes any version installed on a node, so that all run the
# same version. Libraries with compiled parts cannot be imported from a zip file: Spark unpacks them next to it, in the
# directory that `cmroot` searches.


LIBRARIES = {
    name: name for name in ("fastavro", "fsspec", "hmsclient", "msgspec", "packaging", "tenacity", "thrift", "xxhash")
}
"""Modules that tasks import, and their distributions."""

EXTRAS = {"adlfs": "adlfs", "gcsfs": "gcsfs", "hdfs_native": "hdfs-native", "s3fs": "s3fs"}
"""Modules that tasks import for some stores: shipped if the driver has them."""

OF_NODES = frozenset({"numpy", "pandas", "py4j", "pyarrow", "pyspark"})
"""Distributions that are provided by the node or by Spark."""


def ship(context: Any, directory: Path) -> list[Node]:
    """Ships the missing packages to the executors of an application. The files are retained in `directory` while the
    application runs. May run twice for one application. Raises Error if the Python of a node cannot use them."""
    program = pack_program(directory)
    if program.name in context._python_includes:
        return []
    wanted = LIBRARIES | {module: name for module, name in EXTRAS.items() if importlib.util.find_spec(module)}
    nodes = ask_nodes(context, wanted)
    missing = {module for node in nodes for module in node.missing}
    if missing:
        _refuse_others(node for node in nodes if node.missing)
        libraries = pack_libraries(directory, [wanted[module] for module in sorted(missing)])
        context.addArchive(f"{libraries}#{cmroot.LIBRARIES}")
    context.addPyFile(str(program))
    return nodes


def pack_program(directory: Path) -> Path:
    """Writes a zip file with all modules of this program, named by its contents."""
    files = [
        (f"{package}/{path.relative_to(top)}", path)
        for package in ("cmroot", "replicator")
        for top in [Path(str(importlib.resources.files(package)))]
        for path in sorted(top.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    return _packed(directory, "replicator", files)


def pack_libraries(directory: Path, distributions: Iterable[str]) -> Path:
    """Writes a zip file with installed distributions and all that they require. Raises Error for a distribution that is
    not installed as files."""
    files: list[tuple[str, Path]] = []
    for distribution in sorted(_closure(distributions), key=lambda each: each.name):
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc" and (path := Path(str(file.locate()))).is_file():
                files.append((file.as_posix(), path))
    return _packed(directory, cmroot.LIBRARIES, files)


def _closure(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in OF_NODES:
            continue
        found[name] = importlib.metadata.distribution(name)
        waiting += _required(found[name].requires or ())
    return list(found.values())


def _required(lines: Iterable[str]) -> Iterator[str]:
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _packed(directory: Path, name: str, files: Sequence[tuple[str, Path]]) -> Path:
    digest = hashlib.sha256()
    for inside, path in files:
        digest.update(f"{inside}\0{path.stat().st_size}\0{path.stat().st_mtime_ns}\0".encode())
    target = directory / f"{name}-{digest.hexdigest()[:12]}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, strict_timestamps=False) as packed:
        for inside, path in files:
            packed.write(path, inside)
    return target


def _refuse_others(lacking: Iterable[Node]) -> None:
    """Raises Error for nodes of another platform: compiled libraries of the driver run only on its own platform."""
    for node in lacking:
        if node.platform != sysconfig.get_platform():
            raise Error(
                f"{node.host}: {node.platform} has no {', '.join(node.missing)}, and those of the driver are for "
                f"{sysconfig.get_platform()}",
                hint=f"install them on the nodes, or {HINT}",
            )
