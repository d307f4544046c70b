"""Expiry: what is planned, what is removed, what came since, and what a kill or a second run leaves."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from fault_store import expired
from small_root import ENGINE, HOUR, NOTHING, NOW, WEEK, SmallRoot, checksum, content, history, slot
from waiting import eventually

from cmroot.errors import Error, Filing, FormatError, LeaseHeld, Superseded
from cmroot.expire.expire import Count, cutoff_position, expire, held_by, plan_expiry
from cmroot.expire.plans import Since, remove
from cmroot.expire.retention import DECIDED
from cmroot.keep.recycle import recycle
from cmroot.keep.store_lock import removing, store_lock
from cmroot.lease import acquire
from cmroot.log.captured import FILES, SegmentWriter, segments
from cmroot.log.references import write_intercepted
from cmroot.pins import (
    DumpPin,
    Hold,
    confirm_slot,
    create_slot,
    drop_slot,
    hold,
    iso,
    pin_dump,
    read_pins,
    release,
    slots,
)
from cmroot.root import GUARDS, create_or_open
from cmroot.store.place import Place, is_local, join
from cmroot.store.remote import FsspecStore


@pytest.fixture
def ground(root: str) -> SmallRoot:
    return SmallRoot(root)


@pytest.fixture
def local(local_root: str) -> SmallRoot:
    return SmallRoot(local_root)


# What stays and what goes


def test_each_batch_of_removals_asks_for_the_lease(ground: SmallRoot) -> None:
    ground.keep("a", "b")
    plan = ground.plan(NOTHING)
    rows = [row for batch in plan.rows(keep=False) for row in batch.to_pylist()]

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(rows[:1], schema=DECIDED)
        lease.release()  # as if another had taken it over
        yield pa.RecordBatch.from_pylist(rows[1:], schema=DECIDED)

    with acquire(ground.root, "expire", renew=False) as lease, pytest.raises(LeaseHeld):
        since = Since(ground.root, plan.position, plan.rules.pins, plan.rules.pins)
        remove(ground.root, batches(), since, plan.rules.cutoff_ns, lease)
    assert len(ground.there()) == 1
    plan.discard()


def test_an_expiry_that_was_taken_over_while_the_store_answered_removes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever took over may rely on an entry that was planned to go."""
    ground = SmallRoot(create_or_open(f"memory://{uuid.uuid4().hex}").place)
    history(ground)
    before, real = ground.there(), FsspecStore.infos

    def slow(self: FsspecStore, paths: Sequence[str]) -> object:
        answer = real(self, paths)
        with expired(ground.root):
            ground.capture(add="b c d")
        return answer

    monkeypatch.setattr(FsspecStore, "infos", slow)
    plan = ground.plan()
    with pytest.raises(LeaseHeld):
        expire(ground.root, plan, now=lambda: NOW)
    assert ground.there() == before


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same store", "from local"])
def test_what_is_recycled_is_as_young_as_that_whatever_the_log_says(
    ground: SmallRoot, place: str, tmp_path: Path, elsewhere: bool
) -> None:
    ground.keep("a", "b")
    ground.capture(add="a b", at=1)
    ground.capture(release="a@1 b@1", at=1)
    cutoff = ground.after("a", "b")
    path = str(tmp_path / "w/a") if elsewhere else join(place, "w/a")
    Place(path).write_bytes(content("a"))
    late = ground.plan(timedelta(hours=1), cutoff + HOUR)
    assert {row["reason"] for batch in late.rows(keep=False) for row in batch.to_pylist()} == {"expired"}
    recycle(ground.root, path)
    removed = expire(ground.root, late, now=lambda: cutoff + HOUR).removed
    assert (removed.entries, removed.taken_back, removed.taken_back_bytes) == (1, 1, len(content("a")))
    assert "a" in ground.there() and "b" not in ground.there()
    assert ground.reasons(older_than=timedelta(hours=1), now=cutoff + HOUR)["a"] == "young"
    ground.expire(timedelta(hours=1), cutoff + HOUR)
    assert "a" in ground.there()
    ground.expire(timedelta(hours=1))
    assert ground.there() == set()


