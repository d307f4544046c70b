"""Queries about a policy: its lag over time, its last verification, roles and role changes, restore points,
checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from cmroot.log.captured import Segment, segments
from cmroot.root import FORMAT, open_existing
from cmroot.store.place import as_written
from replicator.commands.cm import cm_slots
from replicator.commands.policies import history
from replicator.compare.sampling import TableMemory, memory_of, read_memory
from replicator.core.connections import MetastoreConfig
from replicator.core.option import parse_time
from replicator.core.policy import Policy, matching_databases
from replicator.core.service_config import option_of
from replicator.errors import Error, UsageError
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.memory import Compared, Memory, RoleChange
from replicator.policies.roles import DatabaseRole, roles_of
from replicator.replay.restore.kept import SlotState
from replicator.replay.restore.recovery_points import events_at, windows
from replicator.service.runs import ServiceRun, answer_of, iso
from replicator.service.series import LagSample, lag_samples
from replicator.service.web.endpoint import Asking, normal_place, roots_of

LOOKED_AT = 200
"""Newest runs that are searched for the last verification."""


def moment_of(asking: Asking, name: str) -> float:
    """Parses a parameter, as `moment`."""
    return moment(name, asking.values.get(name), asking.serving.store.now)


def moment(name: str, given: str | None, now: Callable[[], float]) -> float:
    """Converts ISO 8601, "-1d" or "yesterday" to seconds since 1970; 0 for none. Raises UsageError."""
    if not given:
        return 0.0
    return float(int(parse_time(given, name, now())))


def has_root(place: str) -> bool:
    """Returns True if the root exists. Raises as its store."""
    return (as_written(place) / FORMAT).exists()


def text_of(error: Exception) -> str:
    """Returns the message of an error of ours, or of the system."""
    return error.message if isinstance(error, Error) else str(error)


# ---- lag ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LagPoint:
    """The lag at a time. at: ISO 8601. events, seconds, bytes: missing on the target; null if they could not be
    measured (`error` contains the reason); at_least: a side did not answer, and they are minimums; seconds_bound: the
    upper bound of the lag."""

    at: str
    status: str
    events: int | None
    seconds: float | None
    bytes: int | None
    headroom_seconds: float | None
    at_least: bool
    error: str
    seconds_bound: float | None

    @classmethod
    def of(cls, found: LagSample) -> LagPoint:
        said = {name: value for name, value in vars(found).items() if name != "policy"}
        return cls(**said | {"at": iso(found.at) or ""})


@dataclass(frozen=True)
class LagSeries:
    """A policy's lag over time, oldest first: every 30 seconds of the last day; before, the worst of each quarter of an
    hour, for `service.keep`."""

    policy: str
    objective_seconds: float | None
    points: list[LagPoint]


def lag_history(asking: Asking) -> LagSeries:
    since, after = moment_of(asking, "since"), time_after(asking.after)
    found = lag_samples(asking.serving.store, asking.policy.name, since=since, after=after, limit=asking.limit + 1)
    objective = asking.policy.max_lag.total_seconds() if asking.policy.max_lag else None
    return LagSeries(asking.policy.name, objective, [LagPoint.of(each) for each in found])


def key_of_point(point: dict[str, Any]) -> str:
    """Returns the key of a point: later points have later times; all within its millisecond count as seen."""
    return str(point["at"])


def time_after(key: str) -> float:
    """Returns the time just after the millisecond of a key; 0 for none. Raises UsageError."""
    if not key:
        return 0.0
    try:
        return datetime.fromisoformat(key).timestamp() + 0.001
    except ValueError as error:
        raise UsageError("invalid cursor", hint="use `next` of the previous page, or omit it") from error


# ---- verification -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """A comparison. by: "sync" for comparisons by runs under the policy's `verify`, else the job that ran it. run: the
    policy's or the service's. found: "same" or "differs". age_seconds: since it ended. compared: as a run reports
    it."""

    at: str
    age_seconds: float
    by: str
    run: str
    found: str
    compared: Compared | None = None


class TableComparisons:
    """The last comparisons of a policy's tables, by its runs and by `verify --sample`. Reads each file once. error: why
    they cannot be read."""

    def __init__(self, policy: Policy, reverse: bool) -> None:
        self._policy, self._by_hand = policy, policy.cmroot if reverse else policy.target_cmroot
        self._read: dict[str, tuple[dict[str, TableMemory], dict[str, TableMemory]]] = {}
        self.error = ""

    def at(self, replica: str, table: str) -> float | None:
        found = [some[table].verified for some in self._of(replica) if table in some]
        return max(found, default=0.0) or None

    def differs(self, replica: str, table: str) -> bool:
        """Returns True if the table differed in its last comparison by a run, which runs count, or in a later one by
        hand."""
        by_runs, by_hand = (some.get(table, TableMemory()) for some in self._of(replica))
        return "different" in (by_runs.outcome, by_hand.outcome if by_hand.verified > by_runs.verified else "")

    def differing(self, replica: str) -> list[str]:
        return [name for name, each in self._of(replica)[0].items() if each.outcome == "different"]

    def _of(self, replica: str) -> tuple[dict[str, TableMemory], dict[str, TableMemory]]:
        if replica not in self._read and not self.error:
            try:
                by_runs, by_hand = (read_memory(each, replica)[0].tables if each else {} for each in self._places)
                self._read[replica] = by_runs, by_hand
            except (Error, OSError) as error:
                self.error = text_of(error)
        return self._read.get(replica, ({}, {}))

    @cached_property
    def _places(self) -> tuple[str, str]:
        kept, by_hand = self._policy.target_cmroot, self._by_hand
        runs = str(Memory(open_existing(kept), self._policy.name).place / "verified") if has_root(kept) else ""
        return runs, memory_of(by_hand) if has_root(by_hand) else ""


@dataclass(frozen=True)
class VerificationView:
    """The verification of a policy. last: the newest comparison; null: none of the newest 200 runs made one.
    whole_round_seconds: since the comparison of the table that waits longest; null: some were never compared (`never`),
    or it is not known. open: tables that differed in their last comparison. budget: whether runs compare. jobs:
    configured jobs that compare."""

    policy: str
    last: Verification | None
    never: int | None
    whole_round_seconds: float | None
    open: tuple[str, ...]
    budget: bool
    jobs: list[str]


def verification(asking: Asking) -> VerificationView:
    policy, store = asking.policy, asking.serving.store
    now = store.now()
    jobs = [name for name, job in asking.serving.scheduled.items() if _is_about(job.arguments, "verify", policy.name)]
    found = [each for name in jobs for each in _ended(asking, name, now)]
    kept = None
    if has_root(policy.target_cmroot):
        runs = history(policy.name, limit=LOOKED_AT, config=asking.serving.config).runs
        ran = next((run for run in runs if run.compared is not None), None)
        if ran is not None and ran.compared is not None:
            kept = ran.compared
            at = kept.ended or ran.ended or ran.started
            differ = "differs" if kept.differing else "same"
            found.append(Verification(at, _age(at, now), "sync", ran.id, differ, kept))
    last = min(found, key=lambda each: each.age_seconds, default=None)
    return VerificationView(
        policy=policy.name,
        last=last,
        never=kept.never if kept else None,
        whole_round_seconds=kept.oldest if kept else None,
        open=kept.open if kept else (),
        budget=policy.verify is not None,
        jobs=jobs,
    )


def _ended(asking: Asking, job: str, now: float) -> Iterator[Verification]:
    for run in asking.serving.store.runs(job_name=job, states=("done", "differs"), limit=1):
        at = iso(run.ended) or ""
        found = "differs" if run.state == "differs" else "same"
        yield Verification(at, round(now - (run.ended or now), 3), f"job {job}", run.id, found)


def _age(at: str, now: float) -> float:
    return round(now - datetime.fromisoformat(at).timestamp(), 3)


def _is_about(arguments: tuple[str, ...], command: str, policy: str) -> bool:
    """Returns True if a command line is this command for the policy."""
    return arguments[:1] == (command,) and (policy in arguments[1:2] or option_of(arguments, "--policy") == policy)


# ---- roles --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyRoles:
    """Roles of both sides' databases, by their names there; `unreachable`: sides that do not answer, and why. slot: the
    policy's in the source's root. unfinished: a role change that has not ended; turns: completed role changes, newest
    first."""

    policy: str
    source: list[DatabaseRole] = field(default_factory=list)
    target: list[DatabaseRole] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    slot: SlotState | None = None
    unfinished: RoleChange | None = None
    turns: list[RoleChange] = field(default_factory=list)


def roles(asking: Asking) -> PolicyRoles:
    policy, config = asking.policy, asking.serving.config
    unreachable: dict[str, str] = {}

    def of(side: str, metastore: MetastoreConfig, wanted: Callable[[str], object]) -> list[DatabaseRole]:
        try:
            with impatient(metastore) as client:
                found = roles_of(client, lambda name: bool(wanted(name)))
        except Error as error:
            unreachable[side] = error.message
            return []
        if found.unreadable:
            unreachable[side] = "; ".join(found.unreadable.values())
        return found.databases

    renamed = set(policy.rename_db.values())
    source = of("source", policy.source_metastore, lambda db: matching_databases(policy, [db]))
    target = of("target", policy.target_metastore, lambda db: db in renamed or matching_databases(policy, [db]))
    slot, memory = None, None
    if has_root(policy.cmroot):
        pins = cm_slots(cmroot=policy.cmroot, held=False, config=config)
        slot = next((each for each in pins.slots if each.name == policy.slot), None)
    if has_root(policy.target_cmroot):
        memory = Memory(open_existing(policy.target_cmroot), policy.name)
    return PolicyRoles(
        policy=policy.name,
        source=source,
        target=target,
        unreachable=unreachable,
        slot=slot,
        unfinished=memory.unfinished_role_change() if memory else None,
        turns=memory.role_changes() if memory else [],
    )


# ---- restore points -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestorePoint:
    """A recovery point. kind: capture (the end of one), hold or dump; name, reason: of the hold or dump. at: ISO 8601;
    null: that part of the log no longer exists. to: the value for `restore --to`: the position, because several points
    may have one event. db: a database that can be restored to it; empty: none."""

    kind: str
    event: int
    position: int
    at: str | None
    name: str = ""
    reason: str = ""
    to: str = ""
    db: str = ""


@dataclass(frozen=True)
class RestorePoints:
    """The recovery points of a policy. root: whose log it is; that of the side that is replicated now. begins, ends:
    the log's first and last recovery point; any position, event or time between them can be requested. Contents that
    are not held may have expired: `restore --dry-run` reports which bytes are available. points: newest first; holds
    and dumps only for users who may view all policies of the root."""

    policy: str
    root: str
    begins: RestorePoint | None
    ends: RestorePoint | None
    points: list[RestorePoint]


def log_of_policy(asking: Asking) -> tuple[str, bool]:
    """Returns the root of the side that is replicated now, and whether that is the policy's target."""
    policy, reverse = asking.policy, False
    if has_root(policy.target_cmroot):
        done = [run for run in history(policy.name, config=asking.serving.config).runs if run.status == "done"]
        reverse = bool(done) and done[0].reverse
    return policy.target_cmroot if reverse else policy.cmroot, reverse


