"""Connections to a metastore: addresses, a pool that lends each connection to one call at a time, retries, errors.

Two threads on one thrift connection get each other's answers without an error, so a connection is used by the call
that borrowed it and by nobody else. A connection that failed in any way other than a declared server error is thrown
away: it may be out of step. What the calls are is no business of this module.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import tenacity
from hmsclient.genthrift.hive_metastore import ttypes
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

import replicator.metastore.convert.fields  # noqa: F401  before the first struct is read
from replicator.core.connections import MetastoreConfig, addresses
from replicator.errors import (
    CommitOutcomeUnknown,
    MetastoreError,
    MetastoreUnreachable,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from replicator.metastore.connecting import Connection, Make, Opener, away_hint, shortened
from replicator.metastore.convert.catalog_client import bound
from replicator.metastore.traffic import Limit, limit_traffic, traffic_with

T = TypeVar("T")

_NOT_FOUND = (
    ttypes.NoSuchObjectException,
    ttypes.UnknownDBException,
    ttypes.UnknownTableException,
    ttypes.UnknownPartitionException,
)


class _WentAway(Exception):
    """The connection died inside a call, or the server answered with nothing, as 2.3 does for a moment now and then."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class _RolledBack(MetastoreError):
    """2.3 checks each event with a parser that its threads share, finds nonsense when two alter at the same moment, and
    undoes the change."""


_SHARED_PARSER = "Event not set up correctly"


def _is_away(error: BaseException) -> bool:
    """Away for the moment; a port that takes connections and says nothing was waited for already."""
    return isinstance(error, MetastoreUnreachable) and not error.details.get("silent")


def _worth_repeating(error: BaseException) -> bool:
    return _is_away(error) or (isinstance(error, _WentAway) and error.again)


def limit_metastores(limits: Iterable[tuple[str, Limit]]) -> None:
    """`limit_traffic` by URIs; what is none has no traffic."""
    known = []
    for uri, limit in limits:
        with suppress(UsageError):
            known.append((addresses(uri), limit))
    limit_traffic(known)


class Connections:
    """The pool. `read` repeats a call that changes nothing; `change` sends a call once."""

    def __init__(self, config: MetastoreConfig, *, timeout: float, retries: int) -> None:
        self.uri = config.uri
        self.config = config
        self._opener = Opener(config, timeout)
        self._timeout = timeout
        self._retries = retries
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._closed = 0  # times
        self._lock = threading.Lock()
        self.traffic = traffic_with(config.addresses)

    def read(self, what: str, call: Callable[[Any], T], make: Make | None = None) -> T:
        """`call(client)`, repeated while the server is away, at most `retries` times more. make: the decoder of the
        answer; None: the fast one."""
        try:
            return self._attempts(_worth_repeating)(lambda: self._once(what, call, make))
        except _WentAway as error:
            raise MetastoreUnreachable(
                f"{what}: the metastore at {self.uri} went away: {error}", hint=away_hint(self.uri)
            ) from error

    def change(self, what: str, call: Callable[[Any], T]) -> T:
        """`call(client)` once; a connection that dies inside it leaves the outcome unknown. Only connecting, which
        sends nothing, is tried again, and what the server has undone for a reason of its own."""
        try:
            attempts = self._attempts(lambda error: _is_away(error) or isinstance(error, _RolledBack))
            return attempts(lambda: self._once(what, call))
        except _WentAway as error:
            raise CommitOutcomeUnknown(
                f"{what}: the connection to {self.uri} died during the change: {error}",
                hint="it may have happened; running the same command again settles it",
            ) from error

    def close(self) -> None:
        """Close every connection. A call that is under way fails, one that comes later opens a new one."""
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
        """Closes a connection that no call uses; whether there was one."""
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
            keep = True  # declared by the call: the connection is in step
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
            if connection.transport.lasts:  # a server that restarted meanwhile closed it
                return connection
            self._drop(connection)

    def _connect(self, closed: int) -> Connection:
        """A new connection, which the traffic allows; for a call that began when this had been closed so often, and
        fails if it was closed since."""
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
        said = shortened(error)  # 2.3 says no more than the name
        known = f"{what} does not exist" if said.lower() in what.lower() else f"{what}: {said}"
        return ObjectNotFound(known, hint="check the name, and that this is the right metastore")
    if isinstance(error, ttypes.AlreadyExistsException):
        return ObjectExists(f"{what}: {shortened(error)}")
    kind = _RolledBack if _SHARED_PARSER in shortened(error) else MetastoreError
    return kind(f"{what}: {type(error).__name__}: {shortened(error)}")
