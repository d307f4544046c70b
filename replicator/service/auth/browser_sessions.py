"""Sessions of browsers: a cookie in the place of a token. The store has their digests only."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

from sqlalchemy import delete, insert, or_, select

from replicator.service.auth.api_tokens import Identity, digest_of, identify
from replicator.service.schema import session, token
from replicator.service.store import ServiceStore

LASTS = 12 * 3600.0
"""Seconds that a session lasts; less where its token ends earlier."""


def sign_in(store: ServiceStore, given: str) -> str | None:
    """A new session of a token, as its cookie; None: the token is nobody's, or has expired. Forgets sessions that have
    ended."""
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
    """Who signed in; None: nobody, or the session or its token has ended."""
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
    """May run twice."""
    with store.transaction() as connection:
        connection.execute(delete(session).where(session.c.digest == digest_of(cookie)))


def csrf_of(cookie: str, user: str = "") -> str:
    """What forms of the cookie's browser carry, which no other site can know. user: of a proxy, whose forms are
    nobody else's."""
    said = f"replicator form{user}".encode("utf-8", "surrogatepass")
    return hmac.new(cookie.encode("utf-8", "surrogatepass"), said, hashlib.sha256).hexdigest()


def is_csrf_of(cookie: str, given: str, user: str = "") -> bool:
    """Whether a form is one of this browser's, and user's."""
    return hmac.compare_digest(csrf_of(cookie, user).encode(), given.encode("utf-8", "surrogatepass"))
