"""What the Python of a cluster's executors is and has: asked by a first job, before anything is changed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

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
