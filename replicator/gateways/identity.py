"""Who a client is to the metastore: calls by which clients say so or ask for proofs, answered by the gateway. Pure.

A client that has proved who it is cannot become another one: its connection to the metastore is its own from the first
call on.
"""

from __future__ import annotations

from replicator.gateways.messages import (
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
    "the gateway gives no delegation tokens: a token of the metastore is not valid here, and clients of the gateway "
    "must have Kerberos tickets of their own"
)
UNNAMED = "the client has not said who it is: its first call must be set_ugi (hive.metastore.execute.setugi)"


def claimed(arguments: Fields) -> str:
    """The user whom a set_ugi names."""
    return (text(arguments, 1) or "").strip()


def answer(header: MessageHeader, arguments: Fields, user: str) -> bytes:
    """To a set_ugi or a call of TOKENS of a client that is `user`."""
    if header.name in TOKENS:
        return declared_error(header, _META, NO_TOKENS)
    if claimed(arguments) != user:
        return declared_error(header, _META, f"the client is {user}, and cannot become {claimed(arguments)[:100]!r}")
    groups = find(arguments, 2, LIST) or ListValue(STRING, ())
    return header.encode(REPLY) + write_struct((Field(0, LIST, groups),))
