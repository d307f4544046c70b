"""`replicator sync --follow` in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from lab import Lab
from waiting import CEILING

PROGRAM = """
from datetime import timedelta
from replicator.cli.main import main
from replicator.policies import follow

follow.AWAY_WAIT = timedelta(seconds=0.5)
main()
"""
"""It does not wait for ten seconds until it tries again to reach a metastore that was away."""


class Following:
    """It is killed at the end of a block, unless it has ended before."""

    def __init__(self, pair: Lab, schedule: str = "300ms") -> None:
        arguments = ["--config", str(pair.config()), "sync", pair.name, "--follow", "--interval", schedule, "--json"]
        self.errors = (pair.here / "errors").open("w+")
        self.child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        self.errors.close()

    def reported(self) -> str:
        self.errors.flush()
        return Path(self.errors.name).read_text()

    def end(self, how: signal.Signals = signal.SIGTERM) -> dict[str, object]:
        self.child.send_signal(how)
        out, _ = self.child.communicate(timeout=CEILING)
        assert self.child.returncode == 128 + how, self.reported()
        output = json.loads(out)
        assert isinstance(output, dict)
        return output
