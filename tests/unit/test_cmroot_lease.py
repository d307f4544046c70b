"""Two writers exclude each other."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from fault_store import lapse
from waiting import CEILING, Clock, eventually

from cmroot import lease as lease_module
from cmroot.errors import FormatError, LeaseHeld, NotWritable, UnknownPlace
from cmroot.lease import acquire, patiently
from cmroot.log.captured import SegmentWriter, segments, sweep_log
from cmroot.root import create_or_open
from cmroot.store.place import Place, name_of
from cmroot.store.remote import FsspecStore

HOLD = """
import sys
from cmroot.lease import acquire
with acquire(sys.argv[1], "hold it") as lease:
    print(lease.epoch, flush=True)
    sys.stdin.read()
"""


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


def test_a_disk_that_fails_while_the_lease_is_taken_leaves_it_free(
    local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int, path: str) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "_still_named", failing)
        with pytest.raises(OSError, match="Input/output"):
            acquire(local_root, "fail")
    acquire(local_root, "try again").release()


@pytest.fixture
def objects() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_an_object_lease_is_taken_over_only_well_after_its_expiry(
    objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(lease_module, "SKEW", timedelta(days=1))
    old = acquire(objects, "stop", ttl=timedelta(milliseconds=100), now=clock, renew=False)
    with pytest.raises(LeaseHeld):
        acquire(objects, "too early", renew=False)
    clock.advance(1)
    with pytest.raises(LeaseHeld):
        old.check()
    with pytest.raises(LeaseHeld):
        acquire(objects, "still too early", renew=False)
    monkeypatch.setattr(lease_module, "SKEW", timedelta(0))
    new = patiently(lambda: acquire(objects, "take over", renew=False), timedelta(seconds=CEILING))
    assert new.epoch == old.epoch + 1
    old.release()
    new.check()
    assert (Place(objects) / "lease").list() == [f"{2:020d}"]


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
        clock.advance(50)
        lease.renew()
        with pytest.raises(LeaseHeld):
            acquire(objects, "interfere", now=clock, renew=False)
    clock.advance(61)
    with pytest.raises(LeaseHeld):
        lease.renew()


def test_an_object_lease_renews_itself(objects: str) -> None:
    began = lease_module.time.time()

    def slow() -> float:  # so a thread that gets no turn for a while does not lose the lease
        return began + (lease_module.time.time() - began) / 1000

    with acquire(objects, "work", ttl=timedelta(milliseconds=90), now=slow) as lease:
        begun = lease.holder.expires
        eventually(lambda: lease.holder.expires > begun)
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
    assert slept and (Place(objects) / "lease").list() == [f"{3:020d}"]


def test_what_a_holder_publishes_takes_the_next_epoch(objects: str) -> None:
    with acquire(objects, "work", renew=False) as lease:
        for number in (2, 3):
            lease.publish("log/file", b"%d" % number)
            lease.check()
            assert lease.epoch == number
    assert (Place(objects) / "log/file").read_bytes() == b"3"
    assert (Place(objects) / "lease").list() == [f"{3:020d}"]
    with acquire(objects, "work", renew=False) as lease:
        assert lease.epoch == 4


def test_a_holder_that_slept_through_a_take_over_publishes_nothing(
    objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps after its last look, right before the one request that decides."""
    clock = Clock()
    old = acquire(objects, "sleep", now=clock, renew=False)
    real, taken = FsspecStore.create_exclusive, []

    def slow(self: FsspecStore, path: str, data: bytes) -> bool:
        if not taken and "probe" not in path:
            taken.append(path)
            (Place(objects) / "lease" / f"{1:020d}").write_bytes(msgspec.json.encode(released(old)))
            taken.append(acquire(objects, "take over", renew=False))
        return real(self, path, data)

    monkeypatch.setattr(FsspecStore, "create_exclusive", slow)
    with pytest.raises(LeaseHeld, match="lost"):
        old.publish("log/file", b"late")
    assert len(taken) == 2 and not (Place(objects) / "log/file").exists()
    with pytest.raises(LeaseHeld):
        old.check()
    taken[1].publish("log/file", b"new")
    old.release()
    taken[1].check()


def released(lease: lease_module.Lease) -> lease_module.Holder:
    """What the store would say if the holder had been away for long."""
    return msgspec.structs.replace(lease.holder, expires=1.0)


