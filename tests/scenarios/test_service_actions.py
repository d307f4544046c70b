"""Actions over HTTP: plans, consent, runs that are followed live, records that survive a kill."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import web
from housekeeping import UNREFERENCED, LifecycleFixture
from lab import Lab
from names import unique
from plain_tables import PlainDatabase
from running_service import Service, hanging, processes
from sqlalchemy import update
from waiting import CEILING, eventually

from replicator.metastore.embedded.running import Running
from replicator.service import schema
from replicator.service.api_tokens import create_token
from replicator.service.store import Action, ServiceStore, open_action
from replicator.service.web.actions import LONG

NOBODY_THERE = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "databases": "d", "schedule": "1d"}
Event = tuple[str, str, Any]


@dataclass
class World:
    """A server with the policy of `pair` and one called `other`, no schedules but a job that hangs; and clients."""

    service: Service
    pair: Lab
    life: LifecycleFixture
    who: dict[str, dict[str, str]]
    silent: str

    def post(self, path: str, body: Any = None, who: str = "op", key: str = "") -> httpx.Response:
        headers = self.who[who] | ({"Idempotency-Key": key} if key else {})
        return web.post(f"{self.service.urls[-1]}/api/v1/{path}", json=body or {}, headers=headers)

    def asked(self, path: str, body: Any = None, who: str = "op") -> str:
        """The run's id."""
        answer = self.post(path, body, who)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run"])

    def ended(self, run: str) -> dict[str, Any]:
        return {**self.service.ended(run), "answer": self.service.get(f"runs/{run}/answer")}

    def events(self, run: str, last: str = "") -> Iterator[Event]:
        """Until the stream ends. A comment is an event without id."""
        url, headers = f"{self.service.urls[-1]}/api/v1/runs/{run}/events", {"Last-Event-ID": last} if last else {}
        with httpx.stream("GET", url, headers=headers, timeout=CEILING) as answer:
            assert answer.status_code == (200 if answer.headers.get("content-type") else 204), answer.read()
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                fields[name] = fields.get(name, "") + value + ("\n" if name == "data" else "")
                if not line and "" in fields:
                    kind, data = fields.get("event", "comment"), fields.get("data", "")
                    yield kind, fields.get("id", ""), json.loads(data) if kind in ("state", "progress") else data
                    fields = {}


