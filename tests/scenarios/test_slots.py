"""Slots: a consumer that takes dumps one after the other. What it still needs is pinned before anything is written, and
let go of once its load has said so; a run that was killed anywhere is simply run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import command
from faults import Fault, run_with
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.pins import Slot, confirm_slot, create_slot, drop_slot, find_slot, give_up_slot, read_pins, slots
from replicator.captures.dumps.layout import DumpMetadata, open_parts
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

SLOT = "west"


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A source with two tables; nothing is captured yet."""
    fixture.source.table("t", {"first": "1", "second": "2"})
    fixture.source.partitioned("parts", {"a": {"file": "a"}, "b": {"file": "b"}})
    return fixture


def metadata(dump: Path) -> DumpMetadata:
    return open_parts(str(dump))[1]


def next_dump(fixture: Lab, *more: str) -> DumpMetadata:
    answer = fixture.dump("--slot", SLOT, *more)
    assert answer.code == 0, answer
    return metadata(fixture.last)


def change(fixture: Lab, number: int) -> None:
    fixture.source.write("t", {f"more{number}": f"{number}"})
    fixture.source.alter("t", round=str(number))


def position(fixture: Lab) -> int:
    slot = find_slot(str(fixture.cmroot), SLOT)
    assert slot is not None
    return slot.position


def test_a_consumer_is_registered_by_its_first_dump_and_confirmed_by_each_load(fixture: Lab) -> None:
    first = next_dump(fixture)
    assert (first.kind, first.slot) == ("bootstrap", SLOT)
    slot = find_slot(str(fixture.cmroot), SLOT)
    assert slot is not None and (slot.position, slot.event) == (first.end.position, first.end.event)
    assert slot.awaits
    assert fixture.load().code == 0
    slot = find_slot(str(fixture.cmroot), SLOT)
    assert slot is not None and not slot.awaits and slot.position == first.end.position
    before = first.end
    for number in (1, 2):
        change(fixture, number)
        dumped = next_dump(fixture)
        assert (dumped.kind, dumped.begin and dumped.begin.position) == ("incremental", before.position)
        assert position(fixture) == before.position
        assert fixture.load().code == 0
        assert position(fixture) == dumped.end.position
        fixture.is_same()
        before = dumped.end


def test_dumps_made_ahead_of_their_loads_begin_where_the_consumer_is(fixture: Lab) -> None:
    next_dump(fixture)
    assert fixture.load().code == 0
    change(fixture, 1)
    one = next_dump(fixture)
    change(fixture, 2)
    two = next_dump(fixture)
    assert one.begin == two.begin and one.end.position < two.end.position
    assert fixture.load().code == 0  # the second has all that the first has
    assert position(fixture) == two.end.position
    fixture.is_same()
    assert fixture.load(fixture.here / "dump2").code == 6  # older than the target: refused, and no slot goes back
    assert position(fixture) == two.end.position


def test_until_its_bootstrap_is_loaded_a_consumer_gets_bootstraps(fixture: Lab) -> None:
    one = next_dump(fixture)
    change(fixture, 1)
    two = next_dump(fixture)
    assert (one.kind, two.kind) == ("bootstrap", "bootstrap")
    assert position(fixture) == one.end.position  # the first may still be loaded
    assert fixture.load().code == 0
    assert position(fixture) == two.end.position
    change(fixture, 2)
    assert next_dump(fixture).kind == "incremental"


def test_a_new_slot_may_begin_at_what_its_consumer_has(fixture: Lab) -> None:
    assert fixture.dump().code == 0
    assert fixture.load().code == 0
    had = metadata(fixture.last)
    change(fixture, 1)
    dumped = next_dump(fixture, "--since", str(fixture.last))
    assert (dumped.kind, dumped.begin) == ("incremental", had.end)
    slot = find_slot(str(fixture.cmroot), SLOT)
    assert slot is not None and not slot.awaits and slot.position == had.end.position
    assert fixture.load().code == 0
    assert position(fixture) == dumped.end.position


def test_every_dump_is_pinned_by_what_it_needs(fixture: Lab) -> None:
    whole = next_dump(fixture)
    assert fixture.load().code == 0
    change(fixture, 1)
    part = next_dump(fixture)
    pins = {pin.name: pin for pin in read_pins(str(fixture.cmroot)).dumps}
    assert part.begin
    assert (pins[whole.id].needs_after, pins[whole.id].place) == (whole.end.position, str(fixture.here / "dump1"))
    assert pins[part.id].needs_after == part.begin.position


