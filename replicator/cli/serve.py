"""`replicator serve`: the service in the foreground."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from replicator.cli.logs import raise_level
from replicator.cli.options import Session, pass_session
from replicator.cli.output import note
from replicator.cli.signals import Stopping
from replicator.service.service_process import serve as run

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
    raise_level("replicator.service")
    with Stopping(timedelta(days=1)) as stop:
        session.call(run, ready=lambda url: note(f"listening on {url}"), stop=stop, **given)
    return 0