def restore_points(asking: Asking) -> RestorePoints:
    policy, (place, reverse) = asking.policy, log_of_policy(asking)
    if not has_root(place):
        return RestorePoints(policy.name, place, None, None, [])
    log = segments(open_existing(place).place)
    points = [
        _point("capture", int(each.about["event"]), each.last, iso(float(each.about["time"])))
        for segment in log
        for each in segment.captures
    ]
    since = moment_of(asking, "since")
    shown = [each for each in points if not since or _epoch(each.at) >= since] + _pinned(asking, place, log)
    shown.sort(key=lambda each: (each.position, each.kind), reverse=True)
    return RestorePoints(
        policy.name,
        place,
        points[0] if points else None,
        points[-1] if points else None,
        _with_databases(policy, log, shown, reverse=reverse),
    )


def _with_databases(
    policy: Policy, log: Sequence[Segment], points: Sequence[RestorePoint], *, reverse: bool
) -> list[RestorePoint]:
    """Returns the points, each with the first database of the policy that can be restored to it."""
    known = windows(log) if log else {}
    mine = sorted(known if reverse else matching_databases(policy, list(known)))
    return [replace(each, db=next((db for db in mine if known[db].has(each.position)), "")) for each in points]


def _point(kind: str, event: int, position: int, at: str | None, name: str = "", reason: str = "") -> RestorePoint:
    return RestorePoint(kind, event, position, at, name, reason, f"@{position}")


