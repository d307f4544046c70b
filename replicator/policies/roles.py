"""Roles of databases in their metastores: read, compared and set, established for a new pair. Acts.

`replicator.core.roles`, whose names are re-exported here, decides what a role means and allows.

A metastore has no compare-and-set for the properties of a database. `set_role` reads, compares, writes, waits `settle`,
and reads again: of several concurrent writers, all but the last find another's name and fail. What is *not* guaranteed:

- If more time than the other writer's `settle` passes between one writer's read and its write, both may believe that
  they have won; the property then has the later value, and later readers see only that. Role changes hold the policy's
  lease as well, which makes them mutually exclusive.
- A concurrent change of other properties of the database (`ALTER DATABASE ... SET DBPROPERTIES`, a load's checkpoint)
  may write back the role that it read before. A load reads again before it writes, which leaves milliseconds; within
  `settle`, `set_role` notices.
- A role stops replication, not writers: the metastore does not prevent writes into a fenced database.
"""

from __future__ import annotations

import getpass
import os
import socket
import time as clocks
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

import msgspec

from replicator.core.not_replicated import Report, Rows
from replicator.core.roles import Role, RoleMark, consequence, mark_of, marked, may_dump_from, may_load_into
from replicator.errors import FormatError, ObjectNotFound, Refused
from replicator.metastore.client import Metastore, MetastoreReader, epochs_to_dump, label, read_role, role_if_any

__all__ = [
    "SETTLE",
    "Role",
    "RoleMark",
    "change_role",
    "consequence",
    "epochs_to_dump",
    "establish",
    "label",
    "mark_of",
    "may_dump_from",
    "may_load_into",
    "read_role",
    "set_role",
    "shown_roles",
]

SETTLE = timedelta(seconds=1)
"""How long a role must remain unchanged until its writer relies on it; longer than from a read to a write."""


def set_role(
    metastore: Metastore,
    db: str,
    wanted: RoleMark,
    *,
    expect: RoleMark,
    force: bool = False,
    settle: timedelta = SETTLE,
    pause: Callable[[float], None] = clocks.sleep,
) -> RoleMark:
    """Sets role and epoch if the current ones are `expect`ed; returns the new mark. Other properties are unchanged.

    Raises Refused if the role has changed, if another process sets it concurrently, or if the epoch does not grow: it
    may never decrease, and must increase where the database becomes primary. force: for a manual repair, accepts any
    epoch, and counts a role that cannot be parsed as none. settle: zero if the caller holds a lease that excludes
    others. Before a second call compare: `if read_role(...) != wanted`. See the top of this module for what is not
    guaranteed."""
    name, wanted = label(metastore, db), replace(wanted, by=_signature())
    there = metastore.database(db)
    found = mark_of(there.parameters, name, repair=force)
    if found != expect:
        raise Refused(
            f"{name} is {found}, not {expect}: it was changed concurrently",
            hint="run `replicator role show` on both sides, and decide again",
            details={"role": found.role.value, "epoch": found.epoch, "by": found.by},
        )
    if wanted == found and not force:
        return found
    if not force:
        _refuse_epoch(name, found, wanted)
    metastore.alter_database(db, msgspec.structs.replace(there, parameters=marked(there.parameters, wanted)))
    if settle:
        pause(settle.total_seconds())
    stands = read_role(metastore, db)
    if stands != wanted or stands.by != wanted.by:
        raise Refused(
            f"{name} is {stands}, set by {stands.by or 'another process'} while this run set it to {wanted}",
            hint="two operators act concurrently, and the other's role is in effect; agree who continues, then check "
            "both sides with `replicator role show`",
            details={"role": stands.role.value, "epoch": stands.epoch, "by": stands.by},
        )
    return stands


def establish(
    source: Metastore,
    target: MetastoreReader,
    databases: Sequence[tuple[str, str]],
    *,
    settle: timedelta = SETTLE,
    pause: Callable[[float], None] = clocks.sleep,
) -> dict[str, int]:
    """Establishes roles before a policy's run dumps: each source database without a role becomes the primary. Its
    replica becomes one by the load, from the epoch in the dump. `databases`: (source's name, target's name). Returns
    the source databases' epochs.

    Raises Refused, before anything is changed, if a source may not be dumped or a target may not be loaded into. May
    run twice; databases that the source does not have are skipped."""
    found: list[tuple[str, RoleMark]] = []
    for db, target_db in databases:
        there = role_if_any(target, target_db)
        here = role_if_any(source, db)
        if there is not None:
            may_load_into(label(target, target_db), there)
        if here is not None:
            may_dump_from(label(source, db), here, known_epoch=there.epoch if there else 0)
            found.append((db, here))
    epochs = {}
    for db, here in found:
        if here.role is Role.NONE:
            here = set_role(source, db, RoleMark(Role.PRIMARY, here.epoch + 1), expect=here, settle=settle, pause=pause)
        epochs[db] = here.epoch
    return epochs


