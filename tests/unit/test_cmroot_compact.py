"""Compaction: fewer segments that say the same, also when it is killed, and while others read."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_store import expired
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import at_every_step

from cmroot.errors import FormatError, LeaseHeld, Superseded
from cmroot.lease import acquire
from cmroot.log import captured as compacting
from cmroot.log.captured import (
    COVERED_MARGIN,
    FILES_PART,
    MARKER,
    MergeGroup,
    Segment,
    SegmentWriter,
    compact,
    plan_compaction,
    segments,
    sweep_log,
)
from cmroot.log.segment import LINES, PARQUET, Marker, Part, PartsReader
from cmroot.root import create_or_open
from cmroot.store.place import Place, join, name_of
from cmroot.store.remote import FsspecStore

HOUR = COVERED_MARGIN.total_seconds()


def write(root: str, first: int, last: int, files: int = 1) -> Segment:
    with SegmentWriter(root, first) as writer:
        for position in range(first, last + 1):
            writer.append_record(json.dumps({"position": position, "said": "x" * (position % 7)}).encode())
        paths = [f"f{number}" for number in range(files)]
        writer.append_files(pa.table({"position": [first] * files, "op": ["add"] * files, "path": paths}))
        return writer.finish(last, event=100 + last, time=1000 + last, source="thrift://a")


def write_some(root: str, lengths: Iterable[int], files: int = 1) -> None:
    log = segments(root)
    first = log[-1].last + 1 if log else 1
    for length in lengths:
        write(root, first, first + length - 1, files)
        first += length


def content(root: str) -> dict[str, Any]:
    """All that a log says, whatever its segments are."""
    log = segments(root)
    for segment in log:
        segment.verify()
        assert (segment.captures[0].first, segment.captures[-1].last) == (segment.first, segment.last)
        assert segment.metadata == segment.captures[-1].about
    return {
        "records": [line for segment in log for line in segment.records()],
        "files": [row for segment in log for batch in segment.file_batches() for row in batch.to_pylist()],
        "captures": [capture for segment in log for capture in segment.captures],
    }


def names(root: str) -> list[str]:
    return (Place(root) / "log").list()


def test_small_segments_become_one_that_says_the_same(root: str) -> None:
    write_some(root, [1, 5, 2, 1])
    before = content(root)
    report = compact(root, clock=lambda: 5000.0)
    assert (report.segments_before, report.segments_after, report.runs, report.merged) == (4, 1, 1, 4)
    assert (report.records, report.files) == (9, 4) and report.bytes_after < report.bytes_before
    (merged,) = segments(root)
    assert (merged.first, merged.last, merged.merged_at) == (1, 9, 5000)
    assert content(root) == before
    assert [(each.first, each.last, each.about["event"]) for each in merged.captures] == [
        (1, 1, 101),
        (2, 6, 106),
        (7, 8, 108),
        (9, 9, 109),
    ]
    assert list(merged.records(after=5, until=7)) == before["records"][5:7]


def test_the_log_grows_on_and_is_merged_again(root: str) -> None:
    write_some(root, [2, 2])
    compact(root)
    write_some(root, [1, 1])
    before = content(root)
    assert [each.first for each in segments(root)] == [1, 5, 6]
    assert compact(root).merged == 3
    assert [(each.first, each.last) for each in segments(root)] == [(1, 6)]
    assert content(root) == before and len(before["captures"]) == 4
    assert compact(root).runs == 0


def test_a_log_without_small_neighbours_stays(root: str) -> None:
    assert compact(root).runs == 0
    write_some(root, [3])
    assert compact(root).runs == 0 and len(names(root)) == 1


def test_a_held_lease_is_told(root: str) -> None:
    write_some(root, [1, 1])
    with acquire(root, "capture"), pytest.raises(LeaseHeld, match="capture"):
        compact(root)
    assert len(segments(root)) == 2


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_compaction_that_was_taken_over_while_it_stood_still_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before its last look, or right before the request that decides. Another has merged the same segments."""
    root = create_or_open(f"memory://{uuid.uuid4().hex}").place
    write_some(root, [1, 1, 1])
    before, taken = content(root), []

    def take_over() -> None:
        if not taken:
            taken.append(True)
            with expired(root):
                pass
            compact(root)
            taken.append(names(root))

    verify, create = PartsReader.verify, FsspecStore.create_exclusive

    def slow_verify(self: PartsReader) -> None:
        verify(self)
        if "-writing" in self.place:
            take_over()

    def slow_create(self: FsspecStore, path: str, data: bytes) -> bool:
        if b"publishes" in data:
            take_over()
        return create(self, path, data)

    if when == "before":
        monkeypatch.setattr(PartsReader, "verify", slow_verify)
    else:
        monkeypatch.setattr(FsspecStore, "create_exclusive", slow_create)
    with pytest.raises(LeaseHeld):
        compact(root)
    assert len(taken) == 2
    assert [(each.first, each.last) for each in segments(root)] == [(1, 3)] and content(root) == before


