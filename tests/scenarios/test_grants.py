"""Grants and roles of the metastore: replicated by bootstraps and increments, or named where they have no effect."""

from __future__ import annotations

from typing import Any

from command_line import Answer, command
from grants import Grants
from lab import Lab


class Access:
    """A fixture's grants on both sides."""

    def __init__(self, fixture: Lab) -> None:
        self.fixture, self.db = fixture, fixture.name
        self.source, self.target = Grants(fixture.source_uri), Grants(fixture.target_uri)

    def name(self, on: str) -> str:
        return f"{self.db}.{on}" if on else self.db

    def grant(self, to: str, privilege: str, on: str = "", **how: Any) -> None:
        self.source.grant(to, privilege, self.name(on), **how)

    def are_same(self, *objects: str) -> list[str]:
        """The grants on objects, which both sides have."""
        names = [self.name(each) for each in objects]
        wanted = self.source.shown(*names)
        assert self.target.shown(*names) == wanted
        return wanted

    def verify(self, *more: str) -> Answer:
        sides = ["--source", self.fixture.source_uri, "--target", self.fixture.target_uri]
        return command("verify", *sides, "--db", self.db, "--engine", "local", *more)

    def catch_up(self, *more: str) -> Answer:
        before = self.fixture.last
        dumped = self.fixture.dump(since=before)
        assert dumped.code == 0, dumped
        return self.fixture.load(self.fixture.last, *more)


def test_grants_follow_a_bootstrap_renames_and_revocations(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.table("t", {"f": "1"})
    fixture.source.table("u")
    access.grant("user:ann", "SELECT", option=True)
    access.grant("user:ann", "SELECT", "t", option=True)
    access.grant("user:ann", "SELECT", "t", by="user:carl")
    access.grant("group:staff", "INSERT", "t", by="role:admin")
    access.grant("user:bob", "SELECT", "t:a")
    fixture.bootstrap()
    assert access.are_same("", "t", "t:a", "u") == [
        " SELECT to user:ann with option by user:admin",
        "t INSERT to group:staff by role:admin",
        "t SELECT to user:ann by user:carl",
        "t SELECT to user:ann with option by user:admin",
        "t:a SELECT to user:bob by user:admin",
    ]
    fixture.source.rename("t", "v")
    access.source.revoke("group:staff", "INSERT", access.name("v"))
    access.source.revoke("user:bob", "SELECT", access.name("v:a"))
    access.source.revoke("user:ann", "SELECT", access.name(""))
    access.grant("user:dan", "UPDATE", "u")
    access.grant("user:eve", "CREATE")
    assert access.catch_up().code == 0
    assert access.are_same("", "v", "v:a", "u") == [
        " CREATE to user:eve by user:admin",
        "u UPDATE to user:dan by user:admin",
        "v SELECT to user:ann by user:carl",
        "v SELECT to user:ann with option by user:admin",
    ]
    assert access.verify().code == 0
    access.target.grant("user:mallory", "ALL", access.name("u"))
    access.target.revoke("user:eve", "CREATE", access.name(""))
    verified = access.verify()
    assert verified.code == 4
    assert [(each["kind"], each["object"]) for each in verified.output["differences"]] == [
        ("grant missing", access.db),
        ("grant extra", access.name("u")),
    ]


def test_a_change_of_the_option_and_of_one_of_two_grantors_reaches_the_target(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.table("t")
    access.grant("user:ann", "SELECT", "t", option=True)
    for grantor in ("user:carl", "user:dora"):
        access.grant("user:bob", "SELECT", "t", by=grantor)
    fixture.bootstrap()
    access.source.revoke("user:ann", "SELECT", access.name("t"))
    access.grant("user:ann", "SELECT", "t")
    access.source.revoke("user:bob", "SELECT", access.name("t"))  # one of the two
    assert access.catch_up().code == 0
    assert len(access.are_same("t")) == 2
    assert access.verify().code == 0


def test_roles_are_created_with_their_members_and_none_is_dropped(fixture: Lab) -> None:
    access, role = Access(fixture), f"analysts_{fixture.name}"
    fixture.source.table("t")
    access.source.role(f"outer_{role}")
    access.source.role(f"outer_{role}", "user:eve")
    access.source.role(role, "user:ann", "group:staff", f"role:outer_{role}")
    access.target.role(role, "user:local")
    access.grant(f"role:{role}", "SELECT", "t")
    fixture.bootstrap()
    access.are_same("t")
    assert access.target.members(role) == ["group:staff", f"role:outer_{role}", "user:ann", "user:local"]
    assert access.target.members(f"outer_{role}") == ["user:eve"]
    assert access.verify().code == 0
    access.source.leave(role, "user:ann")
    verified = access.verify()
    assert [each["kind"] for each in verified.output["differences"]] == ["role member extra"]
    assert access.catch_up().code == 0
    assert access.target.members(role) == ["group:staff", f"role:outer_{role}", "user:local"]
    access.source.revoke(f"role:{role}", "SELECT", access.name("t"))
    assert access.catch_up().code == 0
    assert access.are_same("t") == []
    assert access.target.members(role)
    assert access.verify().code == 0
