"""The decision of an expiry against a naive model of it, and the reading of references."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmroot.errors import FormatError, Superseded
from cmroot.expire.retention import DECIDED, Needing, Rules, decide, needing, tally
from cmroot.log.captured import FILES, SegmentWriter, segments
from cmroot.log.references import KEY, REFERENCES, FileRows, Listable, count_references, read_references, sources, work
from cmroot.pins import DumpPin, Hold, Pins, Slot
from cmroot.store.place import Place
from cmroot.store.retained_entries import ENTRIES, content_of, estimate, foreign_names, list_entries

DAY = "2026-11-21T00:00:00+00:00"
CHECKSUMS = [f"ab{number:030x}" for number in range(6)]
END = 12  # positions are 1 to END


@dataclass(frozen=True)
class Interval:
    """A reference: begun at `since`, ended at `end` or still there."""

    checksum: str
    since: int
    end: int | None


@st.composite
def intervals(draw: st.DrawFn) -> list[Interval]:
    found = []
    for _ in range(draw(st.integers(0, 15))):
        since = draw(st.integers(1, END))
        end = draw(st.none() | st.integers(since + 1, END + 1))
        found.append(Interval(draw(st.sampled_from(CHECKSUMS)), since, end))
    return found


def rows(history: list[Interval]) -> pa.Table:
    """The file entries of a log that says so."""
    found = []
    for one in history:
        found.append({"position": one.since, "op": "add", "checksum": one.checksum, "size": 3})
        found.append({"position": one.since, "op": "add", "checksum": None, "size": 3})
        found.append({"position": one.since, "op": "remove"})
        if one.end is not None:
            found.append(
                {"position": one.end, "op": "release", "since": one.since, "checksum": one.checksum, "size": 3}
            )
    return pa.Table.from_pylist(found, schema=FILES)


def expected(history: list[Interval], checksum: str, changed: int, rules: Rules) -> tuple[str, int, bool]:
    """(reason, how many pins need it, live), one content at a time, as the decision record has it in words."""
    mine = [one for one in history if one.checksum == checksum]
    if not mine:
        return ("unreferenced, young" if changed > rules.cutoff_ns else "unreferenced"), 0, False
    if any(one.end is None for one in mine):
        return "live", 0, True
    last = max(one.end or 0 for one in mine)
    reasons = []
    for pin in rules.pins:
        if pin.reason.startswith("hold "):
            needed = any(one.since <= pin.position < (one.end or 0) for one in mine)
        else:
            needed = last > pin.position
        if needed:
            reasons.append(pin.reason)
    young = last > rules.cutoff or changed > rules.cutoff_ns
    return [*reasons, "young" if young else "expired"][0], len(reasons), False


@settings(deadline=None, max_examples=200)
@given(
    intervals(),
    st.lists(st.integers(0, END + 1), max_size=2),
    st.lists(st.integers(0, END + 1), max_size=2),
    st.lists(st.integers(0, END + 1), max_size=2),
    st.integers(-1, END + 1),
    st.integers(1, 4),
)
def test_the_decision_is_what_a_naive_model_says(
    history: list[Interval], slots: list[int], holds: list[int], dumps: list[int], cutoff: int, cuts: int
) -> None:
    pins = (
        *(Needing(f"slot {number}", position) for number, position in enumerate(slots)),
        *(Needing(f"hold {number}", position) for number, position in enumerate(holds)),
        *(Needing(f"dump {number}", position) for number, position in enumerate(dumps)),
    )
    rules = Rules(pins, cutoff, 50)
    entries = [(checksum, 3, 3, 10 * number * 2, 1) for number, checksum in enumerate(CHECKSUMS)]
    table = pa.table(list(zip(*entries, strict=True)), schema=ENTRIES)
    whole = rows(history)
    step = len(whole) // cuts + 1
    parts = [count_references(whole.slice(at, step)) for at in range(0, len(whole), step)]
    references = pa.concat_tables([REFERENCES.empty_table(), *parts])
    decided = decide(references, table, rules)
    found = {row["checksum"]: (row["reason"], row["pins"], row["live"]) for row in decided.to_pylist()}
    assert found == {checksum: expected(history, checksum, changed, rules) for checksum, _, _, changed, _ in entries}
    assert all(row["keep"] == (row["reason"] not in ("expired", "unreferenced")) for row in decided.to_pylist())
    numbers = tally(decided, rules).to_pylist()
    assert sum(row["entries"] for row in numbers if row["what"] == "reason") == len(CHECKSUMS)
    for row in numbers:
        if row["what"] == "pin":
            one = Rules(tuple(pin for pin in pins if pin.reason != row["name"]), cutoff, 50)
            freed = [
                checksum
                for checksum, _, _, changed, _ in entries
                if found[checksum][0] not in ("expired", "unreferenced")
                and expected(history, checksum, changed, one)[0] == "expired"
            ]
            assert (row["alone_entries"], row["alone_bytes"]) == (len(freed), 3 * len(freed))


def test_nothing_listed_is_nothing_decided() -> None:
    rules = Rules((Needing("slot a", 1), Needing("hold b", 1)), 5, 5)
    decided = decide(count_references(rows([Interval(CHECKSUMS[0], 1, 2)])), ENTRIES.empty_table(), rules)
    assert decided.num_rows == 0 and set(DECIDED.names) <= set(decided.column_names)
    assert [row["entries"] for row in tally(decided, rules).to_pylist()] == [0, 0]


def test_equal_references_are_counted_and_not_repeated() -> None:
    many = rows([Interval(CHECKSUMS[0], 1, 4)] * 1000 + [Interval(CHECKSUMS[0], 2, None)] * 1000)
    counted = count_references(many).to_pylist()
    assert sorted((row["adds"], row["releases"], row["since"], row["end"] or 0) for row in counted) == [
        (0, 1000, 1, 4),
        (2000, 0, 1, 0),
    ]
    assert {row[KEY] for row in counted} == {"ab"}


def test_rows_of_a_taking_are_references_without_an_end() -> None:
    rows = pa.Table.from_pylist([{"checksum": CHECKSUMS[0], "size": 3}] * 2, schema=FILES)
    (counted,) = count_references(rows, pending=True).to_pylist()
    assert (counted["adds"], counted["releases"], counted["end"]) == (2, 0, None)
    assert count_references(rows).num_rows == 0


def test_the_slot_furthest_behind_names_the_reason_and_one_given_up_names_none() -> None:
    slots = [Slot("b", 7, 1, DAY, DAY), Slot("a", 9, 1, DAY, DAY), Slot("c", 1, 1, DAY, DAY, given_up=DAY)]
    pins = Pins(slots, [Hold("h", 3, 1, DAY)], [DumpPin("d", "/d", 2, 1, DAY)], [])
    assert needing(pins) == (Needing("slot b", 7), Needing("slot a", 9), Needing("hold h", 3), Needing("dump d", 2))


# Reading


def segment(root: str, first: int, last: int, *tables: pa.Table) -> None:
    with SegmentWriter(root, first) as writer:
        for table in tables:
            writer.append_files(table)
        writer.finish(last, time=1000)


def test_references_are_read_from_every_segment(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmroot.log.references.GROUPS_OF_ROWS", 1)
    segment(root, 1, 3, rows([Interval(CHECKSUMS[0], 1, 2)] * 5))
    segment(root, 4, 8, rows([Interval(CHECKSUMS[1], 5, None)]))
    segment(root, 9, 9)
    for name in ("ab", "cd"):
        (Place(root) / "files" / name / "x").write_bytes(b"")
    found = sources(root, segments(root))
    assert found[0] == Listable(("ab", "cd")) and all(isinstance(one, FileRows) for one in found[1:])
    read = pa.Table.from_batches([batch for source in found for batch in read_references(source)], REFERENCES)
    assert [row[KEY] for row in read.to_pylist() if row["checksum"] is None] == ["ab", "cd"]
    known = [row for row in read.to_pylist() if row["checksum"]]
    assert sorted((row["checksum"], row["adds"], row["releases"], row["end"]) for row in known) == [
        (CHECKSUMS[0], 0, 5, 2),
        (CHECKSUMS[0], 5, 0, None),
        (CHECKSUMS[1], 1, 0, None),
    ]
    assert work(root) == sum(one.file_count for one in segments(root))


def test_a_log_without_its_beginning_decides_nothing(root: str) -> None:
    segment(root, 1, 3)
    segment(root, 4, 5)
    Place(segments(root)[0].place).remove_tree()
    with pytest.raises(FormatError, match="begins at position 4"):
        sources(root, segments(root))


def test_a_part_that_is_gone_or_damaged_is_named(root: str) -> None:
    segment(root, 1, 3, rows([Interval(CHECKSUMS[0], 1, 2)]))
    (part,) = segments(root)[0].files_parts()
    for data in (b"", b"PAR1" + b"x" * 100):
        Place(part).write_bytes(data)
        with pytest.raises(FormatError, match="files-00000"):
            sources(root, segments(root))
    Place(part).remove()
    with pytest.raises(Superseded, match="files-00000"):
        list(read_references(FileRows(part, 0, 1)))


# Listing


def test_entries_are_listed_by_prefix_and_other_names_are_counted(root: str) -> None:
    name = f"xxh3_128-{CHECKSUMS[1]}-5"
    assert list_entries(root, "ab").entries.num_rows == 0
    (Place(root) / "files/ab" / name).write_bytes(b"12345")
    (Place(root) / "files/ab" / f"xxh3_128-cd{CHECKSUMS[1][2:]}-5").write_bytes(b"12345")  # in the wrong directory
    (Place(root) / "files/ab" / "readme.txt").write_bytes(b"")
    (Place(root) / "files/ab" / f"xxh3_128-{CHECKSUMS[1]}-05").write_bytes(b"12345")
    (Place(root) / "files/ab/directory" / name).write_bytes(b"12345")
    (Place(root) / "files/zz" / name).write_bytes(b"12345")
    listed = list_entries(root, "ab")
    (row,) = listed.entries.to_pylist()
    assert (row["checksum"], row["size"], row["bytes"], row["links"]) == (CHECKSUMS[1], 5, 5, 1)
    assert row["changed_ns"] > 1_600_000_000 * 10**9
    assert listed.unknown == 4 and foreign_names(root) == 1
    assert estimate(root) == 0


@pytest.mark.parametrize(
    "name",
    [
        "xxh3_128-ab-5",
        f"md5-{CHECKSUMS[0]}-5",
        f"xxh3_128-{CHECKSUMS[0].upper()}-5",
        "",
        f"xxh3_128-{CHECKSUMS[0]}--5",
        f"xxh3_128-{CHECKSUMS[0]}-{10**19}",
    ],
)
def test_what_is_no_content_name_is_none(name: str) -> None:
    assert content_of(name) is None
    assert content_of(f"xxh3_128-{CHECKSUMS[0]}-0") == (CHECKSUMS[0], 0)