# Those who read meanwhile


def test_a_reader_that_listed_the_log_before_has_an_hour_to_read_it(root: str) -> None:
    write_some(root, [1, 2])
    listed, before = segments(root), content(root)
    compact(root, clock=lambda: 1000.0)
    assert sweep_log(root, clock=lambda: 1000.0 + HOUR - 1) == []
    assert [line for segment in listed for line in segment.records()] == before["records"]
    assert len(names(root)) == 3 and len(segments(root)) == 1
    assert len(sweep_log(root, clock=lambda: 1000.0 + HOUR)) == 2
    assert names(root) == [name_of(segments(root)[0].place)] and content(root) == before


def test_a_sweep_asks_for_the_lease_before_it_touches_what_was_merged(root: str) -> None:
    write_some(root, [1, 2])
    compact(root, clock=lambda: 1000.0)
    before = (Place(root) / "log").find()
    with acquire(root, "sweep", renew=False) as lease:
        lease.release()
        with pytest.raises(LeaseHeld):
            sweep_log(root, lease, clock=lambda: 1000.0 + HOUR)
    assert (Place(root) / "log").find() == before


def test_a_reader_that_comes_too_late_is_told_to_run_again(root: str) -> None:
    write_some(root, [1, 2])
    fresh, opened = segments(root), segments(root)
    assert opened[0].record_count == 1
    compact(root, clock=lambda: 0.0)
    sweep_log(root, clock=lambda: HOUR)
    for reading in (
        lambda: list(fresh[0].records()),
        lambda: list(opened[0].records()),
        lambda: list(opened[0].file_batches()),
        lambda: fresh[1].metadata,
        lambda: opened[0].verify(),
    ):
        with pytest.raises(Superseded, match="merged into another") as caught:
            reading()
        assert caught.value.transient and caught.value.exit_code == 75 and caught.value.hint


def test_a_segment_that_is_simply_gone_is_damage(root: str) -> None:
    write_some(root, [1, 2])
    opened = segments(root)
    assert opened[1].record_count == 2
    Place(opened[1].place).remove_tree()
    with pytest.raises(FormatError, match="is missing"):
        list(opened[1].records())


def test_a_clock_that_jumped_back_keeps_the_old_ones_longer(root: str) -> None:
    write_some(root, [1, 2])
    compact(root, clock=lambda: 9000.0)
    assert sweep_log(root, clock=lambda: 9000.0 - HOUR) == []
    assert len(names(root)) == 3


# Damage


def test_a_damaged_segment_is_not_merged(local_root: str) -> None:
    write_some(local_root, [1, 2, 3])
    part = Path(segments(local_root)[1].place, "records-00000.jsonl.gz")
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    listed = names(local_root)
    with pytest.raises(FormatError, match="records-00000"):
        compact(local_root)
    assert names(local_root) == listed


def test_an_overlap_that_is_no_merging_is_refused(local_root: str) -> None:
    write_some(local_root, [1, 4, 2])
    inside = join(local_root, "log", f"{3:020d}-{4:020d}")
    shutil.copytree(segments(local_root)[0].place, inside)
    with pytest.raises(FormatError, match="overlaps"):
        segments(local_root)


def test_merged_rows_are_counted_before_anything_is_published(local_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_some(local_root, [1, 2])
    before, real = content(local_root), Segment.file_batches

    def forgetful(segment: Segment, columns: list[str] | None = None) -> Any:
        return (batch for batch in real(segment, columns) if segment.first != 2)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "file_batches", forgetful)
        with pytest.raises(FormatError, match="of \\(3, 2\\) rows"):
            compact(local_root)
    assert content(local_root) == before and len(names(local_root)) == 2


def test_an_older_part_without_the_newest_columns_is_read_and_merged(local_root: str) -> None:
    import pyarrow.parquet as pq

    from cmroot.log.segment import encode_marker
    from cmroot.store.checksum import checksum_file

    segment = write(local_root, 1, 1)
    path = segment.files_parts()[0]
    pq.write_table(pq.read_table(path).drop_columns(["since", "version"]), path)
    checksum, size = checksum_file(path)
    parts = [part if part.kind == LINES else Part(part.name, PARQUET, 1, size, checksum) for part in segment.parts]
    marker = Marker(segment.marker.format, 1, parts, segment.marker.metadata)
    Path(segment.place, MARKER).write_bytes(encode_marker(marker))
    write(local_root, 2, 2)
    before = content(local_root)
    assert before["files"][0]["version"] is None
    (batch,) = segments(local_root)[0].file_batches(["version", "path"])
    assert batch.to_pylist() == [{"path": "f0", "version": None}]
    compact(local_root)
    assert content(local_root) == before


# Crashes


