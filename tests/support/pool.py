"""The servers of a run: started when first asked for, borrowed by all of its workers, stopped at its end.

A pytest plugin. What a server's starter returns (ports, directories) is written to the pool's directory, and every
other worker reads it there; the processes are the pool's, and outlive the worker that started them. A test that kills,
restarts or configures a server, or asserts its event ids, starts one of its own instead.

PYTEST_DONT_REWRITE: it is imported before pytest could, and asserts nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import began
from replicator.metastore.java import locked

PREFIX, OWNER = "replicator-pool-", "owner.json"
DIRECTORY = "REPLICATOR_TEST_POOL"
"""The variable that names the pool's directory to the workers."""


class Pool:
    """directory: of this run. Methods may be called by several processes at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def metastore(self, name: str, **options: Any) -> Running:
        """A metastore, by its name: the running one, or a new one with these options of `embedded.start`."""
        return embedded.start(self.directory / "metastores" / name, **options)

    def server(self, name: str, start: Callable[[Path], tuple[Mapping[str, Any], list[int]]]) -> dict[str, Any]:
        """What `start(directory)` returned, in this process or another: facts of a server, and its processes."""
        place = self.place(name)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place):
            facts = place.with_suffix(".json")
            if not facts.exists():
                found, processes = start(place)
                known = {"facts": dict(found), "processes": [[pid, began(pid)] for pid in processes]}
                aside = facts.with_suffix(".new")
                aside.write_text(json.dumps(known))
                os.replace(aside, facts)
            answer: dict[str, Any] = json.loads(facts.read_text())["facts"]
            return answer

    def place(self, name: str) -> Path:
        """The directory of a server."""
        return self.directory / "servers" / name

    def value(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make()` returned, in this process or another."""
        return self.server(name, lambda _: ({"value": make()}, []))["value"]

    def stop(self) -> None:
        """Ends all of its servers, and removes their data."""
        for place in (self.directory / "metastores").glob("*"):
            embedded.stop(place)
        for facts in (self.directory / "servers").glob("*.json"):
            for pid, start in json.loads(facts.read_text())["processes"]:
                if began(pid) == start:
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            stop_abandoned(left)
        os.environ[DIRECTORY] = tempfile.mkdtemp(prefix=PREFIX)
        os.chmod(os.environ[DIRECTORY], 0o755)  # databases run as users of their own
        (Path(os.environ[DIRECTORY]) / OWNER).write_text(json.dumps([os.getpid(), began(os.getpid())]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and DIRECTORY in os.environ:
        Pool(Path(os.environ.pop(DIRECTORY))).stop()


def stop_abandoned(directory: Path) -> None:
    """Ends the servers of a killed run, and removes their data; those of a running one stay, and so does a directory
    that another user has made: it could name any process."""
    try:
        if directory.is_symlink() or directory.lstat().st_uid != os.getuid():
            return
        pid, start = json.loads((directory / OWNER).read_text())
    except (OSError, ValueError):
        return  # it is being created, or another run removes it
    if began(pid) != start:
        Pool(directory).stop()


@pytest.fixture(scope="session")
def pool() -> Pool:
    """The servers of this run."""
    return Pool(Path(os.environ[DIRECTORY]))
