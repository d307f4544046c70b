"""The scheduler, step by step: which runs begin, wait, come again, and are forgotten. Its children are real."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from sqlalchemy import event
from waiting import CEILING, eventually

from replicator.core.config import read_config
from replicator.errors import ConfigError, Refused, StoreUnreachable, UsageError
from replicator.service import scheduler as scheduling
from replicator.service.api_tokens import create_token
from replicator.service.jobs import Cron, Every, Job
from replicator.service.measuring import LagWatch
from replicator.service.runs import SCHEDULE, Ended, lacking_in
from replicator.service.scheduler import Scheduler
from replicator.service.store import ALL, AdHocRun, ServiceStore
from replicator.service.web.app import make_app
from replicator.service.web.serving import Serving

HOUR = 3600.0
LEASE = 4 * CEILING


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as made:
        made.prepare()
        yield made


def scheduler_of(store: ServiceStore, here: Path, names: str, **service: Any) -> Scheduler:
    """Jobs of these letters, which end by themselves, each hour."""
    command = json.dumps(["cm", "ls", "--cmroot", f"{here}/none"])
    text = f"[service]\nlogs = '{here}/logs'\n" + "".join(f"{key} = {each!r}\n" for key, each in service.items())
    text += "".join(f"[service.jobs.{name}]\ncommand = {command}\nevery = '1h'\n" for name in names)
    (here / "replicator.toml").write_text(text)
    return Scheduler(store, lambda: read_config(here / "replicator.toml"), here / "replicator.toml", lease=LEASE)


def states(store: ServiceStore) -> dict[str, str]:
    """Of each job's newest run."""
    return {name: run.state for name, run in store.newest().items()}


def stepping(scheduler: Scheduler, true: Callable[[], Any]) -> None:
    def stepped() -> Any:
        scheduler.step()
        return true()

    eventually(stepped, lambda: scheduler.health)


def ended(scheduler: Scheduler) -> None:
    """As when its service is stopped."""
    scheduler.stopping.set()
    scheduler.run()


def test_runs_wait_for_places_in_order_and_for_the_end_of_a_pause(store: ServiceStore, tmp_path: Path) -> None:
    scheduler = scheduler_of(store, tmp_path, "abcd", at_once=1)
    for name in "abcd":
        by = "me" if name == "c" else SCHEDULE
        store.enqueue(scheduler.jobs[name], store.now(), by=by)
        store.plan(name, scheduler.jobs[name].schedule.text, store.now() + HOUR)
    store.pause("a", "me", "")
    store.pause("c", "me", "")
    scheduler.step()
    assert states(store) == {"a": "queued", "b": "running", "c": "queued", "d": "queued"}
    store.pause(ALL, "me", "")
    store.cancel(store.newest()["b"].id, "me")
    stepping(scheduler, lambda: states(store)["b"] == "cancelled")
    scheduler.step()
    assert states(store) == {"a": "queued", "b": "cancelled", "c": "running", "d": "queued"}, "somebody wanted c"
    ended(scheduler)
    again = scheduler_of(store, tmp_path, "abcd", at_once=4)  # another server
    again.step()
    assert again.health.leads and states(store)["a"] == states(store)["d"] == "queued"
    queued = store.newest()["d"].id
    assert store.enqueue(again.jobs["d"], store.now(), by="me", reason="now") == (queued, False)
    assert store.enqueue(again.jobs["d"], store.now(), by="you") == (queued, False)
    again.step()
    taken = store.newest()["d"]
    assert (taken.state, taken.asked_by, taken.reason, taken.missed) == ("running", "me", "now", 1), "no pause holds it"
    assert states(store)["a"] == "queued"
    store.resume(ALL)
    again.step()
    assert states(store)["a"] == "queued"
    store.resume("a")
    again.step()
    assert states(store)["a"] == "running"
    ended(again)
    assert states(store) == dict.fromkeys("abcd", "cancelled")
    now = store.now()
    assert {name for name, state in store.jobs().items() if state.due <= now} >= {"a", "d"}, "made up for"


def test_a_refused_run_names_the_state_of_the_other_one(store: ServiceStore) -> None:
    job, other = (AdHocRun("verify:w", ("verify", "w", *more), "w") for more in ((), ("--db", "a")))
    there, _ = store.enqueue(job, store.now(), by="me")
    with pytest.raises(Refused, match=f"verify:w is queued with other options: run {there}"):
        store.enqueue(other, store.now(), by="me")
    assert store.begin(there, "one", store.lead("one", LEASE) or 0)
    with pytest.raises(Refused, match="verify:w is running with other options"):
        store.enqueue(other, store.now(), by="me")