def test_what_the_source_has_stays_and_what_nobody_needs_goes(ground: SmallRoot) -> None:
    history(ground)
    done = ground.expire()
    assert ground.there() == {"a"}
    assert (done.removed.entries, done.removed.bytes) == (3, sum(len(content(name)) for name in "bcd"))
    assert done.removed.freed == done.removed.bytes
    assert done.plan.kept == {"live": Count(1, len(content("a")))}
    assert set(done.plan.going) == {"expired", "unreferenced"}
    assert ground.expiring() == []
    again = ground.expire()
    assert (again.removed.entries, again.plan.removes, ground.there()) == (0, Count(), {"a"})


def test_a_plan_gives_each_entry_a_reason_and_changes_nothing(local: SmallRoot) -> None:
    history(local)
    create_slot(local.root, slot("west", 3))
    with local.plan() as plan:
        rows = [row for batch in plan.rows() for row in batch.to_pylist()]
        assert len(rows) == 4 and all(row["keep"] == (row["reason"] in ("live", "slot west")) for row in rows)
        assert sum(batch.num_rows for batch in plan.rows(keep=False)) == plan.removes.entries == 2
        assert sum(batch.num_rows for batch in plan.rows(keep=True)) == plan.keeps.entries == 2
        json.dumps(plan.as_json())
    assert local.there() == {"a", "b", "c", "d"} and local.expiring() == []


def test_a_slot_needs_what_ended_after_it(local: SmallRoot) -> None:
    history(local)
    for position, kept in ((1, {"a", "b", "c"}), (2, {"a", "c"}), (3, {"a", "c"}), (4, {"a"})):
        create_slot(local.root, slot("west", position))
        with local.plan() as plan:
            assert sum(count.entries for count in plan.kept.values()) == len(kept), position
            assert plan.kept.get("slot west", Count()).entries == len(kept) - 1
        drop_slot(local.root, "west")


def test_a_hold_needs_what_was_there_at_its_position(local: SmallRoot) -> None:
    history(local)
    for position, needed in ((0, set()), (1, {"b"}), (2, {"c"}), (3, {"c"}), (4, set())):
        hold(local.root, Hold("audit", position, position, iso(NOW)))
        reasons = local.reasons()
        assert {name for name, reason in reasons.items() if reason == "hold audit"} == needed, position
        release(local.root, "audit")


def test_a_dump_holds_while_it_is_younger_than_the_retention(local: SmallRoot) -> None:
    history(local)
    pin_dump(local.root, DumpPin("d1", "/dumps/1", 1, 1, iso(NOW - HOUR)))
    later = NOW + 8 * 24 * HOUR  # the records are older than a week then
    pin_dump(local.root, DumpPin("d2", "/dumps/2", 3, 1, iso(later - HOUR)))
    assert local.reasons(older_than=WEEK, now=later)["c"] == "dump d2"
    done = local.expire(older_than=timedelta(days=9), now=later)
    assert done.forgotten == [] and [pin.name for pin in read_pins(local.root).dumps] == ["d1", "d2"]
    assert {"a", "b", "c"} <= local.there()
    done = local.expire(older_than=WEEK, now=later)
    assert done.forgotten == ["d1"] and [pin.name for pin in read_pins(local.root).dumps] == ["d2"]
    assert {"a", "c"} <= local.there() and "b" not in local.there()


def test_what_ended_within_the_retention_is_young(local: SmallRoot) -> None:
    local.keep("a", "b", "c")
    local.capture(add="a b c", at=NOW - 30 * HOUR)
    local.capture(release="a@1", at=NOW - 20 * HOUR)
    local.capture(release="b@1", at=NOW - 10 * HOUR)
    assert local.reasons(older_than=timedelta(hours=15)) == {"a": "expired", "b": "young", "c": "live"}
    assert local.reasons(older_than=timedelta(hours=20)) == {"a": "expired", "b": "young", "c": "live"}
    assert local.reasons(older_than=timedelta(hours=21)) == {"a": "young", "b": "young", "c": "live"}
    assert local.reasons(older_than=NOTHING) == {"a": "expired", "b": "expired", "c": "live"}


