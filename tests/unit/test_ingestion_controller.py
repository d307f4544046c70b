"""What a controller does with a job whose asset is changed, or which somebody cancels, while it waits: its steps only
say that they were called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from ingestion_stores import clock, opened, request
from waiting import Clock, eventually

from replicator.core.model import Table
from replicator.core.runtime import Runtime
from replicator.core.source_config import IngestionConfig
from replicator.errors import MetastoreUnreachable, ObjectNotFound
from replicator.ingestion import controller
from replicator.ingestion.ingestion_request import Asset, Claimed
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.landing_schema import JOB
from replicator.ingestion.landing.landing_steps import STEPS

__all__ = ["clock"]


class World:
    """A store, a metastore, and controllers that run one after the other. ran: steps. failing: steps at which the
    metastore is away. by: the job that published the landing table; None: there is none. meanwhile: done while one
    publishes."""

    def __init__(self, store: IngestionStore, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.ran: list[str] = []
        self.failing: tuple[str, ...] = ()
        self.by: int | None = None
        self.away = False
        self.meanwhile: Callable[[], object] = lambda: None

    def table(self, db: str, name: str) -> Table:
        """As the metastore has it."""
        if self.away:
            raise MetastoreUnreachable("nobody answers")
        if self.by is None:
            raise ObjectNotFound(f"there is no table {db}.{name}")
        return Table(db, name, parameters={JOB: str(self.by)})

    def step(self, name: str, work: Any, facts: Any) -> dict[str, Any]:
        self.ran.append(name)
        if name == "publish":
            self.meanwhile()
        if name in self.failing:
            raise MetastoreUnreachable("nobody answers")
        return {"event": 7, "rows": 1, "bytes": 1, "consumers": list(work.asset.consumers)}

    def run(self) -> controller.Worked:
        me: Any = self
        nobody: Any = None
        runtime = Runtime(nobody)
        return controller.Controller(self.store, IngestionConfig(lease="1s"), me, runtime, lambda: None, Event()).run()

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


def test_a_job_that_is_cancelled_while_it_publishes_is_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed meanwhile."""
    job = world.store.submit(request()).job

    renewed: list[object] = []
    renew = world.store.renew

    def renewing(claimed: Claimed, seconds: float) -> None:
        renew(claimed, seconds)
        renewed.append(claimed)

    def cancelled() -> None:
        world.store.cancel(job, "paul")
        before = len(renewed)
        eventually(lambda: len(renewed) > before + 1)  # the first of them may have begun earlier

    monkeypatch.setattr(world.store, "renew", renewing)
    world.meanwhile = cancelled
    assert world.run().done == 1
    shown = world.store.job(job)
    assert (shown.state, shown.event_id, shown.cancelled_by) == ("done", 7, "")


@pytest.mark.parametrize("is_published", [True, False])
def test_of_a_job_that_was_cancelled_while_it_published_the_metastore_says_what_became(
    world: World, clock: Clock, is_published: bool
) -> None:
    job = world.store.submit(request()).job
    world.failing = ("publish",)
    world.run()
    world.ran, world.failing, world.away = [], (), True
    assert world.store.cancel(job, "paul").state == "running"
    assert world.run().failed == 1 and world.ran == [] and world.store.job(job).state == "failed"
    world.by, world.away = job if is_published else job - 1, False
    world.change_asset()
    clock.now += 3600
    world.run()
    world.store.approve_asset("crm", "anna")
    world.run()
    shown = world.store.job(job)
    if is_published:
        assert (shown.state, shown.event_id) == ("done", 7) and world.ran == list(STEPS)[4:]
    else:
        assert (shown.state, shown.cancelled_by, world.ran) == ("cancelled", "paul", [])


def test_a_job_goes_on_whose_table_it_may_have_dropped_to_make_it_again(world: World, clock: Clock) -> None:
    asked = msgspec.structs.replace(request(), schema_policy="recreate")
    world.store.submit(asked)
    world.run()
    job = world.store.submit(asked).job
    world.failing = ("publish",)
    world.run()
    world.store.cancel(job, "paul")
    world.failing = ()
    assert world.run().done == 1, "else there would be no table"
