"""The sensor: waits until a policy's replica is close enough. Deferrable: it takes no worker while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.exceptions import AirflowException
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_replicator.hook import ReplicatorHook
from airflow_replicator.trigger import KEPT, ReplicatorLagTrigger, enough


class ReplicatorLagSensor(BaseSensorOperator):
    """Waits for a lag of at most `max_seconds` and `max_events`; with neither: none. A lag that is not known exactly,
    because a side does not answer, is not small enough. deferrable: wait in the triggerer."""

    template_fields: Sequence[str] = ("policy", "replicator_conn_id")

    def __init__(
        self,
        *,
        policy: str,
        max_seconds: float | None = None,
        max_events: int | None = None,
        replicator_conn_id: str = ReplicatorHook.default_conn_name,
        deferrable: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.policy, self.replicator_conn_id = policy, replicator_conn_id
        self.max_seconds = max_seconds
        self.max_events = 0 if max_seconds is None and max_events is None else max_events
        self.deferrable = deferrable

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        interval, most = _seconds(self.poke_interval), _seconds(self.timeout)
        trigger = ReplicatorLagTrigger(
            self.policy, self.replicator_conn_id, self.max_seconds, self.max_events, interval
        )
        return self.defer(trigger=trigger, method_name="woken", timeout=timedelta(seconds=most))

    def woken(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """When the trigger has fired."""
        if event["status"] != "success":
            raise AirflowException(f"lag of {self.policy}: {event['message']}")
        return dict(event["lag"])

    def poke(self, context: Any) -> PokeReturnValue:
        lag = ReplicatorHook(self.replicator_conn_id).lag(self.policy)
        found = {name: lag[name] for name in KEPT if name in lag}
        return PokeReturnValue(is_done=enough(lag, self.max_seconds, self.max_events), xcom_value=found)


def _seconds(given: float | timedelta) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)