def test_renewing_the_lease_or_trying_to_write_is_no_change(store: ServiceStore) -> None:
    """Open pages are sent again at each change."""
    assert store.lead("one", LEASE) == 1
    before = store.changes
    assert store.lead("one", LEASE) == 1
    store.check_writable()
    assert store.changes == before
    with store.together():
        store.pause("j", "me", "why")
        store.check_writable()
    assert store.changes == before + 1


def test_what_its_server_ended_is_due_again_once(store: ServiceStore) -> None:
    job = Job("j", ("cm", "ls"), Every(HOUR))
    assert store.lead("one", LEASE) == 1

    def begun(due: float, by: str = SCHEDULE, wanted: Job | AdHocRun = job) -> str:
        store.plan("j", job.schedule.text, due + HOUR)
        run, _ = store.enqueue(wanted, due, by=by)
        assert store.begin(run, "one", 1)
        return run

    store.end(begun(1000.0), Ended("cancelled", message="the service was stopped", again=True))
    assert store.jobs()["j"].due == 1000.0
    lost = begun(1000.0)
    assert store.lose(2) == [lost] and store.jobs()["j"].due == 1000.0
    store.plan("j", job.schedule.text, 2000.0)
    store.end(lost, Ended("lost", again=True))  # its second end
    assert store.jobs()["j"].due == 2000.0
    cancelled = begun(1000.0)
    store.cancel(cancelled, "me")
    assert store.lose(2) == [cancelled] and store.jobs()["j"].due == 1000.0 + HOUR
    for end in (Ended("cancelled", message="took longer"), Ended("failed", 1), Ended("done", 0)):
        store.end(begun(1000.0), end)
        assert store.jobs()["j"].due == 1000.0 + HOUR
    store.plan("j", job.schedule.text, 1000.0 + HOUR)
    taken, _ = store.enqueue(job, 1000.0, by=SCHEDULE)
    assert store.enqueue(job, 5000.0, by="me") == (taken, False) and store.begin(taken, "one", 1)
    assert store.lose(2) == [taken] and store.jobs()["j"].due == 1000.0, "it was for the time of the schedule, too"
    for wanted in (job, AdHocRun("verify:w", ("verify", "w"), "w")):
        begun(1000.0, "me", wanted)
        assert len(store.lose(2)) == 1 and store.jobs()["j"].due == 1000.0 + HOUR
    with pytest.raises(UsageError):
        create_token(store, SCHEDULE, "operator", [], HOUR)


def test_a_time_that_meets_a_run_somebody_asked_for_stays_due(store: ServiceStore) -> None:
    job = Job("j", ("cm", "ls"), Every(HOUR))
    store.plan("j", job.schedule.text, 1000.0)
    asked, _ = store.enqueue(job, 900.0, by="me")
    store.enqueue_due(job, 1000.0, 0, 1000.0 + HOUR)
    assert [each.id for each in store.open_runs()] == [asked] and store.jobs()["j"].due == 1000.0
    store.end(asked, Ended("done", 0))
    store.enqueue_due(job, 1000.0, 0, 1000.0 + HOUR)
    assert len(store.open_runs()) == 1 and store.jobs()["j"].due == 1000.0 + HOUR


def test_the_newest_run_is_the_one_that_was_queued_last(store: ServiceStore) -> None:
    job = Job("j", ("cm", "ls"), Every(HOUR))
    asked, _ = store.enqueue(job, store.now(), by="me")
    store.end(asked, Ended("done", 0))
    made_up, _ = store.enqueue(job, store.now() - 10 * HOUR, by=SCHEDULE, missed=10)
    store.plan("j", "", 0.0)
    assert [each.id for each in store.runs()] == [made_up, asked] and store.newest()["j"].id == made_up


def test_the_first_runs_are_found_without_reading_all(store: ServiceStore) -> None:
    jobs = {name: Job(name, ("cm", "ls"), Every(HOUR)) for name in "jk"}
    for name, job in jobs.items():
        store.plan(name, job.schedule.text, 0.0)
        for _ in range(2 if name == "j" else 0):
            store.end(store.enqueue(job, 5.0, by="me")[0], Ended("done", 0))
    asked: list[str] = []
    with store.together(), store.transaction() as connection:
        event.listen(connection, "before_cursor_execute", lambda *given: asked.append(given[2]))
        found = store.first_runs()
        plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert found == {"j": pytest.approx(store.runs()[-1].queued, abs=0.002)}
    assert not [each for each in plan if "SCAN service_run" in each], plan


