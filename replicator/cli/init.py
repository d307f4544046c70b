"""`replicator init`: a first configuration, asked for where it is not given."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.check import FOUND
from replicator.cli.check import lines as check_lines
from replicator.cli.options import Session, catalog_option, json_option, pass_session, target_catalog_option
from replicator.cli.output import emit
from replicator.cli.renamed import renamed_option
from replicator.commands.init import Initialized
from replicator.commands.init import init as run
from replicator.errors import UsageError


@click.command()
@click.option("--source", metavar="URI", help="The source's metastore: thrift://host:port. Asked for when missing.")
@catalog_option
@click.option("--target", metavar="URI", help="The target's metastore. Asked for when missing.")
@target_catalog_option
@click.option("--policy", default="main", show_default=True, metavar="NAME", help="The policy's name.")
@click.option(
    "--databases",
    multiple=True,
    default=[".*"],
    show_default=True,
    metavar="REGEX",
    help="Databases of the source whose whole name matches; repeatable.",
)
@click.option("--cmroot", metavar="PLACE", help="The source's $cmroot. Default: .cmroot in its warehouse.")
@click.option("--target-cmroot", metavar="PLACE", help="The target's $cmroot. Default: .cmroot in its warehouse.")
@click.option("--dumps", metavar="PLACE", help="The directory of dumps. Default: .dumps in the target's warehouse.")
@click.option("--file", default="replicator.toml", show_default=True, metavar="FILE", help="The file to write.")
@renamed_option("--overwrite", old="--force", is_flag=True, help="Replace the file.")
@click.option("--no-check", is_flag=True, help="Do not check the policy afterwards.")
@json_option
@pass_session
def init(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write a first replicator.toml with two metastores and a policy between them, then check the policy.

    Both metastores must answer; nothing is written before. Exits as `replicator check` does.

    \b
    Example:
      replicator init
      replicator init --source thrift://a:9083 --target thrift://b:9083 --databases sales
    """
    for side in ("source", "target"):
        given[side] = given[side] or _asked(side)
    done = session.call(run, **given)
    emit(done, as_json, _lines(done))
    checked = done.check
    return FOUND if checked and (checked.status not in ("ok", "warning") or checked.not_replicated) else 0


def _asked(side: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(f"no --{side}", hint="give it, or run this in a terminal, which asks for it")
    text: str = click.prompt(f"The {side}'s metastore, thrift://host:port", err=True)
    return text


def _lines(done: Initialized) -> Iterable[str]:
    yield f"{done.status}  {done.file}"
    if done.check is not None:
        yield from check_lines(done.check)
    yield f"next: replicator plan {done.policy}; replicator sync {done.policy}"
