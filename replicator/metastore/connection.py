"""Connections to a metastore: addresses, a pool that lends each connection to one call at a time, retries, errors.

Two threads on one thrift connection receive each other's responses without an error, so a connection is used only by
the call that borrowed it. A connection that failed in any way other than a declared server error is discarded: it may
be out of step. This module does not depend on the calls.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import tenacity
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.protocol.TProtocol import TProtocolBase, TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

import replicator.metastore.fields  # noqa: F401  before the first struct is read
from replicator.core.connections import Address, MetastoreConfig, addresses
from replicator.errors import (
    CommitOutcomeUnknown,
    Error,
    IdentityRefused,
    MetastoreError,
    MetastoreUnreachable,
    NotAMetastore,
    NotAuthenticated,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from replicator.metastore.dialing import Dialer
from replicator.metastore.fields import bound
from replicator.metastore.traffic import Limit, limit_traffic, traffic_with
from replicator.metastore.transport import WENT_AWAY, Found, SilentPeer, Strange, Transport, failure, greet, recognise

# ---- connecting ------------------------------------------------------------------------------------------------------
# Opening a connection to a metastore: the first address that answers, authentication, the first call, and, if none
# answers as configured, detection of the peer's protocol and the matching keys.


FIRST_ANSWER = 20.0  # seconds for the first answer of an address, see `transport`; calls may take longer
TEXT_LIMIT = 500  # a failed query returns its entire SQL text, 40 kB of it
NO_LIMIT = 2**31 - 1  # thrift refuses strings over 16 MB by default; one INSERT event can be larger

Make = Callable[[Transport], TProtocolBase]
"""A function that makes a decoder over a transport."""

_WORST = (IdentityRefused, NotAuthenticated, NotAMetastore)
"""Errors of several addresses that failed, in the order in which they are reported."""


class Connection:
    """One connection, for one call at a time. `client`: of the calls. `ended`: by this process, also during a call."""

    def __init__(self, transport: Transport, make: Make, limit: float) -> None:
        self.transport = transport
        self.client = ThriftHiveMetastore.Client(make(transport))
        self.ended = False
        self._limit = limit
        transport.limit(limit)

    def client_with(self, make: Make | None) -> ThriftHiveMetastore.Client:
        """Returns a client over this connection that decodes with `make`; None: the accelerated one."""
        return self.client if make is None else ThriftHiveMetastore.Client(make(self.transport))

    def end(self) -> None:
        """Shuts the connection down; a call that waits for a response fails."""
        self.ended = True
        with suppress(OSError):
            self.transport.socket.shutdown(socket.SHUT_RDWR)

    def greet(self, within: float, config: MetastoreConfig) -> None:
        """Checks the peer, see section `greeting` of `transport`. A response that is an error counts as a response."""
        greet(self.transport, within, config.protocol)
        self.transport.limit(self._limit)
        try:
            with suppress(TApplicationException):
                self.client.recv_getName()
        except (TTransportException, TProtocolException, EOFError) as error:
            raise TTransportException(message=f"{WENT_AWAY}: {shortened(error)}") from error


class Opener:
    """An opener of connections to the addresses of one metastore. limit: seconds for one response."""

    def __init__(self, config: MetastoreConfig, limit: float) -> None:
        self.config = config
        self._limit = limit
        self._dialer = Dialer(config, self._delegated)
        self._known: set[Address] = set()  # addresses at which a metastore has answered
        self._asked: set[Address] = set()  # addresses that `recognise` has probed

    def open(self, wait_turn: Callable[[], None]) -> Connection:
        """Opens a connection. wait_turn: called before each call that is not the caller's own.

        Raises MetastoreUnreachable, IdentityRefused, NotAuthenticated, NotAMetastore."""
        failures: list[tuple[Address, Exception]] = []
        for address in self.config.addresses:
            try:
                return self._open(address, wait_turn)
            except (TTransportException, TProtocolException, OSError, EOFError, SilentPeer, Strange) as error:
                failures.append((address, error))
            except MetastoreError as error:
                failures.append((address, error))
        raise self._told(failures)

    def accelerated(self, transport: Transport) -> TProtocolBase:
        made = TCompactProtocolAccelerated if self.config.protocol == "compact" else TBinaryProtocolAccelerated
        return made(transport, string_length_limit=NO_LIMIT)

    def _open(self, address: Address, wait_turn: Callable[[], None]) -> Connection:
        transport = self._dialer.open(address, self._limit)
        connection = Connection(transport, self.accelerated, self._limit)
        try:
            if address not in self._known:
                wait_turn()
                connection.greet(min(self._limit, FIRST_ANSWER), self.config)
                self._known.add(address)
            if self.config.user and self.config.auth == "none" and self.config.transport != "http":
                wait_turn()
                connection.client.set_ugi(self.config.user, [])
        except ssl.SSLError as error:
            transport.close()
            raise failure(error) from error
        except BaseException as error:
            transport.close()
            if isinstance(error, TException) and not isinstance(error, TTransportException):
                raise IdentityRefused(
                    f"the server refuses to act for {self.config.user}: {shortened(error)}"
                ) from error
            raise
        return connection

    def _delegated(self, transport: Transport, user: str) -> str:
        """Fetches a delegation token, see `dialing.Delegate`."""
        transport.limit(min(self._limit, FIRST_ANSWER))
        client = ThriftHiveMetastore.Client(self.accelerated(transport))
        try:
            return str(client.get_delegation_token(user, user))
        except TException as error:
            raise IdentityRefused(
                f"the metastore issued no delegation token for {user}: {shortened(error)}",
                hint="it must allow hadoop.proxyuser.<client>.hosts and .groups in its core-site.xml",
            ) from error

    def _told(self, failures: list[tuple[Address, Exception]]) -> MetastoreError:
        """Returns the error for addresses that have all failed."""
        told = [self._explained(address, error) for address, error in failures]
        said = "cannot connect to " + "; ".join(
            f"{host}:{port}: {shortened(getattr(error, 'inner', None) or error)}"
            for ((host, port), _), error in zip(failures, told, strict=True)
        )
        for kind in _WORST:
            for error in told:
                if isinstance(error, kind):
                    return kind(said, hint=error.hint or fitting({}, self.config))
        silent = any(isinstance(error, SilentPeer) for error in told)
        hint = away_hint(self.config.uri)
        if self.config.tls and not self.config.certificate and any(isinstance(e, ConnectionResetError) for e in told):
            hint += "; it may require a client certificate: set certificate and key in [metastores.NAME]"
        return MetastoreUnreachable(said, hint=hint, details={"silent": True} if silent else None)

    def _explained(self, address: Address, error: Exception) -> Exception:
        """Returns the failure, or an error that names the protocol of the peer if it is not the configured one."""
        plain = self.config == MetastoreConfig(self.config.uri)
        refused = isinstance(error, Error) and not (isinstance(error, NotAMetastore) and not error.hint)
        unreached = isinstance(error, ConnectionRefusedError | socket.gaierror | TTransportException)
        known = address in self._known or (address in self._asked and not isinstance(error, NotAMetastore | Strange))
        if refused or unreached or known or (plain and isinstance(error, SilentPeer)):
            return error
        self._asked.add(address)
        text, found = recognise(lambda: socket.create_connection(address, min(self._dialer.patience, self._limit)))
        if self.config.tls and "tls" in found:  # TLS is not the cause: probe inside it
            with suppress(MetastoreError):
                text, found = recognise(lambda: self._dialer.connect(address, self._limit))
        elif self.config.tls and text:
            found = found | {"tls": "false"}
        keys = {key: value for key, value in found.items() if value != _written(getattr(self.config, key))}
        if keys:
            return NotAMetastore(text, hint=fitting(keys, self.config))
        return NotAMetastore(str(error), hint=fitting({}, self.config)) if isinstance(error, Strange) else error


def fitting(keys: Found, config: MetastoreConfig) -> str:
    """Returns the hint for a server that requires other keys; without known keys, a hint about the address."""
    if not keys:
        return f"{config.uri} must be the thrift port of a Hive metastore (9083 by default)"
    lines = ", ".join(f"{key} = {value}" for key, value in keys.items())
    more = {
        '"kerberos"': '; principal = "hive/_HOST@REALM", and keytab with client_principal or tickets of kinit',
        '"plain"': "; user, and password by file, environment or command",
    }.get(keys.get("auth", ""), "")
    return f"set {lines} in [metastores.NAME]{more}; see docs/configuration.md"


def away_hint(uri: str) -> str:
    return f"check that a Hive metastore answers at {uri}, then run the same command again"


def shortened(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error).strip() or type(error).__name__
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({len(text)} characters)"


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


# ---- connection ------------------------------------------------------------------------------------------------------


T = TypeVar("T")

_NOT_FOUND = (
    ttypes.NoSuchObjectException,
    ttypes.UnknownDBException,
    ttypes.UnknownTableException,
    ttypes.UnknownPartitionException,
)


class _WentAway(Exception):
    """An error: the connection died during a call, or the server sent an empty response, as 2.3 sometimes does."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class _RolledBack(MetastoreError):
    """An error: 2.3 checks each event with a parser that its threads share, which fails if two alter concurrently, and
    rolls the change back."""


