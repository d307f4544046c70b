"""Slots, holds and dump pins: small files that expiry must never misread."""

from __future__ import annotations

import json

import msgspec
import pytest

from cmroot.errors import FormatError, PinError
from cmroot.pins import (
    DumpPin,
    Hold,
    Slot,
    confirm_slot,
    create_slot,
    drop_slot,
    find_slot,
    give_up_slot,
    hold,
    holds,
    pin_dump,
    read_pins,
    release,
    slots,
    unpin_dump,
)
from cmroot.root import seal
from cmroot.store.place import Place, join

DAY = "2026-11-21T03:27:59+00:00"
SLOT = Slot("replica", 100, 7, DAY, DAY, "target west")


def test_a_slot_is_made_confirmed_and_dropped(root: str) -> None:
    create_slot(root, SLOT)
    assert slots(root) == [SLOT] and find_slot(root, "replica") == SLOT
    confirmed = confirm_slot(root, "replica", 120, 9, now=lambda: 1_800_000_000.5)
    assert confirmed == Slot("replica", 120, 9, DAY, "2027-01-15T08:00:00+00:00", "target west")
    assert confirm_slot(root, "replica", 120, 9, now=lambda: 1_800_000_000.5) == confirmed
    assert read_pins(root).whole().slots == [confirmed]
    drop_slot(root, "replica")
    assert slots(root) == [] and find_slot(root, "replica") is None


def test_a_slot_is_made_once(root: str) -> None:
    create_slot(root, SLOT)
    with pytest.raises(PinError, match="already exists"):
        create_slot(root, msgspec.structs.replace(SLOT, position=5))
    assert slots(root) == [SLOT]


def test_a_slot_moves_forward_only_unless_told(root: str) -> None:
    create_slot(root, SLOT)
    with pytest.raises(PinError, match="cannot move back to 99"):
        confirm_slot(root, "replica", 99, 6, now=lambda: 0)
    assert slots(root) == [SLOT]
    assert confirm_slot(root, "replica", 99, 6, now=lambda: 0, back=True).position == 99


def test_an_unknown_slot_is_an_error_that_names_the_known_ones(root: str) -> None:
    create_slot(root, SLOT)
    for doing in (
        lambda: confirm_slot(root, "other", 1, 1, now=lambda: 0),
        lambda: drop_slot(root, "other"),
        lambda: give_up_slot(root, "other", now=lambda: 0),
    ):
        with pytest.raises(PinError, match="does not exist") as caught:
            doing()
        assert "replica" in caught.value.hint


def test_a_slot_that_was_given_up_is_not_confirmed_again(root: str) -> None:
    create_slot(root, SLOT)
    given_up = give_up_slot(root, "replica", now=lambda: 0)
    assert given_up.given_up == "1970-01-01T00:00:00+00:00"
    assert give_up_slot(root, "replica", now=lambda: 5) == given_up == slots(root)[0]
    with pytest.raises(PinError, match="invalidated") as caught:
        confirm_slot(root, "replica", 200, 9, now=lambda: 0)
    assert "bootstrap" in caught.value.hint


def test_holds_and_dump_pins_are_kept_by_name(root: str) -> None:
    quarter = Hold("q3-2026", 50, 3, DAY, "audit")
    hold(root, quarter)
    with pytest.raises(PinError, match="q3-2026"):
        hold(root, quarter)
    dump = DumpPin("0f2a", "s3://b/dumps/1", 100, 7, DAY)
    pin_dump(root, dump)
    pin_dump(root, dump)
    assert (holds(root), read_pins(root).dumps) == ([quarter], [dump])
    release(root, "q3-2026")
    unpin_dump(root, "0f2a")
    unpin_dump(root, "0f2a")
    assert read_pins(root).whole() == read_pins(root) and (holds(root), read_pins(root).dumps) == ([], [])
    with pytest.raises(PinError):
        release(root, "q3-2026")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../slot", "a b", "-x", "x" * 64, "caf\u00e9", "a\n"])
def test_a_name_that_could_be_misread_is_refused(local_root: str, name: str) -> None:
    for doing in (
        lambda: create_slot(local_root, msgspec.structs.replace(SLOT, name=name)),
        lambda: hold(local_root, Hold(name, 1, 1, DAY)),
        lambda: pin_dump(local_root, DumpPin(name, "/d", 1, 1, DAY)),
        lambda: drop_slot(local_root, name),
    ):
        with pytest.raises(PinError, match="cannot be the name") as caught:
            doing()
        assert caught.value.exit_code == 2 and "letters" in caught.value.hint


def test_the_file_of_a_slot_is_what_the_format_says(local_root: str) -> None:
    create_slot(local_root, SLOT)
    data = (Place(local_root) / "slots/replica").read_bytes()
    assert json.loads(data) == {
        "format": "cmroot-slot",
        "version": 1,
        "xxh3_128": "fbc19ea21c638b73559f02a6b79a1338",
        "body": {
            "name": "replica",
            "position": 100,
            "event": 7,
            "created": DAY,
            "confirmed": DAY,
            "consumer": "target west",
            "given_up": "",
            "awaits": "",
            "scopes": {},
        },
    }


def _whole() -> bytes:
    return seal("cmroot-slot", SLOT)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\0" * 100,
        _whole()[:-20],
        _whole().replace(b'"position":100', b'"position":900'),
        _whole().replace(b"cmroot-slot", b"cmroot-hold"),
        _whole().replace(b'"version":1', b'"version":2'),
        _whole().replace(b"replica", b"repliko"),
    ],
)
def test_a_damaged_slot_is_never_read_as_absent(root: str, data: bytes) -> None:
    create_slot(root, msgspec.structs.replace(SLOT, name="whole"))
    create_slot(root, SLOT)
    path = Place(root) / "slots/replica"
    path.write_bytes(data)
    pins = read_pins(root)
    assert [slot.name for slot in pins.slots] == ["whole"] and pins.damaged == [str(path)]
    for reading in (
        lambda: slots(root),
        lambda: pins.whole(),
        lambda: find_slot(root, "replica"),
        lambda: confirm_slot(root, "replica", 200, 9, now=lambda: 0),
    ):
        with pytest.raises(FormatError, match="replica") as caught:
            reading()
        assert caught.value.hint
    with pytest.raises(PinError, match="already exists"):
        create_slot(root, SLOT)
    drop_slot(root, "replica")
    assert read_pins(root).whole().damaged == []


def test_a_slot_file_under_another_name_is_damaged(root: str) -> None:
    create_slot(root, SLOT)
    (Place(root) / "slots/copy").write_bytes((Place(root) / "slots/replica").read_bytes())
    assert read_pins(root).damaged == [join(root, "slots/copy")]


def test_a_pin_being_written_is_not_read(local_root: str) -> None:
    create_slot(local_root, SLOT)
    (Place(local_root) / "slots/.aside-1-2").write_bytes(b"half")
    assert read_pins(local_root).whole().slots == [SLOT]
