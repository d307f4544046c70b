"""`/metrics`: Prometheus' text of the service, its jobs and the lag of policies. Labels are jobs and policies only, so
that their number is that of the configuration. No label is called `job`: Prometheus gives each target one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replicator.service.web.serving import Serving

STATUSES = ("current", "behind", "late", "blocked", "none", "unknown")


class _Collected(Collector):
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        yield from self._service()
        yield from self._jobs()
        yield from self._policies()

    def _service(self) -> Iterator[Metric]:
        status = self._serving.status()
        build = GaugeMetricFamily("replicator_build_info", "Always 1; the release.", labels=["version"])
        build.add_metric([status.version], 1)
        yield build
        yield _gauge("replicator_scheduler_leader", "1 where this server schedules.", status.leader == status.here)
        yield _gauge("replicator_scheduler_led", "1 while any server schedules.", status.led)
        yield _gauge("replicator_scheduler_paused", "1 while all schedules are paused.", status.paused)
        yield _gauge("replicator_scheduler_trouble", "Causes that keep this server from its work.", len(status.trouble))
        yield _gauge("replicator_runs_running", "Runs at work.", status.running)
        yield _gauge("replicator_queue_length", "Runs that wait for a place.", status.queued)

    def _jobs(self) -> Iterator[Metric]:
        kept = GaugeMetricFamily(
            "replicator_runs_remembered", "Runs in the store, by how they ended.", labels=["job_name", "state"]
        )
        for (job, state), number in sorted(self._serving.store.counts().items()):
            kept.add_metric([job, state], number)
        yield kept
        ended = GaugeMetricFamily(
            "replicator_last_success_timestamp_seconds", "End of the newest run that was done.", labels=["job_name"]
        )
        for job, moment in sorted(self._serving.store.successes().items()):
            ended.add_metric([job], moment)
        yield ended
        paused = GaugeMetricFamily("replicator_job_paused", "1 while the job is paused.", labels=["job_name"])
        for each in self._serving.jobs():
            paused.add_metric([each.name], each.paused)
        yield paused

    def _policies(self) -> Iterator[Metric]:
        policies = self._serving.policies()
        for name, text, key in (
            ("replicator_lag_events", "Changes that the target lacks.", "lag_events"),
            ("replicator_lag_seconds", "Age of the oldest change that the target lacks.", "lag_seconds"),
            ("replicator_lag_bytes", "Bytes that were captured and not loaded.", "lag_bytes"),
            ("replicator_lag_objective_seconds", "The policy's max_lag.", "objective_seconds"),
            ("replicator_event_headroom_seconds", "Time until the source forgets what is needed.", "headroom_seconds"),
        ):
            family = GaugeMetricFamily(name, text, labels=["policy"])
            for each in policies:
                value = getattr(each, key)
                if value is not None:
                    family.add_metric([each.name], value)
            yield family
        status = GaugeMetricFamily("replicator_policy_status", "1 for the status it has.", labels=["policy", "status"])
        for each in policies:
            for name in STATUSES:
                status.add_metric([each.name, name], name == each.status)
        yield status


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def text_of(serving: Serving) -> bytes:
    """All metrics as they are now. Raises StoreUnreachable."""
    registry = CollectorRegistry()
    registry.register(_Collected(serving))
    return generate_latest(registry)
