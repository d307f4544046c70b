"""The state of a policy between its runs, in `<target_cmroot>/policies/<name>/`, and the lease on it.

    lease                     one run or role change at a time (cmroot.lease); object stores: lease/<epoch>
    runs/<start>-<id>.json    the history, one file a run
    scope.json                databases that the last run replicated
    turn.json                 the steps of the current or last switchover, failover or failback
    turns/<start>-<id>.json   completed role changes, with their reports

Every file is written to a staging file and renamed, and has a format, a version and a checksum, so that damage is
detected. Only the holder of the lease writes; reading requires no lease. All files can be lost without losing data: the
target's properties record what is replicated, the source's slots what is required, the roles which side is the primary.
"""

from __future__ import annotations

import re
import time as clocks
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from cmroot.lease import Lease, acquire
from cmroot.names import foreign
from cmroot.root import ChangeRoot, seal, unseal
from cmroot.store.place import Place
from replicator.core.not_replicated import NotReplicated, Rows
from replicator.core.policy import Policy
from replicator.errors import ConfigError, FormatError

POLICIES = "policies"  # in a target's $cmroot
KEPT_RUNS = 50  # runs that are retained regardless of age
AHEAD = 300.0
"""Seconds by which the clocks of hosts may differ before a time counts as one of the future."""

RunKind = Literal["bootstrap", "incremental", "nothing"]
RunStatus = Literal["running", "done", "failed", "killed"]
StepStatus = Literal["waiting", "running", "done", "failed"]
M = TypeVar("M", "Run", "RememberedScope", "RoleChange")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RUN_ID = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True)
class Compared:
    """The result of a policy's verification. `tables`: in total; `sampled`: compared now, of `bytes` bytes;
    `differing`: of these, the tables that differ, `behind`: those that the source has changed since, whose state is
    unknown. As of now: `open`: tables that differed in their last comparison, the first of them by name; `open_count`:
    their number; `never`: tables never compared; `oldest`: seconds since the least recent comparison of a table.
    `ended`: when (ISO 8601)."""

    tables: int = 0
    sampled: int = 0
    bytes: int = 0
    differing: tuple[str, ...] = ()
    behind: int = 0
    open: tuple[str, ...] = ()
    open_count: int = 0
    never: int = 0
    oldest: float | None = None
    seconds: float = 0.0
    ended: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a policy. Times are ISO 8601 with a zone; `started` is part of the file's name. `kind`: of the run
    (empty before that is known). from_event, to_event: of the source's log; position: the checkpoint at its end.
    records, files, bytes: loaded. lag_seconds, lag_seconds_bound: at its end, None if unknown. status: "killed" is set
    by the next run. error: the message of the failure. reverse: the policy ran from its target to its source. epoch:
    the lease's. dump: its directory. steps: seconds by name, in order. compared: the verification in this run or, with
    --follow, in the background; None if nothing was verified. not_replicated: objects that differ from the source.
    service_run: the service's run that did it; empty: none, it was started by hand; None: not known."""

    id: str
    policy: str
    started: str
    ended: str = ""
    kind: RunKind | Literal[""] = ""
    status: RunStatus = "running"
    from_event: int | None = None
    to_event: int | None = None
    position: int | None = None
    records: int = 0
    files: int = 0
    bytes: int = 0
    lag_seconds: float | None = None
    lag_seconds_bound: float | None = None
    error: str = ""
    reverse: bool = False
    epoch: int = 0
    dump: str = ""
    warnings: tuple[str, ...] = ()
    steps: dict[str, float] = {}
    compared: Compared | None = None
    not_replicated: tuple[NotReplicated, ...] = ()
    service_run: str | None = None


