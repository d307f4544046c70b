"""The service's answers, in this process: who sees what, and what keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filesystems import hanging_below
from in_process import InProcess, Made
from waiting import CEILING

import replicator
from cmroot.root import create_or_open
from replicator.core.config import parse_config
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.job_store import IngestionStore
from replicator.policies.memory import Compared, Run
from replicator.service.api_tokens import revoke_token
from replicator.service.measuring import MeasuredLag
from replicator.service.pages import page_routes
from replicator.service.runs import Ended
from replicator.service.store import AdHocRun, JobState, ServiceStore, actions
from replicator.service.web.serving import OF_ONE


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    there: list[InProcess] = []

    def make(tables: dict[str, Any] | None = None, **more: Any) -> InProcess:
        there.append(InProcess(tmp_path, tables or {}, **more))
        return there[-1]

    yield make
    for each in there:
        each.store.close()


def policy(**places: str) -> dict[str, str]:
    keys = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "databases": "d", "dumps": "/d"}
    return keys | places


def test_pages_of_a_root_that_hangs_keep_nobody_waiting(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, away = tmp_path / "sick", tmp_path / "away"
    mounted = hanging_below(monkeypatch, sick, away)
    policies = {"west": policy(cmroot=str(sick), target_cmroot=str(away))}
    server = made({"policies": policies, "defaults": {"cmroot": str(tmp_path / "well")}})
    op = server.token("op", "operator")

    async def ask() -> None:
        async with server.client(headers=op) as client:
            places = [f"/cmroot?root={sick}", "/policies/west", "/drills", "/purges?policy=west"]
            hung = [asyncio.create_task(client.get(each)) for each in places * 12]
            hold = {"name": "h", "reason": "r"}
            hung += [asyncio.create_task(client.post("/api/v1/cmroots/west/holds", json=hold)) for _ in range(OF_ONE)]
            await asyncio.sleep(0)
            for place in ("/healthz", "/readyz", "/jobs", f"/cmroot?root={tmp_path}/well"):
                answer = await asyncio.wait_for(client.get(place), CEILING)
                assert answer.status_code == 200 or place == "/healthz", place  # no scheduler is at work
            for task in hung:
                task.cancel()
            await asyncio.gather(*hung, return_exceptions=True)

    try:
        asyncio.run(ask())
    finally:
        mounted.set()


def two(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """A configuration of two policies with one source's root, spelled in two ways."""
    shared = create_or_open(f"{tmp_path}/shared").place
    west = policy(cmroot=shared, target_cmroot=f"{tmp_path}/w")
    east = policy(cmroot=f"file://{shared}/", target_cmroot=f"{tmp_path}/e", target="thrift://127.0.0.1:3")
    return {"policies": {"west": west, "east": east}, **more}


def test_a_token_of_a_policy_sees_no_other(made: Made, tmp_path: Path) -> None:
    server = made(two(tmp_path), open_to_all=False)
    for name in ("west", "east"):
        server.serving.watch.keep(name, MeasuredLag(time.time(), None, "away", Compared(differing=("t",))))
        server.store.enqueue(AdHocRun(f"verify:{name}", ("verify", name), name), time.time(), by="me")
    server.store.enqueue(AdHocRun("undo:west", ("audit", "undo"), "west"), time.time(), by="me")
    west, everybody = server.token("w", "viewer", "west"), server.token("all", "viewer")
    assert server.get("/metrics", west).status_code == 403
    assert server.get("/metrics", everybody).status_code == 200
    for place in ("/", "/runs", "/jobs", "/drills", "/cmroot", "/policies/west"):
        shown = server.get(f"{place}?format=json", west)
        assert shown.status_code == 200 and "east" not in shown.text, place
    assert set(server.get("/?format=json", everybody).json()["compared_of"]) == {"west", "east"}
    assert {each["job"] for each in server.get("/api/v1/runs", west).json()["items"]} == {"verify:west"}
    undo = next(each.id for each in server.store.open_runs() if each.job == "undo:west")
    for place in (f"/runs/{undo}", f"/api/v1/runs/{undo}", f"/api/v1/runs/{undo}/events", f"/api/v1/runs/{undo}/log"):
        assert server.get(place, west).status_code == 403, place
    for place in ("/openapi.json", "/docs", "/api/v1/plans", "/"):
        assert server.get(place).status_code in (303, 401) and server.get(place, west).status_code == 200, place


