"""Grants and roles of the metastore: replicated by bootstraps and increments, or named where they have no effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from catalogs import in_catalog
from command_line import Answer, command
from faults import Fault, run_with
from grants import Grants
from lab import Lab
from names import unique
from plain_tables import PlainDatabase

from cmroot.log.captured import segments
from replicator.core.model import EXTERNAL, Grant
from replicator.errors import ConfigError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

Hives = Callable[..., Running]


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


def test_grants_on_partitions_follow_renames_drops_and_filters(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.partitioned("days", {"1": {"f": "1"}, "2": {"f": "2"}, "b c": {"f": "3"}})
    for value in ("1", "2", "b c"):
        access.source.grant("user:ann", "SELECT", f"{access.name('days')}/{value}")
    fixture.bootstrap()
    assert len(access.are_same("days/1", "days/2", "days/b c")) == 3
    assert access.verify("--level", "metadata").code == 0
    fixture.source.metastore.drop_partitions(access.db, "days", ["p=1"])
    access.source.revoke("user:ann", "SELECT", f"{access.name('days')}/2")
    access.source.grant("group:staff", "SELECT", f"{access.name('days')}/2")
    assert access.catch_up().code == 0
    assert access.are_same("days/2") == ["days/2 SELECT to group:staff by user:admin"]
    assert access.verify("--level", "metadata").code == 0


@pytest.mark.parametrize(("source", "target"), [("4.2", "4.2"), ("3.1", "4.2"), ("4.2", "2.3"), ("2.3", "3.1")])
def test_grants_pass_between_versions(source: str, target: str, hives: Hives, tmp_path: Path) -> None:
    fixture = Lab(hives(source), hives(target, "target"), tmp_path)
    fixture.source.create()
    access, role = Access(fixture), f"r_{fixture.name}"
    fixture.source.table("t", kind=EXTERNAL)
    access.source.role(role, "user:ann")
    access.grant("user:bob", "SELECT", "t", option=True)
    access.grant("user:bob", "SELECT", "t:a", by=f"role:{role}")
    access.grant(f"role:{role}", "SELECT")
    assert fixture.dump().code == 0
    assert fixture.load().code in (0, 3)
    assert len(access.are_same("", "t", "t:a")) == 3
    assert access.target.members(role) == ["user:ann"]
    access.source.revoke("user:bob", "SELECT", access.name("t"))
    assert access.catch_up().code in (0, 3)
    assert access.are_same("t") == []
    kinds = {each["kind"] for each in access.verify("--level", "metadata").output["differences"]}
    assert not {kind for kind in kinds if kind.startswith(("grant", "role"))}


def test_a_policy_maps_principals_in_both_directions(fixture: Lab) -> None:
    fixture.keys |= {"principals": {"user:ann": "anna", "user:etl": "group:loaders"}}
    fixture.db().table("t", {"f": "1"})
    source, target, on = Grants(fixture.source_uri), Grants(fixture.target_uri), f"{fixture.name}_a.t"
    source.grant("user:ann", "SELECT", on, by="user:etl")
    source.grant("user:etl", "ALL", on)
    assert fixture.sync().status == "synced"
    assert target.shown(on) == ["t ALL to group:loaders by user:admin", "t SELECT to user:anna by group:loaders"]
    assert command("--config", str(fixture.config()), "verify", fixture.name).code == 0
    fixture.turn()
    target.grant("user:anna", "INSERT", on, by="group:loaders")
    assert fixture.sync().status == "synced"
    assert source.shown(on) == [
        "t ALL to user:etl by user:admin",
        "t INSERT to user:ann by user:etl",
        "t SELECT to user:ann by user:etl",
    ]


def test_a_policy_that_ignores_grants_leaves_both_sides_and_verify_alone(fixture: Lab) -> None:
    fixture.keys |= {"grants": "ignore"}
    fixture.db().table("t", {"f": "1"})
    source, target, on = Grants(fixture.source_uri), Grants(fixture.target_uri), f"{fixture.name}_a.t"
    source.grant("user:ann", "SELECT", on)
    assert fixture.sync().status == "synced"
    assert target.shown(on) == []
    target.grant("user:own", "SELECT", on)
    assert command("--config", str(fixture.config()), "verify", fixture.name).code == 0
    del fixture.keys["grants"]
    assert fixture.sync().status == "synced"
    assert target.shown(on) == source.shown(on)
    assert fixture.sync().status == "nothing"


def test_principals_that_name_nothing_are_refused(fixture: Lab) -> None:
    for wrong in ({"ann": "anna"}, {"user:": "anna"}, {"host:a": "b"}, {"user:a": "c", "user:b": "c"}):
        fixture.keys["principals"] = wrong
        with pytest.raises(ConfigError, match=f"policies.{fixture.name}.principals: "):
            fixture.policy  # noqa: B018
    assert fixture.load(fixture.here, "--principal", "user:a").code == 2
    assert fixture.load(fixture.here, "--principal", "ann=anna").code == 2


def test_a_target_loaded_before_gets_grants_and_keeps_its_own(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.table("t", {"f": "1"})
    assert (fixture.dump("--grants", "ignore").code, fixture.load().code) == (0, 0)
    assert not any(segment.metadata.get("grants") for segment in segments(str(fixture.cmroot)))
    manifest = sqlite3.connect(fixture.cmroot / "manifest.sqlite")
    manifest.executescript("DROP TABLE grants; DROP TABLE roles;")  # as an earlier release left it
    manifest.close()
    access.grant("user:ann", "SELECT", "t")
    access.target.grant("user:reader", "SELECT", access.name("t"))
    assert access.catch_up().code == 0
    assert access.target.shown(access.name("t")) == [
        "t SELECT to user:ann by user:admin",
        "t SELECT to user:reader by user:admin",
    ]
    access.grant("user:bob", "SELECT", "t")
    assert access.catch_up().code == 0
    assert len(access.are_same("t")) == 2


def test_a_quiet_scan_records_nothing_and_grants_of_owners_arrive_once(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.table("t", {"f": "1"})
    for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE"):
        access.grant("user:hive", privilege, "t", option=True, by="user:hive")
    fixture.bootstrap()
    quiet = fixture.capture()
    assert (quiet.code, quiet.output["observed"], quiet.output["warnings"]) == (0, 0, [])
    fixture.source.alter("t", note="x")
    assert fixture.capture().output["observed"] == 0
    assert access.catch_up().code == 0
    assert len(access.are_same("t")) == 4


def test_a_killed_load_is_completed_and_repair_mends_grants(fixture: Lab) -> None:
    access, role = Access(fixture), f"r_{fixture.name}"
    fixture.source.table("t", {"f": "1"})
    access.source.role(role, "user:ann")
    access.grant("user:ann", "SELECT", "t", option=True)
    fixture.bootstrap()
    access.source.revoke("user:ann", "SELECT", access.name("t"))
    access.grant("user:ann", "SELECT", "t")
    access.grant(f"role:{role}", "SELECT", "t")
    before = fixture.last
    assert fixture.dump(since=before).code == 0
    for fault in (
        Fault("after", "thrift", "create role", 1),
        Fault("after", "thrift", "grant role", 1),
        Fault("after", "thrift", "revoke", 1),
        Fault("after", "thrift", "grant ", 1),
    ):
        assert run_with(fault, fixture.load_arguments(fixture.last)).killed, fault
    assert fixture.load().code == 0
    assert len(access.are_same("t")) == 2
    assert access.target.members(role) == ["user:ann"]
    access.target.grant("user:mallory", "ALL", access.name("t"))
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--cmroot", str(fixture.cmroot)]
    repaired = command("repair", *sides, "--db", access.db, "--engine", "local", "--warehouse", str(fixture.warehouse))
    assert (repaired.code, repaired.output["tables"]) == (0, ["t"])
    access.are_same("t")


def test_a_side_that_another_service_authorizes_is_named(
    fixture: Lab, metastore_factory: Callable[..., Running], tmp_path: Path
) -> None:
    ranger = "org.apache.ranger.authorization.hive.authorizer.RangerHiveAuthorizerFactory"
    other = metastore_factory("other", settings={"hive.security.authorization.manager": ranger})
    access = Access(fixture)
    fixture.source.table("t", {"f": "1"})
    access.grant("user:ann", "SELECT", "t")
    assert fixture.dump().code == 0
    shown = fixture.load(fixture.last, "--dry-run", target=other.uri)
    loaded = fixture.load(target=other.uri)
    assert (shown.code, loaded.code, loaded.output["status"]) == (3, 3, "incomplete")
    assert shown.output["not_replicated"] == loaded.output["not_replicated"]
    (entry,) = loaded.output["not_replicated"]
    assert entry["object"] == access.db and ranger in entry["reason"]
    assert Grants(other.uri).shown(access.name("t")) == []
    sides = ["--source", fixture.source_uri, "--target", other.uri, "--db", access.db, "--engine", "local"]
    assert command("verify", *sides).code == 3
    assert command("verify", *sides, "--grants", "ignore").code == 0
    reverse = Lab(other, other, tmp_path / "reverse")
    reverse.source.create()
    reverse.source.table("t")
    Grants(other.uri).grant("user:ann", "SELECT", f"{reverse.name}.t")
    captured = reverse.capture()
    assert captured.code == 3
    assert [each["object"] for each in captured.output["not_replicated"]] == [reverse.name]
    assert ranger in captured.output["warnings"][0]


@pytest.mark.parametrize("version", ["3.1", "4.2"])
def test_copies_of_another_authorizers_policies_are_named_and_not_replicated(
    version: str, hives: Hives, tmp_path: Path
) -> None:
    fixture = Lab(hives(version), hives(version, "target"), tmp_path)
    fixture.source.create()
    fixture.source.table("t", kind=EXTERNAL)
    access = Access(fixture)
    access.source.grant("user:ann", "SELECT", access.name("t"))
    access.source.grant("user:bob", "SELECT", access.name("t"), authorizer="RangerHiveAuthorizer")
    captured = fixture.capture()
    assert captured.code == 3
    (entry,) = captured.output["not_replicated"]
    left_out = "its grants at the source are left out: 1 grant of RangerHiveAuthorizer, copies of its policies"
    assert (entry["object"], entry["reason"]) == (access.db, left_out)
    assert fixture.dump("--no-scan").code in (0, 3)
    loaded = fixture.load()
    assert (loaded.code, [each["reason"] for each in loaded.output["not_replicated"]]) == (3, [left_out])
    assert access.target.shown(access.name("t")) == ["t SELECT to user:ann by user:admin"]


def test_grants_belong_to_their_catalog(hives: Hives, tmp_path: Path) -> None:
    running = hives("4.2")
    own, other = connect(running.uri), in_catalog(running, tmp_path)
    name = unique("db")
    for side in (own, other):
        database = PlainDatabase(side, name, tmp_path / side.catalog)
        database.create()
        database.table("t", kind=EXTERNAL)
    grant = Grant(principal="ann", kind="USER", privilege="SELECT", grantor="x")
    other.grant_privileges([((name, "t", ()), grant)])
    for read in ("grants", "all_grants"):
        assert getattr(own, read)({name}).grants == {}
        assert getattr(other, read)({name}).grants == {(name, "t", ()): (grant,)}
    other.revoke_privileges([((name, "t", ()), grant)])
    assert other.grants({name}).grants == {}


def test_a_scan_with_a_time_limit_finds_grants_too(fixture: Lab) -> None:
    access = Access(fixture)
    fixture.source.table("t")
    assert fixture.capture().code == 0
    access.grant("user:ann", "SELECT", "t")
    found = [fixture.capture("--scan-time", "1ms").output["observed"] for _ in range(3)]
    assert found == [1, 0, 0]
    access.source.revoke("user:ann", "SELECT", access.name("t"))
    assert fixture.capture("--no-scan").output["observed"] == 0
    assert fixture.capture().output["observed"] == 1


def test_a_grant_that_the_target_refuses_is_named_until_it_is_repaired(fixture: Lab) -> None:
    access, role = Access(fixture), f"r_{fixture.name}"
    for name in ("t", "u", "w"):
        fixture.source.table(name)
    access.source.role(role)
    access.grant(f"role:{role}", "SELECT", "t")
    fixture.bootstrap()
    access.target.drop_role(role)
    access.grant(f"role:{role}", "SELECT", "u")
    access.grant("user:ann", "SELECT", "u")
    access.grant("user:ann", "SELECT", "w")
    refused = access.catch_up()
    assert refused.code == 3
    (entry,) = refused.output["not_replicated"]
    assert entry["object"] == access.name("u") and "the target's metastore refused it: grant" in entry["reason"]
    assert access.target.shown(access.name("u")) == ["u SELECT to user:ann by user:admin"]
    assert len(access.are_same("w")) == 1
    fixture.source.alter("w", note="x")
    later = access.catch_up()
    assert (later.code, later.output["not_replicated"]) == (3, [entry])
    assert access.verify().code == 4  # the role, and its grant on another table
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--cmroot", str(fixture.cmroot)]
    place = ["--warehouse", str(fixture.warehouse), "--engine", "local"]
    repaired = command("repair", *sides, "--db", access.db, *place, "--table", "t", "--table", "u")
    assert repaired.code == 0, repaired
    assert len(access.are_same("t", "u")) == 3
    assert access.verify().code == 0
