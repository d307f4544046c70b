"""What executors are given: this program, and the libraries of its tasks that a node lacks.

The program is a zip file, which Python imports from; it comes before what a node may have installed, so that all
run the same version. Libraries with compiled parts cannot be imported from a zip file: Spark unpacks them beside it,
where `cmroot` looks for them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cmroot
from replicator.core.cluster.nodes import HINT, Node, ask_nodes
from replicator.errors import Error

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
