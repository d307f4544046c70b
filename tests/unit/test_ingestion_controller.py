"""What a controller does with a job whose asset is changed, or which somebody cancels, while it waits: its steps only
say that they were called."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from test_ingestion_jobs import Clock, clock, opened, request

from replicator.core.connections.source_config import IngestionConfig
from replicator.core.runtime import Runtime
from replicator.errors import MetastoreUnreachable
from replicator.ingestion import controller
from replicator.ingestion.ingestion_request import Asset
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.landing_steps import STEPS

__all__ = ["clock"]


class World:
    """A store, and controllers that run one after the other. ran: steps. failing: steps at which the metastore is
    away."""

    def __init__(self, store: IngestionStore, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.ran: list[str] = []
        self.failing: tuple[str, ...] = ()

    def step(self, name: str, work: Any, facts: Any) -> dict[str, Any]:
        self.ran.append(name)
        if name in self.failing:
            raise MetastoreUnreachable("nobody answers")
        return {"event": 7, "rows": 1, "bytes": 1, "consumers": list(work.asset.consumers)}

    def run(self) -> controller.Worked:
        nobody: Any = None
        runtime = Runtime(nobody)
        return controller.Controller(self.store, IngestionConfig(), nobody, runtime, lambda: None, Event()).run()

    def change_asset(self) -> None:
        asset = Asset(name="crm", owner="olga", consumers=("everyone",), sources=("db",), created_by="olga")
        self.store.put_asset(asset)


@pytest.fixture
def world(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with opened(f"sqlite:///{tmp_path}/i.sqlite", clock) as store:
        made = World(store, clock)
        monkeypatch.setattr(controller, "append", lambda *_: None)
        for name in STEPS:
            monkeypatch.setitem(STEPS, name, partial(made.step, name))  # type: ignore[arg-type]
        yield made


def test_a_job_waits_while_nobody_has_approved_its_asset_as_it_is(world: World) -> None:
    job = world.store.submit(request()).job
    world.change_asset()

    waits = world.run()

    assert world.ran == [] and "asset crm is not approved" in waits.errors[0], waits
    shown = world.store.job(job)
    assert (shown.state, shown.error_kind, shown.approved_by) == ("failed", "lock", "")
    assert "replicator asset approve crm" in shown.error_text
    world.store.approve_asset("crm", "otto")
    assert world.run().done == 1, "at once"
    assert world.ran == list(STEPS) and world.store.job(job).approved_by == "otto"


def test_a_published_job_grants_nothing_to_consumers_that_nobody_has_approved(world: World) -> None:
    job = world.store.submit(request()).job
    world.failing = ("grant",)
    world.run()
    assert world.store.job(job).state == "published"
    world.change_asset()
    world.ran, world.failing = [], ()
    world.clock.now += 3600
    assert world.run().failed == 1 and world.ran == [] and world.store.job(job).state == "published"
    world.store.approve_asset("crm", "anna")
    assert world.run().done == 1 and world.ran == ["grant", "clean"]
    assert world.store.last_facts(request())["consumers"] == ["everyone"]
