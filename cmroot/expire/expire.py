"""Expiry: deletes retained files that are not required by the source, a pin or the retention window. A plan is made
without the lease, then executed under it.

Planning reads pins and log, decides over every retained entry on an engine, and writes only to its own directory; a dry
run ends there. Execution (`plans`) takes later changes into account. The decision is in `retention`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import Error
from cmroot.expire.bucket_versions import NO_VERSIONS, GoingVersions, plan_versions, remove_versions, snapshots_going
from cmroot.expire.plans import (
    PlanDirectory,
    RemovedEntries,
    Since,
    new_plan,
    remove,
    sweep_plans,
    sweep_staging,
    write_part,
)
from cmroot.expire.retention import DECIDED, GOING, NEVER, TALLY, Rules, decide, needing, tally
from cmroot.keep.hdfs_keepers import drop_snapshots, made_snapshots
from cmroot.lease import acquire
from cmroot.log.captured import Segment, segments
from cmroot.log.references import KEY, Grouping, read_references, sources
from cmroot.pins import DumpPin, Pins, Slot, give_up_slot, read_pins, seconds, unpin_dump
from cmroot.store.place import Place
from cmroot.store.retained_entries import foreign_names, list_entries

# ---- expiry ----------------------------------------------------------------------------------------------------------
# The planned actions and the result of an expiry, as values that print as JSON. They are created in `expire`.


@dataclass(frozen=True)
class Count:
    """A number of entries and their bytes."""

    entries: int = 0
    bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.entries + other.entries, self.bytes + other.bytes)


@dataclass(frozen=True)
class HeldByPin:
    """The entries that a pin (`slot NAME`, `hold NAME`, `dump ID`) retains and the source has no more; `alone`: removed
    but for this pin. `position`: the one it requires; `age_seconds`: since its creation, or a slot's confirmation."""

    pin: str
    position: int
    age_seconds: float
    all: Count
    alone: Count

    def as_json(self) -> dict[str, object]:
        return {
            "pin": self.pin,
            "position": self.position,
            "age_seconds": round(self.age_seconds),
            "entries": self.all.entries,
            "bytes": self.all.bytes,
            "alone_entries": self.alone.entries,
            "alone_bytes": self.alone.bytes,
        }


@dataclass(frozen=True)
class GivenUp:
    """A slot whose consumer has confirmed nothing for longer than allowed; it does not retain contents any more."""

    slot: str
    position: int
    confirmed: str
    lag_seconds: float

    def as_json(self) -> dict[str, object]:
        return {
            "slot": self.slot,
            "position": self.position,
            "confirmed": self.confirmed,
            "lag_seconds": round(self.lag_seconds),
        }


@dataclass(frozen=True)
class ExpiryPlan:
    """The planned actions of an expiry, by the log up to `position` and the pins at `made` (seconds since 1970).

    `kept` and `going`: entries by reason. `unknown`: names in `files/` that are not content names, left unchanged.
    `snapshots`: on HDFS, by path; their bytes are unknown. The rows are on disk; they are removed at the end of a
    `with` block, or by `discard`.
    """

    root: str
    made: float
    older_than: timedelta
    max_slot_lag: timedelta | None
    position: int
    rules: Rules
    kept: dict[str, Count]
    going: dict[str, Count]
    held: list[HeldByPin]
    given_up: list[GivenUp]
    forgotten: list[str]
    unknown: int
    directory: PlanDirectory = field(repr=False)
    parts: list[str] = field(repr=False)
    seconds: float = 0.0
    versions: GoingVersions = NO_VERSIONS
    snapshots: list[str] = field(default_factory=list)

    @property
    def keeps(self) -> Count:
        return sum(self.kept.values(), Count())

    @property
    def removes(self) -> Count:
        return sum(self.going.values(), Count())

    def rows(self, *, keep: bool | None = None) -> Iterator[pa.RecordBatch]:
        """Yields one row per entry (cmroot.expire.retention.DECIDED), in constant memory: all, retained, or removed."""
        kinds = {None: ("keep-", "remove-"), True: ("keep-",), False: ("remove-",)}[keep]
        return self.directory.read(part for part in self.parts if part.startswith(kinds))

    def version_rows(self) -> Iterator[pa.RecordBatch]:
        """Yields one row per version to be removed (GOING_VERSIONS)."""
        return self.directory.read(self.versions.parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "older_than_seconds": self.older_than.total_seconds(),
            "position": self.position,
            "kept": {reason: _json(count) for reason, count in sorted(self.kept.items())},
            "going": {reason: _json(count) for reason, count in sorted(self.going.items())},
            "kept_entries": self.keeps.entries,
            "kept_bytes": self.keeps.bytes,
            "going_entries": self.removes.entries,
            "going_bytes": self.removes.bytes,
            "held": [held.as_json() for held in self.held],
            "given_up": [slot.as_json() for slot in self.given_up],
            "unknown": self.unknown,
            "going_versions": {"entries": self.versions.entries, "bytes": self.versions.bytes},
            "going_snapshots": self.snapshots,
            "seconds": round(self.seconds, 3),
        }

    def discard(self) -> None:
        """Removes the plan's directory. May run twice."""
        self.directory.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


