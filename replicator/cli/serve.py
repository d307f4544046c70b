"""`replicator serve`: the service in the foreground; `replicator token`: who may use it."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from replicator.cli.options import Duration, Session, json_option, pass_session
from replicator.cli.output import emit, log_to_stderr, note
from replicator.cli.signals import Stopping
from replicator.core.config import NAME
from replicator.errors import UsageError

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Address; port 0 selects a free one.  [default: service.listen]")
@click.option("--require-token", is_flag=True, help="Ask for a token even to look, on loopback too.")
@click.option("--tls-certificate", "certificate", type=FILE, metavar="FILE", help="PEM file.")
@click.option("--tls-key", "key", type=FILE, metavar="FILE", help="PEM file.")
@click.option(
    "--ready-file", type=FILE, metavar="FILE", help="File to which the service writes its URL once it answers."
)
@pass_session
def serve(session: Session, /, **given: Any) -> int:
    """Run policies and jobs by their schedules, and serve the API, metrics and a page about them.

    Needs the extra `server`. Without a token, requests may only look, and only where the service listens on loopback.
    Several servers may share one store: one schedules, all answer. Ends with SIGTERM or SIGINT, after its runs.

    \b
    Example:
      replicator token create me --role operator
      replicator serve --listen 127.0.0.1:8484
    """
    from replicator.service.serve import ServeSettings
    from replicator.service.serve import serve as run

    if not logging.getLogger().handlers:
        log_to_stderr("%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("replicator.service").setLevel(logging.INFO)
    ready_file = given.pop("ready_file")

    def ready(url: str) -> None:
        note(f"listening on {url}")
        if ready_file:
            ready_file.write_text(url + "\n")

    with Stopping(timedelta(days=1)) as stop:
        run(
            ServeSettings(
                config_file=_file(session),
                listen=given["listen"],
                open_to_all=False if given["require_token"] else None,
                certificate=given["certificate"],
                key=given["key"],
                ready=ready,
                stop=stop,
            )
        )
    return 0


def _file(session: Session) -> Path:
    file = Path(session.config.looked_for)
    if not file.is_file():
        raise UsageError(f"the service needs a configuration: {session.config.looked_for}", hint=f"write {NAME}")
    return file


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the service's API."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", show_default=True)
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only these policies; repeatable.")
@click.option("--expires", type=Duration(), default="90d", show_default=True, help="How long the token holds.")
@json_option
@pass_session
def create(
    session: Session, /, name: str, role: Any, policies: tuple[str, ...], expires: timedelta, as_json: bool
) -> int:
    """Create a token, and print it: it cannot be shown again.

    \b
    Example:
      replicator token create airflow --role operator --policy west --expires 365d
    """
    from replicator.service.store import ServiceStore
    from replicator.service.tokens import create_token

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
    from replicator.service.store import ServiceStore
    from replicator.service.tokens import tokens
    from replicator.service.web.views import iso

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
    from replicator.service.store import ServiceStore
    from replicator.service.tokens import revoke_token

    with ServiceStore(session.config.service.store) as store:
        store.prepare()
        revoke_token(store, name)
    emit({"name": name, "revoked": True}, as_json, [f"revoked {name}"])
    return 0
