"""Who a client is to the metastore: calls by which clients say so or ask for proofs, answered by the gateway. Pure.

A client that has proved who it is cannot become another one: its connection to the metastore is its own from the first
call on.
"""

from __future__ import annotations

import struct
from typing import Any

from replicator.captures.gateways.auth.tokens import TokenRefused, Tokens
from replicator.captures.gateways.messages import (
    I64,
    LIST,
    REPLY,
    STRING,
    Field,
    Fields,
    ListValue,
    MessageHeader,
    declared_error,
    find,
    text,
    write_struct,
)

SET_UGI = "set_ugi"
TOKENS = frozenset({"get_delegation_token", "renew_delegation_token", "cancel_delegation_token"})
_META = 1  # the field of MetaException in the results of these calls

NO_TOKENS = (
    "the gateway gives no delegation tokens to this client: that takes token_key in [gateway] and a Kerberos ticket; "
    "one of the metastore is not valid here"
)
UNNAMED = "the client has not said who it is: its first call must be set_ugi (hive.metastore.execute.setugi)"


def claimed(arguments: Fields) -> str:
    """The user whom a set_ugi names."""
    return (text(arguments, 1) or "").strip()


def answer(header: MessageHeader, arguments: Fields, user: str) -> bytes:
    """To a set_ugi of a client that is `user`."""
    if claimed(arguments) != user:
        return declared_error(header, _META, f"the client is {user}, and cannot become {claimed(arguments)[:100]!r}")
    groups = find(arguments, 2, LIST) or ListValue(STRING, ())
    return _result(header, LIST, groups)


def answer_token(header: MessageHeader, arguments: Fields, user: str, tokens: Tokens | None) -> bytes:
    """To a call of TOKENS of a client that has a ticket of `user`; tokens: None: the gateway gives none."""
    if tokens is None:
        return declared_error(header, _META, NO_TOKENS)
    first, second = text(arguments, 1) or "", text(arguments, 2) or ""
    try:
        if header.name == "get_delegation_token":
            return _result(header, STRING, tokens.give(user, first, second).encode())
        if header.name == "renew_delegation_token":
            return _result(header, I64, struct.pack(">q", tokens.renewed(user, first)))
        tokens.cancel(user, first)
    except TokenRefused as error:
        return declared_error(header, _META, str(error))
    return header.encode(REPLY) + write_struct(())


def _result(header: MessageHeader, kind: int, value: Any) -> bytes:
    return header.encode(REPLY) + write_struct((Field(0, kind, value),))
