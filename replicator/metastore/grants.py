"""Grants of the metastore's own authorization, and its roles: thrift calls, and pure functions that compare grants.

A server returns the grants on all objects of one type, in all databases, in one call; it has none for the objects of a
database. Every read here is such a call, filtered by database. Global grants and the built-in roles are not read: each
metastore has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes

from replicator.core.grouping import batched
from replicator.core.model import ROLE, USER, Grant, Member, PrincipalKind, RoleMembers
from replicator.core.policy import Principal, Principals
from replicator.metastore.client import MetastoreReader
from replicator.metastore.connection import Connections
from replicator.metastore.requests import is_known

Values = tuple[str, ...]
"""The values of a partition; empty for a table or database."""

On = tuple[str, str, Values]
"""An object: database, table ("" for the database itself), and the values of a partition."""

BUILT_IN = frozenset({"admin", "public"})
"""Roles that every metastore has; their members are its own."""

REPLICATION = "replicator"
"""The grantor of memberships that loads add: they revoke only these."""

SQL = "SQL"
GRANTS_PER_CALL = 500
MANAGERS = ("hive.security.authorization.manager", "hive.security.metastore.authorization.manager")
_OWN = "org.apache.hadoop.hive.ql.security.authorization."
_KINDS: dict[str, int] = ttypes.PrincipalType._NAMES_TO_VALUES
_NAMES: dict[int, PrincipalKind] = ttypes.PrincipalType._VALUES_TO_NAMES
_TYPES = ttypes.HiveObjectType
_ONE_TYPE = ((_TYPES.DATABASE, None), (_TYPES.TABLE, None), (_TYPES.COLUMN, None), (_TYPES.PARTITION, None))
_COLUMNS_OF_PARTITIONS = (_TYPES.COLUMN, [""])  # with values, and without a database, those of all partitions


@dataclass
class Granted:
    """The grants of a metastore. `others`: database -> authorizer -> number of grants that another authorizer stores
    there, such as copies of Ranger's policies; these are not in `grants`."""

    grants: dict[On, tuple[Grant, ...]] = field(default_factory=dict)
    others: dict[str, Counter[str]] = field(default_factory=dict)

    def objects(self, db: str) -> Iterator[tuple[str, Values, tuple[Grant, ...]]]:
        """Yields the objects of a database with grants: (table, values of a partition, grants)."""
        yield from ((table, values, some) for (name, table, values), some in self.grants.items() if name == db)

    def roles(self) -> set[str]:
        """Returns the roles that have grants."""
        return {each.principal for some in self.grants.values() for each in some if each.kind == ROLE}


