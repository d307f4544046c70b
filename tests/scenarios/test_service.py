"""`replicator serve`: real processes, a real policy, and a client over HTTP."""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import web
import yaml
from lab import Lab
from names import unique
from postgres import Postgres
from running_service import Service, hanging, processes
from waiting import eventually

from replicator.core import database
from replicator.core.database import Database
from replicator.errors import Error, Refused, StoreUnreachable
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.service.jobs import Every, Job
from replicator.service.runs import Ended
from replicator.service.store import (
    Action,
    AdHocRun,
    ServiceStore,
    action_of,
    actions_about,
    is_open,
    open_action,
    recording,
    set_answer,
)


def test_a_policy_is_kept_in_step(
    service: Service, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    source = replication.db()
    source.table("t", {"f": "1\n"})
    service.configure({}, {"west": {**replication.keys, "schedule": "1s", "max_lag": "10m"}})
    service.start()
    eventually(lambda: any(each["state"] == "done" for each in service.runs("west")))
    source.write("t", {"g": "2\n"})
    replica = replication.replica()
    eventually(lambda: replica.exists() and (replica.home / "t" / "g").exists())
    policy = eventually(lambda: next((each for each in service.get("policies")["items"] if each["measured"]), None))
    assert policy["name"] == "west" and policy["objective_seconds"] == 600.0 and not policy["trouble"], policy
    assert service.get("policies/west/lag")["policy"] == "west"
    assert service.get("policies/west/history")["runs"][-1]["status"] == "done"
    newest = next(each for each in service.runs("west") if each["state"] == "done")
    assert service.get(f"runs/{newest['id']}/answer")["policy"] == "west"
    metrics = web.get(f"{service.urls[0]}/metrics").text
    assert re.search(r'^replicator_lag_objective_seconds\{policy="west"\} 600\.0$', metrics, re.M), metrics
    assert re.search(r'^replicator_last_success_timestamp_seconds\{job_name="west"\} \d', metrics, re.M), metrics
    page = eventually(lambda: _page_with("All is well", service.urls[0]))  # its lag is measured now and then
    assert "1 policy, 1 job" in page and "/policies/west" in page
    page = web.get(f"{service.urls[0]}/policies/west").text
    assert "<polyline" in page or "with the second measurement" in page
    assert source.name in page
    assert service.stop() == 0
    starts = sorted((each["begun"], each["ended"]) for each in _all(service.store))
    assert len(starts) > 1 and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(starts))


def _page_with(text: str, url: str) -> str:
    """Empty where it does not say so."""
    page = web.get(url).text
    return page if text in page else ""


def _all(url: str) -> list[dict[str, float]]:
    with ServiceStore(url) as store:
        return [{"begun": each.begun or 0, "ended": each.ended or 0} for each in store.runs(limit=500)]


