"""Random histories on a store that fails at any call: nothing is lost, and running again is all it takes."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from fault_store import Faults, expired
from small_root import ENGINE, HOUR, NOTHING, NOW, SmallRoot, checksum, content

from cmroot.errors import Error
from cmroot.expire.expire import expire, plan_expiry
from cmroot.keep.content import locate
from cmroot.keep.recycle import recycle, sweep_incoming
from cmroot.lease import acquire
from cmroot.log.captured import segments, sweep_log
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import Place, join

RATE = 0.02
NAMES = "abcdefgh"
HOURS = timedelta(seconds=HOUR)


class RandomHistory:
    """A root and a warehouse on one store. What is done under faults is done again without, and then must succeed."""

    def __init__(self, patch: pytest.MonkeyPatch, top: str, seed: int) -> None:
        self.root = create_or_open(join(top, "cmroot")).place
        self.warehouse = join(top, "warehouse")
        self.chance = random.Random(seed)
        self.faults = Faults(patch, top, self.root, self.chance, RATE)
        self.ground = SmallRoot(self.root)
        self.live: dict[str, int] = {}  # since which position
        self.recycled: set[str] = set()
        self.files: dict[str, str] = {}  # of the warehouse: place -> content

    def step(self) -> None:
        self.chance.choice([self.capture, self.capture, self.recycle, self.recycle, self.expire])()
        self.nothing_is_lost()

    def attempt(self, work: Callable[[], None]) -> None:
        """Once under faults, and, when that failed, as a person would: again."""
        try:
            with self.faults.on():
                work()
            return
        except (OSError, Error):
            self.nothing_is_lost()
        with expired(self.root):
            sweep_incoming(self.root)
        work()

    # ---- what is done ---------------------------------------------------------------------------------------------

    def capture(self) -> None:
        adds = [name for name in self.chance.sample(NAMES, 2) if name not in self.live]
        ends = {name: since for name, since in self.live.items() if self.chance.random() < 0.3}
        position = self.ground.position + 1

        def work() -> None:
            with acquire(self.root, "capture", renew=False) as lease:
                sweep_incoming(self.root)
                sweep_log(self.root, lease)
                log = segments(self.root)
                if log and log[-1].last == position:  # the first attempt's, whose answer was lost
                    return
                self.ground.keep(*adds)
                self.ground.position = position - 1
                self.ground.capture(
                    add=" ".join(adds),
                    release=" ".join(f"{name}@{since}" for name, since in ends.items()),
                    at=1,
                    lease=lease,
                )

        self.attempt(work)
        self.ground.position = position
        self.live = {name: since for name, since in self.live.items() if name not in ends}
        self.live |= dict.fromkeys(adds, position)

    def recycle(self) -> None:
        name = self.chance.choice(NAMES)
        place = Place(self.warehouse) / uuid.uuid4().hex
        place.write_bytes(content(name))
        self.files[str(place)] = name

        def work() -> None:
            with acquire(self.root, "recycle", renew=False) as lease:
                sweep_incoming(self.root)
                lease.check()
                if place.exists():
                    recycle(self.root, str(place))

        self.attempt(work)
        assert not place.exists()
        self.recycled.add(name)

    def expire(self) -> None:
        """With an hour's retention, which all that was recycled is younger than; or with none, by a later clock."""
        older, now = self.chance.choice([(HOURS, time.time), (NOTHING, _later)])
        if older == NOTHING:
            self.recycled.clear()
            self.files = {place: name for place, name in self.files.items() if Place(place).exists()}

        def work() -> None:
            expire(self.root, plan_expiry(self.root, older_than=older, engine=ENGINE, now=now), now=now)

        self.attempt(work)

    # ---- what must be ---------------------------------------------------------------------------------------------

    def nothing_is_lost(self) -> None:
        log = segments(self.root)
        assert (log[-1].last if log else 0) >= self.ground.position - 1
        for segment in log:
            segment.verify()
        for name in {*self.live, *self.recycled}:
            self.is_whole(name)
        for place, name in self.files.items():
            if not Place(place).exists() and name not in self.recycled and not self.is_on_its_way(name):
                self.is_whole(name)

    def is_on_its_way(self, name: str) -> bool:
        """Protected in `incoming/`, where the next sweep files it."""
        incoming = Place(self.root) / "incoming"
        names = [each for each in incoming.list() if each.startswith("recycle-") and not each.endswith(".origin")]
        return any((incoming / each).read_bytes() == content(name) for each in names)

    def is_whole(self, name: str) -> None:
        path = locate(self.root, checksum(name), len(content(name)))
        with Place(path).open_read() as file:
            assert checksum_stream(file) == (checksum(name), len(content(name)))

    def without_faults_what_nobody_needs_goes(self) -> None:
        expire(self.root, plan_expiry(self.root, older_than=NOTHING, engine=ENGINE, now=_later), now=_later)
        assert self.ground.there() == set(self.live)
        for name in self.live:
            self.is_whole(name)


def _later() -> float:
    return NOW


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_on_a_store_that_fails_at_any_call_nothing_is_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = overtaken = 0
    for seed in range(8):
        top = str(tmp_path / str(seed)) if kind == "local" else f"memory://{uuid.uuid4().hex}"
        with monkeypatch.context() as patch:
            life = RandomHistory(patch, top, seed)
            for _ in range(20):
                life.step()
            life.without_faults_what_nobody_needs_goes()
            failed, overtaken = failed + life.faults.failed, overtaken + life.faults.overtaken
    assert failed > 40, "the faults were never reached"
    assert (overtaken > 3) == (kind == "memory")
