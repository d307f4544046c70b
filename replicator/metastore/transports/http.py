"""Thrift over HTTP: a call is the body of a POST, its result the body of the response. One connection is kept open."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Mapping

from replicator.core.connections import Address, MetastoreConfig, is_reference, read_secret
from replicator.errors import IdentityRefused, NotAMetastore
from replicator.metastore.transports.transport import CLOSED, Transport

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
                hint="set jwt, headers or user in [metastores.NAME] as hive.metastore.authentication wants it",
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
            raise NotAMetastore("no HTTP is spoken there", hint="set transport in [metastores.NAME]") from error
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
