"""Clients that speak something else than expected: what it seems to be, and a refusal that they understand."""

from __future__ import annotations

import struct

from replicator.captures.gateways.messages import EXCEPTION, PROTOCOL_ERROR, Garbage, application_error, parse_header
from replicator.metastore.transports.frames import Status, frame, message

_BINARY = b"\x80\x01"
_COMPACT = 0x82
_ALERT = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""TLS: handshake failure."""


def speaks_tls(begin: bytes) -> bool:
    return begin[:2] == b"\x16\x03"


def speaks_sasl(begin: bytes) -> bool:
    return begin[0] == Status.START and begin[1] == 0


def guess(begin: bytes) -> str:
    """What the first bytes of something else may be, in brackets."""
    if begin[:1] == b"\x16":
        return " (TLS?)"
    if begin[:1] in (b"\x01", b"\x02") and len(begin) > 4 and begin[1:3] == b"\0\0":
        return " (SASL or Kerberos?)"
    if begin[:1].isalpha() and begin.isascii():
        return " (HTTP?)"
    if begin[4:6] == _BINARY:
        return " (framed transport?)"
    if begin[:1] == bytes([_COMPACT]):
        return " (compact protocol?)"
    return ""


def in_their_words(begin: bytes, why: str) -> bytes:
    """A refusal in the protocol of these first bytes; empty for an unknown one."""
    if speaks_tls(begin):
        return _ALERT
    if speaks_sasl(begin):
        return message(Status.BAD, why.encode())
    if begin[:2] == _BINARY:
        return _error(begin, why)
    if begin[4:6] == _BINARY:
        return frame(_error(begin[4:], why))
    if begin[:1] == bytes([_COMPACT]):
        return _compact_error(begin, why)
    if begin[:1].isalpha() and begin[:4].isascii():
        text = why.encode() + b"\n"
        head = "HTTP/1.1 501 Not Implemented\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text
    return b""


def _error(begin: bytes, why: str) -> bytes:
    try:
        header = parse_header(begin)
    except (Garbage, struct.error):
        header = None
    return application_error(header, PROTOCOL_ERROR, why)


def _compact_error(begin: bytes, why: str) -> bytes:
    """A TApplicationException of the compact protocol, under the number and name of the call, if they are there."""
    text, at = why.encode(), 2
    while at < len(begin) and begin[at] & 0x80:
        at += 1
    number, rest = begin[2 : at + 1], begin[at + 1 :]
    named = number + rest[: rest[0] + 1] if rest and len(rest) > rest[0] else b"\0\0"
    error = b"\x18" + _varint(len(text)) + text + b"\x15" + _varint(2 * PROTOCOL_ERROR) + b"\0"
    return bytes((_COMPACT, EXCEPTION << 5 | 1)) + named + error


def _varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])
