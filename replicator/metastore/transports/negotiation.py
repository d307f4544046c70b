"""The client's side of a SASL negotiation, as Hive's own client carries it out."""

from __future__ import annotations

import socket
from typing import Protocol

from replicator.errors import IdentityRefused, NotAMetastore
from replicator.metastore.transports.frames import Layer, Read, Status, message, read_message, reading

OTHER_MECHANISM = (
    'set auth in [metastores.NAME]: "kerberos" (GSSAPI), "plain" (a user with a password) or "token" (DIGEST-MD5)'
)


class Mechanism(Protocol):
    """One proof of identity. `complete`: nothing more is to be said; then `layer` protects what follows."""

    name: str
    shown: str  # the identity, for a person
    refused: str  # a hint for a server that refuses it

    @property
    def complete(self) -> bool: ...

    @property
    def layer(self) -> Layer: ...

    def first(self) -> bytes:
        """The initial response. Raises IdentityRefused, NotAuthenticated."""
        ...

    def answer(self, challenge: bytes) -> bytes:
        """Raises IdentityRefused, NotAuthenticated."""
        ...


class Layered:
    """A mechanism that agrees on its layer in the end."""

    _layer: Layer | None = None

    @property
    def layer(self) -> Layer:
        if self._layer is None:
            raise AssertionError("the negotiation has not ended")
        return self._layer


def negotiate(connection: socket.socket, mechanism: Mechanism) -> Layer:
    """Raises IdentityRefused when the server refuses, NotAMetastore for one that knows no SASL or another mechanism,
    NotAuthenticated, OSError and EOFError when the connection dies."""
    read = reading(connection)
    said = mechanism.first()
    connection.sendall(message(Status.START, mechanism.name.encode()) + message(_status(mechanism), said))
    status = Status.OK
    while status is Status.OK and not mechanism.complete:
        status, challenge = _next(read, mechanism)
        said = mechanism.answer(challenge)
        if status is Status.OK:
            connection.sendall(message(_status(mechanism), said))
    if not mechanism.complete:
        raise IdentityRefused("the server ended the SASL negotiation before it had proved its own identity")
    if status is Status.OK:
        status, _ = _next(read, mechanism)
        if status is not Status.COMPLETE:
            raise IdentityRefused("the server does not end the SASL negotiation")
    return mechanism.layer


def _status(mechanism: Mechanism) -> Status:
    return Status.COMPLETE if mechanism.complete else Status.OK


def _next(read: Read, mechanism: Mechanism) -> tuple[Status, bytes]:
    status, payload = read_message(read)
    if status in (Status.OK, Status.COMPLETE):
        return status, payload
    said = payload.decode("utf-8", "replace").strip()
    if "nsupported mechanism" in said:
        raise NotAMetastore(f"the server speaks SASL, but not {mechanism.name}: {said}", hint=OTHER_MECHANISM)
    raise IdentityRefused(f"the server refused {mechanism.shown}: {said or status.name}", hint=mechanism.refused)
