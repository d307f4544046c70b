"""`replicator gateway`: a metastore in front of the metastore, where no drop deletes what `$cmroot` does not have."""

from __future__ import annotations

from typing import Any

import click

from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import count_text, emit, note, size_text
from replicator.commands.gateway import gateway as run


@click.command()
@options_of(run)
@json_option
@pass_session
def gateway(session: Session, /, as_json: bool, **given: Any) -> int:
    """Serve the source's metastore to any client, and store the files that a drop would delete in $cmroot first.

    Speaks the binary thrift protocol; TLS and Kerberos by [gateway] in replicator.toml. Without Kerberos or client
    certificates, every client that can reach the port has access. Protects the server's default catalog; drops in other
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
        f"{count_text(report.files, 'file')} moved, {size_text(report.bytes)}"
        + (f"; {count_text(report.cut_off, 'call')} cut off" if report.cut_off else "")
    ]
    emit(report, as_json, lines)
    return report.exit_code
