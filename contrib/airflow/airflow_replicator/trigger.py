"""The trigger of the lag sensor: asks for a policy's lag now and then, in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_replicator.hook import ReplicatorHook

FAILURES = 5
"""Questions in a row that may go without an answer."""


def enough(lag: dict[str, Any], max_seconds: float | None, max_events: int | None) -> bool:
    """Returns True if a lag is small enough: its seconds by the upper bound, which also counts changes without an event
    that no scan has found yet. A lag without a bound, or known only "at least", is not."""
    if lag.get("status") in ("blocked", "none") or lag.get("at_least") or lag.get("unreachable"):
        return False
    bound = lag.get("seconds_bound")
    within = max_seconds is None or (bound is not None and float(bound) <= max_seconds)
    return within and (max_events is None or int(lag["events"]) <= max_events)


class ReplicatorLagTrigger(BaseTrigger):
    """Fires once the lag is small enough, with it; or with an error, when nobody answers FAILURES times in a row."""

    def __init__(
        self,
        policy: str,
        replicator_conn_id: str,
        max_seconds: float | None,
        max_events: int | None,
        poke_interval: float,
    ) -> None:
        super().__init__()
        self.policy, self.replicator_conn_id = policy, replicator_conn_id
        self.max_seconds, self.max_events, self.poke_interval = max_seconds, max_events, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("policy", "replicator_conn_id", "max_seconds", "max_events", "poke_interval")
        return "airflow_replicator.trigger.ReplicatorLagTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        failures = 0
        while True:
            hook = ReplicatorHook(self.replicator_conn_id)
            try:
                lag = await sync_to_async(hook.lag, thread_sensitive=False)(self.policy)
                failures = 0
            except asyncio.CancelledError:
                hook.kill()
                raise
            except Exception as error:
                failures += 1
                self.log.warning("lag of %s: %s", self.policy, error)
                if failures >= FAILURES:
                    yield TriggerEvent({"status": "error", "message": str(error)})
                    return
            else:
                self.log.info("%s lags at most %s s, %s events", self.policy, lag.get("seconds_bound"), lag["events"])
                if enough(lag, self.max_seconds, self.max_events):
                    yield TriggerEvent({"status": "success", "lag": {name: lag[name] for name in KEPT if name in lag}})
                    return
            await asyncio.sleep(self.poke_interval)


KEPT = ("policy", "status", "events", "seconds", "seconds_bound", "covered_until", "bytes", "event", "source_event")
"""Of a lag, for XCom."""
