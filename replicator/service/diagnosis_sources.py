"""The sources of a diagnosis: every key of the configuration with its value and origin, the environment, the roots, and
the machine. Reads files and stores; starts neither Spark nor a metastore."""

from __future__ import annotations

import contextlib
import functools
import locale
import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from cmroot.lease import decode_holder, held_at
from cmroot.root import DIRECTORIES, open_existing
from cmroot.store.place import Place, is_local
from replicator.core.config import Config
from replicator.core.connections import is_reference, read_secret
from replicator.core.policy import KEYS
from replicator.errors import ConfigError
from replicator.metastore.java import find_java
from replicator.policies.memory import POLICIES
from replicator.service.diagnosis_bundle import MASKED, Mask, address_text, is_secret_name, reference_text

# ---- sources ---------------------------------------------------------------------------------------------------------


_FREE = frozenset({"rename_db", "map_location", "partitions", "s3_events", "spark"})
"""Tables whose keys the user chooses."""

_WEBHOOK = re.compile(r"(alerts|ingestion\.notify)\.webhooks\..*\.url")
_COMMAND = re.compile(r"(alerts|ingestion\.notify)\.commands\..*\.command")

_PATH = 8
"""Minimum characters of a part of a webhook's path that may be a secret: a shorter one is a word."""

_SHOWN = re.compile(r"(REPLICATOR|SPARK|PYSPARK|HADOOP|HIVE|YARN|JAVA|KRB5|LC_|LANG|TZ$|PYTHON)")
_TOLD = re.compile(r"(AWS|AZURE|GOOGLE|GCS|PG|S3|SSL|HTTPS?_PROXY|NO_PROXY|XDG|TMPDIR)", re.IGNORECASE)


OVERRIDDEN = {
    "log.format": "REPLICATOR_LOG_FORMAT",
    "log.level": "REPLICATOR_LOG_LEVEL",
    "log.file": "REPLICATOR_LOG_FILE",
    "log.heartbeat": "REPLICATOR_HEARTBEAT",
}
"""Variables that set a key for every command, regardless of the file; other variables set options of one command."""


class Setting(msgspec.Struct, frozen=True):
    """key: as docs/configuration.md names it. source: "env:NAME", "FILE:LINE", "FILE", "default", or "caller"."""

    key: str
    value: Any
    source: str


def settings(config: Config, file: Path | None, mask: Mask, env: Mapping[str, str] = {}) -> list[Setting]:
    """Returns every key with its value and origin, unset ones with their default. file: the one that was read; None:
    the caller gave values. env: variables that override them. Raises ConfigError for a file that is not TOML."""
    written, lines = _written(file) if file else ({}, {})
    effective = dict(_flat(_effective(config)))
    given = {key: name for key, name in OVERRIDDEN.items() if env.get(name)}
    keys = sorted({*written, *effective, *given})
    found = []
    for key in keys:
        value = written.get(key, effective.get(key))
        source = "default" if file else "caller"
        if key in given:
            value, source = env[given[key]], f"env:{given[key]}"
        elif key in written:
            source = f"{file}:{lines[key]}" if key in lines else str(file)
        found.append(Setting(key, shown(key, value, mask), source))
    return found


def shown(key: str, value: Any, mask: Mask) -> Any:
    """Returns a key's value with secrets masked."""
    if _WEBHOOK.fullmatch(key):
        return address_text(str(value))
    if _COMMAND.fullmatch(key):
        return [*value[:1], *([MASKED] * len(value[1:]))]
    if re.fullmatch(r"metastores\..*\.headers\..*", key) or _unknown(key):
        return reference_text(str(value)) or MASKED
    return mask.named(key, value)


def _unknown(key: str) -> bool:
    """Returns True for an unknown key, which may be the misspelled one of a secret."""
    *above, last = key.split(".")
    return last not in _known_names() and _FREE.isdisjoint(above)


