"""The transport to one address as configured for a metastore: TCP, TLS, SASL or HTTP, frames.

Thrift over HTTP: a call is the body of a POST, its result the body of the response. One connection is kept open.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Mapping

from replicator.core.connections import Address, MetastoreConfig, is_reference, read_secret
from replicator.errors import IdentityRefused, NotAMetastore
from replicator.metastore.sasl import Digest, Gssapi, Mechanism, PlainPassword, Tickets, negotiate
from replicator.metastore.transport import CLOSED, Framed, Plain, Transport, secured

# ---- thrift over HTTP ------------------------------------------------------------------------------------------------


PATH = "metastore"
ACTOR = "x-actor-username"  # the user, if the server requires no authentication
_REFUSED = (401, 403)


class Http(Transport):
    """Thrift over HTTP. `dial`: opens an equal connection, if the server has closed the given one between two calls."""

    def __init__(
        self, connection: socket.socket, config: MetastoreConfig, address: Address, dial: Callable[[], socket.socket]
    ) -> None:
        super().__init__(connection)
        self._config, self._dial = config, dial
        self._http = http.client.HTTPConnection(*address)
        self._http.auto_open = 0
        self._http.sock = connection
        self._headers = headers(config)
        self._body = b""

    def send(self, data: bytes) -> None:
        """Sends a call. A refused call was not executed; it is sent again if its secrets have changed since then."""
        status = self._post(data)
        if status in _REFUSED and (now := headers(self._config)) != self._headers:
            self._headers = now
            status = self._post(data)
        if status in _REFUSED:
            raise IdentityRefused(
                f"the server refuses the call: HTTP {status}",
                hint="set jwt, headers or user in [metastores.NAME] as hive.metastore.authentication requires",
            )
        if status != 200:
            raise NotAMetastore(
                f"the HTTP server answers {status} {http.client.responses.get(status, '')}".rstrip(),
                hint="set path in [metastores.NAME] to hive.metastore.server.thrift.http.path",
            )

    def receive(self) -> bytes:
        body, self._body = self._body, b""
        if not body:
            raise EOFError("the HTTP answer ended too early")
        return body

    def close(self) -> None:
        super().close()
        self._http.close()

    def _post(self, data: bytes) -> int:
        if self._http.sock is None:
            limit = self.socket.gettimeout()
            self.socket.close()
            self.socket = self._http.sock = self._dial()
            self.socket.settimeout(limit)
        try:
            self._http.request("POST", path(self._config), data, dict(self._headers))
            response = self._http.getresponse()
            self._body = response.read()
        except http.client.RemoteDisconnected as error:
            raise ConnectionResetError(CLOSED) from error
        except http.client.BadStatusLine as error:
            raise NotAMetastore("the server does not speak HTTP", hint="set transport in [metastores.NAME]") from error
        except http.client.HTTPException as error:
            raise ConnectionResetError(f"HTTP: {type(error).__name__}") from error
        if response.status != 200:
            self._body = b""
        return response.status


def path(config: MetastoreConfig) -> str:
    return "/" + (config.path or PATH).strip("/")


def headers(config: MetastoreConfig) -> Mapping[str, str]:
    """Returns the headers, with the current values of the referenced secrets."""
    found = {"Content-Type": "application/x-thrift", "Accept": "application/x-thrift", "User-Agent": "replicator"}
    if config.user:
        found[ACTOR] = config.user
    if config.jwt:
        found["Authorization"] = f"Bearer {read_secret(config.jwt, 'jwt')}"
    for name, value in config.headers.items():
        found[name] = read_secret(value, f"headers.{name}") if is_reference(value) else value
    return found


# ---- dialing ---------------------------------------------------------------------------------------------------------


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
            raise AssertionError("no delegation tokens are requested")
        transport = self._opened(address, limit, self._mechanism(address))
        try:
            token = self._delegate(transport, self.config.user or "")
        finally:
            transport.close()
        with self._lock:
            self._tokens[address] = token
        return token
