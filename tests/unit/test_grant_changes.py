"""Changes of grants: what they lead to on a server that revokes without regard to the grantor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hmsclient.genthrift.hive_metastore import ttypes
from hypothesis import given
from hypothesis import strategies as st

from cmroot.errors import FormatError
from replicator.core.model import Grant, Member, RoleMembers
from replicator.core.policy import parse_principals
from replicator.metastore.events.record import decode_line
from replicator.metastore.grants import GrantCalls, difference, on_target, ordered, role_on_target

GRANTS = st.builds(
    Grant,
    principal=st.sampled_from(["ann", "bob"]),
    kind=st.sampled_from(["USER", "ROLE"]),
    privilege=st.sampled_from(["SELECT", "ALL"]),
    grantor=st.sampled_from(["x", "y"]),
    option=st.booleans(),
    column=st.sampled_from(["", "a"]),
)


def unique(grants: list[Grant]) -> list[Grant]:
    """A server has one grant of each privilege by each grantor."""
    return list({(g.principal, g.kind, g.privilege, g.grantor, g.column): g for g in grants}.values())


STATES = st.lists(GRANTS, max_size=8).map(unique)


def key(grant: Grant) -> tuple[str, ...]:
    return grant.principal, grant.kind, grant.privilege, grant.column


def applied(there: list[Grant], revoke: tuple[Grant, ...], grant: tuple[Grant, ...]) -> list[Grant]:
    """What a server has afterwards: each revocation takes the first of the equal grants, whoever granted it."""
    now = list(there)
    for each in revoke:
        now.remove(next(one for one in now if key(one) == key(each)))
    for each in grant:
        assert not [one for one in now if (*key(one), one.grantor) == (*key(each), each.grantor)], "it exists already"
        now.append(each)
    return now


@given(there=STATES, wanted=STATES)
def test_a_change_leads_to_what_is_wanted(there: list[Grant], wanted: list[Grant]) -> None:
    change = difference(wanted, there, only_add=False)
    assert set(applied(there, change.revoke, change.grant)) == set(wanted)
    assert difference(wanted, wanted, only_add=False) == difference((), (), only_add=False)


@given(there=STATES, wanted=STATES)
def test_a_first_change_takes_nothing_away(there: list[Grant], wanted: list[Grant]) -> None:
    change = difference(wanted, there, only_add=True)
    now = applied(there, change.revoke, change.grant)
    assert set(wanted) <= set(now)
    assert {(*key(each), each.grantor) for each in there} <= {(*key(each), each.grantor) for each in now}


def test_principals_are_mapped_in_grants_grantors_and_roles() -> None:
    principals = parse_principals([("user:ann", "anna"), ("role:r", "role:s"), ("user:etl", "group:loaders")])
    grant = Grant(principal="ann", kind="USER", privilege="SELECT", grantor="etl")
    assert on_target([grant], principals) == (
        Grant(principal="anna", kind="USER", privilege="SELECT", grantor="loaders", grantor_kind="GROUP"),
    )
    assert on_target([grant], {}) == (grant,)
    role = RoleMembers("r", (Member("ann", "USER", True), Member("r", "ROLE")))
    assert role_on_target(role, principals) == RoleMembers("s", (Member("anna", "USER", True), Member("s", "ROLE")))
    assert role_on_target(role, parse_principals([("role:r", "group:g")])) is None
    assert ordered([grant, grant]) == (grant,)


@pytest.mark.parametrize(
    "wrong", [("ann", "anna"), ("user:", "x"), ("user:a", "role:"), ("host:a", "b"), ("user:a", "x:b")]
)
def test_what_is_no_principal_is_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="does not name two principals"):
        parse_principals([wrong])


def test_a_dump_cannot_add_members_to_a_built_in_role_nor_name_other_principals() -> None:
    assert role_on_target(RoleMembers("admin", (Member("eve", "USER"),)), {}) is None
    assert role_on_target(RoleMembers("r", (Member("eve", "USER"),)), parse_principals([("role:r", "admin")])) is None
    line = b'{"position":1,"event":1,"time":1,"change":{"kind":"set_grants","db":"d","table":"t","grants":%s}}'
    for wrong in (b'{"":[{"principal":"a","kind":"HOST","privilege":"ALL"}]}', b'{"../x":[]}', b"[]"):
        with pytest.raises(FormatError):
            decode_line(line % wrong)


class OneType(GrantCalls):
    """A server whose partitions have grants."""

    catalog = "hive"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def _read(self, what: str, send: Any) -> Any:
        return [
            ttypes.HiveObjectPrivilege(
                ttypes.HiveObjectRef(ttypes.HiveObjectType.PARTITION, "".join(["sa", "les"]), "t", [name], None),
                "".join(["a", "nn"]),
                ttypes.PrincipalType.USER,
                ttypes.PrivilegeGrantInfo(privilege, 0, "x", ttypes.PrincipalType.USER, False),
            )
            for name in self._names
            for privilege in ("SELECT", "ALTER")
        ]


def test_equal_grants_of_partitions_are_held_once() -> None:
    names = [f"day {number}" for number in range(100)]
    found = OneType(names).all_grants(["sales"])
    assert {values for _, values, _ in found.objects("sales")} == {(name,) for name in names}
    assert len({id(some) for some in found.grants.values()}) == 1
    assert len({id(db) for db, _, _ in found.grants}) == 1
    assert [each.privilege for each in next(iter(found.grants.values()))] == ["ALTER", "SELECT"]