@dataclass(frozen=True)
class Expired:
    """The result of an expiry. `plan`: the retained entries and why; `removed`: the removed entries, the bytes freed,
    and the entries that were retained because they had become required. `forgotten`: pins of dumps older than the
    retention. `snapshots`: deleted snapshots, by path; their bytes are unknown, and not counted as freed.
    `snapshots_left`: why others were not deleted. `unswept`: files of killed runs that this user may not remove."""

    plan: ExpiryPlan
    removed: RemovedEntries
    given_up: list[GivenUp]
    forgotten: list[str]
    seconds: float
    versions: RemovedEntries = field(default_factory=RemovedEntries)
    snapshots: list[str] = field(default_factory=list)
    snapshots_left: list[str] = field(default_factory=list)
    unswept: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        back = {"entries": self.removed.taken_back, "bytes": self.removed.taken_back_bytes}
        return {
            **self.plan.as_json(),
            "given_up": [slot.as_json() for slot in self.given_up],
            "forgotten_dumps": self.forgotten,
            "removed_entries": self.removed.entries,
            "removed_bytes": self.removed.bytes,
            "bytes_freed": self.removed.freed,
            "removed_snapshots": self.snapshots,
            "warnings": [*self.snapshots_left, *self.unswept],
            "taken_back": back,
            "removed_versions": {"entries": self.versions.entries, "bytes": self.versions.bytes},
            "plan_seconds": round(self.plan.seconds, 3),
            "seconds": round(self.seconds, 3),
        }


def _json(count: Count) -> dict[str, int]:
    return {"entries": count.entries, "bytes": count.bytes}


# ---- expire ----------------------------------------------------------------------------------------------------------


__all__ = [
    "Count",
    "Expired",
    "ExpiryPlan",
    "GivenUp",
    "HeldByPin",
    "cutoff_position",
    "expire",
    "held_by",
    "plan_expiry",
]


