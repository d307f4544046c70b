"""Roles: the side of a replication that a database is on, and the operations that are allowed on it. Pure.

A role is two properties of a database in its own metastore, `replicator.role` and `replicator.epoch`; a third,
`replicator.role.by`, records who set them. The epoch grows at each change of roles, so of two sides that contradict
each other, the one with the highest epoch is right. Exactly one side is `primary`. `replicator.policies.roles` reads
and sets roles in a metastore; for the reasons see docs/decisions/0006.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from replicator.core.model import Database
from replicator.errors import FormatError, Refused

ROLE = "replicator.role"
EPOCH = "replicator.epoch"
BY = "replicator.role.by"
PROPERTIES = (ROLE, EPOCH, BY)


class Role(StrEnum):
    """A database's role. `primary`: accepts writes, is dumped, never loaded into. `replica`: is loaded into, not
    dumped. `fenced`: neither; changing from one to the other, or a replaced primary. `none`: no rule of roles
    applies."""

    PRIMARY = "primary"
    REPLICA = "replica"
    FENCED = "fenced"
    NONE = "none"


@dataclass(frozen=True)
class RoleMark:
    """A database's role and epoch (0: it never had one). `by`: who set them and when; ignored by comparisons."""

    role: Role = Role.NONE
    epoch: int = 0
    by: str = field(default="", compare=False)

    def parameters(self) -> dict[str, str]:
        """Returns the mark as properties of a database. A database without a role retains its former epoch."""
        role = {} if self.role is Role.NONE else {ROLE: self.role.value}
        epoch = {EPOCH: str(self.epoch)} if self.epoch else {}
        return role | epoch | ({BY: self.by} if self.by else {})

    def __str__(self) -> str:
        return f"{self.role} at epoch {self.epoch}"


def mark_of(parameters: Mapping[str, str], name: str, *, repair: bool = False) -> RoleMark:
    """Parses the role from a database's properties. Raises FormatError, naming the database, for an invalid role or
    epoch: a role that cannot be read must not be treated as no role, unless it is to be repaired."""
    role, epoch = parameters.get(ROLE, Role.NONE.value), parameters.get(EPOCH, "0")
    counts = epoch.isascii() and epoch.isdigit()
    if role not in set(Role) or not counts:
        if repair:
            return RoleMark(Role.NONE, int(epoch) if counts else 0)
        raise FormatError(
            f"{name}: {ROLE}={role}, {EPOCH}={epoch} is not a role that this release knows",
            hint="set it again with `replicator role set --force`, or use the release that wrote it",
        )
    return RoleMark(Role(role), int(epoch), parameters.get(BY, ""))


def marked(parameters: Mapping[str, str], mark: RoleMark) -> dict[str, str]:
    """Returns a database's properties with this role in place of any former one."""
    return without_role(parameters) | mark.parameters()


def without_role(parameters: Mapping[str, str]) -> dict[str, str]:
    """Returns a database's properties without its role, for comparisons over time."""
    return {key: value for key, value in parameters.items() if key not in PROPERTIES}


# ---- permitted operations -----------------------------------------------------------------------------------------


def may_dump_from(
    name: str, source: RoleMark, *, known_epoch: int = 0, allow_replica: bool = False, draining: bool = False
) -> None:
    """Raises Refused for a source that must not be replicated from. `name`: of the database, for messages.

    known_epoch: the highest epoch that the target knows (0: none). allow_replica: the replica itself is to be
    replicated. draining: the process that fenced the source fetches its last changes."""
    if source.role is Role.REPLICA and not allow_replica:
        raise Refused(
            f"{name} is a replica (epoch {source.epoch}): its data is a copy, and may be behind",
            hint="dump from the primary; to replicate from a replica, use --allow-replica",
            details={"role": source.role.value, "epoch": source.epoch},
        )
    if source.role is Role.FENCED and not draining:
        raise Refused(
            f"{name} is fenced (epoch {source.epoch}): it handed over the primary role, or was replaced",
            hint="dump from the primary (`replicator role show` on both sides); run an interrupted switchover again, "
            "or bring the old primary back with failback",
            details={"role": source.role.value, "epoch": source.epoch},
        )
    if source.epoch < known_epoch:
        raise Refused(
            f"{name} is at epoch {source.epoch}, the target knows epoch {known_epoch}: another side has become "
            "the primary",
            hint="the side with the highest epoch is valid: replicate from there. If this database was only created "
            f"again, `replicator role set --role primary --epoch {known_epoch + 1}` makes it valid",
            details={"role": source.role.value, "epoch": source.epoch, "known_epoch": known_epoch},
        )