def test_a_dump_that_fails_leaves_no_pin_and_no_slot(fixture: Lab) -> None:
    assert fixture.capture().code == 0
    bad = fixture.dump("--slot", SLOT, "--include", "nothing_like_it", "--no-capture")
    assert (bad.code, bad.error) == (2, "UsageError")
    assert read_pins(str(fixture.cmroot)).dumps == [] and slots(str(fixture.cmroot)) == []


def test_a_load_without_the_sources_root_says_how_to_confirm(fixture: Lab) -> None:
    next_dump(fixture)
    (fixture.cmroot / "slots").rename(fixture.here / "slots")
    (fixture.cmroot / "slots").write_text("not a directory")
    loaded = fixture.load()
    assert loaded.code == 0
    (warning,) = loaded.output["warnings"]
    assert f"replicator cm slots confirm {SLOT} --cmroot {fixture.cmroot} --at {fixture.last}" in warning
    (fixture.cmroot / "slots").unlink()
    (fixture.here / "slots").rename(fixture.cmroot / "slots")
    again = fixture.load()  # all it has to do is to say so
    assert (again.code, again.output["status"], again.output["warnings"]) == (0, "already loaded", [])
    assert not slots(str(fixture.cmroot))[0].awaits


def test_a_slot_that_was_dropped_is_told_by_the_load_and_not_made_again(fixture: Lab) -> None:
    next_dump(fixture)
    drop_slot(str(fixture.cmroot), SLOT)
    loaded = fixture.load()
    assert loaded.code == 0 and SLOT in loaded.output["warnings"][0]
    assert slots(str(fixture.cmroot)) == []


def test_a_slot_that_was_given_up_is_refused_before_anything_is_captured(fixture: Lab) -> None:
    next_dump(fixture)
    give_up_slot(str(fixture.cmroot), SLOT, now=lambda: 1_800_000_000)
    refused = fixture.dump("--slot", SLOT)
    assert (refused.code, refused.error) == (2, "PinError")
    assert "invalidated" in refused.message and "slots drop" in refused.output["hint"]


def test_a_name_that_cannot_be_one_is_refused(fixture: Lab) -> None:
    refused = fixture.dump("--slot", "../evil")
    assert (refused.code, refused.error) == (2, "PinError")
    assert not (fixture.here / "evil").exists() and not fixture.last.exists()


def test_the_dry_run_says_where_the_dump_would_begin(fixture: Lab) -> None:
    first = next_dump(fixture)
    assert fixture.load().code == 0
    change(fixture, 1)
    planned = fixture.dump("--slot", SLOT, "--dry-run")
    assert (planned.output["kind"], planned.output["from_event"]) == ("incremental", first.end.event)
    planned = fixture.dump("--slot", "another", "--dry-run")
    assert planned.output["kind"] == "bootstrap"
    assert [slot.name for slot in slots(str(fixture.cmroot))] == [SLOT]


def test_a_slot_at_a_moment_that_a_replaced_log_lacks_is_told(fixture: Lab) -> None:
    next_dump(fixture)
    assert fixture.load().code == 0
    confirm_slot(str(fixture.cmroot), SLOT, 10_000, 10_000, now=lambda: 1_800_000_000)
    answer = fixture.dump("--slot", SLOT)
    assert (answer.code, answer.error) == (1, "FormatError")
    assert "10000" in answer.message


def test_an_operators_slot_is_taken_at_its_word(fixture: Lab) -> None:
    assert fixture.dump().code == 0 and fixture.load().code == 0
    had = metadata(fixture.last)
    now = "2026-03-01T12:00:00+00:00"
    create_slot(str(fixture.cmroot), Slot(SLOT, had.end.position, had.end.event, now, now))
    change(fixture, 1)
    dumped = next_dump(fixture)
    assert (dumped.kind, dumped.begin and dumped.begin.position) == ("incremental", had.end.position)


# ---- killed -------------------------------------------------------------------------------------------------------

