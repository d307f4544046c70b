"""The versions of Hive whose metastore can be started: their requirements, and the location of their jars.

Hive 2.3 is among pyspark's jars, except its notification listener. The others are downloaded from a Maven repository
(`distributions/VERSION.txt`); they run on pyspark's Hadoop, and so on any Java that Spark runs on. Schemas are those of
the published distributions. For 4.0 and 4.2 no distribution or no listener is published:

- 4.0 runs with the listener of 4.2 and a small class in front of it (scripts/listener), 4.2 with hive-exec, which
  contains the server, and with the schema of 4.0 and the statements that upgrade it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from replicator.errors import ChecksumMismatch, JavaError, UsageError
from replicator.metastore.java import Java, cache_directory, locked

# ---- fetching --------------------------------------------------------------------------------------------------------
# Artifacts of a Maven repository: listed with their SHA-256, downloaded once into the cache.
#
# They are downloaded from the central repository, or from REPLICATOR_MAVEN_REPOSITORY, the URL of a mirror. If the user
# has settings for Maven, they are downloaded by Maven, which applies the settings.


CENTRAL = "https://repo1.maven.org/maven2"
PATIENCE = 600  # seconds for all artifacts by Maven, or for one without it
SIDE_BY_SIDE = 8  # concurrent downloads


@dataclass(frozen=True)
class Artifact:
    """An artifact: `group:module:version[:classifier[:extension]]`, and its required SHA-256."""

    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, module, version, *more = self.coordinates.split(":")
        classifier, extension = (*more, "", "jar")[:2] if len(more) != 1 else (more[0], "jar")
        return f"{module}-{version}{'-' if classifier else ''}{classifier}.{extension}"

    @property
    def path(self) -> str:
        """The path below a repository's URL."""
        group, module, version, *_ = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{module}/{version}/{self.file_name}"


def read_list(path: Path) -> tuple[Artifact, ...]:
    """Reads a file with a line `SHA256 coordinates` for each artifact, in the order of the class path."""
    rows = (line.split() for line in path.read_text().splitlines())
    return tuple(Artifact(coordinates, sha256) for sha256, coordinates in rows)


