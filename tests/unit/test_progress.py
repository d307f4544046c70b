"""Progress: how much of a task is done, how fast, and how long it takes still; in a log, now and then."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from waiting import Clock, eventually

from cmroot.store.checksum import FLOW, checksum_file, copy_file
from replicator.cli.output import begin_logging, end_logging, lines_on_stdout
from replicator.compare.compare_files import FilePair, FilesCompared
from replicator.compare.verify import TableSteps
from replicator.core.logging import LogConfig, Watch
from replicator.core.runtime import Amounts, Silent, watched


def test_bytes_files_rate_and_what_remains_are_told() -> None:
    clock = Clock()
    done = Amounts("copy", 4, files=8, size=4 << 20, clock=clock)
    assert done.text().startswith("0 of 8 files") and done.remaining is None
    clock.advance(2)
    done.advance(1, files=2, size=1 << 20)
    facts: dict[str, Any] = done.facts()
    assert (facts["steps"], facts["of_steps"], facts["files"], facts["of_files"]) == (1, 4, 2, 8)
    assert (facts["bytes"], facts["of_bytes"]) == (1 << 20, 4 << 20)
    assert (facts["bytes_per_second"], facts["seconds"], facts["remaining_seconds"]) == (1 << 19, 2.0, 6.0)
    assert done.text() == "1.0 MiB of 4.0 MiB, 2 of 8 files, 512.0 KiB/s, 6 s left"


def test_without_a_total_nothing_is_said_of_the_rest() -> None:
    done = Amounts("walk")
    done.advance(3)
    assert done.text() == "3" and "remaining_seconds" not in done.facts() and "bytes" not in done.facts()


def test_what_is_being_copied_counts_before_it_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_000)
    done, reading = (
        Amounts("copy", 1, size=600_000, live=lambda: FLOW.copied),
        Amounts("read", live=lambda: FLOW.read),
    )
    copy_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.size == 600_000 and reading.size == 0, "no more than there is"
    checksum_file(str(tmp_path / "b"))
    assert reading.size == 1_000_000
    done.advance(1, size=600_000)
    assert done.size == 600_000, "not twice"


def test_a_log_has_a_line_now_and_then_and_lines_for_programs_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log, clock = tmp_path / "log", Clock()
    begin_logging(LogConfig(file=str(log), format="json"))
    watch = Watch(Silent(), every=0.01, told=30.0, clock=clock)

    def told() -> int:
        return sum("progress" in json.loads(line) for line in log.read_text().splitlines())

    def looks() -> int:
        return sum(hasattr(each, "progress") for each in caplog.records)

    try:
        with lines_on_stdout(), watch.task("copy", 2, size=10) as advance:
            advance(1, size=5)
            for lines in range(3):
                seen = looks()
                eventually(lambda seen=seen: looks() > seen + 2)
                assert told() == lines
                clock.advance(30)
                eventually(lambda lines=lines: told() > lines)
    finally:
        end_logging()
    logging.getLogger("replicator.tests").warning("not any more")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["line"], line.get("state")) for line in lines[:1] + lines[-1:]] == [
        ("step", "begun"),
        ("step", "ended"),
    ]
    progress = lines[1:-1]
    assert {line["line"] for line in progress} == {"progress"} and len(progress) > 3 + told() == 6
    assert (progress[-1]["progress"], progress[-1]["bytes"], progress[-1]["of_bytes"]) == ("copy", 5, 10)
    assert lines[-1]["bytes"] == 5 and "often" not in progress[-1]


def test_things_that_are_watched_come_all(capsys: pytest.CaptureFixture[str]) -> None:
    begin_logging(LogConfig())
    with lines_on_stdout():
        assert list(watched(Watch(Silent()), "count", [1, 2, 3])) == [1, 2, 3]
    end_logging()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["line"], each.get("steps")) for each in lines] == [("step", None), ("progress", 3), ("step", None)]


def test_a_table_is_compared_when_all_its_files_are() -> None:
    done = Amounts("compare objects", 3)
    tables = TableSteps(done.advance)
    objects = tables.drawn(FilePair(f"a.t/p={each}", "", "") for each in range(5))
    for some in (2, 0, 3):  # a view has no files
        assert len(list(islice(objects, some))) == some
        tables.read()
    assert done.steps == 0
    tables.compared(FilesCompared(files=4, bytes=40, objects=1))
    assert (done.steps, done.files, done.size) == (0, 4, 40)
    tables.compared(FilesCompared(objects=3))
    assert done.steps == 2 and done.remaining is not None
    tables.compared(FilesCompared(objects=1))
    assert done.steps == 3
