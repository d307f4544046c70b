"""A metastore client below the bindings: any call by its name, with arguments as they go over the wire."""

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass
from typing import Any

from replicator.captures.gateways.messages import (
    BOOL,
    CALL,
    EXCEPTION,
    LIST,
    MAP,
    STRING,
    STRUCT,
    Field,
    Fields,
    ListValue,
    Mapped,
    MessageHeader,
    parse_header,
    read_struct,
    text,
    write_struct,
)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Said:
    """An answer: the fields of its struct, and whether it is an exception of the protocol."""

    fields: Fields
    protocol_error: bool

    @property
    def failed(self) -> bool:
        return self.protocol_error or any(field.id for field in self.fields)

    @property
    def message(self) -> str:
        """The text of an exception."""
        if self.protocol_error:
            return text(self.fields, 1) or ""
        return next((text(field.value, 1) or "" for field in self.fields if field.id and field.type == STRUCT), "")


class RawClient:
    """One connection. As a `with` block."""

    def __init__(self, uri: str, timeout: float = 60) -> None:
        host, _, port = uri.removeprefix("thrift://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)

    def call(self, name: str, *arguments: Any, **numbered: Any) -> Said:
        """Arguments by position, or as f3=...: a text, a bool, a list, a map of texts, or Fields for a struct."""
        given = dict(enumerate(arguments, 1)) | {int(key[1:]): value for key, value in numbered.items()}
        return self.send(message(name, struct(given)))

    def send(self, data: bytes) -> Said:
        self.socket.sendall(data)
        return self.receive()

    def receive(self) -> Said:
        """The next answer. Raises EOFError when the other side has closed the connection."""
        begin = bytearray()
        while (header := parse_header(begin)) is None:
            begin += self._read(1)
        return Said(read_struct(self._read), header.kind == EXCEPTION)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def message(name: str, arguments: Fields) -> bytes:
    return MessageHeader(CALL, name, next(_numbers), 0).encode() + write_struct(arguments)


def struct(numbered: dict[int, Any]) -> Fields:
    return tuple(Field(number, *_typed(value)) for number, value in numbered.items())


def _typed(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return BOOL, bytes([value])
    if isinstance(value, str):
        return STRING, value.encode()
    if isinstance(value, bytes):
        return STRING, value
    if isinstance(value, list):
        kinds = [_typed(item) for item in value]
        return LIST, ListValue(kinds[0][0] if kinds else STRING, tuple(item for _, item in kinds))
    if isinstance(value, dict):
        return MAP, Mapped(STRING, STRING, tuple((key.encode(), each.encode()) for key, each in value.items()))
    return STRUCT, value
