"""Clients of a secured gateway, and what metastores behind it are asked to look at."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateways import Guarded
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore
from kerberos import Kdc
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from waiting import CEILING

from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.metastore.sasl import Gssapi, Tickets, negotiate
from replicator.metastore.transport import Framed, Transport

SERVICE = "hive/localhost@EXAMPLE.COM"
SECURITY = "org.apache.hadoop.hive.ql.security"
AUTHORIZED = {
    "hive.metastore.pre.event.listeners": f"{SECURITY}.authorization.AuthorizationPreEventListener",
    "hive.security.metastore.authorization.manager": f"{SECURITY}.authorization.StorageBasedAuthorizationProvider",
    "hive.security.metastore.authenticator.manager": f"{SECURITY}.HadoopDefaultMetastoreAuthenticator",
    "hive.security.metastore.authorization.auth.reads": "false",
}
"""A metastore that looks at the rights of the caller on the directories."""

BIG = {f"k{number}": "v" * 1000 for number in range(2000)}
"""Many pieces and frames, in both directions."""

Client = Any  # of the bindings


def dial(uri: str, context: ssl.SSLContext | None = None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(uri.rpartition(":")[2])), CEILING)
    return context.wrap_socket(connection, server_hostname="localhost") if context else connection


@contextmanager
def client(transport: Transport) -> Iterator[Client]:
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


@contextmanager
def as_user(
    guard: Guarded,
    tickets: str,
    *,
    context: ssl.SSLContext | None = None,
    mechanism: type[Gssapi] = Gssapi,
    **keys: Any,
) -> Iterator[Client]:
    """A client with these Kerberos tickets."""
    config = MetastoreConfig(guard.uri, **{"auth": "kerberos", "principal": SERVICE, "ticket_cache": tickets, **keys})
    connection = dial(guard.uri, context)
    try:
        layer = negotiate(connection, mechanism(config, Tickets(config), "localhost"))
    except BaseException:
        connection.close()
        raise
    with client(Framed(connection, layer)) as made:
        yield made


def kerberized(kdc: Kdc, **keys: Any) -> GatewayConfig:
    return GatewayConfig(principal=SERVICE, keytab=str(kdc.keytab("hive/localhost")), **keys)
