"""The order of a run, by time: what takes longest begins first, and a file that takes more than a minute is split.

A pytest plugin. `durations.json` has, for each file of tests, the seconds of its tests (set-up and tear-down included)
that take at least LISTED, and under "" those of all others together. A complete run outside CI writes it again where it
has changed. A test without a record counts as one second.

With xdist, a unit of work is a file, or a part of one: consecutive tests of at most PART seconds, so that a worker that
takes the last unit is not alone for long. Fixtures of a module are made in each part.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

RECORD = Path(__file__).parent.parent / "durations.json"
SEED = "REPLICATOR_TEST_SEED"
LISTED = 0.5  # seconds: tests above have a record of their own
PART = 45.0  # seconds of one unit
CHANGED = 0.4  # share by which a time must differ to be recorded again: runs differ, and the file is versioned
WHOLE = {
    "tests/conformance/test_acid.py": "its tests end the newest open transaction of their server",
    "tests/conformance/test_gcs_and_azure.py": "its buckets have one set of roots",
    "tests/conformance/test_keepers.py": "its buckets have one set of roots",
    "tests/conformance/test_version_expiry.py": "its buckets have one set of roots",
    "tests/scenarios/test_hdfs_zones.py": "the NameNode asks one key server, at one port",
    **dict.fromkeys(
        (
            "tests/conformance/test_embedded_metastore.py",
            "tests/conformance/test_transports.py",
            "tests/scenarios/test_hdfs_lifecycle.py",
            "tests/scenarios/test_purge_names.py",
            "tests/scenarios/test_s3_events.py",
            "tests/scenarios/test_s3_lifecycle.py",
            "tests/scenarios/test_spark_attempts.py",
            "tests/scenarios/test_spark_cluster.py",
        ),
        "each part would start its servers again",
    ),
}
"""Files that one worker runs, whatever they take."""
UNKNOWN = 1.0  # seconds of a test without a record

Record = Mapping[str, Mapping[str, float]]


# ---- deciding -----------------------------------------------------------------------------------------------------


def estimates(nodes: Sequence[str], record: Record) -> dict[str, float]:
    """Seconds that each test is expected to take. Those without a record of their own share their file's rest."""
    unlisted: dict[str, list[str]] = defaultdict(list)
    found = {}
    for node in nodes:
        file, _, test = node.partition("::")
        if test in record.get(file, {}):
            found[node] = record[file][test]
        else:
            unlisted[file].append(node)
    for file, tests in unlisted.items():
        each = record[file].get("", 0.0) / len(tests) if file in record else UNKNOWN
        found |= dict.fromkeys(tests, each)
    return found


def units(nodes: Sequence[str], seconds: Mapping[str, float]) -> dict[str, list[str]]:
    """Units of work with their tests, the longest first; tests keep their order in the file. With a SEED in the
    environment, both are in a random order."""
    files: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        files[node.partition("::")[0]].append(node)
    random = Random(os.environ[SEED]) if os.environ.get(SEED) else None
    parts: list[tuple[float, str, list[str]]] = []
    for file, tests in sorted(files.items()):
        if random:
            random.shuffle(tests)
        for number, part in enumerate(_parts(tests, seconds)):
            parts.append((sum(seconds[each] for each in part), f"{file}#{number}", part))
    parts.sort(key=lambda part: (-part[0], part[1]))
    if random:
        random.shuffle(parts)
    return {name: part for _, name, part in parts}


