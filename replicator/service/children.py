"""Processes of runs: each is started in a process group of its own, which ends with it, and writes its output to
files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from replicator.core.logging import SERVICE_RUN, VARIABLE
from replicator.service.run_history import Ended, RunState

ANSWER, LOG, PROGRESS = "answer.json", "log.txt", "progress.json"
STATES: Mapping[int, RunState] = {0: "done", 3: "partial", 4: "differs"}
"""Run states by exit code; all other codes are failures."""

MESSAGE = 2000
"""Maximum characters of a failure's message in the store."""

_ID = re.compile(r"\d{13}-[0-9a-f]{12}")


class Child:
    """The process of a run. `wanted`: why it was asked to end; empty: it was not. Several threads may use it."""

    def __init__(
        self, job: str, arguments: Sequence[str], directory: Path, grace: float, alone: float | None = None
    ) -> None:
        """Starts the process. directory: of its output; created if missing. grace: seconds from SIGTERM to SIGKILL;
        alone: the same after its server has died, if it differs. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._grace = directory, grace
        self.job = job
        self.begun = time.monotonic()
        self.wanted = ""
        self._again = False
        self._asked = 0.0
        self._lock = threading.Lock()
        leash, self._leash = os.pipe()
        leashed = str(grace if alone is None else alone)
        try:
            with (directory / ANSWER).open("wb") as answer, (directory / LOG).open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "replicator.service.child", str(leash), leashed, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=log,
                    pass_fds=(leash,),
                    start_new_session=True,
                    env={**os.environ, SERVICE_RUN: directory.name, VARIABLE: str((directory / PROGRESS).absolute())},
                )
        except OSError:
            os.close(self._leash)
            raise
        finally:
            os.close(leash)

    def stop(self, why: str, grace: float | None = None, *, again: bool = False) -> None:
        """Sends SIGTERM; a later call, after the grace period (None: that of the constructor), kills the process group.
        Does not wait. again: the work is still required, as in `Ended`."""
        with self._lock:
            if self._process.returncode is not None:
                return
            if not self.wanted:
                self.wanted, self._again, self._asked = why, again, time.monotonic()
                self._signal(signal.SIGTERM, group=False)
            elif time.monotonic() - self._asked > (self._grace if grace is None else grace):
                self._signal(signal.SIGKILL, group=True)

    def ended(self) -> Ended | None:
        """Returns how the process ended, or None while it runs. Kills the rest of its process group."""
        with self._lock:
            if self._process.returncode is None:
                if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                self._signal(signal.SIGKILL, group=True)  # before its process id can be reused
                os.close(self._leash)
            code = self._process.wait()
        said = answer_of(self._directory)
        message, hint = str(said.get("message", ""))[:MESSAGE], str(said.get("hint", ""))[:MESSAGE]
        error = str(said.get("error", ""))[:60]
        if self.wanted and code not in STATES:
            return Ended("cancelled", code, self.wanted, hint, error, said, again=self._again)
        if code in STATES:
            return Ended(STATES[code], code, message, hint, error, said)
        message = message or f"ended with {code} and no answer; see its log"
        return Ended("failed", code, message, hint, error or "NoAnswer", said)

    def _signal(self, number: int, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self._process.pid, number)


def outputs_before(logs: Path, moment: float) -> list[str]:
    """Returns the ids of runs that were queued before `moment`, in seconds since 1970, and whose outputs are stored in
    `logs`; oldest first."""
    try:
        with os.scandir(logs) as found:
            ids = [each.name for each in found if _ID.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # no run has started yet
        return []
    return sorted(id for id in ids if int(id[:13]) < moment * 1000)


def answer_of(directory: Path) -> Mapping[str, object]:
    """Returns a run's report as its command prints it with `--json`; empty if there is none."""
    try:
        found = msgspec.json.decode((directory / ANSWER).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}
