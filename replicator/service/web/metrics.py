"""`/metrics`: Prometheus' text of the service, its jobs, its policies and their roots."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from replicator.service.measuring import families
from replicator.service.measuring.counters import counts
from replicator.service.measuring.slow_watch import remembered_comparisons, remembered_roots
from replicator.service.web.serving import Serving


def metrics_of(serving: Serving) -> bytes:
    """All metrics as they are now. Raises StoreUnreachable."""
    return families.text_of(_all(serving))


def _all(serving: Serving) -> Iterator[Metric]:
    yield from _service(serving)
    yield from _jobs(serving)
    with serving.store.transaction() as connection:
        yield from families.of_counts(counts(connection))
    now = serving.store.now()
    known = {**remembered_comparisons(serving.store), **serving.watch.compared}
    yield from families.of_policies(serving.config.policies, dict(serving.watch.found), known, now)
    yield from families.of_roots(remembered_roots(serving.store), now)


def _service(serving: Serving) -> Iterator[Metric]:
    status, health = serving.status(), serving.scheduler.health
    build = GaugeMetricFamily("replicator_build_info", "Always 1; the release.", labels=["version"])
    build.add_metric([status.version], 1)
    yield build
    yield _gauge("replicator_scheduler_leader", "1 where this server schedules.", status.leader == status.here)
    yield _gauge("replicator_scheduler_led", "1 while any server schedules.", status.led)
    yield _gauge("replicator_scheduler_epoch", "Changes of the server that schedules.", status.epoch)
    yield _gauge("replicator_scheduler_paused", "1 while all schedules are paused.", status.paused)
    yield _gauge("replicator_scheduler_trouble", "Causes that keep this server from its work.", len(status.trouble))
    age = time.monotonic() - health.step
    yield _gauge("replicator_scheduler_step_age_seconds", "Since this server's scheduler last came to an end.", age)
    yield _gauge("replicator_runs_running", "Runs at work.", status.running)
    yield _gauge("replicator_queue_length", "Runs that wait for a place.", status.queued)


def _jobs(serving: Serving) -> Iterator[Metric]:
    ended = GaugeMetricFamily(
        "replicator_last_success_timestamp_seconds", "End of the newest run that was done.", labels=["job_name"]
    )
    for job, moment in sorted(serving.store.successes().items()):
        ended.add_metric([job], moment)
    yield ended
    paused = GaugeMetricFamily("replicator_job_paused", "1 while the job is paused.", labels=["job_name"])
    for each in serving.jobs():
        paused.add_metric([each.name], each.paused)
    yield paused


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
