"""`replicator check`: what can be proved of a policy before its first run, and at any time after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_option, pass_session, policy_argument
from replicator.cli.output import columns, emit, write
from replicator.commands.check import check as run
from replicator.errors import UsageError
from replicator.policies.checks.check import PolicyChecked
from replicator.policies.checks.finding import NAGIOS, nagios_line

FOUND = 3  # finished, but something is wrong, or could not be looked at


@click.command()
@policy_argument
@click.option(
    "--nagios",
    is_flag=True,
    allow_from_autoenv=False,
    help="Print one line with performance data; exit with 0 ok, 1 warning, 2 critical, 3 unknown.",
)
@json_option
@pass_session
def check(session: Session, /, as_json: bool, nagios: bool, **given: Any) -> int:
    """Check POLICY of replicator.toml before its first run, or at any time.

    Checks both metastores, the notification log and its retention, clocks, permissions, disk space, keepers, roles, the
    slot, lag, and the last runs. Writes small hidden files to the directories that runs write, and removes them;
    changes nothing else. Exits with 0 for ok and warnings, with 3 if a finding is critical or unknown, or if objects
    are not replicated.

    \b
    Example:
      replicator check west
      replicator check west --nagios
    """
    if nagios and as_json:
        raise UsageError("--nagios and --json exclude each other", hint="give one of them")
    report = session.call(run, **given)
    if nagios:
        write([nagios_line(report.policy, report.findings)])
        return NAGIOS[report.status]
    emit(report, as_json, lines(report))
    return 0 if report.status in ("ok", "warning") and not report.not_replicated else FOUND


def lines(report: PolicyChecked) -> Iterable[str]:
    rows: list[tuple[str, str, str]] = []
    for finding in report.findings:
        rows.append((finding.health, finding.name, finding.text))
        if finding.hint:
            rows.append(("", "", f"hint: {finding.hint}"))
    yield from columns(("health", "what", "found"), rows)
    yield f"{report.policy}: {report.status}" + ("; reverse direction: the target is the primary" * report.backwards)
