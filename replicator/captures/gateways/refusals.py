"""Calls that end their connection: the answer that the client gets, and the reason for the log."""

from __future__ import annotations

from replicator.captures.gateways.auth.door import LOOKED_AT
from replicator.captures.gateways.auth.foreign import guess, in_their_words
from replicator.captures.gateways.drops import refusal
from replicator.captures.gateways.messages import (
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    Garbage,
    MessageHeader,
    application_error,
)


class Refused(Exception):
    """The connection is over. answer: what the client still gets; counted: it is one of the refused calls."""

    def __init__(self, answer: bytes, reason: str, *, counted: bool = False) -> None:
        super().__init__(reason)
        self.answer, self.counted = answer, counted


def more(header: MessageHeader) -> Refused:
    """Than one call at a time."""
    message = "the gateway takes one call at a time"
    return Refused(application_error(header, PROTOCOL_ERROR, message), f"sent more before {header.name} was answered")


def hidden(header: MessageHeader, name: str) -> Refused:
    """A call that may be another one to the server, see `extent.MethodNames`."""
    message = f"a text in {header.name} is {name}: to the metastore it may be a call that deletes data"
    return Refused(application_error(header, PROTOCOL_ERROR, message), message, counted=True)


def garbage(header: MessageHeader | None, error: Garbage) -> Refused:
    """In a call."""
    message = f"the gateway cannot read this: {error}"
    where = f" in {header.name}" if header else ""
    return Refused(application_error(header, PROTOCOL_ERROR, message), f"garbage{where}: {error}")


def strange(begin: bytes, error: Garbage) -> Refused:
    """The first bytes of a connection are no call: the answer is in the protocol that they seem to be of."""
    message = f"the gateway cannot read this: {error}{guess(begin[:LOOKED_AT])}"
    answer = in_their_words(begin[:LOOKED_AT], message) or application_error(None, PROTOCOL_ERROR, message)
    return Refused(answer, f"garbage: {message}")


def large(header: MessageHeader, why: str) -> Refused:
    message = f"{header.name} is too large to be read whole: {why}; nothing was dropped: name fewer partitions"
    return Refused(refusal(header, message), message, counted=True)


def lost(header: MessageHeader, reason: str) -> Refused:
    """The metastore, during a call that was forwarded."""
    message = f"the metastore went away during {header.name}: {reason}"
    return Refused(application_error(header, INTERNAL_ERROR, message), message)


def away(header: MessageHeader, reason: str) -> Refused:
    """The metastore cannot be reached, or refuses the client."""
    return Refused(application_error(header, INTERNAL_ERROR, reason), reason)
