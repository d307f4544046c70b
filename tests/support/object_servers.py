"""Servers of Google Cloud Storage and of Azure: fake-gcs-server, whose objects have generations, and Azurite."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import cache_directory, locked

GCS_SERVER = "1.56.1"
AZURITE = "3.37.0"
PATIENCE = 60.0  # seconds, for a server to answer

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, in its manual."""


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a GCS server, which the environment names meanwhile."""
    if not find_spec("gcsfs"):  # it looks at the environment when it is imported
        pytest.skip("the gcs extra is not installed")
    with running_gcs(_obtained(gcs_server, "fake-gcs-server"), tmp_path_factory.mktemp("gcs") / "log") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an Azure account, which the environment names meanwhile."""
    pytest.importorskip("adlfs", reason="the azure extra is not installed")
    with running_azure(_obtained(azurite, "Azurite"), tmp_path_factory.mktemp("azure") / "log") as endpoint:
        yield endpoint


def make_bucket(endpoint: str, name: str, **settings: object) -> None:
    """On GCS. `settings` are those of its JSON API, such as `versioning={"enabled": True}`."""
    _send("POST", f"{endpoint}/storage/v1/b?project=p", {"name": name, **settings})


def set_bucket(endpoint: str, name: str, **settings: object) -> None:
    """Other settings of a bucket on GCS."""
    _send("PATCH", f"{endpoint}/storage/v1/b/{name}", settings)


@cache
def gcs_server() -> Path:
    """The executable, built when it is not there."""
    directory = _cached("fake-gcs-server", GCS_SERVER)
    with locked(directory):
        if not (directory / "fake-gcs-server").exists():
            go = shutil.which("go") or "/usr/local/go/bin/go"
            module = f"github.com/fsouza/fake-gcs-server@v{GCS_SERVER}"
            _run([go, "install", module], {"GOBIN": str(directory), "GOFLAGS": "-modcacherw"})
    return directory / "fake-gcs-server"


@cache
def azurite() -> Path:
    """The script of its blob service, fetched when it is not there."""
    directory = _cached("azurite", AZURITE)
    script = directory / "node_modules/azurite/dist/src/blob/main.js"
    with locked(directory):
        if not (directory / "fetched").exists():
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--omit=optional"]
            _run(["npm", "install", "--prefix", str(directory), *options, f"azurite@{AZURITE}"], {})
            (directory / "fetched").touch()
    return script


@contextlib.contextmanager
def running_gcs(executable: Path, log: Path) -> Iterator[str]:
    """A server with nothing in it; its endpoint, which the environment names meanwhile."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(executable), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", endpoint, "-log-level", "warn"]
    # The driver asks for a bucket's kind by gRPC, which the server has not.
    named = {"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    with _serving(command, log, f"{endpoint}/storage/v1/b?project=p"), environment(named):
        yield endpoint


@contextlib.contextmanager
def running_azure(script: Path, log: Path) -> Iterator[str]:
    """As `running_gcs`."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = ["node", str(script), "--skipApiVersionCheck", "--inMemoryPersistence", "--silent"]
    command += ["--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    parts = {"DefaultEndpointsProtocol": "http", "AccountName": ACCOUNT, "AccountKey": KEY, "BlobEndpoint": endpoint}
    named = {"AZURE_STORAGE_CONNECTION_STRING": "".join(f"{name}={value};" for name, value in parts.items())}
    with _serving(command, log, endpoint), environment(named):
        yield endpoint


@contextlib.contextmanager
def _serving(command: list[str], log: Path, url: str) -> Iterator[None]:
    with log.open("ab") as out:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(errors="replace")[-5000:])
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:  # it wants to know who asks
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def environment(named: dict[str, str]) -> Iterator[None]:
    """These variables meanwhile. Others stay as they are by then: servers of longer life have theirs."""
    before = {name: os.environ.get(name) for name in named}
    os.environ |= named
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _obtained(obtain: Callable[[], Path], name: str) -> Path:
    try:
        return obtain()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{name} cannot be had here: {error}")


def _cached(name: str, version: str) -> Path:
    directory = cache_directory(os.environ) / name / version
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _run(command: list[str], env: dict[str, str]) -> None:
    subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, timeout=600)


def _send(method: str, url: str, body: dict[str, object]) -> None:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    urllib.request.urlopen(asked, timeout=30).close()
