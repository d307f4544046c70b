"""`replicator gateway`: a metastore in front of the metastore, where no drop deletes what `$cmroot` does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from replicator.cli.options import METASTORE, Duration, Session, json_option, pass_session
from replicator.cli.output import count_text, emit, note, size_text
from replicator.commands.gateway import gateway as run


@click.command()
@click.option("--source", required=True, metavar="METASTORE", help=f"The source: {METASTORE}")
@click.option("--cmroot", required=True, metavar="PLACE", help="The source's change-management root.")
@click.option(
    "--listen",
    default="127.0.0.1:9084",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients; port 0 selects a free one, 0.0.0.0 all interfaces.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of concurrent clients; others wait.",
)
@click.option("--pass-unknown-drops", is_flag=True, help="Forward calls that this release does not know, unprotected.")
@click.option(
    "--grace",
    type=Duration(),
    default="10s",
    show_default=True,
    help="Time for which a drop may continue in the metastore after its connection died.",
)
@click.option(
    "--client-timeout",
    type=Duration(),
    default="1m",
    show_default=True,
    help="Time limit for a client to send a call once begun, or to read a piece of an answer.",
)
@click.option(
    "--answer-timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    help="Time limit for the metastore to begin an answer.",
)
@click.option(
    "--stop-timeout",
    type=Duration(),
    default="20s",
    show_default=True,
    help="Time limit for current calls when the gateway is stopped.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to which the gateway writes its URI once clients can connect.",
)
@json_option
@pass_session
def gateway(session: Session, /, as_json: bool, **given: Any) -> int:
    """Serve the source's metastore to any client, and store the files that a drop would delete in $cmroot first.

    Speaks the binary thrift protocol; TLS and Kerberos by [gateway] in replicator.toml. Without Kerberos or client
    certificates, every client that can reach the port gets in. Protects the server's default catalog; drops in other
    catalogs (Hive 3 and newer) are refused. Ends with SIGTERM or SIGINT, after current calls.

    \b
    Example:
      replicator gateway --source thrift://a:9083 --cmroot /warehouse/.cmroot --listen 10.0.0.5:9084
      spark-sql --conf spark.hadoop.hive.metastore.uris=thrift://gateway:9084
    """
    upstream = session.config.metastore_uri(given["source"])
    report = session.call(run, ready=lambda uri: note(f"listening on {uri} for {upstream}"), **given)
    lines = [
        f"stopped after {count_text(report.calls, 'call')} of {count_text(report.connections, 'client')}: "
        f"{report.intercepted:,} intercepted, {report.refused:,} refused, "
        f"{count_text(report.files, 'file')} taken, {size_text(report.bytes)}"
        + (f"; {count_text(report.cut_off, 'call')} cut off" if report.cut_off else "")
    ]
    emit(report, as_json, lines)
    return report.exit_code
