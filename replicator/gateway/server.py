"""The gateway at work: it listens, gives each client a thread, and stops when it is told to, with no call cut off."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from cmroot.lease import acquire
from cmroot.place import join
from cmroot.root import ChangeRoot
from replicator.errors import UsageError
from replicator.gateway.drops import GRACE, Counts, Drops
from replicator.gateway.relay import Connection
from replicator.gateway.targets import Upstream
from replicator.metastore.connection import DEFAULT_PORT, addresses
from replicator.report import json_text

THREADS = 1000  # connections at once
PATIENCE = timedelta(minutes=10)  # for calls that are under way when the gateway is stopped: Hive's own timeout
SETTLE_EVERY = 1.0  # seconds
LEASE = "gateway"  # the directory of the root in which the lease of its one gateway lies

log = logging.getLogger(__name__)


@dataclass
class Served:
    """What a gateway did from its start to its end. `calls`: all; `intercepted`: those that would have deleted data;
    `refused`: those that were not let through; `files`, `bytes`: taken into `$cmroot`; `undecided`: drops whose outcome
    is for the next start to find."""

    uri: str
    connections: int = 0
    calls: int = 0
    intercepted: int = 0
    refused: int = 0
    files: int = 0
    bytes: int = 0
    undecided: int = 0
    seconds: float = 0.0
    status: str = "stopped"

    __str__ = json_text


def parse_listen(text: str) -> tuple[str, int]:
    """`host:port`, `:port` (all interfaces), `[::1]:port`, `thrift://host:port`; port 0 takes a free one."""
    host, colon, port = text.removeprefix("thrift://").rstrip("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon:
        host, port = text.removeprefix("thrift://"), str(DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"cannot listen on {text!r}", hint="write HOST:PORT, for example 127.0.0.1:9083")
    return host, int(port)


@contextlib.contextmanager
def opened(
    upstream: Upstream, root: ChangeRoot, listen: str, *, threads: int = THREADS, pass_unknown: bool = False,
    grace: timedelta = GRACE,
) -> Iterator[Gateway]:  # fmt: skip
    """A gateway that listens for the length of a block, and is stopped in good order at its end.

    Raises NotificationLogOff for a metastore whose drops no capture would see, LeaseHeld when another gateway works on
    the root (there may be one), UsageError for an address that cannot be had."""
    upstream.current_event_id()
    with acquire(join(root.place, LEASE), "gateway"):
        gateway = Gateway(upstream, root, listen, threads=threads, pass_unknown=pass_unknown, grace=grace)
        try:
            yield gateway
        finally:
            gateway.stop()


class Gateway:
    """Listens from the moment it is made; `stop` ends it."""

    def __init__(
        self, upstream: Upstream, root: ChangeRoot, listen: str, *, threads: int = THREADS, pass_unknown: bool = False,
        grace: timedelta = GRACE,
    ) -> None:  # fmt: skip
        self._began = time.monotonic()
        self._counts = Counts()
        self._drops = Drops(upstream, root.place, self._counts, grace=grace)
        self._drops.recover()
        self._addresses = addresses(upstream.uri)
        self._pass_unknown = pass_unknown
        self._room = threading.Semaphore(threads)
        self._listener = _listen(listen)
        host, port = self._listener.getsockname()[:2]
        self.uri = f"thrift://{f'[{host}]' if ':' in host else host}:{port}"
        self._stopping, self._tell = os.pipe()
        self._connections: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("accept", self._accept), ("settle", self._settle))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until an exception arrives in this thread: signals come to the main one."""
        while not self._ended.wait(3600):
            pass

    def stop(self) -> Served:
        """No new calls; those under way come to their end (for at most PATIENCE)."""
        if not self._ended.is_set():
            self._ended.set()
            os.write(self._tell, b"x")
            for thread in self._threads:
                thread.join()
            self._listener.close()
            deadline = time.monotonic() + PATIENCE.total_seconds()
            for thread in list(self._connections):
                thread.join(max(0.0, deadline - time.monotonic()))
            if not self._connections:
                os.close(self._stopping)
                os.close(self._tell)
        counts = self._counts
        return Served(
            self.uri, counts.connections, counts.calls, counts.intercepted, counts.refused, counts.files, counts.bytes,
            self._drops.undecided, round(time.monotonic() - self._began, 3),
        )  # fmt: skip

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._stopping in ready:
                return
            while not self._room.acquire(timeout=0.5):  # all threads are busy: the next one waits in the backlog
                if self._ended.is_set():
                    return
            try:
                client, address = self._listener.accept()
            except OSError as error:  # it went away, or there are too many open files
                log.warning("cannot accept: %s", error)
                self._room.release()
                self._ended.wait(0.1)
                continue
            self._counts.add(connections=1)
            thread = threading.Thread(target=self._serve, args=(client, f"{address[0]}:{address[1]}"), daemon=True)
            with self._lock:
                self._connections.add(thread)
            thread.start()

    def _serve(self, client: socket.socket, name: str) -> None:
        connection = Connection(
            client, name, self._addresses, self._drops, self._counts, self._stopping, pass_unknown=self._pass_unknown
        )
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.discard(threading.current_thread())
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
            f"cannot listen on {text}: {error}", hint="is another program there? choose another"
        ) from error
