"""Transport to one address as configured for a metastore: TCP, TLS, SASL or HTTP, frames."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from replicator.core.connections import Address, MetastoreConfig, read_secret
from replicator.errors import IdentityRefused
from replicator.metastore.transports.http import Http
from replicator.metastore.transports.sasl import Digest, Gssapi, Mechanism, PlainPassword, Tickets, negotiate
from replicator.metastore.transports.transport import Framed, Plain, Transport, secured

CONNECT_TIMEOUT = 20.0  # seconds

Delegate = Callable[[Transport, str], str]
"""`delegate(transport, user)`: returns a delegation token of the metastore for the user."""


class Dialer:
    """An opener of transports of one metastore, from any thread. `delegate`: fetches tokens to act for a user."""

    def __init__(self, config: MetastoreConfig, delegate: Delegate | None = None) -> None:
        self.config = config
        self.patience = config.seconds("connect_timeout", CONNECT_TIMEOUT)
        self._delegate = delegate
        self._tickets = Tickets(config) if config.auth == "kerberos" else None
        self._tokens: dict[Address, str] = {}  # per server, because it may store them in memory only
        self._lock = threading.Lock()

    def open(self, address: Address, limit: float | None = None) -> Transport:
        """Returns a transport that is ready for calls; limit: seconds for the connection and its handshake. Raises
        OSError and EOFError for a server that is away, IdentityRefused, NotAuthenticated, NotAMetastore."""
        if self._tickets is None or not self.config.user:
            return self._opened(address, limit, self._mechanism(address))
        with self._lock:
            known = self._tokens.get(address)
        if known is not None:
            try:
                return self._opened(address, limit, Digest(known, self.config))
            except IdentityRefused:  # expired, or lost by the server: request another one
                pass
        return self._opened(address, limit, Digest(self._token(address, limit), self.config))

    def connect(self, address: Address, limit: float | None = None) -> socket.socket:
        """Connects by TCP, and TLS if it is enabled."""
        patience = min(self.patience, limit or self.patience)
        connection = socket.create_connection(address, patience)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return secured(connection, self.config, address[0]) if self.config.tls else connection
        except BaseException:
            connection.close()
            raise

    def _opened(self, address: Address, limit: float | None, mechanism: Mechanism | None) -> Transport:
        connection = self.connect(address, limit)
        try:
            if self.config.transport == "http":
                return Http(connection, self.config, address, lambda: self.connect(address))
            if mechanism is not None:
                return Framed(connection, negotiate(connection, mechanism))
            return Framed(connection) if self.config.transport == "framed" else Plain(connection)
        except BaseException:
            connection.close()
            raise

    def _mechanism(self, address: Address) -> Mechanism | None:
        if self._tickets is not None:
            return Gssapi(self.config, self._tickets, address[0])
        if self.config.auth == "plain":
            return PlainPassword(self.config)
        if self.config.auth == "token":
            return Digest(read_secret(self.config.token or "", "token"), self.config)
        return None

    def _token(self, address: Address, limit: float | None) -> str:
        if self._delegate is None:
            raise AssertionError("nobody asks for delegation tokens")
        transport = self._opened(address, limit, self._mechanism(address))
        try:
            token = self._delegate(transport, self.config.user or "")
        finally:
            transport.close()
        with self._lock:
            self._tokens[address] = token
        return token
