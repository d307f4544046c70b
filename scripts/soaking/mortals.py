"""What is killed and started again: both metastores, and `replicator sync --follow`. And who does it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.distributions import PYSPARK
from replicator.metastore.embedded.running import Running

ENDS_WITHIN = 90.0  # seconds for a follower to end by itself


class Mortal(Protocol):
    name: str

    def kill(self) -> bool | None:
        """As `kill -9`; False when there was none to kill."""
        ...

    def start(self) -> None: ...


class Server:
    """An embedded metastore, which comes back at the same port with its data."""

    def __init__(self, name: str, directory: Path, hive: str = PYSPARK, settings: Mapping[str, str] = {}) -> None:
        """`settings`: Hive's."""
        self.name, self._directory = name, directory
        host = {"host": "0.0.0.0"} if hive == "3.1" else {}
        self._options = {"hive": hive, "settings": settings, "env": os.environ, **host}
        self.running: Running = embedded.start(directory, **self._options)
        self._port = int(self.running.uri.rpartition(":")[2])

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.running.pid, signal.SIGKILL)

    def start(self) -> None:
        self.running = embedded.start(self._directory, port=self._port, **self._options)

    def stop(self) -> None:
        embedded.stop(self._directory)


class Follower:
    """`replicator sync POLICY --follow` as a child process; what it says on standard error is kept in a file."""

    name = "sync"

    def __init__(self, config: Path, policy: str, schedule: str, log: Path) -> None:
        self._arguments = ["--config", str(config), "sync", policy, "--follow", "--interval", schedule, "--json"]
        self._log = log
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "replicator.cli.main", *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def kill(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.communicate()

    def ended(self) -> bool:
        """Whether it ended by itself, which it never should."""
        return self._child is not None and self._child.poll() is not None

    def stop(self) -> dict[str, object]:
        """Asks it to end; what it says of all its rounds."""
        assert self._child is not None
        self._child.terminate()
        try:
            out, _ = self._child.communicate(timeout=ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            return {}
        said = json.loads(out)
        assert isinstance(said, dict)
        return said


class Killer(threading.Thread):
    """Kills one of them at random times, and starts it again a moment later. `kills`: by name."""

    def __init__(self, mortals: Sequence[Mortal], every: float, dice: random.Random) -> None:
        super().__init__(name="killer", daemon=True)
        self._mortals, self._every, self._dice = mortals, every, dice
        self._over = threading.Event()
        self.kills: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            turns: list[Mortal] = []  # each has its turn
            while not self._over.wait(self._every * self._dice.uniform(0.5, 1.5)):
                turns = turns or self._dice.sample(self._mortals, len(self._mortals))
                chosen = turns.pop()
                self.kills[chosen.name] += chosen.kill() is not False
                time.sleep(self._dice.uniform(0, 2))
                chosen.start()
        except BaseException as error:  # reported by who waits for the end
            self.error = error

    def end(self) -> None:
        """Everything runs afterwards. Raises what stopped the killer."""
        self._over.set()
        self.join()
        if self.error:
            raise self.error
