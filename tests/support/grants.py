"""Grants and roles made and read through bindings that are independent of the product's (Hive 4.x)."""

from __future__ import annotations

from typing import Any

import hive_metastore.ttypes as T
from constraints import client

KINDS = {"user": T.PrincipalType.USER, "role": T.PrincipalType.ROLE, "group": T.PrincipalType.GROUP}
NAMES = {value: name for name, value in KINDS.items()}


class Grants:
    """Those of one server. Objects are `db`, `db.table`, `db.table/value` or `db.table:column`, principals
    `user:ann`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def grant(
        self, to: str, privilege: str, on: str, *, option: bool = False, by: str = "user:admin", authorizer: str = "SQL"
    ) -> None:
        made = _privilege(to, privilege, on, option, by)
        made.authorizer = authorizer
        with client(self.uri) as c:
            c.grant_privileges(T.PrivilegeBag([made]))

    def revoke(self, to: str, privilege: str, on: str) -> None:
        with client(self.uri) as c:
            c.revoke_privileges(T.PrivilegeBag([_privilege(to, privilege, on, False, "user:admin")]))

    def role(self, name: str, *members: str) -> None:
        with client(self.uri) as c:
            if name not in c.get_role_names():
                c.create_role(T.Role(name, 0, "admin"))
        for each in members:
            self._member(T.GrantRevokeType.GRANT, name, each)

    def leave(self, name: str, member: str) -> None:
        self._member(T.GrantRevokeType.REVOKE, name, member)

    def drop_role(self, name: str) -> None:
        with client(self.uri) as c:
            c.drop_role(name)

    def members(self, name: str) -> list[str]:
        with client(self.uri) as c:
            if name not in c.get_role_names():
                return []
            found = c.get_principals_in_role(T.GetPrincipalsInRoleRequest(name)).principalGrants
        return sorted(f"{NAMES[each.principalType]}:{each.principalName}" for each in found)

    def shown(self, *objects: str) -> list[str]:
        """What the server returns of some objects, each asked for by itself."""
        found = []
        with client(self.uri) as c:
            for on in objects:
                for each in c.list_privileges(None, None, _place(on)):
                    info = each.grantInfo
                    option = " with option" if info.grantOption else ""
                    to = f"{NAMES[each.principalType]}:{each.principalName}"
                    by = f"{NAMES[info.grantorType]}:{info.grantor}"
                    found.append(f"{on.partition('.')[2]} {info.privilege} to {to}{option} by {by}")
        return sorted(found)

    def _member(self, verb: int, name: str, member: str) -> None:
        kind, _, principal = member.partition(":")
        request = T.GrantRevokeRoleRequest(verb, name, principal, KINDS[kind], "admin", T.PrincipalType.USER, False)
        with client(self.uri) as c:
            c.grant_revoke_role(request)


def _place(on: str) -> Any:
    name, _, column = on.partition(":")
    name, _, value = name.partition("/")
    db, _, table = name.partition(".")
    kinds = T.HiveObjectType
    kind = kinds.COLUMN if column else kinds.PARTITION if value else kinds.TABLE if table else kinds.DATABASE
    return T.HiveObjectRef(kind, db, table or None, [value] if value else None, column or None)


def _privilege(to: str, privilege: str, on: str, option: bool, by: str) -> Any:
    (kind, _, name), (grantor_kind, _, grantor) = to.partition(":"), by.partition(":")
    info = T.PrivilegeGrantInfo(privilege, 0, grantor, KINDS[grantor_kind], option)
    return T.HiveObjectPrivilege(_place(on), name, KINDS[kind], info, "SQL")
