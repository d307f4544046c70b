"""What the service tells a real receiver of each kind of alert: raised, still, over, and over only when it is."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from certificates import Authority
from sqlalchemy import update

from replicator.core.config import parse_config
from replicator.core.roles import Role, RoleMark
from replicator.core.sending import failure_of
from replicator.core.service_config import AlertConfig, MailConfig
from replicator.metastore.embedded.server_process import free_port
from replicator.policies.lag import DatabaseLag, Lag
from replicator.policies.memory import Compared
from replicator.service.alert_conditions import ENOUGH, TREND, Trend
from replicator.service.alerts import Alerter, Message, channels_of, open_alerts, remember
from replicator.service.measuring import STALE, Disk, LagWatch, MeasuredLag
from replicator.service.runs import Ended, RunState
from replicator.service.scheduler import Scheduler
from replicator.service.schema import run
from replicator.service.store import ServiceStore
from replicator.service.web.app import metrics_of
from replicator.service.web.serving import Serving

DAY = 86_400.0
POLICY = {"source": "thrift://a:1", "target": "thrift://b:1", "databases": ["d"], "max_lag": "10m"}
POLICY |= {"cmroot": "/cm", "target_cmroot": "/tcm", "dumps": "/dumps", "verify": {"objects": 20}}  # type: ignore[dict-item]
JOBS = {
    "often": {"command": ["cm", "ls", "--cmroot", "/cm"], "every": "1h"},
    "compare": {"command": ["verify", "west"], "every": "1h"},
    "certify": {"command": ["purge", "certify", "--run", "x"], "every": "1h"},
}
WELL = Lag("west", max_lag_seconds=600.0, headroom_seconds=DAY, kept_seconds=DAY, last_run="then")
AWAY = replace(WELL, status="blocked", at_least=True, unreachable={"source": "it is away"}, blocks=["it is away"])
AWAY.headroom_seconds = None


class World:
    """A server that schedules nothing: its store, what it measured, and its alerts."""

    def __init__(self, here: Path, alerts: dict[str, Any]) -> None:
        self.logs, self.numbers = str(here), count(1)
        service = {"logs": self.logs, "policies": False, "jobs": JOBS}
        self.config = parse_config(
            {"policies": {"west": POLICY}, "service": service, "alerts": {"late_for": "0s", **alerts}}, "test"
        )
        self.store = ServiceStore(f"sqlite:///{here}/s.sqlite")
        self.epoch = self.store.lead("a", 3600.0) or 0
        self.restart()

    def restart(self) -> None:
        scheduler = Scheduler(self.store, lambda: self.config, Path(self.logs, "replicator.toml"))
        self.watch = LagWatch(lambda: self.config, threading.Event())
        self.alerter = Alerter(self.store, scheduler, self.watch)

    def lag(self, lag: Lag | None, *, ago: float = 0.0, compared: Compared | None = None) -> None:
        self.watch.keep("west", MeasuredLag(time.time() - ago, lag, "" if lag else "it is not known", compared))

    def ran(self, job: str, state: RunState, *, ago: float = 0.0) -> None:
        self.store.plan(job, self.alerter.scheduler.jobs[job].schedule.text, time.time() + DAY)
        id, _ = self.store.enqueue(self.alerter.scheduler.jobs[job], float(next(self.numbers)), by="me")
        while int(self.store.now() * 1000) == int(id[:13]):
            pass  # ids of one millisecond have no order
        assert self.store.begin(id, "a", self.epoch)
        self.store.end(id, Ended(state, message="as it is"))
        with self.store.transaction() as connection:
            connection.execute(update(run).where(run.c.id == id).values(ended=time.time() - ago))

    def disk(self, free: int | None) -> None:
        self.watch._disks[self.logs] = None if free is None else Disk(time.time(), self.logs, free, 100 * 10**9)

    def filling(self, before: int, now: int) -> None:
        """A disk that was watched for long enough."""
        trend = self.alerter._trends[f"disk {self.logs}"] = Trend(TREND)
        trend.add(time.time() - ENOUGH - 60, before)
        self.disk(now)

    def fills(self) -> None:
        self.filling(60 * 10**9, 50 * 10**9)
        self.alerter.step()
        self.alerter._first_seen = {key: since - ENOUGH for key, since in self.alerter._first_seen.items()}

    def falls_back(self) -> None:
        for seconds, ago in ((700.0, 60.0), (730.0, 30.0)):
            self.lag(replace(WELL, status="late", seconds=seconds), ago=ago)
            self.alerter.step()

    def ages(self) -> None:
        """As if channels had been told two days ago."""
        for each in open_alerts(self.store):
            remember(self.store, each.key, {name: (event, at - 2 * DAY) for name, (event, at) in each.told.items()})


def roles(source: Role | None, target: Role | None, lag: Lag = WELL) -> Lag:
    marks = [None if role is None else RoleMark(role, 2) for role in (source, target)]
    return replace(lag, databases=[DatabaseLag("d", "d", "current", source_mark=marks[0], target_mark=marks[1])])


def compared(*open_: str, ago: float = 0.0) -> Compared:
    ended = datetime.fromtimestamp(time.time() - ago, UTC).isoformat()
    return Compared(ended=ended, oldest=0.0, open=open_, open_count=len(open_))


Do = Callable[[World], object]


def away(world: World) -> None:
    world.lag(AWAY)


def unknown(world: World) -> None:
    world.lag(None)


def hangs(world: World) -> None:
    world.lag(WELL, ago=STALE + 60)


def well(world: World) -> None:
    world.lag(WELL)


CASES: dict[str, tuple[str, Do, list[Do], Do]] = {
    "failing": (
        "often",
        lambda w: [w.ran("often", "failed") for _ in range(3)],
        [lambda w: w.ran("often", "lost"), lambda w: w.store.forget(-1)],
        lambda w: w.ran("often", "done"),
    ),
    "stale": ("often", lambda w: w.ran("often", "done", ago=DAY), [], lambda w: w.ran("often", "done")),
    "differs": (
        "compare",
        lambda w: w.ran("compare", "differs"),
        [lambda w: w.ran("compare", "failed"), lambda w: w.ran("compare", "partial")],
        lambda w: w.ran("compare", "done"),
    ),
    "differs of a sample": (
        "west",
        lambda w: w.lag(WELL, compared=compared("d.t")),
        [well, unknown],
        lambda w: w.lag(WELL, compared=compared()),
    ),
    "late": ("west", World.falls_back, [away, unknown, hangs], well),
    "blocked": ("west", lambda w: w.lag(replace(WELL, status="blocked", blocks=["a turn"])), [unknown, hangs], well),
    "unreachable": ("west/source", away, [unknown, hangs], well),
    "unknown": ("west", unknown, [hangs], well),
    "unmeasured": ("west", hangs, [unknown], well),
    "unverified": (
        "west",
        lambda w: w.lag(WELL, compared=compared(ago=8 * DAY)),
        [lambda w: w.lag(WELL, compared=Compared()), unknown],
        lambda w: w.lag(WELL, compared=compared()),
    ),
    "certificate": (
        "certify",
        lambda w: w.ran("certify", "partial"),
        [lambda w: w.ran("certify", "failed")],
        lambda w: w.ran("certify", "done"),
    ),
    "headroom": ("west", lambda w: w.lag(replace(WELL, headroom_seconds=60.0)), [away, unknown, hangs], well),
    "two-primaries": (
        "west/d",
        lambda w: w.lag(roles(Role.PRIMARY, Role.PRIMARY)),
        [lambda w: w.lag(roles(None, Role.PRIMARY, AWAY)), away, unknown],
        lambda w: w.lag(roles(Role.FENCED, Role.PRIMARY)),
    ),
    "disk": ("service.logs", lambda w: w.disk(10**9), [lambda w: w.disk(None)], lambda w: w.disk(50 * 10**9)),
    "disk-full": (
        "service.logs",
        World.fills,
        [lambda w: w.disk(10**9), lambda w: w.disk(None)],
        lambda w: w.filling(50 * 10**9, 50 * 10**9),
    ),
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[str, list[dict[str, str]]]]:
    got: list[dict[str, str]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", got
        server.shutdown()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "s.sqlite"
    with ServiceStore(f"sqlite:///{file}") as store:
        store.prepare()
    return file


@pytest.fixture
def world(prepared: Path, tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**alerts: Any) -> World:
        shutil.copy(prepared, tmp_path / "s.sqlite")
        made.append(World(tmp_path, alerts))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


@pytest.mark.parametrize("case", CASES)
def test_it_is_over_only_when_it_is_over(
    case: str, world: Callable[..., World], receiver: tuple[str, list[dict[str, str]]]
) -> None:
    (url, got), (subject, wrong, unsure, good) = receiver, CASES[case]
    at, kind = world(webhooks={"ops": {"url": url}}), case.partition(" ")[0]

    def told() -> list[str]:
        got.clear()
        at.alerter.step()
        return [each["event"] for each in got if (each["kind"], each["subject"]) == (kind, subject)]

    at.lag(WELL, ago=90.0)
    assert told() == []
    wrong(at)
    at.alerter.step()
    assert open_alerts(at.store), "raised"
    assert told() == [], "once"
    for each in unsure:
        each(at)
        assert told() == []
    at.restart()
    assert told() == [], "a restart ends nothing"
    at.ages()
    assert told() == ["still"]
    good(at)
    assert told() == ["over"]
    assert told() == []


def test_figures_that_are_too_old_are_shown_nowhere(world: Callable[..., World]) -> None:
    at = world()
    hangs(at)
    serving = Serving(at.store, at.alerter.scheduler, at.watch)
    (view,) = serving.policies()
    assert (view.status, view.headroom_seconds) == ("unknown", None) and "not measured for 6 min" in view.trouble[0]
    metrics = metrics_of(serving).decode()
    assert 'replicator_policy_status{policy="west",status="unknown"} 1.0' in metrics
    assert "replicator_lag_seconds{" not in metrics and "replicator_policy_measured_timestamp_seconds{" in metrics
    assert 'replicator_job_overdue_seconds{job_name="often"} 0.0' in metrics
    at.ran("certify", "partial")
    at.ran("certify", "failed")
    at.ran("often", "done", ago=DAY)
    metrics = metrics_of(serving).decode()
    assert 'replicator_certificate_incomplete{job_name="certify"} 1.0' in metrics
    assert re.search(r'replicator_job_overdue_seconds\{job_name="often"\} 7\d{4}\.', metrics)


def test_a_receiver_that_speaks_no_http_does_not_silence_others(world: Callable[..., World], tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(65_536))
                    connection.sendall(b"220 what do you want?\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        at = world(webhooks={"bad": {"url": url}}, commands={"page": {"command": ["tee", "-a", str(heard)]}})
        at.ran("certify", "partial")
        at.alerter.step()
        at.alerter.step()
    assert [json.loads(line)["kind"] for line in heard.read_text().splitlines()] == ["certificate"]
    assert len(asked) == 1, "it is tried again later"


def test_who_was_told_is_remembered_before_the_next_is(
    world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {name: {"command": ["tee", "-a", str(tmp_path / name)]} for name in ("first", "second")}
    at = world(commands=commands)
    at.ran("certify", "partial")
    sent = at.alerter._failure

    def dies(channel: str, *given: Any) -> str:
        if channel.endswith("second"):
            raise KeyboardInterrupt
        return sent(channel, *given)

    monkeypatch.setattr(at.alerter, "_failure", dies)
    with pytest.raises(KeyboardInterrupt):
        at.alerter.step()
    at.restart()
    at.alerter.step()
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("first", "second")] == [1, 1]


def test_an_alert_that_a_receiver_refuses_holds_up_no_other(world: Callable[..., World], tmp_path: Path) -> None:
    heard, refusing = tmp_path / "heard", f"grep -v certificate >>{tmp_path / 'heard'}"
    at = world(commands={"page": {"command": ["sh", "-c", refusing]}})
    at.ran("certify", "partial")
    at.alerter.step()
    at.lag(AWAY)
    for _ in range(3):
        at.alerter._next_try = {name: (0.0, wait) for name, (_, wait) in at.alerter._next_try.items()}  # that is over
        at.alerter.step()
    assert {json.loads(line)["kind"] for line in heard.read_text().splitlines()} >= {"unreachable"}
    assert "certificate" in {each.kind for each in open_alerts(at.store) if not each.told}, "it is tried on"


class Letters:
    def __init__(self) -> None:
        self.count = 0

    async def handle_DATA(self, *_: Any) -> str:
        self.count += 1
        return "250 OK"


class Posts(Controller):
    def _trigger_server(self) -> None:
        """Its own way takes the server's certificate for a client's."""
        with socket.create_connection((self.hostname, self.port)) as connection:
            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            (trusting.wrap_socket(connection) if self.ssl_context else connection).recv(100)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    here = tmp_path_factory.mktemp("authorities")
    return Authority(here / "own"), Authority(here / "foreign")


@pytest.mark.parametrize("tls", ["tls", "starttls"])
def test_a_mail_server_is_told_only_with_a_certificate_that_is_trusted(
    tls: str, authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    (own, foreign), letters, port = authorities, Letters(), free_port()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*own.issue(f"mail-{tls}"))
    how: dict[str, Any] = {"ssl_context": context} if tls == "tls" else {"tls_context": context}
    server = Posts(letters, hostname="127.0.0.1", port=port, **how)
    server.start()
    try:
        mail = MailConfig(f"127.0.0.1:{port}", "a@here", ("b@here",), tls)  # type: ignore[arg-type]
        (send,) = channels_of(AlertConfig(mails={"team": mail})).values()
        message = Message("raised", "x", "late", "west", "it is late", "", "then", "now")
        for authority, failure, number in ((own, "", 1), (foreign, "certificate verify failed", 1)):
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
            said = failure_of(partial(send, message))
            assert (failure in said and bool(failure) == bool(said)) and letters.count == number, said
    finally:
        server.stop()


def test_a_store_that_is_gone_is_told_without_it(
    world: Callable[..., World], receiver: tuple[str, list[dict[str, str]]], tmp_path: Path
) -> None:
    url, got = receiver
    got.clear()
    here = world(webhooks={"page": {"url": url}}, repeat="1h")
    alerter, now = here.alerter, time.time()
    alerter.clock = lambda: now
    file = tmp_path / "s.sqlite"
    file.rename(tmp_path / "aside")
    for seconds, events in (
        (0.0, []),
        (29.0, []),
        (31.0, ["raised"]),
        (60.0, ["raised"]),
        (3700.0, ["raised", "still"]),
    ):
        now = time.time() + seconds
        alerter.turn()
        assert [each["event"] for each in got] == events
    assert not file.exists(), "no empty one is begun"
    (tmp_path / "aside").rename(file)
    alerter.turn()
    alerter.turn()
    assert [each["event"] for each in got] == ["raised", "still", "over"] and len({each["id"] for each in got}) == 1
    assert got[0]["kind"] == "store" and "removed or replaced" in got[0]["text"]
