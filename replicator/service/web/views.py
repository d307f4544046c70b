"""Values of the API's responses. Times are ISO 8601 with a zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from replicator.service.jobs import Job
from replicator.service.run_history import RunState, ServiceRun, iso
from replicator.service.store import UNFINISHED, Action, JobState

Words = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")]
"""Text of a user: PostgreSQL stores no NUL."""


@dataclass(frozen=True)
class RunView:
    """A run. seconds: from its start to its end."""

    id: str
    job: str
    policy: str
    command: tuple[str, ...]
    asked_by: str
    reason: str
    missed: int
    due: str | None
    queued: str | None
    begun: str | None
    ended: str | None
    seconds: float | None
    state: RunState
    cancelled_by: str
    exit_code: int | None
    message: str
    hint: str
    server: str

    @classmethod
    def of(cls, run: ServiceRun) -> RunView:
        both = run.begun is not None and run.ended is not None
        return cls(
            id=run.id,
            job=run.job,
            policy=run.policy,
            command=("replicator", *run.arguments),
            asked_by=run.asked_by,
            reason=run.reason,
            missed=run.missed,
            due=iso(run.due),
            queued=iso(run.queued),
            begun=iso(run.begun),
            ended=iso(run.ended),
            seconds=round((run.ended or 0) - (run.begun or 0), 3) if both else None,
            state=run.state,
            cancelled_by=run.cancelled_by,
            exit_code=run.exit_code,
            message=run.message,
            hint=run.hint,
            server=run.server,
        )


@dataclass(frozen=True)
class RunList:
    """Runs. next: the cursor of the following page; None: this is the last one."""

    items: list[RunView]
    next: str | None


@dataclass(frozen=True)
class JobView:
    """A job. next: when it is due. last: the newest run, even if it has not ended."""

    name: str
    policy: str
    command: tuple[str, ...]
    schedule: str
    next: str | None
    paused: bool
    paused_by: str
    reason: str
    last: RunView | None

    @property
    def syncs(self) -> bool:
        """Returns True if it brings its policy's target up to date."""
        return self.command[1] == "sync"

    @classmethod
    def of(cls, job: Job, state: JobState | None, last: ServiceRun | None) -> JobView:
        return cls(
            name=job.name,
            policy=job.policy,
            command=("replicator", *job.arguments),
            schedule=job.schedule.text,
            next=iso(state.due) if state else None,
            paused=bool(state and state.paused),
            paused_by=state.paused_by if state else "",
            reason=state.reason if state else "",
            last=RunView.of(last) if last else None,
        )


@dataclass(frozen=True)
class JobList:
    items: list[JobView]


@dataclass(frozen=True)
class PolicyView:
    """A policy with its last measured lag; the metrics are None before the first measurement, and if a side does not
    answer."""

    name: str
    source: str
    target: str
    databases: tuple[str, ...]
    schedule_seconds: float
    status: str
    lag_events: int | None
    lag_seconds: float | None
    lag_bytes: int | None
    objective_seconds: float | None
    headroom_seconds: float | None
    measured: str | None
    trouble: tuple[str, ...]


@dataclass(frozen=True)
class PolicyList:
    items: list[PolicyView]


@dataclass(frozen=True)
class ServiceStatus:
    """The state of the service. leader: the server that schedules; led: it has the lease now. here: this server.
    trouble: what prevents this server from working. paused: all schedules are."""

    here: str
    leader: str
    epoch: int
    led: bool
    paused: bool
    trouble: tuple[str, ...]
    running: int
    queued: int
    version: str


@dataclass(frozen=True)
class Ask:
    """The body of an action. reason: is recorded."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    reason: Words = ""


@dataclass(frozen=True)
class Asked:
    """A queued run. run: its id. new: False: it is the run of the job that had not ended."""

    run: str
    new: bool


@dataclass(frozen=True)
class ActionView:
    """An action over HTTP. at: ISO 8601. failed: why it had no effect. unfinished: it is running, or was when its
    server died."""

    id: int
    at: str | None
    who: str
    address: str
    action: str
    subject: str
    reason: str
    failed: str = ""
    unfinished: bool = False

    @classmethod
    def of(cls, done: Action) -> ActionView:
        failed = str(done.answer.get("failed", "")) if isinstance(done.answer, dict) else ""
        return cls(
            done.id,
            iso(done.at),
            done.who,
            done.address,
            done.action,
            done.subject,
            done.reason,
            failed,
            done.answer == UNFINISHED,
        )


@dataclass(frozen=True)
class ActionList:
    """Actions. next: the cursor of the following page; None: this is the last one."""

    items: list[ActionView]
    next: int | None
