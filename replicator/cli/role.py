"""`replicator role`: show and set by hand which side of a replication a database is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import METASTORE, Session, dry_run_option, json_option, pass_session
from replicator.cli.output import aligned, emit
from replicator.core.roles import Role

if TYPE_CHECKING:
    from replicator.core.roles import RoleMark

metastore_option = click.option(
    "--metastore", "place", required=True, metavar="METASTORE", help=f"Whose database it is: {METASTORE}"
)


@click.group()
def role() -> None:
    """Say which side of a replication a database is: primary, replica, fenced, or none.

    \b
    Example: replicator role show --metastore thrift://b:9083 --db sales
    """


@role.command()
@metastore_option
@click.option("--db", multiple=True, metavar="NAME", help="A database, repeatable; default: all that have a role.")
@json_option
@pass_session
def show(session: Session, place: str, db: tuple[str, ...], as_json: bool) -> None:
    """Show roles and epochs, and who set them. Of two sides that contradict each other, the highest epoch is right.

    \b
    Example:
      replicator role show --metastore thrift://a:9083 --db sales
      replicator role show --metastore dr --json
    """
    from replicator.policies.roles import read_role

    with session.metastore(place) as metastore:
        names = [name.lower() for name in db] or metastore.database_names()
        found = {name: read_role(metastore, name) for name in names}
    rows = [{"db": name, **_fields(mark)} for name, mark in found.items() if db or mark.epoch]
    emit({"status": "shown", "metastore": metastore.uri, "databases": rows}, as_json, _shown_lines(rows))


@role.command(name="set")
@metastore_option
@click.option("--db", required=True, metavar="NAME", help="The database.")
@click.option("--role", "wanted", required=True, type=click.Choice([each.value for each in Role]), help="Its new role.")
@click.option(
    "--epoch", type=click.IntRange(0), help="Default: the next one for primary and fenced, else the one it has."
)
@click.option(
    "--force", is_flag=True, help="Also a change that can lose data, to a lower epoch, or of an unreadable role."
)
@dry_run_option
@json_option
@pass_session
def set_(
    session: Session, place: str, db: str, wanted: str, epoch: int | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Set a database's role by hand. switchover, failover and failback do it in the right order; this is for repairs.

    Loads refuse a primary and a fenced database, dumps a replica and a fenced one. A role stops replication; it stops
    nobody from writing. What can lose data is refused without --force, and the consequence told.

    \b
    Example:
      replicator role set --metastore thrift://a:9083 --db sales --role fenced
      replicator role set --metastore thrift://b:9083 --db sales --role primary --epoch 4 --force
    """
    from replicator.errors import Refused
    from replicator.policies.roles import RoleMark, consequence, label, read_role, set_role

    with session.metastore(place) as metastore:
        name = db.lower()
        before = read_role(metastore, name, repair=force)
        after = RoleMark(Role(wanted), _next_epoch(before, Role(wanted)) if epoch is None else epoch)
        means = consequence(before.role, after.role)
        if means and not force and not dry_run:
            raise Refused(
                f"{label(metastore, name)} is {before}; if it becomes {after.role}: {means}",
                hint="use switchover, failover or failback; --force if you know that it is right",
                details={"before": _fields(before), "after": _fields(after), "consequence": means},
            )
        if not dry_run and (before != after or force):
            after = set_role(metastore, name, after.role, after.epoch, expect=before, force=force)
    status = "planned" if dry_run else "unchanged" if before == after and not force else "set"
    answer: dict[str, Any] = {
        "status": status, "metastore": metastore.uri, "db": name, "before": _fields(before), "after": _fields(after),
        "consequence": means,
    }  # fmt: skip
    lines = [(status, f"{name}: {before} -> {after}"), ("means", means or None)]
    emit(answer, as_json, aligned(lines))


def _next_epoch(before: RoleMark, wanted: Role) -> int:
    if wanted is before.role:
        return before.epoch
    return before.epoch + 1 if wanted in (Role.PRIMARY, Role.FENCED) else max(before.epoch, wanted is Role.REPLICA)


def _fields(mark: RoleMark) -> dict[str, Any]:
    return {"role": mark.role.value, "epoch": mark.epoch, "by": mark.by}


def _shown_lines(rows: list[dict[str, Any]]) -> Iterable[str]:
    if not rows:
        return ["no database has a role"]
    return aligned(
        (each["db"], f"{each['role']} at epoch {each['epoch']}" + (f", set by {each['by']}" if each["by"] else ""))
        for each in rows
    )