def _pinned(asking: Asking, place: str, log: Sequence[Segment]) -> list[RestorePoint]:
    """Returns the holds and dumps of a root, for users who may view all of its policies."""
    config, root = asking.serving.config, normal_place(place)
    users = [user for each in roots_of(config) if each.place == root for user in each.policies]
    if not all(asking.who.may("viewer", user) for user in users):
        return []
    pins = cm_slots(cmroot=place, held=False, config=config)
    known = events_at(log, {*(each["position"] for each in pins.holds), *(each["needs_after"] for each in pins.dumps)})

    def at(position: int) -> str | None:
        return iso(float(known[position][1])) if position in known else None

    held = [(each, "hold", each["position"], each["reason"]) for each in pins.holds]
    dumped = [(each, "dump", each["needs_after"], each["place"]) for each in pins.dumps]
    return [
        _point(kind, each["event"], position, at(position), each["name"], about)
        for each, kind, position, about in (*held, *dumped)
    ]


def _epoch(at: str | None) -> float:
    return datetime.fromisoformat(at).timestamp() if at else 0.0


# ---- checks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckView:
    """The newest `check` that the service ran for a policy. run, at: of that run. `found` is null if there was none, or
    if it ran on another server."""

    policy: str
    job: str
    run: str | None
    at: str | None
    state: str
    found: PolicyChecked | None


@dataclass(frozen=True)
class CheckList:
    """Checks by policy. without: policies that no configured job checks: `[service.jobs.NAME] command = ["check",
    "POLICY"]` does. A check writes small files, and is therefore not a query."""

    checks: list[CheckView]
    without: list[str]


def checks(asking: Asking) -> CheckList:
    found, without = [], []
    for name in sorted(asking.serving.config.policies):
        if not asking.who.may("viewer", name):
            continue
        jobs = [job for job in asking.serving.scheduled.values() if _is_about(job.arguments, "check", name)]
        found += [_check(asking, name, job.name) for job in jobs]
        without += [] if jobs else [name]
    return CheckList(found, without)


def _check(asking: Asking, policy: str, job: str) -> CheckView:
    ended = ("done", "partial", "differs", "failed")
    run: ServiceRun | None = next(iter(asking.serving.store.runs(job_name=job, states=ended, limit=1)), None)
    if run is None:
        return CheckView(policy, job, None, None, "never", None)
    said = answer_of(asking.serving.directory(run.id))
    known = said if "findings" in said else None
    return CheckView(policy, job, run.id, iso(run.ended), run.state, known)  # type: ignore[arg-type]  # JSON of it