def _parts(tests: Sequence[str], seconds: Mapping[str, float]) -> Iterable[list[str]]:
    """Consecutive tests, cut evenly where the file takes longer than a part."""
    if tests[0].partition("::")[0] in WHOLE:
        yield list(tests)
        return
    total = sum(seconds[each] for each in tests)
    wanted = total / max(1, -(-total // PART))
    part: list[str] = []
    passed = 0.0
    for test in tests:
        if part and passed + seconds[test] / 2 > wanted:
            yield part
            part, passed = [], 0.0
        part.append(test)
        passed += seconds[test]
    if part:
        yield part


def refreshed(record: Record, measured: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The record after a complete run. Times that changed little stay as they were."""
    files: dict[str, dict[str, float]] = defaultdict(lambda: {"": 0.0})
    for node, took in measured.items():
        file, _, test = node.partition("::")
        if took >= LISTED or (took >= LISTED / 2 and test in record.get(file, {})):
            files[file][test] = took
        else:
            files[file][""] += took
    return {
        file: {test: _settled(record.get(file, {}).get(test), took) for test, took in sorted(tests.items())}
        for file, tests in sorted(files.items())
    }


def _settled(before: float | None, took: float) -> float:
    keeps = before is not None and abs(took - before) <= max(CHANGED * before, LISTED)
    return before if keeps and before is not None else round(took, 1)


# ---- the plugin ---------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-most", type=float, metavar="SECONDS", help="of tests/unit, leave out what takes longer")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunProgress(config), "run-progress")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The same order in every worker: that of the units."""
    if limit := config.getoption("--at-most"):
        takes = estimates([item.nodeid for item in items], read_record())
        left_out = [item for item in items if "/unit/" in item.nodeid and takes[item.nodeid] > limit]
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
    by_id = {item.nodeid: item for item in items}
    if len(by_id) == len(items):  # a file may be named twice on the command line
        seconds = estimates(list(by_id), read_record())
        items[:] = [by_id[node] for unit in units(list(by_id), seconds).values() for node in unit]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Units as `units` makes them, in its order."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByTime(LoadScopeScheduling):
        def schedule(self) -> None:
            if self.collection is None and self.registered_collections:
                nodes = next(iter(self.registered_collections.values()))
                found = units(nodes, estimates(nodes, read_record()))
                self._unit_of = {node: unit for unit, tests in found.items() for node in tests}
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._unit_of[nodeid]

    config.option.loadscopereorder = False
    return ByTime(config, log)


def read_record() -> dict[str, dict[str, float]]:
    try:
        found: dict[str, dict[str, float]] = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return {}
    return found


def write_record(record: Record) -> None:
    """One line a test: a change of one is a change of one line."""
    aside = RECORD.with_suffix(".new")
    aside.write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n")
    os.replace(aside, RECORD)


class RunProgress:
    """What the one who waits sees: how far the run is, and an estimate of what is left. It measures the tests, too."""

    EVERY = 20.0  # seconds between two lines where no terminal is

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.expected: dict[str, float] = {}
        self.measured: dict[str, float] = defaultdict(float)
        self.ended: set[str] = set()
        self.failed = 0
        self.done = 0.0  # expected seconds of the tests that have ended
        self.began = self.shown = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        if not self.expected:
            self._expect(ids)

    def _expect(self, nodes: Sequence[str]) -> None:
        self.expected = estimates(nodes, read_record())
        self.began = self.shown = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.measured[report.nodeid] += report.duration
        self.failed += report.failed
        if report.when == "teardown":
            self.ended.add(report.nodeid)
            self.done += self.expected.get(report.nodeid, 0.0)
            self._show()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dots: the lines say more."""
        if (
            report.when == "call"
            and report.passed
            and self.config.get_verbosity() <= 0
            and not hasattr(report, "wasxfail")
        ):
            return "passed", "", "PASSED"
        return None

    def _show(self) -> None:
        now = time.monotonic()
        if not self.expected or now - self.shown < (0.5 if self.on_terminal else self.EVERY):
            return
        self.shown = now
        text = self.text(now - self.began)
        print(
            f"\r\033[K{text}" if self.on_terminal else text,
            end="" if self.on_terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def text(self, passed: float) -> str:
        """passed: seconds since the first test began."""
        total = sum(self.expected.values())
        share = self.done / total if total else 1.0
        left = f", about {_minutes(passed / share - passed)} left" if share > 0.02 else ""
        failed = f", {self.failed} FAILED" if self.failed else ""
        return f"{share:4.0%}  {len(self.ended):,} of {len(self.expected):,} tests{failed}, {_minutes(passed)}{left}"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        complete = not self.config.option.keyword and self.config.args == self.config.getini("testpaths")
        if (
            exitstatus == 0
            and complete
            and self.ended
            and not os.environ.get("CI")
            and "PYTEST_XDIST_WORKER" not in os.environ
        ):
            write_record(refreshed(read_record(), {node: self.measured[node] for node in self.ended}))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
