"""Runs of the service: their states and history in its store, and their processes.

A process is started in a process group of its own, which ends with it, and writes its output to files. Queries of the
history read only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from sqlalchemy import and_, bindparam, func, or_, select

from replicator.core.database import Database
from replicator.core.logging import SERVICE_RUN, VARIABLE
from replicator.errors import ObjectNotFound
from replicator.service.schema import job, run

if TYPE_CHECKING:
    from sqlalchemy import Row


# ---- service run -----------------------------------------------------------------------------------------------------
# Runs of the service as values: their state, their end, and filters.


SCHEDULE = "schedule"
"""`asked_by` of runs that the schedule starts."""

TELLING = ("done", "partial", "differs", "failed", "lost")
"""States of a run that show the state of its job; a cancelled run does not, unless it exceeded its timeout."""

TOO_LONG = "took longer than its timeout"
"""Prefix of the message of a run that was cancelled by its timeout."""

RunState = Literal["queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True)
class ServiceRun:
    """A run of a job. Times are seconds since 1970. asked_by: "schedule", or the user who requested it. missed: times
    of the schedule that it makes up for, in addition to its own. state: "partial" and "differs" stand for the exit
    codes 3 and 4, "lost" for a server that died. exit_code, message, hint: of its end, as the command line reports
    them. server, epoch: of the server that ran it."""

    id: str
    job: str
    policy: str
    arguments: tuple[str, ...]
    asked_by: str
    reason: str
    missed: int
    due: float
    queued: float
    begun: float | None
    ended: float | None
    state: RunState
    cancelled_by: str
    exit_code: int | None
    message: str
    hint: str
    server: str
    epoch: int


@dataclass(frozen=True)
class RunFilter:
    """A filter of runs; empty fields match all. since, until: seconds since 1970 between which they were queued."""

    jobs: Sequence[str] = ()
    policy: str = ""
    states: Sequence[str] = ()
    since: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The end of a run. error: its class; said: its complete report, for the counters. again: it neither failed by
    itself nor was cancelled by a user: if a schedule started it, it becomes due again."""

    state: RunState
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    error: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


def run_of(row: Row[Any]) -> ServiceRun:
    """Returns the run in a row of the store."""
    fields = {name: value for name, value in row._mapping.items() if name != "active"}
    return ServiceRun(**{**fields, "arguments": tuple(json.loads(fields["arguments"]))})


# ---- run history -----------------------------------------------------------------------------------------------------


