"""Servers of Google Cloud Storage and of Azure: fake-gcs-server, whose objects have generations, and Azurite."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from pool import Pool
from waiting import CEILING, eventually

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import cache_directory, locked

GCS_SERVER = "1.56.1"
AZURITE = "3.37.0"

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, in its manual."""


@pytest.fixture(scope="session")
def gcs(pool: Pool) -> Iterator[str]:
    """The endpoint of a GCS server, which the environment names meanwhile."""
    if not find_spec("gcsfs"):  # it looks at the environment when it is imported
        pytest.skip("the gcs extra is not installed")
    executable = _obtained(gcs_server, "fake-gcs-server")
    endpoint: str = pool.server("gcs", lambda directory: start_gcs(executable, directory / "log"))["endpoint"]
    # The driver asks for a bucket's kind by gRPC, which the server has not.
    with environment({"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}):
        yield endpoint


@pytest.fixture(scope="session")
def azure(pool: Pool) -> Iterator[str]:
    """The endpoint of an Azure account, which the environment names meanwhile."""
    pytest.importorskip("adlfs", reason="the azure extra is not installed")
    script = _obtained(azurite, "Azurite")
    endpoint: str = pool.server("azure", lambda directory: start_azure(script, directory / "log"))["endpoint"]
    parts = {"DefaultEndpointsProtocol": "http", "AccountName": ACCOUNT, "AccountKey": KEY, "BlobEndpoint": endpoint}
    with environment({"AZURE_STORAGE_CONNECTION_STRING": "".join(f"{name}={value};" for name, value in parts.items())}):
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


def start_gcs(executable: Path, log: Path) -> tuple[dict[str, str], list[int]]:
    """A server with nothing in it, for the pool: its endpoint, and its process."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(executable), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", endpoint, "-log-level", "warn"]
    return {"endpoint": endpoint}, [_started(command, log, f"{endpoint}/storage/v1/b?project=p")]


def start_azure(script: Path, log: Path) -> tuple[dict[str, str], list[int]]:
    """As `start_gcs`."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = ["node", str(script), "--skipApiVersionCheck", "--inMemoryPersistence", "--silent"]
    command += ["--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return {"endpoint": endpoint}, [_started(command, log, endpoint)]


def _started(command: list[str], log: Path, url: str) -> int:
    """The process of a server that answers."""
    with log.open("ab") as out:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    eventually(lambda: _answers(url) or server.poll() is not None, lambda: log.read_text(errors="replace")[-5000:])
    if server.poll() is not None:
        raise RuntimeError(log.read_text(errors="replace")[-5000:])
    return server.pid


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
    urllib.request.urlopen(asked, timeout=CEILING).close()
