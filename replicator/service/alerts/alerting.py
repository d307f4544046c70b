"""The server that schedules looks for what is wrong, and tells each channel: once, again after `repeat`, and when it is
over. What was told is in the store: neither a restart nor another server tells it again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from replicator.errors import Error
from replicator.service.alerts.alert_store import OpenAlert, finish, forget, open_alerts, record, remember
from replicator.service.alerts.channels import Message, channels_of
from replicator.service.alerts.conditions import (
    Condition,
    JobFacts,
    Trends,
    directories_of,
    of_comparisons,
    of_disks,
    of_jobs,
    of_policies,
)
from replicator.service.lag_watch import LagWatch
from replicator.service.measuring.slow_watch import remembered_comparisons
from replicator.service.scheduler import Scheduler
from replicator.service.store import ServiceStore
from replicator.service.times import iso
from replicator.text.quantity import parse_duration

PERIOD = 5.0  # seconds from one look to the next
FIRST, LONGEST = 10.0, 300.0  # seconds to a channel's next try after a failure: doubled each time

log = logging.getLogger(__name__)


@dataclass
class Alerter:
    """`step` looks and tells once."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    _first_seen: dict[str, float] = field(default_factory=dict)
    _trends: Trends = field(default_factory=dict)
    _next_try: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Until the scheduler stops."""
        stopping: threading.Event = self.scheduler.stopping
        while not stopping.wait(PERIOD):
            try:
                if self.scheduler.health.leads:
                    self.step()
            except Error as error:
                log.warning("alerts: %s", error.message)
            except Exception:  # goes on, as the scheduler does
                log.exception("alerts: internal error")

    def step(self) -> None:
        """Raises StoreUnreachable."""
        if set(self.scheduler.config.policies) - set(self.watch.found):
            return  # not measured yet: alerts of before are not over
        now = self.store.now()
        found = self._lasting(self._found(now), now)
        known = {each.key: each for each in open_alerts(self.store)}
        for each in found.values():
            if each.eases and (each.key not in known or known[each.key].over is not None):
                continue
            record(self.store, each.key, each.kind, each.subject, (each.text, each.hint), now)
        for key in set(known) - set(self._first_seen):
            finish(self.store, key, now)
        for alert in open_alerts(self.store):
            self._tell(alert, now)

    def _found(self, now: float) -> Iterable[Condition]:
        config = self.scheduler.config
        states, successes, planned = self.store.jobs(), self.store.successes(), self.store.first_runs()
        facts = [
            JobFacts(
                job,
                states.get(name),
                self.store.runs(job_name=name, states=ENDED, limit=config.alerts.failed_in_a_row),
                successes.get(name, planned.get(name, now)),
            )
            for name, job in self.scheduler.jobs.items()
        ]
        disks = {"service.logs": config.service.logs, **directories_of(config.policies)}
        yield from of_jobs(facts, config.alerts, now)
        yield from of_policies(dict(self.watch.found), self._trends, config.alerts)
        compared = {**remembered_comparisons(self.store), **self.watch.compared}
        known = {name: each for name, each in compared.items() if name in config.policies}
        yield from of_comparisons(known, config.alerts, now)
        yield from of_disks(disks, self._trends, config.alerts, now)

    def _lasting(self, found: Iterable[Condition], now: float) -> dict[str, Condition]:
        """Those that last for long enough, by their keys."""
        there = {each.key: each for each in found}
        self._first_seen = {key: self._first_seen.get(key, now) for key in there}
        return {key: each for key, each in there.items() if now - self._first_seen[key] >= each.hold}

    def _tell(self, each: OpenAlert, now: float) -> None:
        config = self.scheduler.config.alerts
        channels, told = channels_of(config), dict(each.told)
        repeat = parse_duration(config.repeat).total_seconds()
        for name, send in channels.items():
            event = _event(each, told.get(name), now, repeat)
            if not event or time.monotonic() < self._next_try.get(name, (0.0, 0.0))[0]:
                continue
            message = Message(
                event, each.id, each.kind, each.subject, each.text, each.hint, iso(each.since) or "", iso(now) or ""
            )
            try:
                send(message)
            except (OSError, Error, ValueError) as error:
                wait = min(self._next_try.get(name, (0.0, FIRST / 2))[1] * 2, LONGEST)
                self._next_try[name] = (time.monotonic() + wait, wait)
                log.warning("alerts.%s: not told, tried again in %.0f s: %s", name, wait, error)
                continue
            self._next_try.pop(name, None)
            told[name] = (event, now)
        waits = any(told.get(name, ("over",))[0] != "over" for name in channels)
        if each.over is not None and not waits:
            forget(self.store, each.key)
        elif told != each.told:
            remember(self.store, each.key, told)


ENDED = ("done", "partial", "differs", "failed", "lost")


def _event(each: OpenAlert, told: tuple[str, float] | None, now: float, repeat: float) -> str:
    """What a channel is to be told now; "" for nothing. One that was never told of an alert is not told of its end."""
    if each.over is not None:
        return "over" if told and told[0] != "over" else ""
    if told is None or told[0] == "over":
        return "raised"
    return "still" if now - told[1] >= repeat else ""