class RememberedScope(msgspec.Struct, frozen=True, kw_only=True):
    """The scope of a policy's last run: database at the source -> at the target, and the patterns of its tables.
    `former`: replica -> source's name, of replicas that still exist under former names of `rename_db`. `external`:
    "metadata" if only the metadata of external tables is replicated; `formats`: "as-they-are" if tables in every format
    are; `grants`: "ignore" if grants are not; `principals`: those with another name on the target. `recorded`: when
    (ISO 8601)."""

    databases: dict[str, str]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, str] = {}
    former: dict[str, str] = {}
    external: str = ""
    formats: str = ""
    grants: str = ""
    principals: dict[str, str] = {}
    recorded: str

    @property
    def terms(self) -> tuple[object, ...]:
        """Returns the settings that select the contents of the matching databases, and how they are replicated."""
        return self.include, self.exclude, self.partitions, self.external, self.formats, self.grants, self.principals


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a role change. Times are ISO 8601, empty if not reached. `detail`: the result, or why it failed."""

    name: str
    status: StepStatus = "waiting"
    started: str = ""
    ended: str = ""
    detail: dict[str, Any] = {}


class RoleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A role change, as the list of its steps, written before its first step. An interrupted one is completed from it.
    `by`: the operator; `epoch`: the highest one on either side before its first step; `forced`: --force was given;
    `detail`: further data of the verb, such as a loss report. `ended`: empty until it is completed."""

    id: str
    policy: str
    verb: str
    started: str
    by: str = ""
    epoch: int = 0
    forced: bool = False
    reverse: bool = False
    steps: tuple[Step, ...] = ()
    detail: dict[str, Any] = {}
    ended: str = ""

    @property
    def waiting(self) -> tuple[Step, ...]:
        """Returns the steps that are not done."""
        return tuple(step for step in self.steps if step.status != "done")

    def with_step(self, name: str, **changes: Any) -> RoleChange:
        """Returns a copy with one step changed. Raises KeyError if no step has this name."""
        if name not in [step.name for step in self.steps]:
            raise KeyError(name)
        steps = (msgspec.structs.replace(each, **changes) if each.name == name else each for each in self.steps)
        return msgspec.structs.replace(self, steps=tuple(steps))


@dataclass(frozen=True)
class History:
    """Runs, newest first, and the files among them that could not be parsed."""

    runs: list[Run]
    damaged: list[str]

    @property
    def last(self) -> Run | None:
        return self.runs[0] if self.runs else None

    @property
    def last_done(self) -> Run | None:
        """Returns the newest completed run."""
        return next((run for run in self.runs if run.status == "done"), None)


class ShownRun(Run, frozen=True, kw_only=True):
    """A run of the history. `events_of`: the metastore whose event ids from_event and to_event are, on the side that
    was replicated. `future`: its times are later than now: a clock was ahead."""

    events_of: str
    future: bool = False


@dataclass(frozen=True, kw_only=True)
class ShownHistory(Rows):
    """A policy's runs, newest first, and files among them that cannot be parsed."""

    listed: ClassVar[str] = "runs"
    status: str = "shown"
    policy: str
    runs: list[ShownRun]
    damaged: list[str]


def shown_history(memory: Memory, policy: Policy, limit: int | None) -> ShownHistory:
    """Returns the newest `limit` runs (None: all)."""
    kept = memory.runs(limit)
    runs = [
        ShownRun(
            **msgspec.structs.asdict(run),
            events_of=policy.target if run.reverse else policy.source,
            future=is_future(run.started),
        )
        for run in kept.runs
    ]
    return ShownHistory(policy=policy.name, runs=runs, damaged=kept.damaged)


_FORMAT: dict[type[Any], str] = {
    Run: "replicator-run",
    RememberedScope: "replicator-scope",
    RoleChange: "replicator-turn",
}
_HINT: dict[type[Any], str] = {
    Run: "remove it: only this run's entry of the history is lost",
    RememberedScope: "remove it: the next run uses the policy's present scope, and drops nothing that has left it",
    RoleChange: "check the roles of both sides (`replicator role show`), then remove it, and run the command again",
}


