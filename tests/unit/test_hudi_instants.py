"""States of Hudi tables, as retention sees them: which are listed, and what ends with which."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest

from replicator.errors import Error
from replicator.lifecycle.retention.hudi_instants import Instants

TIMES = [f"2026010{number}000000000" for number in range(1, 8)]


def table(place: Path, **files: Any) -> Path:
    """A table of version 9 with seven writes. The file group `a` has a file of the first four, `b` of the first, third
    and last; the fifth write replaces the group `c` of the second one."""
    home = place / ".hoodie/timeline"
    home.mkdir(parents=True)
    (place / ".hoodie/hoodie.properties").write_text("hoodie.table.version=9\nhoodie.table.timeline.timezone=UTC\n")
    for number, time in enumerate(TIMES):
        replaces = number == 4
        action = "replacecommit" if replaces else "commit"
        content = {"partitionToReplaceFileIds": {"d=1": ["c-0"]} if replaces else {}}
        (home / f"{time}.{action}.requested").touch()
        (home / f"{time}_{time}.{action}").write_text(json.dumps(content))
    (place / "d=1").mkdir()
    for group, several in (("a-0", (0, 1, 2, 3)), ("b-0", (0, 2, 6)), ("c-0", (1,))):
        for number in several:
            (place / f"d=1/{group}_0-1-2_{TIMES[number]}.parquet").touch()
    return place


def groups(names: Any) -> list[str]:
    return sorted(f"{name[4]}{TIMES.index(name.rpartition('_')[2].partition('.')[0])}" for name in names)


def test_files_leave_after_the_write_that_superseded_them(tmp_path: Path) -> None:
    found = Instants(str(table(tmp_path)))
    assert found.states == TIMES and found.in_flight == "" and found.cleans == set()
    assert groups(found.ending(TIMES[1])) == []
    assert groups(found.ending(TIMES[2])) == ["a0"]
    assert groups(found.ending(TIMES[3])) == ["a0", "a1", "b0"]
    assert groups(found.ending(TIMES[5])) == ["a0", "a1", "a2", "b0", "c1"], "c was replaced by the write before"
    assert groups(found.ending(TIMES[6])) == groups(found.ending(TIMES[5])), "b2 is superseded by the newest"
    assert found.time_of(TIMES[0]) == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(Error, match="is no time"):
        found.time_of("001")


def test_states_without_files_of_their_own_are_not_listed(tmp_path: Path) -> None:
    place = table(tmp_path)
    for each in Instants(str(place)).ending(TIMES[5]):
        (place / each).unlink()
    assert Instants(str(place)).states == TIMES[5:], "b2 is superseded at the last one"
    (place / f"d=1/b-0_0-1-2_{TIMES[2]}.parquet").unlink()
    assert Instants(str(place)).states == TIMES[6:]


def test_a_group_that_is_replaced_later_keeps_its_older_files(tmp_path: Path) -> None:
    place = table(tmp_path)
    (place / f"d=1/c-0_0-1-2_{TIMES[2]}.parquet").touch()
    found = Instants(str(place))
    assert "c1" not in groups(found.ending(TIMES[4])) and "c1" in groups(found.ending(TIMES[5]))
    staying = found.staying(TIMES[1])
    assert groups(staying) == ["c1"] and set(staying.values()) == {TIMES[4]}
    assert found.staying(TIMES[3]) == {}


def test_savepoints_writes_and_cleans(tmp_path: Path) -> None:
    place, home = table(tmp_path), tmp_path / ".hoodie/timeline"
    (home / f"{TIMES[0]}_{TIMES[1]}.savepoint").touch()
    assert groups(Instants(str(place)).ending(TIMES[5])) == ["a1", "a2", "c1"]
    assert Instants(str(place)).states == TIMES[1:]

    (home / f"{TIMES[3]}_{TIMES[3]}.commit").unlink()
    (home / f"{TIMES[5]}9.commit.inflight").touch()
    found = Instants(str(place))
    assert found.in_flight == TIMES[3] and TIMES[3] not in found.writes
    assert "a3" not in groups(found.past), "its write is not completed"

    for name in ("8.clean.requested", "8.clean.inflight", "9.clean.requested", "9_9.clean"):
        (home / name).touch()
    assert Instants(str(place)).cleans == {"8"}


@pytest.mark.parametrize(
    ("retained", "planned", "why"),
    [
        (3, ["a0", "a1", "b0"], ""),
        (3, ["a0"], ""),
        (4, ["a0"], f"those before {TIMES[4]}, not before {TIMES[3]}"),
        (3, ["a0", "a2"], f"with d=1/a-0_0-1-2_{TIMES[2]}.parquet"),
    ],
)
def test_a_plan_of_other_files_is_found(tmp_path: Path, retained: int, planned: list[str], why: str) -> None:
    place, paths = table(tmp_path), {"filePath": "string"}
    names = [f"{place}/d=1/{each[0]}-0_0-1-2_{TIMES[int(each[1])]}.parquet" for each in planned]
    path = {"type": "record", "name": "path", "fields": [{"name": key, "type": kind} for key, kind in paths.items()]}
    instant = {"type": "record", "name": "instant", "fields": [{"name": "timestamp", "type": "string"}]}
    files = {"type": "map", "values": {"type": "array", "items": path}}
    fields = [("earliestInstantToRetain", instant), ("filePathsToBeDeletedPerPartition", files)]
    schema = {"type": "record", "name": "plan", "fields": [{"name": key, "type": kind} for key, kind in fields]}
    plan = {
        "earliestInstantToRetain": {"timestamp": TIMES[retained]},
        "filePathsToBeDeletedPerPartition": {"d=1": [{"filePath": each} for each in names]},
    }
    with (place / ".hoodie/timeline/9.clean.requested").open("wb") as stream:
        fastavro.writer(stream, schema, [plan])
    assert Instants(str(place)).unplanned("9", TIMES[3]) == why
    (place / ".hoodie/timeline/9.clean.requested").write_bytes(b"torn")
    assert "cannot be read" in Instants(str(place)).unplanned("9", TIMES[3])


def test_what_is_no_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"no \.hoodie/hoodie\.properties"):
        Instants(str(tmp_path))
