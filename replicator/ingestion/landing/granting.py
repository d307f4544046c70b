"""Grants: consumers of an asset may read its landing tables; granted after each publish, and read back."""

from __future__ import annotations

from collections.abc import Sequence

from replicator.errors import Error, UsageError
from replicator.metastore.client import Metastore

_KINDS = {"group": "GROUP", "user": "USER", "role": "ROLE"}


class GrantMissing(Error):
    """The metastore took a grant, and does not have it; or a revocation, and has the grant."""

    transient = True


def principals(consumers: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of GROUP, USER or ROLE and a name, of texts such as "analysts", "user:ann", "role:readers". Raises
    UsageError for another kind."""
    found = []
    for each in consumers:
        kind, colon, name = each.partition(":")
        if colon and (kind not in _KINDS or not name):
            raise UsageError(f"{each!r} is no consumer", hint="write a group's name, user:NAME or role:NAME")
        found.append((_KINDS[kind], name) if colon else ("GROUP", each))
    return found


def grant(
    metastore: Metastore, db: str, table: str, consumers: Sequence[str], by: str, former: Sequence[str] = ()
) -> list[str]:
    """Who was given the right now; it is taken from `former` consumers that are none any more. May run twice. Raises
    GrantMissing."""
    wanted = principals(consumers)
    readers = metastore.readers(db, table)
    if leaving := [each for each in principals(former) if each in readers and each not in wanted]:
        metastore.revoke_select(db, table, leaving, by)
        if kept := [name for kind, name in set(leaving) & metastore.readers(db, table)]:
            raise GrantMissing(f"{db}.{table}: {', '.join(sorted(kept))} may still read it", hint="look at its server")
    lacking = [each for each in wanted if each not in readers]
    if lacking:
        metastore.grant_select(db, table, lacking, by)
        if missing := [name for kind, name in set(wanted) - metastore.readers(db, table)]:
            raise GrantMissing(f"{db}.{table}: {', '.join(sorted(missing))} may not read it", hint="look at its server")
    return [name for _, name in lacking]
