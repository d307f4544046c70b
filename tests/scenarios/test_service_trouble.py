"""The service when something is wrong around it: its store, its disk, its clock, its file, its runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import web
from postgres import running_postgres
from running_service import Service, hanging, processes
from sqlalchemy import select
from waiting import Clock, eventually

from replicator.core import database
from replicator.core.config import read_config
from replicator.core.database import Database
from replicator.errors import StoreUnreachable
from replicator.service.scheduler import Scheduler
from replicator.service.schema import lease
from replicator.service.store import ServiceStore


def often(here: Path) -> dict[str, Any]:
    return {"command": ["cm", "ls", "--cmroot", f"{here}/none"], "every": "1s"}


def ended(service: Service, job: str, server: int = -1) -> list[dict[str, Any]]:
    return [each for each in service.runs(job, server) if each["ended"]]


def catches(process: int) -> bool:
    """Whether it has its own way to end by SIGTERM: it is past its beginning."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> signal.SIGTERM - 1 & 1)


def test_a_store_that_goes_away_comes_back_and_clocks_do_not_matter(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("REPLICATOR_TEST_POSTGRES"):
        pytest.skip("somebody else's PostgreSQL is not stopped")
    with running_postgres() as postgres:
        service.store = postgres.database()
        service.configure({"often": often(tmp_path)})
        service.start()
        eventually(lambda: ended(service, "often"))
        (tmp_path / "ahead").mkdir()
        (tmp_path / "ahead/sitecustomize.py").write_text(
            "import time\nreal = time.time\ntime.time = lambda: real() + 3600.0\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ahead"))
        service.start()  # its clock is an hour ahead
        monkeypatch.delenv("PYTHONPATH")
        one, other = service.get("status", 0), service.get("status", 1)
        assert one["leader"] == other["leader"] == one["here"] and other["led"]
        assert service.stop(0) == 0
        eventually(lambda: service.get("status")["leader"] == other["here"])
        theirs = eventually(lambda: [each for each in ended(service, "often") if each["server"] == other["here"]])
        with ServiceStore(service.store) as store:
            (run,) = (each for each in store.runs() if each.id == theirs[0]["id"])
            assert run.queued <= store.now(), "by the store's clock"

        postgres.stop()
        ready = eventually(lambda: (found := web.get(f"{service.urls[-1]}/readyz")).status_code == 503 and found)
        assert ready.json()["transient"] and ready.json()["hint"], ready.text
        assert web.get(f"{service.urls[-1]}/healthz").status_code == 200
        assert web.get(f"{service.urls[-1]}/api/v1/runs").status_code == 503
        postgres.start()
        eventually(lambda: web.get(f"{service.urls[-1]}/readyz").status_code == 200)
        before = {each["id"] for each in ended(service, "often")}
        eventually(lambda: {each["id"] for each in ended(service, "often")} - before)
        eventually(lambda: not service.get("status")["trouble"])
        assert service.stop() == 0


def answers(store: Database) -> bool:
    """Whether its connections are made in the little time that they have."""
    try:
        return store.revision("none", "") is None
    except StoreUnreachable:
        return False


def lease_end(store: ServiceStore) -> float:
    with store.transaction() as connection:
        return float(connection.execute(select(lease.c.expires)).scalar_one())


