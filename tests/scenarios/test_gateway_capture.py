"""Drops through the gateway as captures see them: recorded with their bytes, for loads of earlier moments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command
from gateways import ALL, FILES, Guarded, guarded
from hudi_tables import make, read
from lab import Lab
from raw_thrift import struct

from cmroot.keep.journal import DropCall
from cmroot.log.captured import segments
from cmroot.log.references import read_intercepted
from replicator.core.model import EXTERNAL
from replicator.metastore.embedded.running import Running


@pytest.fixture
def fixture(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Iterator[Lab]:
    """A replicated database, and a gateway on its `$cmroot`; `fixture.through` is a client of it."""
    fixture = Lab(source_metastore, target_metastore, tmp_path)
    fixture.source.create()
    fixture.source.table("t", FILES)
    fixture.source.partitioned("parts", {"a": {"f": "first a"}, "b": {"f": "b"}})
    fixture.bootstrap()
    with guarded(source_metastore, tmp_path, cmroot=fixture.cmroot) as guard:
        fixture.guard = guard  # type: ignore[attr-defined]
        yield fixture


def test_rubber_banding_through_the_gateway(fixture: Lab) -> None:
    """p=x has A, is dropped, and has B: all between two captures. A load that ends before the drop shows A."""
    guard: Guarded = fixture.guard  # type: ignore[attr-defined]
    source, metastore = fixture.source, fixture.source.metastore
    source.add("parts", {"x": {"f": "A"}})
    made = metastore.current_event_id()
    guard.call("drop_partition", fixture.name, "parts", ["x"], True)
    source.add("parts", {"x": {"f": "B"}})
    source.table("young", {"f": "young"})
    young = metastore.current_event_id()
    guard.call("drop_table", fixture.name, "young", True)
    first = fixture.last
    assert fixture.dump("--until", str(made), since=first).code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.output["missing"]) == (0, []), loaded
    assert (fixture.target.home / "parts" / "p=x" / "f").read_text() == "A"
    assert fixture.dump("--until", str(young), since=fixture.here / "dump2").code == 0
    assert fixture.load().output["missing"] == []
    assert (fixture.target.home / "young" / "f").read_text() == "young"
    fixture.catch_up()
    assert (fixture.target.home / "parts" / "p=x" / "f").read_text() == "B"
    assert guard.entries() == [], "the capture has recorded them"


def test_drops_between_captures_leave_a_log_that_adds_up(fixture: Lab) -> None:
    guard: Guarded = fixture.guard  # type: ignore[attr-defined]
    for number in range(3):
        fixture.source.table(f"t{number}", {"f": f"{number}", "same": "same"})
        if number == 1:
            assert fixture.capture().code == 0
        guard.call("drop_table", fixture.name, f"t{number}", True)
    guard.call("drop_table", fixture.name, "t", True)
    request = struct({1: fixture.name, 2: "parts", 3: struct({1: ["p=a"]}), 4: True})
    guard.call("drop_partitions_req", request)
    fixture.catch_up()
    live: dict[str, int] = {}
    for segment in segments(str(fixture.cmroot)):
        for batch in segment.file_batches():
            for row in batch.to_pylist():
                assert row["checksum"] is not None, row
                live[row["checksum"]] = live.get(row["checksum"], 0) + {"add": 1, "release": -1}[row["op"]]
    assert sorted(live.values())[-1] == 1 and sum(live.values()) == 1, "only parts/p=b is left"


def test_a_dropped_hudi_table_is_kept_with_its_hidden_files(fixture: Lab) -> None:
    guard: Guarded = fixture.guard  # type: ignore[attr-defined]
    place = make(fixture.source, "cow", "9", name="lake")
    wanted, made = read(place), fixture.source.metastore.current_event_id()
    guard.call("drop_table", fixture.name, "lake", True)
    assert not place.exists()
    assert fixture.dump("--until", str(made), since=fixture.last).code == 0
    loaded = fixture.load()
    assert (loaded.code, loaded.output["missing"]) == (0, []), loaded
    assert read(fixture.target.home / "lake") == wanted


def test_a_dropped_partition_of_a_hudi_table_is_kept_with_its_hidden_files(fixture: Lab) -> None:
    guard: Guarded = fixture.guard  # type: ignore[attr-defined]
    place = make(fixture.source, "mor", "9", name="lake")
    contents = {path.read_bytes() for path in (place / "d=x").iterdir()}
    assert any(path.name.startswith(".") and ".log." in path.name for path in (place / "d=x").iterdir())
    guard.call("drop_partition", fixture.name, "lake", ["x"], True)
    assert not (place / "d=x").exists()
    kept = {path.read_bytes() for path in (fixture.cmroot / "files").rglob("*") if path.is_file()}
    assert contents <= kept
    assert fixture.capture().code == 0
    assert guard.entries() == []


def test_a_capture_waits_for_what_is_not_decided(fixture: Lab) -> None:
    """A drop under way, as the capture sees it: its event is left for the next one."""
    from cmroot.keep.intercept import Intercept
    from cmroot.keep.journal import InterceptSource, Owner

    metastore = fixture.source.metastore
    location = metastore.table(fixture.name, "t").location
    assert location
    intercept = Intercept.begin(
        str(fixture.cmroot),
        DropCall(before_event=metastore.current_event_id(), call="drop_table", db=fixture.name, table="t"),
        [InterceptSource(location, "t")],
        [Owner("t", "", location)],
    )
    intercept.protect()
    intercept.sent()
    scanned = fixture.capture()
    assert (scanned.code, scanned.output["missing_directories"], scanned.output["observed"]) == (0, [], 0), scanned
    metastore.drop_table(fixture.name, "t")
    dropped = metastore.current_event_id()
    answer = fixture.capture("--no-scan")
    assert answer.code == 0 and answer.output["through_event"] < dropped
    intercept.settle({"t": dropped})
    assert fixture.capture().output["through_event"] == dropped
    fixture.catch_up()


def test_a_table_on_one_file_is_replicated_and_kept_when_it_goes(fixture: Lab) -> None:
    """A managed one, and an external one whose data goes with it; replaced, dropped: by a load and by the gateway."""
    guard: Guarded = fixture.guard  # type: ignore[attr-defined]
    source = fixture.source
    for name, kind in (("one", "MANAGED_TABLE"), ("other", EXTERNAL)):
        source.table(name, kind=kind)
        source.alter(name, **{"external.table.purge": "true"})
        (source.home / name).rmdir()
        (source.home / name).write_text(f"1\x01{name}\n")
    fixture.catch_up()
    assert (fixture.target.home / "other").read_text() == "1\x01other\n"
    (source.home / "one").write_text("2\x01one more\n")
    fixture.catch_up()
    verified = command(
        "verify",
        "--source",
        fixture.source_uri,
        "--target",
        fixture.target_uri,
        "--db",
        fixture.name,
        "--level",
        "checksum",
    )
    assert (verified.code, verified.output["differences"]) == (0, []), verified
    for name in ("one", "other"):
        guard.call("drop_table", fixture.name, name, True)
    rows = [row for taken in read_intercepted(str(fixture.cmroot), ALL) for row in taken.rows().to_pylist()]
    assert [(row["table"], row["path"], row["kept"]) for row in rows] == [("one", "", True), ("other", "", True)]
    assert not (source.home / "one").exists()
    fixture.catch_up()
    for name, text in (("one", "2\x01one more\n"), ("other", "1\x01other\n")):
        assert not (fixture.target.home / name).exists()
        assert text in {path.read_text() for path in (fixture.target_cmroot / "files").rglob("xxh3*")}