def test_a_pause_survives_and_what_it_missed_is_made_up_once(service: Service, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1s"}
    service.configure({"often": often})
    who = service.token("me", "operator")
    url = service.start()
    failed = eventually(lambda: [each for each in service.runs("often") if each["state"] == "failed"])[0]
    assert failed["exit_code"] == 1 and "none" in failed["message"] and failed["hint"], failed
    paused = web.post(f"{url}/api/v1/jobs/often:pause", json={"reason": "a test"}, headers=who)
    assert paused.status_code == 204, paused.text
    assert service.stop() == 0
    service.start()
    job = service.get("jobs")["items"][0]
    assert (job["paused"], job["paused_by"], job["reason"]) == (True, "me", "a test")
    before = len(service.runs("often"))
    wanted = web.post(f"{service.urls[-1]}/api/v1/jobs/often:run", json={"reason": "now"}, headers=who).json()
    assert wanted["new"]
    service.ended(wanted["run"])
    assert len(service.runs("often")) == before + 1  # and none by its schedule
    web.post(f"{service.urls[-1]}/api/v1/jobs/often:resume", headers=who)
    assert eventually(lambda: [each for each in service.runs("often") if each["missed"] > 1])


def test_another_server_goes_on(service: Service, silent: str, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1s"}
    service.configure({"hangs": hanging(silent, tmp_path), "often": often})
    service.start()
    service.at_work("hangs")
    service.start()
    one, other = service.get("status", 0), service.get("status", 1)
    assert one["leader"] == other["leader"] == one["here"] != other["here"]
    service.stop(0, signal.SIGKILL)
    eventually(lambda: processes(silent) == [])  # it lives no longer than its server
    with ServiceStore(service.store) as store:
        store.resign(one["here"])  # as its lease ends by itself
    eventually(lambda: service.get("status", 1)["leader"] == other["here"])
    eventually(lambda: service.runs("hangs", 1)[1:])
    service.at_work("hangs", 1)
    again, lost = service.runs("hangs", 1)
    assert (again["state"], lost["state"]) == ("running", "lost") and again["due"] == lost["due"]
    assert eventually(lambda: [each for each in service.runs("often") if each["server"] == other["here"]])
    assert service.get("status", 1)["epoch"] == one["epoch"] + 1


def test_who_may_do_what(service: Service, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1d"}
    service.configure({"often": often})
    viewer, operator = service.token("viewer", "viewer"), service.token("operator", "operator")
    url = service.start("--require-token") + "/api/v1"

    def created(*arguments: str) -> dict[str, str]:
        made = service.command("token", "create", *arguments)
        assert made.returncode == 0, made.stderr
        return {"Authorization": f"Bearer {made.stdout.strip()}"}

    admin, brief = created("admin", "--role", "admin"), created("brief", "--role", "admin", "--expires", "1ms")
    nobody, wrong = {}, {"Authorization": "Bearer rpl_wrong"}
    for who, look, act, rule in (
        (nobody, 401, 401, 401),
        (wrong, 401, 401, 401),
        (brief, 401, 401, 401),
        (viewer, 200, 403, 403),
        (operator, 200, 204, 403),
        (admin, 200, 204, 204),
    ):
        found = web.get(f"{url}/jobs", headers=who).status_code
        paused = web.post(f"{url}/jobs/often:pause", json={}, headers=who).status_code
        everything = web.post(f"{url}/scheduler:pause", json={}, headers=who).status_code
        assert (found, paused, everything) == (look, act, rule), who
    assert service.command("token", "revoke", "admin").returncode == 0
    refused = web.get(f"{url}/jobs", headers=admin)
    assert refused.status_code == 401 and refused.headers["content-type"] == "application/problem+json"
    assert service.command("token", "create", "viewer").returncode == 2
    stored = (tmp_path / "service.sqlite").read_bytes() + b"".join(each.read_bytes() for each in tmp_path.glob("*.log"))
    for who in (viewer, operator, admin):
        assert who["Authorization"].partition(" ")[2].encode() not in stored


def test_an_action_is_recorded_and_done_once_for_its_key(shared: tuple[Service, dict[str, str]]) -> None:
    service, who = shared
    keyed = {**who, "Idempotency-Key": "k1"}
    eventually(lambda: (found := service.runs("often")) and found[0]["ended"])  # its first, by its schedule
    url = f"{service.urls[0]}/api/v1"
    first = web.post(f"{url}/jobs/often:run", json={"reason": "month's end"}, headers=keyed).json()
    service.ended(first["run"])
    again = web.post(f"{url}/jobs/often:run", json={"reason": "month's end"}, headers=keyed)
    assert (again.status_code, again.json()) == (202, first)
    other = web.post(f"{url}/jobs/often:run", json={}, headers={**who, "Idempotency-Key": "k2"}).json()
    assert other["new"] and other["run"] != first["run"]
    assert web.post(f"{url}/jobs/often:pause", json={}, headers=keyed).status_code == 409
    done = service.get("actions", headers=who)["items"]
    assert [(each["action"], each["subject"]) for each in done[:2]] == [("run", "often")] * 2
    assert (done[1]["who"], done[1]["address"], done[1]["reason"]) == ("me", "127.0.0.1", "month's end")
    page = service.get("actions?limit=1", headers=who)
    assert page["next"] and service.get(f"actions?limit=1&cursor={page['next']}", headers=who)["items"] == [done[1]]
    assert web.get(f"{url}/actions").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "runs?limit=0", None, 422),
        ("GET", "runs?cursor=" + "x" * 41, None, 422),
        ("GET", "runs/none", None, 404),
        ("GET", "runs/..%2F..%2Fetc%2Fpasswd/log", None, 404),
        ("GET", "policies/none", None, 404),
        ("POST", "jobs/none:run", b"{}", 404),
        ("POST", "jobs/often:run", b"{", 422),
        ("POST", "jobs/often:run", b"x" * 70_000, 413),
    ],
)
def test_bad_requests_are_answered(
    method: str, path: str, body: bytes | None, status: int, shared: tuple[Service, dict[str, str]]
) -> None:
    service, who = shared
    headers = {**who, "Content-Type": "application/json"}
    answer = web.request(method, f"{service.urls[0]}/api/v1/{path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status and "Traceback" not in answer.text


def test_rules_and_the_dashboard_ask_for_metrics_that_there_are(shared: tuple[Service, dict[str, str]]) -> None:
    def names() -> set[str]:
        return set(re.findall(r"^# TYPE (\S+)", web.get(f"{shared[0].urls[0]}/metrics").text, re.M))

    eventually(lambda: "replicator_ingestion_jobs" in names(), lambda: "the queue of ingestion is not measured")
    there = names()
    contrib = Path(__file__).parents[2] / "contrib"
    rules = yaml.safe_load((contrib / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((contrib / "grafana/replicator.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules] + [each["expr"] for panel in panels for each in panel["targets"]]
    named = {name.removesuffix("_bucket") for text in asked for name in re.findall(r"\breplicator_[a-z_]+\b", text)}
    assert named and named <= there, named - there


def test_another_name_for_this_host_is_refused(shared: tuple[Service, dict[str, str]]) -> None:
    """As a browser asks that a foreign page has sent here."""
    service, who = shared
    for headers in ({"Host": "evil.example"}, {"Host": "evil.example", **who}):
        assert web.get(f"{service.urls[0]}/api/v1/status", headers=headers).status_code == 421
    assert web.get(f"{service.urls[0]}/api/v1/status").status_code == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    here = tmp_path_factory.mktemp("shared")
    made = Service(here)
    ingestion = {
        "ingestion": {"store": f"sqlite:///{here}/ingestion.sqlite"},
        "ingestion.sources.crm": {"url": "jdbc:postgresql://crm/crm"},
    }
    made.configure({"often": {"command": ["cm", "ls", "--cmroot", str(here / "none")], "every": "1d"}}, more=ingestion)
    who = made.token("me", "admin")
    made.start()
    yield made, who
    made.stop()


def test_a_wrong_file_changes_nothing(shared: tuple[Service, dict[str, str]]) -> None:
    service, _ = shared
    file = service.here / "replicator.toml"
    good = file.read_text()
    try:
        file.write_text(good + "[service.jobs.bad]\ncommand = ['serve']\nevery = '1m'\n")
        said = eventually(lambda: service.get("status")["trouble"])
        assert "service.jobs.bad.command" in said[0]
        assert [each["name"] for each in service.get("jobs")["items"]] == ["often"]
        assert "service.jobs.bad.command" in web.get(service.urls[0]).text
    finally:
        file.write_text(good)
    eventually(lambda: not service.get("status")["trouble"])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_gives_each_thing_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/s.sqlite"
    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.database()
    with ServiceStore(url) as one, ServiceStore(url) as other:
        one.prepare()
        other.prepare()
        assert (one.lead("a", 60), other.lead("b", 60), one.lead("a", 60)) == (1, None, 1)
        assert one.leader() == ("a", 1, True)
        assert one.lead("a", -1) == 1 and one.leader() == ("a", 1, False), "its lease is over by itself"
        assert (other.lead("b", 60), one.lead("a", 60)) == (2, None)
        other.resign("b")
        job = Job("j", ("cm", "ls"), Every(60))
        first, new = one.enqueue(job, 5.0, by="schedule", missed=2)
        assert new and other.enqueue(job, 6.0, by="me") == (first, False)
        assert one.lead("a", 60) == 3
        assert not other.begin(first, "b", 3) and one.begin(first, "a", 3) and not one.begin(first, "a", 3)
        one.resign("a")
        assert other.lead("b", 60) == 4
        assert other.lose(4) == [first] and other.lose(4) == []
        one.end(first, Ended("done", 0))  # too late
        assert one.run(first).state == "lost"
        second, new = one.enqueue(job, 7.0, by="me")
        assert new and not one.begin(second, "a", 3)  # no longer leads
        assert other.cancel(second, "me").state == "cancelled"
        assert [each.id for each in one.runs(limit=1)] == [second]
        assert [each.id for each in one.runs(before=second)] == [first]
        errand, asked = (
            AdHocRun("verify:w", ("verify", "w"), "w"),
            Action(0, 0.0, "me", "", "verify", "w", "", "k", None),
        )
        third, new = one.enqueue(errand, 8.0, by="me", also=recording(one, asked))
        done = action_of(other, "me", "k")
        assert new and done and done.answer == {"run": third, "new": True}
        with pytest.raises(Refused, match=third):
            other.enqueue(AdHocRun("verify:w", ("verify", "w", "--db=d")), 9.0, by="me")
        with pytest.raises(Error):  # the key's second action, whose run goes with it
            other.enqueue(AdHocRun("verify:x", ("verify", "x")), 9.0, by="me", also=recording(other, asked))
        assert [each.id for each in one.open_runs()] == [third]
        set_answer(one, open_action(one, replace(asked, key=None)), {"failed": "why"})
        assert [is_open(each) for each in actions_about(other, "w", ["verify"])] == [False, True]
        other.cancel(third, "me")
        assert set(one.forget(-1)) == {first, second, third} and one.runs() == []


def test_who_asks_all_the_time_waits_for_no_long_answer(postgres: Postgres) -> None:
    with Database(postgres.database(), "store", "--store", connections=1) as hurried:
        with pytest.raises(StoreUnreachable, match="timeout"), hurried.transaction() as connection:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == f"{database.ANSWER:.0f}s"
            connection.exec_driver_sql("SET LOCAL statement_timeout = 100")
            connection.exec_driver_sql("SELECT pg_sleep(600)")
        with hurried.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            usual, driver.patience = driver.patience, 0.0
            with database.unhurried(connection):  # as a migration
                assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "0"
                connection.exec_driver_sql("SELECT pg_sleep(0.3)")
            driver.patience = usual
            assert usual == 1.25 * database.ANSWER


def test_schedules_request_and_land_the_tables_of_an_asset(service: Service, source_metastore: Running) -> None:
    asset, here = unique("sales"), service.here
    drop = here / "drop" / "day" / "orders"
    drop.mkdir(parents=True)
    (drop / "_description.json").write_text('{"format": "csv", "columns": [{"name": "id", "type": "bigint"}]}')
    (drop / "a.csv").write_text("id\n1\n2\n")
    jobs = {
        "orders": {"command": ["ingest", "request", "drop:day", "--include", "ord.*", "--asset", asset], "every": "1d"},
        "land": {"command": ["ingest", "run"], "cron": "0 0 1 1 *"},
    }
    ingestion = {"metastore": source_metastore.uri, "landing": str(here / "landing"), "log": f"{asset}.log"}
    zone = {"ingestion.sources.drop": {"path": str(here / "drop")}}
    service.configure(jobs, more={"ingestion": {**ingestion, "single_user": True}, **zone})
    for line in (f"asset create {asset} --source drop", f"asset approve {asset}"):
        assert service.command(*line.split()).returncode == 0
    who = service.token("me", "admin")
    service.start()
    run = eventually(lambda: (runs := service.runs("orders")) and runs[0]["ended"] and runs[0])
    assert run["state"] == "done", run
    (job,) = service.get("ingestion/requests", headers=who)["jobs"]
    assert (job["asset"], job["source"], job["state"]) == (asset, "drop:day.orders", "queued")
    land, orders = service.get("jobs", headers=who)["items"]
    assert (orders["asset"], orders["schedule"], land["asset"]) == (asset, "every 86400 s", "") and orders["next"]
    page = web.get(f"{service.urls[0]}/ingestion/assets/{asset}", headers=who).text
    assert "Schedules" in page and "Single-user mode, for trying only" in page
    assert web.post(f"{service.urls[0]}/api/v1/jobs/land:run", json={}, headers=who).status_code == 202
    run = eventually(lambda: (runs := service.runs("land")) and runs[0]["ended"] and runs[0])
    assert run["state"] == "done", run
    (job,) = service.get("ingestion/requests", headers=who)["jobs"]
    assert (job["state"], job["rows"]) == ("done", 2)
    schema = {"table": "drop:day", "asset": asset}
    refused = web.post(f"{service.urls[0]}/api/v1/ingestion/requests", json=schema, headers=who)
    assert refused.status_code == 400 and "SOURCE:SCHEMA.TABLE" in refused.text
    with connect(source_metastore.uri) as metastore:  # jobs that remove read all of it
        for db, table in ((f"{asset}_day", "orders"), (asset, "log")):
            metastore.drop_table(db, table)
            metastore.drop_database(db)
