"""Slots: a consumer that takes dumps one after the other. What it still needs is pinned before anything is written, and
let go of once its load has said so; a run that was killed anywhere is simply run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Fault, run_with
from plain_tables import PlainDatabase
from story import Story, command

from cmroot.pins import Slot, confirm_slot, create_slot, drop_slot, find_slot, give_up_slot, read_pins, slots
from replicator.dumps.layout import DumpMetadata, open_parts
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

SLOT = "west"


@pytest.fixture
def story(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Story:
    """A source with two tables; nothing is captured yet."""
    story = Story(source_metastore, target_metastore, tmp_path)
    story.source.create()
    story.source.table("t", {"first": "1", "second": "2"})
    story.source.partitioned("parts", {"a": {"file": "a"}, "b": {"file": "b"}})
    return story


def metadata(dump: Path) -> DumpMetadata:
    return open_parts(str(dump))[1]


def next_dump(story: Story, *more: str) -> DumpMetadata:
    answer = story.dump("--slot", SLOT, *more)
    assert answer.code == 0, answer
    return metadata(story.last)


def change(story: Story, number: int) -> None:
    story.source.write("t", {f"more{number}": f"{number}"})
    story.source.alter("t", round=str(number))


def position(story: Story) -> int:
    slot = find_slot(str(story.cmroot), SLOT)
    assert slot is not None
    return slot.position


def test_a_consumer_is_registered_by_its_first_dump_and_confirmed_by_each_load(story: Story) -> None:
    first = next_dump(story)
    assert (first.kind, first.slot) == ("bootstrap", SLOT)
    slot = find_slot(str(story.cmroot), SLOT)
    assert slot is not None and (slot.position, slot.event) == (first.end.position, first.end.event)
    assert slot.awaits
    assert story.load().code == 0
    slot = find_slot(str(story.cmroot), SLOT)
    assert slot is not None and not slot.awaits and slot.position == first.end.position
    before = first.end
    for number in (1, 2):
        change(story, number)
        dumped = next_dump(story)
        assert (dumped.kind, dumped.begin and dumped.begin.position) == ("incremental", before.position)
        assert position(story) == before.position
        assert story.load().code == 0
        assert position(story) == dumped.end.position
        story.is_same()
        before = dumped.end


def test_dumps_made_ahead_of_their_loads_begin_where_the_consumer_is(story: Story) -> None:
    next_dump(story)
    assert story.load().code == 0
    change(story, 1)
    one = next_dump(story)
    change(story, 2)
    two = next_dump(story)
    assert one.begin == two.begin and one.end.position < two.end.position
    assert story.load().code == 0  # the second has all that the first has
    assert position(story) == two.end.position
    story.is_same()
    assert story.load(story.here / "dump2").code == 6  # older than the target: refused, and no slot goes back
    assert position(story) == two.end.position


def test_until_its_bootstrap_is_loaded_a_consumer_gets_bootstraps(story: Story) -> None:
    one = next_dump(story)
    change(story, 1)
    two = next_dump(story)
    assert (one.kind, two.kind) == ("bootstrap", "bootstrap")
    assert position(story) == one.end.position  # the first may still be loaded
    assert story.load().code == 0
    assert position(story) == two.end.position
    change(story, 2)
    assert next_dump(story).kind == "incremental"


def test_a_new_slot_may_begin_at_what_its_consumer_has(story: Story) -> None:
    assert story.dump().code == 0
    assert story.load().code == 0
    had = metadata(story.last)
    change(story, 1)
    dumped = next_dump(story, "--since", str(story.last))
    assert (dumped.kind, dumped.begin) == ("incremental", had.end)
    slot = find_slot(str(story.cmroot), SLOT)
    assert slot is not None and not slot.awaits and slot.position == had.end.position
    assert story.load().code == 0
    assert position(story) == dumped.end.position


def test_every_dump_is_pinned_by_what_it_needs(story: Story) -> None:
    whole = next_dump(story)
    assert story.load().code == 0
    change(story, 1)
    part = next_dump(story)
    pins = {pin.name: pin for pin in read_pins(str(story.cmroot)).dumps}
    assert part.begin
    assert (pins[whole.id].needs_after, pins[whole.id].place) == (whole.end.position, str(story.here / "dump1"))
    assert pins[part.id].needs_after == part.begin.position


def test_a_dump_that_fails_leaves_no_pin_and_no_slot(story: Story) -> None:
    assert story.capture().code == 0
    bad = story.dump("--slot", SLOT, "--include", "nothing_like_it", "--no-capture")
    assert (bad.code, bad.error) == (2, "UsageError")
    assert read_pins(str(story.cmroot)).dumps == [] and slots(str(story.cmroot)) == []


def test_a_load_without_the_sources_root_says_how_to_confirm(story: Story) -> None:
    next_dump(story)
    (story.cmroot / "slots").rename(story.here / "slots")
    (story.cmroot / "slots").write_text("not a directory")
    loaded = story.load()
    assert loaded.code == 0
    (warning,) = loaded.said["warnings"]
    assert f"replicator cm slots confirm {SLOT} --cmroot {story.cmroot} --at {story.last}" in warning
    (story.cmroot / "slots").unlink()
    (story.here / "slots").rename(story.cmroot / "slots")
    again = story.load()  # all it has to do is to say so
    assert (again.code, again.said["status"], again.said["warnings"]) == (0, "already loaded", [])
    assert not slots(str(story.cmroot))[0].awaits


def test_a_slot_that_was_dropped_is_told_by_the_load_and_not_made_again(story: Story) -> None:
    next_dump(story)
    drop_slot(str(story.cmroot), SLOT)
    loaded = story.load()
    assert loaded.code == 0 and SLOT in loaded.said["warnings"][0]
    assert slots(str(story.cmroot)) == []


def test_a_slot_that_was_given_up_is_refused_before_anything_is_captured(story: Story) -> None:
    next_dump(story)
    give_up_slot(str(story.cmroot), SLOT, now=lambda: 1_800_000_000)
    refused = story.dump("--slot", SLOT)
    assert (refused.code, refused.error) == (2, "PinError")
    assert "given up" in refused.message and "slots drop" in refused.said["hint"]


def test_a_name_that_cannot_be_one_is_refused(story: Story) -> None:
    refused = story.dump("--slot", "../evil")
    assert (refused.code, refused.error) == (2, "PinError")
    assert not (story.here / "evil").exists() and not story.last.exists()


def test_the_dry_run_says_where_the_dump_would_begin(story: Story) -> None:
    first = next_dump(story)
    assert story.load().code == 0
    change(story, 1)
    planned = story.dump("--slot", SLOT, "--dry-run")
    assert (planned.said["kind"], planned.said["from_event"]) == ("incremental", first.end.event)
    planned = story.dump("--slot", "another", "--dry-run")
    assert planned.said["kind"] == "bootstrap"
    assert [slot.name for slot in slots(str(story.cmroot))] == [SLOT]


def test_a_slot_at_a_moment_that_a_replaced_log_lacks_is_told(story: Story) -> None:
    next_dump(story)
    assert story.load().code == 0
    confirm_slot(str(story.cmroot), SLOT, 10_000, 10_000, now=lambda: 1_800_000_000)
    answer = story.dump("--slot", SLOT)
    assert (answer.code, answer.error) == (1, "FormatError")
    assert "10000" in answer.message


def test_an_operators_slot_is_taken_at_its_word(story: Story) -> None:
    assert story.dump().code == 0 and story.load().code == 0
    had = metadata(story.last)
    now = "2026-03-01T12:00:00+00:00"
    create_slot(str(story.cmroot), Slot(SLOT, had.end.position, had.end.event, now, now))
    change(story, 1)
    dumped = next_dump(story)
    assert (dumped.kind, dumped.begin and dumped.begin.position) == ("incremental", had.end.position)


# ---- killed -------------------------------------------------------------------------------------------------------

DUMP_FAULTS = [
    Fault("after", "link", rf"slots/{SLOT}$"),  # the slot is there, nothing else
    Fault("after", "rename", r"dumps/[0-9a-f]{32}$"),  # pinned, nothing written
    Fault("before", "rename", r"_finished_dump$"),
    Fault("after", "rename", r"_finished_dump$"),
]


@pytest.mark.parametrize("fault", DUMP_FAULTS, ids=str)
def test_a_bootstrap_with_a_slot_that_was_killed_is_run_again(story: Story, fault: Fault) -> None:
    story.dumps = 1
    arguments = [*story.dump_arguments(story.last), "--slot", SLOT]
    run_with(fault, arguments)
    finished = (story.last / "_finished_dump").exists()
    assert slots(str(story.cmroot))[0].awaits  # whatever it needs is kept; its consumer has nothing yet
    if not finished:
        assert next_dump_into(story, arguments).kind == "bootstrap"
    assert story.load().code == 0
    change(story, 1)
    dumped = next_dump(story)
    assert dumped.kind == "incremental"
    assert story.load().code == 0
    assert story.target.shown() == story.source.shown()


def next_dump_into(story: Story, arguments: list[str]) -> DumpMetadata:
    answer = command(*arguments)
    assert answer.code == 0, answer
    return metadata(story.last)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "rename", r"_finished_load/.*\.json$"),  # acknowledged, not confirmed
        Fault("after", "rename", rf"slots/{SLOT}$"),
    ],
    ids=str,
)
def test_a_load_that_was_killed_before_it_confirmed_confirms_when_it_is_run_again(story: Story, fault: Fault) -> None:
    dumped = next_dump(story)
    arguments = story.load_arguments(story.last)
    run_with(fault, arguments)
    again = story.load()
    assert (again.code, again.said["status"]) == (0, "already loaded")
    slot = slots(str(story.cmroot))[0]
    assert (slot.position, slot.awaits) == (dumped.end.position, "")
    story.is_same()


def test_two_consumers_of_one_source_are_told_apart(story: Story, target_metastore: Running) -> None:
    next_dump(story)
    assert story.load().code == 0
    other = PlainDatabase(connect(target_metastore.uri), f"{story.db}_east", story.warehouse)
    east = story.here / "east"
    assert story.dump("--slot", "east", out=east).code == 0
    assert metadata(east).kind == "bootstrap"
    assert story.load(east, "--rename-db", f"{story.db}={other.name}").code == 0
    change(story, 1)
    dumped = next_dump(story)
    assert story.load().code == 0
    there = {slot.name: slot.position for slot in slots(str(story.cmroot))}
    assert there == {SLOT: dumped.end.position, "east": metadata(east).end.position}


def test_what_a_narrower_dump_left_out_is_not_passed_over_by_the_next_wider_one(story: Story) -> None:
    """The slot has moved on without it: of tables, and of databases."""
    assert (next_dump(story).kind, story.load().code) == ("bootstrap", 0)
    story.source.write("parts/p=a", {"lost": "lost"})
    change(story, 1)
    assert next_dump(story, "--include", "t").kind == "incremental"
    assert story.load().code == 0
    refused = story.dump("--slot", SLOT)
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert "--include t" in refused.message and f"slots drop {SLOT}" in str(refused.said["hint"])
    change(story, 2)
    assert next_dump(story, "--include", "t").kind == "incremental"
    assert story.load().code == 0

    other = PlainDatabase(story.source.metastore, f"{story.db}_other", story.source.home.parent)
    other.create()
    refused = story.dump("--slot", SLOT, "--db", other.name, "--include", "t")
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert f"has of {other.name} nothing" in refused.message

    drop_slot(str(story.cmroot), SLOT)
    assert (next_dump(story).kind, story.load().code) == ("bootstrap", 0)
    story.is_same()
    change(story, 3)
    assert (next_dump(story).kind, story.load().code) == ("incremental", 0)
    story.is_same()
