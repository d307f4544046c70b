"""A proxy before a real metastore that counts: connections at a time, and calls by name."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from waiting import eventually, pause

CALL = b"\x80\x01\x00\x01"  # how a call of the binary protocol begins
ANSWERS = (b"\x80\x01\x00\x02", b"\x80\x01\x00\x03")


class CountingProxy:
    """`uri`: its own. `calls`: the name of each; `most`: connections at a time, `busiest`: calls at a time.
    `delay`: seconds of a network before each answer; `stalled`: answers wait until it is cleared.
    `before`: does something before a call is passed on."""

    def __init__(self, uri: str, delay: float = 0.0) -> None:
        host, _, port = uri.removeprefix("thrift://").rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay, self.stalled = delay, False
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda name: None
        self.open = self.most = self.busy = self.busiest = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def count(self) -> Counter[str]:
        return Counter(self.calls)

    def forget(self) -> None:
        self.calls, self.most, self.busiest = [], self.open, self.busy

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept that is under way, too
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._sockets += [client, server]
            with self._lock:
                self.open += 1
                self.most = max(self.most, self.open)
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if data.startswith(CALL):
                    length = int.from_bytes(data[4:8])
                    name = data[8 : 8 + length].decode()
                    self.before(name)
                    with self._lock:
                        self.calls.append(name)
                        self.busy += 1
                        self.busiest = max(self.busiest, self.busy)
                server.sendall(data)
        with self._lock:
            self.open -= 1
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if self.delay:
                    pause(self.delay, "the way to a server of another machine")
                eventually(lambda: not self.stalled)
                if data.startswith(ANSWERS):
                    with self._lock:
                        self.busy -= 1
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def counting(uri: str, delay: float = 0.0) -> Iterator[CountingProxy]:
    with CountingProxy(uri, delay) as proxy:
        yield proxy
