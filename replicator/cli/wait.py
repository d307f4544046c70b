"""`replicator wait`: until a target has come far enough."""

from __future__ import annotations

from typing import Any

import click

from replicator.cli.options import (
    METASTORE,
    Duration,
    Session,
    catalog_option,
    json_option,
    of_policy_argument,
    pass_session,
    target_catalog_option,
    target_option,
)
from replicator.cli.output import aligned, count_text, emit, took
from replicator.commands.wait import wait as run


@click.command()
@of_policy_argument
@target_option
@target_catalog_option
@catalog_option
@click.option("--db", metavar="NAME", help="The database, by its name on the target; default: all of the policy.")
@click.option("--source", metavar="METASTORE", help=f"For --until-lag. The source: {METASTORE}")
@click.option(
    "--until-event", type=click.IntRange(0), metavar="N", help="Wait until the target has this event of the source."
)
@click.option(
    "--until-lag",
    type=Duration(),
    metavar="DURATION",
    help="Wait until the oldest event that the target lacks is at most this old.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Time-out, with exit code 75; 0s checks once.",
)
@json_option
@pass_session
def wait(session: Session, /, as_json: bool, **given: Any) -> int:
    """Wait until a replicated database has an event, or a small enough lag. For scripts.

    If a metastore does not answer, it is asked again until the time-out.

    \b
    Example:
      replicator wait west --until-lag 30s
      replicator wait --target thrift://b:9083 --db sales --until-event 4711
      replicator wait --target dr --db sales --source prod --until-lag 30s --timeout 5m
    """
    waited = session.call(run, **given)
    lag = None
    if waited.lag_seconds is not None and waited.lag_events is not None:
        lag = f"{count_text(waited.lag_events, 'event')}, {waited.lag_seconds:.0f} s"
    lines = [(waited.db, waited.status), ("event", waited.event), ("lag", lag), ("took", took(waited.seconds))]
    emit(waited, as_json, aligned(lines))
    return 0