def test_a_clock_that_ran_ahead_keeps_nothing_waiting(store: ServiceStore, tmp_path: Path) -> None:
    scheduler = scheduler_of(store, tmp_path, "ab")
    now, text = store.now(), scheduler.jobs["a"].schedule.text
    store.pause(ALL, "me", "")
    store.plan("a", text, now + 400 * 24 * HOUR)
    store.plan("b", text, now + HOUR)
    assert store.lead("gone", LEASE) == 1
    with store.transaction() as connection:
        connection.exec_driver_sql("UPDATE service_lease SET expires = expires + 1e6")
    scheduler.step()  # may not lead yet: the other may be there, and asks twice a second
    assert not scheduler.health.leads
    with store.transaction() as connection:
        left = connection.exec_driver_sql("SELECT expires FROM service_lease").scalar_one() - store.now()
    assert left <= scheduler.lease
    store.resign("gone")
    scheduler.step()
    found = store.jobs()
    assert abs(found["a"].due - now) < HOUR / 2 and found["b"].due == now + HOUR
    daily = Cron("0 3 * * *")
    assert daily.first(now) < daily.latest(now) <= now + 48 * HOUR


def test_a_server_that_learns_it_lost_its_lease_ends_its_runs_at_once(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "STEP", 0.01)
    for renewing in (False, True):
        scheduler = scheduler_of(store, tmp_path, "a")
        child = Mock(job="a", begun=time.monotonic(), wanted="", ended=Mock(return_value=None))
        monkeypatch.setattr(scheduler, "_child", Mock(return_value=child))
        guard = threading.Thread(target=scheduler._guard)
        guard.start()
        store.enqueue(scheduler.jobs["a"], store.now(), by="me")
        scheduler.step()
        assert scheduler.health.leads and list(states(store).values()) == ["running"]
        store.resign(scheduler.name)  # as when the database's clock was set forward
        assert store.lead("another", LEASE)
        scheduler._renew() if renewing else scheduler.step()
        eventually(lambda child=child: child.stop.call_count > 1)  # long before its own lease ends
        scheduler._over.set()
        guard.join()
        child.stop.assert_called_with("the server lost its lease", scheduler.lease / 6, again=True)
        store.resign("another")
        store.cancel(store.newest()["a"].id, "me")
        store.end(store.newest()["a"].id, Ended("cancelled"))


def test_a_configuration_that_could_not_be_read_is_read_again(store: ServiceStore, tmp_path: Path) -> None:
    scheduler, file = scheduler_of(store, tmp_path, "a"), tmp_path / "replicator.toml"
    store.pause(ALL, "me", "")
    scheduler.step()
    file.rename(tmp_path / "away")
    scheduler.step()
    assert "No such file" in scheduler.health.configuration
    (tmp_path / "away").rename(file)
    scheduler.step()
    assert scheduler.health.configuration == ""
    read = scheduler.read
    scheduler.read = Mock(side_effect=[ConfigError("cannot be read"), ConfigError("cannot be read"), read()])
    file.write_text(file.read_text() + "# new\n")
    for said in ("cannot be read", "cannot be read", "", ""):
        scheduler.step()
        assert scheduler.health.configuration == said
    assert scheduler.read.call_count == 3


def test_outputs_of_forgotten_runs_go(store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "PORTION", 2)
    monkeypatch.setattr(scheduling, "STEP", 0.0)
    scheduler = scheduler_of(store, tmp_path, "a", keep="1d")
    scheduler.sweep()  # nothing ran yet
    store.enqueue(scheduler.jobs["a"], 5.0, by="me")
    with store.transaction() as connection:  # it has waited for long
        connection.exec_driver_sql("UPDATE service_run SET id = '0000000000000-000000000000'")
    young = f"{int(store.now() * 1000 - HOUR * 1000):013d}-000000000000"
    old = [f"{each:013d}-00000000000{each}" for each in range(1, 6)]
    elsewhere = tmp_path / "elsewhere"
    for each in ("0000000000000-000000000000", young, "notes", *old):
        (tmp_path / "logs" / each).mkdir(parents=True)
        (tmp_path / "logs" / each / "log.txt").write_text("")
    elsewhere.mkdir()
    (tmp_path / "logs/0000000000009-000000000000").symlink_to(elsewhere)
    scheduler.sweep()
    left = {each.name for each in (tmp_path / "logs").iterdir()}
    assert left == {"0000000000000-000000000000", young, "notes", "0000000000009-000000000000"}