def test_a_root_is_one_however_it_is_spelled(made: Made, tmp_path: Path) -> None:
    server = made(two(tmp_path))
    who = {name: server.token(name, "operator", *policies) for name, policies in (("w", ["west"]), ("all", []))}
    hold = {"name": "case", "on": "d.*", "reason": "because", "root": "west"}
    assert server.ask("POST", "/api/v1/legal-holds", json=hold, headers=who["w"]).status_code == 403
    assert server.ask("POST", "/api/v1/legal-holds", json=hold, headers=who["all"]).status_code == 201
    for place in (
        "/removals?policy=west",
        f"/removals?root={tmp_path}/shared",
        f"/cmroot?root=file://{tmp_path}/shared/",
    ):
        assert server.get(place, who["w"]).status_code == 404, place
    shown = server.get("/legal-holds?policy=east")
    assert shown.status_code == 200 and "because" in shown.text and "east, west" in shown.text
    assert server.get("/api/v1/legal-holds?root=policies/east/cmroot", who["w"]).status_code == 403


def test_items_in_a_store_of_all_roots_are_for_who_may_see_all(made: Made, tmp_path: Path) -> None:
    own = create_or_open(f"{tmp_path}/own").place
    policies = {"west": policy(cmroot=own, target_cmroot=f"{tmp_path}/w")}
    server = made({"policies": policies, "housekeeping": {"store": f"sqlite:///{tmp_path}/items.sqlite"}})
    west = server.token("w", "operator", "west")
    assert server.get("/api/v1/housekeeping/items?root=policies/west/cmroot", west).status_code == 403
    cancel = server.ask("POST", "/api/v1/housekeeping/items/1:cancel", json={"root": "west"}, headers=west)
    assert cancel.status_code == 403
    assert "their store is shared by all policies" in server.get("/removals", west).text


def test_a_key_is_of_one_body(made: Made, tmp_path: Path) -> None:
    server = made(two(tmp_path))
    keyed = {**server.token("op", "operator"), "Idempotency-Key": "k"}
    place = "/api/v1/policies/west:verify"
    first = server.ask("POST", place, json={"level": "size"}, headers=keyed)
    assert first.status_code == 202
    assert server.ask("POST", place, json={"level": "size"}, headers=keyed).json() == first.json()
    other = server.ask("POST", place, json={"level": "checksum"}, headers=keyed)
    assert other.status_code == 422 and other.json()["hint"] and "another body" in other.json()["detail"]
    assert server.ask("POST", "/api/v1/policies/east:verify", json={}, headers=keyed).status_code == 409


