"""`replicator serve`: the service in the foreground."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import emit, note, raise_level
from replicator.core.runtime import Stopping
from replicator.service.metrics import metrics as run_metrics
from replicator.service.service_process import serve as run_serve
from replicator.service.service_process import token_create, token_ls, token_revoke

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@options_of(run_serve)
@pass_session
def serve(session: Session, /, **given: Any) -> int:
    """Run policies and jobs by their schedules, and serve an API, metrics and web pages about them.

    Needs the extra `server`. Without a token, only read requests are allowed, and only if the service listens on
    loopback. Several servers may share one store: one schedules, all answer. Ends with SIGTERM or SIGINT, after its
    runs.

    \b
    Example:
      replicator token create me --role operator
      replicator serve --listen 127.0.0.1:8484
    """
    raise_level("replicator.service")
    with Stopping(timedelta(days=1)) as stop:
        session.call(run_serve, ready=lambda url: note(f"listening on {url}"), stop=stop, **given)
    return 0


# ---- token -----------------------------------------------------------------------------------------------------------
# `replicator token`: the tokens of the service's API.


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the service's API.

    \b
    Example:
      replicator token create me --role operator
    """


@token.command()
@options_of(token_create)
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
    """List tokens: names, roles and expiry times, not the tokens themselves.

    \b
    Example:
      replicator token ls
    """
    found = session.call(token_ls)
    emit(found, as_json, [f"{each.name}  {each.role}  until {each.expires}" for each in found.tokens])
    return 0


@token.command()
@options_of(token_revoke)
@json_option
@pass_session
def revoke(session: Session, /, as_json: bool, **given: Any) -> int:
    """Revoke a token: requests with it are refused from now on.

    \b
    Example:
      replicator token revoke airflow
    """
    ended = session.call(token_revoke, **given)
    emit(ended, as_json, [f"revoked {ended.name}"])
    return 0


# ---- metrics ---------------------------------------------------------------------------------------------------------
# `replicator metrics`: what the service's `/metrics` shows, for jobs without it.


PARTIAL = 3


@click.command()
@options_of(run_metrics)
@json_option
@pass_session
def metrics(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show metrics in Prometheus' format: of all policies, measured now, and of the runs that the service recorded.

    With --textfile, node_exporter's textfile collector shows the metrics of policies that cron or Airflow run. Needs
    the extra `server`. Exit code 3 if a policy cannot be measured; its status is then `unknown`.

    \b
    Example:
      replicator metrics
      replicator metrics --textfile /var/lib/node_exporter/textfile/replicator.prom
    """
    found = session.call(run_metrics, **given)
    lines = [f"wrote {found.textfile}"] if found.textfile else found.text.rstrip("\n").splitlines()
    emit(found, as_json, lines)
    for name, why in found.unknown.items():
        note(f"warning: {name} cannot be measured: {why}")
    return PARTIAL if found.unknown else 0