@pytest.mark.parametrize("how", ["dies", "is told of an error and ends"])
def test_what_a_holder_had_decided_to_publish_the_next_one_publishes(
    objects: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = acquire(objects, "fail", renew=False)
    real = FsspecStore.write_bytes

    def broken(self: FsspecStore, path: str, data: bytes) -> None:
        if path.endswith("log/file"):
            raise TimeoutError("no answer")
        real(self, path, data)

    monkeypatch.setattr(FsspecStore, "write_bytes", broken)
    with pytest.raises(TimeoutError):
        lease.publish("log/file", b"decided")
    monkeypatch.undo()
    if how == "dies":
        (Place(objects) / "lease" / f"{2:020d}").write_bytes(msgspec.json.encode(released(lease)))
    else:
        lease.release()
    assert not (Place(objects) / "log/file").exists()
    with acquire(objects, "follow", renew=False) as after:
        assert (Place(objects) / "log/file").read_bytes() == b"decided"
        assert (after.epoch, after.holder.publishes) == (3, None)
    (Place(objects) / "log/file").remove()
    with acquire(objects, "follow", renew=False):
        assert not (Place(objects) / "log/file").exists(), "once is enough"


def test_the_time_between_two_clocks_is_waited_for_before_a_take_over(
    objects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's clock: an expiry that lies less than the skew behind is not believed."""
    monkeypatch.setattr(lease_module, "SKEW", timedelta(days=1))
    lease = acquire(objects, "work", renew=False)
    path, now = Place(objects) / "lease" / f"{1:020d}", lease_module.time.time()
    for behind, free in ((lease_module.SKEW - timedelta(hours=1), False), (lease_module.SKEW, True)):
        expired = msgspec.structs.replace(lease.holder, expires=now - behind.total_seconds())
        path.write_bytes(msgspec.json.encode(expired))
        if free:
            acquire(objects, "take over", renew=False).release()
        else:
            with pytest.raises(LeaseHeld):
                acquire(objects, "be too early", renew=False)


PAUSED = """
import os, signal, sys
from cmroot.lease import acquire
from cmroot.errors import LeaseHeld
from cmroot.log.captured import SegmentWriter, sweep_log
root, when = sys.argv[1:]
with acquire(root, "pause") as lease:
    with SegmentWriter(root, 2, lease=lease) as writer:
        writer.append_record(b'{"position":2}')
        writer.append_record(b'{"position":3}')
        pause = lambda *ignored: (print("paused", flush=True), os.kill(os.getpid(), signal.SIGSTOP))
        if when == "before":
            pause()
        else:  # after the last look, right before the request that decides
            store, real = type(lease._root.store), type(lease._root.store).create_exclusive
            store.create_exclusive = lambda *given: (pause(), real(*given))[1]
        try:
            writer.finish(3, time=1)
        except LeaseHeld:
            sys.exit(7)
"""


@pytest.mark.parametrize("when", ["before", "within"])
@pytest.mark.parametrize("last", [2, 3])
def test_a_paused_writer_whose_lease_was_taken_over_publishes_no_segment(
    s3_endpoint: None, when: str, last: int
) -> None:
    """Two processes on one bucket. The one that took over writes a segment of the same name, or of another."""
    root = create_or_open(f"s3a://cmroot-test/{uuid.uuid4().hex}").place
    write_segment(root, 1, 1, None)
    child = subprocess.Popen([sys.executable, "-c", PAUSED, root, when], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "paused\n"
    lapse(root)
    with acquire(root, "take over") as lease:
        sweep_log(root, lease)
        write_segment(root, 2, last, lease)
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait(CEILING) == 7
        lease.check()
    child.stdout.close()
    found = segments(root)
    assert [(each.first, each.last) for each in found] == [(1, 1), (2, last)]
    for segment in found:
        segment.verify()
    with acquire(root, "follow") as lease:
        sweep_log(root, lease)
    assert (Place(root) / "log").list() == [name_of(each.place) for each in found]


def write_segment(root: str, first: int, last: int, lease: lease_module.Lease | None) -> None:
    with SegmentWriter(root, first, lease=lease) as writer:
        for position in range(first, last + 1):
            writer.append_record(b'{"position":%d,"of":"who took over"}' % position)
        writer.finish(last, time=1)


def test_a_local_writer_whose_lease_file_is_gone_publishes_no_segment(local_root: str) -> None:
    with acquire(local_root, "write") as lease, SegmentWriter(local_root, 1, lease=lease) as writer:
        writer.append_record(b'{"position":1}')
        Path(local_root, "lease").unlink()
        with pytest.raises(LeaseHeld):
            writer.finish(1, time=1)
    assert segments(local_root) == []


def test_a_sweep_asks_for_the_lease_before_it_removes(root: str) -> None:
    (Place(root) / "log" / f"{1:020d}-writing" / "part").write_bytes(b"another's by now")
    with acquire(root, "sweep", renew=False) as lease:
        lease.release()
        with pytest.raises(LeaseHeld):
            sweep_log(root, lease)
    assert (Place(root) / "log").list() == [f"{1:020d}-writing"]


def test_a_store_that_ignores_conditions_is_found_out(objects: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(self: FsspecStore, path: str, data: bytes) -> bool:
        self.write_bytes(path, data)
        return True

    monkeypatch.setattr(FsspecStore, "create_exclusive", weak)
    with pytest.raises(NotWritable, match="exclude no other run"):
        acquire(objects, "write")
    assert Place(objects).find() == []


def test_what_a_lease_says_that_it_publishes_lies_below_its_root(objects: str) -> None:
    foreign = lease_module.Publication("../outside", b"theirs")
    holder = lease_module.Holder(
        1, 1, "host", 1, "2026-01-01T00:00:00+00:00", "write", released=True, publishes=foreign
    )
    place = Place(objects) / "lease" / f"{1:020d}"
    place.write_bytes(msgspec.json.encode(holder))
    with pytest.raises(UnknownPlace, match="outside"):
        acquire(objects, "write", renew=False)
    assert Place(objects).find() == [f"lease/{1:020d}"]  # nothing taken, nothing written
