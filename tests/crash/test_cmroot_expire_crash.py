"""Expiries that are killed, expiries in random histories, and one on Spark."""

from __future__ import annotations

import os
import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from small_root import HOUR, NOTHING, NOW, SmallRoot, content, history, slot
from steps import at_every_step

from cmroot.expire.expire import expire, held_by, plan_expiry
from cmroot.pins import DumpPin, Hold, create_slot, drop_slot, hold, iso, pin_dump, read_pins, release, slots
from cmroot.root import create_or_open
from replicator.core.spark import SparkEngine
from replicator.metastore.java import find_java, spark_environment


def test_a_killed_expiry_is_ended_by_the_next(tmp_path: Path) -> None:
    """Before every change of the filesystem. The slot lags, and is given up before anything it needs goes."""
    root = str(tmp_path / "cmroot")
    ground: list[SmallRoot] = []

    def lay() -> None:
        shutil.rmtree(root, ignore_errors=True)
        create_or_open(root)
        ground[:] = [SmallRoot(root)]
        history(ground[0])
        create_slot(root, slot("west", 2, NOW - 10 * HOUR))
        pin_dump(root, DumpPin("d1", "/d", 1, 1, iso(NOW - HOUR)))

    seen: set[int] = set()
    half_written: set[str] = set()

    def check(_: int) -> None:
        there = ground[0].there()
        assert "a" in there
        assert "c" in there or slots(root)[0].given_up
        seen.add(len(there))
        for path in (asides := list(Path(root).rglob(".aside-*"))):
            os.utime(path, (NOW - 25 * HOUR, NOW - 25 * HOUR))
        half_written.update(path.parent.name for path in asides)
        for name in there:
            assert Path(ground[0].path(name)).read_bytes() == content(name)
        ground[0].expire(max_slot_lag=timedelta(hours=9))
        assert ground[0].there() == {"a"} and ground[0].expiring() == [] and read_pins(root).dumps == []
        assert slots(root)[0].given_up
        assert not list(Path(root).rglob(".aside-*"))

    work = f"""
from datetime import timedelta
from cmroot.expire.expire import expire, plan_expiry
from replicator.core.engine import LocalEngine
plan = plan_expiry({root!r}, older_than=timedelta(0), now=lambda: {NOW}, engine=LocalEngine(1),
                   max_slot_lag=timedelta(hours=9))
expire({root!r}, plan, now=lambda: {NOW})
"""
    assert at_every_step(work, lay, check, imports=", cmroot.expire.expire, replicator.core.engine") > 15
    assert seen == {1, 2, 3, 4} and "cmroot" in half_written


class Model:
    """What a root's log and pins say, reported once more in the plainest way."""

    def __init__(self) -> None:
        self.position = 0
        self.live: dict[str, list[int]] = {}  # where references that are still there began
        self.ended: dict[str, list[tuple[int, int]]] = {}  # (since, end)
        self.slots: dict[str, int] = {}
        self.holds: dict[str, int] = {}

    def needed(self) -> set[str]:
        found = {name for name, began in self.live.items() if began}
        for name, intervals in self.ended.items():
            if any(end > position for _, end in intervals for position in self.slots.values()):
                found.add(name)
            if any(since <= position < end for since, end in intervals for position in self.holds.values()):
                found.add(name)
        return found


@pytest.mark.parametrize("seed", range(6))
def test_in_random_histories_nothing_needed_goes_and_nothing_else_stays(tmp_path: Path, seed: int) -> None:
    """Captures, slots and holds come between planning and removing too."""
    chance = random.Random(seed)
    ground = SmallRoot(create_or_open(str(tmp_path / "cmroot")).place)
    model = Model()
    names = "abcdefgh"

    def capture() -> None:
        model.position += 1
        adds = chance.choices(names, k=chance.randint(0, 3))
        ends = []
        for name in {name for name, began in model.live.items() if began and chance.random() < 0.4}:
            since = model.live[name].pop()
            model.ended.setdefault(name, []).append((since, model.position))
            ends.append(f"{name}@{since}")
        ground.keep(*adds)
        for name in adds:
            model.live.setdefault(name, []).append(model.position)
        ground.capture(add=" ".join(adds), release=" ".join(ends))

    def pin() -> None:
        match chance.randint(0, 3):
            case 0 if "s" not in model.slots:
                model.slots["s"] = chance.randint(max(0, model.position - 2), model.position)
                create_slot(ground.root, slot("s", model.slots["s"]))
            case 1 if "s" in model.slots:
                drop_slot(ground.root, "s")
                del model.slots["s"]
            case 2 if "h" not in model.holds:
                model.holds["h"] = chance.randint(0, model.position)
                hold(ground.root, Hold("h", model.holds["h"], 1, iso(NOW)))
            case 3 if "h" in model.holds:
                release(ground.root, "h")
                del model.holds["h"]

    for _ in range(12):
        capture()
        pin()
        before = ground.there()
        plan = ground.plan()
        if chance.random() < 0.5:
            capture()
            pin()
        expire(ground.root, plan, now=lambda: NOW)
        assert ground.there() >= model.needed() & before
        if chance.random() < 0.5:
            ground.expire()
            assert ground.there() == model.needed() & ground.there() and ground.there() >= model.needed() & before


def test_an_expiry_on_spark_is_the_same(tmp_path: Path) -> None:
    ground = SmallRoot(create_or_open(str(tmp_path / "cmroot")).place)
    history(ground)
    create_slot(ground.root, slot("west", 2))
    spark = SparkEngine("local[2]", environment=spark_environment(find_java(os.environ)))
    try:
        local = ground.plan()
        with plan_expiry(ground.root, older_than=NOTHING, now=lambda: NOW, engine=spark) as plan:
            assert {**plan.as_json(), "seconds": 0} == {**local.as_json(), "seconds": 0}
            assert plan.removes.entries == 2
        assert held_by(ground.root, spark, now=lambda: NOW) == plan.held
        plan = plan_expiry(ground.root, older_than=NOTHING, now=lambda: NOW, engine=spark)
        expire(ground.root, plan, now=lambda: NOW)
        local.discard()
    finally:
        spark.stop()
    assert ground.there() == {"a", "c"} and ground.expiring() == []
