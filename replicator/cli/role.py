"""`replicator role`: show and set by hand which side of a replication a database is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from replicator.cli.options import METASTORE, F, Session, dry_run_option, json_option, own_catalog_option, pass_session
from replicator.cli.output import aligned, emit
from replicator.commands.role import role_set, role_show
from replicator.core.roles import Role
from replicator.policies.roles import DatabaseRole


def metastore_option(verb: str) -> Callable[[F], F]:
    return click.option(
        "--metastore",
        envvar=f"REPLICATOR_ROLE_{verb}_PLACE",
        required=True,
        metavar="METASTORE",
        help=f"The database's metastore: {METASTORE}",
    )


@click.group()
def role() -> None:
    """Show or set the role of a database: primary, replica, fenced, or none.

    \b
    Example: replicator role show --metastore thrift://b:9083 --db sales
    """


@role.command()
@metastore_option("SHOW")
@own_catalog_option
@click.option("--db", multiple=True, metavar="NAME", help="A database; repeatable. Default: all with a role.")
@json_option
@pass_session
def show(session: Session, /, as_json: bool, **given: Any) -> None:
    """Show roles, their epochs, and who set them. If two sides contradict each other, the higher epoch is valid.

    \b
    Example:
      replicator role show --metastore thrift://a:9083 --db sales
      replicator role show --metastore dr --json
    """
    report = session.call(role_show, **given)
    emit(report, as_json, _shown_lines(report.databases))


@role.command(name="set")
@metastore_option("SET")
@own_catalog_option
@click.option("--db", required=True, metavar="NAME", help="The database.")
@click.option(
    "--role",
    envvar="REPLICATOR_ROLE_SET_WANTED",
    required=True,
    type=click.Choice([each.value for each in Role]),
    help="Its new role.",
)
@click.option(
    "--epoch",
    type=click.IntRange(0),
    help="The epoch; default: the next one for primary and fenced, else the present one.",
)
@click.option(
    "--force", is_flag=True, help="Allow a change that can lose data, to a lower epoch, or of an unreadable role."
)
@dry_run_option
@json_option
@pass_session
def set_(session: Session, /, as_json: bool, **given: Any) -> None:
    """Set a database's role manually, for repairs.

    For ordinary role changes use switchover, failover and failback: they have the right order. Loads refuse a primary
    and a fenced database, dumps a replica and a fenced one. A role stops replication, not writers. A change that can
    lose data is refused without --force, and its consequence is shown.

    \b
    Example:
      replicator role set --metastore thrift://a:9083 --db sales --role fenced
      replicator role set --metastore thrift://b:9083 --db sales --role primary --epoch 4 --force
    """
    done = session.call(role_set, **given)
    lines = [(done.status, f"{done.db}: {done.before} -> {done.after}"), ("means", done.consequence or None)]
    emit(done, as_json, aligned(lines))


def _shown_lines(rows: list[DatabaseRole]) -> Iterable[str]:
    if not rows:
        return ["no database has a role"]
    return aligned(
        (each.db, f"{each.role} at epoch {each.epoch}" + (f", set by {each.by}" if each.by else "")) for each in rows
    )
