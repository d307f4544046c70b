"""Waiting for a replica, against two real metastores. Time is a clock that the tests turn: a sleep is where the world
moves on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from engines import local_runtime
from names import unique
from plain_tables import PlainDatabase

from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import Dumped, DumpSettings, write_dump
from replicator.cli.main import run
from replicator.errors import NotReached, UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.status import FIRST, LONGEST, NO_SOURCE, Goal, SourceSide, Waited, wait
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

RUNTIME = local_runtime()
MINUTE = timedelta(minutes=1)


@dataclass
class Turned:
    """A clock that goes on when somebody sleeps; `then` is called with the sleep's number, and changes the world."""

    then: Callable[[int], object] = lambda number: None
    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.then(len(self.pauses))


@dataclass
class Waiting:
    source: ThriftMetastore
    target: ThriftMetastore
    shop: PlainDatabase
    root: ChangeRoot
    work: Path
    dumps: list[Dumped] = field(default_factory=list)

    def catch_up(self) -> int:
        """The target's event afterwards."""
        capture(self.source, self.root, CaptureSettings([self.shop.name]), RUNTIME)
        place, since = str(self.work / f"dump{len(self.dumps)}"), self.dumps[-1].dump if self.dumps else None
        dumped = write_dump(self.root, place, DumpSettings(self.source.uri, [self.shop.name], since=since), RUNTIME)
        self.dumps.append(dumped)
        options = LoadSettings(cmroot=str(self.work / "target-cmroot"))
        return load(place, self.target, options, RUNTIME).to_event

    def wait(self, goal: Goal, time: Turned, timeout: timedelta = MINUTE, db: str = "") -> Waited:
        return wait(
            self.target,
            db or self.shop.name,
            goal,
            timeout=timeout,
            clock=time.clock,
            sleep=time.sleep,
            source=SourceSide(self.source) if goal.lag is not None else NO_SOURCE,
        )


@pytest.fixture(scope="module")
def replication(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Waiting]:
    work = tmp_path_factory.mktemp("wait")
    with connect(source_metastore.uri) as source, connect(target_metastore.uri) as target:
        shop = PlainDatabase(source, unique("waited"), source_metastore.warehouse)
        shop.create()
        shop.table("sales", {"f": "one"})
        made = Waiting(source, target, shop, create_or_open(str(work / "cmroot")), work)
        made.catch_up()
        yield made


def test_an_event_that_the_target_has_is_not_waited_for(replication: Waiting) -> None:
    time = Turned()
    event = replication.catch_up()
    assert replication.wait(Goal(event=event), time).event == event
    assert time.pauses == []


def test_waiting_ends_when_the_event_is_loaded(replication: Waiting) -> None:
    replication.shop.alter("sales", colour="red")
    event = replication.source.current_event_id()
    time = Turned(then=lambda number: replication.catch_up() if number == 3 else None)
    waited = replication.wait(Goal(event=event), time)
    assert (waited.status, waited.event) == ("reached", event)
    assert len(time.pauses) == 3
    assert waited.seconds == round(sum(time.pauses), 3)


def test_waiting_ends_when_the_lag_is_short_enough(replication: Waiting) -> None:
    replication.catch_up()
    replication.shop.alter("sales", colour="green")
    assert replication.wait(Goal(lag=timedelta(hours=1)), Turned()).lag_events == 1  # it is behind, but not by much
    time = Turned(then=lambda number: replication.catch_up())
    waited = replication.wait(Goal(lag=timedelta(seconds=0)), time)
    assert (waited.lag_events, waited.lag_seconds) == (0, 0.0)


def test_pauses_grow_up_to_a_limit_and_end_with_the_time(replication: Waiting) -> None:
    time = Turned()
    with pytest.raises(NotReached, match="did not reach event 1000000 within 60 s: it is at event") as raised:
        replication.wait(Goal(event=1_000_000), time)
    assert raised.value.exit_code == 75 and raised.value.transient
    assert time.pauses[0] == FIRST and time.pauses[:-1] == sorted(time.pauses[:-1])
    assert max(time.pauses) == LONGEST
    assert sum(time.pauses) == pytest.approx(60)


def test_a_database_that_does_not_exist_yet_is_waited_for(replication: Waiting) -> None:
    with pytest.raises(NotReached, match="coming"):
        replication.wait(Goal(event=1), Turned(), db="coming")


def test_a_metastore_that_is_away_is_waited_for() -> None:
    time = Turned()
    with connect("thrift://127.0.0.1:1") as away, pytest.raises(NotReached, match="thrift://127"):
        wait(away, "db", Goal(event=1), timeout=timedelta(0), clock=time.clock, sleep=time.sleep)


def test_a_goal_that_cannot_be_told_is_refused(replication: Waiting) -> None:
    with pytest.raises(UsageError, match="nothing to wait for"):
        replication.wait(Goal(), Turned())
    with pytest.raises(UsageError, match="by comparison with the source"):
        wait(replication.target, replication.shop.name, Goal(lag=MINUTE), timeout=MINUTE)


def test_the_command_answers_and_gives_up(replication: Waiting, capsys: pytest.CaptureFixture[str]) -> None:
    event = replication.catch_up()
    asked = [
        "wait",
        "--target",
        replication.target.uri,
        "--db",
        replication.shop.name,
        "--source",
        replication.source.uri,
        "--json",
    ]
    assert run([*asked, "--until-event", str(event), "--until-lag", "1h"]) == 0
    assert json.loads(capsys.readouterr().out)["event"] == event
    assert run([*asked, "--until-event", str(event + 1000), "--timeout", "0s"]) == 75
    reported = json.loads(capsys.readouterr().out)
    assert (reported["error"], reported["event"], reported["exit_code"]) == ("NotReached", event, 75)