def test_a_step_in_trouble_is_a_step_and_one_that_hangs_is_none(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(store, tmp_path, "a")
    watch = LagWatch(lambda: scheduler.config, scheduler.stopping)
    transport = httpx.ASGITransport(make_app(Serving(store, scheduler, watch), open_to_all=True))

    async def healthz() -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            return (await asking.get("/healthz")).status_code

    monkeypatch.setattr("replicator.service.web.app.STALE", LEASE)
    (tmp_path / "s.sqlite").unlink()
    store.close()
    scheduler.health.step -= 2 * LEASE
    scheduler.step()
    assert scheduler.health.trouble and asyncio.run(healthz()) == 200
    scheduler.health.step -= 2 * LEASE
    assert asyncio.run(healthz()) == 503


def ready_of(scheduler: Scheduler) -> tuple[int, str]:
    serving = Serving(scheduler.store, scheduler, LagWatch(lambda: scheduler.config, threading.Event()))
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(serving, open_to_all=True)), base_url="http://localhost"
    )
    answer = asyncio.run(client.get("/readyz"))
    return answer.status_code, answer.text


def test_a_server_whose_store_was_removed_or_replaced_is_not_ready_and_records_nothing(
    store: ServiceStore, tmp_path: Path
) -> None:
    scheduler = scheduler_of(store, tmp_path, "")
    scheduler.step()
    assert ready_of(scheduler)[0] == 200
    file, aside = tmp_path / "s.sqlite", tmp_path / "aside"
    file.rename(aside)
    code, text = ready_of(scheduler)
    assert code == 503 and "removed or replaced" in text
    with pytest.raises(StoreUnreachable):
        store.pause("a", "me", "")
    shutil.copy(aside, file)
    with pytest.raises(StoreUnreachable):
        store.pause("a", "me", "")
    scheduler.step()
    assert "removed or replaced" in scheduler.health.trouble
    aside.replace(file)
    scheduler.step()
    assert ready_of(scheduler)[0] == 200


def test_damage_in_the_middle_of_the_store_is_found(store: ServiceStore, tmp_path: Path) -> None:
    scheduler = scheduler_of(store, tmp_path, "a")
    scheduler.step()
    scheduler._check_store()
    assert ready_of(scheduler)[0] == 200
    file = tmp_path / "s.sqlite"
    with store.transaction() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    size = file.stat().st_size
    with file.open("r+b") as pages:
        pages.seek(size // 2)
        pages.write(b"\xa5" * 8192)
    scheduler._check_store()
    code, text = ready_of(scheduler)
    assert code == 503 and "is damaged" in text


def test_a_trouble_is_logged_once_and_so_is_its_end(
    store: ServiceStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = scheduler_of(store, tmp_path, "")
    file, aside = tmp_path / "s.sqlite", tmp_path / "aside"
    scheduler.step()
    file.rename(aside)
    caplog.clear()
    for _ in range(3):
        scheduler.step()
    aside.rename(file)
    for _ in range(3):
        scheduler.step()
    lines = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(lines) == 2 and lines[1] == f"over: {lines[0]}"


def test_store_and_outputs_are_for_their_owner_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with ServiceStore(f"sqlite:///{tmp_path}/own.sqlite") as store:
            store.prepare()
            scheduler = scheduler_of(store, tmp_path, "a")
            store.enqueue(scheduler.jobs["a"], 1.0, by="me")
            stepping(scheduler, lambda: states(store) == {"a": "failed"})
    finally:
        os.umask(before)
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir() if each.name != "replicator.toml"}
    assert modes.pop("logs") == 0o700 and set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"not_replicated": [{"object": "d.t", "reason": "no", "partition": "p=1"}, {}]}, "d.t/p=1: no; and 1 more"),
        ({"findings": [{"health": "ok"}, {"name": "n", "health": "warning", "text": "late"}]}, "n: late"),
        ({"gaps": [{"table": "d.t", "reason": "not read"}]}, "not searched: d.t: not read"),
        ({"not_replicated": [], "status": "partial"}, ""),
    ],
)
def test_the_message_of_a_partial_run_says_what_it_left_out(report: dict[str, Any], said: str) -> None:
    assert lacking_in(report).removeprefix("not replicated: ") == said
