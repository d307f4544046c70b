"""`replicator serve`: real processes, a real policy, and a client over HTTP."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from policies import Replication
from postgres import Postgres

from replicator import database
from replicator.database import Database
from replicator.errors import Error, Refused, StoreUnreachable
from replicator.metastore.embedded.running import Running
from replicator.service.actions import Action, action_of, actions_about, is_open, open_action, recording, set_answer
from replicator.service.errands import Errand
from replicator.service.jobs import Job
from replicator.service.service_run import Ended
from replicator.service.store import ServiceStore
from replicator.service.timetable import Every

PATIENCE = 90.0  # seconds
Tables = dict[str, dict[str, Any]]


class Service:
    """A server and its clients. here: its working directory, which several servers may share."""

    def __init__(self, here: Path, store: str = "") -> None:
        self.here, self.store = here, store or f"sqlite:///{here}/service.sqlite"
        self.servers: list[subprocess.Popen[bytes]] = []
        self.urls: list[str] = []

    def configure(self, jobs: Tables, policies: Tables | None = None, more: Tables | None = None) -> None:
        """Writes the configuration in one step."""
        tables = {"service": {"store": self.store, "logs": str(self.here / "logs"), "grace": "5s"}}
        tables |= {f"service.jobs.{name}": keys for name, keys in jobs.items()}
        tables |= {f"policies.{name}": keys for name, keys in (policies or {}).items()}
        tables |= more or {}
        text = ""
        for table, keys in tables.items():
            text += f"[{table}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        (self.here / "new.toml").write_text(text)
        (self.here / "new.toml").rename(self.here / "replicator.toml")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "replicator", *arguments]
        return subprocess.run(line, cwd=self.here, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def token(self, name: str, *more: str) -> dict[str, str]:
        """The headers of a new one."""
        made = self.command("token", "create", name, *more)
        assert made.returncode == 0, made.stderr
        return {"Authorization": f"Bearer {made.stdout.strip()}"}

    def start(self, *more: str) -> str:
        """Its URL."""
        ready = self.here / f"url-{len(self.servers)}"
        line = [
            sys.executable,
            "-m",
            "replicator",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--ready-file",
            str(ready),
            *more,
        ]
        with (self.here / f"server-{len(self.servers)}.log").open("wb") as log:
            self.servers.append(subprocess.Popen(line, cwd=self.here, stdout=log, stderr=log))
        eventually(lambda: ready.exists() and ready.read_text().endswith("\n"), lambda: self.servers[-1].poll())
        self.urls.append(ready.read_text().strip())
        return self.urls[-1]

    def get(self, path: str, server: int = -1, **more: Any) -> Any:
        answer = httpx.get(f"{self.urls[server]}/api/v1/{path}", **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self, job: str, server: int = -1, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"runs?job={job}", server, **more)["items"]
        return found

    def stop(self, server: int = -1, number: int = signal.SIGTERM) -> int:
        self.servers[server].send_signal(number)
        return self.servers[server].wait(PATIENCE)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def eventually(true: Callable[[], Any], else_: Callable[[], Any] = lambda: "it took too long") -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline, else_()
        time.sleep(0.1)
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    for server in made.servers:
        server.kill()
        server.wait()


@pytest.fixture
def silent() -> Iterator[str]:
    """A metastore that takes a connection, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"thrift://127.0.0.1:{listening.getsockname()[1]}"


def hanging(silent: str, here: Path) -> dict[str, Any]:
    """A job that is at work until it is ended."""
    return {"command": ["capture", "--source", silent, "--db", "d", "--cmroot", f"{here}/cm"], "every": "1d"}