def plan_expiry(
    root: str,
    *,
    older_than: timedelta,
    now: Callable[[], float] = time.time,
    engine: Grouping,
    max_slot_lag: timedelta | None = None,
    versions: bool = False,
) -> ExpiryPlan:
    """Decides over every retained entry, and over the versions of buckets if requested. Takes no lease and may run
    concurrently with any other run; writes only below `expiring/`.

    Raises FormatError when a pin or the log is damaged or its beginning is missing: requirements are then unknown.
    """
    began = time.monotonic()
    if older_than < timedelta(0):
        raise Error(f"a retention of {older_than} is negative", hint="give an age such as 7d")
    moment = now()
    pins = read_pins(root).whole()
    log = segments(root)
    given_up, left = _without_lagging(pins, moment, max_slot_lag)
    honoured, forgotten = _without_old_dumps(left, moment - older_than.total_seconds())
    limit = moment - older_than.total_seconds()
    rules = Rules(needing(honoured), cutoff_position(log, limit, moment), math.floor(limit * 1e9))
    directory = new_plan(root, moment)
    try:
        counts = _decide(root, log, engine, rules, directory.place)
        old = plan_versions(root, log, engine, rules, directory.place) if versions else NO_VERSIONS
    except BaseException:
        directory.discard()
        raise
    return ExpiryPlan(
        root,
        moment,
        older_than,
        max_slot_lag,
        log[-1].last if log else 0,
        rules,
        {reason: count for reason, count in counts.reasons.items() if reason not in GOING},
        {reason: count for reason, count in counts.reasons.items() if reason in GOING},
        _held(honoured, rules, counts, moment),
        given_up,
        [pin.name for pin in forgotten],
        counts.unknown,
        directory,
        counts.parts,
        time.monotonic() - began,
        old,
        [entry.place for entry in snapshots_going(root, log, rules)],
    )


def expire(root: str, plan: ExpiryPlan, *, now: Callable[[], float] = time.time) -> Expired:
    """Executes a plan under the lease, except for entries required by now. May run concurrently with readers, and again
    after a crash: an entry is either complete or removed. Discards the plan.

    Raises LeaseHeld; FormatError when a pin has become damaged; Filing when a gateway files for too long.
    """
    began = time.monotonic()
    with plan, acquire(root, "expire", now=now) as lease:
        lease.check()
        sweep_plans(root, now(), plan.directory)
        stays = sweep_staging(root, now())
        pins = read_pins(root).whole()
        planned = {slot.slot for slot in plan.given_up}
        lagging, left = _without_lagging(pins, now(), plan.max_slot_lag, planned)
        for slot in lagging:
            lease.check()
            give_up_slot(root, slot.slot, now=now)  # before anything that it requires is removed
        honoured, forgotten = _without_old_dumps(left, plan.made - plan.older_than.total_seconds())
        since = Since(root, plan.position, plan.rules.pins, needing(honoured))
        removed = remove(root, plan.rows(keep=False), since, plan.rules.cutoff_ns, lease, now=now)
        versions = remove_versions(root, plan.version_rows(), since, lease, now)
        rules = Rules(needing(honoured), plan.rules.cutoff, plan.rules.cutoff_ns)
        going = [each for each in snapshots_going(root, segments(root), rules) if each.place in plan.snapshots]
        lease.check()
        reasons = drop_snapshots(root, going)
        there = {each.name for each in made_snapshots(root)} if reasons else set()
        gone = [each.place for each in going if each.name not in there]
        dropped = [pin.name for pin in forgotten if pin.name in plan.forgotten]
        for name in dropped:
            lease.check()
            unpin_dump(root, name)
    seconds = time.monotonic() - began + plan.seconds
    return Expired(plan, removed, lagging, dropped, seconds, versions, gone, reasons, stays)


def held_by(root: str, engine: Grouping, *, now: Callable[[], float] = time.time) -> list[HeldByPin]:
    """Returns what each slot, hold and dump retains now, whatever its age; changes and writes nothing. Raises
    FormatError like `plan_expiry`."""
    pins = read_pins(root).whole()
    log = segments(root)
    rules = Rules(needing(pins), log[-1].last if log else 0, NEVER)
    return _held(pins, rules, _decide(root, log, engine, rules, None), now())


def cutoff_position(log: Sequence[Segment], limit: float, moment: float) -> int:
    """Returns the last position that was captured at or before `limit` (seconds since 1970); 0 if there is none.

    The time of a capture counts as at least that of every capture before it, so a clock that jumped back makes later
    positions younger, never older. A capture without a time counts as of `moment`.
    """
    position, latest = 0, -math.inf
    for segment in log:
        for capture in segment.captures:
            reported = capture.about.get("time")
            latest = max(latest, float(reported) if isinstance(reported, int | float) else moment)
            if latest > limit:
                return position
            position = capture.last
    return position


