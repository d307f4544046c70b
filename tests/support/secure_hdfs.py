"""HDFS with Kerberos, block tokens and data transfer protection, on loopback: servers' keys are of the tests' KDC."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hadoop import Cluster, jars
from hdfs_path import HdfsPath
from kerberos import Kdc, java_with_kerberos, with_java_options

from replicator.errors import JavaError
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import free_port

SUPERUSER = "nn/localhost"
HOME = "/user/alice"
CLIENT = (
    "hadoop.security.authentication",
    "hadoop.rpc.protection",
    "dfs.namenode.kerberos.principal",
    "dfs.data.transfer.protection",
    "dfs.encrypt.data.transfer.cipher.suites",
)
"""Settings that clients need."""


def secure_settings(kdc: Kdc, place: Path, protection: str) -> dict[str, str]:
    """protection: of blocks on their way and of calls: `authentication`, `integrity` or `privacy`."""
    keys = str(kdc.keytab(SUPERUSER, "dn/localhost", "HTTP/localhost"))
    secret = place / "http-secret"
    secret.write_text("of-tests")
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.rpc.protection": protection,
        "hadoop.security.token.service.use_ip": "false",
        "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
        "hadoop.http.authentication.type": "kerberos",
        "hadoop.http.authentication.signature.secret.file": str(secret),
        "hadoop.http.authentication.kerberos.principal": "HTTP/localhost@EXAMPLE.COM",
        "hadoop.http.authentication.kerberos.keytab": keys,
        "dfs.namenode.kerberos.principal": f"{SUPERUSER}@EXAMPLE.COM",
        "dfs.namenode.keytab.file": keys,
        "dfs.namenode.kerberos.internal.spnego.principal": "HTTP/localhost@EXAMPLE.COM",
        "dfs.datanode.kerberos.principal": "dn/localhost@EXAMPLE.COM",
        "dfs.datanode.keytab.file": keys,
        "dfs.web.authentication.kerberos.principal": "HTTP/localhost@EXAMPLE.COM",
        "dfs.web.authentication.kerberos.keytab": keys,
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": protection,
        "dfs.encrypt.data.transfer.cipher.suites": "AES/CTR/NoPadding",  # else 3DES: 2 MB/s
        "ignore.secure.ports.for.testing": "true",
    }


def negotiated(tickets: str) -> dict[str, str]:
    """The header of a request of an HTTP server on this host, with the tickets of a cache."""
    import gssapi

    service = gssapi.Name("HTTP@localhost", gssapi.NameType.hostbased_service)
    held = gssapi.Credentials(usage="initiate", store={"ccache": tickets})
    token = gssapi.SecurityContext(name=service, creds=held, usage="initiate").step()
    return {"Authorization": f"Negotiate {base64.b64encode(token).decode()}"}


@contextlib.contextmanager
def secure_hdfs(kdc: Kdc, place: Path, protection: str = "privacy") -> Iterator[Cluster]:
    """A filesystem of its own, for its superuser; gone afterwards. Skips the test without a Java that has Kerberos and
    is older than 24, on which Hadoop does not know who it is."""
    pytest.importorskip("hdfs_native", reason="the hdfs extra is not installed")
    java = (f"{java_with_kerberos(17, 24)}/bin/java", kdc.java_options())
    try:
        jars()
    except JavaError as error:
        pytest.skip(f"Hadoop cannot be run here: {error}")
    tickets, ports = kdc.tickets(SUPERUSER), tuple(free_port() for _ in range(6))
    settings = secure_settings(kdc, place, protection)
    cluster = Cluster(place, ports, settings, "localhost", java, lambda: negotiated(tickets))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def hdfs_of_alice(kdc: Kdc, place: Path) -> Iterator[Cluster]:
    """As alice, whose directory may have snapshots. This process has her tickets and the cluster's configuration."""
    with secure_hdfs(kdc, place) as cluster, pytest.MonkeyPatch.context() as patch:
        home = HdfsPath(cluster, HOME)
        home.mkdir()
        home.give_to("alice")
        home.allow_snapshots()
        tickets = kdc.tickets("alice")
        patch.setenv("KRB5CCNAME", tickets)
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        patch.setenv("JAVA_HOME", str(Path(cluster.java[0]).parent.parent))
        patch.setenv("JAVA_TOOL_OPTIONS", with_java_options(os.environ, kdc.java_options())["JAVA_TOOL_OPTIONS"])
        yield replace(cluster, headers=lambda: negotiated(tickets))


@contextlib.contextmanager
def metastore_of(cluster: Cluster, place: Path) -> Iterator[Running]:
    """A metastore for who is the user of this process on HDFS."""
    settings = {key: cluster.settings[key] for key in CLIENT} | {"fs.defaultFS": cluster.url}
    yield embedded.start(place, env=os.environ, settings=settings)
    embedded.stop(place)
