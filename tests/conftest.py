"""Real metastores for tests: each is the server of pyspark's jars on a directory of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from metastores import MetastoreFactory

from replicator.metastore import embedded
from replicator.metastore.embedded import Running

# A server of a test lives for a minute: the second compiler costs it a third of that and never pays.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# The same examples each time where a run gates a change; new ones everywhere else.
settings.register_profile("gate", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("gate")


@pytest.fixture(scope="module")
def metastore_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetastoreFactory]:
    """`metastore_factory(name="source", **settings of start) -> Running`; all are stopped when the module ends: an idle
    server takes 300 MB, and some of the processor."""
    directories: list[Path] = []

    def start(name: str = "metastore", directory: Path | None = None, **options: object) -> Running:
        place = directory or tmp_path_factory.mktemp(name)
        directories.append(place)
        return embedded.start(place, **{"env": os.environ, **options})  # type: ignore[arg-type]

    yield start
    for directory in directories:
        embedded.stop(directory)


@pytest.fixture(scope="module")
def source_metastore(metastore_factory: MetastoreFactory) -> Running:
    """A metastore of this test module's own, to replicate from."""
    return metastore_factory("source")


@pytest.fixture(scope="module")
def target_metastore(metastore_factory: MetastoreFactory) -> Running:
    """A second one, to replicate to."""
    return metastore_factory("target")
