"""Tasks that are attempted more than once on a real cluster: executors that die, and those that are given up, live on
and go on writing; speculation on two hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from lab import Lab
from spark_cluster import HOSTS, SparkCluster, command_line
from waiting import eventually

import replicator

pytestmark = pytest.mark.spark_cluster

FILES, SIZE = 48, 1 << 20
RATE = 8_000_000  # bytes in a second, by all tasks: so that somebody comes while they copy


@pytest.fixture
def dumped(fixture: Lab) -> Lab:
    """A dump of files that take seconds to copy."""
    fixture.source.partitioned("p", {f"{number:02d}": {"f": ""} for number in range(FILES)})
    for number in range(FILES):
        place = fixture.source.home / f"p/p={number:02d}/f"
        place.unlink()
        place.write_bytes(os.urandom(1 << 10) * (SIZE >> 10))
    assert fixture.dump().code == 0
    return fixture


class Loading:
    """A load in a thread, with executors of the cluster. `after`: called while they live."""

    def __init__(
        self,
        fixture: Lab,
        cluster: SparkCluster,
        settings: Mapping[str, str] = MappingProxyType({}),
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.loaded: Any = None
        self._fixture, self._cluster, self._settings, self._after = fixture, cluster, settings, after
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with replicator.engines("spark", self._cluster.url, self._settings) as engines:
            places = {"target": self._fixture.target_uri, "warehouse": str(self._fixture.warehouse)}
            try:
                self.loaded = replicator.load(str(self._fixture.last), **places, engine=engines, bandwidth=RATE)
                self._after()
            except BaseException as error:
                self._failed.append(error)

    def __enter__(self) -> Loading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        for error in self._failed:
            raise error

    def is_copying(self) -> bool:
        """Some files have come, others have not."""
        return 2 <= len(copies(self._fixture)) < FILES - 2

    def wait_for_copies(self) -> None:
        eventually(lambda: self.is_copying() or not self._thread.is_alive(), lambda: "no file was copied")
        assert self._thread.is_alive()


def copies(fixture: Lab) -> list[Path]:
    return list(fixture.target.home.glob("p/p=*/f"))


def stray(fixture: Lab) -> list[Path]:
    return [path for path in fixture.warehouse.rglob("*") if path.name.startswith((".replicating-", ".aside-"))]


def is_exact(fixture: Lab) -> None:
    """The replica is, and the next load leaves nothing of given-up attempts."""
    shown, wanted = fixture.target.shown(), fixture.source.shown()
    assert shown == wanted
    fixture.source.write("p/p=00", {"more": "x"})
    fixture.catch_up()
    assert stray(fixture) == []


@pytest.mark.parametrize(
    "what", ["Python worker", *(pytest.param(each, marks=pytest.mark.long) for each in ("executor", "host"))]
)
def test_a_load_goes_on_when_a_part_of_the_cluster_dies(what: str, dumped: Lab, spark_cluster: SparkCluster) -> None:
    try:
        with Loading(dumped, spark_cluster) as loading:
            loading.wait_for_copies()
            if what == "Python worker":
                os.kill(eventually(spark_cluster.pythons, lambda: "no Python worker")[0], signal.SIGKILL)
            elif what == "executor":
                os.kill(next(iter(spark_cluster.executors())), signal.SIGKILL)
            else:
                spark_cluster.kill_worker(HOSTS[1])
    finally:
        spark_cluster.start()
    assert loading.loaded.status == "loaded"
    is_exact(dumped)


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}


@pytest.mark.long
def test_executors_come_and_go(dumped: Lab, spark_cluster: SparkCluster) -> None:
    """Dynamic allocation: between two loads there are none."""
    with replicator.engines("spark", spark_cluster.url, DYNAMIC) as engines:
        places = {"target": dumped.target_uri, "warehouse": str(dumped.warehouse)}
        assert replicator.load(str(dumped.last), **places, engine=engines).status == "loaded"
        eventually(lambda: not spark_cluster.executors(), lambda: "idle executors stay")
        before = dumped.last
        dumped.source.write("p/p=00", {"more": "x"})
        assert dumped.dump(since=before).code == 0
        assert replicator.load(str(dumped.last), **places, engine=engines).status == "loaded"
        assert spark_cluster.executors()
    is_exact(dumped)


SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
}
IMPATIENT = {
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "1s",
}


@pytest.mark.parametrize(
    ("what", "settings"), [("Python worker", SPECULATIVE), pytest.param("executor", IMPATIENT, marks=pytest.mark.long)]
)
def test_an_attempt_that_was_given_up_lives_on_and_publishes_nothing(
    what: str, settings: dict[str, str], dumped: Lab, spark_cluster: SparkCluster
) -> None:
    """It stands still in the middle of its files until another has copied them, and another load has dropped them."""
    stopped: list[int] = []

    def after() -> None:
        assert all(state(process) in "TtZ" for process in stopped)
        dropped = sorted(path.name for path in dumped.source.home.glob("p/p=*"))[1:]
        dumped.source.drop_partitions("p", [name.removeprefix("p=") for name in dropped])
        dumped.catch_up()
        wake(stopped)
        eventually(Idle(stopped[-1], dumped), lambda: "the attempt that was given up goes on for ever")

    try:
        with Loading(dumped, spark_cluster, settings, after) as loading:
            loading.wait_for_copies()
            worker = eventually(spark_cluster.pythons, lambda: "no Python worker")[0]
            stopped += [worker] if what == "Python worker" else above(worker)
            for process in stopped:
                os.kill(process, signal.SIGSTOP)
            assert len(copies(dumped)) < FILES
    finally:
        wake(stopped)
        spark_cluster.start()
    assert loading.loaded.status == "loaded"
    assert loading.loaded.files_copied + loading.loaded.files_skipped == FILES
    assert [path.parent.name for path in copies(dumped)] == ["p=00"]
    is_exact(dumped)


def above(worker: int) -> list[int]:
    """A Python worker, the daemon that forked it, and its executor."""
    found = [worker]
    while b"CoarseGrainedExecutorBackend" not in command_line(found[-1]):
        found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found[::-1]


def state(process: int) -> str:
    """As proc(5) has it; Z when there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


class Idle:
    """Whether a worker is gone, or was seen twenty times in a row without a file of either side open."""

    def __init__(self, worker: int, fixture: Lab) -> None:
        self._worker, self._homes, self._seen = worker, (str(fixture.warehouse), str(fixture.source.home)), 0

    def __call__(self) -> bool:
        if state(self._worker) == "Z":
            return True
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            open_files = [os.readlink(each) for each in Path(f"/proc/{self._worker}/fd").iterdir()]
            self._seen = 0 if any(home in each for each in open_files for home in self._homes) else self._seen + 1
        return self._seen >= 20


def wake(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
