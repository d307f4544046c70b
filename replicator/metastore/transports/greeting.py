"""The first answer of an address: whether a metastore speaks there, and what else does.

A metastore tells its name at once, however busy it is. Others answer in a protocol of their own, or wait for more of
what they take for theirs: asked by a call proper, they would be waited for as long as the longest call may take.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

from thrift.transport.TTransport import TTransportException

from replicator.metastore.transports.frames import Status, frame, message, read_message, reading
from replicator.metastore.transports.tls import failure
from replicator.metastore.transports.transport import Transport

_NAME = b"getName"
CALL = b"\x80\x01\x00\x01" + len(_NAME).to_bytes(4, "big") + _NAME + b"\r\n\r\n" + b"\0"
"""Its number ends a line and an empty one after it: what reads lines answers, instead of waiting for their end."""
COMPACT = b"\x82\x21\x00" + len(_NAME).to_bytes(1, "big") + _NAME + b"\x18\x04\r\n\r\n" + b"\0"
"""The same in the compact protocol, with the lines' end in a field that a metastore passes over."""
CALLS: Mapping[str, bytes] = {"binary": CALL, "compact": COMPACT}

WENT_AWAY = "it went away at the first call"

PATIENCE = 3.0  # seconds for an answer to a guess

Found = dict[str, str]
"""Keys of `[metastores.NAME]` with the values that the server wants, as TOML; nothing for one that was not found."""
_TLS: Found = {"tls": "true"}
_HTTP: Found = {"auth": '"none"', "transport": '"http"'}
_FRAMED: Found = {"transport": '"framed"'}
_SOCKET: Found = {"transport": '"socket"'}
_SASL: Found = {"auth": '"kerberos"', "transport": '"socket"'}
_PASSWORD: Found = {"auth": '"plain"', "transport": '"socket"'}
_NO_SASL: Found = {"auth": '"none"'}
_GUESSES: tuple[tuple[bytes, Found], ...] = (
    (frame(CALL), _FRAMED | {"protocol": '"binary"'}),
    (COMPACT, _SOCKET | {"protocol": '"compact"'}),
    (frame(COMPACT), _FRAMED | {"protocol": '"compact"'}),
)


class SilentPeer(Exception):
    """Something took the connection, and said nothing in time."""


class Strange(Exception):
    """The peer is no metastore; the message says what it seems to be."""


def greet(transport: Transport, within: float, protocol: Literal["binary", "compact"] = "binary") -> None:
    """Asks for the name and waits for the answer's beginning, which is left unread. Raises SilentPeer, Strange,
    IdentityRefused for a certificate, or ConnectionError when the connection dies."""
    call = CALLS[protocol]
    deadline = time.monotonic() + within
    try:
        transport.limit(within)
        transport.send(call)
        transport.limit(max(deadline - time.monotonic(), 0.01))
        said = transport.peek(2)
    except TimeoutError:
        raise SilentPeer(f"no answer within {within:g} s, though something listens there") from None
    except ssl.SSLError as error:
        raise failure(error) from error
    except TTransportException as error:
        if error.type == TTransportException.TIMED_OUT:
            raise SilentPeer(f"no answer within {within:g} s, though something listens there") from None
        raise ConnectionResetError(f"{WENT_AWAY}: {error}") from error
    except OSError as error:
        raise ConnectionResetError(f"{WENT_AWAY}: {getattr(error, 'strerror', None) or error}") from error
    if said[:1] != call[:1]:
        raise Strange(seems(said)[0])


def seems(said: bytes) -> tuple[str, Found]:
    """The protocol of a peer, by its first bytes, and the keys for it."""
    if said[:5] == b"HTTP/" or said[:1] == b"<":
        return "an HTTP server answers there", _HTTP
    if said[0] in (0x15, 0x16) and said[1:2] == b"\x03":
        return "TLS is spoken there", _TLS
    if 1 <= said[0] <= 5 and said[1:3] in (b"\0\0", b"\0"):
        return "SASL (Kerberos) is spoken there", _SASL
    if said[4:6] == CALL[:2]:
        return "framed thrift is spoken there", _FRAMED
    return f"something else than a metastore answers there: {said[:24]!r}", {}


def recognise(dial: Callable[[], socket.socket]) -> tuple[str, Found]:
    """The protocol of a peer that did not answer as it was asked, by asking it otherwise, and the keys for it. `dial`:
    another connection to it. Nothing for a peer that says nothing to any question."""
    said = _answer(dial, CALL)
    if said[:2] == CALL[:2]:
        return "a metastore answers there, with plain binary thrift", _NO_SASL | _SOCKET | {"protocol": '"binary"'}
    if said:
        text, found = seems(said)
        return _mechanism(dial) or (text, found) if found == _SASL else (text, found)
    if wanted := _mechanism(dial):
        return wanted
    if _speaks_tls(dial):
        return "TLS is spoken there", _TLS
    for call, found in _GUESSES:
        answer = _answer(dial, call)
        framed = 4 if found["transport"] == _FRAMED["transport"] else 0
        if answer[framed : framed + 1] == call[framed : framed + 1]:
            keys = ", ".join(value.strip('"') for value in found.values())
            return f"a metastore answers there with other framing ({keys})", found
    return "", {}


def _speaks_tls(dial: Callable[[], socket.socket]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, ValueError), dial() as connection:
        connection.settimeout(PATIENCE)
        context.wrap_socket(connection).close()
        return True
    return False


def _mechanism(dial: Callable[[], socket.socket]) -> tuple[str, Found] | None:
    """The proof of identity that a server wants; None: it speaks no SASL."""
    with suppress(OSError, EOFError), dial() as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(message(Status.START, b"GSSAPI") + message(Status.OK))
        status, payload = read_message(reading(connection))
        if status is not Status.OK and b"nsupported mechanism" in payload:
            return "SASL without Kerberos is spoken there", _PASSWORD
        return "this metastore wants Kerberos (SASL GSSAPI)", _SASL
    return None


def _answer(dial: Callable[[], socket.socket], call: bytes) -> bytes:
    """The beginning of what a peer says to these bytes; nothing when it goes away or is silent."""
    with suppress(OSError, EOFError), dial() as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(call)
        said = connection.recv(64)
        while 0 < len(said) < 6 and (more := connection.recv(64)):
            said += more
        return said
    return b""
