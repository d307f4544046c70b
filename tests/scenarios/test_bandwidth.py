"""The rate of copies: kept by threads together and by Spark's tasks together, and no brake where there is none."""

from __future__ import annotations

import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cmroot.store import checksum
from cmroot.store.checksum import FLOW, SLACK, checksum_file, copy_file, copy_stream
from replicator.replay.apply.copying import Placing, place_file
from replicator.replay.apply.origins import Roots, Wanted
from replicator.replay.apply.staging import AskingFence, Attempt

MB = 1_000_000


class Stopped:
    """A clock that stands still. waits: that were asked of it, in seconds; nobody waits."""

    def __init__(self) -> None:
        self._now, self.waits = time.monotonic(), list[float]()

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    @property
    def longest(self) -> float:
        return round(max(self.waits, default=0.0), 6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """Of the flow of this process's copies."""
    stopped = Stopped()
    monkeypatch.setattr(checksum, "time", stopped)
    return stopped


def files(here: Path, count: int, size: int) -> list[tuple[str, str]]:
    """Sources, and names for their copies."""
    here.mkdir(exist_ok=True)
    for number in range(count):
        (here / f"{number}").write_bytes(os.urandom(size))
    return [(str(here / f"{number}"), str(here / f"{number}-copy")) for number in range(count)]


def copied(pair: tuple[str, str]) -> int:
    source, target = pair
    return copy_file(source, target, reread=True)[1]


def test_threads_keep_a_rate_together_and_are_free_without_one(tmp_path: Path, clock: Stopped) -> None:
    def copy(name: str) -> None:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(copied, files(tmp_path / name, 3, MB)))

    copy("free")
    assert clock.waits == [] and FLOW.rate is None
    with FLOW.limited(2 * MB):
        copy("kept")
    assert clock.longest >= 3 * MB / (2 * MB) - SLACK
    copy("free again")
    before = clock.longest
    with FLOW.limited(2 * MB):
        copy_stream(io.BytesIO(bytes(2 * MB)), io.BytesIO())
    assert clock.longest == round(before + 1, 6)


@pytest.mark.parametrize("size", [MB, 18 * MB])
def test_what_streams_to_and_from_s3_keeps_it(moto_bucket: str, tmp_path: Path, size: int, clock: Stopped) -> None:
    """Small objects are written whole, larger ones aside."""
    (tmp_path / "a").write_bytes(os.urandom(size))
    right = checksum_file(str(tmp_path / "a"))
    roots = Roots(str(tmp_path / "source"), str(tmp_path / "target"))
    how = Placing(roots, Attempt(roots.target, "attempt", AskingFence("", "note")), frozenset())
    there, back = f"{moto_bucket}/{size}", f"{tmp_path}/back"
    with FLOW.limited(size):
        for number, (source, target) in enumerate(((str(tmp_path / "a"), there), (there, back)), 1):
            place_file(Wanted(source, target, size, None, right[0], 1), how)
            assert clock.longest >= number - SLACK
    assert checksum_file(back) == right
