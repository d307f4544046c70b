"""Commands whose executors are containers of YARN, in client mode and in cluster mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase
from waiting import eventually
from yarn import NODES, Ended, Yarn

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = [pytest.mark.hdfs, pytest.mark.long]

FILES, SIZE = 24, 1 << 20
RATE = "4MB"  # a second, by all tasks: so that a node ends while they copy


@pytest.fixture
def dumped(on_hdfs: Callable[[str], Running], hdfs: Cluster, tmp_path: Path) -> Lab:
    """A dump of partitions; all is on HDFS."""
    place: Any = HdfsPath(hdfs, f"/{tmp_path.name}")
    found = Lab(on_hdfs("source"), on_hdfs("target"), place, warehouse=place / "replica")
    found.source = PlainDatabase(connect(found.source_uri), found.name, place / "warehouse")
    found.source.create()
    found.source.partitioned("p", {f"{number:02d}": {"f": f"{number:08d}" * (SIZE // 8)} for number in range(FILES)})
    answer = found.dump()
    assert answer.code == 0, answer
    return found


def loading(lab: Lab, *more: str) -> list[str]:
    """A load's arguments, without those of another engine."""
    return [*lab.load_arguments(lab.last)[:-1], "spark", *more]


def said(ended: Ended, printed: str) -> Any:
    assert ended.code == 0 and ended.application["finalStatus"] == "SUCCEEDED", (ended, printed)
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


def test_in_client_mode_containers_copy(dumped: Lab, yarn: Yarn) -> None:
    ended = yarn.client(*loading(dumped))
    assert said(ended, ended.printed)["files_copied"] == FILES
    assert f"Spark runs on yarn as {ended.application['id']}" in ended.printed
    dumped.is_same()


def test_a_node_that_dies_in_a_copy_leaves_nothing_out(dumped: Lab, yarn: Yarn) -> None:
    """The one that has no ApplicationMaster, and has an executor."""
    ended: list[Ended] = []
    load = threading.Thread(target=lambda: ended.append(yarn.client(*loading(dumped, "--bandwidth", RATE))))
    load.start()
    try:
        copied = dumped.target.home / "p"
        eventually(lambda: len(list(copied.rglob("f"))) >= 2 or not load.is_alive())
        busy = {node: b" ".join(yarn.containers(node).values()) for node in NODES}
        (node,) = [each for each, lines in busy.items() if b"ExecutorLauncher" not in lines]
        assert b"YarnCoarseGrainedExecutorBackend" in busy[node] and len(list(copied.rglob("f"))) < FILES
        yarn.kill(node)
        load.join()
    finally:
        load.join()
        yarn.start()
    assert said(ended[0], ended[0].printed)["status"] == "loaded"
    dumped.is_same()


def test_in_cluster_mode_the_driver_is_a_container(dumped: Lab, yarn: Yarn, tmp_path: Path) -> None:
    """[spark] of a file that is sent with it holds for its executors."""
    python = tmp_path / "python-of-nodes"
    python.write_text(f'#!/bin/sh\necho >>{python}.used\nexec {yarn.python} "$@"\n')
    python.chmod(0o755)
    config = tmp_path / "replicator.toml"
    config.write_text(f'[spark]\npyspark.python = "{python}"\n')
    ended = yarn.cluster(*loading(dumped), **{"spark.files": str(config)})
    assert said(ended, yarn.printed(ended.application["id"]))["files_copied"] == FILES
    assert Path(f"{python}.used").exists()
    dumped.is_same()


def test_in_cluster_mode_a_command_without_work_for_spark_succeeds(dumped: Lab, yarn: Yarn) -> None:
    ended = yarn.cluster("cm", "check", "--cmroot", str(dumped.cmroot))
    assert said(ended, yarn.printed(ended.application["id"]))["status"] == "sound"


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_in_cluster_mode_the_exit_code_is_in_the_diagnostics(dumped: Lab, yarn: Yarn, engine: str) -> None:
    """spark-submit has 1 for every failure."""
    (dumped.source.home / "p/p=03").rmtree()
    assert dumped.dump().code == 3
    ended = yarn.cluster(*loading(dumped)[:-1], engine)
    assert (ended.code, ended.application["finalStatus"]) == (1, "FAILED"), ended
    assert "User application exited with status 3" in ended.application["diagnostics"], ended
    printed = yarn.printed(ended.application["id"])
    assert json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["status"] == "incomplete"
    shown, wanted = dumped.target.shown(), dumped.source.shown()
    assert {name: about for name, about in shown.items() if name != "p/p=03"} == {
        name: about for name, about in wanted.items() if name != "p/p=03"
    }
