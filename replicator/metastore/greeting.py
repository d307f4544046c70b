"""The first answer of an address: whether a metastore speaks there, and what else does.

A metastore tells its name at once, however busy it is. Others answer in a protocol of their own, or wait for more of
what they take for theirs: asked by a call proper, they would be waited for as long as the longest call may take.
"""

from __future__ import annotations

import socket
import time

_NAME = b"getName"
CALL = b"\x80\x01\x00\x01" + len(_NAME).to_bytes(4, "big") + _NAME + b"\r\n\r\n" + b"\0"
"""Its number ends a line and an empty one after it: what reads lines answers, instead of waiting for their end."""

WENT_AWAY = "it went away at the first call, as who wants TLS or SASL does"

_LOOKED_AT = 64
_PAUSE = 0.01


class SilentPeer(Exception):
    """Something took the connection, and said nothing in time."""


class Strange(Exception):
    """What speaks there is no metastore; the message says what it seems to be."""


def greet(connection: socket.socket, within: float) -> None:
    """Asks for the name and waits for the answer's beginning, which is left unread. Raises Silent, Strange, or
    ConnectionError when the connection dies."""
    deadline = time.monotonic() + within
    try:
        connection.sendall(CALL)
        said = _beginning(connection, deadline)
    except TimeoutError:
        raise SilentPeer(f"no answer within {within:g} s, though something listens there") from None
    except OSError as error:
        raise ConnectionResetError(f"{WENT_AWAY}: {error.strerror or error}") from error
    if said[:2] != CALL[:2]:
        raise Strange(seems(said))


def _beginning(connection: socket.socket, deadline: float) -> bytes:
    said = b""
    while len(said) < 2:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        if said:  # one byte that stays: peeking does not wait for more
            time.sleep(_PAUSE)
        connection.settimeout(left)
        said = connection.recv(_LOOKED_AT, socket.MSG_PEEK)
        if not said:
            raise ConnectionResetError("it closed the connection")
    return said


def seems(said: bytes) -> str:
    """What speaks so, from its first bytes."""
    if said[:5] == b"HTTP/" or said[:1] == b"<":
        return "an HTTP server answers there"
    if said[0] in (0x15, 0x16) and said[1] == 3:
        return "TLS is spoken there, which is not supported"
    if 1 <= said[0] <= 5 and said[1:3] == b"\0\0":
        return "SASL (Kerberos) is spoken there, which is not supported"
    if said[4:6] == CALL[:2]:
        return "framed thrift is spoken there, which is not supported"
    return f"something else than a metastore answers there: {said[:24]!r}"
