"""The hook: runs a command of replicator, as a process of the worker or as a run of the service over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests
from airflow.sdk import BaseHook

GRACE = 60.0
"""Seconds from SIGTERM to SIGKILL: a command lets its lease go, and removes what it has half written."""

FAILURES = 15
"""Questions about a run in a row that may go without an answer."""

ENDED = frozenset({"done", "partial", "differs", "failed", "cancelled", "lost"})
"""States of a run of the service that has ended."""


@dataclass(frozen=True)
class Answer:
    """How a command ended. exit_code: as docs/cli.md says; None: nobody knows. report: its `--json`."""

    exit_code: int | None
    report: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    hint: str = ""
    run: str = ""

    def __str__(self) -> str:
        said = self.message or f"ended with {self.exit_code}"
        return f"{said} (exit code {self.exit_code}); {self.hint}" if self.hint else f"{said} ({self.exit_code})"


class ReplicatorHook(BaseHook):
    """A connection with a host is the service's HTTP API: schema, host, port, and the token as the password. One
    without runs the command line: `executable` (a command and its first arguments), `config` (a file), `env`
    (variables) and `grace` (seconds) of its extra."""

    conn_name_attr = "replicator_conn_id"
    default_conn_name = "replicator_default"
    conn_type = "replicator"
    hook_name = "Replicator"

    def __init__(self, replicator_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.replicator_conn_id = replicator_conn_id
        self._process: subprocess.Popen[bytes] | None = None
        self._run = ""
        self._killed = threading.Event()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["login"],
            "relabeling": {"password": "Token", "schema": "http or https", "host": "Host of the service"},
            "placeholders": {
                "host": "empty: the command line on the worker",
                "extra": '{"executable": "/opt/bin/replicator", "config": "/etc/replicator/replicator.toml"}',
            },
        }

    def test_connection(self) -> tuple[bool, str]:
        """For the button of the page of connections."""
        try:
            if self.by_http:
                status = self._asked("GET", "status").json()
                return True, f"the service answers: {json.dumps(status)[:200]}"
            done = subprocess.run([*self._executable, "--version"], capture_output=True, text=True, timeout=60)
            return done.returncode == 0, (done.stdout or done.stderr).strip()
        except Exception as error:
            return False, str(error)

    @property
    def by_http(self) -> bool:
        return bool(self._connection.host)

    # ---- commands -------------------------------------------------------------------------------------------------

    def run(self, arguments: Sequence[str], *, job: str | None = None, key: str = "", poll: float = 2.0) -> Answer:
        """Runs a command to its end. By the command line: `arguments`. Over HTTP: the service's `job`, whose command
        stands in its configuration; arguments are not sent. key: of an action that is sent again and done once.
        Raises ValueError for what the connection cannot do, OSError or requests.RequestException where nobody
        answers."""
        return self._run_job(job, key, poll) if self.by_http else self._run_command(arguments)

    def lag(self, policy: str) -> dict[str, Any]:
        """A policy's lag now, as `replicator lag --json` says. Raises RuntimeError where it cannot be told."""
        if self.by_http:
            found = self._asked("GET", f"policies/{quote(policy, safe='')}/lag").json()
        else:
            answer = self._run_command(["lag", policy])
            if answer.exit_code not in (0, 3) or "seconds" not in answer.report:
                raise RuntimeError(f"lag of {policy}: {answer}")
            found = answer.report
        return dict(found)

    def kill(self) -> None:
        """Ends what `run` has begun: SIGTERM, and SIGKILL for its group after a grace; over HTTP the service does so.
        May be called by another thread, and twice."""
        self._killed.set()
        if self._run:
            with contextlib.suppress(requests.RequestException):
                self._asked("POST", f"runs/{self._run}:cancel", {"reason": "the task was killed"})
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.log.info("ending process %s", process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        until = time.monotonic() + float(self._extra.get("grace", GRACE))
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its Spark's Java, too

    # ---- the command line -----------------------------------------------------------------------------------------

    def _run_command(self, arguments: Sequence[str]) -> Answer:
        extra = self._extra
        config = ["--config", str(extra["config"])] if extra.get("config") else []
        command = [*self._executable, *config, *arguments, "--json"]
        self.log.info("running %s", shlex.join(command))
        environment = {**os.environ, **{name: str(value) for name, value in extra.get("env", {}).items()}}
        environment.pop("PYTHONPATH", None)  # Airflow's, and not that of the other environment
        with tempfile.TemporaryFile() as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            if self._killed.is_set():
                self.kill()
            assert self._process.stderr is not None
            for line in self._process.stderr:
                self.log.info("%s", line.decode(errors="replace").rstrip())
            code = self._process.wait()
            out.seek(0)
            report = _decoded(out.read())
        message, hint = str(report.get("message", "")), str(report.get("hint", ""))
        return Answer(code, report, message, hint)

    @property
    def _executable(self) -> list[str]:
        given = self._extra.get("executable", "replicator")
        return shlex.split(given) if isinstance(given, str) else list(given)

    # ---- the service ----------------------------------------------------------------------------------------------

    def _run_job(self, job: str | None, key: str, poll: float) -> Answer:
        if not job:
            raise ValueError("over HTTP the service runs jobs of its configuration: give job=, the name of one")
        asked = self._asked(
            "POST", f"jobs/{quote(job, safe='')}:run", {"reason": "Airflow"}, {"Idempotency-Key": key} if key else {}
        ).json()
        self._run = str(asked["run"])
        self.log.info("run %s of job %s%s", self._run, job, "" if asked.get("new", True) else " was at work already")
        if self._killed.is_set():
            self.kill()
        failures = 0
        while True:
            try:
                found = self._asked("GET", f"runs/{self._run}").json()
                failures = 0
            except requests.RequestException as error:  # the service may be restarting
                failures += 1
                if failures >= FAILURES:
                    raise
                self.log.warning("no answer about run %s: %s", self._run, error)
            else:
                if found["state"] in ENDED:
                    break
            time.sleep(poll)
        report = self._asked("GET", f"runs/{self._run}/answer").json()
        code = found["exit_code"]
        code = None if found["state"] in ("cancelled", "lost") else code
        message = found["message"] or (f"the run is {found['state']}" if code is None else "")
        return Answer(code, report, message, found["hint"], self._run)

    def _asked(
        self, method: str, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> requests.Response:
        connection = self._connection
        host = connection.host.removesuffix("/")
        if "://" not in host:
            host = f"{connection.schema or 'http'}://{host}{f':{connection.port}' if connection.port else ''}"
        all_headers = dict(headers or {})
        if connection.password:
            all_headers["Authorization"] = f"Bearer {connection.password}"
        timeout = float(self._extra.get("timeout", 60))
        answer = requests.request(method, f"{host}/api/v1/{path}", json=body, headers=all_headers, timeout=timeout)
        if not answer.ok:
            problem = _decoded(answer.content)
            said = problem.get("detail") or answer.text[:500]
            hint = f"; {problem['hint']}" if problem.get("hint") else ""
            raise requests.HTTPError(f"{answer.status_code} {said}{hint}", response=answer)
        return answer

    @property
    def _connection(self) -> Any:
        if "_found" not in self.__dict__:
            self._found = self.get_connection(self.replicator_conn_id)
        return self._found

    @property
    def _extra(self) -> dict[str, Any]:
        return dict(self._connection.extra_dejson)


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