def test_the_same_bytes_are_live_until_their_last_reference_ends(local: SmallRoot) -> None:
    local.keep("a")
    local.capture(add="a a")
    local.capture(release="a@1")
    assert local.reasons() == {"a": "live"}
    local.capture(release="a@1")
    assert local.reasons() == {"a": "expired"}
    local.capture(add="a")
    assert local.reasons() == {"a": "live"}


def test_what_no_record_names_stays_until_it_is_old(ground: SmallRoot) -> None:
    ground.keep("a")
    soon = time.time() + 60
    assert ground.reasons(older_than=timedelta(hours=1), now=soon) == {"a": "unreferenced, young"}
    assert ground.reasons(older_than=NOTHING, now=soon) == {"a": "unreferenced"}
    assert ground.reasons(older_than=timedelta(hours=1), now=soon + 2 * HOUR) == {"a": "unreferenced"}


def test_a_clock_that_jumped_back_an_hour_keeps_more_and_never_less(local: SmallRoot) -> None:
    """Between two captures, and between the last capture and the expiry."""
    local.keep("a", "b", "c")
    local.capture(add="a b c", at=NOW)
    local.capture(release="a@1", at=NOW)
    local.capture(release="b@1", at=NOW - HOUR)  # the clock jumped
    two = timedelta(minutes=90)
    assert local.reasons(older_than=two, now=NOW + HOUR) == {"a": "young", "b": "young", "c": "live"}
    later = NOW + 2 * HOUR  # by the jumped clock b is 3 hours old, by the log 2
    assert local.reasons(older_than=two, now=later) == {"a": "expired", "b": "expired", "c": "live"}
    assert local.reasons(older_than=NOTHING, now=NOW - HOUR) == {"a": "young", "b": "young", "c": "live"}
    assert cutoff_position(segments(local.root), NOW - HOUR, NOW) == 0
    assert cutoff_position(segments(local.root), NOW, NOW) == 3


def test_a_capture_that_tells_no_time_is_young(local: SmallRoot) -> None:
    with SegmentWriter(local.root, 1) as writer:
        writer.finish(1)
    assert cutoff_position(segments(local.root), NOW - 1, NOW) == 0
    assert cutoff_position(segments(local.root), NOW, NOW) == 1


def test_rows_of_a_taking_keep_bytes_that_no_capture_has_recorded(ground: SmallRoot) -> None:
    ground.keep("a")
    row = {"checksum": checksum("a"), "size": len(content("a")), "op": "add", "path": "a"}
    write_intercepted(ground.root, 7, pa.Table.from_pylist([row], schema=FILES))
    ground.expire()
    assert ground.there() == {"a"}


def test_other_names_are_counted_and_left_alone(ground: SmallRoot) -> None:
    history(ground)
    for name in ("files/ab/notes.txt", "files/readme"):
        (Place(ground.root) / name).write_bytes(b"mine")
    done = ground.expire()
    assert done.plan.unknown == 2
    assert all((Place(ground.root) / name).exists() for name in ("files/ab/notes.txt", "files/readme"))


def test_a_link_whose_source_is_still_there_frees_nothing(local: SmallRoot, tmp_path: Path) -> None:
    history(local)
    os.link(local.path("b"), tmp_path / "source")
    done = local.expire()
    assert done.removed.bytes - done.removed.freed == len(content("b"))
    assert (tmp_path / "source").read_bytes() == content("b")


# Slots that lag, and what pins hold


