"""The collection: which parts a diagnosis has, and where each is from. Reads, and checks policies as `check` does."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import locale
import os
import platform
import resource
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from cmroot.root import open_existing
from cmroot.store.place import is_local
from replicator.commands.diagnosis.sources import OVERRIDDEN, Mask, environment, root_summary, secrets, settings
from replicator.core.config import Config
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy
from replicator.errors import Error, Refused
from replicator.metastore.java import find_java
from replicator.policies import lag as lags
from replicator.policies.checks import check
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.memory import Memory, shown_history
from replicator.service.schema import REVISIONS
from replicator.service.store import REVISION, ServiceStore

# ---- bundle ----------------------------------------------------------------------------------------------------------
# The bundle: parts, each made by itself, masked, and written into one archive. What cannot be made is named in it.


LARGEST = 4 << 20
"""Bytes of one part. A larger one is cut, and said to be."""


class MissingPart(msgspec.Struct, frozen=True):
    """part: its name in the bundle. error, hint: why it could not be had."""

    part: str
    error: str
    hint: str = ""


class Bundle:
    """Parts by their names. `missing`: what could not be had, or only in part."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self.parts: dict[str, bytes] = {}
        self.missing: list[MissingPart] = []

    def add(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, as JSON, or as it is where it is a text. Whatever goes wrong is part of the diagnosis:
        it is named, and None is returned."""
        try:
            made = make()
        except Exception as error:
            self.miss(name, error)
            return None
        if isinstance(made, str):
            data = self.mask.text(made).encode(errors="backslashreplace")
        else:
            value = made.to_dict() if isinstance(made, Report) else msgspec.to_builtins(made, str_keys=True)
            data = json.dumps(self.mask.value(value), indent=1, ensure_ascii=False).encode(errors="backslashreplace")
        if len(data) > LARGEST:
            self.lack(name, f"is cut after {LARGEST} of its {len(data)} bytes")
        self.parts[name] = data[:LARGEST]
        return made

    def miss(self, name: str, error: Exception) -> None:
        said = error.message if isinstance(error, Error) else str(error) or type(error).__name__
        hint = error.hint if isinstance(error, Error) else ""
        kind = type(error).__name__
        self.missing.append(MissingPart(name, self.mask.text(f"{kind}: {said}"), self.mask.text(hint or "")))

    def lack(self, name: str, text: str) -> None:
        self.missing.append(MissingPart(name, self.mask.text(text)))

    def write(self, path: Path, made: float, *, overwrite: bool) -> int:
        """As a tar.gz that only its owner may read, whole or not at all; its size in bytes. made: seconds since 1970.
        Raises Refused for a file that is there, without `overwrite`; OSError."""
        path = path.absolute()
        handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                self._pack(file, path.name.partition(".")[0], made)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            if overwrite:
                os.replace(staged, path)
            else:
                os.link(staged, path)  # the name appears with all its bytes, for one caller only
        except FileExistsError:
            raise _there(path) from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        return size

    def _pack(self, to: BinaryIO, directory: str, made: float) -> None:
        with (
            gzip.GzipFile(fileobj=to, mode="wb", filename="", mtime=made) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, data in sorted(self.parts.items()):
                entry = tarfile.TarInfo(f"{directory}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(made), 0o600
                archive.addfile(entry, io.BytesIO(data))


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raises Refused."""
    if os.path.lexists(path) and not overwrite:
        raise _there(path)


def _there(path: Path) -> Refused:
    return Refused(f"{path} already exists", hint="choose another --out, or give --overwrite")


# ---- machine ---------------------------------------------------------------------------------------------------------
# The machine: versions of all that runs here, and what it runs on. Starts neither Spark nor a metastore.


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


# ---- collect ---------------------------------------------------------------------------------------------------------


RUNS = 20
"""Of each policy, and of the service, newest first; and the service's newest logs."""

LOG_END = 64 << 10
"""Bytes of a log's end."""

SHOWN_TABLES = 1000
"""Of a policy's lag by tables."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed(Report):
    """status: "written", or "partial" when something is missing. out: the file, of `bytes` bytes, with `parts`.
    policies: each one's health, as `check` found it. missing: what could not be had, and why; it is in the bundle, too.
    """

    status: str
    out: str
    bytes: int = 0
    policies: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    missing: list[MissingPart] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is diagnosed. file: of the configuration; None: the caller gave values. broken: why it cannot be read.
    policies: those that are looked at."""

    config: Config
    file: Path | None
    broken: Exception | None
    policies: Sequence[Policy]


def diagnose(
    subject: Subject,
    out: Path,
    *,
    overwrite: bool = False,
    env: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Diagnosed:
    """Writes the bundle, and says what is in it. Raises Refused for a file that is there."""
    env, now = dict(os.environ) if env is None else env, clock()
    bundle = Bundle(Mask(secrets(subject.config, env)))
    _add_machine(bundle, subject, env, now)
    _add_settings(bundle, subject, env)
    health = {policy.name: _add_policy(bundle, policy, subject.config) for policy in subject.policies}
    for number, place in enumerate(_roots(subject)):
        bundle.add(f"roots/{number}.json", partial(root_summary, place))
    if log := env.get(OVERRIDDEN["log.file"]) or subject.config.log.file:
        bundle.add("log.txt", partial(_end, Path(log)))
    _add_service(bundle, subject.config)
    bundle.add("missing.json", lambda: bundle.missing)
    bundle.add("README.txt", lambda: _about(bundle, now))
    size = bundle.write(out, now, overwrite=overwrite)
    return Diagnosed(
        status="partial" if bundle.missing else "written",
        out=str(out.absolute()),
        bytes=size,
        policies=health,
        parts=sorted(bundle.parts),
        missing=bundle.missing,
    )


def _add_machine(bundle: Bundle, subject: Subject, env: Mapping[str, str], now: float) -> None:
    places = [
        each for policy in subject.policies for each in (policy.cmroot, policy.target_cmroot, policy.dumps) if each
    ]
    bundle.add("versions.json", lambda: versions(env))
    bundle.add("java.json", lambda: java(env))
    bundle.add("spark.json", lambda: spark(env))
    bundle.add("system.json", lambda: system(now))
    bundle.add("disks.json", lambda: disks(dict.fromkeys([os.getcwd(), *places])))


def _add_settings(bundle: Bundle, subject: Subject, env: Mapping[str, str]) -> None:
    if subject.broken is not None:
        bundle.miss("configuration", subject.broken)
    if (
        subject.file is None
        and subject.broken is None
        and subject.config == Config(looked_for=subject.config.looked_for)
    ):
        bundle.lack("configuration", f"not found: {subject.config.looked_for}")
    bundle.add("configuration.json", lambda: settings(subject.config, subject.file, bundle.mask, env))
    bundle.add("environment.json", lambda: environment(bundle.mask, env))


def _add_policy(bundle: Bundle, policy: Policy, config: Config) -> str:
    """Its health; "unknown" where it could not be checked."""
    others = list(config.policies.values())
    begin = f"policies/{policy.name}"
    checked: PolicyChecked | None = bundle.add(
        f"{begin}/check.json", lambda: check.check(policy, others=others, gateway=config.gateway)
    )
    measured = bundle.add(f"{begin}/lag.json", lambda: _lag(policy))
    for side, why in ((measured or {}).get("unreachable") or {}).items():
        bundle.lack(f"{begin}/lag.json", f"the {side} does not answer: {why}")
    memory = bundle.add(f"{begin}/memory.json", lambda: _memory(policy))
    for damaged in (memory or {}).get("damaged", []):
        bundle.lack(f"{begin}/memory.json", f"{damaged} cannot be parsed")
    if checked is None:
        return "unknown"
    for finding in checked.findings:
        if finding.health == "unknown":
            bundle.lack(f"{begin}/check.json", f"{finding.name}: {finding.text}")
    return checked.status


def _lag(policy: Policy) -> dict[str, Any]:
    with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
        found = lags.lag(policy, source, target).to_dict()
    for name, value in found.items():
        if isinstance(value, list) and len(value) > SHOWN_TABLES:
            found[name] = [*value[:SHOWN_TABLES], f"... and {len(value) - SHOWN_TABLES} more"]
    return found


def _memory(policy: Policy) -> dict[str, Any]:
    """Runs, the scope, and a change of roles, as `<target_cmroot>/policies/<name>/` has them."""
    memory = Memory(open_existing(policy.target_cmroot), policy.name)
    return {
        **shown_history(memory, policy, RUNS).to_dict(),
        "scope": msgspec.to_builtins(memory.read_scope()),
        "role_change": msgspec.to_builtins(memory.read_role_change()),
    }


def _roots(subject: Subject) -> list[str]:
    found = [each for policy in subject.policies for each in (policy.cmroot, policy.target_cmroot)]
    return list(dict.fromkeys([*found, *filter(None, [subject.config.defaults.cmroot])]))


def _add_service(bundle: Bundle, config: Config) -> None:
    """Nothing where no service has run."""
    runs = bundle.add("service.json", lambda: _service(config))
    logs = Path(config.service.logs)
    for each in (runs or {}).get("runs", []):
        log = logs / each["id"] / "log.txt"
        if log.exists():
            bundle.add(f"service/{each['id']}.log", partial(_end, log))


def _service(config: Config) -> dict[str, Any]:
    with ServiceStore(config.service.store) as store:
        revision = store.revision(REVISIONS, REVISION)
        if revision is None:
            return {"store": store.url, "revision": None}
        holder, epoch, held = store.leader()
        return {
            "store": store.url,
            "revision": revision,
            "lease": {"holder": holder, "epoch": epoch, "held": held},
            "jobs": msgspec.to_builtins(list(store.jobs().values())),
            "runs": msgspec.to_builtins(store.runs(limit=RUNS)),
        }


def _end(log: Path) -> str:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_END))
        text = file.read().decode(errors="replace")
    return f"(the last {LOG_END} of {size} bytes)\n{text.partition(chr(10))[2]}" if size > LOG_END else text


def _about(bundle: Bundle, now: float) -> str:
    lines = [
        f"A diagnosis of replicator, created {datetime.fromtimestamp(now, UTC).isoformat(timespec='seconds')}.",
        "Secrets are masked (***). It names hosts, databases, tables and files: read it before you send it.",
        "",
        *(f"{name}  {len(data)} bytes" for name, data in sorted(bundle.parts.items())),
        "",
        "Not included:" if bundle.missing else "Nothing is missing.",
        *(f"- {each.part}: {each.error}" for each in bundle.missing),
    ]
    return "\n".join(lines) + "\n"
