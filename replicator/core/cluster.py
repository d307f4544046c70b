"""What the Python of a cluster's executors is and has: asked by a first job, before anything is changed."""

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
"""The oldest pyarrow that nodes may have, as pyproject.toml says of the driver."""

HINT = "give the executors another Python by PYSPARK_PYTHON or spark.pyspark.python (docs/on-a-cluster.md)"
_NOT_ALIKE = ("PYTHON_VERSION_MISMATCH", "different version than that in driver", "has different version")
_NO_PYTHON = ("Cannot run program", "error=2, No such file")


class Node(msgspec.Struct, frozen=True):
    """A host's Python: version, platform, pyarrow's version (empty: it has none), and which modules are not there."""

    host: str
    python: str
    platform: str
    arrow: str
    missing: tuple[str, ...]


def ask_nodes(context: Any, modules: Collection[str]) -> list[Node]:
    """Asks as many executors as have registered. Raises Error when their Python cannot run tasks of this driver, or has
    no pyarrow that is new enough."""
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
    """A function that travels by its code: executors may have no module of ours."""

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
        return Error(f"the executors' Python is not the driver's {mine}, which Spark needs", hint=HINT)
    if any(words in text for words in _NO_PYTHON):
        return Error(f"the executors have no such Python as they are told: {_line(text, _NO_PYTHON)}", hint=HINT)
    return Error(f"the executors do not answer: {text.strip()[:500]}", hint="look at the executors' logs")


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
# Failures of Spark jobs: errors of ours come back as they were, those of Spark are told in a line.


class Careful:
    """A function whose errors of ours are returned: trying again on another executor would not help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, task: Any) -> Any:
        try:
            return self._function(task)
        except Error as error:
            return error


def hint_of(error: Exception, otherwise: str) -> str:
    """What helps against an error of Spark's. Its own client of a metastore is that of Hive 2.3, and Hive 4 has no
    `get_table` any more."""
    said = f"{error} {getattr(error, 'java_exception', '')}"
    if "S3AFileSystem not found" in said or "No FileSystem for scheme" in said:
        return (
            "Spark itself reads and writes there, by Hadoop's client of that store: give it one, for S3 by "
            "--spark-conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, that of Spark's Hadoop"
        )
    if "Invalid method name: 'get_table'" not in said:
        return otherwise
    return (
        "Spark's own client cannot read tables of a metastore of Hive 4: give it another one by --spark-conf "
        "spark.sql.hive.metastore.version=4.0.1, .jars=path and .jars.path=JARS (docs/compatibility.md)"
    )


def cause_of(error: Exception) -> str:
    """The last error of the Python traceback inside a Java one, else the beginning."""
    text = str(getattr(error, "java_exception", error))
    found = [line for line in text.splitlines() if _RAISED.match(line)]
    return (found[-1] if found else text[:300])[:500]


_RAISED = re.compile(r"(?!org\.|java\.|Traceback|Caused by)[A-Za-z_][\w.]*: ")
"""A traceback's last line: it alone is not indented. Java's own errors are of packages."""


# ---- shared places ---------------------------------------------------------------------------------------------------
# Whether executors on other hosts see the local places of their tasks as the driver does: asked before the first tasks
# that name a place. A place that is no mount of all hosts would look empty there, or get files that nobody finds.


MANY = 16
"""Places that are asked for at one time, of the first tasks."""

DEEP = 4
"""Of values in values of a task, that are looked through for places."""

_HINT = (
    "a local place must be one mount that all hosts have under this name; or put it on HDFS or an object store, or run"
    " with --engine local (docs/on-a-cluster.md)"
)


class Sight(msgspec.Struct, frozen=True):
    """A directory as one host sees it. format: bytes of its FORMAT file, which has a root's own id; b"": no root."""

    path: str
    format: bytes = b""


class SharedPlaces:
    """Those that all executors of an application were found to share. Executors that come later are not asked.
    elsewhere: they may be on other hosts; else nothing is asked."""

    def __init__(self, *, elsewhere: bool) -> None:
        self._elsewhere = elsewhere
        self._known: set[str] = set()

    def check(self, context: Any, tasks: Sequence[Any]) -> None:
        """Of tasks that are about to run. Raises Error, which names host and place. Writes nothing; a directory that is
        there and is no root is taken for the same one."""
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
            raise Error(
                f"the executors do not answer: {cause_of(error)}", hint="look at the executors' logs"
            ) from error
        for host, path, what in sorted(set(answers)):
            if os.path.isdir(path) and _format(path) == sights[path].format:  # else it has changed meanwhile
                raise Error(f"{host} has {what} at {path}, which {socket.gethostname()} has", hint=_HINT)
        for path, sight in sights.items():
            self._known |= {path} if sight.format else {path, os.path.dirname(path)}

    def _is_known(self, path: str) -> bool:
        """A root is asked for itself; of others, what is beside or below one is on the same mount."""
        if path in self._known:
            return True
        above = path
        while (above := os.path.dirname(above)) != "/":
            if above in self._known:
                return not _format(path)
        return False


class _Asking:
    """Runs on executors."""

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
    """That a task names, or in which a file lies that it names; those that exist."""
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
# What executors are given: this program, and the libraries of its tasks that a node lacks.
#
# The program is a zip file, which Python imports from; it comes before what a node may have installed, so that all
# run the same version. Libraries with compiled parts cannot be imported from a zip file: Spark unpacks them beside it,
# where `cmroot` looks for them.


LIBRARIES = {name: name for name in ("fsspec", "hmsclient", "msgspec", "packaging", "tenacity", "thrift", "xxhash")}
"""Modules that tasks import, and their distributions."""

EXTRAS = {"adlfs": "adlfs", "gcsfs": "gcsfs", "hdfs_native": "hdfs-native", "s3fs": "s3fs"}
"""Those that they import for some stores: given where the driver has them."""

OF_NODES = frozenset({"numpy", "pandas", "py4j", "pyarrow", "pyspark"})
"""Distributions that are a node's own, or Spark's."""


def ship(context: Any, directory: Path) -> list[Node]:
    """Gives the executors of an application what they need. The files stay in `directory` while it runs. May run twice
    for one application. Raises Error when a node's Python cannot have it."""
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
    """A zip file with all modules of this program, named by its contents."""
    files = [
        (f"{package}/{path.relative_to(top)}", path)
        for package in ("cmroot", "replicator")
        for top in [Path(str(importlib.resources.files(package)))]
        for path in sorted(top.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    return _packed(directory, "replicator", files)


def pack_libraries(directory: Path, distributions: Iterable[str]) -> Path:
    """A zip file with installed distributions and all that they require. Raises Error for one that is not installed as
    files."""
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
    """Compiled libraries of the driver run on its platform alone."""
    for node in lacking:
        if node.platform != sysconfig.get_platform():
            raise Error(
                f"{node.host}: {node.platform} has no {', '.join(node.missing)}, and those of the driver are for "
                f"{sysconfig.get_platform()}",
                hint=f"install them on the nodes, or {HINT}",
            )
