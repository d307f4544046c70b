"""Two writers exclude each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from cmroot import lease as lease_module
from cmroot.errors import FormatError, LeaseHeld, NotWritable
from cmroot.lease import acquire
from cmroot.place import join, store_for
from cmroot.remote import FsspecStore
from cmroot.waiting import patiently

HOLD = """
import sys
from cmroot.lease import acquire
with acquire(sys.argv[1], "hold it") as lease:
    print(lease.epoch, flush=True)
    sys.stdin.read()
"""


class Clock:
    """Seconds since the epoch, turned by hand."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def holding(root: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.communicate("")


def test_another_process_is_refused_and_told_who_holds_it(local_root: str) -> None:
    child = holding(local_root)
    with pytest.raises(LeaseHeld) as caught:
        acquire(local_root, "write too")
    assert caught.value.exit_code == 7
    assert f"process {child.pid}" in caught.value.message and "hold it" in caught.value.message
    assert os.uname().nodename in caught.value.message and str(child.pid) in caught.value.hint
    end(child)
    with acquire(local_root, "write now") as lease:
        assert lease.epoch == 2


def test_a_killed_holder_frees_its_lease(local_root: str) -> None:
    child = holding(local_root)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    end(child)
    with acquire(local_root, "follow") as lease:
        assert lease.epoch == 2


def test_the_same_process_is_refused_too(root: str) -> None:
    with acquire(root, "one"), pytest.raises(LeaseHeld):
        acquire(root, "two")


def test_each_acquisition_has_a_higher_epoch(root: str) -> None:
    epochs = []
    for _ in range(5):
        with acquire(root, "count") as lease:
            lease.check()
            epochs.append(lease.epoch)
        with pytest.raises(LeaseHeld):
            lease.check()
        lease.release()
    assert epochs == [1, 2, 3, 4, 5]


def test_of_many_at_once_one_gets_it(root: str) -> None:
    def contend(_: int) -> lease_module.Lease | None:
        try:
            return acquire(root, "contend", renew=False)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        got = [lease for lease in pool.map(contend, range(32)) if lease is not None]
    assert len(got) == 1
    got[0].check()
    got[0].release()


def test_a_lease_file_that_is_removed_by_hand_is_a_lost_lease(local_root: str) -> None:
    with acquire(local_root, "write") as lease:
        Path(local_root, "lease").unlink()
        with pytest.raises(LeaseHeld, match="lost"):
            lease.check()


def test_a_damaged_lease_file_is_not_taken_for_a_first_one(local_root: str) -> None:
    Path(local_root, "lease").write_bytes(b"\0\0\0")
    with pytest.raises(FormatError, match="lease"):
        acquire(local_root, "write")


@pytest.fixture
def objects() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_an_object_lease_is_taken_over_only_well_after_its_expiry(
    objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    old = acquire(objects, "stop", ttl=timedelta(milliseconds=100), now=clock, renew=False)
    with pytest.raises(LeaseHeld):
        acquire(objects, "too early", renew=False)
    clock.time += 1
    with pytest.raises(LeaseHeld):
        old.check()
    with pytest.raises(LeaseHeld):
        acquire(objects, "still too early", renew=False)
    monkeypatch.setattr(lease_module, "SKEW", timedelta(milliseconds=100))
    new = patiently(lambda: acquire(objects, "take over", renew=False), timedelta(seconds=30))
    assert new.epoch == old.epoch + 1
    old.release()
    new.check()
    assert store_for(objects).list(join(objects, "lease")) == [f"{2:020d}"]


@pytest.mark.parametrize("ahead", [-600, 600])
def test_an_object_lease_counts_by_the_clock_of_its_store(objects: str, ahead: float) -> None:
    def wrong() -> float:
        return lease_module.time.time() + ahead

    live = acquire(objects, "work", renew=False)
    with pytest.raises(LeaseHeld):
        acquire(objects, "be ten minutes off", now=wrong, renew=False)
    live.release()
    with acquire(objects, "be ten minutes off", now=wrong) as lease:
        lease.check()
        with pytest.raises(LeaseHeld):
            acquire(objects, "have the right time", renew=False)


def test_a_renewed_object_lease_stays(objects: str) -> None:
    clock = Clock()
    lease = acquire(objects, "work", ttl=timedelta(seconds=60), now=clock, renew=False)
    assert isinstance(lease, lease_module.ObjectLease)
    for _ in range(10):
        clock.time += 50
        lease.renew()
        with pytest.raises(LeaseHeld):
            acquire(objects, "interfere", now=clock, renew=False)
    clock.time += 61
    with pytest.raises(LeaseHeld):
        lease.renew()


def test_an_object_lease_renews_itself(objects: str) -> None:
    with acquire(objects, "work", ttl=timedelta(milliseconds=90)) as lease:
        begun = lease.holder.expires
        deadline = begun + 30
        while lease.holder.expires == begun and lease_module.time.time() < deadline:
            lease_module.time.sleep(0.01)
        assert lease.holder.expires > begun
        lease.check()


def test_a_taker_that_slept_while_its_epoch_was_used_and_removed_does_not_win(
    objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(objects, "first", renew=False).release()
    real, slept = FsspecStore.create_exclusive, []

    def slow(self: FsspecStore, path: str, data: bytes) -> bool:
        if "probe" not in path and not slept:
            slept.append(path)
            acquire(objects, "second", renew=False).release()
            acquire(objects, "third", renew=False)
        return real(self, path, data)

    monkeypatch.setattr(FsspecStore, "create_exclusive", slow)
    with pytest.raises(LeaseHeld):
        acquire(objects, "slow", renew=False)
    assert slept and store_for(objects).list(join(objects, "lease")) == [f"{3:020d}"]


def test_a_store_that_ignores_conditions_is_found_out(objects: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(self: FsspecStore, path: str, data: bytes) -> bool:
        self.write_bytes(path, data)
        return True

    monkeypatch.setattr(FsspecStore, "create_exclusive", weak)
    with pytest.raises(NotWritable, match="exclude nobody"):
        acquire(objects, "write")
    assert store_for(objects).find(objects) == []