# Pins at a timestamp


def _without_lagging(
    pins: Pins, moment: float, allowed: timedelta | None, only: set[str] | None = None
) -> tuple[list[GivenUp], Pins]:
    """Returns slots that lag more than allowed, and the pins without them. `only`: considers only these slots."""
    if allowed is None:
        return [], pins
    lagging: list[GivenUp] = []
    kept: list[Slot] = []
    for slot in pins.slots:
        lag = moment - seconds(slot.confirmed)
        if slot.given_up or lag <= allowed.total_seconds() or (only is not None and slot.name not in only):
            kept.append(slot)
        else:
            lagging.append(GivenUp(slot.name, slot.position, slot.confirmed, lag))
    return lagging, Pins(kept, pins.holds, pins.dumps, pins.damaged)


def _without_old_dumps(pins: Pins, limit: float) -> tuple[Pins, list[DumpPin]]:
    """Returns the pins without those of dumps created at or before a timestamp, and the latter."""
    young = [pin for pin in pins.dumps if seconds(pin.created) > limit]
    old = [pin for pin in pins.dumps if seconds(pin.created) <= limit]
    return Pins(pins.slots, pins.holds, young, pins.damaged), old


# On the engine


@dataclass
class _Counts:
    reasons: dict[str, Count] = field(default_factory=dict)
    pins: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    unknown: int = 0
    parts: list[str] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        name, count = row["name"], Count(row["entries"], row["bytes"] or 0)
        match row["what"]:
            case "reason":
                self.reasons[name] = self.reasons.get(name, Count()) + count
            case "pin":
                whole, alone = self.pins.get(name, (Count(), Count()))
                self.pins[name] = (whole + count, alone + Count(row["alone_entries"], row["alone_bytes"]))
            case "unknown":
                self.unknown += count.entries
            case "part":
                self.parts.append(name)


@dataclass(frozen=True)
class _Decider:
    """Lists and decides over one prefix, and writes the rows to the plan if there is one. Runs in a task."""

    root: str
    rules: Rules
    place: Place | None

    def __call__(self, group: pa.Table) -> pa.Table:
        if not group.column("checksum").null_count:  # no directory: none of the referenced contents are retained
            return TALLY.empty_table()
        prefix = group.column(KEY)[0].as_py()
        listed = list_entries(self.root, prefix)
        decided = decide(group, listed.entries, self.rules)
        reported: list[dict[str, object]] = [{"what": "unknown", "entries": listed.unknown}]
        if self.place is not None:
            for kind, rows in (
                ("keep", decided.filter(decided["keep"])),
                ("remove", decided.filter(pc.invert(decided["keep"]))),
            ):
                if rows.num_rows:
                    name = write_part(self.place, kind, prefix, rows.select(DECIDED.names).cast(DECIDED))
                    reported.append({"what": "part", "name": name, "entries": rows.num_rows})
        return pa.concat_tables([tally(decided, self.rules), pa.Table.from_pylist(reported, schema=TALLY)])


def _decide(root: str, log: list[Segment], engine: Grouping, rules: Rules, place: Place | None) -> _Counts:
    counts = _Counts(unknown=foreign_names(root))
    decider = _Decider(root, rules, place)
    for batch in engine.group(read_references, sources(root, log), KEY, decider, TALLY):
        for row in batch.to_pylist():
            counts.add(row)
    counts.parts.sort()
    return counts


def _held(pins: Pins, rules: Rules, counts: _Counts, moment: float) -> list[HeldByPin]:
    since = {f"slot {slot.name}": slot.confirmed for slot in pins.slots}
    since |= {f"hold {pin.name}": pin.created for pin in pins.holds}
    since |= {f"dump {pin.name}": pin.created for pin in pins.dumps}
    nothing = (Count(), Count())
    return [
        HeldByPin(pin.reason, pin.position, moment - seconds(since[pin.reason]), *counts.pins.get(pin.reason, nothing))
        for pin in rules.pins
    ]