def test_runs_end_before_another_may_lead_and_are_followed_by_others(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that stops to answer, one that hangs, and one that goes away just as a run begins."""
    if os.environ.get("REPLICATOR_TEST_POSTGRES"):
        pytest.skip("somebody else's PostgreSQL is not stopped")
    file, root = tmp_path / "replicator.toml", f"{tmp_path}/cm"
    command = ["capture", "--source", silent, "--db", "d", "--cmroot", root]
    with running_postgres() as postgres:
        url = postgres.database()
        job = f"[service.jobs.hanging]\ncommand = {json.dumps(command)}\nevery = '1s'\njitter = '0s'\n"
        file.write_text(f"[service]\nstore = '{url}'\nlogs = '{tmp_path}/logs'\ngrace = '10m'\n{job}")
        monkeypatch.setattr(database, "ANSWER", 0.4)
        hurried = Database(f"{url}&connect_timeout=2", "store", "--store", connections=1)
        monkeypatch.undo()
        with ServiceStore(url) as store, ServiceStore(url) as seen, hurried:
            store.prepare()
            clock = Clock()
            scheduler = Scheduler(store, lambda: read_config(file), file, clock=clock)
            running = threading.Thread(target=scheduler.run)
            running.start()
            try:
                for stop, start in ((postgres.stop, postgres.start), (postgres.freeze, postgres.thaw)):
                    eventually(lambda: processes(root))
                    (run,) = seen.open_runs()
                    eventually(lambda: answers(hurried))
                    stop()
                    clock.advance(scheduler.lease)
                    eventually(lambda: not processes(root))
                    with pytest.raises(StoreUnreachable):  # also from one that hangs, and takes connections
                        hurried.revision("none", "")
                    start()
                    ended = eventually(lambda id=run.id: (found := seen.run(id)).ended and found)
                    assert (ended.state, ended.message) == ("cancelled", "the server lost its lease"), ended
                eventually(lambda: processes(root))
                (run,) = seen.open_runs()
                late = eventually(lambda: (found := processes(root)) and all(map(catches, found)) and found)
                for each in late:
                    os.kill(each, signal.SIGSTOP)  # it ends later than the lease, and within its grace
                scheduler.stopping.set()
                for _ in range(2):
                    until = lease_end(seen)
                    eventually(lambda until=until: lease_end(seen) > until)  # type: ignore[misc]
                assert seen.leader()[2] and processes(root) == late
                for each in late:
                    os.kill(each, signal.SIGCONT)
                running.join()
                assert seen.run(run.id).exit_code == 143
                stray, _ = seen.enqueue(scheduler.jobs["hanging"], seen.now(), by="me")
                epoch = seen.lead(scheduler.name, scheduler.lease)
                assert epoch and seen.begin(stray, scheduler.name, epoch)
                scheduler.step()
                assert seen.run(run.id).message == "the service was stopped"
                assert seen.run(stray).state == "lost" and "while the run began" in seen.run(stray).message
            finally:
                scheduler.stopping.set()
                running.join()


def test_runs_end_with_their_policy_their_patience_or_their_server(
    service: Service, silent: str, tmp_path: Path
) -> None:
    """A policy is removed while it runs; a schedule cannot be kept; a run heeds no signal; the server is stopped."""
    other, service.grace = silent.replace("127.0.0.1", "localhost"), "2s"
    jobs = {
        "hangs": hanging(silent, tmp_path / "one"),
        "slow": {**hanging(silent, tmp_path), "timeout": "2s", "every": "1s"},
    }
    keys = {"source": silent, "target": other, "databases": ["d"], "cmroot": f"{tmp_path}/cm", "schedule": "1d"}
    policy = {**keys, "target_cmroot": f"{tmp_path}/tcm", "dumps": f"{tmp_path}/dumps"}
    service.configure(jobs, {"west": policy})
    who = service.token("me", "operator")
    url = f"{service.start()}/api/v1"
    run = service.at_work("hangs")["id"]
    children = eventually(lambda: processes(f"{tmp_path}/one/cm"))
    for each in children:
        os.kill(each, signal.SIGSTOP)  # heeds SIGTERM no more
    assert web.post(f"{url}/runs/{run}:cancel", headers=who).status_code == 202
    assert service.ended(run)["state"] == "cancelled"
    eventually(lambda: not set(children) & set(processes(f"{tmp_path}/one/cm")))

    web.post(f"{url}/jobs/west:run", json={}, headers=who)  # its first run by schedule is up to half a minute away
    west = service.at_work("west")["id"]
    service.configure(jobs)
    eventually(lambda: {each["name"] for each in service.get("jobs")["items"]} == {"hangs", "slow"})
    assert web.get(f"{url}/policies/west").status_code == 404
    assert web.post(f"{url}/jobs/west:run", json={}, headers=who).status_code == 404
    assert web.post(f"{url}/runs/{west}:cancel", headers=who).status_code == 202
    ended_west = service.ended(west)
    if ended_west["state"] != "cancelled":  # it had not read the file yet
        assert "no policy " in ended_west["message"], ended_west

    late = eventually(lambda: [each for each in ended(service, "slow") if each["missed"]])
    assert late[0]["message"] == "took longer than its timeout of 2 s"
    times = sorted((each["begun"], each["ended"]) for each in ended(service, "slow"))
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(times)), "never two at once"

    service.at_work("slow")
    assert service.stop() == 0
    assert processes(silent) == []
    service.configure({})
    service.start()
    last = service.runs("slow")[0]
    assert (last["state"], last["message"]) in [
        ("cancelled", "the service was stopped"),
        ("cancelled", "took longer than its timeout of 2 s"),
    ], last


def test_a_full_disk_is_told_and_left_behind(small: Callable[[str], Path], service: Service, tmp_path: Path) -> None:
    place = small("size=4m")
    service.store = f"sqlite:///{place}/service.sqlite"
    service.configure({"often": often(tmp_path)})
    service.start()
    eventually(lambda: ended(service, "often"))
    fill = place / "fill"
    with fill.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    trouble = eventually(lambda: service.get("status")["trouble"])
    assert "full" in trouble[0], trouble
    assert web.get(f"{service.urls[0]}/healthz").status_code == 200
    assert web.get(service.urls[0]).status_code == 200
    ready = web.get(f"{service.urls[0]}/readyz")
    assert ready.status_code in (503, 507) and "full" in ready.text
    fill.unlink()
    eventually(lambda: web.get(f"{service.urls[0]}/readyz").status_code == 200)
    eventually(lambda: not service.get("status")["trouble"])
    before = {each["id"] for each in ended(service, "often")}
    eventually(lambda: {each["id"] for each in ended(service, "often")} - before)


def test_metrics_of_policies_that_cron_runs(service: Service, silent: str, tmp_path: Path) -> None:
    keys = {"source": "thrift://127.0.0.1:9", "target": "thrift://localhost:9", "databases": ["d"]}
    policy = {**keys, "cmroot": f"{tmp_path}/cm", "target_cmroot": f"{tmp_path}/tcm", "dumps": f"{tmp_path}/dumps"}
    service.configure({}, {"west": policy})
    file = tmp_path / "r.prom"
    file.write_text("old")
    done = service.command("metrics", "--textfile", str(file))
    assert done.returncode in (0, 3), done.stderr
    text = file.read_text()
    assert 'replicator_policy_status{policy="west",status="current"} 0.0' in text and text.endswith("\n")
    assert file.stat().st_mode & 0o777 == 0o644 and not list(tmp_path.glob(".r.prom*"))
    assert not (tmp_path / "service.sqlite").exists(), "no service is begun by looking"
    wrong = service.command("metrics", "--textfile", str(tmp_path / "none/r.prom"))
    assert wrong.returncode == 1 and "none/r.prom" in wrong.stderr, wrong.stderr
