"""`replicator metrics`: what the service's `/metrics` shows, for jobs without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from replicator.cli.options import Session, json_option, pass_session
from replicator.cli.output import emit, note
from replicator.service.metrics_verb import metrics as run

PARTIAL = 3


@click.command()
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write them there in one step, instead of printing them.",
)
@json_option
@pass_session
def metrics(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show metrics in Prometheus' format: of all policies, measured now, and what the service remembers of runs.

    With --textfile, node_exporter's textfile collector shows what policies do that cron or Airflow run. Needs the extra
    `server`. Exit code 3 when a policy cannot be measured; its status is then `unknown`.

    \b
    Example:
      replicator metrics
      replicator metrics --textfile /var/lib/node_exporter/textfile/replicator.prom
    """
    found = session.call(run, **given)
    lines = [f"wrote {found.textfile}"] if found.textfile else found.text.rstrip("\n").splitlines()
    emit(found, as_json, lines)
    for name, why in found.unknown.items():
        note(f"warning: {name} cannot be measured: {why}")
    return PARTIAL if found.unknown else 0