def processes(of: str) -> list[int]:
    """Those whose command line names something."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if of.encode() in (place / "cmdline").read_bytes() and int(place.name) != os.getpid():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def test_a_policy_is_kept_in_step(
    service: Service, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    replication = Replication(source_metastore, target_metastore, tmp_path)
    source = replication.db()
    source.table("t", {"f": "1\n"})
    service.configure({}, {"west": {**replication.keys, "schedule": "1s", "max_lag": "10m"}})
    service.start()
    eventually(lambda: any(each["state"] == "done" for each in service.runs("west")))
    source.write("t", {"g": "2\n"})
    replica = replication.replica()
    eventually(lambda: replica.exists() and (replica.home / "t" / "g").exists())
    policy = eventually(lambda: next(each for each in service.get("policies")["items"] if each["measured"]))
    assert policy["name"] == "west" and policy["objective_seconds"] == 600.0 and not policy["trouble"], policy
    assert service.get("policies/west/lag")["policy"] == "west"
    assert service.get("policies/west/history")["runs"][-1]["status"] == "done"
    newest = next(each for each in service.runs("west") if each["state"] == "done")
    assert service.get(f"runs/{newest['id']}/answer")["policy"] == "west"
    metrics = httpx.get(f"{service.urls[0]}/metrics").text
    assert re.search(r'^replicator_lag_objective_seconds\{policy="west"\} 600\.0$', metrics, re.M), metrics
    assert re.search(r'^replicator_last_success_timestamp_seconds\{job_name="west"\} \d', metrics, re.M), metrics
    page = eventually(lambda: _page_with("All is well", service.urls[0]))  # its lag is measured now and then
    assert "1 policy, 1 job" in page and "/policies/west" in page
    page = httpx.get(f"{service.urls[0]}/policies/west").text
    assert "<polyline" in page or "from the second measurement on" in page
    assert source.name in page
    assert service.stop() == 0
    starts = sorted((each["begun"], each["ended"]) for each in _all(service.store))
    assert len(starts) > 1 and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(starts))


def _page_with(text: str, url: str) -> str:
    """Empty where it does not say so."""
    page = httpx.get(url).text
    return page if text in page else ""


def _all(url: str) -> list[dict[str, float]]:
    with ServiceStore(url) as store:
        return [{"begun": each.begun or 0, "ended": each.ended or 0} for each in store.runs(limit=500)]


def test_a_run_is_cancelled_and_times_out(service: Service, silent: str, tmp_path: Path) -> None:
    other = tmp_path / "other"  # a root of its own: on one, the second is refused the lease
    other.mkdir()
    service.configure({"hangs": hanging(silent, tmp_path), "late": {**hanging(silent, other), "timeout": "1s"}})
    who = service.token("me", "--role", "operator")
    service.start()
    late = eventually(lambda: [each for each in service.runs("late") if each["state"] == "cancelled"])[0]
    assert late["message"] == "took longer than its timeout of 1 s"
    run = eventually(lambda: [each for each in service.runs("hangs") if each["state"] == "running"])[0]
    assert eventually(lambda: processes(silent))
    asked = httpx.post(f"{service.urls[0]}/api/v1/runs/{run['id']}:cancel", headers=who)
    assert asked.status_code == 202
    ended = eventually(lambda: [each for each in service.runs("hangs") if each["ended"]])[0]
    assert (ended["state"], ended["message"], ended["cancelled_by"]) == ("cancelled", "cancelled by me", "me")
    assert processes(silent) == []


def test_a_pause_survives_and_what_it_missed_is_made_up_once(service: Service, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1s"}
    service.configure({"often": often})
    who = service.token("me", "--role", "operator")
    url = service.start()
    failed = eventually(lambda: [each for each in service.runs("often") if each["state"] == "failed"])[0]
    assert failed["exit_code"] == 1 and "none" in failed["message"] and failed["hint"], failed
    paused = httpx.post(f"{url}/api/v1/jobs/often:pause", json={"reason": "a test"}, headers=who)
    assert paused.status_code == 204, paused.text
    assert service.stop() == 0
    service.start()
    job = service.get("jobs")["items"][0]
    assert (job["paused"], job["paused_by"], job["reason"]) == (True, "me", "a test")
    before = len(service.runs("often"))
    wanted = httpx.post(f"{service.urls[-1]}/api/v1/jobs/often:run", json={"reason": "now"}, headers=who).json()
    assert wanted["new"]
    eventually(lambda: service.get(f"runs/{wanted['run']}")["ended"])
    assert len(service.runs("often")) == before + 1  # and none by its schedule
    httpx.post(f"{service.urls[-1]}/api/v1/jobs/often:resume", headers=who)
    assert eventually(lambda: [each for each in service.runs("often") if each["missed"] > 1])


def test_another_server_goes_on(service: Service, silent: str, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1s"}
    service.configure({"hangs": hanging(silent, tmp_path), "often": often})
    service.start()
    eventually(lambda: [each for each in service.runs("hangs") if each["state"] == "running"])
    service.start()
    one, other = service.get("status", 0), service.get("status", 1)
    assert one["leader"] == other["leader"] == one["here"] != other["here"]
    service.stop(0, signal.SIGKILL)
    eventually(lambda: processes(silent) == [])  # it lives no longer than its server
    eventually(lambda: service.get("status", 1)["leader"] == other["here"])
    made_up = eventually(lambda: (found := service.runs("hangs", 1))[1:] and found)
    assert [each["state"] for each in made_up] == ["running", "lost"] and made_up[0]["due"] == made_up[1]["due"]
    assert eventually(lambda: [each for each in service.runs("often") if each["server"] == other["here"]])
    assert service.get("status", 1)["epoch"] == one["epoch"] + 1


def test_who_may_do_what(service: Service, tmp_path: Path) -> None:
    often = {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1d"}
    service.configure({"often": often})
    viewer, operator, admin = (service.token(role, "--role", role) for role in ("viewer", "operator", "admin"))
    brief = service.token("brief", "--role", "admin", "--expires", "1ms")
    url = service.start("--require-token") + "/api/v1"
    nobody, wrong = {}, {"Authorization": "Bearer rpl_wrong"}
    for who, look, act, rule in (
        (nobody, 401, 401, 401),
        (wrong, 401, 401, 401),
        (brief, 401, 401, 401),
        (viewer, 200, 403, 403),
        (operator, 200, 204, 403),
        (admin, 200, 204, 204),
    ):
        found = httpx.get(f"{url}/jobs", headers=who).status_code
        paused = httpx.post(f"{url}/jobs/often:pause", json={}, headers=who).status_code
        everything = httpx.post(f"{url}/scheduler:pause", json={}, headers=who).status_code
        assert (found, paused, everything) == (look, act, rule), who
    assert service.command("token", "revoke", "admin").returncode == 0
    refused = httpx.get(f"{url}/jobs", headers=admin)
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
    first = httpx.post(f"{url}/jobs/often:run", json={"reason": "month's end"}, headers=keyed).json()
    eventually(lambda: service.get(f"runs/{first['run']}")["ended"])
    again = httpx.post(f"{url}/jobs/often:run", json={"reason": "month's end"}, headers=keyed)
    assert (again.status_code, again.json()) == (202, first)
    other = httpx.post(f"{url}/jobs/often:run", json={}, headers={**who, "Idempotency-Key": "k2"}).json()
    assert other["new"] and other["run"] != first["run"]
    assert httpx.post(f"{url}/jobs/often:pause", json={}, headers=keyed).status_code == 409
    done = service.get("actions", headers=who)["items"]
    assert [(each["action"], each["subject"]) for each in done[:2]] == [("run", "often")] * 2
    assert (done[1]["who"], done[1]["address"], done[1]["reason"]) == ("me", "127.0.0.1", "month's end")
    page = service.get("actions?limit=1", headers=who)
    assert page["next"] and service.get(f"actions?limit=1&cursor={page['next']}", headers=who)["items"] == [done[1]]
    assert httpx.get(f"{url}/actions").status_code == 401


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
    answer = httpx.request(method, f"{service.urls[0]}/api/v1/{path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status and "Traceback" not in answer.text


def test_rules_and_the_dashboard_ask_for_metrics_that_there_are(shared: tuple[Service, dict[str, str]]) -> None:
    def names() -> set[str]:
        return set(re.findall(r"^# TYPE (\S+)", httpx.get(f"{shared[0].urls[0]}/metrics").text, re.M))

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
        assert httpx.get(f"{service.urls[0]}/api/v1/status", headers=headers).status_code == 421
    assert httpx.get(f"{service.urls[0]}/api/v1/status").status_code == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    here = tmp_path_factory.mktemp("shared")
    made = Service(here)
    ingestion = {
        "ingestion": {"store": f"sqlite:///{here}/ingestion.sqlite"},
        "ingestion.sources.crm": {"url": "jdbc:postgresql://crm/crm"},
    }
    made.configure({"often": {"command": ["cm", "ls", "--cmroot", str(here / "none")], "every": "1d"}}, more=ingestion)
    who = made.token("me", "--role", "admin")
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
        assert "service.jobs.bad.command" in httpx.get(service.urls[0]).text
    finally:
        file.write_text(good)
    eventually(lambda: not service.get("status")["trouble"])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_gives_each_thing_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/s.sqlite"
    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.database()
        monkeypatch.setattr(database, "ANSWER", 0.2)
        with Database(url, "store", "--store", connections=1) as hurried:
            with pytest.raises(StoreUnreachable, match="timeout"), hurried.transaction() as connection:
                connection.exec_driver_sql("SELECT pg_sleep(60)")
            with hurried.transaction() as connection, database._unhurried(connection):  # as a migration
                connection.exec_driver_sql("SELECT pg_sleep(0.5)")
        monkeypatch.undo()
    with ServiceStore(url) as one, ServiceStore(url) as other:
        one.prepare()
        other.prepare()
        assert (one.lead("a", 60), other.lead("b", 60), one.lead("a", 60)) == (1, None, 1)
        job = Job("j", ("cm", "ls"), Every(60))
        first, new = one.enqueue(job, 5.0, by="schedule", missed=2)
        assert new and other.enqueue(job, 6.0, by="me") == (first, False)
        assert not other.begin(first, "b", 1) and one.begin(first, "a", 1) and not one.begin(first, "a", 1)
        one.resign("a")
        assert other.lead("b", 60) == 2
        assert other.lose(2) == [first] and other.lose(2) == []
        one.end(first, Ended("done", 0))  # too late
        assert one.run(first).state == "lost"
        second, new = one.enqueue(job, 7.0, by="me")
        assert new and not one.begin(second, "a", 1)  # no longer leads
        assert other.cancel(second, "me").state == "cancelled"
        assert [each.id for each in one.runs(limit=1)] == [second]
        assert [each.id for each in one.runs(before=second)] == [first]
        errand, asked = Errand("verify:w", ("verify", "w"), "w"), Action(0, 0.0, "me", "", "verify", "w", "", "k", None)
        third, new = one.enqueue(errand, 8.0, by="me", beside=recording(one, asked))
        done = action_of(other, "me", "k")
        assert new and done and done.answer == {"run": third, "new": True}
        with pytest.raises(Refused, match=third):
            other.enqueue(Errand("verify:w", ("verify", "w", "--db=d")), 9.0, by="me")
        with pytest.raises(Error):  # the key's second action, whose run goes with it
            other.enqueue(Errand("verify:x", ("verify", "x")), 9.0, by="me", beside=recording(other, asked))
        assert [each.id for each in one.open_runs()] == [third]
        set_answer(one, open_action(one, replace(asked, key=None)), {"failed": "why"})
        assert [is_open(each) for each in actions_about(other, "w", ["verify"])] == [False, True]
        other.cancel(third, "me")
        assert set(one.forget(-1)) == {first, second, third} and one.runs() == []