class Memory:
    """The memory of one policy. A writer holds its lease: `with memory.lease("sync"): ...`."""

    def __init__(self, root: ChangeRoot, policy: str, *, clock: Callable[[], float] = clocks.time) -> None:
        """Opens the memory. `root`: the target's $cmroot, opened, as nothing may be written into a directory that is
        not a root. `clock`: tells which runs are of the future. Raises ConfigError for a name that cannot be a
        directory's."""
        if not _NAME.fullmatch(policy):
            raise ConfigError(
                f"{policy!r} is not a valid policy name",
                hint="use up to 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
            )
        self.policy, self.place, self._clock = policy, Place(root.place) / POLICIES / policy, clock
        self._runs = self.place / "runs"

    def lease(self, purpose: str) -> Lease:
        """Acquires the exclusive right to run or switch the policy and write here. Raises LeaseHeld (exit 7)."""
        return acquire(str(self.place), purpose)

    # ---- runs -----------------------------------------------------------------------------------------------------

    def write_run(self, run: Run) -> None:
        """Writes a run, when it begins and again at its end; the last version counts. May run twice."""
        self._write(self._runs / _file_name(run), run)

    def runs(self, limit: int | None = None) -> History:
        """Returns the newest `limit` runs (None: all). Damaged files are listed and do not raise."""
        found, damaged = [], []
        for name in self._run_names()[:limit]:
            try:
                run = self._read(self._runs / name, Run)
            except FormatError:
                damaged.append(str(self._runs / name))
                continue
            if run is not None:
                found.append(run)
        return History(found, damaged)

    def close_killed(self, *, now: Callable[[], float]) -> list[Run]:
        """Marks runs that are recorded as running as killed, and returns them. Called under the lease before a run
        begins, when no run can be running. `ended` is the time of detection. May run twice."""
        killed = []
        for run in self.runs(KEPT_RUNS).runs:
            if run.status == "running":
                error = "the process ended before the run did"
                run = msgspec.structs.replace(run, status="killed", ended=iso(now()), error=error)
                self.write_run(run)
                killed.append(run)
        return killed

    def prune_runs(self, older_than: timedelta, *, now: Callable[[], float], keep: int = KEPT_RUNS) -> int:
        """Removes runs that began longer ago than `older_than`, under the lease, but never the newest `keep`, nor other
        files. Returns their number. May run twice."""
        oldest = stamp(iso(now() - older_than.total_seconds()))
        gone = [name for name in self._run_names()[max(0, keep) :] if name < oldest]
        for name in gone:
            (self._runs / name).remove_own()
        return len(gone)

    def _run_names(self) -> list[str]:
        """Returns the file names, newest first. Those of the future, which a clock that was ahead has given, come last:
        none of them is the newest run."""
        names = [name for name in reversed(self._runs.list()) if name.endswith(".json")]
        future = stamp(iso(self._clock() + AHEAD))
        return [name for name in names if name < future] + [name for name in names if name >= future]

    # ---- scope and turn -------------------------------------------------------------------------------------------

    def read_scope(self) -> RememberedScope | None:
        """Returns the scope; None if no run has recorded one. Raises FormatError if it is damaged."""
        return self._read(self.place / "scope.json", RememberedScope)

    def write_scope(self, scope: RememberedScope) -> None:
        """Writes the scope. May run twice."""
        self._write(self.place / "scope.json", scope)

    def read_role_change(self) -> RoleChange | None:
        """Returns the role change that was begun last; None if there never was one. Raises FormatError if the file is
        damaged, as it is then unknown which steps were done."""
        return self._read(self.place / "turn.json", RoleChange)

    def unfinished_role_change(self) -> RoleChange | None:
        """Returns the role change that is not completed, or None. Raises FormatError as `read_role_change`."""
        change = self.read_role_change()
        return change if change and not change.ended else None

    def write_role_change(self, change: RoleChange) -> None:
        """Writes a role change, before and after each step; archives a completed one, too. May run twice."""
        if change.ended:
            self._write(self.place / "turns" / f"{stamp(change.started)}-{change.id}.json", change)
        self._write(self.place / "turn.json", change)

    def role_changes(self) -> list[RoleChange]:
        """Returns completed role changes, newest first. Raises FormatError for a damaged one."""
        place = self.place / "turns"
        names = [name for name in reversed(place.list()) if name.endswith(".json")]
        return [change for name in names if (change := self._read(place / name, RoleChange)) is not None]

    # ---- files ----------------------------------------------------------------------------------------------------

    def _write(self, path: Place, value: Run | RememberedScope | RoleChange) -> None:
        path.replace_own(seal(_FORMAT[type(value)], value))

    def _read(self, path: Place, kind: type[M]) -> M | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        value = unseal(data, kind, _FORMAT[kind], str(path), _HINT[kind])
        if isinstance(value, Run | RoleChange) and value.policy != self.policy:
            raise FormatError(f"{path}: belongs to policy {value.policy}", hint=_HINT[kind])
        if isinstance(value, Run | RoleChange):
            _check(str(path), value)
        return value


def _check(path: str, value: Run | RoleChange) -> None:
    """Checks the id and the start, which become a file's name. Raises FormatError."""
    try:
        stamp(value.started)
    except ValueError as error:
        raise FormatError(f"{path}: {error}", hint=_HINT[type(value)]) from error
    if not _RUN_ID.fullmatch(value.id):
        raise foreign(path, "the id", value.id, "is not an id")


def policies(root: ChangeRoot) -> Sequence[str]:
    """Returns the names of the policies in a target's $cmroot, sorted."""
    return [name for name in (Place(root.place) / POLICIES).list() if _NAME.fullmatch(name)]


def iso(seconds: float) -> str:
    """Formats seconds since 1970 as in these files, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def is_future(moment: str) -> bool:
    """Returns True for an ISO 8601 time that a clock must have been ahead to give."""
    return stamp(moment) >= stamp(iso(clocks.time() + AHEAD))


def _file_name(run: Run) -> str:
    if not _RUN_ID.fullmatch(run.id):
        raise ValueError(f"{run.id!r} is not a valid run id")
    return f"{stamp(run.started)}-{run.id}.json"


def stamp(moment: str) -> str:
    """Formats an ISO 8601 time as a file name that sorts by time, in UTC. Raises ValueError for invalid text."""
    found = datetime.fromisoformat(moment)
    found = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    return found.strftime("%Y%m%dT%H%M%S") + f".{found.microsecond // 1000:03}Z"