def follows(name: str, mark: RoleMark, job: str = "") -> str:
    """Returns why no job may remove or rewrite data of a database here: a replica would get removed data back, or
    diverge from its source. Empty if it is neither a replica nor fenced. `job`: what to do at the primary instead."""
    if mark.role not in (Role.REPLICA, Role.FENCED):
        return ""
    return f"{name} is {mark}: {job or 'run this'} at its primary, whose changes are replicated"


def may_load_into(name: str, target: RoleMark, *, source_epoch: int | None = None) -> None:
    """Raises Refused for a target that must not be loaded into. `source_epoch`: the epoch of the source; None if it is
    unknown (a dump that did not query the source's role), then it is not compared."""
    details: dict[str, object] = {"role": target.role.value, "epoch": target.epoch}
    if target.role is Role.PRIMARY:
        raise Refused(
            f"{name} is the primary (epoch {target.epoch}): a load would overwrite changes there",
            hint="load into the replica; to make this side the replica again, use switchover or failback",
            details=details,
        )
    if target.role is Role.FENCED:
        raise Refused(
            f"{name} is fenced (epoch {target.epoch}): it may have changes that were not replicated",
            hint="failback keeps those changes and makes it a replica; run an interrupted switchover again",
            details=details,
        )
    if source_epoch is not None and source_epoch < target.epoch:
        raise Refused(
            f"{name} knows epoch {target.epoch}, the dump is of epoch {source_epoch}: another side has become "
            "the primary",
            hint="the side with the highest epoch is valid: dump from there",
            details=details | {"source_epoch": source_epoch},
        )


def after_load(target: RoleMark, source_epoch: int | None) -> RoleMark:
    """Returns the role of a database after a load. Roles propagate: the target of a load from a source with an epoch
    becomes its replica. A source without an epoch, or with an unknown one, does not change the target's role."""
    if not source_epoch:
        return target
    if target.role is Role.REPLICA and target.epoch >= source_epoch:
        return target
    return RoleMark(Role.REPLICA, max(source_epoch, target.epoch), "load")


def after_restore(target: RoleMark, name: str) -> RoleMark:
    """Returns the role of a database after a restore: a primary remains primary, a replica loses its role, and the
    epoch is always retained. Raises Refused for a fenced one."""
    if target.role is Role.FENCED:
        raise Refused(
            f"{name} is fenced (epoch {target.epoch}): writes there are not allowed",
            hint="restore into another database with --into",
        )
    return target if target.role is Role.PRIMARY else RoleMark(Role.NONE, target.epoch)


# ---- consequences of a role change --------------------------------------------------------------------------------


def consequence(before: Role, after: Role) -> str:
    """Returns the warning for an operator who changes a role by hand; empty if the change itself can do no harm."""
    if before is after:
        return ""
    match after:
        case Role.PRIMARY if before is not Role.NONE:
            return (
                "if another side is also primary, both accept writes and neither is replicated: changes will be lost. "
                "switchover and failover check this, this command does not"
            )
        case Role.REPLICA if before in (Role.PRIMARY, Role.FENCED):
            return (
                "the next load overwrites changes written here that were not replicated, without listing them. "
                "failback keeps and lists them"
            )
        case Role.NONE:
            return "no rule protects it any more: it can be dumped like a primary, and loaded into"
    return ""


# ---- shadow ----------------------------------------------------------------------------------------------------------
# Shadows: databases created by a drill, whose tables show the files of a replica. Pure.
#
# They own no data. Captures, replication and removal of all objects of a metastore must skip them: the locations of
# their tables belong to another database.


DRILL = "replicator.drill"  # property of databases and tables: the drill's id
OF_POLICY = "replicator.drill.policy"  # property of a database: the policy of the drill


def is_shadow(database: Database | None) -> bool:
    return database is not None and DRILL in database.parameters
