"""The server of the gateway: listens, starts a thread for each client, and on a stop lets running calls finish."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from cmroot.lease import acquire
from cmroot.root import ChangeRoot
from cmroot.store.place import join
from replicator.captures.gateways.drops import Counts, Drops
from replicator.captures.gateways.relay import LARGE_AT_ONCE, Connection
from replicator.captures.gateways.security import (
    GatewaySettings,
    Service,
    check_risks,
    make_asked,
    make_authenticator,
    make_tokens,
)
from replicator.captures.gateways.targets import Upstream
from replicator.core.connections import DEFAULT_PORT, check_gateway
from replicator.core.not_replicated import Report
from replicator.core.runtime import INTERRUPTED, TERMINATED, Stop, Terminated
from replicator.errors import UsageError
from replicator.metastore.events.scope import refuse_other_catalog

DEFAULTS = GatewaySettings()
CUT_WITHIN = 15.0  # seconds beyond the grace, for interrupted calls to determine their outcome and to answer
IDLE_LIMIT = timedelta(seconds=10)  # idle time after which a connection may be closed for a waiting one
SETTLE_EVERY = 1.0  # seconds
LOOPBACK = "127.0.0.1"
LEASE = "gateway"  # the directory in the root with the lease of its only gateway

log = logging.getLogger(__name__)


@dataclass
class Served(Report):
    """The report of a gateway from its start to its end. `calls`: all; `intercepted`: those that would have deleted
    data; `refused`: those that were not forwarded; `files`, `bytes`: moved into `$cmroot`; `undecided`: drops whose
    outcome the next start must find; `cut_off`: calls that were still running when the gateway ended; `exit_code`: 128
    plus the number of the signal that ended it, otherwise 0."""

    uri: str
    connections: int = 0
    calls: int = 0
    intercepted: int = 0
    refused: int = 0
    files: int = 0
    bytes: int = 0
    undecided: int = 0
    cut_off: int = 0
    seconds: float = 0.0
    status: str = "stopped"
    exit_code: int = 0


def parse_listen(text: str) -> tuple[str, int]:
    """Parses `host:port`, `:port` (loopback: all interfaces are 0.0.0.0), `[::1]:port`, `thrift://host:port`; port 0
    selects a free one."""
    host, colon, port = text.removeprefix("thrift://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon:
        host, port = text.removeprefix("thrift://"), str(DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"cannot listen on {text!r}", hint="write HOST:PORT, for example 127.0.0.1:9083")
    return host or LOOPBACK, int(port)


@contextlib.contextmanager
def opened(
    upstream: Upstream, root: ChangeRoot, listen: str, settings: GatewaySettings = DEFAULTS
) -> Iterator[Gateway]:
    """Opens a gateway that listens for the duration of a block, and is stopped cleanly at its end.

    Raises NotificationLogOff for a metastore whose drops would be invisible to captures, LeaseHeld if another gateway
    serves the root (only one may), UsageError for an address that is not available."""
    upstream.current_event_id()
    refuse_other_catalog(root.place, upstream)
    if upstream.bound_catalog not in (None, upstream.default_catalog):
        raise UsageError(
            f"a gateway protects the server's default catalog {upstream.default_catalog}, not {upstream.bound_catalog}",
            hint="give a metastore without a catalog of its own",
        )
    with contextlib.ExitStack() as lease:
        lease.enter_context(acquire(join(root.place, LEASE), "gateway"))
        gateway = Gateway(upstream, root, listen, settings)
        try:
            yield gateway
        finally:
            gateway.stop()
            if gateway.is_at_work:
                lease.pop_all()  # the lease ends with the process, as these calls do


class Gateway:
    """A gateway that listens from its construction until `stop`."""

    def __init__(self, upstream: Upstream, root: ChangeRoot, listen: str, settings: GatewaySettings = DEFAULTS) -> None:
        security, timeouts = check_gateway(settings.security), settings.timeouts
        check_risks(security, upstream.config, parse_listen(listen)[0])
        self._began = time.monotonic()
        self._counts = Counts()
        self._drops = Drops(upstream, root.place, self._counts, grace=settings.grace)
        self._drops.recover()
        self._grace, self._timeouts = settings.grace, timeouts
        self._room = threading.Semaphore(settings.threads)
        self._listener = _listen(listen)
        host, port = self._listener.getsockname()[:2]
        self.uri = f"thrift://{f'[{host}]' if ':' in host else host}:{port}"
        self._stopping, self._tell = os.pipe()
        tokens = make_tokens(security)
        self._service = Service(
            make_authenticator(security, tokens),
            make_asked(security, upstream.config, timeouts.answer.total_seconds()),
            tokens,
            self._drops,
            self._counts,
            self._stopping,
            settings.pass_unknown,
            timeouts,
            threading.Semaphore(LARGE_AT_ONCE),
        )
        self._connections: dict[threading.Thread, Connection] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._cut_off = 0
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("accept", self._accept), ("settle", self._settle))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, stop: Stop | None = None, ready: Callable[[], object] = lambda: None) -> int:
        """Waits until `stop` is set or a signal raises in this thread (signals reach the main thread). Returns the
        signal's exit code, or 0. ready: called first."""
        try:
            ready()
            while not (stop or self._ended).wait(3600):
                pass
        except KeyboardInterrupt:
            return INTERRUPTED
        except Terminated:
            return TERMINATED
        return 0

    def stop(self) -> Served:
        """Stops the gateway. New calls are not accepted; running calls may finish for at most `timeouts.stop`. Then
        drops that are not sent yet are refused and put back. For the others, the metastore counts as lost: their
        outcome is queried, or left for the next start."""
        if not self._ended.is_set():
            self._ended.set()
            os.write(self._tell, b"x")
            accept, settle = self._threads
            accept.join()
            self._listener.close()
            patience = self._timeouts.stop.total_seconds()
            if not self._join(patience):
                self._cut_off = len(self._connections)
                self._drops.give_up()
                self._cut(answers=True)
                if not self._join(self._grace.total_seconds() + CUT_WITHIN):
                    self._cut(answers=False)
                    self._join(CUT_WITHIN)
            settle.join(patience)  # the metastore may be unreachable
            if not self._connections:
                os.close(self._stopping)
                os.close(self._tell)
        counts = self._counts
        return Served(
            self.uri,
            counts.connections,
            counts.calls,
            counts.intercepted,
            counts.refused,
            counts.files,
            counts.bytes,
            self._drops.undecided,
            self._cut_off,
            round(time.monotonic() - self._began, 3),
        )

    @property
    def is_at_work(self) -> bool:
        """True if calls are still running after the stop: another gateway must not process their intercepts yet."""
        return bool(self._connections)

    def _join(self, seconds: float) -> bool:
        """Returns True if every connection has ended within this many seconds."""
        deadline = time.monotonic() + seconds
        for thread in list(self._connections):
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self._connections

    def _cut(self, *, answers: bool) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.cut(answers=answers)

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._stopping in ready:
                return
            while not self._room.acquire(timeout=0.5):  # all threads are busy: the next client waits in the backlog
                if self._ended.is_set():
                    return
                self._make_room()
            try:
                client, address = self._listener.accept()
            except OSError as error:  # it disconnected, or there are too many open files
                log.warning("cannot accept: %s", error)
                self._room.release()
                self._ended.wait(0.1)
                continue
            self._counts.add(connections=1)
            connection = Connection(client, f"{address[0]}:{address[1]}", self._service)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._connections[thread] = connection
            thread.start()

    def _make_room(self) -> None:
        """Ends the connection that has been idle for longest: its client reconnects when necessary."""
        with self._lock:
            idle = [(since, each) for each in self._connections.values() if (since := each.idle_since) is not None]
            since, connection = min(idle, key=lambda pair: pair[0], default=(time.monotonic(), None))
            if connection is not None and time.monotonic() - since > IDLE_LIMIT.total_seconds():
                connection.leave()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]
            self._room.release()

    def _settle(self) -> None:
        while True:
            try:
                self._drops.settle_undecided()
            except Exception:
                log.exception("settling")
            if self._ended.wait(SETTLE_EVERY):
                return


def _listen(text: str) -> socket.socket:
    host, port = parse_listen(text)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {text}: {error}", hint="choose another address if another program listens there"
        ) from error
