"""`replicator status`: how far a target is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from replicator.cli.lag import tell_lag
from replicator.cli.options import METASTORE, Session, json_option, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text, time_text
from replicator.errors import UsageError

if TYPE_CHECKING:
    from replicator.policies.status import Status


@click.command()
@click.argument("policy", metavar="[POLICY]", required=False)
@click.option("--target", metavar="METASTORE", help=f"The target: {METASTORE}")
@click.option("--db", metavar="NAME", help="The database, by its name on the target.")
@click.option("--source", metavar="METASTORE", help=f"Tell the lag, too. The source: {METASTORE}")
@click.option("--cmroot", metavar="PLACE", help="The source's root: adds the time of the target's state, and the lag "
              "in bytes.")  # fmt: skip
@click.option("--source-db", metavar="NAME", help="The database's name at the source, if renamed.")
@json_option
@pass_session
def status(
    session: Session, policy: str | None, target: str | None, db: str | None, source: str | None, cmroot: str | None,
    source_db: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Show a replicated database's position: event id, position, time; with --source its lag. For a policy, the same as
    lag.

    \b
    Example:
      replicator status west
      replicator status --target thrift://b:9083 --db sales --source thrift://a:9083 --cmroot /warehouse/.cmroot
    """
    from cmroot.root import open_existing
    from replicator.policies.status import status as ask

    if policy is not None:
        return tell_lag(session, policy, as_json)
    if target is None or db is None:
        raise UsageError("status needs a policy, or --target and --db", hint="see `replicator status --help`")
    with ExitStack() as stack:
        report = ask(
            stack.enter_context(session.metastore(target)), db.lower(),
            source=stack.enter_context(session.metastore(source)) if source else None,
            root=open_existing(cmroot) if cmroot else None, source_db=source_db.lower() if source_db else None,
        )  # fmt: skip
    emit({**asdict(report), "time": time_text(report.time)}, as_json, _lines(report))
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