def fetch(artifacts: Sequence[Artifact], directory: Path, java: Java, env: Mapping[str, str], hint: str) -> None:
    """Downloads those of `artifacts` that are missing in `directory`. May run twice, also concurrently: the bytes are
    the same.

    Raises ChecksumMismatch for an artifact with other bytes, JavaError with the message of each method, and `hint`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = [each for each in artifacts if not _is_whole(directory / each.file_name, each)]
    failures: list[str] = []
    for method in _methods(env) if missing else ():
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch.") as aside:
            said = method(missing, Path(aside), java, env)
            for each in missing:
                if (arrived := Path(aside, each.file_name)).exists():
                    _check(arrived, each, hint)
                    os.replace(arrived, directory / each.file_name)
        missing = [each for each in missing if not (directory / each.file_name).exists()]
        if not missing:
            return
        failures.append(said)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise JavaError(f"cannot fetch {missing[0].coordinates}{more}\n" + "\n".join(failures), hint=hint)


_Method = Callable[[Sequence[Artifact], Path, Java, Mapping[str, str]], str]  # returns its message


def _methods(env: Mapping[str, str]) -> list[_Method]:
    """Returns the download methods; Maven is the first if the user has configured it."""
    settings = Path(env.get("HOME") or Path.home()) / ".m2" / "settings.xml"
    methods: list[_Method] = [_by_https]
    if shutil.which("mvn", path=env.get("PATH", os.defpath)):
        methods.insert(0 if settings.is_file() and "REPLICATOR_MAVEN_REPOSITORY" not in env else 1, _by_maven)
    return methods


def _by_https(artifacts: Sequence[Artifact], aside: Path, _: Java, env: Mapping[str, str]) -> str:
    repository = env.get("REPLICATOR_MAVEN_REPOSITORY", CENTRAL).rstrip("/")
    proxies = {scheme: url for scheme in ("http", "https") if (url := _proxy(env, scheme))}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def one(artifact: Artifact) -> str | None:
        url = f"{repository}/{artifact.path}"
        try:
            with opener.open(url, timeout=60) as answer, (aside / f".{artifact.file_name}").open("wb") as file:
                shutil.copyfileobj(answer, file)
        except (urllib.error.URLError, OSError, ValueError) as error:
            return f"{url}: {error}"
        os.replace(aside / f".{artifact.file_name}", aside / artifact.file_name)
        return None

    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fetch") as pool:
        failures = [failure for failure in pool.map(one, artifacts) if failure]
    return "\n".join(failures[:3])


def _proxy(env: Mapping[str, str], scheme: str) -> str | None:
    return env.get(f"{scheme}_proxy") or env.get(f"{scheme.upper()}_PROXY")


def _by_maven(artifacts: Sequence[Artifact], aside: Path, java: Java, env: Mapping[str, str]) -> str:
    """Downloads all artifacts in one call: a project that depends on each, and on none of their dependencies."""
    (aside / "pom.xml").write_text(_project(artifacts))
    command = [
        "mvn",
        "--batch-mode",
        "--no-transfer-progress",
        "--file",
        str(aside / "pom.xml"),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={aside}",
    ]
    try:
        done = subprocess.run(
            command,
            env={**env, "JAVA_HOME": str(java.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mvn: {error}"
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    return "mvn:\n" + "\n".join([line for line in text.splitlines() if line.strip()][-12:])


def _project(artifacts: Sequence[Artifact]) -> str:
    def dependency(artifact: Artifact) -> str:
        group, module, version, *more = artifact.coordinates.split(":")
        classifier, kind = [*more, "", "jar"][:2] if len(more) != 1 else (more[0], "jar")
        fields = {"groupId": group, "artifactId": module, "version": version, "type": kind, "classifier": classifier}
        rows = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items() if value)
        alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        return f"<dependency>{rows}{alone}</dependency>"

    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>replicator</groupId><artifactId>metastore</artifactId>"
        f"<version>1</version><dependencies>{''.join(map(dependency, artifacts))}</dependencies></project>"
    )


def _check(path: Path, artifact: Artifact, hint: str) -> None:
    if (found := sha256_of(path)) != artifact.sha256:
        raise ChecksumMismatch(
            f"{artifact.coordinates} has SHA-256 {found}, not {artifact.sha256}",
            hint=f"the repository or a proxy altered it; {hint}",
        )


def _is_whole(path: Path, artifact: Artifact) -> bool:
    return path.is_file() and sha256_of(path) == artifact.sha256


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- distributions ---------------------------------------------------------------------------------------------------


LISTENER = "org.apache.hive.hcatalog.listener.DbNotificationListener"
_LISTS = Path(__file__).with_name("distributions")
_LISTENER_MODULE = "hive-hcatalog-server-extensions"
_LISTENERS = {
    version: Artifact(f"org.apache.hive.hcatalog:{_LISTENER_MODULE}:{version}", digest)
    for version, digest in {
        "2.3.9": "f6cae44ab68211b503c44e8fe9e516f5d97db67415e10a92d456b15fc067e378",  # Spark 3.5
        "2.3.10": "53e4576e6770356dbe3117d25baaaf7a7054d2af4f63acebf38bd26087ab4063",
    }.items()
}
_DERBY_TOOLS = Artifact(
    "org.apache.derby:derbytools:10.14.2.0", "3c695cbcde7e9e68156e55d6a0d85ddb8d8a0e770ef9b48375c07ec960574f56"
)
"""Tools for the Derby of Spark 3.5, which does not include them; newer versions do."""
_HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")


@dataclass(frozen=True)
class Hive:
    """A version of Hive.

    name: as users write it. java: the oldest that runs it. listener: the class that writes the notification log.
    libraries: the required jars of the distribution's archive, as a pattern of their names. schema: version of the
    scripts that create the metastore's tables. binds: it listens on the given address, see `binding`.
    """

    name: str
    version: str
    java: int = 17
    listener: str = LISTENER
    libraries: str = ".*"
    schema: str = ""
    schematool: str = "org.apache.hadoop.hive.metastore.tools.schematool.MetastoreSchemaTool"
    binds: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)


CONNECTION_URL = "javax.jdo.option.ConnectionURL"
POSTGRES = "jdbc:postgresql:"
PYSPARK = "2.3"  # the version is that of pyspark's jars
# Without a proxy user, servers from 3.1 on refuse to return their events, see `events.db.notification.api.auth`.
_OPEN_LOG = {"hive.metastore.event.db.notification.api.auth": "false"}
_NEWER = _OPEN_LOG | {"metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask"}
VERSIONS = {
    each.name: each
    for each in (
        Hive(PYSPARK, "2.3.10", schema="1.2.0", schematool="org.apache.hive.beeline.HiveSchemaTool"),
        Hive(
            "3.1",
            "3.1.3",
            schema="3.1.0",
            schematool="org.apache.hadoop.hive.metastore.tools.MetastoreSchemaTool",
            binds=False,
            settings=_NEWER,
        ),
        Hive("4.0", "4.0.1", java=21, listener="replicator.DbNotificationListener40", schema="4.0.0", settings=_NEWER),
        Hive("4.2", "4.2.0", java=21, libraries="sqlline|jline", schema="4.0.0", settings=_NEWER),
    )
}


def hive(name: str) -> Hive:
    """Returns a version by its name. Raises UsageError."""
    if name not in VERSIONS:
        raise UsageError(f"{name!r} is not a known version of Hive", hint=f"known: {', '.join(VERSIONS)}")
    return VERSIONS[name]


def pyspark_jars() -> Path:
    """Returns the directory of pyspark's jars, without importing pyspark."""
    found = importlib.util.find_spec("pyspark")
    for place in (found and found.submodule_search_locations) or ():
        if (jars := Path(place) / "jars").is_dir():
            return jars
    raise JavaError("pyspark is not installed, or without its jars", hint="pip install 'replicator[local]'")


