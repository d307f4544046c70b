"""The metastore's end of one client's connection: send, and ask a call whose whole answer is wanted.

The connection is the client's own: what it says of its user holds for it alone.
"""

from __future__ import annotations

import secrets
import select
import socket
from dataclasses import replace

from replicator.captures.gateways.auth.channel import Channel
from replicator.captures.gateways.drops import Reply, UpstreamLost
from replicator.captures.gateways.extent import Bytes, Extent
from replicator.captures.gateways.messages import REPLY, Garbage, MessageHeader, parse_header
from replicator.metastore.transports.frames import FrameError

CHUNK = 256 * 1024


class ServerEnd:
    """A metastore that neither reads nor answers for `timeout` seconds is lost."""

    def __init__(self, channel: Channel, timeout: float) -> None:
        self._channel, self._timeout = channel, timeout
        channel.settimeout(timeout)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def pending(self) -> bool:
        """Whether there are bytes that no poll sees."""
        return self._channel.pending

    def send(self, data: Bytes) -> None:
        """Raises UpstreamLost."""
        try:
            self._channel.sendall(data)
        except OSError as error:
            raise UpstreamLost(said(error)) from error

    def receive_into(self, buffer: Bytes) -> int | None:
        """How many bytes came, at least one; None when there is nothing whole yet. Raises UpstreamLost."""
        try:
            size = self._channel.receive_into(buffer)
        except FrameError as error:
            raise UpstreamLost(f"it answered nonsense: {error}") from error
        except OSError as error:
            raise UpstreamLost(said(error)) from error
        if size == 0:
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
                record += memoryview(buffer)[: self._wait_into(buffer)]
            if (answer.sequence, answer.name) != (number, header.name):
                raise UpstreamLost("it answered another call")
            extent, at = Extent(), answer.size
            while True:
                at += extent.feed(memoryview(record)[at:])
                if extent.ended:
                    break
                record += memoryview(buffer)[: self._wait_into(buffer)]
        except Garbage as error:
            raise UpstreamLost(f"it answered nonsense: {error}") from error
        given = replace(answer, sequence=header.sequence).encode() + record[answer.size : at]
        return Reply(given, answer.kind == REPLY and not any(extent.fields))

    def shut(self) -> None:
        """From any thread: whoever waits for the metastore finds it lost."""
        self._channel.shut(socket.SHUT_RDWR)

    def close(self) -> None:
        self._channel.close()

    def _wait_into(self, buffer: Bytes) -> int:
        while True:
            if not self.pending and not self._poll.poll(self._timeout * 1000):
                raise UpstreamLost("no answer in time")
            if size := self.receive_into(buffer):
                return size


def said(error: OSError) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return error.strerror or str(error)
