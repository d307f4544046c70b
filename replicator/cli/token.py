"""`replicator token`: who may use the service's API."""

from __future__ import annotations

from datetime import timedelta

import click

from replicator.cli.options import Duration, Session, json_option, pass_session
from replicator.cli.output import emit
from replicator.service.api_tokens import ROLES, Role, create_token, revoke_token, tokens
from replicator.service.store import ServiceStore
from replicator.service.times import iso


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the service's API."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True)
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only these policies; repeatable.")
@click.option("--expires", type=Duration(), default="90d", show_default=True, help="How long the token holds.")
@json_option
@pass_session
def create(
    session: Session, /, name: str, role: Role, policies: tuple[str, ...], expires: timedelta, as_json: bool
) -> int:
    """Create a token, and print it: it cannot be shown again.

    \b
    Example:
      replicator token create airflow --role operator --policy west --expires 365d
    """
    for each in policies:
        session.config.policy(each)
    with ServiceStore(session.config.service.store) as store:
        store.prepare()
        made = create_token(store, name, role, policies, expires.total_seconds())
    emit({"name": name, "role": role, "token": made}, as_json, [made])
    return 0


@token.command()
@json_option
@pass_session
def ls(session: Session, /, as_json: bool) -> int:
    """List tokens: names, roles and ends, not the tokens themselves."""
    with ServiceStore(session.config.service.store) as store:
        store.prepare()
        found = tokens(store)
    rows = [
        {"name": each.name, "role": each.role, "policies": list(each.policies), "expires": iso(each.expires)}
        for each in found
    ]
    emit({"tokens": rows}, as_json, [f"{row['name']}  {row['role']}  until {row['expires']}" for row in rows])
    return 0


@token.command()
@click.argument("name")
@json_option
@pass_session
def revoke(session: Session, /, name: str, as_json: bool) -> int:
    """End a token: requests with it are refused from now on."""
    with ServiceStore(session.config.service.store) as store:
        store.prepare()
        revoke_token(store, name)
    emit({"name": name, "revoked": True}, as_json, [f"revoked {name}"])
    return 0