@functools.cache
def _known_names() -> frozenset[str]:
    return frozenset(KEYS) | frozenset(_fields(msgspec.inspect.type_info(Config)))


def _fields(kind: msgspec.inspect.Type) -> Iterator[str]:
    if isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            yield each.encode_name
            yield from _fields(each.type)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield from _fields(kind.value_type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _fields(one)


def environment(mask: Mask, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that commands, Spark and the drivers of stores read. Variables with identities
    of stores and databases are only reported as set."""
    found = {}
    for name, value in sorted(env.items()):
        if _SHOWN.match(name):
            found[name] = str(mask.named(name, value))
        elif _TOLD.match(name):
            found[name] = "(set)"
    return found


def secrets(config: Config, env: Mapping[str, str]) -> Iterator[str]:
    """Yields the secrets of this environment, and the values of the configuration's references to files and variables;
    programs are not run."""
    yield from (value for name, value in env.items() if is_secret_name(name) and not is_reference(value))
    for key, value in _flat(msgspec.to_builtins(config)):
        if _WEBHOOK.fullmatch(key) and len(path := str(value).partition("://")[2].partition("/")[2]) >= _PATH:
            yield path
        if isinstance(value, str) and is_reference(value) and not value.startswith("command:"):
            with contextlib.suppress(ConfigError):
                yield read_secret(value, key)
        elif isinstance(value, str) and "://" in value and "@" in value:
            yield from _of_url(value)
        elif isinstance(value, str) and is_secret_name(key):
            yield value
    for place in (config.dumps.key_file, *(each.key_file for each in config.policies.values())):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield from (line.strip() for line in Path(place or os.devnull).read_text().splitlines() if line.strip())


def _of_url(url: str) -> Iterator[str]:
    _, colon, password = url.partition("://")[2].partition("@")[0].partition(":")
    if colon and password:
        yield password


def _effective(config: Config) -> dict[str, Any]:
    """Returns the value as read, without parts derived from other keys."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    found.pop("looked_for")
    found["ingestion"].pop("replicating")
    for policy in found["policies"].values():
        for derived in ("name", "source_metastore", "target_metastore", "key_file"):
            policy.pop(derived)
    return found


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted keys; lists are values."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(each, f"{key}.{name}" if key else str(name))
    elif key and value != {}:
        yield key.replace("spark.spark.", "spark.", 1) if key.startswith("spark.spark.") else key, value


_TABLE = re.compile(r"\s*\[\[?\s*(.+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def _written(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the file's keys with their lines; keys within inline tables have no line of their own."""
    try:
        text = file.read_text(encoding="utf-8")
        values = dict(_flat(tomllib.loads(text)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}", hint="see https://toml.io; strings need quotes") from error
    table, lines = "", {}
    for number, line in enumerate(text.splitlines(), 1):
        if head := _TABLE.fullmatch(line):
            table = _joined(head[1])
        elif match := _KEY.match(line):
            key = f"{table}.{_joined(match[1])}".lstrip(".")
            lines[f"spark.{key.removeprefix('spark.spark.')}" if key.startswith("spark.spark.") else key] = number
    below = {key: next((lines[up] for up in _above(key) if up in lines), None) for key in values}
    return values, {key: number for key, number in below.items() if number is not None}


def _joined(key: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(key))


def _above(key: str) -> Iterator[str]:
    """The key, and the tables that it may be written inline in."""
    while key:
        yield key
        key = key.rpartition(".")[0]


# ---- roots -----------------------------------------------------------------------------------------------------------
# A summary of a `$cmroot`: format, lease, log, pins, and how many files it keeps, by counting names in part of it.


NAMES = 20_000
"""Names that are counted in one directory, and in `files/` together."""

SECONDS = 20.0
"""For counting `files/`."""

SHOWN_PINS = 200

_SEGMENT = re.compile(r"(\d{20})-(\d{20})")
_FILES = 256  # directories below files/, one for each two digits that a content's name begins with


def root_summary(place: str, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Returns a summary of a root. Reads only. Counts are marked if incomplete. Raises FormatError for a location that
    is not a root."""
    root = open_existing(place)
    at = Place(root.place)
    found: dict[str, Any] = {"place": root.place, "id": root.id, "version": root.format.version}
    found["created"] = root.format.created
    found["lease"] = _lease(at)
    found["log"] = _log(at)
    found["files"] = _files(at, clock)
    found["directories"] = {name: _counted(at / name) for name in DIRECTORIES if name not in ("files", "log")}
    found["pins"] = {name: _names(at / name)[:SHOWN_PINS] for name in ("slots", "holds", "legal")}
    found["policies"] = {name: _policy(at / POLICIES / name) for name in _names(at / POLICIES)[:SHOWN_PINS]}
    return found


def _names(place: Place) -> list[str]:
    """At most NAMES of them, without hidden ones."""
    if not place.local:
        return [name for name in place.list() if not name.startswith(".")][:NAMES]
    try:
        with os.scandir(place.local) as entries:
            return sorted(each.name for each in islice(entries, NAMES) if not each.name.startswith("."))
    except FileNotFoundError:
        return []


def _counted(place: Place) -> dict[str, Any]:
    count = len(_names(place))
    return {"names": count, "complete": count < NAMES}


def _policy(place: Place) -> dict[str, Any]:
    return {"lease": _lease(place), "runs": _counted(place / "runs"), "names": _names(place)[:SHOWN_PINS]}


def _lease(root: Place) -> dict[str, Any] | None:
    """Returns the current or last holder of the lease. None: there was none."""
    path = root / "lease"
    if not root.local:
        epochs = [name for name in path.list() if name.isdecimal()]
        if not epochs:
            return None
        path = path / max(epochs, key=int)
    try:
        holder = decode_holder(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    if holder is None:
        return None
    told = {name: getattr(holder, name) for name in ("epoch", "host", "pid", "since", "purpose", "expires", "released")}
    try:
        return {**told, "held": held_at(str(root), holder.epoch)}
    except OSError as error:  # this user may read, and not write
        return {**told, "held": None, "not_known": str(error)}


def _log(root: Place) -> dict[str, Any]:
    """Counts segments by their names; `cm check` reports whether each is finished."""
    names = _names(root / "log")
    ranges = sorted((int(match[1]), int(match[2])) for name in names if (match := _SEGMENT.fullmatch(name)))
    others = [name for name in names if not _SEGMENT.fullmatch(name)]
    return {
        "segments": len(ranges),
        "complete": len(names) < NAMES,
        "first": ranges[0][0] if ranges else None,
        "last": max((last for _, last in ranges), default=None),
        "others": others[:SHOWN_PINS],
    }


def _files(root: Place, clock: Callable[[], float]) -> dict[str, Any]:
    """Counts the contents in some of the directories, and extrapolates to all: contents are spread evenly over them.
    Directories of an object store are listed one by one."""
    place, began = root / "files", clock()
    names = _names(place) if place.local else [f"{number:02x}" for number in range(_FILES)]
    counted = looked = 0
    for name in names:
        if looked and (counted >= NAMES or clock() - began > SECONDS):
            break
        counted += len(_names(place / name))
        looked += 1
    return {
        "counted": counted,
        "directories": len(names),
        "looked_at": looked,
        "complete": looked == len(names),
        "estimate": round(counted / looked * len(names)) if looked else 0,
    }


# ---- machine ---------------------------------------------------------------------------------------------------------
# The machine: versions of the software, and the platform. Starts neither Spark nor a metastore.


DISTRIBUTIONS = 2000
"""The maximum number of installed packages that are listed."""


def versions(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the versions of this program, Python, and every installed package. Java and Spark are separate parts,
    because either may be missing."""
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
    """Returns the platform; sizes in bytes."""
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
