"""Artifacts of a Maven repository: named with their SHA-256 in a list, fetched once into the cache.

They come from the central repository, or from REPLICATOR_MAVEN_REPOSITORY, the URL of a mirror. A machine whose user
has settings for Maven is served by Maven, which follows them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from replicator.errors import ChecksumMismatch, JavaError
from replicator.metastore.java import Java

CENTRAL = "https://repo1.maven.org/maven2"
PATIENCE = 600  # seconds for all artifacts by Maven; for one by us
SIDE_BY_SIDE = 8  # downloads


@dataclass(frozen=True)
class Artifact:
    """`group:module:version[:classifier[:extension]]`, and the SHA-256 that it must have."""

    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, module, version, *more = self.coordinates.split(":")
        classifier, extension = (*more, "", "jar")[:2] if len(more) != 1 else (more[0], "jar")
        return f"{module}-{version}{'-' if classifier else ''}{classifier}.{extension}"

    @property
    def path(self) -> str:
        """Below a repository's URL."""
        group, module, version, *_ = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{module}/{version}/{self.file_name}"


def read_list(path: Path) -> tuple[Artifact, ...]:
    """A file with a line `SHA256 coordinates` for each artifact, in the order of the class path."""
    rows = (line.split() for line in path.read_text().splitlines())
    return tuple(Artifact(coordinates, sha256) for sha256, coordinates in rows)


def fetch(artifacts: Sequence[Artifact], directory: Path, java: Java, env: Mapping[str, str], hint: str) -> None:
    """Fetch what `directory` lacks of `artifacts`. May run twice, also at once: the same bytes win either way.

    Raises ChecksumMismatch for an artifact with other bytes, JavaError with the answer of each method, and `hint`.
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


_Method = Callable[[Sequence[Artifact], Path, Java, Mapping[str, str]], str]  # what it said


def _methods(env: Mapping[str, str]) -> list[_Method]:
    """Maven first where its user has said where artifacts come from."""
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
    """One call for all: a project that depends on each, and on nothing that these depend on."""
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
