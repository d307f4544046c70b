"""The machine: versions of all that runs here, and what it runs on. Starts neither Spark nor a metastore."""

from __future__ import annotations

import locale
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from cmroot.store.place import is_local
from replicator.metastore.java import find_java

DISTRIBUTIONS = 2000
"""Installed packages that are named; an environment with more is somebody's whole machine."""


def versions(env: Mapping[str, str]) -> dict[str, Any]:
    """Of this program, Python, and every installed package. Java and Spark are parts of their own: each may be missing
    by itself."""
    found = sorted({(each.metadata["Name"] or "?", each.version) for each in distributions()}, key=str)
    return {
        "replicator": _version("replicator"),
        "installed_at": str(Path(__file__).parents[1]),
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": dict(found[:DISTRIBUTIONS]),
        "packages_left_out": max(0, len(found) - DISTRIBUTIONS),
        "programs": {name: shutil.which(name, path=env.get("PATH")) for name in ("java", "spark-submit", "hdfs")},
    }


def java(env: Mapping[str, str]) -> dict[str, Any]:
    """The one that Spark and embedded metastores get. Raises JavaError."""
    found = find_java(env)
    return {"version": found.version, "home": str(found.home), "origin": found.origin}


def spark(env: Mapping[str, str]) -> dict[str, Any]:
    """The one that a run would start. Raises PackageNotFoundError."""
    return {"pyspark": version("pyspark"), "SPARK_HOME": env.get("SPARK_HOME")}


def system(now: float) -> dict[str, Any]:
    """What it runs on; sizes in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "system": platform.platform(),
        "release": _first_line("/etc/os-release", "PRETTY_NAME="),
        "machine": platform.machine(),
        "host": socket.gethostname(),
        "user": os.getuid(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_limit": _first_line("/sys/fs/cgroup/cpu.max"),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit": _first_line("/sys/fs/cgroup/memory.max"),
        "open_files": [soft, hard],
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        "time_zone": list(time.tzname),
        "locale": locale.setlocale(locale.LC_CTYPE, None),
        "file_names": sys.getfilesystemencoding(),
        "container": Path("/.dockerenv").exists() or bool(os.environ.get("KUBERNETES_SERVICE_HOST")),
    }


def disks(places: Iterable[str]) -> dict[str, Any]:
    """Sizes and free bytes of the local filesystems of places, by place; of one that is not there yet, of the nearest
    directory above it."""
    found = {}
    for place in places:
        if not is_local(place):
            continue
        path = Path(place.removeprefix("file://")).absolute()
        while not path.exists():
            path = path.parent
        free = os.statvfs(path)
        found[place] = {
            "size": free.f_frsize * free.f_blocks,
            "free": free.f_frsize * free.f_bavail,
            "files_free": free.f_favail,
            "looked_at": str(path),
        }
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def _first_line(path: str, begin: str = "") -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.removeprefix(begin).strip('"') for line in lines if line.startswith(begin)), None)