def test_what_each_pin_holds_is_told_and_what_would_go_without_it(local: SmallRoot) -> None:
    history(local)
    create_slot(local.root, slot("west", 1, NOW - HOUR))
    create_slot(local.root, slot("east", 3, NOW - 60))
    hold(local.root, Hold("audit", 2, 2, iso(NOW - 2 * HOUR)))
    held = {one.pin: one for one in held_by(local.root, ENGINE, now=lambda: NOW)}
    size = len(content("b"))
    assert held["slot west"].all == Count(2, 2 * size) and held["slot west"].alone == Count(1, size)
    assert held["slot east"].all == Count(1, size) and held["slot east"].alone == Count()
    assert held["hold audit"].all == Count(1, size)
    assert [round(held[pin].age_seconds) for pin in ("slot west", "slot east", "hold audit")] == [3600, 60, 7200]
    assert local.expiring() == []
    done = local.expire()
    assert [one.pin for one in done.plan.held] == ["slot west", "slot east", "hold audit"]
    reported = json.loads(json.dumps(done.as_json()))
    assert reported["held"][0]["bytes"] == 2 * size and reported["removed_entries"] == 1


def test_a_slot_that_lags_too_far_is_given_up_only_when_asked(local: SmallRoot) -> None:
    history(local)
    create_slot(local.root, slot("west", 1, NOW - 10 * HOUR))
    assert local.expire().given_up == [] and {"b", "c"} <= local.there()
    done = local.expire(max_slot_lag=timedelta(hours=11))
    assert done.given_up == [] and {"b", "c"} <= local.there()
    done = local.expire(max_slot_lag=timedelta(hours=9))
    (reported,) = done.given_up
    assert (reported.slot, reported.position, reported.lag_seconds) == ("west", 1, 10 * HOUR)
    assert local.there() == {"a"} and slots(local.root)[0].given_up == iso(NOW)
    with pytest.raises(Error, match="invalidated"):
        confirm_slot(local.root, "west", 4, 4, now=lambda: NOW)
    assert local.expire(max_slot_lag=timedelta(hours=9)).given_up == []


def test_a_slot_that_was_confirmed_after_the_plan_is_not_given_up(local: SmallRoot) -> None:
    history(local)
    create_slot(local.root, slot("west", 1, NOW - 10 * HOUR))
    plan = local.plan(max_slot_lag=timedelta(hours=9))
    assert [one.slot for one in plan.given_up] == ["west"]
    confirm_slot(local.root, "west", 2, 2, now=lambda: NOW)
    done = expire(local.root, plan, now=lambda: NOW)
    assert done.given_up == [] and slots(local.root)[0].given_up == ""
    assert local.there() == {"a", "c"}


# What came after the plan


@pytest.mark.parametrize(("pin", "needs"), [("slot", "abc"), ("hold", "ab"), ("dump", "ac")])
def test_a_slot_hold_or_dump_made_after_the_plan_is_respected(ground: SmallRoot, pin: str, needs: str) -> None:
    history(ground)
    plan = ground.plan()
    assert plan.removes.entries == 3
    match pin:
        case "slot":
            create_slot(ground.root, slot("west", 1))
        case "hold":
            hold(ground.root, Hold("audit", 1, 1, iso(NOW)))
        case "dump":
            pin_dump(ground.root, DumpPin("d1", "/d", 2, 2, iso(NOW + 1)))
    done = expire(ground.root, plan, now=lambda: NOW)
    assert ground.there() == set(needs) and done.removed.taken_back == len(needs) - 1


def test_bytes_that_a_capture_named_after_the_plan_stay(ground: SmallRoot) -> None:
    """d was linked by a capture that had not published yet; b came back; c came and went."""
    history(ground)
    plan = ground.plan()
    ground.capture(add="b c d")
    ground.capture(release="c@5")
    done = expire(ground.root, plan, now=lambda: NOW)
    assert ground.there() == {"a", "b", "c", "d"} and done.removed.entries == 0 and done.removed.taken_back == 3
    ground.expire()
    assert ground.there() == {"a", "b", "d"}


