"""Tokens and sessions: permissions over HTTP. The store has their digests only."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete, insert, literal, or_, select

from replicator.errors import ObjectNotFound, UsageError
from replicator.service.runs import SCHEDULE
from replicator.service.schema import session, token
from replicator.service.store import ServiceStore

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
"""Each includes the permissions of those before it: read; run, cancel, pause; pause everything, and change what several
policies share."""

PREFIX = "rpl_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


@dataclass(frozen=True)
class Identity:
    """The identity of a client. policies: those that it may access; empty: all. also: further roles, with policies of
    their own. groups: as a proxy reports them; a token has none."""

    name: str
    role: Role
    policies: tuple[str, ...] = ()
    also: tuple[tuple[Role, tuple[str, ...]], ...] = ()
    groups: tuple[str, ...] = ()

    def may(self, role: Role, policy: str = "") -> bool:
        """Returns True if it has a role for a policy; "": for objects that belong to no policy."""
        grants = ((self.role, self.policies), *self.also)
        return any(ROLES.index(has) >= ROLES.index(role) and (not of or policy in of) for has, of in grants)


NOBODY = Identity("anonymous", "viewer")


@dataclass(frozen=True)
class ShownToken:
    """A token without its secret. Times are seconds since 1970 by the store's clock."""

    name: str
    role: Role
    policies: tuple[str, ...]
    created: float
    expires: float


def create_token(store: ServiceStore, name: str, role: Role, policies: Sequence[str], seconds: float) -> str:
    """Creates a token that is valid for `seconds`, and returns it; it cannot be read again. Raises UsageError for a
    name that is invalid or in use."""
    if not _NAME.fullmatch(name) or name == SCHEDULE:
        raise UsageError(f"invalid token name {name!r}", hint="use letters, digits and . _ @ -, at most 100")
    made = PREFIX + secrets.token_urlsafe(32)
    now = store.now()
    values: dict[str, object] = {
        "name": name,
        "digest": digest_of(made),
        "role": role,
        "policies": json.dumps(list(policies)),
    }
    values |= {"created": now, "expires": now + seconds}
    free = ~select(token.c.name).where(token.c.name == name).exists()
    picked = select(*(literal(value, token.c[key].type) for key, value in values.items())).where(free)
    with (
        store.transaction() as connection
    ):  # which writes immediately: SQLite refuses one that has read before another wrote
        if not connection.execute(insert(token).from_select(list(values), picked)).rowcount:
            raise UsageError(f"token {name!r} already exists", hint=f"`replicator token revoke {name}` revokes it")
    return made


def revoke_token(store: ServiceStore, name: str) -> None:
    """Revokes a token: it is refused from the next request on. Raises ObjectNotFound."""
    with store.transaction() as connection:
        if not connection.execute(delete(token).where(token.c.name == name)).rowcount:
            raise ObjectNotFound(f"token {name!r} does not exist", hint="see `replicator token ls`")


def tokens(store: ServiceStore) -> list[ShownToken]:
    """Returns all tokens by name, including expired ones."""
    with store.transaction() as connection:
        rows = connection.execute(select(token).order_by(token.c.name))
        return [
            ShownToken(row.name, row.role, tuple(json.loads(row.policies)), row.created, row.expires) for row in rows
        ]


def identify(store: ServiceStore, given: str) -> Identity | None:
    """Returns the identity of a token; None: it is unknown or has expired."""
    now = store.now()
    with store.transaction() as connection:
        row = connection.execute(select(token).where(token.c.digest == digest_of(given))).first()
    if row is None or row.expires <= now:
        return None
    return Identity(row.name, row.role, tuple(json.loads(row.policies)))


def bearer_of(header: str) -> str | None:
    """Returns the token of an Authorization header, regardless of case; "" for another scheme, None for an empty
    header."""
    scheme, _, given = header.partition(" ")
    if not scheme:
        return None
    return given.strip() if scheme.lower() == "bearer" else ""


def digest_of(given: str) -> str:
    """Returns the SHA-256 in hex, by which the store identifies a secret."""
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()


# ---- browser sessions ------------------------------------------------------------------------------------------------
# Sessions of browsers: a cookie instead of a token. The store has their digests only.


LASTS = 12 * 3600.0
"""Seconds that a session lasts; less if its token expires earlier."""


def sign_in(store: ServiceStore, given: str) -> str | None:
    """Creates a session for a token and returns its cookie; None: the token is unknown or has expired. Deletes sessions
    that have ended."""
    if identify(store, given) is None:
        return None
    cookie, now = secrets.token_urlsafe(32), store.now()
    values = {"digest": digest_of(cookie), "token_digest": digest_of(given), "expires": now + LASTS}
    ended = or_(session.c.expires <= now, session.c.token_digest.not_in(select(token.c.digest)))
    with store.transaction() as connection:
        connection.execute(delete(session).where(ended))
        connection.execute(insert(session).values(**values))
    return cookie


def session_of(store: ServiceStore, cookie: str) -> Identity | None:
    """Returns the identity of a session; None: it is unknown, or the session or its token has ended."""
    now = store.now()
    query = (
        select(token.c.name, token.c.role, token.c.policies)
        .join(session, session.c.token_digest == token.c.digest)
        .where(session.c.digest == digest_of(cookie), session.c.expires > now, token.c.expires > now)
    )
    with store.transaction() as connection:
        row = connection.execute(query).first()
    return None if row is None else Identity(row.name, row.role, tuple(json.loads(row.policies)))


def sign_out(store: ServiceStore, cookie: str) -> None:
    """Ends a session. May run twice."""
    with store.transaction() as connection:
        connection.execute(delete(session).where(session.c.digest == digest_of(cookie)))


def csrf_of(cookie: str, user: str = "") -> str:
    """Returns the CSRF token for forms of the cookie's browser, which no other site can know. user: of a proxy, to bind
    the forms to that user."""
    said = f"replicator form{user}".encode("utf-8", "surrogatepass")
    return hmac.new(cookie.encode("utf-8", "surrogatepass"), said, hashlib.sha256).hexdigest()


def is_csrf_of(cookie: str, given: str, user: str = "") -> bool:
    """Returns True if a form belongs to this browser and user."""
    return hmac.compare_digest(csrf_of(cookie, user).encode(), given.encode("utf-8", "surrogatepass"))