@dataclass(frozen=True)
class DatabaseRole:
    """The role and epoch of a database; `by`: who set them."""

    db: str
    role: Role
    epoch: int
    by: str


@dataclass(frozen=True, kw_only=True)
class ShownRoles(Rows):
    """The roles of a metastore's databases. `metastore`: its URI. `unreadable`: databases with an invalid role, and
    why."""

    listed: ClassVar[str] = "databases"
    status: str = "shown"
    metastore: str
    databases: list[DatabaseRole]
    unreadable: dict[str, str] = field(default_factory=dict)


def shown_roles(metastore: MetastoreReader, databases: Sequence[str] = ()) -> ShownRoles:
    """Returns the roles of these databases, or all that had one. Raises ObjectNotFound, FormatError as `read_role` for
    a named database."""
    if not databases:
        return roles_of(metastore, lambda _: True)
    found = [(name, read_role(metastore, name)) for name in databases]
    rows = [DatabaseRole(name, mark.role, mark.epoch, mark.by) for name, mark in found]
    return ShownRoles(metastore=metastore.uri, databases=rows)


def roles_of(metastore: MetastoreReader, wanted: Callable[[str], bool]) -> ShownRoles:
    """Returns the roles of the wanted databases that had one, without databases that are dropped concurrently."""
    found = ShownRoles(metastore=metastore.uri, databases=[])
    for name in filter(wanted, metastore.database_names()):
        try:
            mark = read_role(metastore, name)
        except FormatError as error:
            found.unreadable[name] = error.message
        except ObjectNotFound:
            continue
        else:
            found.databases.extend([DatabaseRole(name, mark.role, mark.epoch, mark.by)] if mark.epoch else [])
    return found


@dataclass(frozen=True)
class RoleSet(Report):
    """A role set manually. `status`: set, unchanged, or planned (a dry run). `consequence`: the effect on data; empty
    if the change by itself is harmless."""

    status: Literal["set", "unchanged", "planned"]
    metastore: str
    db: str
    before: RoleMark
    after: RoleMark
    consequence: str


def change_role(
    metastore: Metastore, db: str, role: Role, epoch: int | None, *, force: bool = False, dry_run: bool = False
) -> RoleSet:
    """Sets a role chosen by an operator; epoch None: the next one for primary and fenced, else the current one. May run
    twice. Raises Refused, without `force`, for a change that can lose data, and as `set_role`."""
    before = read_role(metastore, db, repair=force)
    after = RoleMark(role, _next_epoch(before, role) if epoch is None else epoch)
    means = consequence(before.role, after.role)
    if means and not force and not dry_run:
        raise Refused(
            f"{label(metastore, db)} is {before}; if it becomes {after.role}: {means}",
            hint="use switchover, failover or failback; or --force if you know that it is correct",
            details={"before": _fields(before), "after": _fields(after), "consequence": means},
        )
    if not dry_run and (before != after or force):
        after = set_role(metastore, db, after, expect=before, force=force)
    status: Literal["set", "unchanged", "planned"] = "unchanged" if before == after and not force else "set"
    return RoleSet("planned" if dry_run else status, metastore.uri, db, before, after, means)


def _next_epoch(before: RoleMark, wanted: Role) -> int:
    if wanted is before.role:
        return before.epoch
    return before.epoch + 1 if wanted in (Role.PRIMARY, Role.FENCED) else max(before.epoch, wanted is Role.REPLICA)


def _fields(mark: RoleMark) -> dict[str, Any]:
    return {"role": mark.role.value, "epoch": mark.epoch, "by": mark.by}


def _refuse_epoch(name: str, found: RoleMark, wanted: RoleMark) -> None:
    becomes_primary = wanted.role is Role.PRIMARY and found.role is not Role.PRIMARY
    least = found.epoch + 1 if becomes_primary else found.epoch
    if wanted.epoch < least:
        raise Refused(
            f"{name} is {found}: it cannot become {wanted}, as an epoch only grows",
            hint=f"the epoch must be at least {least}",
        )


def _signature() -> str:
    """Returns the author of a role, with an id unique to this call, by which the call recognises its own write."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{user}@{socket.gethostname()} process {os.getpid()} at {now} {uuid.uuid4().hex[:12]}"