def test_lists_are_filtered(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = made(two(tmp_path))
    now, admin = time.time(), server.token("ad", "admin")
    for age, name in ((3 * 86_400, "west"), (0, "east")):
        errand = AdHocRun(f"plan:{name}", ("plan", name), name)
        with monkeypatch.context() as then:
            then.setattr(ServiceStore, "_now", lambda self, connection, age=age: now - age)
            run, _ = server.store.enqueue(errand, now, by="me")
        server.store.end(run, Ended("done", 0))
    for name in ("west", "east"):
        server.ask("POST", f"/api/v1/jobs/{name}:pause", json={"reason": "x"}, headers=admin)

    def found(path: str, field: str) -> list[str]:
        answer = server.get(f"/api/v1/{path}", admin)
        assert answer.status_code == 200, answer.text
        return [each[field] for each in answer.json()["items"]]

    assert found("runs", "policy") == found("plans", "policy") == ["east", "west"]
    assert found("runs?policy=west", "policy") == found("plans?policy=west", "policy") == ["west"]
    assert found("runs?since=-1d", "policy") == ["east"] and found("runs?until=-1d", "policy") == ["west"]
    page = server.get("/api/v1/plans?limit=1", admin).json()
    assert page["items"][0]["state"] == "planned" and found(f"plans?limit=1&cursor={page['next']}", "policy") == [
        "west"
    ]
    assert ">2 plans wait for approval<" in server.get("/", admin).text
    monkeypatch.setattr(page_routes, "PLANS", 1)
    assert ">1 plan of the newest 1 waits for approval<" in server.get("/", admin).text
    assert found("actions?subject=west", "subject") == ["west"] and found("actions?who=nobody", "who") == []
    assert found("actions?action=pause&since=-1d&who=ad", "subject") == ["east", "west"]
    for wrong in ("runs?since=soon", "actions?since=soon", "plans?polcy=west", "plans?cursor=x"):
        assert server.get(f"/api/v1/{wrong}", admin).status_code in (400, 422), wrong
    plan = server.get("/api/v1/plans?policy=west", admin).json()["items"][0]["id"]
    assert server.ask("POST", f"/api/v1/plans/{plan}:approve", json={}, headers=admin).status_code == 204
    applied = server.ask("POST", f"/api/v1/plans/{plan}:apply", json={"confirm": "west"}, headers=admin)
    late = server.ask("POST", f"/api/v1/plans/{plan}:refuse", json={}, headers=admin)
    assert late.status_code == 409 and applied.json()["run"] in late.json()["hint"]
    server.store.end(applied.json()["run"], Ended("failed", 6))
    assert server.ask("POST", f"/api/v1/plans/{plan}:refuse", json={}, headers=admin).status_code == 204


def test_failed_actions_look_so(made: Made, tmp_path: Path) -> None:
    server = made(two(tmp_path))
    admin = server.token("ad", "admin")
    gone = server.ask("POST", "/api/v1/cmroots/west/holds/none:release", json={}, headers=admin)
    assert gone.status_code in (404, 409), gone.text
    assert "failed</span>" in server.get("/actions", admin).text


def test_a_proxys_groups_may_be_producers_of_an_asset(made: Made, tmp_path: Path) -> None:
    ingestion = {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": {"crm": {"url": "jdbc:mysql://crm/crm"}}}
    values = {**proxied(tmp_path), "ingestion": ingestion}
    server = made(values, open_to_all=False)
    given = {"owner": "olga", "producers": ["group:makers"], "sources": ["crm"], "config": parse_config(values, "t")}
    replicator.asset_create("crm", by="olga", **given)
    replicator.asset_approve("crm", by="bob", config=given["config"])

    async def ask(groups: str) -> Any:
        async with server.client("10.0.0.1") as client:
            headers = {"X-User": "anna", "X-Groups": groups}
            body = {"asset": "crm", "table": "crm:public.orders"}
            return await client.post("/api/v1/ingestion/requests", json=body, headers=headers)

    assert asyncio.run(ask("ops")).status_code == 409
    queued = asyncio.run(ask("ops, makers"))
    assert queued.status_code == 202, queued.text
    assert (queued.json()["checked"], "mysql" in queued.json()["unchecked"]) == (False, True)
    assert asyncio.run(ask("makers")).status_code == 403, "it is no group of the service's"


def proxied(tmp_path: Path) -> dict[str, Any]:
    groups = {"ops": {"role": "operator"}, "eyes": {"role": "viewer"}}
    proxy = {"networks": ["10.0.0.1"], "user_header": "X-User", "groups_header": "X-Groups", "groups": groups}
    return two(tmp_path, service={"proxy": proxy})


def test_a_proxys_user_acts_on_pages(made: Made, tmp_path: Path) -> None:
    server = made(proxied(tmp_path), open_to_all=False)

    async def ask() -> None:
        anna, bob = ({"X-User": name, "X-Groups": "ops", "X-Forwarded-Proto": "https"} for name in ("anna", "bob"))
        async with server.client("10.0.0.1", "https://svc.example") as client:
            page = await client.get("/jobs/west", headers=anna)
            cookie = page.headers["set-cookie"]
            assert cookie.startswith("__Host-replicator-mark=") and "Secure" in cookie and "HttpOnly" in cookie
            assert "Sign in to act" not in page.text and "Sign out" not in page.text
            marks = re.findall(r'name="csrf" value="([0-9a-f]{64})"', page.text)
            assert len(set(marks)) == 1, page.text
            assert "set-cookie" not in (await client.get("/jobs/west", headers=anna)).headers
            form = {"reason": "x", "csrf": marks[0]}

            async def post(fields: dict[str, str], **headers: str) -> int:
                answer = await client.post("/jobs/west/pause", data=fields, headers=anna | headers)
                return answer.status_code

            assert await post({"reason": "x"}) == await post({**form, "csrf": "0" * 64}) == 403
            assert await post(form, **bob) == 403, "another user of this browser"
            assert await post(form, **{"Sec-Fetch-Site": "cross-site"}) == 403
            assert await post(form, Origin="http://[") == 403
            assert await post(form) == 303
            client.cookies.clear()
            assert await post(form) == 403
            eyes = await client.get("/jobs/west", headers={"X-User": "eve", "X-Groups": "eyes"})
            assert eyes.status_code == 200 and "csrf" not in eyes.text

    asyncio.run(ask())
    assert [each.who for each in actions(server.store)] == ["proxy:anna"]


def test_tls_before_the_proxy_counts_and_nobody_else_may_say_so(made: Made, tmp_path: Path) -> None:
    server = made(proxied(tmp_path), open_to_all=False)
    https = {"X-Forwarded-Proto": "https"}
    for peer, secure in (("10.0.0.1", True), ("10.0.0.2", False)):
        answer = server.ask("GET", "/sign-in", peer, "http://svc.example", headers=https)
        assert ("Secure" in answer.headers["set-cookie"]) is secure, peer
        assert ("strict-transport-security" in answer.headers) is secure, peer
    told = server.ask("GET", "/sign-in", "10.0.0.1", "http://svc.example", headers={"X-Forwarded-Proto": "gopher"})
    assert "Secure" not in told.headers["set-cookie"]


def test_a_token_has_one_bucket_however_it_is_spelled(made: Made) -> None:
    server = made({"service": {"limits": {"requests_per_second": 0.01, "burst": 4}}})
    token = server.token("me", "viewer")["Authorization"].partition(" ")[2]
    spelled = [f"Bearer {token}", f"bearer {token}", f"Bearer   {token}", f"BEARER {token} ", f"Bearer \t{token}"]
    found = [server.get("/api/v1/status", {"Authorization": each}).status_code for each in spelled * 2]
    assert found.count(200) == 5 and found.count(429) == 5  # the first one counts for its address


@pytest.mark.parametrize("host", ["[", "a:b", "[::1"])
def test_a_host_that_is_none_is_refused(host: str, made: Made) -> None:
    assert made().get("/", {"Host": host}).status_code == 400


def test_beekeepers_pages_are_springs(made: Made, tmp_path: Path) -> None:
    server = made({"defaults": {"cmroot": create_or_open(f"{tmp_path}/own").place}})
    for asked, page, size in (
        ("", 0, 20),
        ("page=-1&size=0", 0, 20),
        ("page=abc&size=abc", 0, 20),
        ("page=2&size=-5", 2, 20),
        ("page=99999999999&size=5000", 0, 2000),
        ("page=&size=7", 0, 7),
    ):
        answer = server.get(f"/api/v1/database/d/table/none/metadata?{asked}")
        assert answer.status_code == 200, "before the first housekeeping, a table is not known"
        said = answer.json()
        assert (said["content"], said["number"], said["size"], said["empty"]) == ([], page, size, True), asked


def test_what_many_ask_at_once_is_made_once_and_never_older_than_a_write(made: Made) -> None:
    server = made({"service": {"jobs": {"often": {"command": ["cm", "ls"], "every": "1h"}}}}, moment=60)
    server.scheduler.step()  # reads the jobs
    reads: list[str] = []
    asked = server.store.jobs

    def counted() -> dict[str, JobState]:
        reads.append("jobs")
        return asked()

    server.store.jobs = counted  # type: ignore[method-assign]

    async def many(headers: dict[str, str] | None = None) -> set[str]:
        async with server.client() as client:
            found = await asyncio.gather(*(client.get("/api/v1/jobs", headers=headers) for _ in range(20)))
            assert {each.status_code for each in found} == {200}
            return {each.text for each in found}

    (first,) = asyncio.run(many())
    assert '"paused":false' in first and len(reads) == 1
    etag = server.get("/api/v1/jobs").headers["etag"]
    assert server.get("/api/v1/jobs", {"If-None-Match": etag}).status_code == 304
    assert server.get("/api/v1/jobs").text == first and len(reads) == 1, "and once more it is whole"
    server.serving.store.pause("often", "me", "")
    (second,) = asyncio.run(many())
    assert '"paused":true' in second and len(reads) == 2
    token = server.token("me", "viewer")
    assert asyncio.run(many(token)) == {second} and len(reads) == 3, "an answer to a token is its own"
    revoke_token(server.store, "me")
    assert server.get("/api/v1/jobs", token).status_code == 401
    before = len(reads)
    for _ in range(2):
        assert server.get("/api/v1/jobs", {"Cookie": "a=b"}).status_code == 200
    assert len(reads) == before + 2, "what somebody with cookies sees is made for him"


def test_pages_of_ingestion_say_how_to_begin_and_what_does_not_answer(made: Made, tmp_path: Path) -> None:
    empty = made({"ingestion": {"store": f"sqlite:///{tmp_path}/none.sqlite"}}).get("/ingestion")
    for part in ("Ingestion is not configured", "replicator asset create crm", "Nothing was published", "No job yet"):
        assert part in empty.text, part
    sources = {"crm": {"url": "jdbc:postgresql://crm/crm"}}
    policies = {"west": policy(cmroot=f"{tmp_path}/a", target_cmroot=f"{tmp_path}/b")}
    away = {"store": "postgresql://127.0.0.1:1/jobs", "sources": sources}
    server = made({"policies": policies, "ingestion": away})
    for place in ("/ingestion", "/ingestion/assets/crm", "/ingestion/jobs/1"):
        found = server.get(place)
        assert found.status_code == 200 and "127.0.0.1" in found.text and "Traceback" not in found.text, place
    assert "not configured" not in server.get("/ingestion").text
    assert server.get("/").status_code == 200 and server.get("/ingestion?state=none").status_code == 422
    well = made({"policies": policies, "ingestion": {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": sources}})
    paul = well.token("paul", "operator", "west")
    mine = well.get("/ingestion", paul)
    assert "Jobs that you requested" in mine.text and "Assets" not in mine.text and "slots" not in mine.text
    assert well.get("/ingestion/assets/crm", paul).status_code == 403


def test_the_page_of_an_asset_has_the_watermarks_of_its_tables(made: Made, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/i.sqlite"
    with IngestionStore(url) as store:
        store.prepare()
        store.put_asset(Asset(name="crm", owner="olga", created_by="olga"))
        for table, more in (("log", {"mode": "append", "watermark": "Id"}), ("state", {})):
            store.submit(Request(asset="crm", source="crm", schema="public", table=table, requested_by="me", **more))
            one = store.claim("c", 60.0, 9, 1.0)
            assert one is not None
            store.published(one, 7, {"watermark": '["id", "<i>9</i>"]'} if more else {})
            store.done(one)
    server = made({"ingestion": {"store": url, "sources": {"crm": {"url": "jdbc:postgresql://crm/crm"}}}})
    page = server.get("/ingestion/assets/crm").text
    assert "&lt;i&gt;9&lt;/i&gt;" in page and "crm:public.log" in page and page.count("<caption>Watermarks") == 1
    (mark,) = server.get("/api/v1/assets/crm").json()["marks"]
    assert (mark["table"], mark["column"], mark["value"]) == ("crm_public.log", "id", "<i>9</i>")


def test_assets_and_requests_of_ingestion(made: Made, tmp_path: Path) -> None:
    sources = {"crm": {"url": "jdbc:postgresql://crm/crm"}}
    policies = {"west": policy(cmroot=f"{tmp_path}/a", target_cmroot=f"{tmp_path}/b")}
    server = made({"policies": policies, "ingestion": {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": sources}})
    ann, bob = server.token("ann", "admin"), server.token("bob", "admin")
    paul, eve, look = (
        server.token("paul", "operator", "west"),
        server.token("eve", "operator"),
        server.token("v", "viewer"),
    )

    def post(path: str, who: dict[str, str] | None, key: str = "", **body: Any) -> Any:
        headers = {**(who or {}), **({"Idempotency-Key": key} if key else {})}
        return server.ask("POST", f"/api/v1/{path}", json=body, headers=headers)

    asset = {"name": "crm", "owner": "olga", "producers": ["paul"], "sources": ["crm"]}
    assert post("assets", eve, **asset).status_code == 403
    assert post("assets", ann, **asset).json()["status"] == "created"
    assert post("assets", ann, **asset, engine="spark").status_code == 422
    assert "requires its digest" in post("assets/crm:approve", bob).json()["detail"]
    seen = {"digest": server.get("/api/v1/assets/crm", look).json()["digest"]}
    assert post("assets", ann, **asset, consumers=["eve"], overwrite=True).json()["status"] == "changed"
    assert "was changed since" in post("assets/crm:approve", bob, **seen).json()["detail"]
    assert post("assets", ann, **asset, overwrite=True).json()["digest"] == seen["digest"]
    assert post("assets/crm:approve", ann, **seen).json()["detail"] == "asset crm was defined by ann"
    assert post("assets/crm:approve", bob, **seen).json()["approved_by"] == "bob"
    assert [each["name"] for each in server.get("/api/v1/assets", look).json()["assets"]] == ["crm"]
    assert server.get("/api/v1/assets/cmr", look).json()["hint"] == "did you mean crm?"

    asked = {"asset": "crm", "table": "crm:public.orders"}
    for who, status in ((None, 401), (look, 403), (eve, 409)):
        assert post("ingestion/requests", who, **asked).status_code == status
    assert post("ingestion/requests", paul, **{**asked, "mode": "append"}).json()["hint"].startswith("name a column")
    first = post("ingestion/requests", paul, "k", **asked)
    assert first.status_code == 202 and post("ingestion/requests", paul, "k", **asked).json() == first.json()
    second = post("ingestion/requests", paul, **{**asked, "table": "crm:public.people"}).json()["job"]
    page = server.get("/api/v1/ingestion/requests?limit=1&state=queued", paul).json()
    assert [each["job"] for each in page["jobs"]] == [second]
    rest = server.get(f"/api/v1/ingestion/requests?limit=1&state=queued&cursor={page['next']}", paul).json()
    assert [each["job"] for each in rest["jobs"]] == [first.json()["job"]] and rest["next"] is None
    assert server.get("/api/v1/ingestion/requests", server.token("pete", "operator", "west")).json()["jobs"] == []
    stats = server.get("/api/v1/ingestion/stats?within=1d", look).json()
    assert (stats["cap"], stats["queue"]["states"]["queued"], stats["queue"]["assets"][0]["waiting"]) == (2, 2, 2)
    assert server.get("/api/v1/ingestion/stats?within=32d", look).status_code == 400
    assert server.get("/api/v1/ingestion/stats", paul).status_code == 403, "it is of all assets"
    server.serving.watch._count(server.serving.config)
    metrics = server.get("/metrics", look).text
    for line in (
        '_jobs{state="queued"} 2.0',
        '_failing{kind="user"} 0.0',
        '_slots_used{asset="crm"} 0.0',
        "_waiting 2.0",
    ):
        assert f"replicator_ingestion{line}\n" in metrics, line
    shown = server.get(f"/api/v1/ingestion/requests/{second}", paul).json()
    assert shown["job"]["requested_by"] == "paul" and shown["changes"][0]["state"] == "queued"
    assert post(f"ingestion/requests/{second}:cancel", eve).status_code == 409
    assert post(f"ingestion/requests/{second}:cancel", paul).json()["status"] == "cancelled"
    said = [(each.who, each.action, each.subject) for each in actions(server.store)]
    assert ("paul", "cancel landing", str(second)) in said and ("bob", "approve asset", "crm") in said


def test_a_page_is_sent_again_only_when_something_has_changed(made: Made, tmp_path: Path) -> None:
    server = made({"policies": {"west": policy(cmroot=str(tmp_path / "cm"), target_cmroot=str(tmp_path / "t"))}})
    seen = re.search(r'"X-Seen": "([0-9a-f]{16}:\d+)"', server.get("/jobs").text)
    assert seen, "the page asks for its contents with the version that it shows"
    asked = {"HX-Request": "true", "X-Seen": seen[1]}
    assert server.get("/jobs", asked).status_code == 204
    assert server.get("/jobs", asked | {"X-Seen": f"{seen[1][:16]}:1"}).status_code == 200, "it is too old"
    headers = server.token("op", "operator")
    assert server.ask("POST", "/api/v1/jobs/west:run", json={}, headers=headers).status_code == 202
    begun = server.get("/jobs", asked)
    assert begun.status_code == 200 and "queued" in begun.text


def test_runs_by_hand_are_in_the_list_of_runs(made: Made, tmp_path: Path) -> None:
    server = made({"policies": {"west": policy(cmroot=str(tmp_path / "cm"), target_cmroot=str(tmp_path / "t"))}})
    headers = server.token("op", "operator")
    assert server.ask("POST", "/api/v1/jobs/west:run", json={}, headers=headers).status_code == 202
    by_hand = Run(
        id="a",
        policy="west",
        started=f"{time.gmtime().tm_year + 1}-01-01T00:00:00+00:00",
        status="failed",
        error="no room",
    )
    server.serving.watch.keep("west", MeasuredLag(time.time(), None, "away", by_hand=(by_hand,)))
    runs = server.get("/runs?format=json").json()["runs"]
    assert [(each["asked_by"], each["state"]) for each in runs] == [("by hand", "failed"), ("op", "queued")]
    assert "no room" in server.get("/runs?state=failed").text and "no room" not in server.get("/runs?state=done").text
