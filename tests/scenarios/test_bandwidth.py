"""The rate of copies: kept by threads together and by Spark's tasks together, and no brake where there is none."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from policies import Replication
from replication_fixture import command

import replicator
from cmroot.store.checksum import checksum_file, copy_file, copy_stream
from cmroot.store.flow import FLOW, SLACK
from replicator.core.spark import SparkEngine
from replicator.errors import ConfigError, UsageError
from replicator.metastore.java import find_java, spark_environment
from replicator.replay.copy.copying import Placing, place_file
from replicator.replay.copy.origins import Roots, Wanted
from replicator.replay.copy.staging import AskingFence, Attempt

MB = 1_000_000


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def files(here: Path, count: int, size: int) -> list[tuple[str, str]]:
    """Sources, and names for their copies."""
    here.mkdir(exist_ok=True)
    for number in range(count):
        (here / f"{number}").write_bytes(os.urandom(size))
    return [(str(here / f"{number}"), str(here / f"{number}-copy")) for number in range(count)]


def copied(pair: tuple[str, str]) -> int:
    source, target = pair
    return copy_file(source, target, reread=True)[1]


def test_threads_keep_a_rate_together_and_are_free_without_one(tmp_path: Path) -> None:
    def copy(name: str) -> list[int]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(copied, files(tmp_path / name, 3, MB)))

    free = seconds(lambda: copy("free"))
    with FLOW.limited(2 * MB):
        kept = seconds(lambda: copy("kept"))
    assert kept >= 3 * MB / (2 * MB) - SLACK
    assert free < kept / 2 and FLOW.rate is None
    with FLOW.limited(2 * MB):
        assert seconds(lambda: copy_stream(io.BytesIO(bytes(2 * MB)), io.BytesIO())) >= 1 - SLACK


def test_tasks_of_spark_keep_a_rate_together(tmp_path: Path) -> None:
    engine = SparkEngine("local[2]", environment=lambda: spark_environment(find_java(os.environ)))
    try:
        free = seconds(lambda: list(engine.run(copied, files(tmp_path / "warm", 2, 1)))) and seconds(
            lambda: list(engine.run(copied, files(tmp_path / "free", 2, MB)))
        )
        with FLOW.limited(MB):
            tasks = files(tmp_path / "kept", 2, MB)
            kept = seconds(lambda: list(engine.run(copied, tasks)))
            alone = seconds(lambda: list(engine.run(copied, files(tmp_path / "alone", 1, MB))))
    finally:
        engine.stop()
    assert kept >= 2 - SLACK and free < kept
    assert alone >= 1 - SLACK
    assert all(Path(source).read_bytes() == Path(target).read_bytes() for source, target in tasks)


def test_a_policys_rate_holds_for_its_runs_and_an_option_overrides_it(pair: Replication) -> None:
    pair.keys["bandwidth"] = "1MB/s"
    pair.db("a").table("t", {"first": "1" * MB, "second": "2" * MB})
    config = str(pair.config())
    assert seconds(partial(command, "--config", config, "sync", pair.name)) >= 2 - SLACK
    pair.is_same()
    pair.db("a").write("t", {"third": "3" * MB})
    done = command("--config", config, "sync", pair.name, "--bandwidth", "500kB")
    assert done.output["bytes_copied"] == MB and done.output["steps"]["load"] >= 2 - SLACK
    (pair.replica("a").home / "t" / "first").write_text("x")
    repaired = partial(command, "--config", config, "repair", pair.name, "--bandwidth", "1MB")
    assert seconds(repaired) >= 1 - SLACK
    pair.is_same()


def test_what_is_no_rate_is_refused(pair: Replication) -> None:
    for wrong in ("1kB", "fast", "50MB/h"):
        answer = command("load", "x", "--bandwidth", wrong)
        assert answer.code == 2 and "--bandwidth" in answer.message, answer
        pair.keys["bandwidth"] = wrong
        with pytest.raises(ConfigError, match="bandwidth"):
            _ = pair.policy
    with pytest.raises(UsageError, match="--bandwidth"):
        replicator.sync("x", bandwidth=99)


@pytest.mark.parametrize("size", [MB, 18 * MB])
def test_what_streams_to_and_from_s3_keeps_it(moto_bucket: str, tmp_path: Path, size: int) -> None:
    """Small objects are written whole, larger ones aside."""
    (tmp_path / "a").write_bytes(os.urandom(size))
    right = checksum_file(str(tmp_path / "a"))
    roots = Roots(str(tmp_path / "source"), str(tmp_path / "target"))
    how = Placing(roots, Attempt(roots.target, "attempt", AskingFence("", "note")), frozenset())
    there, back = f"{moto_bucket}/{size}", f"{tmp_path}/back"
    with FLOW.limited(size):
        for source, target in ((str(tmp_path / "a"), there), (there, back)):
            wanted = Wanted(source, target, size, None, right[0], 1)
            assert seconds(lambda wanted=wanted: place_file(wanted, how)) >= 1 - SLACK
    assert checksum_file(back) == right
