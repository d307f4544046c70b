"""`/metrics`: Prometheus' text of the service, its jobs, its policies and their roots."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from replicator.service.alert_conditions import first_wanted, overdue
from replicator.service.measuring import families
from replicator.service.measuring.families import counts
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
    yield from families.of_policies(serving.config.policies, serving.watch.found, known, now)
    yield from families.of_disks(serving.watch.disks)
    yield from families.of_ingestion(serving.watch.queue)
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
    store, labels = serving.store, ["job_name"]
    now, states, successes, queued = store.now(), store.jobs(), store.successes(), store.first_runs()
    ended = GaugeMetricFamily(
        "replicator_last_success_timestamp_seconds", "End of the newest run that was done.", labels=labels
    )
    for name, moment in sorted(successes.items()):
        ended.add_metric([name], moment)
    yield ended
    paused = GaugeMetricFamily("replicator_job_paused", "1 while the job is paused.", labels=labels)
    text = "Since alerts.missed_periods periods without a success have passed; 0 before, and while it is paused."
    late = GaugeMetricFamily("replicator_job_overdue_seconds", text, labels=labels)
    text = "1 where the newest certificate is not whole: of what is left, or was not searched."
    gaps = GaugeMetricFamily("replicator_certificate_incomplete", text, labels=labels)
    for name, job in sorted(serving.scheduled.items()):
        state = states.get(name)
        stopped = state is not None and state.paused
        paused.add_metric([name], stopped)
        success = successes.get(name, first_wanted(state, queued.get(name), now))
        periods = serving.config.alerts.missed_periods
        late.add_metric([name], 0.0 if stopped else overdue(job, success, periods, now))
        if job.arguments[:2] == ("purge", "certify"):
            for last in store.runs(job_name=name, states=("done", "partial"), limit=1):
                gaps.add_metric([name], last.state == "partial")
    yield from (paused, late, gaps)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
