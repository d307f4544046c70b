"""Clients of the service that are too slow: each limit of time ends them by itself, on a clock that the tests move."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess
from moved_loop import ServingThread
from waiting import eventually

from replicator.core.service_config import LimitConfig

YEAR = dict.fromkeys(("header_time", "body_time", "write_time", "idle_time"), "365d")
STEP = 60.0
"""Seconds of the server's clock between two looks; ten of them are the limit."""

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
Hurried = Callable[[str], ServingThread]


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[Hurried]:
    """`hurried("idle_time")`: a server whose clients have ten minutes for this, and a year for all the rest."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> ServingThread:
            limits: dict[str, Any] = {**YEAR, name: "10m"}
            made = InProcess(tmp_path, {"service": {"limits": limits}})
            stack.callback(made.store.close)
            return stack.enter_context(ServingThread(made.application, LimitConfig(**limits)))

        yield start


class Client:
    """found: what it was sent so far."""

    def __init__(self, server: ServingThread, sent: bytes) -> None:
        self._server, self.found = server, b""
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.sendall(sent)
        self.socket.setblocking(False)

    def ended(self) -> bool:
        """Whether its connection is closed; reads what is there."""
        try:
            while piece := self.socket.recv(65536):
                self.found += piece
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        self.socket.close()
        return True

    def ended_later(self) -> bool:
        """The same a minute later."""
        self._server.advance(STEP)
        return self.ended()


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("header_time", b""),
        ("header_time", HEAD),
        ("body_time", b"POST /api/v1/jobs/often:run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"),
        ("body_time", b"POST /api/v1/jobs/often:run HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
    ids=["nothing", "head", "body", "chunked"],
)
def test_who_does_not_ask_is_told_and_ended(limit: str, sent: bytes, hurried: Hurried) -> None:
    client = Client(hurried(limit), sent)
    eventually(client.ended_later, lambda: client.found)
    assert client.found.startswith(b"HTTP/1.1 408"), client.found


def test_who_idles_is_ended(hurried: Hurried) -> None:
    client = Client(hurried("idle_time"), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: client.ended() or client.found)
    assert client.found.startswith(b"HTTP/1.1 200"), client.found
    eventually(client.ended_later)


def test_a_trickle_is_no_way_around_the_limit(hurried: Hurried) -> None:
    client = Client(hurried("header_time"), HEAD)

    def trickled() -> bool:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.socket.send(b"X")
        return client.ended_later()

    eventually(trickled)


def test_who_does_not_read_is_ended(hurried: Hurried) -> None:
    """Requests in one piece, whose answers fill all buffers."""
    server = hurried("write_time")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30)
        eventually(lambda: server.connections)

        def ended() -> bool:
            server.advance(STEP)
            return not server.connections

        eventually(ended)
