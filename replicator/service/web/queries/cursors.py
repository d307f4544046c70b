"""Cursors: where the next page of a list begins. Opaque to clients, and bound to the query that returned them. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from replicator.errors import UsageError

FARTHEST = 100_000
"""Entries of a list that pages lead to."""


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    asked: str
    at: int | str


def cursor_to(at: int | str, asked: str) -> str:
    """at: an offset, or the key of the last entry. asked: of `digest`."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(asked, at))).decode().rstrip("=")


def read_cursor(text: str | None, asked: str, kind: type[int] | type[str] = int) -> Any:
    """What `cursor_to` was given; 0 or "" for none. Raises UsageError for what is no cursor, and for that of another
    endpoint."""
    if not text:
        return kind()
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(data, type=_Cursor)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise UsageError("this is no cursor", hint="take `next` of the page before, or leave it out") from error
    if found.asked == asked and isinstance(found.at, int) and found.at > FARTHEST:
        raise UsageError(f"pages lead to {FARTHEST:,} entries of a list", hint="filter: ask for less")
    if found.asked != asked or type(found.at) is not kind or (isinstance(found.at, int) and found.at < 0):
        hint = "filters and limit stay as they were; without a cursor the list begins anew"
        raise UsageError("this cursor belongs to another query", hint=hint)
    return found.at


def digest(path: str, values: Mapping[str, Any]) -> str:
    """The parameters of a query, except its cursor."""
    said = {name: value for name, value in sorted(values.items()) if name != "cursor"}
    return hashlib.sha256(msgspec.json.encode([path, said])).hexdigest()[:16]