def test_a_killed_compaction_leaves_the_same_log(tmp_path: Path) -> None:
    root, model = str(tmp_path / "cmroot"), tmp_path / "model"
    create_or_open(str(model))
    write_some(str(model), [1, 3, 2])
    before = content(str(model))

    def lay() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(model, root)

    seen: set[int] = set()

    def check(_: int) -> None:
        seen.add(len(segments(root)))
        assert content(root) == before
        with acquire(root, "capture"):
            sweep_log(root, clock=lambda: 1000.0 + HOUR)
            assert content(root) == before
            assert len(names(root)) == len(segments(root))
        compact(root)
        assert content(root) == before and len(segments(root)) == 1

    work = f"""
import cmroot.log.captured
cmroot.log.captured.compact({root!r}, clock=lambda: 1000.0)
cmroot.log.captured.sweep_log({root!r}, clock=lambda: 1000.0 + {HOUR})
"""
    assert at_every_step(work, lay, check, imports=", cmroot.log.captured") > 15
    assert seen == {1, 3}
    assert not [name for name in os.listdir(tmp_path) if name not in ("cmroot", "model")]


def test_objects_of_a_killed_compaction_do_not_count_without_their_marker(place: str) -> None:
    """On object stores the merged segment is moved part by part, and the covered ones are removed one by one."""
    root = create_or_open(join(place, "cmroot")).place
    write_some(root, [1, 1])
    before = content(root)
    unfinished = Place(root) / "log" / f"{1:020d}-{2:020d}" / "records-00000.jsonl.gz"
    unfinished.write_bytes(b"part of it")
    assert content(root) == before and len(segments(root)) == 2
    compact(root, clock=lambda: 0.0)
    assert content(root) == before and len(segments(root)) == 1
    (Place(root) / "log" / f"{1:020d}-{1:020d}" / MARKER).remove()  # a sweep killed in the middle
    assert content(root) == before
    with acquire(root, "capture"):
        sweep_log(root, clock=lambda: 0.0)
    assert len(names(root)) == 2 and content(root) == before


# The plan


class _Sized(Segment):
    """A segment that is only its sizes."""

    def __init__(self, number: int, weight: float) -> None:
        super().__init__(f"s{number}", number, number)
        rows = int(weight * FILES_PART)
        parts = [Part("f", PARQUET, rows, 10, ""), Part("r", LINES, 1, 10, "")]
        self.__dict__["_reader"] = Marker("", 1, parts, {"about": {}})


def planned(*weights: float) -> list[list[int]]:
    log = [_Sized(number, weight) for number, weight in enumerate(weights)]
    return [[segment.first for segment in run.segments] for run in plan_compaction(log)]


def test_runs_are_filled_up_to_the_size_of_a_part() -> None:
    assert planned(0.4, 0.4, 0.4, 0.4) == [[0, 1], [2, 3]]
    assert planned(0.2, 1.5, 0.2, 0.3) == [[2, 3]]
    assert planned(1, 1, 1) == []


def test_a_large_segment_is_not_rewritten_for_a_few_small_ones() -> None:
    assert planned(0.5, 0.01) == []
    assert planned(0.5, 0.01, 0.01) == [[1, 2]]
    assert planned(0.5, 0.1, 0.1) == [[0, 1, 2]]


def test_a_merged_marker_lists_no_more_captures_than_its_limit(
    local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "CAPTURES", 3)
    write_some(local_root, [1] * 8)
    before = content(local_root)
    compact(local_root)
    assert [len(each.captures) for each in segments(local_root)] == [3, 3, 2]
    assert content(local_root) == before


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0001, 1.5), max_size=40))
def test_any_plan_merges_neighbours_within_the_limit(weights: list[float]) -> None:
    log = [_Sized(number, weight) for number, weight in enumerate(weights)]
    seen: list[int] = []
    for run in plan_compaction(log):
        assert isinstance(run, MergeGroup) and len(run.segments) > 1
        members = [segment.first for segment in run.segments]
        assert members == list(range(run.first, run.last + 1))
        assert sum(weights[each] for each in members) <= 1.001
        seen += members
    assert seen == sorted(set(seen))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400))
def test_repeated_compaction_leaves_few_segments_and_rewrites_each_record_a_few_times(count: int) -> None:
    """Weights alone: every captured segment is followed by a compaction."""
    log: list[float] = []
    written = 0.0
    for _ in range(count):
        log.append(1 / 1000)
        for run in reversed(planned(*log)):
            merged = sum(log[run[0] : run[-1] + 1])
            written += merged
            log[run[0] : run[-1] + 1] = [merged]
    assert len(log) <= 20
    assert written <= 12 * count / 1000


def test_merging_needs_no_more_memory_for_more_segments(local_root: str) -> None:
    write_some(local_root, [200] * 4, files=20_000)
    listed = segments(local_root)
    tracemalloc.start()
    try:
        with acquire(local_root, "compact") as lease:
            compacting.merge(local_root, MergeGroup(tuple(listed[:2])), lease)
            few = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            compacting.merge(local_root, MergeGroup(tuple(segments(local_root))), lease)
            many = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert many < 1.3 * few + (1 << 20)
    assert len(segments(local_root)) == 1
