"""Questions of the service's API: a real server over real roots, that a real policy, housekeeping and the records of
other jobs have filled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import web
from housekeeping import LifecycleFixture
from lab import Lab
from remembered_purge import CERTIFICATE, PURGE, remember_purge
from running_service import Service
from waiting import eventually

from cmroot.pins import iso
from replicator.commands.cm import cm_hold
from replicator.commands.guard import legal_hold_add
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.drill_record import Drill, Drills
from replicator.service.store import ServiceStore

ROWS = "rows of days/a"
"""Of each partition that is to go."""


class World:
    """A service, what it serves, and tokens: of a viewer of everything, and of one policy."""

    def __init__(self, service: Service, replication: Lab, life: LifecycleFixture) -> None:
        self.service, self.replication, self.life = service, replication, life
        self.policy, self.db = replication.name, f"{replication.name}_a"
        self.root, self.target_root = replication.keys["cmroot"], replication.keys["target_cmroot"]
        self.url = ""
        self.viewer: dict[str, str] = {}
        self.west: dict[str, str] = {}

    def ask(self, path: str, wanted: int = 200, /, **more: Any) -> Any:
        """The response of a query."""
        headers = more.pop("headers", self.viewer)
        answer = web.get(f"{self.url}/api/v1/{path}", params=more or None, headers=headers)
        assert answer.status_code == wanted, f"{path}: {answer.status_code} {answer.text}"
        said = answer.json()
        if wanted >= 400:
            assert said["status"] == wanted and said["hint"] and said["exit_code"], said
            assert answer.headers["Content-Type"] == "application/problem+json" and "Traceback" not in answer.text
        return said

    def all(self, path: str, field: str, **more: Any) -> list[dict[str, Any]]:
        """Every page of a list."""
        found, cursor = [], None
        while True:
            said = self.ask(path, **more, **({"cursor": cursor} if cursor else {}))
            found += said[field]
            cursor = said["next"]
            if cursor is None:
                return found


@pytest.fixture(scope="module")
def world(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    here = tmp_path_factory.mktemp("world")
    replication = Lab(source_metastore, target_metastore, here, verify={"objects": 10}, schedule="1d")
    source = replication.db()
    source.table("t", {"f": "1\n"})
    source.table("u", {"f": "1\n"})
    replication.sync()
    source.write("t", {"g": "2\n"})
    (source.home / "t" / "f").unlink()
    replication.sync(scan=True)
    life = LifecycleFixture(connect(source_metastore.uri), "lives", here / "lives")
    expires = {"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "P3D"}
    life.partitioned("days", ["a", "b", "c"], **expires)
    life.run()
    _remember(replication, life)
    made = World(Service(here), replication, life)
    (here / "job.properties").write_text("gobblin.retention.dataset.pattern=/data/*\nsecret.password=hidden4711\n")
    retention = ["retention", "run", str(here / "job.properties"), "--no-metastore", "--dry-run"]
    made.service.configure(
        {
            "check": {"command": ["check", made.policy], "every": "1d"},
            "verify": {"command": ["verify", made.policy, "--engine", "local"], "every": "1d"},
            "expire": {"command": ["cm", "expire", "--cmroot", made.root, "--older-than", "30d"], "cron": "0 0 1 1 *"},
            "clean": {"command": [*retention, "--cmroot", life.root.place], "cron": "0 0 1 1 *"},
        },
        {
            made.policy: replication.keys,
            "other": {**replication.keys, "databases": "none", "target_cmroot": f"{here}/o"},
        },
        more={"defaults": {"cmroot": life.root.place}},
    )
    made.viewer = made.service.token("viewer")
    made.west = made.service.token("west", "viewer", made.policy)
    with ServiceStore(made.service.store) as store:
        store.pause("other", "me", "a policy that never ran")
    made.url = made.service.start("--require-token")
    yield made
    made.service.stop()


def _remember(replication: Lab, life: LifecycleFixture) -> None:
    """What a drill, a purge and its certificate leave, without the minutes that they take."""
    drills = Drills(replication.memory)
    for number in range(3):
        drills.write(
            Drill(
                id=f"d{number}",
                policy=replication.name,
                started=iso(1_700_000_000 + number),
                by="me",
                metastore="thrift://b:1",
                status="done",
                first_answer_seconds=40.0 + number,
            )
        )
    remember_purge(life.root.place)
    cm_hold("before", cmroot=replication.keys["cmroot"], reason="ticket 4711")
    legal_hold_add("case", cmroot=life.root.place, pattern="lives.days", reason="case 17")


def test_the_lag_of_a_policy_over_time(world: World) -> None:
    eventually(lambda: world.ask(f"policies/{world.policy}/lag-history")["points"])
    point = world.ask(f"policies/{world.policy}/lag-history", since="-1h")["points"][-1]
    assert point["status"] == "current" and point["events"] == 0 and not point["error"]
    assert world.ask(f"policies/{world.policy}/lag-history", since="2999-01-01")["points"] == []
    assert world.ask(f"policies/{world.policy}/lag")["policy"] == world.policy
    assert [each["status"] for each in world.all(f"policies/{world.policy}/history", "runs", limit=1)] == ["done"] * 2


def test_the_last_verification_of_a_policy_and_its_checks(world: World) -> None:
    eventually(lambda: all(each["last"] and each["last"]["ended"] for each in _jobs(world, "verify", "check")))
    found = world.ask(f"policies/{world.policy}/verification")
    assert found["budget"] and found["jobs"] == ["verify"] and found["never"] == 0
    assert (found["last"]["by"], found["last"]["found"]) == ("job verify", "same"), found
    assert 0 <= found["last"]["age_seconds"] < 86_400 and found["last"]["run"]
    checks = world.ask("checks")
    (check,) = checks["checks"]
    assert check["policy"] == world.policy and check["found"]["findings"] and checks["without"] == ["other"]


def _jobs(world: World, *names: str) -> list[dict[str, Any]]:
    return [each for each in world.ask("jobs")["items"] if each["name"] in names]


def test_drills_roles_and_restore_points(world: World) -> None:
    drills = world.all(f"policies/{world.policy}/drills", "drills", limit=2)
    assert [each["first_answer_seconds"] for each in drills] == [42.0, 41.0, 40.0]
    roles = world.ask(f"policies/{world.policy}/roles")
    assert [(each["db"], each["role"]) for each in roles["source"]] == [(world.db, "primary")]
    assert [(each["db"], each["role"]) for each in roles["target"]] == [(world.db, "replica")]
    assert roles["slot"]["name"] == world.policy and roles["turns"] == [] and not roles["unreachable"]
    points = world.all(f"policies/{world.policy}/restore-points", "points", limit=2)
    events = [each["event"] for each in points]
    assert events == sorted(events, reverse=True) and "hold" in {each["kind"] for each in points}
    mine = world.ask(f"policies/{world.policy}/restore-points", headers=world.west)
    assert {each["kind"] for each in mine["points"]} == {"capture"}  # another policy uses the root, too


def test_a_root_by_its_name(world: World) -> None:
    names = {each["name"]: each for each in world.ask("roots")["roots"]}
    root = f"policies/{world.policy}/cmroot"
    assert (
        names[root]["policies"] == sorted((world.policy, "other"))
        and names["jobs/expire/cmroot"]["place"] == world.root
    )
    kept = world.ask("cmroot/ls", root=root, limit=1)
    total = kept["total"]["entries"]
    second = world.ask("cmroot/ls", root=root, limit=1, cursor=kept["next"])
    assert kept["total"] == second["total"] and kept["entries"] != second["entries"] and total > 1
    found = world.ask("cmroot/find", root=root, table=f"{world.db}.t")
    assert {Path(each["path"]).name for each in found["entries"]} == {"f", "g"}
    assert [each["name"] for each in world.ask("cmroot/slots", root=root)["slots"]] == [world.policy]
    assert world.ask("cmroot/held", root=root)["slots"][0]["held"]["entries"] >= 0
    assert [each["name"] for each in world.ask("cmroot/holds", root=root)["holds"]] == ["before"]
    assert world.ask("cmroot/expiry", root=root)["older_than_seconds"] == 30 * 86_400  # as the job has it
    sizes = eventually(lambda: world.ask("cmroot/size", root=root)["points"])
    assert (sizes[0]["entries"], sizes[0]["error"]) == (total, "")


def test_a_tables_life(world: World) -> None:
    root, path = f"policies/{world.policy}/cmroot", f"tables/{world.db}.T/timeline"
    entries = world.all(path, "entries", root=root, limit=2)
    assert [each["at"] for each in entries] == sorted(each["at"] for each in entries)
    assert len({(each["kind"], each["id"]) for each in entries}) == len(entries)
    records = [each for each in entries if each["kind"] == "record"]
    assert [each["what"] for each in records[:2]] == ["create_database", "create_table"]
    assert records == world.all(path, "entries", root=root, kind="record")
    assert {each["kind"] for each in entries} >= {"record", "verification", "run", "hold"}
    assert world.ask(path, root=root, since="2999-01-01")["entries"] == []
    assert world.all(path, "entries", root=root, limit=3, order="newest") == entries[::-1]
    other = {each["text"] for each in world.all(f"tables/{world.db}.u/timeline", "entries", root=root, kind="record")}
    assert other and f"{world.db}.t" not in other
    removed = world.ask("tables/a.b/timeline", kind="removal")["entries"]
    assert [each["what"] for each in removed] == ["purge: done"]


def test_what_goes_and_what_went(world: World) -> None:
    items = world.all("housekeeping/items", "content", limit=2, status="scheduled")
    assert len(items) == 3 and len({each["id"] for each in items}) == 3
    assert world.ask("housekeeping/items", db="lives", partition="p=b")["totalElements"] == 1
    upcoming = world.ask("removals/upcoming")
    assert sum(each["items"] for each in upcoming["removals"]) == 3
    assert upcoming["removals"][0]["reason"] == "expired, P3D" and upcoming["removals"][0]["bytes"] == 3 * len(ROWS)
    assert upcoming["removals"][0]["setting"] == "beekeeper.expired.data.retention.period"
    leaving = world.all("removals/items", "items", limit=2)
    assert [each["partition"] for each in leaving] == ["p=a", "p=b", "p=c"]
    assert [(each["bytes"], each["held"], each["on"]) for each in leaving][:1] == [
        (len(ROWS), "case", "lives.days/p=a")
    ]
    assert not any("no items yet" in each for each in upcoming["lacking"])
    assert any("retention job clean" in each for each in upcoming["lacking"])
    listed = world.ask(upcoming["removals"][0]["more"].partition("?")[0], deleted_after=upcoming["removals"][0]["day"])
    assert listed["totalElements"] == 4
    explained = {each["key"]: each for each in world.ask("retention/clean/explain", path="/data/a")["values"]}
    assert explained["gobblin.retention.dataset.pattern"]["at"].endswith("job.properties:1"), explained
    assert "hidden4711" not in json.dumps(explained)
    (purge,) = world.ask("purges")["purges"]
    assert purge["id"] == PURGE
    detail = world.ask(f"purges/{PURGE}")
    assert (detail["states"], detail["rows_erased"]) == ({"DONE": 1, "FAILED": 1}, 5)
    assert detail["open"][0]["reason"] == "a reason"
    assert world.ask(f"purges/{PURGE}/certificate") == CERTIFICATE.to_dict()
    assert [each["name"] for each in world.ask("legal-holds")["holds"]] == ["case"]
    rows = world.all("audit", "rows", limit=1, job="purge")
    assert [each["what"] for each in rows] == ["certificate", "rows"]
    assert [each["what"] for each in world.ask("audit", object="A.B")["rows"]] == ["rows"]


def test_what_has_not_changed_is_not_sent_again(world: World) -> None:
    url = f"{world.url}/api/v1/roots"
    first = web.get(url, headers=world.viewer)
    for known in (first.headers["ETag"], f'"x", W/{first.headers["ETag"]}', "*"):
        again = web.get(url, headers={**world.viewer, "If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert web.get(url, headers={**world.viewer, "If-None-Match": '"x"'}).json() == first.json()
    assert web.get(url, headers={**world.west, "If-None-Match": first.headers["ETag"]}).status_code == 200
    assert web.get(url, headers={"If-None-Match": first.headers["ETag"]}).status_code == 401


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("policies/none/drills", 404, "policy 'none' is not configured"),
        ("policies/other/history", 404, "not a $cmroot yet"),
        ("purges/none", 404, "purge 'none' does not exist"),
        ("retention/expire/explain?path=/a", 404, "no retention job"),
        ("retention/clean/explain?path=/a/../../etc", 400, "not a dataset path"),
        ("retention/clean/explain", 422, "is invalid"),
        ("audit?outcom=done", 400, "unknown parameter"),
        ("runs?stat=done", 400, "unknown parameter"),
        ("runs?state=gone", 422, "is invalid"),
        ("runs?cursor=gone", 422, "is invalid"),
        ("audit?outcome=gone", 422, "is invalid"),
        ("audit?limit=0", 422, "is invalid"),
        ("audit?limit=1001", 422, "is invalid"),
        ("audit?cursor=gone", 400, "invalid cursor"),
        ("audit?since=soon", 400, "soon"),
        ("housekeeping/items?deleted_after=soon", 400, "soon"),
        ("audit?path=%00", 400, "zero byte"),
        ("audit?job=", 400, "--job"),
        ("audit?job=../legal", 400, "--job"),
        ("audit?run=..", 400, "--run"),
        ("audit?root=/etc", 404, "no configured root"),
        ("audit?root=policies/../etc", 404, "no configured root"),
        ("cmroot/find", 400, "no search criterion"),
        ("cmroot/expiry?older_than=soon", 400, "duration"),
        ("cmroot/expiry?older_than=--versions", 400, "duration"),
        ("cmroot/ls?table=--limit", 200, ""),
        ("housekeeping/items?status=gone", 400, "not an item state"),
        ("tables/none/timeline", 400, "not a table name"),
        ("tables/..%2Fetc.x/timeline", 400, "not a table name"),
        ("nothing", 404, "Not Found"),
    ],
)
def test_a_wrong_request_gets_an_error_that_names_the_fault(path: str, status: int, said: str, world: World) -> None:
    answer = web.get(f"{world.url}/api/v1/{path}", headers=world.viewer)
    assert answer.status_code == status and said in answer.text, answer.text
    if status != 200:
        assert {"hint", "exit_code", "detail"} <= set(answer.json())


def test_a_token_of_a_policy_asks_about_that_alone(world: World) -> None:
    assert world.ask(f"policies/{world.policy}/roles", headers=world.west)["source"]
    assert [each["policy"] for each in world.ask("checks", headers=world.west)["checks"]] == [world.policy]
    mine = f"policies/{world.policy}/target_cmroot"
    assert {each["name"] for each in world.ask("roots", headers=world.west)["roots"]} == {mine}
    assert world.ask("legal-holds", headers=world.west, root=mine)["holds"] == []
    for path in ("policies/other/roles", "policies/none/roles", "audit?root=policies/other/cmroot", "audit?root=gone"):
        world.ask(path, 403, headers=world.west)
    for path in (
        f"audit?root=policies/{world.policy}/cmroot",
        "audit?root=defaults/cmroot",
        "retention/clean/explain?path=/a",
    ):
        world.ask(path, 403, headers=world.west)
    world.ask("roots", 401, headers={})


def test_the_page_of_the_api_loads_nothing(world: World) -> None:
    answer = web.get(f"{world.url}/docs", headers=world.viewer)
    assert answer.status_code == 200 and "src=" not in answer.text and "<script" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    described = web.get(f"{world.url}/openapi.json", headers=world.viewer).json()
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method, each in methods.items():
            assert f"{method.upper()} {path}" in answer.text
            assert all(one["description"] for one in each.get("parameters", ())), path
