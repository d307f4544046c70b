"""HDFS with Kerberos, block tokens and data transfer protection, on loopback: servers' keys are of the tests' KDC."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hadoop import Cluster, jars
from kerberos import Kdc, java_with_kerberos

from replicator.errors import JavaError
from replicator.metastore.embedded.server_process import free_port

SUPERUSER = "nn/localhost"
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