def test_bytes_that_a_gateway_took_after_the_plan_stay(ground: SmallRoot) -> None:
    history(ground)
    plan = ground.plan()
    row = {"checksum": checksum("b"), "size": len(content("b")), "op": "add", "path": "b"}
    write_intercepted(ground.root, 7, pa.Table.from_pylist([row], schema=FILES))
    expire(ground.root, plan, now=lambda: NOW)
    assert ground.there() == {"a", "b"}


def test_an_entry_that_was_filed_anew_after_the_plan_is_young(local: SmallRoot, tmp_path: Path) -> None:
    local.keep("d")
    moment = local.after("d")
    plan = plan_expiry(local.root, older_than=NOTHING, now=lambda: moment, engine=ENGINE)
    assert plan.removes.entries == 1
    Path(local.path("d")).unlink()
    local.keep("d")
    assert expire(local.root, plan, now=lambda: moment).removed.taken_back == 1
    assert local.there() == {"d", "p"}


def test_a_log_that_was_replaced_after_the_plan_stops_the_expiry(local: SmallRoot) -> None:
    history(local)
    plan = local.plan()
    Place(segments(local.root)[-1].place).remove_tree()
    with pytest.raises(FormatError, match="ends before position 4"):
        expire(local.root, plan, now=lambda: NOW)
    assert local.there() == {"a", "b", "c", "d"} and local.expiring() == []