def pyspark_hive(jars: Path) -> str:
    """Returns the version of the metastore among pyspark's `jars`, by the jar's file name."""
    for jar in jars.glob("hive-metastore-*.jar"):
        return jar.name.removeprefix("hive-metastore-").removesuffix(".jar")
    raise JavaError(f"no hive-metastore jar in {jars}", hint="install pyspark from PyPI; a slim build lacks Hive")


def listener_jar(java: Java, env: Mapping[str, str]) -> Path:
    """Returns the jar of the listener of pyspark's Hive, fetched into the cache once. REPLICATOR_LISTENER_JAR
    overrides."""
    if given := env.get("REPLICATOR_LISTENER_JAR"):
        if not Path(given).is_file():
            hint = f"give the path of a {_LISTENER_MODULE} jar"
            raise JavaError(f"REPLICATOR_LISTENER_JAR is not a file: {given}", hint=hint)
        return Path(given).absolute()
    version = pyspark_hive(pyspark_jars())
    hint = f"set REPLICATOR_LISTENER_JAR to a {_LISTENER_MODULE}-{version}.jar"
    if version not in _LISTENERS:
        known = ", ".join(_LISTENERS)
        message = f"pyspark includes Hive {version}, for which no {_LISTENER_MODULE} is known (known: {known})"
        raise JavaError(message, hint=f"install a pyspark with a known Hive, or {hint}")
    return _fetched(_LISTENERS[version], java, env, hint)


def _fetched(artifact: Artifact, java: Java, env: Mapping[str, str], hint: str) -> Path:
    jars = cache_directory(env) / "jars"
    network = "check the network or Maven's settings, set REPLICATOR_MAVEN_REPOSITORY to a mirror's URL, or "
    fetch([artifact], jars, java, env, network + hint)
    return jars / artifact.file_name


def class_path(hive: Hive, java: Java, env: Mapping[str, str], url: str = "") -> tuple[Path, ...]:
    """Returns the server's jars, in order, for a database by its JDBC URL; they are downloaded the first time on a
    machine. May run twice, also concurrently."""
    jars = pyspark_jars()
    if hive.name == PYSPARK:
        more = [*distribution(hive, java, env).glob("postgresql-*.jar")] if url.startswith(POSTGRES) else []
        if not any(jars.glob("derbytools-*.jar")):
            more.append(_fetched(_DERBY_TOOLS, java, env, "install pyspark 4"))
        return (jars / "*", listener_jar(java, env), *more)
    home = distribution(hive, java, env)
    listed = [home / each.file_name for each in _artifacts(hive) if each.file_name.endswith(".jar")]
    modules = {_module(jar) for jar in listed}
    archived = sorted((home / "archive" / "lib").glob("*.jar"))
    needed = [jar for jar in archived if re.match(hive.libraries, jar.name) and _module(jar) not in modules]
    own = [_LISTS / f"listener-{hive.version}.jar"] if hive.listener != LISTENER else []
    return (*own, *listed, *needed, *(next(jars.glob(name)) for name in _HADOOP))


def distribution(hive: Hive, java: Java, env: Mapping[str, str]) -> Path:
    """Returns the directory with the artifacts of a version, and its unpacked archive in `archive`."""
    text = (_LISTS / f"{hive.version}.txt").read_bytes()
    kept = cache_directory(env) / "hive" / f"{hive.version}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with locked(kept.parent), tempfile.TemporaryDirectory(dir=kept.parent, prefix=".new.") as place:
            if not kept.is_dir():
                whole, hint = Path(place) / "whole", "check the network or Maven's settings"
                fetch(
                    _artifacts(hive), whole, java, env, f"{hint}, or set REPLICATOR_MAVEN_REPOSITORY to a mirror's URL"
                )
                _unpack(next(whole.glob("*.tar.gz")), whole / "archive")
                os.rename(whole, kept)
    return kept


def _artifacts(hive: Hive) -> tuple[Artifact, ...]:
    return read_list(_LISTS / f"{hive.version}.txt")


def _unpack(archive: Path, directory: Path) -> None:
    """Unpacks an archive without its single top directory."""
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=directory.parent) as place:
        tar.extractall(place, filter="data")
        (top,) = Path(place).iterdir()
        shutil.move(top, directory)
    archive.unlink()


def _module(jar: Path) -> str:
    return re.sub(r"-\d.*", "", jar.name)
