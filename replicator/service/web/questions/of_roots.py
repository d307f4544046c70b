"""Questions about roots: which there are, their size over time, holds, what expires, what is to be removed when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cmroot.store.resolve import as_written
from replicator.commands.cm.pins import cm_slots
from replicator.errors import Error, UsageError
from replicator.housekeeping.item_queries import waiting_by_day
from replicator.housekeeping.opening import opened
from replicator.pitr.pins import PinList
from replicator.service.children import answer_of
from replicator.service.series.series_store import RootSample, root_samples
from replicator.service.times import iso
from replicator.service.web.questions.named_roots import option_of, roots_of
from replicator.service.web.questions.of_policies import has_root, moment_of, time_after
from replicator.service.web.questions.question import Asking, asked_of_command, duration_of

SLOW = 30.0
"""Seconds for what reads a whole log."""


@dataclass(frozen=True)
class RootView:
    """name: what `root` takes. policies: that use the place, by any of its names."""

    name: str
    place: str
    policies: tuple[str, ...]


@dataclass(frozen=True)
class RootList:
    """Roots of the configuration that may be asked about, by name."""

    roots: list[RootView]


def roots(asking: Asking) -> RootList:
    there = [each for each in roots_of(asking.serving.config) if each.may(asking.who)]
    return RootList([RootView(each.name, each.place, each.policies) for each in there])


# ---- size ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizePoint:
    """at: ISO 8601. entries, bytes: what was kept; null where it could not be measured: `error` says why. shared_bytes:
    of these, the source's own files, which take no room of their own."""

    at: str
    entries: int | None
    bytes: int | None
    shared_bytes: int | None
    error: str

    @classmethod
    def of(cls, found: RootSample) -> SizePoint:
        said = {name: value for name, value in vars(found).items() if name != "root"}
        return cls(**said | {"at": iso(found.at) or ""})


@dataclass(frozen=True)
class SizeSeries:
    """What a root kept over time, oldest first, measured every `service.measure_roots`, kept for `service.keep`."""

    root: str
    points: list[SizePoint]


def size(asking: Asking) -> SizeSeries:
    since, after = moment_of(asking, "since"), time_after(asking.after)
    place = asking.root.place
    found = root_samples(asking.serving.store, place, since=since, after=after, limit=asking.limit + 1)
    return SizeSeries(place, [SizePoint.of(each) for each in found])


# ---- slots and holds ----------------------------------------------------------------------------------------------


def slots(asking: Asking) -> PinList:
    """Without what each holds back, which reads the whole log."""
    return cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)


@dataclass(frozen=True)
class HoldList:
    """Named moments that are kept. damaged: files that cannot be understood."""

    root: str
    holds: list[dict[str, Any]]
    damaged: list[str]


def holds(asking: Asking) -> HoldList:
    found: PinList = cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)
    return HoldList(found.root, found.holds, found.damaged)


def expiry(asking: Asking) -> Any:
    """Without a retention, that of the job that expires this root."""
    given = asking.values["older_than"] or _retention_of(asking)
    if not given:
        hint = 'give older_than=30d, or configure a job with command = ["cm", "expire", ...]'
        raise UsageError("which retention is meant?", hint=hint)
    duration_of("older_than", given)
    more = (f"--older-than={given}", "--dry-run", "--engine=local")
    return asked_of_command(("cm", "expire"), (), more)(asking)


def _retention_of(asking: Asking) -> str:
    for job in asking.serving.config.service.jobs.values():
        place = option_of(job.command, "--cmroot")
        if job.command[:2] == ("cm", "expire") and place and str(as_written(place)) == asking.root.place:
            return option_of(job.command, "--older-than")
    return ""


# ---- upcoming removals --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upcoming:
    """What is to go on a day (UTC; of the past: it is overdue). job: housekeeping or retention; reason: why; items: how
    many; bytes: null where nobody knows yet. more: the question that lists them one by one."""

    day: str
    job: str
    reason: str
    root: str
    items: int
    bytes: int | None
    more: str


@dataclass(frozen=True)
class UpcomingRemovals:
    """By day. lacking: what goes, too, and is not in here."""

    removals: list[Upcoming]
    lacking: list[str]


NOT_COUNTED = (
    "bytes of housekeeping's items: they are measured when they go",
    "entries of $cmroot: see cmroot/expiry",
    "backups of purges: `replicator purge retain --dry-run` tells",
    "loads that drop or replace: `replicator plan POLICY` tells",
)


def upcoming(asking: Asking) -> UpcomingRemovals:
    removals: list[Upcoming] = []
    lacking: list[str] = []
    places = {each.place: each.name for each in reversed(roots_of(asking.serving.config)) if each.may(asking.who)}
    seen: set[str] = set()
    if asking.serving.config.housekeeping.store and not asking.who.may("viewer"):  # it has the items of all roots
        places = {}
        lacking.append("items of housekeeping: their store is that of all policies")
    for place, name in sorted(places.items()):
        try:
            removals += _of_items(asking, place, name, seen)
        except Error as error:
            lacking.append(f"items of {name}: {error.message}")
    for name, job in sorted(asking.serving.scheduled.items()):
        if job.arguments[:2] == ("retention", "run") and asking.who.may("viewer"):
            removals += _of_plan(asking, name, lacking)
    removals.sort(key=lambda each: (each.day, each.job, each.reason))
    return UpcomingRemovals(removals, [*lacking, *NOT_COUNTED])


def _of_items(asking: Asking, place: str, name: str, seen: set[str]) -> Iterator[Upcoming]:
    if not has_root(place):
        return
    with opened(place, asking.serving.config.housekeeping.store) as store:
        if store.url in seen:
            return
        seen.add(store.url)
        store.check()
        for day, lifecycle, delay, number in waiting_by_day(store):
            text = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
            asked = f"housekeeping/items?root={name}&deleted_after={text}T00:00:00Z"
            yield Upcoming(text, "housekeeping", f"{lifecycle.lower()}, {delay}", name, number, None, asked)


def _of_plan(asking: Asking, job: str, lacking: list[str]) -> Iterator[Upcoming]:
    """What the newest rehearsal of a job would remove, at the time of the rehearsal."""
    for run in asking.serving.store.runs(job_name=job, states=("done", "partial"), limit=1):
        said: Any = answer_of(asking.serving.directory(run.id))
        if said.get("status") == "planned":
            day = (iso(run.ended) or "")[:10]
            by_reason: dict[str, list[int]] = {}
            for item in said.get("items", ()):
                if item["act"] != "set":
                    counts = by_reason.setdefault(str(item["reason"]), [0, 0])
                    counts[0] += 1
                    counts[1] += item["bytes"] or 0
            for reason, (number, size_) in by_reason.items():
                yield Upcoming(day, "retention", reason, "", number, size_ or None, f"runs/{run.id}/answer")
            return
    lacking.append(f"what the retention of job {job} removes next: let a job run it with --dry-run")
