"""Stores of ingestion on a clock that a test moves, and jobs that are asked for, claimed and landed there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from waiting import Clock

from replicator.ingestion.ingestion_request import STEPS, Asset, Claimed, Failure, Request
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.notices import Courier, Send


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(url: str, clock: Callable[[], float] = time.time) -> IngestionStore:
    store = IngestionStore(url, clock, lambda: 0.0)
    store.prepare()
    for name in ("crm", "shop", "web"):
        store.put_asset(Asset(name=name, owner="olga", producers=("paul",), sources=("db",), created_by="olga"))
        store.approve_asset(name, "anna")
    return store


def request(table: str = "orders", asset: str = "crm") -> Request:
    return Request(asset=asset, source="db", schema="public", table=table, requested_by="paul")


def claim(store: IngestionStore, holder: str = "c1", slots: int = 4) -> Claimed | None:
    return store.claim(holder, 60.0, slots, 0.5)


def claimed(store: IngestionStore, holder: str = "c1", slots: int = 4) -> Claimed:
    found = claim(store, holder, slots)
    assert found is not None
    return found


def courier(store: IngestionStore, senders: dict[str, Send]) -> Courier:
    return Courier(store, senders, 7 * 86_400.0)


def land(store: IngestionStore, columns: list[list[str]], table: str = "orders", fail: Failure | None = None) -> int:
    """A job that is done, as a controller does it; or fails."""
    store.submit(request(table))
    one = claimed(store)
    if fail is not None:
        store.fail(one, fail)
        return one.job
    place = f"/landing/crm/public/{table}/v-{one.job}-{one.fence}"
    facts = {"columns": columns, "schema_hash": repr(columns), "location": place, "rows": 3, "bytes": 9}
    for step in STEPS:
        if step == "publish":
            store.published(one, 7, facts)
        else:
            store.step_done(one, step, {})
    store.done(one)
    return one.job
