"""The metastore's end of one client's connection: connect, send, and ask a call whose whole answer is wanted.

The connection is the client's own: what it says of its user holds for it alone.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace

from replicator.gateways.drops import Reply, UpstreamLost
from replicator.gateways.extent import Bytes, Extent
from replicator.gateways.messages import REPLY, Garbage, MessageHeader, parse_header

CHUNK = 256 * 1024
CONNECT_TIMEOUT = 20.0  # seconds


class ServerEnd:
    """Connected when made; a metastore that neither reads nor answers for `timeout` seconds is lost."""

    def __init__(self, addresses: Sequence[tuple[str, int]], timeout: float) -> None:
        """To the first of the addresses that answers. Raises ConnectionError."""
        self.socket = _connect(addresses)
        self.socket.settimeout(timeout)

    def send(self, data: Bytes) -> None:
        """Raises UpstreamLost."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise UpstreamLost(said(error)) from error

    def receive_into(self, buffer: Bytes) -> int:
        """How many bytes came, at least one. Raises UpstreamLost."""
        try:
            size = self.socket.recv_into(buffer)
        except OSError as error:
            raise UpstreamLost(said(error)) from error
        if not size:
            raise UpstreamLost("it closed the connection")
        return size

    def ask(self, header: MessageHeader, message: bytes) -> Reply:
        """Sends a whole call, whose head is `header`, and reads the whole answer. Raises UpstreamLost.

        The call goes under a number that its client cannot know, and only an answer with that number counts: the rest
        of an answer before it, whoever chose its bytes, is never taken for this one."""
        number = secrets.randbits(31)
        self.send(replace(header, sequence=number).encode() + message[len(header.encode()) :])
        record, buffer = bytearray(), bytearray(CHUNK)
        try:
            while (answer := parse_header(record[:512])) is None:
                record += memoryview(buffer)[: self.receive_into(buffer)]
            if (answer.sequence, answer.name) != (number, header.name):
                raise UpstreamLost("it answered another call")
            extent, at = Extent(), answer.size
            while True:
                at += extent.feed(memoryview(record)[at:])
                if extent.ended:
                    break
                record += memoryview(buffer)[: self.receive_into(buffer)]
        except Garbage as error:
            raise UpstreamLost(f"it answered nonsense: {error}") from error
        given = replace(answer, sequence=header.sequence).encode() + record[answer.size : at]
        return Reply(given, answer.kind == REPLY and not any(extent.fields))

    def shut(self) -> None:
        """From any thread: whoever waits for the metastore finds it lost."""
        shut(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def _connect(addresses: Sequence[tuple[str, int]]) -> socket.socket:
    reasons = []
    for host, port in addresses:
        try:
            connection = socket.create_connection((host, port), CONNECT_TIMEOUT)
        except OSError as error:
            reasons.append(f"{host}:{port}: {said(error)}")
            continue
        prepare(connection)
        return connection
    raise ConnectionError("; ".join(reasons))


def prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def shut(connection: socket.socket, how: int) -> None:
    """Safe to run twice, and beside a close."""
    try:
        connection.shutdown(how)
    except OSError:
        return


def said(error: OSError) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return error.strerror or str(error)
