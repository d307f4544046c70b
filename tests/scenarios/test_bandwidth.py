"""The rate of copies: kept by threads together and by Spark's tasks together, and no brake where there is none."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cmroot.store.checksum import checksum_file, copy_file, copy_stream
from cmroot.store.flow import FLOW, SLACK
from replicator.replay.copy.copying import Placing, place_file
from replicator.replay.copy.origins import Roots, Wanted
from replicator.replay.copy.staging import AskingFence, Attempt

MB = 1_000_000


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def files(here: Path, count: int, size: int) -> list[tuple[str, str]]:
    """Sources, and names for their copies."""
    here.mkdir(exist_ok=True)
    for number in range(count):
        (here / f"{number}").write_bytes(os.urandom(size))
    return [(str(here / f"{number}"), str(here / f"{number}-copy")) for number in range(count)]


def copied(pair: tuple[str, str]) -> int:
    source, target = pair
    return copy_file(source, target, reread=True)[1]


def test_threads_keep_a_rate_together_and_are_free_without_one(tmp_path: Path) -> None:
    def copy(name: str) -> list[int]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(copied, files(tmp_path / name, 3, MB)))

    free = min(seconds(partial(copy, f"free-{number}")) for number in range(3))
    with FLOW.limited(2 * MB):
        kept = seconds(lambda: copy("kept"))
    assert kept >= 3 * MB / (2 * MB) - SLACK
    assert free < kept and FLOW.rate is None
    with FLOW.limited(2 * MB):
        assert seconds(lambda: copy_stream(io.BytesIO(bytes(2 * MB)), io.BytesIO())) >= 1 - SLACK


@pytest.mark.parametrize("size", [MB, 18 * MB])
def test_what_streams_to_and_from_s3_keeps_it(moto_bucket: str, tmp_path: Path, size: int) -> None:
    """Small objects are written whole, larger ones aside."""
    (tmp_path / "a").write_bytes(os.urandom(size))
    right = checksum_file(str(tmp_path / "a"))
    roots = Roots(str(tmp_path / "source"), str(tmp_path / "target"))
    how = Placing(roots, Attempt(roots.target, "attempt", AskingFence("", "note")), frozenset())
    there, back = f"{moto_bucket}/{size}", f"{tmp_path}/back"
    with FLOW.limited(size):
        for source, target in ((str(tmp_path / "a"), there), (there, back)):
            wanted = Wanted(source, target, size, None, right[0], 1)
            assert seconds(lambda wanted=wanted: place_file(wanted, how)) >= 1 - SLACK
    assert checksum_file(back) == right
