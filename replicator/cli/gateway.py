"""`replicator gateway`: a metastore in front of the metastore, where no drop deletes what `$cmroot` does not have."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import click

from replicator.cli.options import Duration, Session, cmroot_option, json_option, pass_session, source_option
from replicator.cli.output import count_text, emit, note, size_text
from replicator.cli.signals import INTERRUPTED, TERMINATED, Terminated


@click.command()
@source_option
@cmroot_option
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one.")
@click.option("--threads", type=click.IntRange(1), default=1000, show_default=True,
              help="Clients served at once; more of them wait.")  # fmt: skip
@click.option("--pass-unknown-drops", is_flag=True,
              help="Let calls through that are named like a drop and that this release does not know.")  # fmt: skip
@click.option("--grace", type=Duration(), default="10s", show_default=True,
              help="How long a drop whose connection died may still be at work in the metastore.")  # fmt: skip
@click.option("--ready-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the URI there once clients can connect.")  # fmt: skip
@json_option
@pass_session
def gateway(
    session: Session, source: str, cmroot: str, listen: str, threads: int, pass_unknown_drops: bool, grace: timedelta,
    ready_file: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Serve the source's metastore to any client, and take what a drop would delete into $cmroot first.

    Speaks the binary thrift protocol without Kerberos or TLS. Ends with SIGTERM or SIGINT, when calls under way are
    done.

    \b
    Example:
      replicator gateway --source thrift://a:9083 --cmroot /warehouse/.cmroot --listen 0.0.0.0:9084
      spark-sql --conf spark.hadoop.hive.metastore.uris=thrift://gateway:9084
    """
    from cmroot.place import store_for
    from cmroot.root import create_or_open
    from replicator.gateway.server import opened

    logging.getLogger("replicator.gateway").setLevel(logging.INFO if session.verbose else logging.WARNING)
    if not logging.getLogger().handlers:  # what is refused is worth a line without --verbose, too
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    root = create_or_open(cmroot)
    code = 0
    with (
        session.metastore(source) as upstream,
        opened(upstream, root, listen, threads=threads, pass_unknown=pass_unknown_drops, grace=grace) as served,
    ):
        try:
            note(f"listening on {served.uri} for {upstream.uri}")
            if ready_file is not None:
                store_for(str(ready_file)).write_bytes(str(ready_file), served.uri.encode() + b"\n")
            served.wait()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Terminated:
            code = TERMINATED
        report = served.stop()
    lines = [
        f"stopped after {count_text(report.calls, 'call')} of {count_text(report.connections, 'client')}: "
        f"{report.intercepted:,} intercepted, {report.refused:,} refused, "
        f"{count_text(report.files, 'file')} taken, {size_text(report.bytes)}"
    ]
    emit({**asdict(report), "exit_code": code}, as_json, lines)
    return code
