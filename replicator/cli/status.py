"""`replicator status`: how far a target is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.lag import tell_lag
from replicator.cli.options import METASTORE, Session, catalog_option, json_option, pass_session, target_catalog_option
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, time_text
from replicator.commands.status import status as run
from replicator.policies.lag import Lag
from replicator.policies.status import Status


@click.command()
@click.argument("policy", metavar="[POLICY]", required=False)
@click.option("--target", metavar="METASTORE", help=f"The target: {METASTORE}")
@target_catalog_option
@click.option("--db", metavar="NAME", help="The database, by its name on the target.")
@click.option("--source", metavar="METASTORE", help=f"Also show the lag. The source: {METASTORE}")
@catalog_option
@click.option(
    "--cmroot", metavar="PLACE", help="The source's root: adds the time of the target's state, and the lag in bytes."
)
@click.option("--source-db", metavar="NAME", help="The database's name at the source, if renamed.")
@json_option
@pass_session
def status(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show a replicated database's position: event id, position, time; with --source its lag. For a policy, the same as
    lag.

    \b
    Example:
      replicator status west
      replicator status --target thrift://b:9083 --db sales --source thrift://a:9083 --cmroot /warehouse/.cmroot
    """
    report = session.call(run, **given)
    if isinstance(report, Lag):
        return tell_lag(report, as_json)
    emit(report, as_json, _lines(report))
    return 0


def _lines(report: Status) -> Iterable[str]:
    lag = []
    if report.lag_events is not None:
        lag.append(f"{count_text(report.lag_events, 'event')}")
    if report.lag_seconds is not None:
        lag.append(f"{report.lag_seconds:.0f} s")
    if report.lag_bytes is not None:
        lag.append(size_text(report.lag_bytes))
    return aligned(
        [
            (report.db, report.status),
            ("event", report.event),
            ("position", report.position),
            ("time", time_text(report.time)),
            ("source", report.source),
            ("loading", report.loading),
            ("lag", ", ".join(lag) or None),
            ("warning", shortened(report.warnings)),
        ]
    )
