"""The root of the tree of errors. Each class has an exit code, indicates whether a retry can help, and its docstring is
its manual entry; the message names the object and what happened, the hint what to do next."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cmroot.text import shown

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding JSON from an untrusted file: invalid JSON, not UTF-8, unexpected types, or nested too
deeply."""


class Error(Exception):
    """An operation failed; the message names the failure, the hint the remedy."""

    exit_code = 1
    transient = False

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, object] | None = None) -> None:
        """`details`: values for programs, in addition to the message; part of the JSON."""
        message = shown(message)  # a path in it may be no text
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (type(self), self.message, self.hint, self.details)

    def as_json(self) -> dict[str, object]:
        failed = {"status": "failed", "error": type(self).__name__, "message": self.message, "hint": self.hint}
        return failed | self.details


def _remake(kind: type[Error], message: str, hint: str, details: Mapping[str, object]) -> Error:
    """An error that crossed a process boundary."""
    return kind(message, hint=hint, details=details)


class FormatError(Error):
    """A file's content does not match its name: damaged, truncated, or of an unknown format version."""


class NotWritable(Error):
    """A location cannot be written: rights, a read-only mount, or a missing parent."""


class StorageUnreachable(Error):
    """A filesystem's or object store's server does not answer. Nothing is lost; the next run continues."""

    exit_code = 75
    transient = True


class StoreNotAuthenticated(Error):
    """The client cannot prove its identity to a store's server at present: it has no Kerberos tickets or they have run
    out, the clocks differ, or no KDC answers."""

    exit_code = 75
    transient = True


class StoreIdentityRefused(Error):
    """A store's server, or the KDC for it, refuses the client's Kerberos principal."""

    exit_code = 2


class NoSpace(Error):
    """A store is full. What was written so far is complete; free space and run the same command again."""


class Superseded(Error):
    """A segment of the captured log was merged into another while it was read. Nothing is lost."""

    exit_code = 75
    transient = True


class LeaseHeld(Error):
    """Another run holds the lease on this `$cmroot` or target."""

    exit_code = 7


class Filing(Error):
    """A gateway is storing files in `$cmroot` and does not finish; no removal is possible until then."""

    exit_code = 75
    transient = True


class PinError(Error):
    """A slot, hold or dump pin cannot be created, moved or dropped as requested; nothing was changed."""

    exit_code = 2


class KeepError(Error):
    """A file could not be kept in `$cmroot`; the source is unchanged."""


class Protected(KeepError):
    """A location is inside of a `$cmroot`, or contains one: it is never moved or removed."""

    exit_code = 6


class Exists(Error):
    """A file exists already, and its replacement was not allowed."""

    exit_code = 6


class ChecksumMismatch(Error):
    """A file's bytes do not match the recorded checksum."""


class UnknownPlace(Error):
    """A path or URL is invalid, or needs a driver that is not installed."""
