"""The key server of HDFS' encryption zones (KMS), as a process of its own, for the shared NameNode."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fetched_jars import fetched_jars
from hadoop import KEY_PROVIDER, VERSION, Cluster, jars, write_settings
from waiting import CEILING, eventually

from replicator.metastore.java import find_java

SERVER = "org.apache.hadoop.crypto.key.kms.server.KMSWebServer"
LOG = """\
log4j.rootLogger=WARN,C
log4j.appender.C=org.apache.log4j.ConsoleAppender
log4j.appender.C.layout=org.apache.log4j.PatternLayout
log4j.appender.C.layout.ConversionPattern=%d %p %c: %m%n
"""
RIGHTS = [
    "CREATE",
    "DELETE",
    "ROLLOVER",
    "GET",
    "GET_KEYS",
    "GET_METADATA",
    "SET_KEY_MATERIAL",
    "GENERATE_EEK",
    "DECRYPT_EEK",
]
KEY = "key"


@dataclass
class KeyServer:
    """Everybody but `refused` may use the key KEY. uri: for Hadoop's configurations."""

    directory: Path
    uri: str
    process: subprocess.Popen[bytes] | None = None
    refused: str = "mallory"

    @property
    def url(self) -> str:
        return self.uri.replace("kms://http@", "http://")

    def start(self) -> None:
        if not self.directory.exists():
            self._configure()
        java = str(find_java(os.environ).executable)
        options = [f"-Dkms.config.dir={self.directory}", f"-Dkms.log.dir={self.directory}"]
        options += ["-Dlog4j.configuration=kms-log4j.properties", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        classes = f"{self.directory}:{jars()}/*:{kms_jars()}/*"
        environment = os.environ | {"HADOOP_KEYSTORE_PASSWORD": "none"}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [java, "-Xmx256m", *options, "-cp", classes, SERVER],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        process = self.process
        eventually(lambda: self._answers() or process.poll() is not None, self._log)
        if process.poll() is not None:
            raise RuntimeError(self._log())

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-5000:]

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def make_key(self) -> None:
        about = {"name": KEY, "cipher": "AES/CTR/NoPadding", "length": 128}
        request = urllib.request.Request(
            f"{self.url}/v1/keys?user.name=root", json.dumps(about).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=CEILING).close()

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/v1/keys/names?user.name=root", timeout=5),
        ):
            return True
        return False

    def _configure(self) -> None:
        self.directory.mkdir()
        keys = f"jceks://file{self.directory}/keys.jceks"
        where = urllib.parse.urlsplit(self.url)
        site = {"hadoop.kms.key.provider.uri": keys, "hadoop.kms.http.port": str(where.port)}
        write_settings(self.directory / "kms-site.xml", site | {"hadoop.kms.http.host": str(where.hostname)})
        write_settings(self.directory / "core-site.xml", {})
        rights = {f"hadoop.kms.acl.{each}": "*" for each in RIGHTS}
        rights |= {f"default.key.acl.{each}": "*" for each in ("MANAGEMENT", "GENERATE_EEK", "DECRYPT_EEK", "READ")}
        rights |= {"hadoop.kms.blacklist.DECRYPT_EEK": self.refused}
        write_settings(self.directory / "kms-acls.xml", rights)
        (self.directory / "kms-log4j.properties").write_text(LOG)


def kms_jars() -> Path:
    """What the server needs beside Hadoop's jars, fetched when it is not there."""
    return fetched_jars(f"hadoop/{VERSION}-kms", "hadoop_kms_jars.txt")


@pytest.fixture(scope="module")
def key_server(hdfs: Cluster) -> Iterator[KeyServer]:
    """Runs, with the key KEY: the one that the shared NameNode asks."""
    server = KeyServer(hdfs.directory / "kms", hdfs.settings[KEY_PROVIDER])
    try:
        server.start()
        server.make_key()
        yield server
    finally:
        server.kill()
