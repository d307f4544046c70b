"""Real metastores that want an identity, TLS or another transport."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
from kdc import with_java_options

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.errors import MetastoreError
from replicator.metastore.embedded.server_process import INSTANCE, began, end, find_runtime, free_port, last_lines, spawn
from replicator.metastore.embedded.template import new_database
from replicator.metastore.thrift import ThriftMetastore

PATIENCE = 90  # seconds


@dataclass
class Secured:
    """A running server. `config`: how its clients reach it."""

    config: MetastoreConfig
    directory: Path
    pid: int
    start: str | None

    @property
    def uri(self) -> str:
        return self.config.uri

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    def kill(self) -> None:
        end(self.pid, self.start, timedelta(0))

    def with_keys(self, **keys: object) -> MetastoreConfig:
        return msgspec.structs.replace(self.config, **keys)


@contextmanager
def secured_metastore(
    directory: Path, config: MetastoreConfig, settings: Mapping[str, str], *, hive: str = "2.3", java: str = ""
) -> Iterator[Secured]:
    """Starts one at a free port, which `{port}` in the URI stands for, and ends it. java: its options."""
    runtime = find_runtime(with_java_options(os.environ, java), hive)
    (directory / "warehouse").mkdir(parents=True)
    new_database(find_runtime(os.environ, hive), directory / "metastore_db")
    port, instance = free_port(None), uuid.uuid4().hex
    config = msgspec.structs.replace(config, uri=config.uri.format(port=port))
    pid = spawn(runtime, directory, port, {**settings, INSTANCE: instance})
    server = Secured(config, directory, pid, began(pid))
    try:
        _wait(server, instance)
        yield server
    finally:
        server.kill()


def _wait(server: Secured, instance: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        said = ""
        try:
            with ThriftMetastore(server.with_keys(connect_timeout="5s"), timeout=5, retries=0) as client:
                if client.setting(INSTANCE) == instance:
                    return
        except MetastoreError as error:
            said = f"{error}"
        log = server.directory / "metastore.log"
        assert time.monotonic() < deadline and began(server.pid) == server.start, f"{said}\n{last_lines(log)}"
        time.sleep(0.2)


def make_certificates(directory: Path) -> None:
    """ca.pem; server.pem and server.key for localhost, server.p12 for Java ("changeit"); client.pem and client.key;
    other.pem and other.key for another host; stranger.pem, which signed none of them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "stranger"):
        _openssl(directory, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-days", "2",
                 "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    for name, host in (("server", "localhost"), ("client", "client"), ("other", "elsewhere")):
        (directory / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
        _openssl(directory, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", f"{name}.key",
                 "-out", f"{name}.csr")  # fmt: skip
        _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
                 "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
    _openssl(directory, "pkcs12", "-export", "-in", "server.pem", "-inkey", "server.key", "-out", "server.p12",
             "-passout", "pass:changeit", "-name", "server")  # fmt: skip


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