_SHARED_PARSER = "Event not set up correctly"


def _is_away(error: BaseException) -> bool:
    """Returns True if the server is away for now; a port that accepts connections in silence was waited for already."""
    return isinstance(error, MetastoreUnreachable) and not error.details.get("silent")


def _worth_repeating(error: BaseException) -> bool:
    return _is_away(error) or (isinstance(error, _WentAway) and error.again)


def limit_metastores(limits: Iterable[tuple[str, Limit]]) -> None:
    """Applies `limit_traffic` by URI; invalid URIs are ignored."""
    known = []
    for uri, limit in limits:
        with suppress(UsageError):
            known.append((addresses(uri), limit))
    limit_traffic(known)


class Connections:
    """A pool of connections. `read` repeats a call that changes nothing; `change` sends a call once."""

    def __init__(self, config: MetastoreConfig, *, timeout: float, retries: int) -> None:
        self.uri = config.uri
        self.config = config
        self._opener = Opener(config, timeout)
        self._timeout = timeout
        self._retries = retries
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._closed = 0  # number of calls of `close`
        self._lock = threading.Lock()
        self.traffic = traffic_with(config.addresses)

    def read(self, what: str, call: Callable[[Any], T], make: Make | None = None) -> T:
        """Runs `call(client)`, repeated while the server is away, at most `retries` more times. make: the decoder of
        the response; None: the accelerated one."""
        try:
            return self._attempts(_worth_repeating)(lambda: self._once(what, call, make))
        except _WentAway as error:
            raise MetastoreUnreachable(
                f"{what}: the connection to the metastore at {self.uri} was lost: {error}", hint=away_hint(self.uri)
            ) from error

    def change(self, what: str, call: Callable[[Any], T]) -> T:
        """Runs `call(client)` once; if the connection dies during the call, the outcome is unknown. Retries only
        connecting, which sends nothing, and changes that the server has rolled back for reasons of its own."""
        try:
            attempts = self._attempts(lambda error: _is_away(error) or isinstance(error, _RolledBack))
            return attempts(lambda: self._once(what, call))
        except _WentAway as error:
            raise CommitOutcomeUnknown(
                f"{what}: the connection to {self.uri} broke during the change: {error}",
                hint="the change may have happened; run the same command again to settle it",
            ) from error

    def close(self) -> None:
        """Closes every connection. A running call fails; a later call opens a new connection."""
        with self._lock:
            self._closed += 1
            open_ = list(self._open)
            self._idle.clear()
        for connection in open_:
            connection.end()
            self._drop(connection)

    def has_idle(self) -> bool:
        return bool(self._idle)

    def close_idle(self) -> bool:
        """Closes a connection that no call uses. Returns True if there was one."""
        try:
            connection = self._idle.popleft()
        except IndexError:
            return False
        self._drop(connection)
        return True

    def _attempts(self, when: Callable[[BaseException], bool]) -> tenacity.Retrying:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(when),
            stop=tenacity.stop_after_attempt(self._retries + 1),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )

    def _once(self, what: str, call: Callable[[Any], T], make: Make | None = None) -> T:
        closed = self._closed
        self.traffic.wait_turn()
        connection = self._borrow(closed)
        keep = False
        try:
            answer = call(bound(connection.client_with(make), self.config.catalog))
            keep = True
            return answer
        except TApplicationException as error:
            keep = error.type != TApplicationException.BAD_SEQUENCE_ID
            if error.type == TApplicationException.MISSING_RESULT:
                raise _WentAway(shortened(error)) from error
            raise _translated(what, error) from error
        except (TTransportException, TProtocolException, OSError, EOFError, UnicodeDecodeError) as error:
            self.traffic.failed()
            if isinstance(error, TTransportException) and error.type == TTransportException.TIMED_OUT:
                raise _WentAway(f"no answer within {self._timeout:g} s", again=False) from error
            raise _WentAway(shortened(error), again=not connection.ended) from error
        except TException as error:
            keep = True  # declared by the call: the connection remains in step
            raise _translated(what, error) from error
        finally:
            if keep and not connection.ended:
                self._idle.append(connection)
                self.traffic.returned()
            else:
                self._drop(connection)

    def _borrow(self, closed: int) -> Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                if self.traffic.may_open(self):
                    return self._connect(closed)
                continue
            if connection.transport.lasts:  # False if a restarted server closed it
                return connection
            self._drop(connection)

    def _connect(self, closed: int) -> Connection:
        """Opens a new connection, within the traffic's limits. `closed`: the number of closes when the call began; the
        call fails if the pool was closed since then."""
        try:
            connection = self._opener.open(self.traffic.wait_turn)
        except BaseException:
            self.traffic.closed(self)
            raise
        with self._lock:
            self._open.add(connection)
            if self._closed != closed:
                connection.end()
        return connection

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            known = connection in self._open
            self._open.discard(connection)
        connection.transport.close()
        if known:
            self.traffic.closed(self)


def _translated(what: str, error: BaseException) -> MetastoreError:
    if isinstance(error, _NOT_FOUND):
        said = shortened(error)  # 2.3 sends only the name
        known = f"{what} does not exist" if said.lower() in what.lower() else f"{what}: {said}"
        return ObjectNotFound(known, hint="check the name, and that this is the right metastore")
    if isinstance(error, ttypes.AlreadyExistsException):
        return ObjectExists(f"{what}: {shortened(error)}")
    kind = _RolledBack if _SHARED_PARSER in shortened(error) else MetastoreError
    return kind(f"{what}: {type(error).__name__}: {shortened(error)}")
