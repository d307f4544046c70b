"""`replicator diagnose`: one file for a support case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_option, pass_session
from replicator.cli.output import aligned, emit, shortened, size_text
from replicator.commands.diagnose import diagnose as run
from replicator.commands.diagnosis.collect import Diagnosed

MISSING = 3  # written, but something could not be had


@click.command()
@click.argument("policies", metavar="[POLICY]...", nargs=-1)
@click.option(
    "--out", metavar="FILE", help="File to write. Default: replicator-diagnosis-TIME.tar.gz in the working directory."
)
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@json_option
@pass_session
def diagnose(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write a tar.gz for a support case: versions, machine, configuration with the source of each value, findings, lag
    and last runs of POLICY (default: every one), leases and a summary of each $cmroot, the service's last runs.

    Secrets are masked, names are not: read it before you send it. Checks policies as `replicator check` does; changes
    nothing else; starts no Spark. A configuration that cannot be read is diagnosed, too. Exits with 3 if something
    could not be had: the file names it.

    \b
    Example:
      replicator diagnose
      replicator diagnose west --out /tmp/case-17.tar.gz
    """
    report = session.call(run, **given)
    emit(report, as_json, _lines(report))
    return MISSING if report.missing else 0


def _lines(report: Diagnosed) -> Iterable[str]:
    return aligned(
        [
            (report.status, f"{report.out}, {size_text(report.bytes)}"),
            *((f"policy {name}", health) for name, health in report.policies.items()),
            ("missing", shortened(f"{each.part}: {each.error}" for each in report.missing)),
        ]
    )
