"""`replicator token`: who may use the service's API."""

from __future__ import annotations

from typing import Any

import click

from replicator.cli.options import Duration, Session, json_option, pass_session
from replicator.cli.output import emit
from replicator.service.auth.api_tokens import ROLES
from replicator.service.service_process import token_create, token_ls, token_revoke


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the service's API.

    \b
    Example:
      replicator token create me --role operator
    """


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it may do.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this policy; repeatable.")
@click.option("--expires", type=Duration(), default="90d", show_default=True, help="How long the token holds.")
@json_option
@pass_session
def create(session: Session, /, as_json: bool, **given: Any) -> int:
    """Create a token, and print it: it cannot be shown again.

    \b
    Example:
      replicator token create airflow --role operator --policy west --expires 365d
    """
    made = session.call(token_create, **given)
    emit(made, as_json, [made.token])
    return 0


@token.command()
@json_option
@pass_session
def ls(session: Session, /, as_json: bool) -> int:
    """List tokens: names, roles and ends, not the tokens themselves.

    \b
    Example:
      replicator token ls
    """
    found = session.call(token_ls)
    emit(found, as_json, [f"{each.name}  {each.role}  until {each.expires}" for each in found.tokens])
    return 0


@token.command()
@click.argument("name")
@json_option
@pass_session
def revoke(session: Session, /, as_json: bool, **given: Any) -> int:
    """End a token: requests with it are refused from now on.

    \b
    Example:
      replicator token revoke airflow
    """
    ended = session.call(token_revoke, **given)
    emit(ended, as_json, [f"revoked {ended.name}"])
    return 0