def ordered(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Returns grants, each once, in the order in which values store and compare them."""
    return tuple(sorted(set(grants), key=msgspec.structs.astuple))


# ---- calls -----------------------------------------------------------------------------------------------------------


class GrantCalls:
    """The part of a metastore's client for grants and roles; see `client`."""

    _connections: Connections

    if TYPE_CHECKING:

        @property
        def catalog(self) -> str: ...

        def _read(self, what: str, send: Any) -> Any: ...

        def _change(self, what: str, send: Any) -> None: ...

    @cached_property
    def _keeps_grants(self) -> bool:
        return bool(self._read("kinds of grants", _knows_grants))

    def keeps_grants(self) -> bool:
        return self._keeps_grants

    def grants(self, databases: Collection[str]) -> Granted:
        found, granted = _Found(), Granted()
        for kind, values in (*_ONE_TYPE, _COLUMNS_OF_PARTITIONS):
            rows = self._read("grants", _listed(kind, values))
            while rows:
                self._add(rows.pop(), databases, found, granted)
        return found.finished(granted)

    def all_grants(self, databases: Collection[str]) -> Granted:
        found, granted = _Found(), Granted()
        rows = self._read("grants", _listed(None, None))
        while rows:
            self._add(rows.pop(), databases, found, granted)
        return found.finished(granted)

    def _add(self, row: Any, databases: Collection[str], found: _Found, granted: Granted) -> None:
        on, info = row.hiveObject, row.grantInfo
        if on.dbName not in databases or on.catName not in (None, self.catalog):
            return
        if row.authorizer and row.authorizer != SQL:
            granted.others.setdefault(on.dbName, Counter())[row.authorizer] += 1
            return
        grant = Grant(
            principal=row.principalName or "",
            kind=_NAMES.get(row.principalType, USER),
            privilege=info.privilege or "",
            grantor=info.grantor or "",
            grantor_kind=_NAMES.get(info.grantorType, USER),
            option=bool(info.grantOption),
            column=on.columnName or "",
        )
        found.add((intern(on.dbName), intern(on.objectName or ""), tuple(on.partValues or ())), grant)

    def roles(self, names: Iterable[str]) -> dict[str, RoleMembers]:
        there = set(self._read("role names", lambda client: client.get_role_names()))
        found: dict[str, RoleMembers] = {}
        waiting = [name for name in names if name in there]
        while waiting:
            name = waiting.pop()
            if name in found or name in BUILT_IN:
                continue
            members = [_member(each) for each in self._read(f"members of role {name}", _principals(name))]
            found[name] = RoleMembers(name, tuple(sorted(members, key=msgspec.structs.astuple)))
            waiting += [each.principal for each in members if each.kind == ROLE and each.principal in there]
        return found

    def added_members(self, role: str) -> frozenset[Member]:
        rows = self._read(f"members of role {role}", _principals(role))
        return frozenset(_member(each) for each in rows if each.grantorName == REPLICATION)

    def create_role(self, name: str) -> None:
        made = ttypes.Role(roleName=name, createTime=0, ownerName=REPLICATION)
        self._change(f"create role {name}", lambda client: client.create_role(made))

    def grant_role(self, role: str, member: Member) -> None:
        self._change(f"grant role {role} to {member}", _of_role(ttypes.GrantRevokeType.GRANT, role, member))

    def revoke_role(self, role: str, member: Member) -> None:
        self._change(f"revoke role {role} from {member}", _of_role(ttypes.GrantRevokeType.REVOKE, role, member))

    def grant_privileges(self, some: Sequence[tuple[On, Grant]]) -> None:
        self._in_bags("grant", some)

    def revoke_privileges(self, some: Sequence[tuple[On, Grant]]) -> None:
        for each in _rounds(some):
            self._in_bags("revoke", each)

    def _in_bags(self, verb: str, some: Sequence[tuple[On, Grant]]) -> None:
        for batch in batched(some, GRANTS_PER_CALL):
            bag = ttypes.PrivilegeBag([_privilege(on, grant) for on, grant in batch])
            what = f"{verb} {'; '.join(f'{label(on)}: {grant}' for on, grant in batch[:2])}"
            self._change(what, lambda client, bag=bag: getattr(client, f"{verb}_privileges")(bag))


def _rounds(some: Iterable[tuple[On, Grant]]) -> Iterator[list[tuple[On, Grant]]]:
    """Yields grants so that no call has two that differ in the grantor only: a server would revoke one of them."""
    rounds: list[dict[tuple[Any, ...], tuple[On, Grant]]] = []
    for on, grant in some:
        key = (on, *_key(grant))
        free = next((each for each in rounds if key not in each), None)
        if free is None:
            rounds.append(free := {})
        free[key] = (on, grant)
    yield from (list(each.values()) for each in rounds)


def _key(grant: Grant) -> tuple[str, ...]:
    return grant.column, grant.kind, grant.principal, grant.privilege


class _Found:
    """Grants by object. A server returns all grants of one type at once, so all are in memory; equal ones, such as
    those of a table's partitions, only once."""

    def __init__(self) -> None:
        self._known: dict[Grant, Grant] = {}
        self._by_object: dict[On, list[Grant]] = {}

    def add(self, on: On, grant: Grant) -> None:
        self._by_object.setdefault(on, []).append(self._known.setdefault(grant, grant))

    def finished(self, granted: Granted) -> Granted:
        """Moves the grants into `granted`, and returns it."""
        same: dict[tuple[Grant, ...], tuple[Grant, ...]] = {}
        for on in list(self._by_object):
            each = ordered(self._by_object.pop(on))
            granted.grants[on] = same.setdefault(each, each)
        return granted


def _listed(kind: int | None, values: list[str] | None) -> Any:
    return lambda client: client.list_privileges(None, None, ttypes.HiveObjectRef(objectType=kind, partValues=values))


def _knows_grants(client: Any) -> bool:
    """Returns True if the server has calls for grants: other services that speak the protocol may have none."""
    about = ttypes.HiveObjectRef(objectType=_TYPES.GLOBAL)
    return is_known(lambda client: client.list_privileges("", ttypes.PrincipalType.USER, about), client)


def _principals(role: str) -> Any:
    request = ttypes.GetPrincipalsInRoleRequest(roleName=role)
    return lambda client: client.get_principals_in_role(request).principalGrants or ()


def _member(row: Any) -> Member:
    return Member(row.principalName, _NAMES.get(row.principalType, USER), bool(row.grantOption))


def _of_role(verb: int, role: str, member: Member) -> Any:
    request = ttypes.GrantRevokeRoleRequest(
        requestType=verb,
        roleName=role,
        principalName=member.principal,
        principalType=_KINDS[member.kind],
        grantor=REPLICATION,
        grantorType=_KINDS[USER],
        grantOption=member.option if verb == ttypes.GrantRevokeType.GRANT else None,
    )
    return lambda client: client.grant_revoke_role(request)


def _privilege(on: On, grant: Grant) -> Any:
    db, table, values = on
    kind = _TYPES.PARTITION if values else _TYPES.TABLE if table else _TYPES.DATABASE
    kind = _TYPES.COLUMN if grant.column else kind
    place = ttypes.HiveObjectRef(kind, db, table or None, list(values) or None, grant.column or None)
    info = ttypes.PrivilegeGrantInfo(
        grant.privilege, 0, grant.grantor, _KINDS.get(grant.grantor_kind, _KINDS[USER]), grant.option
    )
    made = ttypes.HiveObjectPrivilege(place, grant.principal, _KINDS[grant.kind], info)
    made.authorizer = SQL
    return made


def label(on: On) -> str:
    """Formats an object for messages."""
    return ".".join(filter(None, on[:2])) + (f"/{'/'.join(on[2])}" if on[2] else "")


def other_authorizer(metastore: MetastoreReader) -> str:
    """Returns the class that authorizes in place of Hive's own grants, as the server is configured; "" for none, and
    "another service" if the server has no grants."""
    if not metastore.keeps_grants():
        return "another service"
    for key in MANAGERS:
        for name in filter(None, (text.strip() for text in metastore.setting(key).split(","))):
            if not name.startswith(_OWN):
                return name
    return ""


# ---- comparing -------------------------------------------------------------------------------------------------------


def mapped(principals: Principals, kind: PrincipalKind, name: str) -> Principal:
    """Returns a principal by its name on the target."""
    return principals.get((kind, name), (kind, name))


def on_target(grants: Iterable[Grant], principals: Principals) -> tuple[Grant, ...]:
    """Returns grants with the principals and grantors of the target."""
    if not principals:
        return tuple(grants)
    found = []
    for each in grants:
        kind, name = mapped(principals, each.kind, each.principal)
        grantor_kind, grantor = mapped(principals, each.grantor_kind, each.grantor)
        found.append(
            msgspec.structs.replace(each, principal=name, kind=kind, grantor=grantor, grantor_kind=grantor_kind)
        )
    return ordered(found)


def role_on_target(role: RoleMembers, principals: Principals) -> RoleMembers | None:
    """Returns a role with the principals of the target; None if it is not a role there, or a built-in one."""
    kind, name = mapped(principals, ROLE, role.name)
    if kind != ROLE or name in BUILT_IN:
        return None
    members = set[Member]()
    for each in role.members:
        kind, principal = mapped(principals, each.kind, each.principal)
        members.add(msgspec.structs.replace(each, principal=principal, kind=kind))
    return RoleMembers(name, tuple(sorted(members, key=msgspec.structs.astuple)))


@dataclass(frozen=True)
class GrantChange:
    """The grants to revoke from an object and those to add, in this order."""

    revoke: tuple[Grant, ...]
    grant: tuple[Grant, ...]


def difference(wanted: Sequence[Grant], there: Sequence[Grant], *, only_add: bool) -> GrantChange:
    """Returns the change that leads from `there` to `wanted`. A server identifies a grant that it revokes by principal,
    privilege and column only: the others of these, by other grantors, are revoked and granted again. `only_add`: grants
    that are not wanted remain."""
    revoke, grant = list[Grant](), list[Grant]()
    ours, theirs = _by_key(wanted), _by_key(there)
    for key in sorted(ours.keys() | theirs.keys()):
        here, now = ours.get(key, set()), theirs.get(key, set())
        changed = {_granted_by(each) for each in now - here} & {_granted_by(each) for each in here}
        if (now - here and not only_add) or changed:  # an option cannot be granted to an existing grant
            revoke += now
            grant += here | (now if only_add else set()) - {each for each in now if _granted_by(each) in changed}
        else:
            grant += here - now
    return GrantChange(ordered(revoke), ordered(grant))


def _by_key(grants: Iterable[Grant]) -> dict[tuple[str, ...], set[Grant]]:
    found: dict[tuple[str, ...], set[Grant]] = {}
    for each in grants:
        found.setdefault(_key(each), set()).add(each)
    return found


def _granted_by(grant: Grant) -> tuple[str, str]:
    return grant.grantor, grant.grantor_kind
