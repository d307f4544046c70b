"""Following a policy, and metastores that go away meanwhile: restarts, a day without the source, cleaned events."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from command_line import command
from following import Following
from lab import Lab
from metastores import MetastoreFactory
from waiting import eventually

from replicator.core.spark import SparkEngine
from replicator.errors import ConfigError, LeaseHeld, MetastoreUnreachable
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment
from replicator.policies.follow import Listeners, Pace, RunsFollowed, Scan, follow
from replicator.policies.run import SyncRun


@dataclass
class Restarted:
    """A metastore of one test's own, that stops and starts again at the same port with its data."""

    factory: MetastoreFactory
    directory: Path
    running: Running = field(init=False)

    def __post_init__(self) -> None:
        self.running = self.factory(directory=self.directory)

    def stop(self) -> None:
        embedded.stop(self.directory)

    def start(self, **settings: str) -> None:
        port = int(self.running.uri.rpartition(":")[2])
        self.running = self.factory(directory=self.directory, port=port, settings=settings)


@pytest.fixture
def mortal(metastore_factory: MetastoreFactory, tmp_path: Path) -> Iterator[Callable[[str], Restarted]]:
    made: list[Restarted] = []

    def make(name: str) -> Restarted:
        made.append(Restarted(metastore_factory, tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_a_change_comes_to_the_target_and_both_metastores_may_restart(
    mortal: Callable[[str], Restarted], tmp_path: Path
) -> None:
    source, target = mortal("s"), mortal("t")
    pair = Lab(source.running, target.running, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    pair.sync()
    home = pair.replica("a").home / "t"
    with Following(pair) as following:
        pair.db("a").write("t", {"second": "2"})
        eventually((home / "second").exists, following.reported)
        pair.db("a").write("t", {"third": "3"})
        eventually((home / "third").exists, following.reported)
        source.stop()
        eventually(
            lambda: "MetastoreUnreachable" in following.reported() or "CommitOutcomeUnknown" in following.reported()
        )
        eventually(
            lambda: any("MetastoreUnreachable" in run.error for run in pair.memory.runs().runs), following.reported
        )
        source.start()
        target.stop()
        pair.db("a").write("t", {"fourth": "4"})
        target.start()
        eventually((home / "fourth").exists, following.reported)
        output = following.end()
    assert output["status"] == "stopped" and isinstance(output["failures"], int) and output["failures"] > 0
    pair.sync()
    pair.are_same()
    assert "failed" in {run.status for run in pair.memory.runs().runs}


def test_a_source_that_is_gone_is_said_to_be_and_nothing_is_lost_when_it_is_back(
    mortal: Callable[[str], Restarted], target_metastore: Running, tmp_path: Path
) -> None:
    source = mortal("s")
    pair = Lab(source.running, target_metastore, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    pair.sync()
    pair.db("a").alter("t", round="1")
    pair.db("a").write("t", {"second": "2"})
    source.stop()
    answer = command("--config", str(pair.config()), "sync", pair.name)
    assert (answer.code, answer.error) == (75, "MetastoreUnreachable")
    for verb in ("lag", "status"):
        answer = command("--config", str(pair.config()), verb, pair.name)
        output = answer.output
        assert (answer.code, output["status"], output["at_least"]) == (3, "blocked", True)
        assert list(output["unreachable"]) == ["source"] and "the source does not answer" in output["blocks"][0]
        assert output["last_good_run"] and output["event"] == output["databases"][0]["event"] == output["source_event"]
        roles = [(each["db"], each["source_role"], each["target_role"]) for each in output["databases"]]
        assert roles == [(f"{pair.name}_a", "", "replica at epoch 1")]
    # It comes back after a day, when its log no longer has what was not captured.
    source.start(**{"hive.metastore.event.db.listener.timetolive": "1s"})
    eventually(lambda: not pair.source.metastore.next_events(0))
    source.stop()
    source.start()
    run = pair.sync()
    assert run.kind == "incremental" and any("were lost" in text for text in run.warnings)
    assert run.files_copied == 1
    pair.are_same()


def test_a_night_without_the_source_is_one_line_of_the_history(
    mortal: Callable[[str], Restarted], target_metastore: Running, tmp_path: Path
) -> None:
    source = mortal("s")
    pair = Lab(source.running, target_metastore, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    with Following(pair) as following:
        eventually((pair.replica("a").home / "t" / "first").exists, following.reported)
        source.stop()
        eventually(lambda: following.reported().count("MetastoreUnreachable") >= 3, following.reported)
        failed = [run for run in pair.memory.runs().runs if "MetastoreUnreachable" in run.error]
        first = command("--config", str(pair.config()), "history", pair.name).output["runs"][0]
        assert len(failed) <= 2  # one of a run that had begun, one of all rounds that could not
        assert first["status"] == "failed" and first["ended"] > first["started"]
        following.end()


# ---- decisions ----------------------------------------------------------------------------------------------------


class Turning:
    """A clock that is turned by waiting, and a stop after so many waits."""

    def __init__(self, waits: int) -> None:
        self.now, self.left, self.waited = 100.0, waits, list[float]()

    def clock(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.left == 0

    def wait(self, timeout: float) -> bool:
        self.left -= 1
        self.waited.append(round(timeout, 3))
        self.now += timeout
        return self.is_set()


def test_failures_wait_twice_as_long_each_time_up_to_a_minute_and_a_success_forgets_them() -> None:
    away, other = MetastoreUnreachable("gone"), LeaseHeld("another")
    turning, outcomes = Turning(11), iter([*[other] * 8, away, None, other])

    def once(scan: Scan) -> SyncRun:
        if error := next(outcomes):
            raise error
        return SyncRun("p")

    follow(
        RunsFollowed("p"),
        once,
        lambda reverse: int(turning.now),
        Listeners(lambda run: None, lambda error, wait: None),
        pace=Pace(timedelta(seconds=10), now=turning.clock, dice=lambda low, high: high),
        stop=turning,
    )
    assert turning.waited == [1, 2, 4, 8, 16, 32, 60, 60, 10, 11, 1]  # 10: while a metastore is away


def test_the_schedule_is_from_begin_to_begin_and_a_long_scan_is_made_less_often() -> None:
    turning = Turning(0)
    pace = Pace(timedelta(seconds=10), now=turning.clock, dice=lambda low, high: 1.0)
    assert pace.begin() is Scan.ALL
    turning.now += 6
    pace.scanned(Scan.ALL, SyncRun("p", scan_seconds=4, compare_seconds=2))
    assert pace.rest() == 4
    turning.now -= 6
    found = []
    for _ in range(5):
        turning.now += 10
        found.append(pace.begin())
        pace.scanned(found[-1], SyncRun("p", scan_seconds=4, compare_seconds=2))
    # Directories for a fifth of the time, tables for a twentieth.
    assert found == [Scan.NOTHING, Scan.FILES, Scan.NOTHING, Scan.ALL, Scan.NOTHING]


def test_a_bootstrap_which_lists_everything_does_not_put_the_next_scan_off() -> None:
    pace = Pace(timedelta(seconds=10), now=lambda: 0.0)
    pace.begin()
    pace.scanned(Scan.ALL, SyncRun("p", scan_seconds=3600, bootstrapped={"a": "new"}))
    assert pace.begin() is Scan.ALL


def test_quiet_rounds_are_not_made_until_a_scan_is_due_and_every_failure_is_tried_again() -> None:
    turning, events = Turning(7), iter([7, 7, 7, 8, 8, 8])
    made: list[Scan] = []
    errors: list[str] = []

    def once(scan: Scan) -> SyncRun:
        made.append(scan)
        if len(made) == 2:
            raise LeaseHeld("another")
        if len(made) == 3:
            raise MetastoreUnreachable("gone")
        return SyncRun("p", dumps=["d"], scan_seconds=3.0)

    def newest(reverse: bool) -> int:
        if len(made) == 3 and not unreached:
            raise MetastoreUnreachable("still")
        return next(events)

    unreached: list[str] = []
    total = RunsFollowed("p")
    follow(
        total,
        once,
        newest,
        Listeners(
            lambda run: None,
            lambda error, wait: errors.append(type(error).__name__),
            lambda error: unreached.append(str(error)),
        ),
        pace=Pace(timedelta(seconds=4), now=turning.clock, dice=lambda low, high: 1.0),
        stop=turning,
    )
    assert made == [Scan.ALL, Scan.NOTHING, Scan.NOTHING, Scan.ALL]
    assert errors == ["LeaseHeld", "MetastoreUnreachable", "MetastoreUnreachable"] and unreached == ["still"]
    assert (total.rounds, total.skipped, total.failures, total.synced) == (2, 2, 3, 2)


def test_what_trying_again_cannot_mend_ends_the_following() -> None:
    def once(scan: Scan) -> SyncRun:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError):
        follow(
            RunsFollowed("p"),
            once,
            lambda reverse: 1,
            Listeners(lambda run: None, lambda error, wait: None),
            pace=Pace(timedelta(seconds=1)),
            stop=Turning(3),
        )


def test_a_spark_that_died_is_started_anew() -> None:
    engine = SparkEngine("local[1]", environment=lambda: spark_environment(find_java(os.environ)))
    try:
        assert list(engine.run(abs, [-1])) == [1]
        process = engine.context._gateway.proc
        process.kill()
        process.wait()
        with pytest.raises(Exception, match=r"refused|Spark job failed|network"):
            list(engine.run(abs, [-2]))
        engine.stop()
        assert list(engine.run(abs, [-3])) == [3]
    finally:
        engine.stop()