def test_too_much_that_came_since_asks_for_a_new_plan(local: SmallRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    history(local)
    plan = local.plan()
    local.capture(add="a b c")
    monkeypatch.setattr("cmroot.expire.plans.MANY", 2)
    with pytest.raises(Superseded) as caught:
        expire(local.root, plan, now=lambda: NOW)
    assert caught.value.transient and local.there() == {"a", "b", "c", "d"}


# Who else is at work


def test_an_expiry_beside_a_capture_is_refused_and_removes_nothing(ground: SmallRoot) -> None:
    history(ground)
    plan = ground.plan()
    with acquire(ground.root, "capture"), pytest.raises(LeaseHeld):
        expire(ground.root, plan)
    assert ground.there() == {"a", "b", "c", "d"} and ground.expiring() == []


def test_a_plan_that_is_being_made_is_not_swept_by_another_expiry(local: SmallRoot) -> None:
    history(local)
    slower = local.plan()
    local.keep("e")
    local.expire()
    assert local.there() == {"a"}
    done = expire(local.root, slower, now=lambda: NOW)
    assert local.there() == {"a"} and local.expiring() == []
    assert done.removed.missing == 3 or not is_local(local.root)


def test_an_abandoned_plan_is_swept(ground: SmallRoot) -> None:
    history(ground)
    left = ground.plan()
    if left.directory._descriptor is not None:
        os.close(left.directory._descriptor)  # as when its process ends
    ground.expire(now=NOW + 2 * 24 * HOUR)
    assert ground.expiring() == []
    with pytest.raises(Superseded, match="plan no longer exists"):
        list(left.rows())


def test_pins_that_were_half_written_are_swept_a_day_later(local: SmallRoot) -> None:
    half = Path(local.root, "slots", ".aside-1-2")
    half.write_bytes(b"{")
    moment = time.time()
    local.expire(now=moment + HOUR)
    assert half.exists()
    local.expire(now=moment + 25 * HOUR)
    assert not half.exists()


def test_nothing_is_removed_while_bytes_are_filed(local: SmallRoot) -> None:
    with (
        store_lock(local.root),
        store_lock(local.root),
        pytest.raises(Filing),
        removing(local.root, patience=timedelta(0)),
    ):
        raise AssertionError
    with removing(local.root):
        pass


def test_who_files_is_let_in_between_two_batches(local: SmallRoot) -> None:
    """An expiry takes the lock again at once; who waits must get it first."""
    import threading

    filed = threading.Event()

    def file() -> None:
        with store_lock(local.root):
            filed.set()

    with removing(local.root):
        waiting = threading.Thread(target=file)
        waiting.start()
        eventually(lambda: _waits(local.root))
        assert not filed.is_set()
    with removing(local.root):
        assert filed.is_set()
    waiting.join()


def _waits(root: str) -> bool:
    import fcntl

    with open(join(root, ".filing-waiting"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_on_an_object_store_takings_and_removals_see_each_other(root: str) -> None:
    (Place(root) / "taking/1/journal.json").write_bytes(b"{}")
    with pytest.raises(Filing), removing(root, patience=timedelta(0)):
        raise AssertionError
    with store_lock(root):
        pass
    (Place(root) / "taking/1").remove_tree()
    moments = iter([NOW, NOW + 80, NOW + 91])  # of an expiry that was killed, 60 s and the clocks' skew later
    with removing(root, now=lambda: NOW), store_lock(root, now=lambda: next(moments)):
        assert next(moments, None) is None
    assert (Place(root) / "expiring").list() == []


# Damage


@pytest.mark.parametrize("kind", ["slots", "holds", "dumps"])
def test_a_damaged_pin_stops_an_expiry(local: SmallRoot, kind: str) -> None:
    history(local)
    plan = local.plan()
    (Place(local.root) / kind / "broken").write_bytes(b"{")
    for doing in (
        lambda: local.plan(),
        lambda: expire(local.root, plan, now=lambda: NOW),
        lambda: held_by(local.root, ENGINE),
    ):
        with pytest.raises(FormatError, match=f"{kind}/broken") as caught:
            doing()
        assert "drop" in caught.value.hint
    assert local.there() == {"a", "b", "c", "d"}


def test_a_damaged_part_of_the_log_stops_an_expiry(local: SmallRoot) -> None:
    history(local)
    (part,) = segments(local.root)[1].files_parts()
    Place(part).write_bytes(b"PAR1 not")
    with pytest.raises(FormatError, match="files-00000"):
        local.plan()
    assert local.there() == {"a", "b", "c", "d"} and local.expiring() == []


def test_a_retention_in_the_future_is_refused(local: SmallRoot) -> None:
    with pytest.raises(Error, match="negative"):
        local.plan(timedelta(days=-1))


@pytest.mark.parametrize("guard", ["slots", "holds", "dumps"])
def test_a_lost_directory_of_pins_stops_expiry(ground: SmallRoot, guard: str) -> None:
    history(ground)
    made = {
        "slots": lambda name: create_slot(ground.root, slot(name, 1)),
        "holds": lambda name: hold(ground.root, Hold(name, 1, 1, iso(NOW))),
        "dumps": lambda name: pin_dump(ground.root, DumpPin(name, "/d", 1, 1, iso(NOW))),
    }[guard]
    made("needed")
    before = ground.there()
    (Place(ground.root) / guard).remove_tree()
    assert create_or_open(ground.root).place == ground.root, "opening it does not make it again"
    with pytest.raises(FormatError, match=f"{guard}: damaged or missing"):
        ground.plan()
    with pytest.raises(FormatError, match="missing"):
        made("another")
    assert read_pins(ground.root).damaged == [join(ground.root, guard)] and ground.there() == before
    if is_local(ground.root):  # an operator says that nobody needs it
        os.mkdir(join(ground.root, guard))
    else:
        (Place(ground.root) / guard / ".here").write_bytes(b"")
    assert ground.expire().removed.entries == 3 and ground.there() == {"a"}


def test_a_root_of_a_release_that_noted_no_directories_gets_them(ground: SmallRoot) -> None:
    (Place(ground.root) / ".made").remove()
    for guard in GUARDS:
        (Place(ground.root) / guard).remove_tree()
    assert read_pins(ground.root).damaged == [], "it may never have had any"
    assert create_or_open(ground.root).place == ground.root and read_pins(ground.root).damaged == []
    (Place(ground.root) / "slots").remove_tree()
    assert read_pins(ground.root).damaged == [join(ground.root, "slots")]