def tokens(store: str, **policies: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Headers of an operator, an admin, and operators of some policies only."""
    with ServiceStore(store) as opened:
        opened.prepare()
        made = {
            "op": create_token(opened, "op", "operator", (), 1000),
            "ad": create_token(opened, "ad", "admin", (), 1000),
        }
        made |= {name: create_token(opened, name, "operator", only, 1000) for name, only in policies.items()}
    return {name: {"Authorization": f"Bearer {token}"} for name, token in made.items()}


def settings(made: Service, more: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    keys = {"store": made.store, "logs": str(made.here / "logs"), "grace": made.grace, "policies": False}
    return {"service": keys | (more or {})}


def nowhere(here: Path) -> dict[str, Any]:
    return {**NOBODY_THERE, **{name: f"{here}/other-{name}" for name in ("cmroot", "target_cmroot", "dumps")}}


@pytest.fixture(scope="module")
def world(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    here = tmp_path_factory.mktemp("deeds")
    pair = Lab(source_metastore, target_metastore, here / "pair")
    pair.db().table("t", {"first": "1", "second": "22"})
    life = LifecycleFixture(pair.source.metastore, unique("life"), here)
    made = Service(here)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uri = f"thrift://127.0.0.1:{listening.getsockname()[1]}"
        policies = {pair.name: {**pair.keys, "schedule": "1d"}, "other": nowhere(here)}
        more = settings(made) | {"defaults": {"cmroot": life.root.place}}
        made.configure({"hangs": hanging(uri, here)}, policies, more)
        who = tokens(made.store, other=("other",), limited=(pair.name,))
        made.start()
        yield World(made, pair, life, who, uri)
        made.stop()


def test_a_run_is_followed_to_its_cancelled_end_and_a_client_that_went_holds_nothing(world: World) -> None:
    run = world.service.at_work("hangs")
    eventually(lambda: processes(world.silent))
    server = Path(f"/proc/{world.service.servers[-1].pid}")
    before = len(list((server / "fd").iterdir()))
    for _ in range(20):
        assert next(world.events(run["id"]))[0] == "state"  # and goes
    eventually(lambda: len(list((server / "fd").iterdir())) <= before + 2)
    told: list[Event] = []
    cancelled = 0
    for event in world.events(run["id"]):
        told.append(event)
        if len(told) == 1:
            assert event[2]["state"] == "running"
        if event[0] == "comment" and not cancelled:
            cancelled = world.post(f"runs/{run['id']}:cancel", {"reason": "enough"}).status_code
    assert cancelled == 202
    assert (told[-1][2]["state"], told[-1][2]["cancelled_by"]) == ("cancelled", "op")
    assert world.service.get(f"runs/{run['id']}")["message"] == "cancelled by op"
    assert processes(world.silent) == []
    assert list(world.events(run["id"], told[-1][1])) == []
    again = list(world.events(run["id"], told[0][1]))
    assert [data["state"] for kind, _, data in again if kind == "state"] == ["cancelled"]
    wrong = web.get(f"{world.service.urls[-1]}/api/v1/runs/{run['id']}/events", headers={"Last-Event-ID": "x"})
    assert wrong.status_code == 400 and wrong.json()["hint"]


def test_a_plan_is_made_approved_and_applied(world: World) -> None:
    name = world.pair.name
    plan = world.asked(f"policies/{name}:plan", {"reason": "month's end"})
    drill = world.asked(f"policies/{name}:drill", {"dry_run": True})
    told = list(world.events(plan))
    states = [data["state"] for kind, _, data in told if kind == "state"]
    assert states[-1] == "done" and states == [each for each in ("queued", "running", "done") if each in states]
    assert told[-1][0] == "state" and told[-1][1].startswith("done-")
    assert [data["tasks"] for kind, _, data in told if kind == "progress"][-1] == []
    shown = world.service.get(f"plans/{plan}")
    assert (shown["state"], shown["made_by"], shown["reason"]) == ("planned", "op", "month's end")
    assert (shown["price"]["files"], shown["price"]["bytes"], shown["empty"]) == (2, 3, False)
    assert {(each["does"], each["kind"]) for each in shown["changes"]} == {
        *(("create", "database"), ("create", "table"), ("copy", "directory"))
    }
    copies = [each for each in shown["changes"] if each["does"] == "copy"]
    assert sum(each["files"] for each in copies) == 2 and sum(each["bytes"] for each in copies) == 3
    for action in ("approve", "refuse", "apply"):
        assert world.post(f"plans/{plan}:{action}", who="other").status_code == 403
    unapproved = world.post(f"plans/{plan}:apply", {"confirm": name})
    assert unapproved.status_code == 409 and "not approved" in unapproved.json()["detail"]
    assert world.post(f"plans/{plan}:approve", {"reason": "looked at"}, "ad").status_code == 204
    for body in ({}, {"confirm": "other"}):
        refused = world.post(f"plans/{plan}:apply", body)
        assert refused.status_code == 400 and f'"confirm": "{name}"' in refused.json()["hint"], refused.text
    assert not world.pair.replica().exists()
    second = world.asked(f"policies/{name}:plan")
    stale = world.ended(second)
    assert world.ended(drill)["begun"] >= shown["run"]["ended"] and stale["begun"] >= world.ended(drill)["ended"]
    assert world.post(f"plans/{second}:approve").status_code == 204
    done = world.ended(world.asked(f"plans/{plan}:apply", {"confirm": name}))
    assert (done["state"], done["answer"]["files_copied"], done["answer"]["bytes_copied"]) == ("done", 2, 3), done
    world.pair.are_same()
    shown = world.service.get(f"plans/{plan}")
    assert (shown["state"], shown["applied_by"][0]["id"]) == ("applied", done["id"])
    assert [(each["decision"], each["who"], each["reason"]) for each in shown["decisions"]] == [
        ("approve", "ad", "looked at")
    ]
    world.pair.db().write("t", {"third": "333"})
    world.pair.sync()
    moved = world.ended(world.asked(f"plans/{second}:apply", {"confirm": name}))
    assert (moved["state"], moved["exit_code"]) == ("failed", 6), moved
    assert world.service.get(f"plans/{second}")["state"] == "not applied"
    world.pair.are_same()


def test_a_plan_is_decided_and_applied_on_its_page(world: World) -> None:
    name = world.pair.name
    world.pair.sync()
    world.pair.db().write("t", {"fourth": "4444"})
    page = web.client(base_url=world.service.urls[-1], follow_redirects=True)

    def mark(place: str) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.get(place).text)
        assert found, place
        return found[1]

    token = world.who["op"]["Authorization"].removeprefix("Bearer ")
    assert page.post("/sign-in", data={"csrf": mark("/sign-in"), "token": token}).status_code == 200
    own = mark(f"/policies/{name}")
    made = page.post(f"/policies/{name}/plan", data={"csrf": own, "reason": "<i>month's end"})
    plan = made.url.path.rpartition("/")[2]
    assert made.url.path == f"/plans/{plan}" and "&lt;i&gt;month" in made.text, made.text
    world.ended(plan)
    shown = page.get(f"/plans/{plan}").text
    assert "Copies 1 file (4 B)" in shown and "No decision yet" in shown and "/apply" not in shown, shown
    approved = page.post(f"/plans/{plan}/approve", data={"csrf": own, "reason": "looked at"})
    assert "approved by op: looked at" in approved.text and f'action="/plans/{plan}/apply"' in approved.text
    wrong = page.post(f"/plans/{plan}/apply", data={"csrf": own, "confirm": "other"})
    assert wrong.status_code == 400 and "requires confirmation" in wrong.text
    assert page.post(f"/plans/{plan}/apply", data={"confirm": name}).status_code == 403
    form = {"csrf": own, "confirm": name, "allow_removals": "true"}
    assert 'name="allow_removals" value="true"' in approved.text
    assert page.post(f"/plans/{plan}/apply", data=form | {"allow_removals": "some"}).status_code == 400
    applied = page.post(f"/plans/{plan}/apply", data=form)
    assert applied.url.path.startswith("/runs/"), applied.text
    assert world.ended(applied.url.path.rpartition("/")[2])["state"] == "done"
    world.pair.are_same()
    shown = page.get(f"/plans/{plan}").text
    assert ">applied<" in shown and "/apply" not in shown
    assert page.get("/plans/none").status_code == 404
    page.close()


def test_a_refused_plan_is_not_applied_and_a_database_is_restored_beside(world: World) -> None:
    name, db = world.pair.name, f"{world.pair.name}_a"
    plan = world.asked(f"policies/{name}:plan")
    event = world.ended(plan)["answer"]["to_event"]
    assert world.post(f"plans/{plan}:refuse", {"reason": "not in this week"}, "limited").status_code == 204
    for action, body in (("approve", {}), ("apply", {"confirm": name})):
        refused = world.post(f"plans/{plan}:{action}", body)
        assert refused.status_code == 409, refused.text
        assert "was refused by limited: not in this week" in refused.json()["detail"]
    assert world.service.get(f"plans/{plan}")["state"] == "refused"
    hold = {"name": "before", "at": str(event), "reason": "ticket"}
    assert world.post(f"cmroots/{name}/holds", hold, "limited").json()["status"] == "held"
    assert world.post(f"cmroots/{name}/holds", hold).status_code == 409
    assert world.post(f"cmroots/{name}/holds/before:release").json()["status"] == "released"
    live = world.pair.db("a").shown()
    asked = {"policy": name, "db": db, "to": str(event), "into": f"rescue_{name}"}
    done = world.ended(world.asked("restores", asked, "limited"))
    assert done["state"] == "done", done
    rescued = PlainDatabase(world.pair.source.metastore, f"rescue_{name}", world.pair.here)
    assert {"first", "second"} <= set(live["t"]["files"]) == set(rescued.shown()["t"]["files"])
    assert world.pair.db("a").shown() == live
    over = world.post("restores", {**asked, "into": db, "force": True})
    assert over.status_code == 400 and f'"confirm": "{db}"' in over.json()["hint"]


@pytest.mark.parametrize(
    ("path", "body", "who", "status"),
    [
        ("policies/P:repair", {}, "op", 400),
        ("policies/P:repair", {"confirm": "P", "db": "hr"}, "op", 400),
        ("policies/P:repair", {"confirm": "P", "db": "a/../b"}, "op", 422),
        ("policies/P:failover", {"force": True}, "ad", 400),
        ("policies/P:switchover", {"confirm": "P"}, "op", 403),
        ("policies/P:verify", {"target_cmroot": "/etc"}, "op", 422),
        ("policies/P:verify", {"reason": "\0"}, "op", 400),
        ("policies/P:verify", {}, "other", 403),
        ("policies/none:verify", {}, "op", 404),
        ("restores", {"policy": "P", "db": "P_a", "to": "/etc/passwd"}, "op", 422),
        ("restores", {"policy": "P", "db": "hr", "to": "1", "into": "x"}, "op", 400),
        ("restores", {"policy": "P", "db": "P_a", "to": "1", "force": True}, "op", 400),
        ("cmroots/P/holds", {"name": "x"}, "other", 403),
        ("cmroots/%2Fetc/holds", {"name": "x"}, "op", 404),
        ("cmroots/P/holds", {"name": "-x"}, "op", 422),
        ("cmroots/P/holds", {"name": "x", "at": "/dumps/1"}, "op", 422),
        ("cmroots/P/slots/P:drop", {"confirm": "P"}, "op", 403),
        ("cmroots/P/slots/P:drop", {}, "ad", 400),
        ("legal-holds", {"name": "x", "on": "hr.*"}, "op", 422),
        ("legal-holds/none:release", {}, "ad", 404),
        ("legal-holds/none:release", {}, "op", 403),
        ("housekeeping/items/0:cancel", {}, "op", 422),
        ("audit/r1:undo", {"confirm": "r2"}, "op", 400),
        ("plans/none:apply", {}, "op", 404),
    ],
)
def test_what_may_not_be_done_is_refused(path: str, body: Any, who: str, status: int, world: World) -> None:
    def named(text: str) -> str:
        return text.replace("P", world.pair.name)

    answer = world.post(named(path), json.loads(named(json.dumps(body))), who)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status and (status != 400 or answer.json()["hint"])


def test_items_are_cancelled_and_armed_removals_held_and_undone(world: World) -> None:
    life = world.life
    life.table("moves", properties=UNREFERENCED)
    life.run()
    old = life.place("moves")
    life.write("elsewhere")
    life.relocate("moves", life.place("elsewhere"))
    life.run()
    (item,) = life.items(status="scheduled")
    cancelled = world.post(f"housekeeping/items/{item.id}:cancel", {"reason": "the audit"}, key="c1")
    assert cancelled.json()["status"] == "cancelled", cancelled.text
    assert (
        world.post(f"housekeeping/items/{item.id}:cancel", {"reason": "the audit"}, key="c1").json() == cancelled.json()
    )
    assert world.post(f"housekeeping/items/{item.id}:rearm").json()["status"] == "armed"
    held = world.post("removals:hold", {"on": f"{life.db.name}.moves", "reason": "case 17"})
    assert held.status_code == 201 and held.json()["reason"] == "case 17 (op)", held.text
    life.run(days=30)
    assert old.exists()
    assert world.post(f"legal-holds/{held.json()['name']}:release", who="ad").json()["status"] == "released"
    life.run(days=60)
    assert not old.exists()
    removal = life.audit()[-1].run
    assert world.ended(world.asked(f"audit/{removal}:undo", {"confirm": removal}))["state"] == "done"
    assert [each.read_text() for each in old.iterdir()] == ["rows of moves"]
    done = world.service.get("actions?limit=500", headers=world.who["ad"])["items"]
    about = [each["action"] for each in done if each["subject"] == f"defaults/{item.id}"]
    assert about == ["rearm item", "cancel item"]
    assert not any(each["failed"] for each in done if each["subject"] == f"defaults/{removal}")


def test_a_call_whose_server_died_is_done_again(world: World) -> None:
    """A record without an answer is left as that leaves it."""
    body = {"name": "k", "on": "hr.*", "reason": "case 18"}
    with ServiceStore(world.service.store) as store:
        begun = open_action(store, Action(0, 0.0, "op", "", "legal hold", "defaults/k", "case 18", "k9", None))
        at_work = world.post("legal-holds", body, key="k9")
        assert at_work.status_code == 409 and "is running" in at_work.json()["detail"]
        with store.transaction() as connection:
            long_ago = store.clock(connection) - LONG
            connection.execute(update(schema.action).where(schema.action.c.id == begun).values(at=long_ago))
    done = world.post("legal-holds", body, key="k9")
    assert (done.status_code, done.json()["status"]) == (201, "added"), done.text
    assert world.post("legal-holds", body, key="k9").json() == done.json()
    other = world.post("legal-holds", {**body, "name": "l"}, key="k9")
    assert other.status_code == 409 and "Idempotency-Key" in other.json()["detail"]


def test_a_kill_between_an_action_and_its_run_loses_neither(service: Service, silent: str, tmp_path: Path) -> None:
    policies = {"other": nowhere(tmp_path)}
    service.configure({"hangs": hanging(silent, tmp_path)}, policies, settings(service, {"at_once": 1}))
    world = World(service, None, None, tokens(service.store), silent)  # type: ignore[arg-type]
    service.start()
    service.at_work("hangs")
    first = world.post("policies/other:verify", {"reason": "r"}, key="k1").json()
    plan = world.asked("policies/other:plan")
    early = world.post(f"plans/{plan}:approve")
    assert early.status_code == 409 and "was not created" in early.json()["detail"], early.text
    service.stop(number=signal.SIGKILL)
    service.configure({}, policies, settings(service, {"at_once": 1}))
    eventually(lambda: not processes(silent))  # it lives no longer than its server
    with ServiceStore(service.store) as store:
        assert [each.state for each in store.open_runs() if each.id == first["run"]] == ["queued"]
        store.resign(store.leader()[0])  # as its lease does by itself
    service.start()
    assert world.post("policies/other:verify", {"reason": "r"}, key="k1").json() == first
    ended = world.ended(first["run"])
    assert (ended["state"], ended["exit_code"], ended["asked_by"]) == ("failed", 75, "op"), ended
    assert [each["id"] for each in service.runs("verify:other")] == [first["run"]]
    done = [each for each in service.get("actions", headers=world.who["ad"])["items"] if each["action"] == "verify"]
    assert [(each["subject"], each["reason"]) for each in done] == [("other", "r")]