class RunHistory(Database):
    """Queries of runs. Raises as Database."""

    def run(self, id: str) -> ServiceRun:
        """Returns a run. Raises ObjectNotFound."""
        found = self._runs(run.c.id == id)
        if not found:
            raise ObjectNotFound(f"run {id!r} does not exist", hint="ended runs are deleted after service.keep")
        return found[0]

    def runs_of(self, ids: Sequence[str]) -> list[ServiceRun]:
        """Returns the runs that are still stored, oldest first."""
        return self._runs(run.c.id.in_(ids), order=(run.c.id,))

    def open_runs(self) -> list[ServiceRun]:
        """Returns the runs that are queued or running, oldest first."""
        return self._runs(run.c.active.is_not(None), order=(run.c.queued, run.c.id))

    def runs(
        self, *, job_name: str = "", states: Sequence[str] = (), before: str = "", limit: int = 50
    ) -> list[ServiceRun]:
        """Returns runs, newest first. before: an id; only runs that were queued earlier."""
        where = [run.c.job == job_name] if job_name else []
        where += [run.c.state.in_(states)] if states else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def runs_where(self, wanted: RunFilter, *, before: str = "", limit: int = 50) -> list[ServiceRun]:
        """Returns runs, newest first. before: an id; only runs that were queued earlier."""
        where: list[Any] = [run.c.job.in_(wanted.jobs)] if wanted.jobs else []
        where += [run.c.policy == wanted.policy] if wanted.policy else []
        where += [run.c.state.in_(wanted.states)] if wanted.states else []
        where += [run.c.id >= f"{int(wanted.since * 1000):013d}"] if wanted.since > 0 else []
        where += [run.c.id < f"{int(wanted.until * 1000) + 1:013d}"] if wanted.until > 0 else []
        where += [run.c.id < before] if before else []
        return self._runs(*where, order=(run.c.id.desc(),), limit=limit)

    def newest(self) -> dict[str, ServiceRun]:
        """Returns the newest run of each job that was ever planned: one index lookup each."""
        other = run.alias("other")
        newest = select(func.max(other.c.id)).where(other.c.job == job.c.name).scalar_subquery()
        last = select(newest).select_from(job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def newest_ended(self, names: Sequence[str]) -> dict[str, ServiceRun]:
        """Returns, for a few jobs, the newest run that shows the job's state: one index lookup each."""
        late = and_(run.c.state == "cancelled", run.c.message.startswith(TOO_LONG))
        tells = or_(run.c.state.in_(TELLING), late)
        newest = select(run).where(run.c.job == bindparam("name"), tells).order_by(run.c.id.desc()).limit(1)
        with self.transaction() as connection:
            rows = [connection.execute(newest, {"name": each}).first() for each in names]
        return {row.job: run_of(row) for row in rows if row is not None}

    def newest_ad_hoc_runs(self, names: Sequence[str], states: Sequence[str]) -> dict[str, ServiceRun]:
        """Returns the newest run of each name that ended in one of the states. One query, which reads all runs of these
        names: for ad-hoc runs, of which there are few per name."""
        last = select(func.max(run.c.id)).where(run.c.job.in_(names), run.c.state.in_(states)).group_by(run.c.job)
        return {each.job: each for each in self._runs(run.c.id.in_(last))}

    def successes(self) -> dict[str, float]:
        """Returns when each job that was ever planned last succeeded, without those that never did."""
        done = select(func.max(run.c.ended)).where(run.c.job == job.c.name, run.c.state == "done").scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, done.label("ended")))
            return {str(row.name): float(row.ended) for row in found if row.ended is not None}

    def first_runs(self) -> dict[str, float]:
        """Returns when the oldest stored run of each job that was ever planned was queued, which is the prefix of its
        id: one index lookup each."""
        oldest = select(func.min(run.c.id)).where(run.c.job == job.c.name).scalar_subquery()
        with self.transaction() as connection:
            found = connection.execute(select(job.c.name, oldest.label("id")))
            return {str(row.name): int(row.id[:13]) / 1000 for row in found if row.id is not None}

    def counts(self) -> dict[tuple[str, str], int]:
        """Returns the number of stored runs by job and state."""
        with self.transaction() as connection:
            query = select(run.c.job, run.c.state, func.count()).group_by(run.c.job, run.c.state)
            return {(str(name), str(state)): int(number) for name, state, number in connection.execute(query)}

    def known(self, ids: Sequence[str]) -> set[str]:
        """Returns the ids that are stored."""
        with self.transaction() as connection:
            return {str(id) for id in connection.execute(select(run.c.id).where(run.c.id.in_(ids))).scalars()}

    def _runs(self, *where: Any, order: Sequence[Any] = (), limit: int = 1000) -> list[ServiceRun]:
        with self.transaction() as connection:
            return [run_of(row) for row in connection.execute(select(run).where(*where).order_by(*order).limit(limit))]


# ---- times -----------------------------------------------------------------------------------------------------------
# Timestamps of the service as text.


def iso(moment: float | None) -> str | None:
    """Formats seconds since 1970 as ISO 8601."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


# ---- processes -------------------------------------------------------------------------------------------------------


ANSWER, LOG, PROGRESS = "answer.json", "log.txt", "progress.json"
STATES: Mapping[int, RunState] = {0: "done", 3: "partial", 4: "differs"}
"""Run states by exit code; all other codes are failures."""

UNSTORED = "its work ended, but its report could not be stored: is the disk of `logs` full?"

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
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)  # whatever the umask: outputs name paths and values
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
            message = message or (lacking_in(said)[:MESSAGE] if said and code else "")
            return Ended(STATES[code], code, message if said else UNSTORED, hint, error, said)
        message = message or f"ended with exit code {code} and no answer; see its log"
        return Ended("failed", code, message, hint, error or "NoAnswer", said)

    def _signal(self, number: int, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self._process.pid, number)


def lacking_in(report: Mapping[str, Any]) -> str:
    """Returns what a report names as incomplete: its first entry, and the number of the others; "" if it names
    nothing."""
    match report:
        case {"not_replicated": [{"object": str(name), "reason": str(reason), **rest}, *more]}:
            name = f"{name}/{part}" if (part := rest.get("partition")) else name
            return f"not replicated: {name}: {reason}{_others(more)}"
        case {"findings": [_, *_] as findings}:
            bad = [each for each in findings if isinstance(each, dict) and each.get("health") not in (None, "ok")]
            return f"{bad[0].get('name')}: {bad[0].get('text')}{_others(bad[1:])}" if bad else ""
        case {"gaps": [{"table": str(name), "reason": str(reason)}, *more]}:
            return f"not searched: {name}: {reason}{_others(more)}"
    return ""


def _others(more: Sequence[object]) -> str:
    return f"; and {len(more):,} more" if more else ""


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
