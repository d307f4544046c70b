"""`role show` and `role set`: which side of a replication a database is, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from replicator.commands.base import Options, Where, names, verb
from replicator.commands.ranges import Natural
from replicator.core.roles import Role
from replicator.policies.roles import RoleSet, ShownRoles, change_role, shown_roles


@dataclass(frozen=True, kw_only=True)
class RoleShowOptions(Options):
    """Arguments:

    metastore: whose databases they are: a thrift URI, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    db: a database, or several; none: all that have had a role.
    """

    metastore: Where
    catalog: str | None = None
    db: str | Sequence[str] = ()


@verb(RoleShowOptions)
def role_show(options: RoleShowOptions) -> ShownRoles:
    """Shows roles and epochs, and who set them. Of two sides that contradict each other, the highest epoch is right.
    Reads only.

        replicator.role_show(metastore="dr", db="sales")

    Raises ObjectNotFound for a database that is not there, FormatError for a role that cannot be understood."""
    with options.connected(options.metastore) as metastore:
        return shown_roles(metastore, names(options.db))


@dataclass(frozen=True, kw_only=True)
class RoleSetOptions(Options):
    """Arguments:

    metastore: whose database it is: a thrift URI, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    db: the database.
    role: its new role: primary, replica, fenced or none.
    epoch: None: the next one for primary and fenced, else the one it has.
    force: also a change that can lose data, to a lower epoch, or of an unreadable role.
    dry_run: only tell what the change would mean.
    """

    metastore: Where
    catalog: str | None = None
    db: str
    role: Role | Literal["primary", "replica", "fenced", "none"]
    epoch: Natural | None = None
    force: bool = False
    dry_run: bool = False


@verb(RoleSetOptions)
def role_set(options: RoleSetOptions) -> RoleSet:
    """Sets a database's role by hand, for repairs; switchover, failover and failback do it in the right order. May run
    again: the same role stays.

        replicator.role_set(metastore="thrift://a:9083", db="sales", role="fenced")

    Raises Refused, with the consequence, for what can lose data, and where somebody else sets it at the same time;
    ObjectNotFound; UsageError for another role."""
    with options.connected(options.metastore) as metastore:
        return change_role(
            metastore,
            options.db.lower(),
            Role(options.role),
            options.epoch,
            force=options.force,
            dry_run=options.dry_run,
        )
