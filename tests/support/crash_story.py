"""A story of dumps and loads that tests kill and run again: a busy source, and its replica."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from busy_source import BusySource
from command_line import Answer, command
from lab import Lab
from plain_tables import PlainDatabase

from replicator.metastore.embedded.running import Running


@dataclass
class Crashing:
    """A story that is bootstrapped, and its busy source; tests of a module go on where the one before ended."""

    fixture: Lab
    source: BusySource
    replicas: Iterator[int]

    @classmethod
    def begin(cls, source: Running, target: Running, here: Path, **size: int) -> Crashing:
        fixture = Lab(source, target, here)
        busy = BusySource(fixture.source, **size)
        busy.begin()
        fixture.bootstrap()
        return cls(fixture, busy, itertools.count(1))

    def next_dump(self) -> list[str]:
        """The arguments of the next incremental dump of a source that has changed."""
        self.source.change()
        before = self.fixture.last
        self.fixture.dumps += 1
        return self.fixture.dump_arguments(self.fixture.last, since=before)

    def fresh_replica(self) -> tuple[PlainDatabase, list[str]]:
        """A bootstrap dump, and the arguments to load it into a database that is not there yet."""
        out = self.fixture.here / f"whole{next(self.replicas)}"
        assert self.fixture.dump(out=out).code == 0
        replica = PlainDatabase(
            self.fixture.target.metastore, f"{self.fixture.name}_{out.name}", self.fixture.warehouse
        )
        rename = ["--rename-db", f"{self.fixture.name}={replica.name}"]
        return replica, [*self.fixture.load_arguments(out), *rename]

    def finish_dump(self, arguments: list[str]) -> None:
        """Runs a dump again until it has succeeded; one whose marker was written has."""
        if not (self.fixture.last / "_finished_dump").exists():
            run_again(arguments)

    def finish_load(self, arguments: list[str]) -> None:
        run_again(arguments)
        self.fixture.is_same()


def run_again(arguments: list[str]) -> Answer:
    answer = command(*arguments)
    assert answer.code == 0, answer
    return answer


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Crashing]:
    return {}


@pytest.fixture
def crashing(
    keep: dict[str, Crashing],
    source_metastore: Running,
    target_metastore: Running,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Crashing:
    """The module's story; a new one after a failure, so that one failure is not all."""
    if "story" not in keep or keep.get("failed") != request.session.testsfailed:
        keep["story"] = Crashing.begin(source_metastore, target_metastore, tmp_path)
        keep["failed"] = request.session.testsfailed  # type: ignore[assignment]
    return keep["story"]
