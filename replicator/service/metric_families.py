"""Families of metrics for Prometheus: of counters, policies, databases, disks, roots and ingestion. Pure.

Labels are the jobs, policies, roots and disks of the configuration, the ten tables and twenty databases of each policy
with the longest lag, and twenty assets of ingestion, so that their number is limited. No label is named `job`, which
Prometheus assigns to each target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from replicator.core.formats import kind_of
from replicator.core.not_replicated import NotReplicated
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.ingestion.ingestion_request import Kind
from replicator.ingestion.ingestion_shown import IngestionStats
from replicator.policies.lag import DatabaseLag
from replicator.policies.memory import Compared
from replicator.service.measuring import Disk, MeasuredLag, RootSample
from replicator.service.schema import BEEKEEPERS, BUCKETS, Count

STATUSES = ("current", "behind", "late", "blocked", "none", "unknown")
TABLES = 10
"""Tables of a policy: those with the longest lag."""

DATABASES, OTHER = 20, "other"
"""Databases of a policy: those with the longest lag; the rest are aggregated."""

ERROR_KINDS = get_args(Kind)

_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "replicator_runs": ("Ended runs.", ("policy", "kind", "outcome")),
    "replicator_run_failures": ("Failed runs, by error class.", ("policy", "kind", "error")),
    "replicator_bytes_copied": ("Bytes copied by runs.", ("policy",)),
    "replicator_files_copied": ("Files copied by runs, by origin of their bytes.", ("policy", "from")),
    "replicator_removed_files": ("Files removed by runs.", ("kind",)),
    "replicator_removed_bytes": ("Bytes removed by runs.", ("kind",)),
    **dict.fromkeys(BEEKEEPERS.values(), ("Beekeeper's counter, for all tables.", ())),
}
_SUMMARIES = ("beekeeper_path_cleanup_job_seconds", "beekeeper_metadata_cleanup_job_seconds")


def of_counts(counts: Iterable[Count]) -> Iterator[Metric]:
    """Yields the counters and the histogram of runs, each with its type even before it has a value."""
    by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in counts:
        by_name.setdefault(name, []).append((dict(labels), value))
    for name, (text, keys) in _COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=keys)
        for given, value in by_name.get(name, ()):
            family.add_metric([given.get(key, "") for key in keys], value)
        yield family
    yield _histogram(by_name)
    for name in _SUMMARIES:
        number, total = (sum(value for _, value in by_name.get(f"{name}_{part}", ())) for part in ("count", "sum"))
        text = "Runs of housekeeping; each does the work of both of Beekeeper's jobs."
        yield SummaryMetricFamily(name, text, count_value=int(number), sum_value=total)


def _histogram(by_name: Mapping[str, list[tuple[Mapping[str, str], float]]]) -> Metric:
    family = HistogramMetricFamily("replicator_run_seconds", "Duration of runs.", labels=["policy", "kind"])
    limits = [*(str(float(each)) for each in BUCKETS), "+Inf"]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for labels, value in by_name.get("replicator_run_seconds_bucket", ()):
        found.setdefault((labels["policy"], labels["kind"]), {})[labels["le"]] = value
    sums = {(of["policy"], of["kind"]): value for of, value in by_name.get("replicator_run_seconds_sum", ())}
    for of, counted in sorted(found.items()):
        total, buckets = 0.0, []
        for limit in limits:
            total += counted.get(limit, 0.0)
            buckets.append((limit, total))
        family.add_metric(list(of), buckets, sums.get(of, 0.0))
    return family


def of_policies(
    policies: Mapping[str, Policy], found: Mapping[str, MeasuredLag], compared: Mapping[str, Compared], now: float
) -> Iterator[Metric]:
    """Yields the metrics of all configured policies. compared: as the store has it. now: seconds since 1970."""
    lags = {name: lag for name in sorted(policies) if name in found and (lag := found[name].lag) is not None}
    for name, text, key in (
        ("replicator_lag_events", "Changes missing on the target.", "events"),
        ("replicator_lag_seconds", "Age of the oldest change known to be missing on the target.", "seconds"),
        (
            "replicator_lag_bound_seconds",
            "Upper bound of the lag: time since the last complete scan whose findings the target has.",
            "seconds_bound",
        ),
        ("replicator_lag_bytes", "Bytes captured but not loaded.", "bytes"),
        (
            "replicator_event_headroom_seconds",
            "Time until the source deletes events that are still needed.",
            "headroom_seconds",
        ),
        ("replicator_event_retention_seconds", "How long the source keeps events.", "kept_seconds"),
    ):
        yield _by_policy(name, text, {policy: getattr(lag, key) for policy, lag in lags.items()})
    goals = {name: each.max_lag.total_seconds() if each.max_lag else None for name, each in policies.items()}
    yield _by_policy("replicator_lag_objective_seconds", "The policy's max_lag.", goals)
    status = GaugeMetricFamily(
        "replicator_policy_status", "1 for the policy's status, else 0.", labels=["policy", "status"]
    )
    tables = GaugeMetricFamily(
        "replicator_table_lag_seconds",
        "Lag of the ten tables of a policy that lag the most.",
        labels=["policy", "table"],
    )
    for policy in sorted(policies):
        lag = lags.get(policy)
        for name in STATUSES:
            status.add_metric([policy, name], name == (lag.status if lag else "unknown"))
        for each in lag.tables[:TABLES] if lag else ():
            tables.add_metric([policy, each.table], each.seconds)
    yield status
    yield tables
    yield from _not_replicated({name: lag.not_replicated for name, lag in lags.items()})
    yield from _by_database({name: lag.databases for name, lag in lags.items()})
    both = {name: sum(map(two_primaries, lag.databases)) for name, lag in lags.items() if not lag.unreachable}
    yield _by_policy("replicator_two_primaries", "Databases that are primary on both sides.", both)
    good = {name: each.success for name, each in found.items() if name in policies}
    yield _by_policy(
        "replicator_policy_last_success_timestamp_seconds", "End of the policy's newest successful run.", good
    )
    measured = {name: each.at for name, each in found.items() if name in policies}
    yield _by_policy("replicator_policy_measured_timestamp_seconds", "Time of the policy's last measurement.", measured)
    verified = {name for name, each in policies.items() if each.verify is not None}
    of = {name: each for name, each in compared.items() if name in verified}
    ages = {name: verified_age(each, now) for name, each in of.items()}
    yield _by_policy(
        "replicator_verified_age_seconds", "Time since the last comparison of the table that has waited longest.", ages
    )
    never = {name: each.never for name, each in of.items()}
    yield _by_policy("replicator_never_verified_tables", "Tables that were never compared.", never)
    differing = {name: each.open_count for name, each in of.items()}
    yield _by_policy("replicator_differences", "Tables that differed in their last comparison.", differing)


def _not_replicated(found: Mapping[str, Sequence[NotReplicated]]) -> Iterator[Metric]:
    labels, name = ["policy", "format"], "replicator_not_replicated"
    objects = GaugeMetricFamily(f"{name}_objects", "Objects that replicas lack, by the tables' format.", labels=labels)
    size = GaugeMetricFamily(f"{name}_bytes", "Bytes of these objects, as far as they are known.", labels=labels)
    for policy, some in found.items():
        count, known = Counter[str](), Counter[str]()
        for each in some:
            count[kind_of(each.reason)] += 1
            known[kind_of(each.reason)] += each.bytes or 0
        for kind in count or ["other"]:
            objects.add_metric([policy, kind], count[kind])
            size.add_metric([policy, kind], known[kind])
    yield objects
    yield size


def _by_database(lags: Mapping[str, Iterable[DatabaseLag]]) -> Iterator[Metric]:
    """Yields the metrics of databases; the rest of a policy's databases have their longest lag, and the sums of their
    events and bytes."""
    labels, name = ["policy", "database"], "replicator_database_lag"
    seconds = GaugeMetricFamily(f"{name}_seconds", "Age of the oldest change known to be missing.", labels=labels)
    bound = GaugeMetricFamily(f"{name}_bound_seconds", "Upper bound of a replica's lag.", labels=labels)
    events = GaugeMetricFamily(f"{name}_events", "Changes missing on a replica.", labels=labels)
    size = GaugeMetricFamily(f"{name}_bytes", "Bytes of a database captured but not loaded.", labels=labels)
    for policy, databases in lags.items():
        ranked = sorted(databases, key=lambda each: (each.db == OTHER, -longest(each), -each.events, each.db))
        rest = ranked[DATABASES:]  # including one named so
        for each in ranked[:DATABASES]:
            seconds.add_metric([policy, each.db], each.seconds)
            events.add_metric([policy, each.db], each.events)
            size.add_metric([policy, each.db], each.bytes)
            if each.seconds_bound is not None:
                bound.add_metric([policy, each.db], each.seconds_bound)
        if rest:
            seconds.add_metric([policy, OTHER], max(each.seconds for each in rest))
            events.add_metric([policy, OTHER], sum(each.events for each in rest))
            size.add_metric([policy, OTHER], sum(each.bytes for each in rest))
            bounds = [each.seconds_bound for each in rest if each.seconds_bound is not None]
            if len(bounds) == len(rest):
                bound.add_metric([policy, OTHER], max(bounds))
    yield from (seconds, bound, events, size)


def longest(found: DatabaseLag) -> float:
    """Returns the seconds by which a database may be behind; infinite if no complete scan covers its replica."""
    if found.seconds_bound is not None:
        return found.seconds_bound
    return found.seconds if found.position is None else float("inf")


def two_primaries(found: DatabaseLag) -> bool:
    """Returns True if both sides are primary; False if a side does not answer."""
    return all(mark is not None and mark.role is Role.PRIMARY for mark in (found.source_mark, found.target_mark))


def of_disks(disks: Mapping[str, Disk]) -> Iterator[Metric]:
    """Yields the metrics of disks. disks: by their names in messages."""
    for name, text, key in (
        ("replicator_disk_free_bytes", "Free space on a local disk with a policy's root or the logs of runs.", "free"),
        ("replicator_disk_size_bytes", "Size of a local disk.", "size"),
    ):
        family = GaugeMetricFamily(name, text, labels=["disk"])
        for disk, found in sorted(disks.items()):
            family.add_metric([disk], getattr(found, key))
        yield family


def verified_age(compared: Compared, now: float) -> float | None:
    """Returns the seconds since the comparison of the table that waits longest; they grow with time. None: not
    known."""
    if not compared.ended:
        return None
    return max(0.0, now - datetime.fromisoformat(compared.ended).timestamp()) + (compared.oldest or 0.0)


def of_roots(roots: Mapping[str, tuple[float, RootSample]], now: float) -> Iterator[Metric]:
    """Yields the metrics of roots. roots: by location, when each was measured, and the result."""
    for name, text, key in (
        ("replicator_cmroot_bytes", "Bytes kept in a root; an estimate for a large root.", "bytes"),
        ("replicator_cmroot_files", "Contents kept in a root; an estimate for a large root.", "files"),
    ):
        family = GaugeMetricFamily(name, text, labels=["root"])
        for place, (_, root) in roots.items():
            family.add_metric([place], getattr(root, key))
        yield family
    at = GaugeMetricFamily(
        "replicator_cmroot_measured_timestamp_seconds", "Time of a root's last measurement.", labels=["root"]
    )
    pin = GaugeMetricFamily(
        "replicator_cmroot_oldest_pin_seconds", "Age of the oldest pin.", labels=["root", "consumer"]
    )
    for place, (moment, root) in roots.items():
        at.add_metric([place], moment)
        if root.oldest is not None:
            pin.add_metric([place, root.consumer], max(0.0, now - root.oldest))
    yield at
    yield pin


def of_ingestion(found: IngestionStats | None) -> Iterator[Metric]:
    """Yields the metrics of ingestion. found: None: not known. The twenty assets with most slots in use are separate;
    the rest are aggregated."""
    if found is None:
        return
    queue = found.queue
    states = GaugeMetricFamily("replicator_ingestion_jobs", "Open jobs, by state.", labels=["state"])
    for state, number in queue.states.items():
        states.add_metric([state], number)
    failing = GaugeMetricFamily("replicator_ingestion_failing", "Open jobs with an error, by kind.", labels=["kind"])
    for kind in ERROR_KINDS:
        failing.add_metric([kind], queue.failing.get(kind, 0))
    slots = GaugeMetricFamily("replicator_ingestion_slots_used", "Slots in use, by asset.", labels=["asset"])
    ranked = sorted(queue.assets, key=lambda each: (-each.at_work, each.asset))
    for each in ranked[:DATABASES]:
        slots.add_metric([each.asset], each.at_work)
    if rest := ranked[DATABASES:]:
        slots.add_metric([f"({OTHER})"], sum(each.at_work for each in rest))
    for name, text, value in (
        ("slots", "Maximum concurrent jobs of all controllers.", found.slots),
        ("waiting", "Due jobs without a slot.", queue.waiting),
        (
            "oldest_waiting_seconds",
            "Time since the longest waiting job became due; 0: none waits.",
            queue.waits_seconds or 0,
        ),
    ):
        yield GaugeMetricFamily(f"replicator_ingestion_{name}", text, value=float(value))
    yield from (states, failing, slots)


def _by_policy(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["policy"])
    for policy, value in sorted(values.items()):
        if value is not None:
            family.add_metric([policy], value)
    return family


def text_of(families: Iterable[Metric]) -> bytes:
    """Returns the metrics in Prometheus' text format."""
    found = list(families)

    class Collected(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from found

    registry = CollectorRegistry()
    registry.register(Collected())
    return generate_latest(registry)
