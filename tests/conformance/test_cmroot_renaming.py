"""Replacing a small file where a store cannot do it in one step: no reader misses it, and no kill loses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hdfs import LocalHdfs, local_hdfs

from cmroot.pins import Slot, confirm_slot, create_slot, drop_slot, find_slot, iso, read_pins
from cmroot.root import create_or_open
from cmroot.store.place import Place

NOW = 2_000_000_000.0


@pytest.fixture
def hdfs() -> Iterator[type[LocalHdfs]]:
    with local_hdfs() as registered:
        yield registered


@pytest.fixture
def root(hdfs: type[LocalHdfs], tmp_path: Path) -> str:
    root = create_or_open(f"hdfs://tests{tmp_path}/cmroot").place
    create_slot(root, Slot("west", 1, 1, iso(NOW), iso(NOW)))
    return root


class Killed(BaseException):
    pass


def test_a_slot_that_is_confirmed_is_seen_by_another_reader_at_each_step(root: str, hdfs: type[LocalHdfs]) -> None:
    """The old file was removed first: until the rename there was no slot, and an expiry would not have known of it."""
    seen: list[tuple[int, ...]] = []

    def look() -> None:
        pins, found = read_pins(root), find_slot(root, "west")
        assert found is not None and not pins.damaged and (Place(root) / "slots/west").exists()
        seen.append((*(slot.position for slot in pins.slots), found.position))

    hdfs.changed = staticmethod(look)  # type: ignore[assignment]
    for position in (2, 3):
        confirm_slot(root, "west", position, position, now=lambda: NOW)
    assert len(seen) >= 4 and seen == sorted(seen) and seen[-1] == (3, 3) and all(len(each) == 2 for each in seen)
    hdfs.changed = staticmethod(lambda: None)  # type: ignore[assignment]
    drop_slot(root, "west")
    assert read_pins(root).slots == [] and (Place(root) / "slots").find() == [".here"]


@pytest.mark.parametrize("call", ["mv", "rm_file", "pipe_file"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_leaves_the_slot(
    root: str, hdfs: type[LocalHdfs], monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    reached = 0
    for number in range(1, 10):
        calls = 0
        real = getattr(LocalHdfs, call)

        def dies(self: LocalHdfs, *arguments: object, real=real, number=number, **named: object) -> object:  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls == number and when == "before":
                raise Killed
            answer = real(self, *arguments, **named)
            if calls == number:
                raise Killed
            return answer

        before = find_slot(root, "west")
        assert before is not None
        position = before.position + 1
        with monkeypatch.context() as patch:
            patch.setattr(LocalHdfs, call, dies)
            try:
                confirm_slot(root, "west", position, position, now=lambda: NOW)
                break
            except Killed:
                reached += 1
        (left,) = read_pins(root).slots
        assert left.position in (position - 1, position) and find_slot(root, "west") == left
        confirm_slot(root, "west", position, position, now=lambda: NOW)
        assert [slot.position for slot in read_pins(root).slots] == [position]
    assert reached >= 1