DUMP_FAULTS = [
    Fault("after", "link", rf"slots/{SLOT}$"),  # the slot is there, nothing else
    Fault("after", "rename", r"dumps/[0-9a-f]{32}$"),  # pinned, nothing written
    Fault("before", "rename", r"_finished_dump$"),
    Fault("after", "rename", r"_finished_dump$"),
]


@pytest.mark.parametrize("fault", DUMP_FAULTS, ids=str)
def test_a_bootstrap_with_a_slot_that_was_killed_is_run_again(fixture: Lab, fault: Fault) -> None:
    fixture.dumps = 1
    arguments = [*fixture.dump_arguments(fixture.last), "--slot", SLOT]
    run_with(fault, arguments)
    finished = (fixture.last / "_finished_dump").exists()
    assert slots(str(fixture.cmroot))[0].awaits  # whatever it needs is kept; its consumer has nothing yet
    if not finished:
        assert next_dump_into(fixture, arguments).kind == "bootstrap"
    assert fixture.load().code == 0
    change(fixture, 1)
    dumped = next_dump(fixture)
    assert dumped.kind == "incremental"
    assert fixture.load().code == 0
    assert fixture.target.shown() == fixture.source.shown()


def next_dump_into(fixture: Lab, arguments: list[str]) -> DumpMetadata:
    answer = command(*arguments)
    assert answer.code == 0, answer
    return metadata(fixture.last)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "rename", r"_finished_load/.*\.json$"),  # acknowledged, not confirmed
        Fault("after", "rename", rf"slots/{SLOT}$"),
    ],
    ids=str,
)
def test_a_load_that_was_killed_before_it_confirmed_confirms_when_it_is_run_again(fixture: Lab, fault: Fault) -> None:
    dumped = next_dump(fixture)
    arguments = fixture.load_arguments(fixture.last)
    run_with(fault, arguments)
    again = fixture.load()
    assert (again.code, again.output["status"]) == (0, "already loaded")
    slot = slots(str(fixture.cmroot))[0]
    assert (slot.position, slot.awaits) == (dumped.end.position, "")
    fixture.is_same()


def test_two_consumers_of_one_source_are_told_apart(fixture: Lab, target_metastore: Running) -> None:
    next_dump(fixture)
    assert fixture.load().code == 0
    other = PlainDatabase(connect(target_metastore.uri), f"{fixture.name}_east", fixture.warehouse)
    east = fixture.here / "east"
    assert fixture.dump("--slot", "east", out=east).code == 0
    assert metadata(east).kind == "bootstrap"
    assert fixture.load(east, "--rename-db", f"{fixture.name}={other.name}").code == 0
    change(fixture, 1)
    dumped = next_dump(fixture)
    assert fixture.load().code == 0
    there = {slot.name: slot.position for slot in slots(str(fixture.cmroot))}
    assert there == {SLOT: dumped.end.position, "east": metadata(east).end.position}


def test_what_a_narrower_dump_left_out_is_not_passed_over_by_the_next_wider_one(fixture: Lab) -> None:
    """The slot has moved on without it: of tables, and of databases."""
    assert (next_dump(fixture).kind, fixture.load().code) == ("bootstrap", 0)
    fixture.source.write("parts/p=a", {"lost": "lost"})
    change(fixture, 1)
    assert next_dump(fixture, "--include", "t").kind == "incremental"
    assert fixture.load().code == 0
    refused = fixture.dump("--slot", SLOT)
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert "--include t" in refused.message and f"slots drop {SLOT}" in str(refused.output["hint"])
    change(fixture, 2)
    assert next_dump(fixture, "--include", "t").kind == "incremental"
    assert fixture.load().code == 0

    other = PlainDatabase(fixture.source.metastore, f"{fixture.name}_other", fixture.source.home.parent)
    other.create()
    refused = fixture.dump("--slot", SLOT, "--db", other.name, "--include", "t")
    assert (refused.code, refused.error) == (5, "BootstrapNeeded"), refused
    assert f"of {other.name}, its consumer has nothing" in refused.message

    drop_slot(str(fixture.cmroot), SLOT)
    assert (next_dump(fixture).kind, fixture.load().code) == ("bootstrap", 0)
    fixture.is_same()
    change(fixture, 3)
    assert (next_dump(fixture).kind, fixture.load().code) == ("incremental", 0)
    fixture.is_same()
